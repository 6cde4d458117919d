"""Adapters: every solver gets the same judge, the same start and the same budget."""

from __future__ import annotations

import multiprocessing
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from benchmarks.nonlinear.judge import Judge, certificate_holds, is_kkt
from benchmarks.nonlinear.suite import Case, load
from benchmarks.supervised import Connection, supervised

Run = Callable[[Judge], None]
#: A process is ended if it is silent for PATIENCE times its budget of wall time and GRACE seconds more: its solver does
#: not return from its own algebra, or the machine is too busy.
PATIENCE, GRACE = 4.0, 30.0


def _scipy(method: str, options: dict[str, Any], judge: Judge) -> None:
    from scipy.optimize import Bounds, NonlinearConstraint, minimize

    case = judge.case
    keywords: dict[str, Any] = {}
    if method == "COBYQA":
        constraints: Any = NonlinearConstraint(lambda x: judge.values(x)[1], -np.inf, 0.0)
    elif method == "SLSQP":
        constraints = {"type": "ineq", "fun": lambda x: -judge.values(x)[1], "jac": lambda x: -judge.jacobian(x)}
        keywords["jac"] = judge.gradient
    else:
        from scipy.optimize import BFGS

        constraints = NonlinearConstraint(lambda x: judge.values(x)[1], -np.inf, 0.0, jac=judge.jacobian, hess=BFGS())
        keywords.update(jac=judge.gradient, hess=BFGS())
    minimize(  # type: ignore[call-overload]  # the method is not known to the type checker
        lambda x: judge.values(x)[0],
        case.x0,
        method=method,
        bounds=Bounds(case.lower, case.upper),
        constraints=constraints,
        options=options,
        **keywords,
    )


def ipopt(judge: Judge, tolerance: float = 1e-9) -> None:
    """IPOPT with a limited-memory approximation of the Hessian."""
    import ipyopt

    case = judge.case
    n, m = len(case.x0), case.m
    rows, columns = np.repeat(np.arange(m), n), np.tile(np.arange(n), m)
    problem = ipyopt.Problem(
        n,
        np.where(np.isinf(case.lower), -2e19, case.lower),
        np.where(np.isinf(case.upper), 2e19, case.upper),
        m,
        np.full(m, -2e19),
        np.zeros(m),
        (rows, columns),
        (np.zeros(0, dtype=int), np.zeros(0, dtype=int)),
        lambda x: judge.values(x)[0],
        lambda x, out: np.copyto(out, judge.gradient(x)),
        lambda x, out: np.copyto(out, judge.values(x)[1]),
        lambda x, out: np.copyto(out, judge.jacobian(x).ravel()),
        ipopt_options={
            "hessian_approximation": "limited-memory",
            "print_level": 0,
            "sb": "yes",
            "tol": tolerance,
            "max_iter": 3000,
        },
    )
    problem.solve(case.x0.copy())


def _nlopt(algorithm: str, judge: Judge) -> None:
    import nlopt

    case = judge.case
    opt = nlopt.opt(getattr(nlopt, algorithm), len(case.x0))

    def objective(x: Any, grad: Any) -> float:
        if grad.size:
            grad[:] = judge.gradient(x)
        return judge.values(x)[0]

    def constraints(out: Any, x: Any, grad: Any) -> None:
        if grad.size:
            grad[:] = judge.jacobian(x)
        out[:] = judge.values(x)[1]

    opt.set_min_objective(objective)
    opt.add_inequality_mconstraint(constraints, np.zeros(case.m))
    opt.set_lower_bounds(case.lower)
    opt.set_upper_bounds(case.upper)
    opt.set_xtol_rel(1e-14)
    if algorithm == "LD_AUGLAG":
        local = nlopt.opt(nlopt.LD_LBFGS, len(case.x0))
        local.set_xtol_rel(1e-10)
        local.set_maxeval(200)
        opt.set_local_optimizer(local)
    opt.optimize(case.x0.copy())


def as_problem(judge: Judge) -> Any:
    """The judge's case as the library's `Problem`: a pullback is one backward."""
    from gdpa import REALS, Box, Evaluation, Problem

    case = judge.case

    def evaluate(x: Any) -> Any:
        f, g = judge.values(x)
        cache: dict[str, Any] = {}

        def pullback(w: Any, objective: Any = 1.0) -> Any:
            judge.backwards += 1
            if not cache:
                cache.update(grad=case.gradient(x), J=judge.known_jacobian(x))
            return objective * cache["grad"] + w @ cache["J"]

        # The collection gives J whole, as `gdpa.minimize` would take it; the judge counts m backwards for it.
        return Evaluation(np.asarray(f), g, pullback, lambda: judge.jacobian(x))

    bounded = np.isfinite(case.lower).any() or np.isfinite(case.upper).any()
    domain = Box(case.lower, case.upper) if bounded else REALS
    return Problem(evaluate, num_constraints=case.m, domain=domain)


