"""The result of a run: a status that is its own sentence, the points worth keeping, and the recomputed certificate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, NamedTuple

import numpy as np

from gdpa.base.arrays import to_numpy
from gdpa.base.extras import needed_by
from gdpa.base.status import Status
from gdpa.base.stored import stored
from gdpa.base.text import number, vector
from gdpa.base.typing import Array
from gdpa.core.certificate import Certificate, violation
from gdpa.run.oracle import Counts
from gdpa.run.progress import History

#: A longer table shows this many rows, the most important ones.
MOST_ROWS = 12
#: A longer name is cut.
LONGEST_NAME = 40
#: Residuals are drawn over a logarithmic axis of at least this many steps.
FEW_STEPS = 30
HEAD = ("constraint", "value", "violation", "multiplier", "")


@stored
class Attempt(NamedTuple):
    """The outcome of one of several starts, see ``best_of`` of `gdpa.solve`.

    ``x`` is its best point, or its start if the problem raised an exception there; ``objective`` is f at ``x``.
    """

    status: Status
    success: bool
    objective: Any
    x: Array


@stored
@dataclass(frozen=True, repr=False)
class Result:
    """The outcome of `gdpa.solve`, recomputed from the problem at the returned point.

    Attributes:
        x: the best point, by certificate.
        multipliers: its multipliers.
        success: True only if the certificate at ``x`` meets the tolerance.
        status: why the run ended.
        message: the status' sentence, with the residuals.
        certificate: the KKT conditions at ``x``; also holds f, g, gradient and the multipliers of X.
        tolerance: the tolerance of ``success``.
        x_last, multipliers_last: the last finite iterate and the method's own multipliers there.
        x_best_feasible: the lowest objective among the iterates feasible to the tolerance; None if there was none.
        x_average: the average of the iterates weighted by 1/beta_r, as the paper's Theorem 1 returns it.
        steps, forwards, backwards, seconds: the cost of the method.
        measuring: the oracle calls made besides these, for residuals and certificates; `calls` is the sum.
        history: the recorded columns.
        names: the names of the constraints, if the problem has any.
        run: continue from here with ``solve(problem, run=result.run, ...)``.
        restored: the outcome of the final restoration (``before``, ``after``, ``reached``); None if none was asked for.
        others: the outcomes of the other starts if there were several; steps, calls and seconds then include them.
    """

    x: Array
    multipliers: Array
    success: bool
    status: Status
    message: str
    certificate: Certificate
    tolerance: float
    x_last: Array
    multipliers_last: Array
    x_best_feasible: Array | None
    x_average: Array
    steps: int
    forwards: int
    backwards: int
    measuring: Counts
    seconds: float
    history: History
    names: tuple[str, ...] | None
    run: Any
    restored: Any = None
    others: tuple[Attempt, ...] = ()

    @property
    def calls(self) -> Counts:
        """Every oracle call made, by the method and for measuring."""
        return Counts(self.forwards + self.measuring.forwards, self.backwards + self.measuring.backwards)

    @property
    def cuts(self) -> int:
        """How many steps were taken back and repeated shorter, because they led to a value that is not finite."""
        return int(self.run.caution.cuts)

    @property
    def state(self) -> Any:
        """The method's state at the end."""
        return self.run.state

    @property
    def algorithm(self) -> Any:
        """The method that ran."""
        return self.run.algorithm

    @property
    def objective(self) -> Any:
        """f at ``x``."""
        return self.certificate.objective

    fun = objective  # by SciPy's name

    @property
    def constraints(self) -> Array:
        """g at ``x``."""
        return self.certificate.constraints

    def plot(self, axes: Any = None) -> Any:
        """Draw the recorded residuals against steps on a matplotlib ``Axes`` (a new one by default) and return it."""
        if "step" not in self.history:
            raise ValueError("nothing was recorded; run solve with record=1 to plot the result")
        if axes is None:
            with needed_by("result.plot()"):
                import matplotlib.pyplot as plt

            _, axes = plt.subplots()
        for name in ("stationarity", "feasibility", "slackness", "kkt"):
            values = np.where(self.history[name] > 0, self.history[name], np.nan)
            axes.plot(self.history["step"], values, label="relative KKT" if name == "kkt" else name)
        steps = "log" if len(self.history["step"]) >= FEW_STEPS else "linear"
        axes.set(xscale=steps, yscale="log", xlabel="step r", ylabel="residual", title=self._title)
        axes.legend()
        return axes

    @property
    def _title(self) -> str:
        return f"Result of {type(self.algorithm).__name__}: {'success' if self.success else 'no success'}"

    def __repr__(self) -> str:
        table = text_table(constraint_rows(self.certificate, self.tolerance))
        lines = [self.message, *(f"{name:<12} {text}" for name, text in self._summary()), *table]
        return "\n  ".join([self._title, *lines])

    def _repr_html_(self) -> str:
        """The view in a notebook: the same as `print`, as tables."""
        table = html_table(constraint_rows(self.certificate, self.tolerance))
        rows = "".join(f"<tr><th>{name}</th><td>{escape(text)}</td></tr>" for name, text in self._summary())
        head = f"<p><b>{escape(self._title)}</b><br>{escape(self.message)}</p>"
        return f"<div>{head}<table><tbody>{rows}</tbody></table>{table}</div>"

    def _summary(self) -> list[tuple[str, str]]:
        """Name and text of every line but the table."""
        calls, f = self.calls, self.objective
        lines = [("objective", number(f, 8) if isinstance(f, float) else vector(f)), ("x", vector(self.x))]
        if self.x.ndim > 1:
            lines.append(("multipliers", vector(self.multipliers)))
        cost = (
            f"{self.steps} steps, {calls.forwards} forwards, {calls.backwards} backwards "
            f"({self.forwards} and {self.backwards} by the method), {self.seconds:.3g} s"
            + (f"; {self.cuts} steps cut short of values not finite" if self.cuts else "")
        )
        lines += [("residuals", str(self.certificate)), ("cost", cost)]
        if self.others:
            certified = [number(other.objective) for other in self.others if other.success]
            found = f", with objectives {', '.join(sorted(set(certified), key=float)[:5])}" if certified else ""
            lines.append(("others", f"{len(certified)} of {len(self.others)} other starts certified{found}"))
        return lines


