"""Results and callbacks of `gdpa.minimize` in SciPy's words."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.optimize import OptimizeResult, OptimizeWarning

from gdpa.base.status import Status
from gdpa.base.text import warn_user
from gdpa.base.typing import Vector
from gdpa.run.progress import Progress
from gdpa.run.result import Result
from gdpa.scipy.constraints import Canonical, Point

#: ``status`` of the result. As in SLSQP, 0 is success, 9 the limit on steps and 99 the end by a callback.
STATUS_CODES = {
    Status.CONVERGED: 0,
    Status.FAILED: 1,
    Status.MAX_ORACLE_CALLS: 2,
    Status.MAX_TIME: 3,
    Status.LOCALLY_INFEASIBLE: 4,
    Status.DIVERGING: 5,
    Status.INVALID_NUMBER: 6,
    Status.STALLED: 7,
    Status.FEASIBLE: 8,
    Status.MAX_STEPS: 9,
    Status.INTERRUPTED: 98,
    Status.STOPPED: 99,
}
#: The words of SciPy's methods for a callback that ends the run.
_STOPPED = "`callback` raised `StopIteration`"
_FIXED = "All independent variables were fixed by bounds"


class MinimizeResult(OptimizeResult):
    """An `OptimizeResult` that prints each entry once, without second names and the native result."""

    def __repr__(self) -> str:
        make: Callable[..., Any] = OptimizeResult
        return repr(make({k: v for k, v in self.items() if k not in ("grad", "niter", "maxcv", "result")}))


def describe_fixed(canonical: Canonical) -> Any:
    """Return the result of a problem whose variables are all fixed."""
    violation = canonical.violation(canonical.start)
    message = f"{_FIXED}{' at values that satisfy the constraints' if len(canonical.functions) > 1 else ''}."
    if violation > 0:
        message = f"{_FIXED}, but they do not satisfy the constraints (maximum violation: {violation})."
    status = Status.CONVERGED if violation == 0 else Status.LOCALLY_INFEASIBLE
    return describe_point(canonical, canonical.x0, status, message)


def describe(canonical: Canonical, result: Result) -> Any:
    """Return the native result in SciPy's words."""
    certificate, stopped = result.certificate, result.status is Status.STOPPED
    message = f"{_STOPPED} or returned True. {result.message}" if stopped else result.message
    v, bound_v = canonical.split(result.multipliers), certificate.domain_multipliers
    found = describe_point(canonical, result.x, result.status, message, result.steps, v, bound_v)
    found.update(
        success=result.success and not stopped,
        optimality=float(np.abs(canonical.domain.tangent(result.x, -certificate.gradient)).max()),
        multipliers=canonical.to_slsqp(result.multipliers),
        result=result,
    )
    return found


def describe_point(
    canonical: Canonical,
    x: Vector,
    status: Status,
    message: str = "",
    steps: int = 0,
    v: list[Vector] | None = None,
    bound_v: Vector | None = None,
) -> Any:
    """Return the result at the free variables ``x``; values that need further calls are NaN.

    As in SciPy, finite differences leave the derivatives with respect to fixed variables unknown. ``v`` and
    ``bound_v`` are the multipliers of each constraint and of the bounds of the free variables, None if unknown.
    """
    constraints, free, point = canonical.functions[1:], canonical.free, canonical.point(x)
    v = [np.full(value.shape, np.nan) for value in point.values[1:]] if v is None else v
    gradient, all_bound_v = np.full(free.shape, np.nan), np.full(free.shape, np.nan)
    if bound_v is not None:
        gradient, all_bound_v[free] = point.slope(0, full=True)[0].copy(), bound_v
    if bound_v is not None and not canonical.all_free:
        if any(isinstance(function.jac, str) for function in canonical.functions):
            gradient[~free] = np.nan
        else:
            total = gradient.copy()
            for i, w in enumerate(v, start=1):
                total = total + w @ point.slope(i, full=True)
            all_bound_v[~free] = -total[~free]
    make: Callable[..., Any] = MinimizeResult
    bounded, known = canonical.bounded, _measure(canonical, point, steps)
    return make(
        **known,
        x=point.full.copy(),
        jac=gradient,
        grad=gradient,
        success=status is Status.CONVERGED,
        status=STATUS_CODES[status],
        message=message or status.value,
        nhev=0,
        constr=list(map(np.copy, point.values[1:])) + [point.full.copy()] * bounded,
        constr_nfev=[function.nfev for function in constraints] + [0] * bounded,
        constr_njev=[function.njev for function in constraints] + [0] * bounded,
        maxcv=known["constr_violation"],
        optimality=np.nan,
        v=v + [all_bound_v] * bounded,
        multipliers=np.full(len(canonical.index), np.nan),
        result=None,
    )


def _measure(canonical: Canonical, point: Point, steps: int) -> dict[str, Any]:
    """Return the entries that results and callbacks share."""
    objective = canonical.functions[0]
    calls = {"nit": steps, "niter": steps, "nfev": objective.nfev, "njev": objective.njev}
    return {"fun": float(point.values[0][0]), "constr_violation": canonical.violation(point), **calls}


def show(found: Any) -> None:
    """Print a summary."""
    if found.status == STATUS_CODES[Status.MAX_STEPS]:
        warn_user("Maximum number of iterations has been exceeded.", OptimizeWarning)
    print(found.message)
    print(f"fun {found.fun:.8g}  nit {found.nit}  nfev {found.nfev}  njev {found.njev}")
    print(f"optimality {found.optimality:.2e}  constr_violation {found.constr_violation:.2e}")


def make_observer(callback: Callable[..., Any], canonical: Canonical) -> Callable[[Progress], None]:
    """Wrap a callback as SciPy does: by the name of its only parameter, or by how many arguments it needs."""
    try:
        parameters = list(inspect.signature(callback).parameters.values())
    except ValueError:  # some built-ins have no signature
        parameters = []
    by_name = [parameter.name for parameter in parameters] == ["intermediate_result"]
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    make: Callable[..., Any] = OptimizeResult
    needed = [p for p in parameters if p.kind in positional and p.default is inspect.Parameter.empty]

    def observe(progress: Progress) -> None:
        x = canonical.domain.project(progress.state.x)
        full = canonical.fill(x)
        if not by_name and len(needed) < 2:
            callback(full)
            return
        known = _measure(canonical, canonical.point(x), progress.step)
        state = make(x=full, v=canonical.split(progress.state.multipliers), **known)
        if by_name:
            callback(intermediate_result=state)
        elif callback(full.copy(), state) is True:
            raise StopIteration

    return observe
