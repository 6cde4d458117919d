"""The protocol of a method: ``init`` and ``update``, the state between updates, and the probe of an update.

No loop, clock, print or plot lives in this folder: `gdpa.solve` owns them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeVar, runtime_checkable

from gdpa.base.status import Status
from gdpa.base.stored import stored
from gdpa.base.typing import Array, Operand
from gdpa.core.problem import Evaluation, Problem


@stored
class Probe(NamedTuple):
    """Free by-products of one update: a point, a multiplier estimate and the Lagrangian gradient there.

    A primal step at x with weights w has just computed grad f(x) + J(x)^T w. That is the Lagrangian gradient at
    (x, w), so (x, w) has its KKT residuals at no further oracle call.

    Attributes:
        x: the point.
        multipliers: w, the estimate used in the step.
        objective: f(x).
        constraints: g(x).
        gradient: grad f(x) + J(x)^T w.
        weight: this point's weight in the averaged iterate (the paper's 1/beta_r).
        evaluation: the oracle call at ``x``, so that a certificate of this point makes no second one.
    """

    x: Array
    multipliers: Array
    objective: Array
    constraints: Array
    gradient: Array
    weight: float = 1.0
    evaluation: Evaluation | None = None


@stored
@dataclass(frozen=True, kw_only=True)
class State:
    """The state between two updates; each method adds its own symbols.

    Attributes:
        step: number of updates done so far.
        x: the current iterate.
        multipliers: the current multipliers (the paper's lambda).
        evaluation: the oracle call at ``x`` that the next update needs, or ``None`` to have it made again
            (a state read from a file has none).
        probe: free by-products of the last update; ``None`` before the first update and if a
            method's step does not compute a Lagrangian gradient. `KKTBelow` then attempts a certificate now and then.
        verdict: a status with which the method itself ends the run (it found the problem locally infeasible, or
            no step makes progress); ``None`` to go on. The loop still recomputes the certificate.
    """

    step: int
    x: Array
    multipliers: Array
    evaluation: Evaluation | None = field(metadata={"stored": False})
    probe: Probe | None = None
    verdict: Status | None = None


S = TypeVar("S", bound=State)


@runtime_checkable
class Algorithm(Protocol[S]):
    """A frozen dataclass of hyper-parameters with ``init`` and ``update``. One gradient step per update."""

    def init(self, problem: Problem, x0: Operand) -> S:
        """Return the state before the first update."""
        ...

    def update(self, problem: Problem, state: S) -> S:
        """Return the state after one gradient step; never changes ``state``."""
        ...
