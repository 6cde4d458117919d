"""What a run returns: a status that is its own sentence, the points worth keeping, and the recomputed certificate."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape
from typing import Any, NamedTuple

import numpy as np

from gdpa.base.extras import needed_by
from gdpa.base.status import Status
from gdpa.base.stored import stored
from gdpa.base.text import number, vector
from gdpa.base.typing import Array, Vector
from gdpa.core.certificate import Certificate
from gdpa.run.oracle import Counts
from gdpa.run.tables import constraint_rows, html_table, text_table


@stored
@dataclass(frozen=True, repr=False, eq=False)
class History(dict[str, Vector]):
    """Columns of numbers recorded along a run, one row per recorded step; ``pandas.DataFrame(history)`` takes it.

    The residuals are those of the step's own multiplier estimate: stationarity, feasibility and slackness as the paper
    prints them, ``kkt`` the largest relative one.

    Attributes:
        columns: the columns by name, also the items of the history itself.
    """

    columns: dict[str, Vector] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.update(self.columns)

    def __repr__(self) -> str:
        rows = len(next(iter(self.values()))) if self else 0
        return f"History({rows} rows of {', '.join(self)})"


@stored
class Attempt(NamedTuple):
    """What one of several starts came to, see ``best_of`` of `gdpa.solve`.

    Attributes:
        status: why it ended.
        success: whether its certificate meets the tolerance.
        objective: f at ``x``.
        x: its best point, or its start if the problem raised an exception there.
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
        tolerance: what ``success`` was judged by.
        x_last, multipliers_last: the last finite iterate and the method's own multipliers there.
        x_best_feasible: the lowest objective among the iterates feasible to the tolerance; None if there was none.
        x_average: the average of the iterates weighted by 1/beta_r, as the paper's Theorem 1 returns it.
        steps, forwards, backwards, seconds: what the method used.
        measuring: the oracle calls made beside these, for residuals and certificates; `calls` is the sum.
        history: the recorded columns.
        names: the names of the constraints, if the problem has any.
        run: continue from here with ``solve(problem, run=result.run, ...)``.
        restored: what the final restoration did (``before``, ``after``, ``reached``); None if none was asked for.
        others: what the other starts came to if there were several; steps, calls and seconds are then those of all.
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

    @property
    def constraints(self) -> Array:
        """g at ``x``."""
        return self.certificate.constraints

    @property
    def fun(self) -> Any:
        """f at ``x``, by SciPy's name."""
        return self.certificate.objective

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
        axes.set(xscale="log", yscale="log", xlabel="step r", ylabel="residual")
        axes.legend()
        return axes

    def __repr__(self) -> str:
        lines = [f"Result of {type(self.algorithm).__name__}: {'success' if self.success else 'no success'}"]
        lines += [f"  {self.message}", *(f"  {name:<12} {text}" for name, text in self._summary())]
        table = text_table(constraint_rows(self.certificate, self.tolerance))
        return "\n".join([*lines, *(f"  {line}" for line in table)])

    def _repr_html_(self) -> str:
        """What a notebook shows: the same as `print`, as tables."""
        title = f"Result of {type(self.algorithm).__name__}: {'success' if self.success else 'no success'}"
        table = html_table(constraint_rows(self.certificate, self.tolerance))
        rows = "".join(f"<tr><th>{name}</th><td>{escape(text)}</td></tr>" for name, text in self._summary())
        return (
            f"<div><p><b>{escape(title)}</b><br>{escape(self.message)}</p>"
            f"<table><tbody>{rows}</tbody></table>{table}</div>"
        )

    def _summary(self) -> list[tuple[str, str]]:
        """Name and text of every line but the table."""
        calls = self.calls
        lines = [
            ("objective", number(self.objective, 8) if isinstance(self.objective, float) else vector(self.objective)),
            ("x", vector(self.x)),
        ]
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
