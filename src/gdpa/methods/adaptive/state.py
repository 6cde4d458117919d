"""The state of AdaptiveGDPA between two trial points: trial, accepted points, monitor, and the interface of phases."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Self

from gdpa.base.arrays import machine_eps, max_norm, namespace, to_numpy, top
from gdpa.base.stored import stored
from gdpa.base.typing import Array
from gdpa.core.certificate import violation
from gdpa.core.lagrangian import AugmentedLagrangian
from gdpa.core.problem import Problem
from gdpa.methods.adaptive.rules import Rules, Settings
from gdpa.methods.adaptive.scaling import ScaledEvaluation, ScaledProblem, Scaling
from gdpa.methods.base import State
from gdpa.numerics.lbfgs import LBFGS
from gdpa.numerics.sparse.matrix import SparseMatrix


class Phase:
    """A phase of the method. A subclass adds the values that this phase alone needs.

    Attributes:
        restores: whether the phase minimizes the violation alone; f then has the weight 0 in its merit.
        linearizes: whether the phase holds the Jacobian at x.
    """

    restores: ClassVar[bool] = False
    linearizes: ClassVar[bool] = False

    def penalty(self, state: AdaptiveState) -> AugmentedLagrangian:
        """Return the merit of the phase as a function of f, or of 0 if it restores, and g."""
        return state.lagrangian

    def place(self, problem: ScaledProblem, z: Array) -> Array:
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

    @classmethod
    def enter(cls, problem: ScaledProblem, state: AdaptiveState) -> AdaptiveState:
        """Return the state at the same x at the start of the phase, before it is planned."""
        raise NotImplementedError

    def exhaust(self, method: Settings, problem: ScaledProblem, state: AdaptiveState) -> AdaptiveState | None:
        """Return the state after no step of any length was accepted; None if the phase knows no other step."""
        return None

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

    def is_out_of_patience(self, first: int) -> bool:
        """Return whether ``first`` points have passed without progress, a number that every restoration doubles."""
        return self.points >= first << self.restorations


@stored
class Trial(NamedTuple):
    """The next trial point, x + t p.

    Attributes:
        direction: p, with x + p in X.
        slope: the derivative of the merit along p, negative.
        length: t.
        forced: accept the trial whatever its merit, and forget the points before it.
        correction: a step taken in place of a refused p (second-order correction).
    """

    direction: Array
    slope: float
    length: float = 1.0
    forced: bool = False
    correction: Array | None = None

    def point(self, x: Array) -> Array:
        """Return the trial point."""
        if self.correction is not None:
            return x + self.correction
        return x + (self.direction if self.length == 1.0 else self.length * self.direction)

    def rescaled(self, factor: float) -> Trial:
        """Return the trial in coordinates that are ``factor`` times as large."""
        correction = None if self.correction is None else factor * self.correction
        return self._replace(direction=factor * self.direction, correction=correction)

    def suffices(self, value: float, current: float, reference: float, rounding: float, rules: Rules) -> bool:
        """Return whether the merit ``value`` of the trial point is low enough; one that is not finite never is.

        The test is ``value <= reference + c t slope``, up to the relative rounding of the values.

        >>> Trial(0.0, slope=-1.0).suffices(1.0, current=0.5, reference=1.1, rounding=0.0, rules=Rules())
        True
        """
        promised = rules.sufficient_decrease * (self.length * self.slope)
        return math.isfinite(value) and value <= reference + promised + rounding * max(abs(current), abs(value))

    def shorter(self, rise: float, rules: Rules) -> float:
        """Return the next t: the minimizer of a parabola, between a tenth and a half of this one.

        ``rise`` is the increase of the merit from x to x + t p, and may be not finite.

        >>> Trial(0.0, slope=-1.0).shorter(1.0, Rules()), Trial(0.0, slope=-1.0).shorter(math.nan, Rules())
        (0.25, 0.1)
        """
        t, slope = self.length, self.slope
        curvature = 2 * (rise - t * slope)
        best = -slope * t * t / curvature if curvature > 0 else 0.0
        return min(max(best, rules.shortest_cut * t), rules.longest_cut * t)


@stored
class Reference(NamedTuple):
    """The scaled values (f, g) of the last accepted points, newest last.

    F_beta(x_j, lambda) depends on x_j through these values alone, so after any change of lambda or beta the reference
    is recomputed exactly and without an evaluation.

    References:
        L. Grippo, F. Lampariello and S. Lucidi, "A nonmonotone line search technique for Newton's method", SIAM J.
        Numerical Analysis 23 (1986).
    """

    objectives: Array
    constraints: Array

    @classmethod
    def at(cls, now: ScaledEvaluation) -> Reference:
        """Return the record of one point."""
        return cls(now.objective[None], now.constraints[None, :])

    def push(self, objective: Array, constraints: Array, most: int) -> Reference:
        """Return the record of the newest ``most`` points and one more."""
        xp = namespace(constraints)
        f, g = self.objectives[-most:], self.constraints[-most:]
        return Reference(xp.concat([f, objective[None]]), xp.concat([g, constraints[None]]))

    def newest(self) -> Reference:
        """Return the record of the newest point alone."""
        return Reference(self.objectives[-1:], self.constraints[-1:])

    def values(self, weight: float, F: AugmentedLagrangian) -> tuple[float, float, float]:
        """Return the merit at the newest point, at the one before, and the largest over all but the newest."""
        values = to_numpy(F.value(self.objectives if weight == 1.0 else weight * self.objectives, self.constraints))
        current, value = values[-2:].tolist()
        return value, current, float(top(values[:-1]))


@stored
@dataclass(frozen=True, kw_only=True)
class AdaptiveState(State):
    """The state of `AdaptiveGDPA`. Its own fields are in scaled units, the fields of `State` are not.

    Attributes:
        lagrangian: F_beta with its lambda and beta.
        gradient: the gradient of the phase's merit at x.
        hessian: sparse second derivatives of the Lagrangian, used in place of the quasi-Newton matrix.
        phase_since: ``step`` when the quasi-Newton or SQP phase began.
        unmoved_points: accepted points in a row that did not move.
        reviews: how often the lengths of the columns of J were considered.
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
    reviews: int = 0

    @cached_property
    def z(self) -> Array:
        """The point in the scaled variables, x / D."""
        D = self.scaling.lengths
        return self.x if D is None else self.x / D

    @property
    def constraints(self) -> Array:
        """The scaled g at x."""
        return self.reference.constraints[-1]

    @cached_property
    def violation(self) -> float:
        """The largest violation of a scaled constraint at x."""
        return largest_violation(self.reference.constraints[-1], self.lagrangian.num_equalities)

    @cached_property
    def size(self) -> float:
        """The largest |x_j|."""
        return float(max_norm(self.x))

    @cached_property
    def eps(self) -> float:
        """The precision of x."""
        return machine_eps(self.x)

    @cached_property
    def negligible(self) -> float:
        """A violation up to this is rounding."""
        return math.sqrt(self.eps)

    @cached_property
    def is_violated(self) -> bool:
        """Whether a scaled constraint is violated by more than rounding."""
        return self.violation > self.negligible

    def scaled(self, problem: Problem) -> ScaledProblem:
        """Return the problem in the units of the state."""
        known: ScaledProblem | None = vars(self).get("_scaled")
        if known is None or known.original is not problem or known.scaling is not self.scaling:
            known = vars(self)["_scaled"] = ScaledProblem(problem, self.scaling)
        return known

    def call(self, problem: ScaledProblem) -> ScaledEvaluation:
        """Return the oracle call at x in the units of the state."""
        if (now := vars(self).get("_call")) is None:
            now = ScaledEvaluation(self.evaluation or problem.original.evaluate(self.x), self.scaling, self.x)
            vars(self)["_call"] = now
        return now

    def replaced(self, **changes: Any) -> AdaptiveState:
        """Return the state with other values of some fields, and without the numbers that were made of them."""
        state = object.__new__(AdaptiveState)
        known = vars(state)
        known.update(vars(self))
        if not changes.keys().isdisjoint(("x", "evaluation", "scaling", "reference")):  # the fields of the point
            for name in ("z", "_call", "violation", "is_violated", "size"):
                known.pop(name, None)
        known.update(changes)
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
