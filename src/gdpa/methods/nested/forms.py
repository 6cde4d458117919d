"""The form in which a method sees its problem: as given (slacks eliminated), or with explicit slacks."""

from __future__ import annotations

from dataclasses import dataclass

from gdpa.base.arrays import namespace
from gdpa.base.typing import Array
from gdpa.core.problem import Evaluation, Problem
from gdpa.core.slack import SlackForm
from gdpa.methods.base import Probe


@dataclass(frozen=True)
class Plain:
    """The problem as given: every way there and back is the identity."""

    problem: Problem

    def start(self, x0: Array, evaluation: Evaluation) -> Array:
        return x0

    def point(self, z: Array) -> Array:
        return z

    def keep(self, evaluation: Evaluation | None) -> Evaluation | None:
        return evaluation

    def probe(self, probe: Probe) -> Probe | None:
        return probe


@dataclass(frozen=True)
class Slacked:
    """The problem over (x, s); points, oracle calls and probes are translated back to x."""

    form: SlackForm

    @property
    def problem(self) -> Problem:
        return self.form.problem

    def start(self, x0: Array, evaluation: Evaluation) -> Array:
        return self.form.lift(x0, evaluation.constraints)

    def point(self, z: Array) -> Array:
        return self.form.split(z)[0]

    def keep(self, evaluation: Evaluation | None) -> Evaluation | None:
        return None  # an oracle call of the slack form is none of the original problem

    def probe(self, probe: Probe) -> Probe | None:
        """Return the probe in x, or None if an inequality's weight is negative and so no multiplier.

        Values that are not finite are never held back: the loop must see them.
        """
        n = self.form.num_slacks
        xp = namespace(probe.multipliers)
        finite = xp.all(xp.isfinite(probe.objective)) & xp.all(xp.isfinite(probe.constraints))
        if bool(finite & xp.any(probe.multipliers[..., :n] < 0)):
            return None
        x, s = self.form.split(probe.x)
        g = xp.concat([probe.constraints[..., :n] - s, probe.constraints[..., n:]], axis=-1)
        return Probe(x, probe.multipliers, probe.objective, g, self.form.split(probe.gradient)[0], probe.weight)


def view(problem: Problem, slack: bool, dimension: int, num_constraints: int) -> Plain | Slacked:
    """Return the form of ``problem`` a method works on."""
    return Slacked(SlackForm(problem, dimension, num_constraints)) if slack else Plain(problem)
