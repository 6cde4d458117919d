"""The state of a method with an inner solver, and its one gradient step."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, TypeVar

from gdpa.base.stored import stored
from gdpa.core.problem import Evaluation
from gdpa.methods.base import State
from gdpa.methods.method import Method
from gdpa.methods.nested.forms import Plain, Slacked
from gdpa.methods.nested.solvers import InnerSolver, Iterate
from gdpa.methods.nested.subproblem import Subproblem


@stored
@dataclass(frozen=True, slots=True, kw_only=True)
class NestedState(State):
    """What every double- or triple-loop method carries.

    Attributes:
        inner: where the inner solver stands; its ``x`` and ``v`` hold the slacks, too, in the slack form.
        outer: number of outer iterations done.
    """

    inner: Iterate
    outer: int = 0


class NestedMethod(Method):
    """A method whose loops branch on the data, and so takes one problem at a time."""

    batches: ClassVar[bool] = False


N = TypeVar("N", bound=NestedState)


def inner_step(
    solver: InnerSolver, phi: Subproblem, state: N, form: Plain | Slacked | None = None
) -> tuple[N, Evaluation | None]:
    """Return the state after one gradient step of the inner solver on ``phi``, and the oracle call at its new x.

    The oracle call is that of ``phi.problem`` (with slacks if ``form`` has them), None if the solver made none.
    A step that was cut short does not say how nearly the subproblem is solved.
    """
    form = Plain(phi.problem) if form is None else form
    taken = solver.step(phi, state.inner, form.keep(state.evaluation))
    iterate = replace(taken.iterate, residual=math.inf) if phi.problem.domain.shortens else taken.iterate
    after = replace(
        state,
        step=state.step + 1,
        x=form.point(iterate.x),
        evaluation=form.keep(taken.evaluation),
        probe=form.probe(taken.probe),
        inner=iterate,
    )
    return after, taken.evaluation
