"""An ordinary problem whose oracle is spread over shards."""

from __future__ import annotations

import copy
import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pkgutil import resolve_name
from typing import Any, TypeAlias

import numpy as np

from gdpa.base.arrays import from_numpy, to_numpy
from gdpa.base.extras import needed_by
from gdpa.base.sets import REALS, ConvexSet
from gdpa.base.typing import Array, Vector
from gdpa.core.problem import Evaluation, Problem
from gdpa.sharded.shard import Engine, Recipe, ShardError
from gdpa.version import __version__

Combine: TypeAlias = Callable[[Vector], tuple[Vector, Vector]]
"""From the sums of all shards, of shape (k,), to f and g, of shape (1 + m,), and their Jacobian (1 + m, k)."""

Regularizer: TypeAlias = float | Callable[[Vector], tuple[float, Vector]]


def mean(sums: Vector) -> tuple[Vector, Vector]:
    """Return means: sums of f and of each g over the rows, then the number of rows.

    >>> values, slopes = mean(np.array([6.0, 3.0, 2.0]))
    >>> values.tolist(), slopes.tolist()
    ([3.0, 1.5], [[0.5, 0.0, -1.5], [0.0, 0.5, -0.75]])
    """
    n = len(sums) - 1
    values, slopes = rate(np.append(sums[:-1], np.repeat(sums[-1], n)))
    return values, np.column_stack([slopes[:, :n], slopes[:, n:].sum(1)])


def rate(sums: Vector) -> tuple[Vector, Vector]:
    """Return ratios: the numerators of f and of each g, then their denominators in the same order.

    >>> values, slopes = rate(np.array([6.0, 3.0, 2.0, 4.0]))
    >>> values.tolist(), slopes.tolist()
    ([3.0, 0.75], [[0.5, 0.0, -1.5, 0.0], [0.0, 0.25, 0.0, -0.1875]])
    """
    if len(sums) % 2:
        raise ValueError(
            f"gdpa.sharded.rate takes numerators and as many denominators, got {len(sums)} sums; return both from sums"
        )
    above, below = np.split(sums, 2)
    if not below.all():
        empty = int(np.flatnonzero(below == 0)[0])
        name = "the objective" if empty == 0 else f"g[{empty - 1}]"
        raise ValueError(f"the denominator of {name} is zero over all shards: no row belongs to it; leave it out")
    values = above / below
    return values, np.hstack([np.diag(1 / below), np.diag(-values / below)])


@dataclass(frozen=True)
class ShardedProblem(Problem):
    """A problem over shards.

    Attributes:
        job: the processes that solve it. `gdpa.solve` takes from it the clock, the place of this process, of which the
            first writes files and displays, and a note for displays.
    """

    job: Oracle | None = field(default=None, compare=False, repr=False)


def problem(
    shards: Sequence[Recipe],
    engine: str | Engine = "local",
    combine: Combine = mean,
    *,
    limits: Any = 0.0,
    regularizer: Regularizer = 0.0,
    num_equalities: int = 0,
    domain: ConvexSet = REALS,
    names: tuple[str, ...] | None = None,
) -> ShardedProblem:
    """Return the problem whose f and g are combined from sums over shards.

    Args:
        shards: `Shard` objects, or functions without arguments that make them where they are going to stay.
        engine: "local" asks the shards one after the other in this process; "ray" starts an actor for each; "torch"
            deals them to the ranks of ``torchrun``, each of which runs the same script. Or `Ray` or `Torch` with
            options.
        combine: from the sums of all shards to f and g with their Jacobian: `mean`, `rate`, or a function of yours.
        limits: subtracted from g: one number for all constraints or one for each.
        regularizer: added to f once, not for every shard: r for (r/2) ||x||^2, or a function x -> (value, gradient).
        num_equalities, domain, names: as in `gdpa.Problem`.

    Example:
        The number nearest to four others, in two shards, and at most 2.

        >>> import gdpa
        >>> class Numbers:
        ...     def __init__(self, values): self.values = np.array(values)
        ...     def sums(self, x):
        ...         n = len(self.values)
        ...         return np.array([((x - self.values) ** 2).sum(), n * (x[0] - 2), n])
        ...     def pullback(self, x, w):
        ...         return w[0] * 2 * (x - self.values).sum(keepdims=True) + w[1] * len(self.values)
        >>> result = gdpa.solve(problem([Numbers([1.0, 2.0]), Numbers([3.0, 4.0])]), np.zeros(1))
        >>> result.success, result.x.round(6).tolist(), result.multipliers.round(5).tolist()
        (True, [2.0], [1.0])
    """
    recipes = list(shards)
    if not recipes:
        raise ValueError("shards must hold at least one shard, got none")
    if not callable(combine):
        raise TypeError(f"combine must be a function of the sums, such as gdpa.sharded.mean, got {combine!r}")
    oracle = Oracle(recipes, _as_engine(engine), combine, np.asarray(limits, dtype=np.float64), regularizer)
    m = None if names is None else len(names)
    return ShardedProblem(oracle, m, num_equalities, domain, names, job=oracle)


