"""Steps that lead to a value that is not finite are taken back and repeated shorter, a bounded number of times."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gdpa.base.arrays import namespace
from gdpa.base.sets import ConvexSet
from gdpa.base.typing import Array
from gdpa.core.problem import Problem
from gdpa.methods.base import State
from gdpa.methods.method import Method
from gdpa.run.progress import Progress
from gdpa.run.run import Caution

#: A repeated step is this much shorter than the one before ...
CUT = 0.1
#: ... and one step is cut at most this many times. The last one is 1e-10 of its length: no wall is that near.
CUTS = 10


@dataclass(frozen=True)
class Shortened(ConvexSet):
    """The set X for one update whose primal step is cut: the projection goes ``share`` of the way from ``anchor``.

    Every method moves by projecting on X, so this cuts the step of each of them, and the new point is in X because X
    is convex.

    >>> import numpy as np
    >>> from gdpa import Box
    >>> Shortened(Box(0.0, 1.0), anchor=np.array([0.5]), share=0.1).project(np.array([7.0])).tolist()
    [0.55]
    """

    whole: ConvexSet
    anchor: Array
    share: float

    @property
    def shortens(self) -> bool:
        return True

    def project(self, x: Array) -> Array:
        return self.anchor + self.share * (self.whole.project(x) - self.anchor)

    def tangent(self, x: Array, v: Array) -> Array:
        return self.whole.tangent(x, v)


def problem_for(caution: Caution, problem: Problem, state: State) -> Problem:
    """Return the problem as the next update is to see it: with a shorter step if one is repeated."""
    if caution.share == 1.0:
        return problem
    return replace(problem, domain=Shortened(problem.domain, state.x, caution.share))


def trust(caution: Caution, algorithm: object, before: State, looked: int = 0) -> Caution:
    """Return the record after an update from ``before`` whose outcome is finite.

    A state is trusted once such an update has been made: the values and gradients it needs are finite.
    """
    if not (isinstance(algorithm, Method) and algorithm.retried):
        return caution
    old = caution.trusted
    stuck = caution.in_a_row and old is not None and not bool(namespace(old.x).any(before.x != old.x))
    return Caution(
        trusted=replace(before, evaluation=None, probe=None),
        in_a_row=caution.in_a_row if stuck else 0,
        cuts=caution.cuts,
        until=caution.until,
        looked=max(caution.looked, looked),
    )


def go_back(progress: Progress, bad: State) -> bool:
    """Put the run back to its last trusted state; return False if that does not help any more.

    If several updates were made since, they are repeated as they were, each one checked, to find the one that went
    wrong. Else the update from the trusted state is repeated, with a primal step cut by `CUT` once more.
    """
    caution = progress.caution
    state = caution.trusted
    if state is None:
        return False
    progress.state, progress.step, progress.finite = state, state.step, True
    if bad.step > state.step + 2:
        progress.caution = caution._replace(until=bad.step)
        return True
    if caution.in_a_row >= CUTS:
        progress.caution = caution._replace(in_a_row=0)  # whoever continues the run may cut again
        return False
    in_a_row = caution.in_a_row + 1
    progress.caution = caution._replace(
        share=CUT**in_a_row, in_a_row=in_a_row, cuts=caution.cuts + 1, until=max(caution.until, state.step + 2)
    )
    return True
