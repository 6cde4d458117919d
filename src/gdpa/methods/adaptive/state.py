"""The state of AdaptiveGDPA between two trial points, and the interface of its phases."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol, Self

from gdpa.base.arrays import machine_eps, top
from gdpa.base.stored import stored
from gdpa.base.typing import Array
from gdpa.core.certificate import violation
from gdpa.core.lagrangian import AugmentedLagrangian
from gdpa.methods.adaptive.merit import Merit, Reference, Trial
from gdpa.methods.adaptive.rules import Rules
from gdpa.methods.adaptive.scaling import ScaledEvaluation, ScaledProblem, Scaling
from gdpa.methods.base import State
from gdpa.numerics.lbfgs import LBFGS
from gdpa.numerics.sparse.matrix import SparseMatrix


class Settings(Protocol):
    """The parameters of the method that its phases read."""

    @property
    def beta(self) -> float:
        """The first penalty."""
        ...

    @property
    def step(self) -> str:
        """The kind of step."""
        ...

    @property
    def rules(self) -> Rules:
        """The other constants."""
        ...


class Phase:
    """A phase of the method. A subclass adds the values that this phase alone needs."""

    #: Whether the phase minimizes the violation alone.
    restores: ClassVar[bool] = False

    def merit(self, state: AdaptiveState) -> Merit:
        """Return the function that the phase minimizes."""
        return Merit(1.0, state.lagrangian)

    def place(self, problem: ScaledProblem, z: Array, rules: Rules) -> Array:
        """Return the trial point, corrected for rounding."""
        return z

    def correct(self, problem: ScaledProblem, state: AdaptiveState, constraints: Array, rules: Rules) -> Array | None:
        """Return the second-order correction of a refused full step with these constraints; None if there is none."""
        return None

    def arrive(
        self, method: Settings, problem: ScaledProblem, old: AdaptiveState, state: AdaptiveState
    ) -> AdaptiveState:
        """Return the state at an accepted point: multipliers, penalty, curvature, perhaps another phase."""
        raise NotImplementedError

    def plan(self, method: Settings, problem: ScaledProblem, state: AdaptiveState) -> AdaptiveState:
        """Return the state with its next trial."""
        raise NotImplementedError

    def renew(self, problem: ScaledProblem, state: AdaptiveState) -> AdaptiveState:
        """Return the state, before it is planned, after its multipliers were replaced."""
        return state

    def rescaled(self, a: float, b: Array | float, c: float) -> Self:
        """Return the phase with the units of f, g and z multiplied by a, b and 1 / c."""
        return self


@stored
class Monitor(NamedTuple):
    """Watches whether the violation falls.

    Attributes:
        violation: the violation when the monitor was last reset.
        points: accepted points since, weighted.
        restorations: how often it was restored.
    """

    violation: float = math.inf
    points: int = 0
    restorations: int = 0

    def reset(self, violation: float = math.inf) -> Monitor:
        """Return the monitor with its count at zero."""
        return Monitor(violation, 0, self.restorations)

    def counted(self, points: int) -> Monitor:
        """Return the monitor with more points counted."""
        return self._replace(points=self.points + points)

    def patience(self, first: int) -> int:
        """Return how many points may pass without progress: ``first``, doubled by every restoration."""
        return first << self.restorations


@stored
@dataclass(frozen=True, kw_only=True)
class AdaptiveState(State):
    """The state of `AdaptiveGDPA`. Its own fields are in scaled units, the fields of `State` are not.

    Attributes:
        scaling: the units of f, g and x.
        lagrangian: F_beta with its lambda and beta.
        curvature: the quasi-Newton matrix of the phase.
        reference: values of the last accepted points.
        gradient: the gradient of the phase's merit at x.
        trial: the next trial point.
        monitor: whether the violation falls.
        phase: the phase, with the values that it alone needs.
        hessian: sparse second derivatives of the Lagrangian, used in place of the quasi-Newton matrix.
        phase_since: ``step`` when the quasi-Newton or SQP phase began.
        unmoved_points: accepted points in a row that did not move.
    """

    scaling: Scaling
    lagrangian: AugmentedLagrangian
    curvature: LBFGS
    reference: Reference
    gradient: Array
    trial: Trial
    monitor: Monitor
    phase: Phase
    hessian: SparseMatrix | None = None
    phase_since: int = 0
    unmoved_points: int = 0

    @property
    def z(self) -> Array:
        """The point in the scaled variables, x / D."""
        D = self.scaling.lengths
        return self.x if D is None else self.x / D

    def call(self, problem: ScaledProblem) -> ScaledEvaluation:
        """Return the oracle call at x in the units of the state."""
        return ScaledEvaluation(self.evaluation or problem.original.evaluate(self.x), self.scaling, self.x)

    @property
    def constraints(self) -> Array:
        """The scaled g at x."""
        return self.reference.constraints[-1]

    @property
    def violation(self) -> float:
        """The largest violation of a scaled constraint at x."""
        return largest_violation(self.constraints, self.lagrangian.num_equalities)

    def replaced(self, **changes: Any) -> AdaptiveState:
        """Return the state with other values of some fields: `dataclasses.replace` without its check of each field."""
        state = object.__new__(AdaptiveState)
        vars(state).update(vars(self), **changes)
        return state

    def rescaled(self, a: float = 1.0, b: Array | float = 1.0, lengths: Array | None = None) -> AdaptiveState:
        """Return the state with the units of f and g multiplied by a and b, and in other common lengths of x.

        With f' <- a f', g' <- b g' and D <- c D: lambda' <- a lambda' / b, z <- z / c and B <- a c^2 B. The point, the
        step and the multipliers of the user stay; F_beta weighs f against g differently.
        """
        s_f, s, _ = self.scaling
        new = Scaling(a * s_f, b * s, lengths)
        c, reference, F = new.length / self.scaling.length, self.reference, self.lagrangian
        curvature = self.curvature.rescaled(a * c * c)
        return self.replaced(
            scaling=new,
            lagrangian=F.with_multipliers(a * F.multipliers / b),
            curvature=curvature if c == 1 else curvature._replace(length=curvature.length / c),
            hessian=None if self.hessian is None else a * c * c * self.hessian,
            reference=Reference(a * reference.objectives, b * reference.constraints),
            gradient=self.gradient if c == 1 else c * self.gradient,
            trial=self.trial if c == 1 else self.trial.rescaled(1 / c),
            phase=self.phase.rescaled(a, b, c),
        )


def largest_violation(constraints: Array, num_equalities: int) -> float:
    """Return ``max [g]_+`` (absolute values for equalities).

    >>> import numpy as np
    >>> largest_violation(np.array([-1.0, -2.0]), num_equalities=1)
    2.0
    """
    if num_equalities == 0:
        return max(float(top(constraints)), 0.0)  # the same in one operation
    return float(top(violation(constraints, num_equalities)))


def sqrt_eps(x: Array) -> float:
    """Return the square root of the precision of ``x``: a violation below it is negligible.

    >>> import numpy as np
    >>> sqrt_eps(np.zeros(1)) == 2.0**-26
    True
    """
    return math.sqrt(machine_eps(x))
