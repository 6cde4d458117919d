"""One table, one row a method: every method passes the same tests."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gdpa import (
    REALS,
    Ball,
    Box,
    KKTBelow,
    MaxSteps,
    Method,
    Simplex,
    certify,
    from_functions,
    get_method,
    method_names,
    solve,
)
from gdpa.methods.nested import GROW, SHRINK, FixedMomentum
from gdpa.oracles.library import TestProblem, get, names
from gdpa.run.oracle import CountingOracle, Counts
from tests.libraries import Library, to_numpy
from tests.methods.linear_problems import linear_problems
from tests.stored import through_a_file

SIX = ("disc-product", "disc-square", "HS10", "HS12", "HS43", "box-corner", "portfolio")
OPEN = ("disc-product", "disc-square", "HS10", "HS12", "HS14", "HS43")  # X is the whole space
LINEAR = ("least-norm", "product", "active-bound", "quartic", "indefinite-qp", "HS76-slack")


@dataclass(frozen=True)
class Row:
    """What is expected of a method.

    problems: at least five certified problems of its class, which the tuned preset solves to ``tolerance``.
    fixed: constants with which every update is one forward and one backward pass.
    rejects: name of a bad problem -> the message expected.
    probes: how many of 60 updates yield a probe, at least.
    backwards: backward passes of an update with fixed constants.
    """

    problems: tuple[str, ...]
    tolerance: float = 1e-3
    steps: int = 5000
    fixed: dict[str, Any] = dataclasses.field(default_factory=dict)
    rejects: dict[str, str] = dataclasses.field(default_factory=dict)
    probes: int = 60
    backwards: int = 1


NESTED = {"batch": "a batch of problems"}
WHOLE_SPACE = {"simplex": "X is Simplex and the method's model is for the whole space"}
INNER = FixedMomentum(0.01, 0.1)
TABLE = {
    "adaptive-gdpa": Row(
        ("disc-product", "disc-square", "HS10", "HS12", "HS43", "HS71", "HS113", "box-corner", "portfolio"), 1e-6, 200,
        fixed={"step": "pullback"}, rejects=NESTED, probes=10,
    ),
    "gdpa": Row(("disc-product", "disc-square", "HS11", "HS22", "HS43", "box-corner"), 1e-2),
    "damped-gdpa": Row(("disc-product", "HS11", "HS12", "HS22", "HS43", "box-corner"), steps=10_000),
    "ialm-sahin": Row(SIX, fixed={"inner": INNER}, rejects=NESTED),
    "ialm-li": Row(SIX, fixed={"inner": INNER}, rejects=NESTED),
    "ippp": Row(SIX, fixed={"inner": INNER}, rejects=NESTED),
    "iqrc": Row(
        ("disc-product", "disc-square", "HS11", "HS22", "HS76"), 1e-2, 20_000, probes=1,
        rejects={**NESTED, "equality": "2 constraints are equalities", "none": "has no constraints"},
    ),
    "proximal-admm": Row(
        LINEAR, fixed={"step": 0.01},
        rejects={
            "inequality": "3 of its 3 constraints are inequalities.*add_slacks",
            "nonlinear": "its constraints are not linear",
            "simplex": "X is Simplex and the method is for boxes",
        },
    ),
    "pdd": Row(SIX, fixed={"inner": INNER}, rejects=NESTED),
    "gda": Row(SIX, fixed={"alpha": 0.01}),
    "hibsa": Row(SIX, fixed={"b": 100.0}),
    "smoothed-gda": Row(SIX, fixed={"step": 0.01}),
    "penalty": Row(("disc-product", "disc-square", "HS11", "HS22", "HS43", "portfolio"), 1e-2, fixed={"alpha": 0.01}),
    "linearized-alm": Row(SIX, fixed={"alpha": 0.01}),
    "ppl": Row(SIX, fixed={"eta": 0.01}),
    "switching-subgradient": Row(
        ("disc-product", "disc-square", "HS11", "HS12", "HS22"), 1e-2, probes=20,
        rejects={**NESTED, "equality": "2 constraints are equalities", "none": "has no constraints"},
    ),
    "lipal": Row(OPEN, fixed={"eta": 0.01}, rejects={**NESTED, **WHOLE_SPACE}, backwards=2),
    "directional-decomposition": Row(OPEN, fixed={"eta": 0.01}, rejects={**NESTED, **WHOLE_SPACE}, backwards=2),
}  # fmt: skip
ALL = pytest.mark.parametrize("name", TABLE)


@lru_cache
def problem_called(name: str) -> TestProblem:
    return get(name) if name in names() else linear_problems()[name]


def first_problem(name: str) -> TestProblem:
    return problem_called(TABLE[name].problems[0])


def bad_problem(kind: str) -> tuple[Any, Any]:
    """A problem that some method must refuse."""
    x0 = np.zeros(2)

    def make(g: Any, J: Any, **options: Any) -> Any:
        return from_functions(lambda x: x @ x, g, gradient=lambda x: 2 * x, jacobian=J, **options)

    row, rows = np.ones((1, 2)), np.eye(2)
    return {
        "batch": (get("disc-product").problem, np.zeros((3, 2))),
        "equality": (make(lambda x: rows @ x, lambda x: rows, num_equalities=2), x0),
        "none": (from_functions(lambda x: x @ x, gradient=lambda x: 2 * x), x0),
        "inequality": (get("HS76").problem, get("HS76").x0),
        "nonlinear": (make(lambda x: np.array([x @ x - 1]), lambda x: 2 * x[None], num_equalities=1), x0),
        "simplex": (make(lambda x: row @ x - 1, lambda x: row, num_equalities=1, domain=Simplex()), np.array([1.0, 0])),
    }[kind]


def test_every_method_of_the_comparison_has_a_row() -> None:
    assert set(method_names()) == set(TABLE)
    assert all(issubclass(get_method(name), Method) for name in TABLE)


def test_the_page_of_the_methods_shows_the_same_refusals() -> None:
    from docs.registry import conformance

    head, _, *lines = ([cell.strip() for cell in line.strip("|").split("|")] for line in conformance().splitlines())
    assert [line[0] for line in lines] == [f"`{name}`" for name in method_names()]
    kinds = {"batches": "batch", "inequalities": "inequality", "equalities": "equality"}
    for line, row in zip(lines, TABLE.values(), strict=True):
        answers = dict(zip(head, line, strict=True))
        sets = answers.pop("sets besides the whole space")
        assert (sets != "any") == ("simplex" in row.rejects), line
        for column, answer in list(answers.items())[1:]:
            assert answer == ("refused" if kinds.get(column) in row.rejects else "yes"), line


def test_the_table_of_theorems_has_every_method_and_every_rule() -> None:
    from gdpa.methods import class_names
    from gdpa.torch import rules

    page = (Path(__file__).parents[2] / "docs" / "theory.md").read_text(encoding="utf-8")
    table = page.split("## The methods and their theorems")[1].split("**AdaptiveGDPA")[0]
    named = [word for line in table.splitlines() if "|" in line for word in re.findall(r"`(\w+)", line.split("|")[-2])]
    penalties = (rules.StormPenalty, rules.SpiderPenalty)
    expected = {*class_names(), *(kind.__name__ for kind in (*rules.RULES.values(), *penalties))}
    assert sorted(named) == sorted(expected)


@pytest.mark.parametrize("name", LINEAR)
def test_the_linear_problems_certify_themselves(name: str) -> None:
    problem = problem_called(name)
    certificate = certify(problem.problem, problem.solution, problem.multipliers)
    assert certificate.holds(1e-8)
    np.testing.assert_allclose(certificate.multipliers, problem.multipliers, atol=1e-8)


CASES = [pytest.param(name, problem, id=f"{name}-{problem}") for name, row in TABLE.items() for problem in row.problems]


@pytest.mark.parametrize(("name", "problem"), CASES)
def test_tuned_preset_solves_certified_problems(name: str, problem: str) -> None:
    row, known = TABLE[name], problem_called(problem)
    assert len(row.problems) >= 5
    stop = (KKTBelow(row.tolerance), MaxSteps(row.steps))
    result = solve(
        known.problem, known.x0, get_method(name).tuned(), stop=stop, tolerance=row.tolerance, record=0
    )  # fmt: skip
    assert result.success, result.message
    assert known.multipliers is not None
    error = np.abs(result.multipliers - known.multipliers).max()
    assert error <= 0.05 * np.abs(known.multipliers).max()


@ALL
def test_a_fixed_step_costs_one_forward_and_one_backward(name: str) -> None:
    method = dataclasses.replace(get_method(name)(), **TABLE[name].fixed)
    known = first_problem(name)
    oracle = CountingOracle(known.problem)
    state = method.init(oracle.problem, known.x0)
    at_start = dataclasses.replace(oracle.method)
    backwards = 0
    for _ in range(100):
        before, state = state, method.update(oracle.problem, state)
        # A line search pulls back at accepted points only, and once more when its multipliers change.
        accepted = name != "adaptive-gdpa" or state.probe is not None
        backwards += accepted + (name == "adaptive-gdpa" and state.lagrangian is not before.lagrangian)
    # Of the oracle calls at the start and at the next point, one is on this account and one is not, unless the method
    # has no use for the call at the next point.
    unused = 0 if state.evaluation is not None else 1
    assert oracle.method.forwards - at_start.forwards == 100 - unused
    # IQRC pulls back its multipliers at the end of an outer iteration.
    assert oracle.method.backwards - at_start.backwards == TABLE[name].backwards * backwards + (
        state.outer if name == "iqrc" else 0
    )
    assert oracle.measuring == Counts()


BACKTRACKING = ["proximal-admm", "gda", "hibsa", "smoothed-gda", "penalty", "linearized-alm", "ppl"]


@pytest.mark.parametrize("name", [*BACKTRACKING, "ialm-sahin", "ialm-li", "ippp", "pdd"])
def test_backtracking_costs_one_forward_per_doubling_and_one_where_there_is_momentum(name: str) -> None:
    method = get_method(name).tuned()
    known = first_problem(name)
    oracle = CountingOracle(known.problem)
    state = method.init(oracle.problem, known.x0)
    for _ in range(50):
        oracle.method.forwards = oracle.method.backwards = 0
        before = getattr(state, "inner", state)
        state = method.update(oracle.problem, state)
        after = getattr(state, "inner", state)
        doublings = oracle.method.forwards - 1 - int(getattr(before, "age", 0) > 0)
        grown = float(before.lipschitz) * GROW**doublings
        assert oracle.method.backwards == 1
        assert any(np.isclose(float(after.lipschitz), grown * factor) for factor in (1.0, SHRINK))


@pytest.mark.parametrize(("name", "kind"), [(name, kind) for name, row in TABLE.items() for kind in row.rejects])
def test_rejects_what_it_cannot_solve(name: str, kind: str) -> None:
    problem, x0 = bad_problem(kind)
    with pytest.raises(ValueError, match=f"cannot solve this problem.*{TABLE[name].rejects[kind]}"):
        solve(problem, x0, get_method(name)())


def same(a: Any, b: Any) -> bool:
    """Bitwise equality of two states; the oracle call and the probe are made anew after loading."""
    if dataclasses.is_dataclass(a):
        fields = [f.name for f in dataclasses.fields(a) if f.name not in ("evaluation", "probe")]
        return type(a) is type(b) and all(same(getattr(a, f), getattr(b, f)) for f in fields)
    if isinstance(a, tuple):
        return len(a) == len(b) and all(same(u, v) for u, v in zip(a, b, strict=True))
    return np.array_equal(a, b, equal_nan=True) if isinstance(a, (np.ndarray, float)) else a == b


def presets(name: str) -> dict[str, Any]:
    method = get_method(name)
    printed = {kind: method.printed(kind) for kind in method.printed_constants}
    return {"tuned": method.tuned(), **printed}


PRESETS = [pytest.param(name, kind, id=f"{name}-{kind}") for name in TABLE for kind in presets(name)]


@pytest.mark.parametrize(("name", "kind"), PRESETS)
def test_saved_and_loaded_run_is_the_straight_run_bit_for_bit(name: str, kind: str, tmp_path: Any) -> None:
    method, known = presets(name)[kind], first_problem(name)
    straight = method.init(known.problem, known.x0)
    for _ in range(120):
        straight = method.update(known.problem, straight)
    state = method.init(known.problem, known.x0)
    for r in range(120):
        state = method.update(known.problem, state)
        if r % 7 == 3:  # inside inner loops and at their ends
            state = through_a_file(state, tmp_path / "state")
    assert same(straight, state)


@pytest.mark.parametrize("step", ["jacobian", "pullback"])
def test_a_run_of_long_vectors_is_the_straight_run_bit_for_bit(step: str, tmp_path: Any) -> None:
    """Above 100 variables the states of AdaptiveGDPA share the array of their pairs."""
    a = np.linspace(0, 1, 133)
    problem = from_functions(
        lambda x: (x**4).sum() + (x - a) @ (x - a),
        lambda x: np.array([1 - x.sum(), x @ x - 40]),
        gradient=lambda x: 4 * x**3 + 2 * (x - a),
        jacobian=lambda x: np.stack([-np.ones_like(x), 2 * x]),
    )
    method = get_method("adaptive-gdpa")(memory=4, step=step)
    straight = saved = method.init(problem, 2 * a)
    for r in range(30):
        straight, saved = method.update(problem, straight), method.update(problem, saved)
        if r % 3 == 1:
            saved = through_a_file(saved, tmp_path / "state")
    assert same(straight, saved)
    assert straight.curvature.pairs == 4


@ALL
def test_update_leaves_the_old_state_alone(name: str) -> None:
    method, known = get_method(name).tuned(), first_problem(name)
    state = method.init(known.problem, known.x0)
    x, multipliers = state.x.copy(), state.multipliers.copy()
    once, twice = method.update(known.problem, state), method.update(known.problem, state)
    assert same(once, twice)
    assert np.array_equal(state.x, x)
    assert np.array_equal(state.multipliers, multipliers)


@ALL
def test_probes_are_true(name: str) -> None:
    """What a step says it learned for free is what the problem says there."""
    method, known = get_method(name).tuned(), first_problem(name)
    state = method.init(known.problem, known.x0)
    seen = 0
    for _ in range(60):
        state = method.update(known.problem, state)
        if state.probe is None:
            continue
        seen += 1
        there = known.problem.evaluate(state.probe.x)
        np.testing.assert_allclose(state.probe.objective, there.objective)
        np.testing.assert_allclose(state.probe.constraints, there.constraints, atol=1e-14)
        np.testing.assert_allclose(state.probe.gradient, there.pullback(state.probe.multipliers), atol=1e-12)
    assert seen >= TABLE[name].probes


@ALL
@pytest.mark.parametrize("other", ["torch", "jax"])
def test_every_array_library_gives_the_same_iterates(name: str, other: str) -> None:
    linear = name == "proximal-admm"

    def formulas(stack: Any, x: Any) -> Any:
        a, b = x[..., 0], x[..., 1]
        return a**2 - a * b, stack([a + b - 1] if linear else [a**2 + b**2 - 2, a - 0.3])

    def gradient(x: Any) -> Any:
        return np.stack([2 * x[..., 0] - x[..., 1], -x[..., 0]], axis=-1)

    def jacobian(x: Any) -> Any:
        return np.ones((1, 2)) if linear else np.array([2 * x, [1.0, 0.0]])

    method = get_method(name).tuned()
    domain = REALS if "simplex" in TABLE[name].rejects and not linear else Box(-5.0, 5.0)
    runs = []
    for library in (Library("numpy"), Library(other)):
        problem = library.problem(formulas, gradient, jacobian, num_equalities=int(linear), domain=domain)
        state = method.init(problem, library.array([0.5, 1.5]))
        # JAX dispatches slowly, and AdaptiveGDPA has converged to rounding after seven steps.
        for _ in range((3 if other == "jax" else 7) if name == "adaptive-gdpa" else 30 if other == "torch" else 8):
            state = method.update(problem, state)
        runs.append(state)
    ours, theirs = runs
    np.testing.assert_allclose(to_numpy(theirs.x), ours.x, rtol=1e-9)
    np.testing.assert_allclose(to_numpy(theirs.multipliers), ours.multipliers, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["gda", "hibsa", "smoothed-gda", "penalty", "linearized-alm", "ppl"])
def test_a_batch_is_its_members(name: str) -> None:
    """Leading axes are independent problems, each with its own backtracked step."""
    from gdpa import Evaluation, Problem

    centers = np.array([[2.0, 0.0], [0.0, 30.0]])

    def problem(c: Any) -> Any:
        def evaluate(x: Any) -> Any:
            def pullback(w: Any, objective: float = 1.0) -> Any:
                return objective * (x - c) + 2 * w * x

            return Evaluation(((x - c) ** 2).sum(-1) / 2, (x * x).sum(-1, keepdims=True) - 1, pullback)

        return Problem(evaluate, num_constraints=1)

    method = get_method(name).tuned()
    x0 = np.full((2, 2), 2.0)
    together = method.init(problem(centers), x0)
    for _ in range(30):
        together = method.update(problem(centers), together)
    for i, c in enumerate(centers):
        alone = method.init(problem(c), x0[i])
        for _ in range(30):
            alone = method.update(problem(c), alone)
        np.testing.assert_allclose(together.x[i], alone.x, rtol=1e-12)
        np.testing.assert_allclose(together.multipliers[i], alone.multipliers, rtol=1e-12)


def test_domains_that_are_products_of_boxes_pass_and_balls_do_not() -> None:
    from gdpa import Product, ProximalADMM

    row = np.ones((1, 2))

    def problem(domain: Any) -> Any:
        return from_functions(
            lambda x: x @ x, lambda x: row @ x - 1, gradient=lambda x: 2 * x, jacobian=lambda x: row,
            num_equalities=1, domain=domain,
        )  # fmt: skip

    ProximalADMM().init(problem(Product([(1, REALS), (1, Box(0.0, 1.0))])), np.zeros(2))
    with pytest.raises(ValueError, match="X is Ball"):
        ProximalADMM().init(problem(Ball(1.0)), np.zeros(2))