class Oracle:
    """Maps x to an evaluation by questions to all shards; made by `problem`."""

    def __init__(
        self, recipes: list[Recipe], engine: Engine, combine: Combine, limits: Vector, penalty: Regularizer
    ) -> None:
        engine = copy.copy(engine)  # one engine may serve several problems, each with its own shards
        self.engine, self.count = engine, len(recipes)
        self.rank, self.clock = engine.rank, engine.clock
        self._combine, self._limits = combine, limits
        self._penalty = penalty if callable(penalty) else lambda x: (0.5 * penalty * float(x @ x), penalty * x)
        engine.agree({"gdpa": __version__, "numpy": np.__version__, "shards": _fingerprint(recipes)})
        engine.start(recipes)
        rows, gradients = zip(*engine.ask("describe"), strict=True)
        self.rows, self._has_rows = None if None in rows else sum(rows), all(gradients)
        self._looked, self._passes, self._seconds = False, 0, 0.0

    def note(self) -> str:
        """Return the number of shards and the rows a second so far, for displays."""
        rate = self._passes / self._seconds if self._seconds else 0.0
        speed = f"{rate:.3g} passes/s" if self.rows is None else f"{rate * self.rows:.3g} rows/s"
        return f"{self.count} shards ({self.engine.name}), {speed}"

    def __call__(self, x: Array) -> Evaluation:
        point = to_numpy(x)
        if point.ndim != 1:
            raise ValueError(f"x must be one point for a sharded problem, got shape {point.shape}; solve one by one")
        sums = self._ask("sums", point) if self._looked else self._look(point)
        values, slopes = self._combine(sums)
        penalty, penalty_gradient = self._penalty(point)
        rows: Vector | None = None

        def pullback(w: Array, objective: Any = 1.0) -> Array:
            weights = np.append(float(objective), to_numpy(w)) @ slopes
            found = self._ask("pullback", point, weights) if rows is None else weights @ rows
            return from_numpy(found + float(objective) * penalty_gradient, x)

        def jacobian() -> Array:
            nonlocal rows
            rows = self._ask("rows", point) if rows is None else rows
            return from_numpy(slopes[1:] @ rows, x)

        f, g = from_numpy(np.asarray(values[0] + float(penalty)), x), from_numpy(values[1:] - self._limits, x)
        return Evaluation(f, g, pullback, jacobian if self._has_rows else None)

    def _ask(self, question: str, *arguments: Any) -> Vector:
        begin = time.perf_counter()
        found = self.engine.add(question, *arguments)
        self._passes, self._seconds = self._passes + 1, self._seconds + time.perf_counter() - begin
        return found

    def _look(self, x: Vector) -> Vector:
        """Return the sums at the first point; raise unless the shards agree in their number and x is the same."""
        self.engine.agree({"x": hashlib.sha256(x.tobytes()).hexdigest(), "parameters": len(x), "dtype": str(x.dtype)})
        parts = self.engine.ask("look", x)
        lengths = [len(part) for part in parts]
        for index, length in enumerate(lengths):
            if length != lengths[0]:
                raise ShardError(
                    f"shard {index} returned {length} sums and shard 0 returned {lengths[0]}: the shards disagree in "
                    "the number of constraints; make all of them with the same functions"
                )
        self._looked = True
        return self.engine.total(parts)


def _fingerprint(recipes: list[Recipe]) -> str:
    """Return a hash of the kinds of the shards and of their own descriptions."""
    parts = [(type(one).__module__, type(one).__qualname__, getattr(one, "fingerprint", "")) for one in recipes]
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def _as_engine(engine: str | Engine) -> Engine:
    """Return the engine of a name."""
    if isinstance(engine, Engine):
        return engine
    kinds = {"local": "shard:Engine", "ray": "ray:Ray", "torch": "torch:Torch"}
    if engine not in kinds:
        raise ValueError(f"engine must be 'local', 'ray', 'torch' or a gdpa.sharded.Engine, got {engine!r}")
    with needed_by(f"engine={engine!r}"):
        return resolve_name(f"gdpa.sharded.{kinds[engine]}")()  # type: ignore[no-any-return]
