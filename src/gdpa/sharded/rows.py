"""Rows of a data set, read in chunks where they are needed: arrays, ``.npy`` and Parquet files, torch data sets."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from gdpa.base.extras import needed_by

Chunk = tuple[Any, ...]
"""The arguments of a loss: one array for each part of the data, with the same number of rows."""


class Rows:
    """Some rows of a data set. They can be sent to another process, which then reads the files itself.

    Args:
        pieces: the number of rows of each chunk, and the function that reads it.
    """

    def __init__(self, pieces: Sequence[tuple[int, Callable[[], Chunk]]]) -> None:
        self._pieces = pieces

    def __len__(self) -> int:
        return sum(rows for rows, _ in self._pieces)

    def chunks(self) -> Iterator[Chunk]:
        """Yield the rows in order."""
        for _, read in self._pieces:
            yield read()


def split(dataset: Any, shards: int, chunk: int) -> list[Rows]:
    """Return the rows of a data set in ``shards`` ranges of about the same length.

    Args:
        dataset: an array or a tuple of arrays with a common first axis, each in memory, mapped by
            ``numpy.load(path, mmap_mode="r")``, or the path of a ``.npy`` file; a list of paths of Parquet files, whose
            row groups stay whole; or a map-style data set of torch.
        shards: how many.
        chunk: how many rows are read at a time.

    >>> [[x.tolist() for x, in part.chunks()] for part in split(np.arange(5), shards=2, chunk=2)]
    [[[0, 1]], [[2, 3], [4]]]
    """
    if isinstance(dataset, list) and all(_is_path(one) and str(one).endswith(".parquet") for one in dataset):
        return _split_parquet([os.path.abspath(one) for one in dataset], shards)
    if hasattr(dataset, "tensors"):  # torch's TensorDataset: slices are faster than single rows
        dataset = dataset.tensors
    elif _is_path(dataset) or hasattr(dataset, "dtype"):
        dataset = (dataset,)
    if isinstance(dataset, (tuple, list)):
        arrays = [np.load(one, mmap_mode="r") if _is_path(one) else one for one in dataset]
        lengths = [np.shape(array)[0] for array in arrays]
        if len(set(lengths)) != 1:
            raise ValueError(f"the arrays of dataset must have the same number of rows, got {lengths}")
        rows = lengths[0]
    else:
        arrays, rows = None, len(dataset)
    if rows < shards:
        raise ValueError(
            f"dataset has {rows} rows, fewer than shards={shards}: a shard would be empty; use fewer shards"
        )

    def piece(begin: int, end: int) -> tuple[int, Callable[[], Chunk]]:
        if arrays is None:
            return end - begin, partial(_read_items, dataset, begin, end)
        return end - begin, partial(_read_parts, [_part(array, begin, end) for array in arrays])

    ends = [rows * (i + 1) // shards for i in range(shards)]
    return [
        Rows([piece(at, min(at + chunk, end)) for at in range(begin, end, chunk)])
        for begin, end in zip([0, *ends], ends, strict=False)
    ]


def _part(array: Any, begin: int, end: int) -> Any:
    """Return rows of an array, or path, begin and end if the array is mapped from a ``.npy`` file."""
    whole = isinstance(array, np.memmap) and array.base is not None and not isinstance(array.base, np.ndarray)
    if whole and str(array.filename).endswith(".npy"):
        return os.path.abspath(array.filename), begin, end
    if hasattr(array, "untyped_storage") and array.device.type == "cpu" and "bfloat16" not in str(array.dtype):
        array = array.detach().numpy()  # a slice of a tensor would travel with all rows
    return array[begin:end]


def _read_parts(parts: Sequence[Any]) -> Chunk:
    return tuple(
        np.load(part[0], mmap_mode="r")[part[1] : part[2]] if isinstance(part, tuple) else part for part in parts
    )


def _read_items(dataset: Any, begin: int, end: int) -> Chunk:
    from torch.utils.data import default_collate

    found = default_collate([dataset[i] for i in range(begin, end)])
    return tuple(found) if isinstance(found, (tuple, list)) else (found,)


def _split_parquet(paths: list[str], shards: int) -> list[Rows]:
    """Deal the row groups of Parquet files. A chunk is one row group: a dictionary from columns to arrays."""
    with needed_by("a Parquet file"):
        from pyarrow.dataset import dataset
    groups = [group for file in dataset(paths).get_fragments() for group in file.split_by_row_group()]
    counts = [group.count_rows() for group in groups]
    # A group belongs to the range that its middle row falls in.
    places = (np.cumsum(counts) - np.divide(counts, 2)) * shards // max(sum(counts), 1)
    parts = [
        [(counts[i], partial(_read_row_group, groups[i])) for i in np.flatnonzero(places == s)] for s in range(shards)
    ]
    if not all(parts):
        raise ValueError(
            f"the Parquet files have {len(groups)} row groups, too few or too uneven for shards={shards}; use "
            "fewer shards, or write smaller row groups"
        )
    return [Rows(part) for part in parts]


def _read_row_group(group: Any) -> Chunk:
    """Read a row group; a column of lists of one length is a matrix."""
    table = group.to_table()
    columns = {name: table[name].to_numpy() for name in table.column_names}
    return ({name: np.stack(one) if one.dtype == object else one for name, one in columns.items()},)


def _is_path(value: Any) -> bool:
    return isinstance(value, (str, os.PathLike))
