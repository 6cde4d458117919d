"""Adapters: every solver gets the same judge, the same start and the same budget, on one thread."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks.large.judge import LEVELS, Finished, Judge, _Counted

Constants = Mapping[str, Any]
Run = Callable[[Judge, Constants], Mapping[str, Any] | None]

#: The paper's methods as `gdpa.paper.contestants` names them. Their constants: `benchmarks.large.tuning`.
PAPER = ("GDPA", "IALM (Sahin)", "IALM (Li)", "IPPP", "IQRC")
#: Forward passes no method here needs more of; the budget of time ends a run before.
STEPS = 10_000_000


def _at(judge: Judge, x: Any) -> _Counted:
    return judge.at(torch.from_numpy(np.array(x, dtype=float)))


def _slsqp(judge: Judge, constants: Constants) -> None:
    from scipy.optimize import minimize

    def objective(x: Any) -> float:
        return float(_at(judge, x).f)

    def gradient(x: Any) -> Any:
        return _at(judge, x).gradient().numpy()

    constraints: Any = {
        "type": "ineq",
        "fun": lambda x: -_at(judge, x).g.numpy(),
        "jac": lambda x: -_at(judge, x).jacobian().numpy(),
    }
    options: Any = {"maxiter": 10_000, "ftol": 1e-15}
    start: Any = judge.case.x0.numpy()
    minimize(objective, start, jac=gradient, method="SLSQP", constraints=constraints, options=options)


def _ipopt(judge: Judge, constants: Constants) -> None:
    import ipyopt

    n, m = len(judge.case.x0), judge.case.m
    problem = ipyopt.Problem(
        n,
        np.full(n, -2e19),
        np.full(n, 2e19),
        m,
        np.full(m, -2e19),
        np.zeros(m),
        (np.repeat(np.arange(m), n), np.tile(np.arange(n), m)),
        (np.zeros(0, dtype=int), np.zeros(0, dtype=int)),
        lambda x: float(_at(judge, x).f),
        lambda x, out: np.copyto(out, _at(judge, x).gradient().numpy()),
        lambda x, out: np.copyto(out, _at(judge, x).g.numpy()),
        lambda x, out: np.copyto(out, _at(judge, x).jacobian().numpy().ravel()),
        ipopt_options={
            "hessian_approximation": "limited-memory",
            "print_level": 0,
            "sb": "yes",
            "tol": 1e-7,
            "max_iter": 100_000,
            **constants,
        },
    )
    problem.solve(judge.case.x0.numpy().copy())


def _nlopt(algorithm: str, judge: Judge, constants: Constants) -> None:
    import nlopt

    opt = nlopt.opt(getattr(nlopt, algorithm), len(judge.case.x0))

    def objective(x: Any, grad: Any) -> float:
        point = _at(judge, x)
        if grad.size:
            grad[:] = point.gradient().numpy()
        return float(point.f)

    def constraints(out: Any, x: Any, grad: Any) -> None:
        point = _at(judge, x)
        if grad.size:
            grad[:] = point.jacobian().numpy()
        out[:] = point.g.numpy()

    opt.set_min_objective(objective)
    opt.add_inequality_mconstraint(constraints, np.zeros(judge.case.m))
    opt.set_xtol_rel(1e-14)
    opt.optimize(judge.case.x0.numpy().copy())


def as_problem(judge: Judge) -> Any:
    """The judge's case as the library's `Problem`, with its Jacobian only where that is one pass."""
    from gdpa import Evaluation, Problem

    def evaluate(x: Any) -> Any:
        point = judge.at(x)
        return Evaluation(point.f, point.g, point.pullback, point.jacobian if judge.case.one_pass else None)

    return Problem(evaluate, num_constraints=judge.case.m)


def _adaptive(judge: Judge, constants: Constants) -> Mapping[str, Any]:
    """Runs until the library itself certifies the tightest level; the judge's own findings are apart from that."""
    import gdpa
    from gdpa import get_method

    judge.end_at_tightest = False
    result = gdpa.solve(
        as_problem(judge),
        judge.case.x0,
        get_method("adaptive-gdpa")(**constants),
        stop=(gdpa.KKTBelow(LEVELS[-1]), gdpa.MaxSteps(STEPS)),
        tolerance=LEVELS[-1],
        record=0,
    )
    return {
        "success": result.success,
        "status": result.status.name,
        "steps": result.steps,
        "certificate": max(float(r) for r in result.certificate.relative),
    }


def _paper(name: str, judge: Judge, constants: Constants) -> None:
    import gdpa
    from gdpa.paper.contestants import build

    gdpa.solve(as_problem(judge), judge.case.x0, build(name, constants), stop=gdpa.MaxSteps(STEPS), record=0)


SOLVERS: dict[str, Run] = {
    "AdaptiveGDPA": _adaptive,
    "IPOPT": _ipopt,
    "NLopt MMA": partial(_nlopt, "LD_MMA"),
    "SLSQP": _slsqp,
    **{name: partial(_paper, name) for name in PAPER},
}


def run(name: str, judge: Judge, constants: Constants) -> dict[str, Any]:
    """Run a solver until it stops or the judge has seen enough; return how it ended and what it says itself."""
    own: Mapping[str, Any] | None = None
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            own = SOLVERS[name](judge, constants)
            ended = "stopped by itself"
        except Exception as error:
            ended = f"{type(error).__name__}: {str(error)[:200]}"  # a solver that breaks has not solved the problem
        if judge.finished:
            ended = "tightest level" if LEVELS[-1] in judge.hits else "budget"
        else:
            with contextlib.suppress(Finished):
                judge.final()
    return {"ended": ended, "own": own}
