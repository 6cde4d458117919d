"""Where shards live and who asks them. Every engine adds the answers in the order of the shards."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from gdpa.base.typing import Vector
from gdpa.sharded.shard import Recipe, add, answer, make


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

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"
