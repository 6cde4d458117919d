"""One table of bad inputs: each is refused before the first step, with the message expected."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from gdpa import (
    GDPA,
    AdaptiveGDPA,
    Box,
    Constant,
    Evaluation,
    MaxSteps,
    NonNegative,
    Problem,
    Simplex,
    Status,
    from_functions,
    solve,
)


def problem(
    f=lambda x: x @ x, g=lambda x: x[:1] - 1, gradient=lambda x: 2 * x, jacobian=lambda x: np.eye(1, len(x)), **options
):
    return from_functions(f, g, gradient=gradient, jacobian=jacobian, **options)


@dataclass
class BadInput:
    """What is handed to `solve` and the error it must give (ErrorOptimizerInput of torch.optim, in our words)."""

    name: str
    kind: type[Exception]
    message: str
    problem: Any = problem
    x0: Any = (1.0, 2.0)
    options: Any = dict


def raw(f, g):
    return lambda: Problem(lambda x: Evaluation(f(x), g(x), lambda w, objective=1.0: 2 * x))


def some_run():
    return solve(problem(), np.ones(2), GDPA(), stop=MaxSteps(1)).run


NAN = float("nan")
TABLE = [
    BadInput("x0 missing", TypeError, "x0 is missing: give a start point or a run", x0=None),
    BadInput("x0 NaN", ValueError, "x0 must be finite, got NaN or infinity", x0=[1.0, NAN]),
    BadInput("x0 infinite", ValueError, "x0 must be finite, got NaN or infinity", x0=[1.0, np.inf]),
    BadInput("x0 empty", ValueError, r"x0 must have at least one coordinate, got shape \(0,\)", x0=np.zeros(0)),
    BadInput("x0 empty list", ValueError, r"x0 must have at least one coordinate, got shape \(0,\)", x0=[]),
    BadInput("x0 a number", ValueError, r"x0 must have at least one coordinate, got shape \(\)", x0=1.0),
    BadInput(
        "x0 integer", TypeError, r"x0 must be an array of floating-point numbers, got int64; convert it", x0=[1, 2]
    ),
    BadInput("x0 complex", TypeError, "x0 must be an array of floating-point numbers, got complex128", x0=[1j, 2.0]),
    BadInput("x0 text", TypeError, "x0 must be an array of floating-point numbers, got str", x0="start"),
    BadInput(
        "x0 not of the box's size",
        ValueError,
        "the box has 3 bounds but x has 2 coordinates",
        problem=lambda: problem(domain=Box(np.zeros(3), np.ones(3))),
    ),
    BadInput(
        "x0 not of the simplex' rows",
        ValueError,
        "a simplex of 2 rows cannot hold 3 coordinates; rows must divide it",
        problem=lambda: problem(domain=Simplex(rows=2)),
        x0=[1.0, 2.0, 3.0],
    ),
    BadInput(
        "g a scalar",
        ValueError,
        r"constraints must return a vector, got shape \(\); wrap a single value",
        problem=lambda: problem(g=lambda x: x[0]),
    ),
    BadInput(
        "g a scalar, raw", ValueError, "return a vector even for a single", problem=raw(lambda x: x @ x, lambda x: x[0])
    ),
    BadInput(
        "g a list, raw",
        TypeError,
        "the constraints must be a floating-point",
        problem=raw(lambda x: x @ x, lambda x: [1.0]),
    ),
    BadInput(
        "g of the wrong length",
        ValueError,
        "the constraints have length 1, expected 3",
        problem=lambda: Problem(problem().evaluate, num_constraints=3),
    ),
    BadInput(
        "g NaN at the start",
        ValueError,
        r"the constraint g\[0\] is nan at the start x0; choose a start where f, g and their",
        problem=lambda: problem(g=lambda x: x[:1] * NAN),
    ),
    BadInput(
        "g infinite at the start, by name",
        ValueError,
        r"the constraint risk is inf at the start x0",
        problem=lambda: problem(g=lambda x: np.array([np.inf]), names=("risk",)),
    ),
    BadInput(
        "f NaN at the start",
        ValueError,
        "the objective is nan at the start x0",
        problem=lambda: problem(f=lambda x: NAN),
    ),
    BadInput(
        "f infinite at the start",
        ValueError,
        "the objective is inf at the start x0",
        problem=lambda: problem(f=lambda x: np.inf),
    ),
    BadInput(
        "f a vector",
        ValueError,
        r"objective must return one number, got shape \(2,\)",
        problem=lambda: problem(f=lambda x: x),
    ),
    BadInput("f a vector, raw", ValueError, "one number per problem", problem=raw(lambda x: x, lambda x: x)),
    BadInput(
        "gradient of the wrong shape",
        ValueError,
        r"gradient must return shape \(2,\), got \(3,\)",
        problem=lambda: problem(gradient=lambda x: np.zeros(3)),
    ),
    BadInput(
        "gradient NaN at the start",
        ValueError,
        "the gradient of the objective is not finite at the start x0",
        problem=lambda: problem(gradient=lambda x: x * NAN),
    ),
    BadInput(
        "jacobian NaN at the start",
        ValueError,
        "the Jacobian of the constraints is not finite at the start x0",
        problem=lambda: problem(jacobian=lambda x: np.full((1, 2), NAN)),
    ),
    BadInput(
        "jacobian of the wrong shape",
        ValueError,
        r"jacobian must return shape \(1, 2\), got \(2, 1\)",
        problem=lambda: problem(g=lambda x: x[:1] + 9, jacobian=lambda x: np.zeros((2, 1))),
    ),
    BadInput(
        "jacobian of the wrong shape for inactive constraints",
        ValueError,
        r"jacobian must return shape \(1, 2\), got \(2, 1\)",
        problem=lambda: problem(g=lambda x: x[:1] - 9, jacobian=lambda x: np.zeros((2, 1))),
    ),
    BadInput(
        "too many equalities",
        ValueError,
        "num_equalities must be an integer between 0 and num_constraints=1, got 2",
        problem=lambda: problem(num_equalities=2),
    ),
    BadInput(
        "duplicate names",
        ValueError,
        r"names must differ from each other, got \('a', 'a'\)",
        problem=lambda: problem(g=lambda x: x, jacobian=lambda x: np.eye(2), names=("a", "a")),
    ),
    BadInput(
        "names of another number",
        ValueError,
        "names has 2 entries for 1 constraints; give one name each",
        problem=lambda: problem(names=("a", "b")),
    ),
    BadInput(
        "bounds crossed", ValueError, "lower bound 1.0 exceeds upper", problem=lambda: problem(domain=Box(1.0, 0.0))
    ),
    BadInput("bounds NaN", ValueError, "bounds must not be NaN", problem=lambda: problem(domain=Box(NAN, 0.0))),
    BadInput(
        "stop a name", TypeError, "stop must be a stop rule or several, got 'kkt'", options=lambda: {"stop": "kkt"}
    ),
    BadInput("stop a number", TypeError, "stop must be a stop rule or several, got 100", options=lambda: {"stop": 100}),
    BadInput("stop empty", TypeError, r"stop must be a stop rule or several, got \[\]", options=lambda: {"stop": []}),
    BadInput(
        "stop with a stranger",
        TypeError,
        r"stop must be a stop rule or several, got \[MaxSteps\(limit=3\), 3\]",
        options=lambda: {"stop": [MaxSteps(3), 3]},
    ),
    BadInput(
        "tolerance zero", ValueError, "tolerance must be a positive number, got 0", options=lambda: {"tolerance": 0}
    ),
    BadInput(
        "tolerance NaN", ValueError, "tolerance must be a positive number, got nan", options=lambda: {"tolerance": NAN}
    ),
    BadInput("record negative", ValueError, "record must be an integer of at least 0", options=lambda: {"record": -1}),
    BadInput(
        "check_every zero",
        ValueError,
        "check_every must be an integer of at least 1",
        options=lambda: {"check_every": 0},
    ),
    BadInput("tau -1", ValueError, "tau must lie in", options=lambda: {"algorithm": GDPA(tau=-1.0)}),
    BadInput("tau 2", ValueError, "tau must lie in", options=lambda: {"algorithm": GDPA(tau=2.0)}),
    BadInput("alpha 0", ValueError, "alpha must be a positive", options=lambda: {"algorithm": GDPA(alpha=0.0)}),
    BadInput("beta NaN", ValueError, "beta must be a positive", options=lambda: {"algorithm": GDPA(beta=NAN)}),
    BadInput(
        "algorithm unknown", ValueError, "method 'gpda' is unknown; did you mean", options=lambda: {"algorithm": "gpda"}
    ),
    BadInput(
        "algorithm a class",
        TypeError,
        r"algorithm must be the name of a method or have init and update.*write GDPA\(\)",
        options=lambda: {"algorithm": GDPA},
    ),
    BadInput("x0 and a run", ValueError, "give x0 or run, not both", options=lambda: {"run": some_run()}),
    BadInput(
        "multipliers0 and a run",
        ValueError,
        "give x0 or run, not both: a run brings its own point and multipliers",
        x0=None,
        options=lambda: {"run": some_run(), "multipliers0": np.ones(1)},
    ),
    BadInput(
        "run a state",
        TypeError,
        r"run must be a Run, such as result\.run or load_run\(path\), got \w*State",
        x0=None,
        options=lambda: {"run": some_run().state},
    ),
    BadInput(
        "run of another method",
        ValueError,
        r"run belongs to GDPA\(.* and cannot be continued by GDPA\(.*; leave algorithm out",
        x0=None,
        options=lambda: {"run": some_run(), "algorithm": GDPA(tau=0.25)},
    ),
    BadInput(
        "run of a problem with another number of constraints",
        ValueError,
        "run belongs to a problem with 2 variables and 1 constraints, 0 of them equalities; this one has 2, 2 and 0",
        x0=None,
        problem=lambda: Problem(problem().evaluate, num_constraints=2),
        options=lambda: {"run": some_run(), "algorithm": None},
    ),
    BadInput(
        "run of a problem with another kind of constraints",
        ValueError,
        "run belongs to a problem with 2 variables and 1 constraints, 0 of them equalities; this one has 2, 1 and 1",
        x0=None,
        problem=lambda: Problem(problem().evaluate, num_constraints=1, num_equalities=1),
        options=lambda: {"run": some_run(), "algorithm": None},
    ),
    BadInput(
        "run of another objective",
        ValueError,
        "run belongs to another problem: at its point f was",
        x0=None,
        problem=lambda: problem(f=lambda x: x @ x + 1),
        options=lambda: {"run": some_run(), "algorithm": None},
    ),
    BadInput(
        "run of another constraint",
        ValueError,
        "run belongs to another problem: at its point g was",
        x0=None,
        problem=lambda: problem(g=lambda x: x[:1] - 2),
        options=lambda: {"run": some_run(), "algorithm": None},
    ),
    BadInput(
        "run in another dimension",
        ValueError,
        "the box has 3 bounds but x has 2 coordinates",
        x0=None,
        problem=lambda: problem(domain=Box(np.zeros(3), np.ones(3))),
        options=lambda: {"run": some_run(), "algorithm": None},
    ),
    BadInput(
        "resume without files",
        ValueError,
        r"resume=True continues from the files of checkpoint=\.\.\.; give that, and no run",
        options=lambda: {"resume": True},
    ),
    BadInput(
        "multipliers0 of another length",
        ValueError,
        "multipliers0 must be 1 finite numbers, one per constraint, got",
        options=lambda: {"multipliers0": np.ones(2)},
    ),
    BadInput(
        "multipliers0 NaN",
        ValueError,
        "multipliers0 must be 1 finite numbers, one per constraint, got",
        options=lambda: {"multipliers0": [NAN]},
    ),
    BadInput(
        "x_scale zero",
        ValueError,
        "x_scale must be one positive length or one for each coordinate of x, got 0",
        options=lambda: {"x_scale": 0.0},
    ),
    BadInput("problem a function", TypeError, "problem must be a Problem, got", problem=lambda: lambda x: x),
]


@pytest.mark.parametrize("method", [GDPA, AdaptiveGDPA])
@pytest.mark.parametrize("case", TABLE, ids=lambda case: case.name)
def test_bad_input_is_refused_before_the_first_step(case, method, monkeypatch):
    def no_step(self, problem, state):
        raise AssertionError("a step was taken")

    with pytest.raises(case.kind, match=case.message):  # noqa: PT012 - where it is refused is the solver's business
        own, options = case.problem(), case.options()
        monkeypatch.setattr(method, "update", no_step)
        with np.errstate(all="ignore"):
            solve(own, case.x0, **{"algorithm": method(), **options})


@pytest.mark.parametrize("x0", [[1.0, 2.0], (1.0, 2.0), np.ones(2), np.ones(2, dtype=np.float32)])
@pytest.mark.parametrize("domain", [Box(0.0, 9.0), Box([0.0, 0.0], [1.0, 1.0]), NonNegative(), Simplex(rows=2)])
def test_good_input_passes(x0, domain):
    result = solve(problem(domain=domain, names=("a",)), x0, GDPA(), stop=[MaxSteps(2)], tolerance=1, record=0)
    assert result.steps == 2


# On the way: its own status or the user's own exception, and never a lost best iterate.


def late(value, part):
    calls = [0]

    def f(x):
        calls[0] += 1
        return value if part == "f" and calls[0] > 15 else x @ x

    def g(x):
        if part == "g" and calls[0] > 15:
            return value
        return x[:1] - 1

    return problem(f, g)


@pytest.mark.parametrize("value", [NAN, np.inf, -np.inf])
@pytest.mark.parametrize(("part", "message"), [("f", "The objective is"), ("g", "The constraint g[0] is")])
def test_a_number_lost_on_the_way_ends_the_run_with_the_best_point(part, value, message):
    own = late(value if part == "f" else np.array([value]), part)
    with np.errstate(all="ignore"):
        result = solve(own, [1.0, 2.0], GDPA(alpha=Constant(0.05)), stop=MaxSteps(100))
    assert result.status is Status.INVALID_NUMBER
    assert message in result.message
    assert not result.success
    assert 0 < np.linalg.norm(result.x) < 1.0
    assert np.isfinite(result.x_last).all()


@pytest.mark.parametrize(
    ("value", "message"),
    [(np.zeros(2), "the constraints have length 2, expected 1"), (np.float64(1.0), "constraints must return a vector")],
)
def test_a_shape_that_changes_on_the_way_raises_with_the_best_point_attached(value, message):
    with pytest.raises(ValueError, match=message) as caught:
        solve(late(value, "g"), [1.0, 2.0], GDPA(alpha=Constant(0.05)), stop=MaxSteps(100))
    result = caught.value.partial_result
    assert result.status is Status.FAILED
    assert result.steps > 10
    assert np.linalg.norm(result.x) < 1.0
