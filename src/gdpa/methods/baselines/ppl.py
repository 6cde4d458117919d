"""The proximal-perturbed Lagrangian method of Kim and of Moon et al., a single loop with a fixed penalty."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from gdpa.base.arrays import namespace
from gdpa.base.checks import check_positive, check_positive_if_given
from gdpa.base.stored import stored
from gdpa.base.typing import Array
from gdpa.core.problem import Problem
from gdpa.methods.base import State
from gdpa.methods.method import Method, MethodCard
from gdpa.methods.nested import Subproblem, descend, first_curvature


@stored
@dataclass(frozen=True, slots=True, kw_only=True)
class PPLState(State):
    """The multipliers are the memory mu; adds the curvature estimate ``lipschitz``."""

    lipschitz: Array


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

    def gain(self, k: int, residual: Array) -> Array | float:
        """Return delta_k / (1 + ||w - mu||^2), the share of ``residual`` = w - mu that step k adds to mu."""
        size = namespace(residual).sum(residual * residual, axis=-1, keepdims=True)
        return self.delta * self.decay ** (k - 1) / (1 + size)

    def init(self, problem: Problem, x0: Array) -> PPLState:
        start = self.begin(problem, x0)
        return self.first_state(PPLState, x0, start, lipschitz=first_curvature(x0, self.lipschitz))

    def update(self, problem: Problem, state: PPLState) -> PPLState:
        now = state.evaluation or problem.evaluate(state.x)
        F = Subproblem(problem, state.multipliers, self.rho)
        slope = F.slope(state.x, now)
        new = descend(F, state.x, slope, state.lipschitz, self.eta)
        pressure = F.weights(new.evaluation) if self.fresh else slope.probe.multipliers
        residual = pressure - state.multipliers
        return replace(
            state, step=state.step + 1, x=new.x, evaluation=new.evaluation, probe=slope.probe, lipschitz=new.lipschitz,
            multipliers=state.multipliers + self.gain(state.step + 1, residual) * residual,
        )  # fmt: skip
