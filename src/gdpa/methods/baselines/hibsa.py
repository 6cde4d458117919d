"""The hybrid block successive approximation method of Lu et al. on the Lagrangian, a single loop."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from gdpa.base.checks import check_at_least
from gdpa.base.schedules import as_schedule
from gdpa.base.stored import stored
from gdpa.base.typing import Array, Schedule
from gdpa.core.problem import Problem
from gdpa.methods.method import Method, MethodCard
from gdpa.methods.nested import Subproblem, descend
from gdpa.methods.nested.minmax import DualSet, MinMaxState, check_minmax, minmax_start


@stored
@dataclass(frozen=True)
class HiBSA(Method):
    r"""Alternating steps, the dual one regularized by a vanishing perturbation.

    .. math::
        x^{r+1} &= \arg\min_{x \in X} \langle \nabla_x L(x^r, \lambda^r), x \rangle + \frac{b_r}{2}\|x - x^r\|^2
            = P_X(x^r - \nabla_x L(x^r, \lambda^r)/b_r) \\
        \lambda^{r+1} &= \arg\max_{0 \le \lambda \le B} \langle \nabla_\lambda L(x^{r+1}, \lambda^r), \lambda \rangle
            - \frac{1}{2\rho}\|\lambda - \lambda^r\|^2 - \frac{\gamma_r}{2}\|\lambda\|^2 \\
            &= P_{[0, B]}\Bigl(\frac{\lambda^r + \rho \nabla_\lambda L(x^{r+1}, \lambda^r)}{1 + \rho\gamma_r}\Bigr)

    GDPA takes this idea to a growing dual step, an augmented Lagrangian, and rho gamma = tau/(1 - tau) kept fixed.
    One forward and one backward pass per update, and one forward per doubling of the curvature.

    Args:
        rho: the dual step.
        gamma: gamma_0 of the perturbation ``gamma_r = gamma_0 r^(-1/4)``, or any schedule.
        b: b_0 of ``b_r = b_0 r^(1/2)``, or any schedule; None finds the curvature by backtracking.
        bound: B. ``state.at_bound`` says which multipliers sit on it.
        augmentation: the penalty of the augmented Lagrangian; 0 for the plain Lagrangian.
        lipschitz: the curvature to begin the backtracking with.

    Example:
        >>> from gdpa import problems, solve
        >>> hs = problems.get("HS12")
        >>> result = solve(hs.problem, hs.x0, HiBSA(), tolerance=1e-2)
        >>> result.success, result.x.round(1).tolist(), bool(result.state.at_bound.any())
        (True, [2.0, 3.0], False)

    References:
        S. Lu, I. Tsaknakis, M. Hong, Y. Chen, "Hybrid Block Successive Approximation for One-Sided Non-Convex Min-Max
        Problems: Algorithms and Applications", IEEE Transactions on Signal Processing 2020.

    Deviations from the source:
        One block of variables; backtracking and augmentation are ours.
    """

    rho: float = 0.1
    gamma: float | Schedule = 1e-3
    b: float | Schedule | None = None
    bound: float = 100.0
    augmentation: float = 1.0
    lipschitz: float = 1.0

    card: ClassVar[MethodCard] = MethodCard(
        "HiBSA (Lu et al., 2020)", "min-max", "ncvx", "compact dual set", "single-loop", "none",
        own_claim="O~(1/eps^4) for nonconvex-concave min-max problems",
    )  # fmt: skip

    def __post_init__(self) -> None:
        check_minmax(None, self.augmentation, rho=self.rho, bound=self.bound, lipschitz=self.lipschitz)
        if not callable(self.gamma):
            check_at_least(0, gamma=self.gamma)
        if self.gamma != 0:
            object.__setattr__(self, "gamma", as_schedule("gamma", self.gamma, -1 / 4))
        if self.b is not None:
            object.__setattr__(self, "b", as_schedule("b", self.b, 1 / 2))

    def init(self, problem: Problem, x0: Array) -> MinMaxState:
        return minmax_start(self, problem, x0, self.lipschitz)

    def update(self, problem: Problem, state: MinMaxState) -> MinMaxState:
        r = state.step + 1
        gamma = self.gamma(r) if callable(self.gamma) else self.gamma
        alpha = 1 / self.b(r) if callable(self.b) else None
        dual = DualSet(self.bound, problem.num_equalities)
        L = Subproblem(problem, state.multipliers, self.augmentation)
        slope = L.slope(state.x, state.evaluation or problem.evaluate(state.x))
        new = descend(L, state.x, slope, state.lipschitz, alpha)
        ascent = state.multipliers + self.rho * L.shortfall(new.evaluation)  # at x^{r+1}: alternating
        multipliers = dual.project(ascent / (1 + self.rho * gamma))
        return replace(
            state, step=r, x=new.x, multipliers=multipliers, evaluation=new.evaluation, probe=slope.probe,
            at_bound=dual.touched(multipliers), lipschitz=new.lipschitz,
        )  # fmt: skip
