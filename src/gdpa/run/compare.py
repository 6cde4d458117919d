"""Methods side by side: the same problem, start and budget for all."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gdpa.base.status import Status
from gdpa.base.typing import Array
from gdpa.core.problem import Problem, WithStart
from gdpa.methods import get_method, method_names
from gdpa.methods.base import Algorithm
from gdpa.methods.method import UnsupportedProblemError
from gdpa.run.progress import Progress
from gdpa.run.result import Result
from gdpa.run.solve import solve
from gdpa.run.stopping import KKTBelow


@dataclass(frozen=True)
class MaxPasses:
    """Stop after ``limit`` passes, forward and backward together: the budget all methods of a comparison share."""

    limit: int

    def __call__(self, progress: Progress) -> Status | None:
        return Status.MAX_ORACLE_CALLS if progress.forwards + progress.backwards >= self.limit else None


@dataclass(frozen=True)
class Comparison:
    """The result of one method, or None and the reason (``refusal``) if it does not take the problem."""

    name: str
    result: Result | None
    refusal: str = ""

    def curve(self) -> tuple[Any, Any]:
        """Return passes and the smallest relative KKT residual so far, by the method's own multipliers."""
        if self.result is None or "kkt" not in self.result.history:
            return np.zeros(0), np.zeros(0)
        history = self.result.history
        return history["forwards"] + history["backwards"], np.minimum.accumulate(history["kkt"])

    def passes_to(self, tolerance: float) -> float:
        """Return how many passes it took to bring the relative KKT residual to ``tolerance``; inf if it did not.

        If the method's own multipliers never show it and the certificate at the end does, that is all passes.
        """
        passes, best = self.curve()
        reached = passes[best <= tolerance]
        if len(reached):
            return float(reached[0])
        certified = self.result is not None and self.result.certificate.holds(tolerance)
        return float(self.result.forwards + self.result.backwards) if self.result and certified else math.inf


def compare(
    problem: Problem | WithStart,
    x0: Array | None = None,
    methods: Iterable[str | Algorithm[Any] | tuple[str, Algorithm[Any]]] | None = None,
    *,
    passes: int = 10_000,
    tolerance: float = 1e-4,
) -> list[Comparison]:
    """Run every method on one problem from one start within one budget.

    Args:
        problem: the problem, or one that brings its start, as in `gdpa.solve`.
        x0: the start.
        methods: names (run with their tuned constants), methods such as ``GDPA()``, or (label, method) pairs; default
            all that `gdpa.methods.method_names` lists.
        passes: the budget of forward and backward passes together. Measuring is not on it.
        tolerance: a method that certifies this relative KKT residual stops early.

    Example:
        >>> from gdpa import problems
        >>> disc = problems.get("disc-square")
        >>> for row in compare(disc.problem, disc.x0, ["pdd", "proximal-admm"], passes=500):
        ...     print(row.name, row.result.success if row.result else row.refusal[:55])
        pdd True
        proximal-admm ProximalADMM cannot solve this problem: 1 of its 1 cons
    """
    rows = []
    for entry in method_names() if methods is None else methods:
        if isinstance(entry, str):
            name, algorithm = entry, tuned(entry)
        else:
            name, algorithm = entry if isinstance(entry, tuple) else (type(entry).__name__, entry)
        try:
            result = solve(problem, x0, algorithm, stop=(KKTBelow(tolerance), MaxPasses(passes)), tolerance=tolerance)
        except UnsupportedProblemError as refusal:
            rows.append(Comparison(name, None, str(refusal)))
        else:
            rows.append(Comparison(name, result))
    return rows


def tuned(name: str) -> Algorithm[Any]:
    """Return the method called ``name`` with its tuned constants."""
    method = get_method(name)
    found: Algorithm[Any] = getattr(method, "tuned", method)()
    return found


def report(rows: Sequence[Comparison], tolerances: Sequence[float] = (1e-2, 1e-3, 1e-4)) -> str:
    """Return a table of passes to each tolerance (see `Comparison.passes_to`), and the certificate at the end."""
    heads = [f"{t:.0e}" for t in tolerances]
    lines = [f"{'method':<16}" + "".join(f"{h:>9}" for h in heads) + f"{'certified':>11}{'seconds':>9}  status"]
    for row in rows:
        if row.result is None:
            lines.append(f"{row.name:<16}" + f"{'-':>9}" * len(heads) + f"{'-':>11}{'-':>9}  {row.refusal}")
            continue
        reached = (row.passes_to(t) for t in tolerances)
        cells = "".join(f"{'-' if math.isinf(n) else int(n):>9}" for n in reached)
        worst = float(row.result.certificate.relative.worst)
        lines.append(f"{row.name:<16}{cells}{worst:>11.1e}{row.result.seconds:>9.2f}  {row.result.status.name}")
    return "\n".join(lines)


def draw(rows: Sequence[Comparison], axes: Any) -> Any:
    """Draw the best relative KKT residual so far against passes on a matplotlib ``Axes`` and return it."""
    styles = ["-", "--", ":", "-."]
    for i, row in enumerate(rows):
        passes, best = row.curve()
        if len(passes):
            axes.plot(passes, best, styles[i // 10 % 4], label=row.name, linewidth=1.5, drawstyle="steps-post")
    axes.set(xscale="log", yscale="log", xlabel="forward + backward passes", ylabel="best relative KKT residual so far")
    axes.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1.0, 1.0))
    axes.grid(alpha=0.3)
    return axes
