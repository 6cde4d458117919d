"""Two single loops with a fixed penalty: a proximal-perturbed Lagrangian, and ADMM for linear equalities."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from gdpa.base.arrays import max_norm, namespace
from gdpa.base.checks import check_at_least, check_positive, check_positive_if_given
from gdpa.base.sets import Box, ConvexSet, Product, Reals
from gdpa.base.stored import stored
from gdpa.base.typing import Array, Operand
from gdpa.core.problem import Evaluation, Problem
from gdpa.methods.method import Method, MethodCard
from gdpa.methods.nested import DescentState, Subproblem, descended, first_curvature


@stored
@dataclass(frozen=True, slots=True, kw_only=True)
class PPLState(DescentState):
    """The multipliers are the memory mu."""


@stored
@dataclass(frozen=True)
class PPL(Method):
    r"""A pressure w that acts on x and a memory mu that follows it slowly, at a fixed penalty.

    .. math::
        w_k &= [\mu_k + \rho\, g(x_k)]_+, \qquad \rho = \alpha / (1 + \alpha\beta) \\
        x_{k+1} &= P_X\bigl(x_k - \eta(\nabla f(x_k) + J(x_k)^T w_k)\bigr) \\
        \mu_{k+1} &= \mu_k + \frac{\delta_k}{1 + \|w_k - \mu_k\|^2} (w_k - \mu_k), \qquad \delta_k = \delta_0 r^{k-1}

    It is the member of the family of docs/theory.md with a = 1, a fixed rho and this gain. A step of mu has a length of
    at most delta_k / 2, so the printed r < 1 lets mu travel delta_0 / (2 (1 - r)) = 250 in all: larger multipliers
    are out of its reach. The constant gain, r = 1, is ours and the default.

    One forward and one backward pass per update, and one forward per doubling of the curvature 1/eta.

    Args:
        eta: the primal step; None finds it by backtracking.
        alpha, beta: of the penalty rho.
        delta: delta_0.
        decay: r. The source prints 0.999.
        fresh: take the pressure of mu at x_{k+1}, as GDPA does (ours), not at x_k.
        lipschitz: the curvature 1/eta to begin the backtracking with.

    Example:
        >>> from gdpa import problems, solve
        >>> result = solve(problems.get("HS12"), algorithm=PPL(), tolerance=1e-3)
        >>> result.success, result.x.round(2).tolist(), result.multipliers.round(2).tolist()
        (True, [2.0, 3.0], [0.5])

    References:
        J. G. Kim, "A new Lagrangian-based first-order method for nonconvex constrained optimization", Operations
        Research Letters 2023. S. B. Moon, J. G. Kim, A. Chandra, C. Brinton, A. Hashemi, "Beyond Convexity:
        Proximal-Perturbed Lagrangian Methods for Efficient Functional Constrained Optimization", arXiv 2406.17107.

    Deviations from the source:
        The source has equalities, and inequalities by slacks; here the positive part eliminates the slack. The constant
        gain, backtracking and ``fresh`` are ours. The source's variable z = (w - mu)/alpha is not stored.
    """

    eta: float | None = None
    alpha: float = 2000.0
    beta: float = 0.5
    delta: float = 0.5
    decay: float = 1.0
    fresh: bool = False
    lipschitz: float = 1.0

    card: ClassVar[MethodCard] = MethodCard(
        "PPL (Moon et al., 2024; constant gain ours)", "primal-dual",
        own_claim="O~(1/eps^2) with the printed gain, if the multipliers stay bounded",
    )  # fmt: skip

    def __post_init__(self) -> None:
        check_positive(alpha=self.alpha, beta=self.beta, delta=self.delta, lipschitz=self.lipschitz, decay=self.decay)
        check_positive_if_given(eta=self.eta)
        if self.decay > 1 or self.delta > 1:
            raise ValueError(f"decay and delta must be at most 1, got decay={self.decay!r}, delta={self.delta!r}")

    @property
    def rho(self) -> float:
        """The penalty alpha / (1 + alpha beta)."""
        return self.alpha / (1 + self.alpha * self.beta)

    def gain(self, k: int, residual: Operand) -> Array | float:
        """Return delta_k / (1 + ||w - mu||^2), the share of ``residual`` = w - mu that step k adds to mu."""
        size = namespace(residual).sum(residual * residual, axis=-1, keepdims=True)
        return self.delta * self.decay ** (k - 1) / (1 + size)

    def init(self, problem: Problem, x0: Operand) -> PPLState:
        start = self.begin(problem, x0)
        return self.first_state(PPLState, x0, start, lipschitz=first_curvature(x0, self.lipschitz))

    def update(self, problem: Problem, state: PPLState) -> PPLState:
        now = state.evaluation or problem.evaluate(state.x)
        F = Subproblem(problem, state.multipliers, self.rho)
        after, then = descended(F, state, now, self.eta)
        at = then if self.fresh else now
        residual = F.lagrangian.weights(at.constraints) - state.multipliers
        return replace(after, multipliers=state.multipliers + self.gain(after.step, residual) * residual)


@stored
@dataclass(frozen=True, slots=True, kw_only=True)
class ProximalADMMState(DescentState):
    """Adds the proximal ``center`` z."""

    center: Array


@stored
@dataclass(frozen=True)
class ProximalADMM(Method):
    r"""Dual ascent, one projected gradient step and one smoothing step, for A x = b and x in a box.

    With K(x, z; y) = f(x) + <y, Ax - b> + (Gamma/2)||Ax - b||^2 + (p/2)||x - z||^2,

    .. math::
        y^{t+1} &= y^t + \alpha (A x^t - b) \\
        x^{t+1} &= P_X(x^t - c \nabla_x K(x^t, z^t; y^{t+1})) \\
        z^{t+1} &= z^t + \beta (x^{t+1} - z^t)

    One forward and one backward pass per update, and one forward per doubling of the curvature 1/c.

    Args:
        gamma: Gamma, the penalty.
        alpha: the dual step; default Gamma/4.
        prox: p, the proximal weight; theory requires p > L_f.
        beta: the smoothing step in (0, 1]; theory requires a small one.
        step: c, the primal step; None finds it by backtracking. Theory: c < 1/(L_f + p + Gamma ||A||^2).
        lipschitz: the curvature 1/c to begin the backtracking with.

    Only linear equality constraints and boxes (or the whole space, or products of these) are accepted. Linearity is
    tested at the start, with two more oracle calls: the constraints at three points on a line and the pullbacks of two
    of them must fit one affine function. For linear inequalities, add slacks first (`gdpa.add_slacks`).

    Example:
        >>> import numpy as np
        >>> from gdpa import from_functions, solve
        >>> problem = from_functions(lambda x: x @ x / 2, lambda x: np.array([x.sum() - 2.0]), num_equalities=1,
        ...                          gradient=lambda x: x, jacobian=lambda x: np.ones((1, 2)))
        >>> result = solve(problem, np.zeros(2), ProximalADMM(), tolerance=1e-6)
        >>> result.success, result.x.round(4).tolist(), result.multipliers.round(4).tolist()
        (True, [1.0, 1.0], [-1.0])

    References:
        J. Zhang, Z.-Q. Luo, "A Proximal Alternating Direction Method of Multiplier for Linearly Constrained Nonconvex
        Minimization", SIAM J. Optimization 2020, with one block of variables.
    """

    gamma: float = 1.0
    alpha: float | None = None
    prox: float = 1.0
    beta: float = 0.5
    step: float | None = None
    lipschitz: float = 1.0

    card: ClassVar[MethodCard] = MethodCard(
        "Proximal ADMM (Zhang and Luo, 2020)", "inexact", "linear", "equality", "single-loop", "O(1/eps^2)",
        in_table1=True,
    )  # fmt: skip

    def __post_init__(self) -> None:
        check_positive(gamma=self.gamma, beta=self.beta, lipschitz=self.lipschitz)
        check_at_least(0, prox=self.prox)
        check_positive_if_given(alpha=self.alpha, step=self.step)
        if self.beta > 1:
            raise ValueError(f"beta must be at most 1, got {self.beta!r}: the center moves towards x, not past it")

    def objection(self, problem: Problem, x0: Operand, start: Evaluation) -> str:
        m, p = start.constraints.shape[-1], problem.num_equalities
        if p < m:
            return (
                f"{m - p} of its {m} constraints are inequalities and the method is for linear equalities; "
                "turn linear inequalities into equalities with gdpa.add_slacks"
            )
        if not _polyhedral(problem.domain):
            return f"X is {type(problem.domain).__name__} and the method is for boxes; choose another method"
        linear = _affine(problem, x0, start)
        return "" if linear else "its constraints are not linear; choose a method for nonlinear ones"

    def init(self, problem: Problem, x0: Operand) -> ProximalADMMState:
        curvature = first_curvature(x0, self.lipschitz)
        return self.first_state(ProximalADMMState, x0, self.begin(problem, x0), center=x0, lipschitz=curvature)

    def update(self, problem: Problem, state: ProximalADMMState) -> ProximalADMMState:
        x, z = state.x, state.center
        now = state.evaluation or problem.evaluate(x)
        alpha = self.gamma / 4 if self.alpha is None else self.alpha
        y = state.multipliers + alpha * now.constraints
        K = Subproblem(problem, y, self.gamma, prox=self.prox, center=z)
        after, _ = descended(K, state, now, self.step)
        return replace(after, multipliers=y, center=z + self.beta * (after.x - z))


def _polyhedral(domain: ConvexSet) -> bool:
    if isinstance(domain, Product):
        return all(_polyhedral(block) for _, block in domain.blocks)
    return isinstance(domain, (Reals, Box))


def _affine(problem: Problem, x0: Operand, start: Evaluation) -> bool:
    """Return whether g fits one affine function at x0, at a second point of X and at a third between them."""
    xp, g = namespace(x0), start.constraints
    if g.shape[-1] == 0:
        return True
    count = xp.cumulative_sum(xp.ones_like(x0), axis=-1)
    far = problem.domain.project(x0 + (1 + max_norm(x0)[..., None]) * xp.cos(count))  # no special direction
    at_far, at_mid = problem.evaluate(far), problem.evaluate(x0 + 0.375 * (far - x0))
    line = g + 0.375 * (at_far.constraints - g)
    w = xp.cos(xp.cumulative_sum(xp.ones_like(g), axis=-1))
    rows = start.pullback(w, objective=0.0), at_far.pullback(w, objective=0.0)

    def same(a: Operand, b: Operand, size: Operand) -> bool:
        return bool(xp.all(max_norm(a - b) <= float(xp.finfo(x0.dtype).eps) ** 0.5 * size))

    size = 1 + max_norm(g) + max_norm(at_far.constraints)
    return same(at_mid.constraints, line, size) and same(*rows, size=1 + max_norm(rows[0]))