def _ours(name: str, options: dict[str, Any], judge: Judge) -> None:
    """One of the library's methods, driven by `gdpa.solve` without any stop rule of its own but the step limit."""
    import gdpa
    from gdpa import get_method

    method = get_method(name)
    algorithm = method(**options) if options else getattr(method, "tuned", method)()
    gdpa.solve(as_problem(judge), judge.case.x0, algorithm, stop=gdpa.MaxSteps(20 * judge.max_forwards), record=0)


SOLVERS: dict[str, Run] = {
    "AdaptiveGDPA": partial(_ours, "adaptive-gdpa", {}),
    "SLSQP": partial(_scipy, "SLSQP", {"maxiter": 1000, "ftol": 1e-15}),
    "trust-constr": partial(_scipy, "trust-constr", {"maxiter": 3000, "gtol": 1e-10, "xtol": 1e-14}),
    "COBYQA": partial(_scipy, "COBYQA", {"maxfev": 1000}),
    "IPOPT": ipopt,
    "NLopt MMA": partial(_nlopt, "LD_MMA"),
    "NLopt CCSAQ": partial(_nlopt, "LD_CCSAQ"),
    "NLopt AUGLAG": partial(_nlopt, "LD_AUGLAG"),
    "GDPA": partial(_ours, "gdpa", {"alpha": 0.01, "beta": 10.0, "tau": 0.01}),  # the best of 80 settings on HS
    "IALM (Sahin)": partial(_ours, "ialm-sahin", {}),
    "IALM (Li)": partial(_ours, "ialm-li", {}),
    "IPPP": partial(_ours, "ippp", {}),
    "IQRC": partial(_ours, "iqrc", {}),
    "PDD": partial(_ours, "pdd", {}),
}


def run(name: str, judge: Judge) -> str:
    """Run a solver until it stops or the judge has seen enough; return how it ended."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            SOLVERS[name](judge)
        except Exception as error:  # a solver that breaks has not solved the problem; the record says how
            ended = f"{type(error).__name__}: {str(error)[:200]}"
        else:
            ended = "stopped by itself"
    # Solvers in C and Fortran hand the judge's own exception on as one of theirs.
    return "budget or tightest level" if judge.finished else ended


#: What the library is asked to certify in `claim`, and the level the judge's own rule is tried at.
ASKED, CHECKED = 1e-6, 1e-4


def claim(case: Case, forwards: int, seconds: float) -> dict[str, Any]:
    """Solve as a user would, until the library says how it ended; check its success by two rules apart from it.

    ``confirmed``: the measure the library states, computed anew. ``strict``: the judge's own rule at `CHECKED`, for
    which a constraint with a multiplier has to be active, however small the multiplier is beside grad f.
    """
    import gdpa

    judge = Judge(case, forwards, seconds, ends=False)
    stop = (gdpa.KKTBelow(ASKED), gdpa.MaxOracleCalls(forwards), gdpa.MaxTime(seconds))
    try:
        result = gdpa.solve(as_problem(judge), case.x0, stop=stop, tolerance=ASKED, record=0)
    except Exception as error:  # no success is claimed; what broke is told
        return {"status": f"{type(error).__name__}: {str(error)[:200]}", "success": False}
    x = np.asarray(result.x)
    return {
        "status": result.status.name,
        "success": result.success,
        "objective": float(result.objective),
        "confirmed": certificate_holds(case, x, np.asarray(result.multipliers), ASKED * (1 + 1e-6)),
        "strict": is_kkt(case, x, CHECKED, case.values(x), case.gradient(x), case.jacobian(x)),
    }


def unit(problem: str, solver: str, forwards: int, seconds: float) -> dict[str, Any]:
    """One solver on one problem in a process of its own; one that has long outrun its seconds is ended."""
    context: Any = multiprocessing.get_context("forkserver")  # modules are loaded once, in the server
    context.set_forkserver_preload(["benchmarks.nonlinear.preload"])
    row = {"problem": problem, "solver": solver, "budget": {"forwards": forwards, "seconds": seconds}, "hits": {}}
    return row | supervised(context, _child, (problem, solver, forwards, seconds), PATIENCE * seconds + GRACE)


def _child(pipe: Connection, problem: str, solver: str, forwards: int, seconds: float) -> None:
    case = load(problem)

    def account(judge: Judge) -> dict[str, Any]:
        return {
            "n": len(case.x0),
            "m": case.m,
            "forwards": judge.forwards,
            "backwards": judge.backwards,
            "seconds": judge.seconds,
            "hits": {f"{level:g}": hit for level, hit in judge.hits.items()},
        }

    judge = Judge(case, forwards, seconds, note=lambda judge: pipe.send(account(judge)))
    pipe.send(account(judge))
    ended = run(solver, judge)
    pipe.send({**account(judge), "ended": ended})
    if solver == "AdaptiveGDPA":
        pipe.send({"claim": claim(case, forwards, seconds)})
    pipe.close()
