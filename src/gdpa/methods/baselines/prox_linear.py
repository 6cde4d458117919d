"""Two single loops that step to the solution of a model with linearized constraints; the weights solve a small QP."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

from gdpa.base.arrays import from_numpy, namespace, norm, to_float64
from gdpa.base.checks import check_positive_if_given, check_share
from gdpa.base.schedules import StepSize
from gdpa.base.sets import Reals
from gdpa.base.stored import stored
from gdpa.base.typing import Array, Operand
from gdpa.core.certificate import violation
from gdpa.core.lagrangian import AugmentedLagrangian
from gdpa.core.problem import Evaluation, Problem
from gdpa.methods.base import Probe, State
from gdpa.methods.method import Method, MethodCard
from gdpa.numerics.qp import nonnegative_qp

#: A matrix J J^T is taken as singular below this share of its largest entry; so much is added to its diagonal.
RIDGE = 1e-12
#: A rejected trial shortens the step by this factor, an accepted one lengthens the next.
SHORTEN, LENGTHEN = 0.5, 1.25
#: The decrease asked for, as a share of the model's, and the shortest step tried.
SHARE, SHORTEST = 1e-4, 1e-12


@stored
@dataclass(frozen=True, slots=True, kw_only=True)
class ProxLinearState(State):
    """Adds the step length ``eta`` found last and the ``penalty`` of the merit function."""

    eta: float
    penalty: float = 0.0


@dataclass(frozen=True, kw_only=True)
class ProxLinear(Method):
    """A method whose model has linearized constraints, on the whole space; see `weigh`."""

    eta: float | None = None

    batches: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_positive_if_given(eta=self.eta)

    def init(self, problem: Problem, x0: Operand) -> ProxLinearState:
        return self.first_state(ProxLinearState, x0, self.begin(problem, x0), eta=self.eta or 1.0)

    def objection(self, problem: Problem, x0: Operand, start: Evaluation) -> str:
        if isinstance(problem.domain, Reals):
            return ""
        kind = type(problem.domain).__name__
        return f"X is {kind} and the method's model is for the whole space; state X by constraints"

    def weigh(
        self, now: Evaluation, eta: float, memory: Operand, beta: float, num_equalities: int
    ) -> tuple[Array, Array, Array]:
        """Return the weights w of the model's minimizer, its direction s = -(grad f + J^T w), and J s.

        The model is ``<grad f, d> + ||[memory + beta (g + J d)]_+||^2 / (2 beta) + ||d||^2 / (2 eta)``, minimized by
        d = eta s. Its weights w = [memory + beta (g + J d)]_+ solve the dual problem
        ``min w'(I/beta + eta J J')w/2 - w'(memory/beta + g - eta J grad f)`` over w >= 0. With beta infinite, the
        linearized constraints hold exactly.
        """
        J, gradient = now.jacobian(), now.gradient()
        A, c = to_float64(J if not now.is_sparse else J.toarray()), to_float64(now.constraints)
        if not len(c):
            return now.constraints, -gradient, now.constraints
        gram = eta * A @ A.T
        diagonal = gram.diagonal().max() * RIDGE + 1 / beta
        gram[range(len(c)), range(len(c))] += diagonal if diagonal > 0 else 1.0
        target = to_float64(memory) / beta + c - eta * A @ to_float64(gradient)
        weights = nonnegative_qp(gram, target, num_equalities)
        s = -(to_float64(gradient) + weights @ A)
        w, direction, slope = (from_numpy(v, like=now.constraints) for v in (weights, s, A @ s))
        return w, direction, slope

    def search(
        self,
        problem: Problem,
        state: ProxLinearState,
        now: Evaluation,
        trial: Callable[[float], tuple[Array, Array, float]],
        merit: Callable[[Evaluation], Array],
        *,
        weight: float = 1.0,
        longest: float = math.inf,
    ) -> ProxLinearState:
        """Return the state after the step eta s for the first of eta, eta/2, ... at which ``merit`` meets its bound.

        Args:
            problem, state: as in ``update``.
            now: the oracle call at ``state.x``.
            trial: the weights w, the direction s = -(grad f + J^T w) and the bound of the merit function for eta.
            merit: the merit function of an oracle call.
            weight: the weight of ``state.x`` in the averaged iterate.
            longest: the largest eta of the next step.
        """
        eta = state.eta
        while True:
            w, s, bound = trial(eta)
            x = problem.domain.project(state.x + eta * s)
            then = problem.evaluate(x)
            if self.eta is not None or float(merit(then)) <= bound or not eta > SHORTEST:
                break
            eta *= SHORTEN
        probe = Probe(state.x, w, now.objective, now.constraints, -s, weight, now)
        following = eta if self.eta is not None else min(longest, LENGTHEN * eta)
        return replace(state, step=state.step + 1, x=x, multipliers=w, evaluation=then, probe=probe, eta=following)


@stored
@dataclass(frozen=True)
class LIPAL(ProxLinear):
    r"""GDPA's perturbed dual step around a prox-linear primal step.

    .. math::
        x_{r+1} &= \arg\min_x\; \langle \nabla f(x_r), x \rangle + \frac{1}{2\beta_r}
            \bigl\|\bigl[(1-\tau)\lambda_r + \beta_r (g(x_r) + J(x_r)(x - x_r))\bigr]_+\bigr\|^2
            + \frac{1}{2\eta}\|x - x_r\|^2 \\
        \lambda_{r+1} &= \bigl[(1-\tau)\lambda_r + \beta_r (g(x_r) + J(x_r)(x_{r+1} - x_r))\bigr]_+

    The primal step is eta times -(grad f + J^T lambda_{r+1}). One forward pass, a gradient and a Jacobian per update,
    and one forward per rejected eta.

    Args:
        beta: beta_0 of ``beta_r = beta_0 r^(1/3)``, or any schedule.
        tau: the perturbation in [0, 1); a constraint with multiplier lambda_i is left violated by tau lambda_i / beta.
        eta: the inverse of the regularization; None finds it by backtracking: the model must bound F_beta.

    Example:
        >>> from gdpa import problems, solve
        >>> result = solve(problems.get("HS12"), algorithm=LIPAL(), tolerance=1e-3)
        >>> result.success, result.x.round(2).tolist(), result.multipliers.round(2).tolist()
        (True, [2.0, 3.0], [0.5])

    References:
        L. El Bourkhissi, I. Necoara, "Complexity of linearized perturbed augmented Lagrangian methods for nonsmooth
        nonconvex optimization with nonlinear equality constraints", arXiv 2503.01056.

    Deviations from the source:
        We follow its abstract: perturbation, linearization of f and g, perturbed ascent. Whether the ascent takes g
        or its linearization at x_{r+1} is not stated there; the linearization is our reading. The source has
        equalities; inequalities by their eliminated slack, the growing beta_r and the backtracking are ours.
    """

    beta: StepSize = StepSize(10.0, exponent=1 / 3)
    tau: float = 0.01

    card: ClassVar[MethodCard] = MethodCard(
        "LIPAL (El Bourkhissi and Necoara, 2025)", "primal-dual", own_claim="O(1/eps^3); linear under a KL condition"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_share(tau=self.tau)

    def update(self, problem: Problem, state: ProxLinearState) -> ProxLinearState:
        beta, p = self.beta(state.step + 1), problem.num_equalities
        now = state.evaluation or problem.evaluate(state.x)
        F = AugmentedLagrangian(state.multipliers, beta, self.tau, p)
        rounding = RIDGE * (1 + abs(float(F.value(now.objective, now.constraints))))

        def trial(eta: float) -> tuple[Array, Array, float]:
            w, s, slope = self.weigh(now, eta, (1 - self.tau) * state.multipliers, beta, p)
            # f and g at the minimizer of the model: their linearizations, and the regularization on top.
            linear = now.objective + eta * namespace(s).sum(now.gradient() * s)
            model = float(F.value(linear, now.constraints + eta * slope)) + eta / 2 * float(norm(s)) ** 2
            return w, s, model + rounding

        def merit(then: Evaluation) -> Array:
            return F.value(then.objective, then.constraints)

        return self.search(problem, state, now, trial, merit, weight=1 / beta)


@stored
@dataclass(frozen=True)
class DirectionalDecomposition(ProxLinear):
    r"""A step down f along the constraints plus a Newton step towards them.

    For equalities, with the orthogonal projection on the null space of J and A = (J J^T)^{-1},

    .. math::
        s_r = -(I - J^+ J) \nabla f(x_r) - J^T A\, c(x_r), \qquad x_{r+1} = x_r + \eta_r s_r

    and s_r with inequalities solves ``min ||s + grad f||^2 / 2`` subject to ``g + J s <= 0``. The method reports the
    multipliers w of this problem. eta_r is the first of eta, eta/2, ... that lowers the merit function
    f + nu sum [g]_+ by a share of its slope, and nu grows to twice the largest multiplier. It is the step of
    `AdaptiveGDPA` with the Hessian model B = I. One forward pass, a gradient and a Jacobian per update, and one
    forward per rejected eta.

    Args:
        eta: the step length, fixed; None finds it as above, 1 at most.

    Example:
        >>> from gdpa import problems, solve
        >>> result = solve(problems.get("HS12"), algorithm=DirectionalDecomposition(), tolerance=1e-3)
        >>> result.success, result.x.round(2).tolist(), result.multipliers.round(2).tolist()
        (True, [2.0, 3.0], [0.5])

    References:
        Q. Shi, X. Wang, "Adaptive directional decomposition methods for nonconvex constrained optimization",
        arXiv 2511.03210.

    Deviations from the source:
        The source has equalities and x >= 0, a free choice of A, and adaptive rules of its own for eta and nu; ours
        are a line search on the l1 merit function. Linearized inequalities that contradict each other are met as
        nearly as the ridge 1e-12 of the QP asks for, by large weights.
    """

    card: ClassVar[MethodCard] = MethodCard(
        "Directional decomposition (Shi and Wang, 2025)", "primal", own_claim="O(1/eps^2) under a strong LICQ"
    )

    def update(self, problem: Problem, state: ProxLinearState) -> ProxLinearState:
        p, xp = problem.num_equalities, namespace(state.x)
        now = state.evaluation or problem.evaluate(state.x)
        w, s, _ = self.weigh(now, 1.0, state.multipliers, float("inf"), p)
        largest = float(xp.max(xp.abs(w))) if w.shape[-1] else 0.0
        penalty = state.penalty if state.penalty >= largest else 2 * largest

        def excess(at: Evaluation) -> float:
            return float(xp.sum(violation(at.constraints, p)))

        def merit(at: Evaluation) -> float:
            return float(at.objective) + penalty * excess(at)

        # The slope of the merit function along s is at most this, because s meets the linearized constraints.
        slope = float(xp.sum(now.gradient() * s)) - penalty * excess(now)
        start = merit(now)
        rounding = RIDGE * (1 + abs(start))
        after = self.search(
            problem, state, now, lambda eta: (w, s, start + SHARE * eta * slope + rounding), merit, longest=1.0
        )
        return replace(after, penalty=penalty)
