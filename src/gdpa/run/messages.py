"""The message of a result: why the run ended, what may help this method, and the residuals."""

from __future__ import annotations

from typing import Any

from gdpa.base.arrays import positive_part
from gdpa.base.status import Status
from gdpa.base.typing import Array
from gdpa.core.certificate import Certificate
from gdpa.core.problem import Evaluation, Problem
from gdpa.oracles.derivative_check import contradiction


def message(status: Status, detail: str, certificate: Certificate) -> str:
    """Return the status' sentence, a sentence of detail, and the residuals."""
    return f"{status.value}{' ' + detail + '.' if detail else ''} {certificate.summary}"


def advice(
    status: Status, algorithm: Any, problem: Problem, x: Array, multipliers: Array, now: Evaluation | None
) -> str:
    """Return what may help after this ending, in terms of what the method has; "" if the status says it all.

    Args:
        status: why the run ended.
        algorithm: the method.
        problem: evaluated at a few points if derivatives are in doubt.
        x, multipliers: where the run ended.
        now: the oracle call at ``x``, if it is known.

    >>> from gdpa import GDPA, problems
    >>> disc = problems.get("disc-product")
    >>> advice(Status.DIVERGING, GDPA(alpha=0.1), disc.problem, disc.x0, disc.multipliers, None)
    'Or the step is too long: reduce alpha or beta'
    """
    if status is Status.DIVERGING:
        steps = [name for name in ("alpha", "beta") if hasattr(algorithm, "alpha") and hasattr(algorithm, name)]
        return f"Or the step is too long: reduce {' or '.join(steps)}" if steps else ""
    if status is Status.MAX_STEPS:
        return "" if type(algorithm).__name__ == "AdaptiveGDPA" else "Or try AdaptiveGDPA, which tunes itself"
    if status is Status.STALLED:
        precision = "The tolerance may be below what the precision of the problem's numbers allows"
        return contradiction(problem, x, multipliers, now) or precision
    if status is Status.LOCALLY_INFEASIBLE:
        now = problem.evaluate(x) if now is None else now
        violation = positive_part(now.constraints, problem.num_equalities)
        return contradiction(problem, x, violation, now, objective=0.0)
    return ""
