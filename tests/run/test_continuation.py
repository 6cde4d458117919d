"""A run that was cut and continued is the straight run, for every method: iterates, stop step, verdict and answer."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import pytest

from gdpa import Evaluation, KKTBelow, MaxSteps, Status, get_method, method_names, problems, solve
from tests.methods.linear_problems import linear_problems
from tests.stored import assert_same

STEPS = 60
FEW = (1, 2, 3, 10, 31, 59)
#: Met by some methods before the 60th step, by others not.
TOLERANCE = 1e-2


def method(name: str) -> Any:
    found = get_method(name)
    return found.tuned() if hasattr(found, "tuned") else found()


@lru_cache
def known(name: str) -> Any:
    return linear_problems()["active-bound"] if name == "proximal-admm" else problems.get("HS43")


def run(name: str, steps: int, check_every: int = 1, before: Any = None, problem: Any = None) -> tuple[Any, list[Any]]:
    """The result, and the iterates that were looked at."""
    case, seen = known(name), []

    def watch(progress: Any) -> None:
        seen.append((progress.step, progress.state.x.tobytes(), progress.state.multipliers.tobytes()))

    options = {
        "stop": (KKTBelow(TOLERANCE), MaxSteps(steps)),
        "tolerance": TOLERANCE,
        "observers": [watch],
        "check_every": check_every,
    }
    problem = case.problem if problem is None else problem
    if before is None:
        return solve(problem, case.x0, method(name), **options), seen
    return solve(problem, run=before, **options), seen


def assert_same_end(straight: Any, rest: Any) -> None:
    for part in ("status", "success", "steps", "forwards", "backwards"):
        assert getattr(rest, part) == getattr(straight, part), part
    for part in ("x", "multipliers", "x_last", "multipliers_last", "x_average", "x_best_feasible", "certificate"):
        assert_same(getattr(straight, part), getattr(rest, part), part)
    assert set(rest.history) == set(straight.history)
    for column in set(straight.history) - {"seconds"}:
        assert_same(straight.history[column], rest.history[column], column)


def check_cuts(name: str, cuts: Any) -> None:
    straight, iterates = run(name, STEPS)
    for cut in cuts:
        if cut >= straight.steps:
            continue
        first, before = run(name, cut)
        assert first.steps == cut
        rest, after = run(name, STEPS, before=first.run)
        assert before + after == iterates, cut
        assert_same_end(straight, rest)


class Interrupting:
    """A problem whose n-th pass, forward or backward, is Ctrl-C."""

    def __init__(self, problem: Any, call: int) -> None:
        self.calls, self.call, self._inner = 0, call, problem
        self.problem = replace(problem, evaluate=self._evaluate)

    def _evaluate(self, x: Any) -> Any:
        self._pass()
        now = self._inner.evaluate(x)

        def pullback(w: Any, objective: Any = 1.0) -> Any:
            self._pass()
            return now.pullback(w, objective)

        def jacobian() -> Any:
            self._pass()
            return now.jacobian()

        return Evaluation(now.objective, now.constraints, pullback, jacobian if now.has_cheap_jacobian else None)

    def _pass(self) -> None:
        self.calls += 1
        if self.calls == self.call:
            raise KeyboardInterrupt


def check_interrupts(name: str, calls: Any, check_every: int) -> None:
    straight, iterates = run(name, STEPS, check_every)
    assert [step for step, *_ in iterates] == [s for s in range(1, straight.steps + 1) if s % check_every == 0]
    start = Interrupting(known(name).problem, 0)
    run(name, 0, problem=start.problem)
    cuts = 0
    for call in calls:
        problem = Interrupting(known(name).problem, start.calls + call).problem
        try:
            first, before = run(name, STEPS, check_every, problem=problem)
        except KeyboardInterrupt:  # the run was over and the result being made
            break
        if first.status is not Status.INTERRUPTED:
            break
        cuts += 1
        rest, after = run(name, STEPS, check_every, before=first.run)
        assert before + after == iterates, call
        assert_same_end(straight, rest)
    assert cuts >= 3


#: Every cut of the paper's method and of the default; the other methods follow in the campaigns.
EVERY_CUT = [
    pytest.param(name, marks=() if name in ("gdpa", "adaptive-gdpa") else pytest.mark.campaign)
    for name in method_names()
]


@pytest.mark.parametrize("name", method_names())
def test_a_cut_changes_nothing(name: str) -> None:
    check_cuts(name, FEW)


@pytest.mark.slow
@pytest.mark.parametrize("name", EVERY_CUT)
def test_no_cut_changes_anything(name: str) -> None:
    check_cuts(name, range(1, STEPS))


@pytest.mark.parametrize("name", method_names())
def test_an_interrupt_between_two_looks_changes_nothing(name: str) -> None:
    # By steps a run can be cut only where the rules are asked; Ctrl-C comes at any pass.
    check_interrupts(name, (1, 4, 9, 16, 39), check_every=7)


@pytest.mark.campaign
@pytest.mark.parametrize("check_every", [1, 7])
@pytest.mark.parametrize("name", method_names())
def test_an_interrupt_in_any_pass_changes_nothing(name: str, check_every: int) -> None:
    check_interrupts(name, range(check_every, 3 * STEPS, 5), check_every)


@pytest.mark.parametrize("name", ["gdpa", "adaptive-gdpa"])
@pytest.mark.parametrize("cuts", [(10, 20, 30), tuple(range(1, 13))])
def test_a_run_may_be_cut_many_times(name: str, cuts: tuple[int, ...]) -> None:
    straight, iterates = run(name, STEPS)
    before, seen = None, []
    for cut in (*cuts, STEPS):
        result, looked = run(name, cut, before=before)
        before = result.run
        seen += looked
    assert seen == iterates
    assert_same_end(straight, result)


def test_a_finished_run_has_nothing_left_to_do() -> None:
    straight, _ = run("adaptive-gdpa", STEPS)
    assert straight.status is Status.CONVERGED
    again, seen = run("adaptive-gdpa", STEPS, before=straight.run)
    assert seen == []
    assert_same_end(straight, again)


def test_the_tolerance_may_be_tightened_on_the_way() -> None:
    case = problems.get("HS43")
    rough = solve(case.problem, case.x0, tolerance=1e-2)
    fine = solve(case.problem, run=rough.run, tolerance=1e-8)
    assert rough.success
    assert fine.success
    assert fine.steps > rough.steps
    np.testing.assert_allclose(fine.x, case.solution, atol=1e-6)


@pytest.mark.parametrize("name", ["ialm-sahin", "ippp", "gdpa"])
def test_b13_runs_continued_under_other_rules_reach_the_same_point(name: str) -> None:
    case, rules = problems.get("box-corner"), (KKTBelow(1e-3), MaxSteps(100))
    straight = solve(case.problem, case.x0, name, tolerance=1e-3, stop=rules, record=0)
    for cut in (3, 19, 21, 25, 31, 46):
        first = solve(case.problem, case.x0, name, tolerance=1e-3, stop=MaxSteps(min(cut, straight.steps)), record=0)
        rest = solve(case.problem, run=first.run, stop=rules, record=0)
        assert (rest.steps, rest.status, rest.success) == (straight.steps, straight.status, straight.success)
        assert rest.x.tolist() == straight.x.tolist()
