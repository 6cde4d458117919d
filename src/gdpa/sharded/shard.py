"""Shards, the questions they answer, and the engine that asks them in this process."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np

from gdpa.base.typing import Vector


class Shard(Protocol):
    """A part of the data. It lives where its data is, and each answer depends on the arguments alone.

    Arguments and answers are NumPy arrays. A shard may also have

    * ``rows(x)``: the gradients of all sums, of shape (k, d), if they cost about one backward pass together;
    * ``first_bad_row(x)``: the index of the first row whose terms are not finite or raise, or None, for messages;
    * ``__len__``: the number of its rows;
    * ``fingerprint``: a string that describes the code and the data, equal in all processes of a job.
    """

    def sums(self, x: Vector) -> Vector:
        """Return k sums over the rows of the shard at x, of shape (k,): of terms, and of counts."""
        ...

    def pullback(self, x: Vector, w: Vector) -> Vector:
        """Return the gradient of ``w @ sums(x)``, of shape (d,)."""
        ...


Recipe: TypeAlias = Shard | Callable[[], Shard]
"""A shard, or a function without arguments that makes it in the process that is going to hold it."""


class ShardError(RuntimeError):
    """A shard failed; the message has its number, the reason and the remedy."""


def make(recipe: Recipe, index: int) -> Shard:
    """Return the shard of a recipe, or raise a `ShardError`."""
    try:
        shard: Any = recipe if hasattr(recipe, "sums") else recipe()
    except Exception as error:
        raise ShardError(f"shard {index} cannot be made: {_reason(error)}") from error
    if not (callable(getattr(shard, "sums", None)) and callable(getattr(shard, "pullback", None))):
        raise ShardError(f"shard {index} must have the methods sums(x) and pullback(x, w), got {type(shard).__name__}")
    if hasattr(shard, "__len__") and len(shard) == 0:
        raise ShardError(f"shard {index} has no rows; leave it out, or use fewer shards")
    return shard  # type: ignore[no-any-return]


def answer(shard: Any, index: int, question: str, *arguments: Any) -> Any:
    """Ask a shard and check the answer; raise a `ShardError` that names the shard.

    Besides the methods of a shard there are the questions "describe", without arguments (the number of rows or None,
    and whether the shard has ``rows``), and "look": the sums at the first point, which must be finite.
    """
    if question == "describe":
        return len(shard) if hasattr(shard, "__len__") else None, callable(getattr(shard, "rows", None))
    x, method = arguments[0], "sums" if question == "look" else question
    try:
        found = np.asarray(getattr(shard, method)(*arguments), dtype=np.float64 if method == "sums" else x.dtype)
    except Exception as error:
        raise ShardError(f"shard {index} failed in {method}{_bad_row(shard, x)}: {_reason(error)}") from error
    k = found.shape[:1]
    expected = {"sums": k, "pullback": x.shape, "rows": (*k, *x.shape)}[method]
    if found.shape != expected:
        raise ShardError(
            f"shard {index} returned shape {found.shape} from {method}, expected {expected}: x has {len(x)} "
            "parameters; give every shard the same model"
        )
    if question == "look" and not np.isfinite(found).all():
        raise ShardError(
            f"shard {index} has sums that are not finite at the start{_bad_row(shard, x)}: {found}; repair or drop "
            "such rows, or choose a start where every term is finite"
        )
    return found


def add(parts: Sequence[Vector]) -> Vector:
    """Return the sum of the parts, added as a balanced tree.

    The order is fixed by the places of the parts. If 2^a shards are dealt to 2^b workers and each adds its own first,
    the sum has the same bits for all b.

    >>> parts = [np.array([v]) for v in (0.1, 0.2, 0.3, 0.4)]
    >>> bool((add(parts) == add([add(parts[:2]), add(parts[2:])])).all())
    True
    """
    if len(parts) == 1:
        return parts[0]
    half = len(parts) // 2
    return add(parts[:half]) + add(parts[half:])


class Engine:
    """Holds the shards in this process and asks one after the other; the base of the other engines.

    Attributes:
        rank: the place of this process among those that run the same solve; the first one writes files and displays.
        name: how messages and displays call it.
    """

    rank = 0
    name = "local"
    _first = 0  # the number of the first shard in this process

    def start(self, recipes: Sequence[Recipe]) -> None:
        """Make the shards, each where it is going to stay."""
        self._shards = [make(recipe, index) for index, recipe in enumerate(recipes)]

    def ask(self, question: str, *arguments: Any) -> list[Any]:
        """Return the answer of every shard, in their order."""
        return [answer(shard, index, question, *arguments) for index, shard in enumerate(self._shards, self._first)]

    def total(self, answers: Sequence[Vector]) -> Vector:
        """Return the sum of the answers of all shards, added in the engine's order."""
        return add(answers)

    def add(self, question: str, *arguments: Any) -> Vector:
        """Return the sum of the answers of all shards."""
        return self.total(self.ask(question, *arguments))

    def agree(self, facts: Any) -> None:
        """Raise unless all processes of the job have the same facts."""

    def clock(self) -> float:
        """Return seconds, the same in all processes of the job."""
        return time.perf_counter()


def _bad_row(shard: Any, x: Vector) -> str:
    """Return the place of the first bad row as a part of a sentence, "" if the shard does not find it."""
    try:
        row = shard.first_bad_row(x)
    except Exception:  # the message about the shard itself matters more
        return ""
    return "" if row is None else f" at its row {row}"


def _reason(error: Exception) -> str:
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return f"its process has no memory left ({error}); use more shards, smaller chunks, or a larger worker"
    return f"{type(error).__name__}: {error}"
