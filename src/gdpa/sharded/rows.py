"""Rows of a data set, read in chunks where they are needed: arrays, ``.npy`` and Parquet files, torch data sets."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, Protocol

import numpy as np

from gdpa.base.extras import needed_by
from gdpa.base.typing import Vector

Chunk = tuple[Any, ...]
"""The arguments of a loss: one array for each part of the data, with the same number of rows."""


class Rows(Protocol):
    """A range of the rows of a data set; it can be sent to another process, which then reads the rows itself."""

    def __len__(self) -> int: ...

    def chunks(self) -> Iterator[Chunk]:
        """Yield the rows in order."""
        ...


class ArrayRows:
    """Rows [begin, end) of arrays with a common first axis. An array may be the path of a ``.npy`` file.

    Files are mapped into memory, so that a chunk is read when it is used, and leaves the memory after it.

    >>> [x.tolist() for x, in ArrayRows((np.arange(5),), 1, 5, chunk=3).chunks()]
    [[1, 2, 3], [4]]
    """

    def __init__(self, arrays: Sequence[Any], begin: int, end: int, chunk: int) -> None:
        # Only rows of arrays in memory travel; a mapped array travels as the path of its file.
        paths = [_path(array) for array in arrays]
        self._parts = [a[begin:end] if path is None else path for a, path in zip(arrays, paths, strict=True)]
        self._begins = [0 if path is None else begin for path in paths]
        self._rows, self._chunk = end - begin, chunk

    def __len__(self) -> int:
        return self._rows

    def chunks(self) -> Iterator[Chunk]:
        for at in range(0, self._rows, self._chunk):
            until = min(at + self._chunk, self._rows)
            opened = [np.load(part, mmap_mode="r") if isinstance(part, str) else part for part in self._parts]
            yield tuple(part[b + at : b + until] for part, b in zip(opened, self._begins, strict=True))


class DatasetRows:
    """Rows [begin, end) of a map-style data set of torch, put together by torch's ``default_collate``."""

    def __init__(self, dataset: Any, begin: int, end: int, chunk: int) -> None:
        self._dataset, self._begin, self._end, self._chunk = dataset, begin, end, chunk

    def __len__(self) -> int:
        return self._end - self._begin

    def chunks(self) -> Iterator[Chunk]:
        from torch.utils.data import default_collate

        for at in range(self._begin, self._end, self._chunk):
            found = default_collate([self._dataset[i] for i in range(at, min(at + self._chunk, self._end))])
            yield tuple(found) if isinstance(found, (tuple, list)) else (found,)


class ParquetRows:
    """Row groups of Parquet files. A chunk is one row group: a dictionary from columns to arrays."""

    def __init__(self, groups: Sequence[tuple[str, int, int]]) -> None:
        self._groups = list(groups)

    def __len__(self) -> int:
        return sum(rows for _, _, rows in self._groups)

    def chunks(self) -> Iterator[Chunk]:
        for path, group, _ in self._groups:
            with _parquet().ParquetFile(path) as file:
                table = file.read_row_group(group)
            yield ({name: _column(table[name]) for name in table.column_names},)


def split(dataset: Any, shards: int, chunk: int) -> list[Rows]:
    """Return the rows of a data set in ``shards`` ranges of about the same length.

    Args:
        dataset: an array or a tuple of arrays with a common first axis, each in memory, mapped by
            ``numpy.load(path, mmap_mode="r")``, or the path of a ``.npy`` file; a list of paths of Parquet files, whose
            row groups stay whole; or a map-style data set of torch.
        shards: how many.
        chunk: how many rows are read at a time.
    """
    if isinstance(dataset, list) and all(_is_path(one) and str(one).endswith(".parquet") for one in dataset):
        groups = _row_groups([str(one) for one in dataset])
        ends = list(accumulate(rows for _, _, rows in groups))
        # A group belongs to the range that its middle row falls in.
        places = [(end - rows / 2) * shards // ends[-1] for end, (_, _, rows) in zip(ends, groups, strict=True)]
        parts = [[group for group, at in zip(groups, places, strict=True) if at == s] for s in range(shards)]
        if not all(parts):
            raise ValueError(
                f"the Parquet files have {len(groups)} row groups, too few or too uneven for shards={shards}; use "
                "fewer shards, or write smaller row groups"
            )
        return [ParquetRows(part) for part in parts]
    if hasattr(dataset, "tensors"):  # torch's TensorDataset: slices are faster than single rows
        dataset = tuple(dataset.tensors)
    is_dataset = (
        hasattr(dataset, "__getitem__") and not isinstance(dataset, (tuple, list, str)) and not _is_array(dataset)
    )
    if is_dataset:
        rows, kind = len(dataset), DatasetRows
    else:
        dataset = dataset if isinstance(dataset, (tuple, list)) else (dataset,)
        lengths = [len(np.load(one, mmap_mode="r") if _is_path(one) else one) for one in dataset]
        if len(set(lengths)) != 1:
            raise ValueError(f"the arrays of dataset must have the same number of rows, got {lengths}")
        rows, kind = lengths[0], ArrayRows  # type: ignore[assignment]
    if rows < shards:
        raise ValueError(
            f"dataset has {rows} rows, fewer than shards={shards}: a shard would be empty; use fewer shards"
        )
    ends = [rows * (i + 1) // shards for i in range(shards)]
    return [kind(dataset, begin, end, chunk) for begin, end in zip([0, *ends], ends, strict=False)]


def _is_path(value: Any) -> bool:
    return isinstance(value, (str, os.PathLike))


def _is_array(value: Any) -> bool:
    return hasattr(value, "shape") and hasattr(value, "dtype")


def _path(array: Any) -> str | None:
    """Return the file of a path or of a mapped ``.npy`` array; None for an array in memory."""
    if _is_path(array):
        return str(os.path.abspath(array))
    whole = isinstance(array, np.memmap) and array.base is not None and not isinstance(array.base, np.ndarray)
    name = str(array.filename) if whole else ""
    return name if name.endswith(".npy") else None


def _column(column: Any) -> Vector:
    """Return a column as an array; a column of lists of one length as a matrix."""
    if hasattr(column.type, "value_type"):
        return np.stack(column.to_numpy())
    return np.asarray(column.to_numpy())


def _parquet() -> Any:
    with needed_by("a Parquet file"):
        import pyarrow.parquet

    return pyarrow.parquet


def _row_groups(paths: list[str]) -> list[tuple[str, int, int]]:
    """Return path, number and rows of every row group."""
    found = []
    for path in paths:
        with _parquet().ParquetFile(path) as file:
            meta = file.metadata
            found += [(os.path.abspath(path), i, meta.row_group(i).num_rows) for i in range(meta.num_row_groups)]
    if not found:
        raise ValueError(f"the Parquet files have no rows: {paths}")
    return found
