"""The conditions of the paper's convergence proof, and whether a run satisfied them.

(c1) to (c5) are the boxed conditions of the appendix, in the order of the proof; their equation labels stand beside
each formula. docs/theory.md lists those that the proof as printed really supports.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from gdpa.base.arrays import norm, positive_part, to_numpy
from gdpa.base.checks import check_at_least
from gdpa.base.typing import Array, Vector
from gdpa.core.certificate import violation
from gdpa.core.lagrangian import AugmentedLagrangian
from gdpa.core.problem import Evaluation, Problem
from gdpa.run.progress import Progress

__all__ = [
    *("Condition", "Constants", "Report", "Trajectory", "c2_bracket", "check", "estimate_constants"),
    *("multiplier_bound", "regularity", "tau_bound", "vartheta"),
]


@dataclass(frozen=True)
class Constants:
    """The constants of the paper's assumptions 1 to 6, on the region of the iterates.

    Attributes:
        L_f: Lipschitz constant of grad f.
        L_g: Lipschitz constant of g.
        L_J: Lipschitz constant of J, in the spectral norm.
        U_J: bound of ||J||.
        M: bound of ||grad f||.
        G: bound of ||g_+||^2.
        sigma: of the regularity condition, sigma ||g_+|| <= dist(J^T g_+, -N_X); at most U_J. NaN if unknown.
        estimated: whether they come from samples; then every one errs on the optimistic side.

    >>> Constants(L_f=1, L_g=1, L_J=0, U_J=1, M=2, G=4, sigma=2)
    Traceback (most recent call last):
    ...
    ValueError: sigma=2 exceeds U_J=1, but ||J^T g_+|| <= U_J ||g_+|| always; check both
    """

    L_f: float
    L_g: float
    L_J: float
    U_J: float
    M: float
    G: float
    sigma: float
    estimated: bool = False

    def __post_init__(self) -> None:
        known = {f.name: getattr(self, f.name) for f in fields(self)[:-1]}
        if isinstance(self.sigma, float) and math.isnan(self.sigma):
            del known["sigma"]
        check_at_least(0, **known)
        if self.sigma > self.U_J * (1 + 1e-9):
            raise ValueError(
                f"sigma={self.sigma!r} exceeds U_J={self.U_J!r}, but ||J^T g_+|| <= U_J ||g_+|| always; check both"
            )


def regularity(problem: Problem, x: Array, now: Evaluation | None = None) -> float:
    """Return sigma at x, ``dist(J^T g_+, -N_X(x)) / ||g_+||`` of eq. (re); NaN if x is feasible.

    ``now`` is the oracle call at x, if it has been made: then one backward pass is enough.

    >>> from gdpa import problems
    >>> disc = problems.get("disc-product").problem                        # g = |x|^2 - 2, so J^T g_+ / g_+ = 2 x
    >>> regularity(disc, np.array([3.0, 4.0])), regularity(disc, np.zeros(2))
    (10.0, nan)
    """
    now = problem.evaluate(x) if now is None else now
    violated = positive_part(now.constraints, problem.num_equalities)
    size = float(norm(violated))
    if not size > 0:
        return float("nan")
    return float(norm(problem.domain.tangent(x, -now.pullback(violated, objective=0.0)))) / size


def estimate_constants(problem: Problem, points: Any) -> Constants:
    """Return constants measured at sample points; ``estimated`` is set on them.

    Each is optimistic: a Lipschitz constant or a bound found on samples is a *lower* bound of the true one, and sigma,
    the smallest `regularity` seen, an *upper* bound. A condition that fails with them fails; one that
    holds with them may still fail. All pairs of points are compared; m + 1 backward passes each.

    >>> from gdpa import problems
    >>> found = estimate_constants(problems.get("disc-product").problem, [[2.0, 0.0], [0.0, 1.0], [1.0, 2.0]])
    >>> found.L_f, found.L_J, found.U_J, found.G, found.estimated   # f is quadratic, J = 2 x
    (1.0, 2.0, 4.47213595499958, 9.0, True)
    """
    xs = np.asarray(points, dtype=float)
    if xs.ndim != 2 or xs.shape[0] < 2:
        raise ValueError(f"points must be at least two points, as rows of shape (n, d); got shape {xs.shape}")
    evaluations = [problem.evaluate(x) for x in xs]
    values = np.array([to_numpy(e.constraints) for e in evaluations])
    gradients = np.array([to_numpy(e.gradient()) for e in evaluations])
    jacobians = np.array([to_numpy(e.jacobian()) for e in evaluations])
    i, j = np.triu_indices(len(xs), k=1)
    distance = np.linalg.norm(xs[i] - xs[j], axis=-1)
    apart = distance > 0
    i, j, distance = i[apart], j[apart], distance[apart]

    def steepest(a: Vector) -> float:
        return float(np.max(_sizes(a[i] - a[j]) / distance, initial=0.0))

    sigmas = [regularity(problem, x, e) for x, e in zip(xs, evaluations, strict=True)]
    return Constants(
        L_f=steepest(gradients),
        L_g=steepest(values),
        L_J=steepest(jacobians),
        U_J=float(np.max(_sizes(jacobians))),
        M=float(np.max(_sizes(gradients))),
        G=float(np.max(_sizes(violation(values, problem.num_equalities)) ** 2)),
        sigma=float(np.fmin.reduce(sigmas)),  # the smallest; NaN if all points are feasible
        estimated=True,
    )


def _sizes(a: Vector) -> Vector:
    """Euclidean norms of vectors, spectral norms of matrices; one per leading index."""
    if a.shape[-1] == 0 or a.shape[1] == 0:
        return np.zeros(a.shape[0])
    sizes: Vector = np.linalg.norm(a, axis=-1) if a.ndim == 2 else np.linalg.norm(a, ord=2, axis=(-2, -1))
    return sizes


def _column(k: int, words: str) -> Any:
    return property(lambda run: np.array([row[k] for row in run._rows]), doc=words)


class Trajectory:
    """An observer that keeps the numbers of every iterate for `gdpa.theory.check`: x_r, lambda_r, f, g and sigma_r.

    One backward pass per infeasible iterate, off the method's account. For small problems: it keeps everything.

    >>> from gdpa import GDPA, MaxSteps, problems, solve
    >>> disc, trajectory = problems.get("disc-product"), Trajectory()
    >>> _ = solve(disc.problem, disc.x0, GDPA(), stop=MaxSteps(10), observers=[trajectory])
    >>> len(trajectory), trajectory.x.shape, trajectory.multipliers[0].tolist()
    (11, (11, 2), [0.0])
    """

    def __init__(self) -> None:
        self._rows: list[tuple[Vector, Vector, float, Vector, float]] = []

    def __call__(self, progress: Progress) -> None:
        state = progress.state
        now, problem = state.evaluation, progress.problem
        if state.x.ndim != 1 or problem.num_equalities:
            raise ValueError("a Trajectory follows one problem (x of one axis) with inequality constraints only")
        if now is None or len(self._rows) not in (0, state.step):
            raise ValueError("a Trajectory needs every step and its oracle call; use solve(..., check_every=1)")
        if not self._rows:
            probe = state.probe
            if probe is None or state.step != 1:
                raise ValueError("a Trajectory must watch a run from its first step")
            # x_1, with lambda_1 = 0 as the method starts.
            self._add(problem, probe.x, 0 * probe.multipliers, problem.evaluate(probe.x))
        self._add(problem, state.x, state.multipliers, now)

    def _add(self, problem: Problem, x: Array, multipliers: Array, now: Evaluation) -> None:
        host = [np.array(to_numpy(a), dtype=float) for a in (x, multipliers, now.constraints)]
        self._rows.append((host[0], host[1], float(now.objective), host[2], regularity(problem, x, now)))

    def __len__(self) -> int:
        return len(self._rows)

    x = _column(0, "x_1, x_2, ... as rows.")
    multipliers = _column(1, "lambda_1, lambda_2, ... as rows.")
    objective = _column(2, "f(x_r).")
    constraints = _column(3, "g(x_r) as rows.")
    sigma = _column(4, "sigma_r; NaN if x_r is feasible.")


def tau_bound(constants: Constants) -> float:
    """Return the least tau the theorem allows, ``max{1 - sigma / sqrt(66 U_J^2 + sigma^2), 1/2}``, eq. (retau).

    Since sigma <= U_J it is never below 1 - 1/sqrt(67).

    >>> round(tau_bound(Constants(L_f=1, L_g=1, L_J=0, U_J=1, M=1, G=1, sigma=1)), 4)
    0.8778
    """
    s = constants.sigma
    return max(1 - s / math.sqrt(66 * constants.U_J**2 + s**2), 0.5) if s > 0 else (1.0 if s == 0 else float("nan"))


def vartheta(tau: float) -> float:
    """Return the proof's constant ``max{eta (1 + tau^2/2) / (4 tau), 1}``.

    eta = (1 + theta') (1 - tau)^2 with theta' = tau / (1 - tau), which makes the bound of `multiplier_bound` least.

    >>> vartheta(0.9)
    1.0
    """
    return max((1 - tau) * (1 + tau**2 / 2) / (4 * tau), 1.0)


def multiplier_bound(beta: Any, tau: float, G: float) -> Any:
    """Return ``beta_r sqrt(G) / tau``, a bound of ||lambda_r|| for nondecreasing beta_r and lambda_1 = 0.

    ||lambda_{r+1}|| <= (1 - tau) ||lambda_r|| + beta_r sqrt(G), summed up. The printed Lemma (bdl) has r^(1/3) in
    place of beta_r.

    >>> multiplier_bound(2.0, tau=0.5, G=9.0)
    12.0
    """
    return beta * math.sqrt(G) / tau


def c2_bracket(tau: float, v: float, summed: bool = False) -> float:
    """Return k of (c2), ``1/alpha_r > k beta_r L_g^2``, from eq. (stc1) with gamma_r = tau / beta_r.

    Args:
        tau: the perturbation.
        v: the proof's vartheta, see `vartheta`.
        summed: take the coefficients that adding up the proof's own two lemmas gives,
            ``10 + 40 v / (tau (1 - tau))``, instead of the printed ``10 + (8 v / tau) (1/tau + 2/(1 - tau))``.

    >>> [round(c2_bracket(tau, v=1)) for tau in (0.9, 0.6, 0.1)]
    [198, 99, 988]
    """
    return 10 + (40 * v / (tau * (1 - tau)) if summed else (8 * v / tau) * (1 / tau + 2 / (1 - tau)))


@dataclass(frozen=True)
class Condition:
    """One condition along a run.

    Attributes:
        name: "c1" to "c5".
        statement: the inequality.
        r: the iterations it was looked at.
        actual, required: its two sides there, ``actual >= required`` (``>`` for c2 and c4).
        holds: where it held.
    """

    name: str
    statement: str
    r: Vector
    actual: Vector
    required: Vector
    holds: Vector

    @property
    def since(self) -> int | None:
        """The first r from which it held to the end; None if it did not hold at the end."""
        failed = np.flatnonzero(~self.holds)
        if failed.size == 0:
            return int(self.r[0])
        return None if failed[-1] == len(self.r) - 1 else int(self.r[failed[-1] + 1])

    def __str__(self) -> str:
        unknown = bool(np.isnan(self.required).any())
        when = "unknown" if unknown else "never" if self.since is None else f"from r = {self.since}"
        numbers = f"at r = {self.r[-1]}: {self.actual[-1]:.3g} against {self.required[-1]:.3g}"
        return f"{f'({self.name})':<11} {self.statement:<80} {when:<14} {numbers}"


@dataclass(frozen=True)
class Report:
    """Which conditions of the proof a run satisfied, since when, and the numbers.

    Attributes:
        conditions: by name: "c1", "c2", "c2 summed", "c3", "c4", "c5".
        constants: the constants that they were computed with.
        tau_bound: the least tau that (c4) allows with them.
        sigma: the smallest sigma_r met along the run; NaN if no iterate was infeasible or none was given.
        potential: P_r of eq. (defp) for r = 3, 4, ...; with (c1) and (c2) it decreases up to terms in ||lambda_r||^2
            that the growth of beta_r brings, so with constant steps it decreases outright.
        descent: right minus left side of eq. (recc) at those r; Lemma (cpo) claims it is never negative.
    """

    conditions: dict[str, Condition]
    constants: Constants
    tau_bound: float
    sigma: float
    potential: Vector
    descent: Vector

    @property
    def satisfied(self) -> tuple[str, ...]:
        """The names of the conditions that held at every iteration looked at."""
        return tuple(name for name, condition in self.conditions.items() if condition.holds.all())

    def __str__(self) -> str:
        kind = "estimated, each on the optimistic side" if self.constants.estimated else "given"
        named = ", ".join(f"{f.name} {getattr(self.constants, f.name):.3g}" for f in fields(self.constants)[:-1])
        lines = [f"Conditions of the convergence proof. Constants ({kind}): {named}."]
        lines += [f"  {condition}" for condition in self.conditions.values()]
        if not math.isnan(self.sigma):
            lines.append(f"  smallest sigma_r along the run {self.sigma:.3g}")
        if self.potential.size:
            bad = int((self.descent < 0).sum())
            lines.append(
                f"  potential P_r {self.potential[0]:.6g} -> {self.potential[-1]:.6g}; "
                f"its descent inequality failed at {bad} of {self.descent.size} iterations"
            )
        return "\n".join(lines)


def check(algorithm: Any, constants: Constants, run: Trajectory | int) -> Report:
    """Return the conditions of the convergence proof that a run satisfied, and since when.

    Args:
        algorithm: a `GDPA`, for its schedules alpha_r and beta_r and its tau.
        constants: the problem's constants, known or from `estimate_constants`.
        run: a `Trajectory`, or a number of steps not yet taken: then ||lambda_r|| is replaced by its bound
            `multiplier_bound`, r runs over a grid (all up to 10,000, then geometric), and there is no potential.

    Example:
        >>> from gdpa import GDPA
        >>> exact = Constants(L_f=1, L_g=1, L_J=0, U_J=1, M=2, G=4, sigma=1)
        >>> report = check(GDPA(alpha=1e-3, beta=2.0, tau=0.9), exact, 10_000)
        >>> report.satisfied
        ('c1', 'c2', 'c2 summed', 'c4', 'c5')
        >>> print(report.conditions["c4"])  # doctest: +ELLIPSIS
        (c4)        tau > max{1 - sigma / sqrt(66 U_J^2 + sigma^2), 1/2} ... from r = 1 ... 0.9 against 0.878
    """
    tau = getattr(algorithm, "tau", None)
    if not (callable(getattr(algorithm, "alpha", None)) and callable(getattr(algorithm, "beta", None))) or not (
        isinstance(tau, float) and 0 < tau < 1
    ):
        raise TypeError(f"algorithm must be a GDPA with schedules alpha, beta and a fixed tau, got {algorithm!r}")
    if isinstance(run, int):
        if run < 2:
            raise ValueError(f"run must be a Trajectory or at least 2 steps, got {run!r}")
        r = np.unique(np.append(np.arange(1, min(run, 10_000) + 1), np.geomspace(1, run, 2000).round().astype(int)))
        lengths = None
    else:
        if len(run) < 3:
            raise ValueError(f"the trajectory has {len(run)} points; check needs at least 3")
        r = np.arange(1, len(run))  # the steps taken: step r leads from x_r to x_{r+1}
        lengths = np.linalg.norm(run.multipliers[:-1], axis=-1)
    alpha, beta = (np.array([schedule(int(k)) for k in r]) for schedule in (algorithm.alpha, algorithm.beta))
    lengths = multiplier_bound(beta, tau, constants.G) if lengths is None else lengths
    found = _conditions(algorithm, constants, r, alpha, beta, lengths)
    if isinstance(run, int):
        return Report(found, constants, tau_bound(constants), math.nan, np.zeros(0), np.zeros(0))
    sigma, potential = float(np.fmin.reduce(run.sigma)), _potential(algorithm, constants, run, beta, alpha)
    return Report(found, constants, tau_bound(constants), sigma, *potential)


def _conditions(
    algorithm: Any, c: Constants, r: Vector, alpha: Vector, beta: Vector, lengths: Vector
) -> dict[str, Condition]:
    tau, ones = algorithm.tau, np.ones(len(r))
    beta_0 = algorithm.beta(1)  # beta_r = beta_0 r^(1/3)
    v = vartheta(tau)
    found: dict[str, Condition] = {}

    def add(name: str, statement: str, actual: Vector, required: Vector, strict: bool = False) -> None:
        holds = actual > required if strict else actual >= required
        found[name] = Condition(name, statement, r, actual, required, holds)

    least = c.L_f + (1 - tau) * lengths * c.L_J + beta * c.U_J * c.L_g  # eq. (conal)
    add("c1", "1/alpha_r >= L_f + (1 - tau) ||lambda_r|| L_J + beta_r U_J L_g", 1 / alpha, least)
    for name, summed in (("c2", False), ("c2 summed", True)):
        k = c2_bracket(tau, v, summed)
        add(name, f"1/alpha_r > {k:.4g} beta_r L_g^2", 1 / alpha, k * beta * c.L_g**2, strict=True)  # eq. (stc1)
    with np.errstate(divide="ignore", invalid="ignore"):
        factor = np.maximum(36, 64 * np.divide(c.U_J, c.L_g)) * 13 * v / ((1 - tau) ** 2 * np.square(c.U_J))
        least_alpha = np.where(r > 1, factor / (beta_0 * np.maximum(r - 1.0, 1e-300) ** (4 / 3)), -np.inf)
    add("c3", "alpha_r >= max{36, 64 U_J/L_g} 13 v / ((1-tau)^2 U_J^2 beta_0 (r-1)^4/3)", alpha, least_alpha)  # (rea1)
    statement = "tau > max{1 - sigma / sqrt(66 U_J^2 + sigma^2), 1/2}"  # eq. (retau)
    add("c4", statement, tau * ones, tau_bound(c) * ones, strict=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        # eq. (reofb1), as printed; sqrt(G (1 + 1/theta') / (1 - eta)) = sqrt(G) / tau at the best theta'.
        first = np.divide(2 * (1 - tau) * (c.sigma / 2 + c.U_J), c.sigma) * math.sqrt(c.G) / tau
        least_beta = np.max([first, np.divide(1, c.U_J), np.sqrt(np.divide(2 * c.L_g, c.U_J))])
    statement = "beta_0 >= max{2(1-tau)(sigma/2+U_J)/sigma sqrt(G)/tau, 1/U_J, sqrt(2 L_g/U_J)}"
    add("c5", statement, beta_0 * ones, least_beta * ones)
    return found


def _potential(algorithm: Any, c: Constants, run: Trajectory, beta: Vector, alpha: Vector) -> tuple[Vector, Vector]:
    """Return P_r of eq. (defp) for r = 3 .. and the right minus the left side of eq. (recc) for all but the last."""
    tau, v, n = algorithm.tau, vartheta(algorithm.tau), len(run)
    b = np.concatenate([[np.nan], beta, [algorithm.beta(n)]])  # b[r] = beta_r, r = 1 .. n
    gamma = tau / b
    x, lam = run.x, run.multipliers
    squares = np.concatenate([[np.nan], np.sum(lam**2, axis=-1)])  # squares[r] = ||lambda_r||^2
    moved = np.concatenate([[np.nan, np.nan], np.sum((x[1:] - x[:-1]) ** 2, axis=-1)])  # ||x_r - x_{r-1}||^2
    turned = np.concatenate([[np.nan, np.nan], np.sum((lam[1:] - lam[:-1]) ** 2, axis=-1)])
    values = zip(run.objective, run.constraints, lam, b[1:], strict=True)
    F = np.array([np.nan, *(float(AugmentedLagrangian(y, k, tau).value(f, g)) for f, g, y, k in values)])
    r = np.arange(3, n + 1)
    P = (
        F[r]
        + ((1 - tau) / (2 * b[r - 1]) + 2 * v * (1 - tau) / (b[r - 2] * tau)) * turned[r]
        - (1 - tau) * gamma[r - 1] / 2 * squares[r]
        - 2 * v / b[r - 1] * (gamma[r - 2] / gamma[r - 1] - 1) * squares[r]
        + (b[r - 1] * c.L_g**2 + 4 * v * c.L_g**2 / (gamma[r - 1] * (1 - tau))) * moved[r]
    )
    s = r[:-1]  # eq. (recc) needs r and r + 1
    gate = AugmentedLagrangian(lam[s - 1], b[s][:, None], tau).gate(run.constraints[s - 1])  # S_r
    g_1 = np.sum(np.where(gate, run.constraints[s], 0.0) ** 2, axis=-1)  # ||g_1(x_{r+1})||^2
    a = np.concatenate([[np.nan], alpha])
    left = turned[s + 1] / (2 * b[s]) + moved[s + 1] / (4 * a[s])
    right = (
        P[:-1]
        - P[1:]
        + 2 * v / b[s] * (gamma[s - 2] / gamma[s - 1] - gamma[s - 1] / gamma[s]) * squares[s]
        + (2 * v / b[s - 1] - 2 * v / b[s]) * (gamma[s - 2] / gamma[s - 1] - 1) * squares[s]
        + 6 * v * (3 - 2 * tau) / tau * (1 / b[s - 1] - 1 / b[s]) * turned[s + 1]
        + (b[s + 1] - b[s]) * g_1
        + (1 / b[s] - 1 / b[s + 1]) * (1 - tau) ** 2 * squares[s + 1]
        + (1 - tau) * (gamma[s - 1] - gamma[s]) / 2 * squares[s + 1]
    )
    return P, right - left
