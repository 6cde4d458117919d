"""Inequalities as equalities: ``g(x) <= 0`` becomes ``g(x) + s = 0`` with ``s >= 0``, and the way back."""

from __future__ import annotations

from dataclasses import dataclass

from gdpa.base.arrays import namespace, positive_part
from gdpa.base.sets import NonNegative, Product
from gdpa.base.typing import Array, Operand
from gdpa.core.problem import Evaluation, Problem


@dataclass(frozen=True)
class SlackForm:
    """A problem over z = (x, s) whose constraints are all equalities; build it with `add_slacks`.

    Each of the m - p inequalities gets a slack; the p equalities stay as they are. The multipliers of the two forms are
    the same numbers, and at a KKT point multipliers of inequalities are nonnegative by the stationarity in s.
    """

    original: Problem
    dimension: int
    num_constraints: int

    @property
    def num_slacks(self) -> int:
        """How many constraints are inequalities."""
        return self.num_constraints - self.original.num_equalities

    @property
    def problem(self) -> Problem:
        """The problem over z = (x, s), ``X x [0, inf)^(m - p)``."""
        if self.num_slacks == 0:
            return self.original
        domain = Product([(self.dimension, self.original.domain), (self.num_slacks, NonNegative())])
        return Problem(
            self._evaluate,
            num_constraints=self.num_constraints,
            num_equalities=self.num_constraints,
            domain=domain,
            names=self.original.names,
        )

    def _evaluate(self, z: Operand) -> Evaluation:
        x, s = self.split(z)
        f, g, pullback = self.original.evaluate(x)
        xp, n = namespace(g), self.num_slacks

        def pulled(w: Operand, objective: float | Operand = 1.0) -> Array:
            return xp.concat([pullback(w, objective), w[..., :n]], axis=-1)  # dc/ds = 1 on the inequalities

        return Evaluation(f, xp.concat([g[..., :n] + s, g[..., n:]], axis=-1), pulled)

    def lift(self, x: Operand, constraints: Operand) -> Array:
        """Return z = (x, [-g(x)]_+), at which every satisfied inequality already is an equality."""
        return namespace(x).concat([x, positive_part(-constraints[..., : self.num_slacks])], axis=-1)

    def split(self, z: Operand) -> tuple[Array, Array]:
        """Return x and s of z."""
        return z[..., : self.dimension], z[..., self.dimension :]


def add_slacks(problem: Problem, x0: Operand) -> tuple[SlackForm, Array]:
    """Return the slack form of ``problem`` and its start z0 = (x0, [-g(x0)]_+) (one forward pass).

    Example:
        Solve with a method for equalities, and return to the original variables.

        >>> from gdpa import MaxSteps, ProximalADMM, problems, solve
        >>> hs = problems.get("HS76")                                    # three linear inequalities, x >= 0
        >>> form, z0 = add_slacks(hs.problem, hs.x0)
        >>> result = solve(form.problem, z0, ProximalADMM(), tolerance=1e-6)
        >>> x, s = form.split(result.x)
        >>> bool(abs(x - hs.solution).max() < 1e-4), bool(abs(result.multipliers - hs.multipliers).max() < 1e-4)
        (True, True)
    """
    constraints = problem.evaluate(x0).constraints
    form = SlackForm(problem, x0.shape[-1], constraints.shape[-1])
    return form, form.lift(x0, constraints)
