"""Gradient descent ascent on the Lagrangian with multipliers in a compact set: three single loops on one base."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from gdpa.base.arrays import namespace
from gdpa.base.checks import check_at_least, check_positive, check_positive_if_given
from gdpa.base.schedules import Power, StepSize
from gdpa.base.stored import stored
from gdpa.base.typing import Array, Operand, Schedule
from gdpa.core.problem import Problem
from gdpa.methods.method import Method, MethodCard
from gdpa.methods.nested import DescentState, Subproblem, descended, first_curvature


@stored
@dataclass(frozen=True, slots=True, kw_only=True)
class MinMaxState(DescentState):
    """The state of a min-max method.

    Attributes:
        at_bound: which multipliers sit on the bound B. While any does, the method solves
            ``min f + B sum [g]_+`` instead of the constrained problem, and nothing is promised on feasibility.
        center: the proximal center z of the smoothed method, the start for the others.
    """

    at_bound: Array
    center: Array


def project_multipliers(multipliers: Operand, bound: float, num_equalities: int) -> Array:
    """Return the nearest ``0 <= lambda_i <= B`` for inequalities and ``|lambda_i| <= B`` for equalities.

    >>> import numpy as np
    >>> project_multipliers(np.array([-1.0, 3.0, -5.0]), 2.0, num_equalities=1).tolist()
    [0.0, 2.0, -2.0]
    """
    xp, zeros = namespace(multipliers), namespace(multipliers).zeros_like(multipliers)
    # Built from comparisons, so that one line serves every array library.
    equality = xp.cumulative_sum(zeros + 1, axis=-1) > multipliers.shape[-1] - num_equalities
    return xp.minimum(xp.maximum(multipliers, xp.where(equality, zeros - bound, zeros)), zeros + bound)


@dataclass(frozen=True, kw_only=True)
class MinMax(Method):
    """A primal descent step on L and a dual ascent step in the compact set [0, B]^m.

    One forward and one backward pass per update, and one forward per doubling of the curvature.

    Args:
        bound: B. ``state.at_bound`` holds which multipliers sit on it.
        augmentation: the penalty of the augmented Lagrangian L; 0 for the plain one, f + <lambda, g>.
        lipschitz: the curvature to begin the backtracking with, if no primal step is given.
    """

    bound: float = 100.0
    augmentation: float = 1.0
    lipschitz: float = 1.0

    def __post_init__(self) -> None:
        check_at_least(0, augmentation=self.augmentation)
        check_positive(bound=self.bound, lipschitz=self.lipschitz)

    def init(self, problem: Problem, x0: Operand) -> MinMaxState:
        start = self.begin(problem, x0)
        free, L = namespace(x0).zeros_like(start.constraints) > 0, first_curvature(x0, self.lipschitz)
        return self.first_state(MinMaxState, x0, start, at_bound=free, lipschitz=L, center=x0)

    def advance(
        self,
        problem: Problem,
        state: MinMaxState,
        descent: float | None,
        ascent: float,
        *,
        simultaneous: bool = False,
        decay: float = 1.0,
        prox: float = 0.0,
    ) -> MinMaxState:
        """Return the state after one step of each kind.

        Args:
            problem, state: as in ``update``.
            descent: the primal step, None to find it by backtracking.
            ascent: the dual step.
            simultaneous: take the dual gradient at the old x, not at the new one.
            decay: divides the dual point before the projection.
            prox: the weight of the proximal term around ``state.center``.
        """
        now = state.evaluation or problem.evaluate(state.x)
        center = state.center if prox else None
        L = Subproblem(problem, state.multipliers, self.augmentation, prox=prox, center=center)
        after, then = descended(L, state, now, descent)
        at = now if simultaneous else then
        raised = state.multipliers + ascent * L.lagrangian.complementarity(at.constraints)
        multipliers = project_multipliers(raised / decay, self.bound, problem.num_equalities)
        at_bound = namespace(multipliers).abs(multipliers) >= self.bound
        return replace(after, multipliers=multipliers, at_bound=at_bound)


@stored
@dataclass(frozen=True)
class GDA(MinMax):
    r"""Simultaneous gradient steps down in x and up in lambda, with lambda in the compact set [0, B]^m.

    .. math::
        x_{t+1} &= P_X(x_t - \alpha \nabla_x L(x_t, \lambda_t)) \\
        \lambda_{t+1} &= P_{[0, B]}(\lambda_t + \beta \nabla_\lambda L(x_t, \lambda_t))

    A KKT point of a nonconvex problem need not be a saddle point of the plain Lagrangian, and there GDA circles or
    leaves.

    Args:
        alpha: the primal step; None finds it by backtracking.
        beta: the dual step.
        bound, augmentation, lipschitz: see `gdpa.methods.baselines.minmax.MinMax`.

    Example:
        >>> from gdpa import problems, solve
        >>> result = solve(problems.get("HS12"), algorithm=GDA(), tolerance=1e-3)
        >>> result.success, result.x.round(2).tolist(), bool(result.state.at_bound.any())
        (True, [2.0, 3.0], False)

    References:
        T. Lin, C. Jin, M. Jordan, "On Gradient Descent Ascent for Nonconvex-Concave Minimax Problems", ICML 2020.

    Deviations from the source:
        The source has constant steps from known constants and the plain function; alpha = None and augmentation > 0
        are ours.
    """

    alpha: float | None = None
    beta: float = 0.1

    card: ClassVar[MethodCard] = MethodCard(
        "GDA (Lin et al., 2020)", "min-max", constraint_type="compact dual set",
        own_claim="O(1/eps^6) for nonconvex-concave min-max problems",
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(beta=self.beta)
        check_positive_if_given(alpha=self.alpha)

    def update(self, problem: Problem, state: MinMaxState) -> MinMaxState:
        return self.advance(problem, state, self.alpha, self.beta, simultaneous=True)


@stored
@dataclass(frozen=True)
class HiBSA(MinMax):
    r"""Alternating steps, the dual one regularized by a vanishing perturbation.

    .. math::
        x^{r+1} &= \arg\min_{x \in X} \langle \nabla_x L(x^r, \lambda^r), x \rangle + \frac{b_r}{2}\|x - x^r\|^2
            = P_X(x^r - \nabla_x L(x^r, \lambda^r)/b_r) \\
        \lambda^{r+1} &= \arg\max_{0 \le \lambda \le B} \langle \nabla_\lambda L(x^{r+1}, \lambda^r), \lambda \rangle
            - \frac{1}{2\rho}\|\lambda - \lambda^r\|^2 - \frac{\gamma_r}{2}\|\lambda\|^2 \\
            &= P_{[0, B]}\Bigl(\frac{\lambda^r + \rho \nabla_\lambda L(x^{r+1}, \lambda^r)}{1 + \rho\gamma_r}\Bigr)

    GDPA takes this idea to a growing dual step, an augmented Lagrangian, and rho gamma = tau/(1 - tau) kept fixed.

    Args:
        rho: the dual step.
        gamma: gamma_0 of the perturbation ``gamma_r = gamma_0 r^(-1/4)``, or any schedule; 0 for none.
        b: b_0 of ``b_r = b_0 r^(1/2)``, or any schedule; None finds the curvature by backtracking.
        bound, augmentation, lipschitz: see `gdpa.methods.baselines.minmax.MinMax`.

    Example:
        >>> from gdpa import problems, solve
        >>> result = solve(problems.get("HS12"), algorithm=HiBSA(), tolerance=1e-2)
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
    b: StepSize = StepSize(None, exponent=1 / 2, optional=True)

    card: ClassVar[MethodCard] = MethodCard(
        "HiBSA (Lu et al., 2020)", "min-max", constraint_type="compact dual set",
        own_claim="O~(1/eps^4) for nonconvex-concave min-max problems",
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(rho=self.rho)
        if not callable(self.gamma):
            check_at_least(0, gamma=self.gamma)
            gamma = Power(self.gamma, -1 / 4) if self.gamma else self.gamma
            object.__setattr__(self, "gamma", gamma)

    def update(self, problem: Problem, state: MinMaxState) -> MinMaxState:
        r = state.step + 1
        descent = None if self.b is None else 1 / self.b(r)
        gamma = self.gamma(r) if callable(self.gamma) else self.gamma
        return self.advance(problem, state, descent, self.rho, decay=1 + self.rho * gamma)


@stored
@dataclass(frozen=True)
class SmoothedGDA(MinMax):
    r"""Alternating steps on the Lagrangian plus a proximal term whose center follows slowly.

    .. math::
        x_{t+1} &= P_X\bigl(x_t - c(\nabla_x L(x_t, \lambda_t) + p(x_t - z_t))\bigr) \\
        \lambda_{t+1} &= P_{[0, B]}(\lambda_t + \alpha \nabla_\lambda L(x_{t+1}, \lambda_t)) \\
        z_{t+1} &= z_t + \beta (x_{t+1} - z_t)

    Args:
        alpha: the dual step.
        prox: p. Theory requires p > 3L; its authors recommend p and beta between 1/2 and 1 in practice.
        beta: the step of the center, in (0, 1].
        step: c, the primal step; None finds it by backtracking. Theory: c < 1/(p + L).
        bound, augmentation, lipschitz: see `gdpa.methods.baselines.minmax.MinMax`.

    Example:
        >>> from gdpa import problems, solve
        >>> result = solve(problems.get("HS12"), algorithm=SmoothedGDA(), tolerance=1e-3)
        >>> result.success, result.x.round(2).tolist(), bool(result.state.at_bound.any())
        (True, [2.0, 3.0], False)

    References:
        J. Zhang, P. Xiao, R. Sun, Z.-Q. Luo, "A Single-Loop Smoothed Gradient Descent-Ascent Algorithm for
        Nonconvex-Concave Min-Max Problems", NeurIPS 2020.

    Deviations from the source:
        Backtracking and augmentation are ours.
    """

    alpha: float = 0.1
    prox: float = 1.0
    beta: float = 0.5
    step: float | None = None

    card: ClassVar[MethodCard] = MethodCard(
        "Smoothed-GDA (Zhang et al., 2020)", "min-max", constraint_type="compact dual set",
        own_claim="O(1/eps^4) for nonconvex-concave min-max problems; O(1/eps^2) for a finite max",
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(alpha=self.alpha)
        check_at_least(0, prox=self.prox)
        check_positive_if_given(step=self.step)
        if not 0 < self.beta <= 1:
            raise ValueError(f"beta must lie in (0, 1], got {self.beta!r}: the center moves towards x, not past it")

    def update(self, problem: Problem, state: MinMaxState) -> MinMaxState:
        after = self.advance(problem, state, self.step, self.alpha, prox=self.prox)
        return replace(after, center=state.center + self.beta * (after.x - state.center))
