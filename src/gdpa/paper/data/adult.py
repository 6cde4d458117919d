"""UCI Adult (Becker and Kohavi 1996, CC BY 4.0): who earns above 50,000 dollars a year? 32,561 + 16,281 rows."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from gdpa.base.typing import Vector
from gdpa.paper.data.images import fetch

#: Columns of the files that are numbers, and those that are words. Left out: the census weight, education in words
#: (it repeats education in years), and sex, which is the group.
NUMBERS = {"age": 0, "education years": 4, "capital gain": 10, "capital loss": 11, "hours per week": 12}
WORDS = {"work class": 1, "marital status": 5, "occupation": 6, "relationship": 7, "race": 8, "country": 13}
SEX, INCOME = 9, 14


class Adult(NamedTuple):
    """The data set in memory.

    Attributes:
        train_x, test_x: features: numbers standardized by the training rows (amounts of capital as log(1 + amount)),
            and one column per word that occurs in the training rows.
        train_y, test_y: 1 for an income above 50,000.
        train_sex, test_sex: "Female" or "Male"; not among the features.
        names: of the features.
    """

    train_x: Vector
    train_y: Vector
    train_sex: Vector
    test_x: Vector
    test_y: Vector
    test_sex: Vector
    names: tuple[str, ...]


def load_adult(cache: Path | str | None = None, progress: Callable[[str], None] | None = None) -> Adult:
    """Return UCI Adult as arrays, first calling `gdpa.paper.data.images.fetch`."""
    folder = fetch("adult", cache, progress).folder
    train, test = (_rows((folder / file).read_text()) for file in ("adult.data", "adult.test"))
    numbers, names = [], []
    for name, place in NUMBERS.items():
        columns = [rows[:, place].astype(float) for rows in (train, test)]
        if name.startswith("capital"):
            columns = [np.log1p(column) for column in columns]
        mean, spread = columns[0].mean(), columns[0].std() or 1.0
        numbers.append([(column - mean) / spread for column in columns])
        names.append(name)
    for name, place in WORDS.items():
        for word in np.unique(train[:, place]):
            numbers.append([(rows[:, place] == word).astype(float) for rows in (train, test)])
            names.append(f"{name}: {word}")
    train_x, test_x = (np.stack(columns, axis=1) for columns in zip(*numbers, strict=True))
    train_y, test_y = ((rows[:, INCOME] == ">50K").astype(int) for rows in (train, test))
    return Adult(train_x, train_y, train[:, SEX], test_x, test_y, test[:, SEX], tuple(names))


def _rows(text: str) -> Vector:
    r"""Return the table of a file as strings; the test file begins with a remark and ends its labels with a full stop.

    >>> rows = _rows("|remark\n39, State-gov, 7, B, 13, N, A, N, White, Male, 2, 0, 40, US, <=50K.\n\n")
    >>> rows.shape, str(rows[0, 14])
    ((1, 15), '<=50K')
    """
    rows = csv.reader(io.StringIO(text), skipinitialspace=True)
    return np.array([[cell.rstrip(".") for cell in row] for row in rows if len(row) == INCOME + 1])