class Row(NamedTuple):
    """The constraint i = ``place`` at a certified point.

    ``violation`` is [g_i]_+, or |g_i| for an equality. ``mark`` is "violated" beyond the tolerance, "active" at its
    limit to the tolerance, "not finite", or "". A value that the precision cannot distinguish from zero is 0.
    """

    place: int
    name: str
    value: float
    violation: float
    multiplier: float
    mark: str


def constraint_rows(certificate: Certificate, tolerance: float) -> tuple[Row, ...]:
    """Return one row for each constraint: violated ones first, then active ones, the worst of each first.

    A constraint is violated or active in its own unit, as the certificate judges it (`gdpa.core.units.Units`). A batch
    has no rows.
    """
    g, multipliers = to_numpy(certificate.constraints), to_numpy(certificate.multipliers)
    if g.ndim != 1:
        return ()
    _, c, a, rounding, pushes = (to_numpy(weight) for weight in certificate.units)
    eps = float(np.finfo(g.dtype).eps)
    value = np.where(np.abs(g) <= rounding, 0.0, g)
    multiplier = np.where(np.abs(pushes * multipliers) <= eps, 0.0, multipliers)
    excess = violation(value, certificate.num_equalities)
    finite = np.isfinite(g) & np.isfinite(multipliers)
    violated = finite & ~(c * excess <= tolerance)
    active = finite & ~violated & (a * np.abs(value) <= tolerance)
    mark = np.select([~finite, violated, active], ["not finite", "violated", "active"], "")
    importance = np.where(violated, -c * excess, np.where(active, -np.abs(pushes * multiplier), a * np.abs(value)))
    order = np.lexsort((importance, np.select([~finite, violated, active], [0, 1, 2], 3)))
    columns = (value.tolist(), excess.tolist(), multiplier.tolist(), mark.tolist())
    rows = [Row(i, certificate.constraint_name(i), *row) for i, row in enumerate(zip(*columns, strict=True))]
    return tuple(rows[i] for i in order)


def most_violated(certificate: Certificate, tolerance: float, count: int = 3) -> str:
    """Return the names and violations of the most violated constraints as half a sentence; "" if none is violated."""
    rows = [row for row in constraint_rows(certificate, tolerance) if row.mark == "violated"]
    named = [f"{row.name} by {number(row.violation, 3)}" for row in rows[:count]]
    more = [f"and {len(rows) - count} more"] if len(rows) > count else []
    return ", ".join(named + more)


def text_table(rows: Sequence[Row]) -> list[str]:
    """Return the lines of the table, the rows in their own order unless there are more than `MOST_ROWS`."""
    cells, more = _cells(rows)
    wide = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = []
    for name, *numbers, mark in cells:
        right = (text.rjust(width) for text, width in zip(numbers, wide[1:], strict=False))
        lines.append("  ".join((name.ljust(wide[0]), *right, mark)).rstrip())
    return lines + more


def html_table(rows: Sequence[Row]) -> str:
    """Return the table as HTML that needs nothing else."""
    if not rows:
        return ""
    (names, *cells), more = _cells(rows)
    head = "".join(f"<th>{name}</th>" for name in names)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in line)}</tr>" for line in cells)
    notes = "".join(f"<p>{line}</p>" for line in more)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{notes}"


def _cells(rows: Sequence[Row]) -> tuple[list[tuple[str, ...]], list[str]]:
    """Return the heading and the cells of the rows that are shown, and a note on the others; nothing without rows."""
    left_out = len(rows) > MOST_ROWS
    cells: list[tuple[str, ...]] = [HEAD] if rows else []
    for row in rows[:MOST_ROWS] if left_out else sorted(rows):
        name = row.name if len(row.name) <= LONGEST_NAME else row.name[: LONGEST_NAME - 3] + "..."
        cells.append((name, *(number(value, 4) for value in row[2:5]), row.mark))
    return cells, [f"... and {len(rows) - MOST_ROWS} more"] if left_out else []
