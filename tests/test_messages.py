"""Mistakes of new users: each is answered at once by argument, value, reason and remedy.

The answer is the text of the exception or warning, or the message of the result. `python -m tests.test_messages` prints
all of them.
"""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import LinearConstraint

import gdpa.torch
from gdpa.torch import Limits, at_least

START = [0.5, 0.5]


def f(x):
    return (x[0] - 2) ** 2 + x[1] ** 2


def df(x):
    return np.array([2 * (x[0] - 2), 2 * x[1]])


def minimize(fun=f, x0=START, **options):
    return gdpa.minimize(fun, x0, **options)


def under(fun=lambda x: 1 - x @ x, **entries):
    """Return the answer to a dict constraint."""
    return minimize(constraints={"type": "ineq", "fun": fun, **entries})


def after(calls, bad):
    """Return f, whose values after some calls are bad."""
    left = iter(range(calls))
    return lambda x: f(x) if next(left, None) is not None else bad(x)


def interrupted():
    """Return f, whose third call is interrupted from the keyboard."""
    left = iter((1, 2, 3))

    def value(x):
        if next(left, None) == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return f(x)

    return value


RIGHT = {"jac": df, "constraints": {"type": "ineq", "fun": lambda x: 1 - x @ x, "jac": lambda x: -2 * x}}

SCIPY = {
    "fun returns a vector": (lambda: minimize(lambda x: x), ["fun", "one number", "(2,)"]),
    "fun returns None": (lambda: minimize(lambda x: None), ["fun", "None", "return statement"]),
    "shape of jac": (lambda: minimize(jac=lambda x: np.zeros(3)), ["jac of fun", "(3,)", "one column per variable"]),
    "constraint's jac transposed": (
        lambda: under(lambda x: np.append(x, 1.0), jac=lambda x: np.zeros((2, 3))),
        ["jac of constraints['fun']", "(3, 2)", "(2, 3)", "one row per value"],
    ),
    "constraint returns a list": (lambda: under(lambda x: [1 - x @ x]), ["Converged"]),
    "constraint returns (1, 1)": (lambda: under(lambda x: np.array([[1 - x @ x]])), ["Converged"]),
    "constraint returns (2, 2)": (
        lambda: under(lambda x: np.ones((2, 2))),
        ["constraints['fun']", "vector", "(2, 2)", ".ravel()"],
    ),
    "constraint returns a bool": (
        lambda: under(lambda x: x @ x < 1),
        ["constraints['fun']", "True", "x @ x - 1 instead of x @ x <= 1"],
    ),
    "constraint is a function": (
        lambda: minimize(constraints=lambda x: 1 - x @ x),
        ["constraints must be", "function", "{'type': 'ineq', 'fun': your function}"],
    ),
    "type of a dict": (
        lambda: minimize(constraints={"type": "inequality", "fun": f}),
        ["constraints['type']", "'inequality'", "'ineq' (fun >= 0)"],
    ),
    "key of a dict": (
        lambda: minimize(constraints={"type": "ineq", "func": f}),
        ["no 'fun'", "['func'] have no effect", "give the function"],
    ),
    "bounds one tuple": (lambda: minimize(bounds=(0, 1)), ["bounds", "2 pairs (low, high)", "(0, 1)"]),
    "bounds reversed": (
        lambda: minimize(bounds=[(1, 0), (0, 1)]),
        ["bounds", "upper bound is less", "Swap or relax them at index 0"],
    ),
    "one pair of bounds": (lambda: minimize(bounds=[(0, 1)]), ["Converged"]),
    "columns of LinearConstraint": (
        lambda: minimize(constraints=LinearConstraint(np.ones((1, 3)), 0, 1)),
        ["constraints.A", "2 columns, one per variable", "(1, 3)"],
    ),
    "x0 of two dimensions": (lambda: minimize(x0=np.ones((2, 2))), ["x0", "one dimension", "(2, 2)", "flatten"]),
    "x0 a string": (lambda: minimize(x0="start"), ["x0", "real numbers", "'start'"]),
    "x0 with NaN": (lambda: minimize(x0=[np.nan, 0.0]), ["x0 must be finite", "nan"]),
    "tol a string": (lambda: minimize(tol="1e-6"), ["tol must be a positive number", "'1e-6'"]),
    "tol zero": (lambda: minimize(tol=0), ["tol must be a positive number", "got 0"]),
    "tol negative": (lambda: minimize(tol=-1), ["tol must be a positive number", "got -1"]),
    "name of an option": (lambda: minimize(options={"maxit": 5}), ["'maxit'", "did you mean 'maxiter'"]),
    "constraint=": (lambda: minimize(constraint={}), ["'constraint'", "did you mean 'constraints'"]),
    "name of a method": (
        lambda: minimize(method="adaptve"),
        ["method 'adaptve'", "did you mean 'adaptive-gdpa'", "there are"],
    ),
    "wrong jac of fun": (
        lambda: minimize(**{**RIGHT, "jac": lambda x: -df(x)}),
        ["contradict the derivatives", "slope", "check_derivatives", "the option check"],
    ),
    "wrong jac of a constraint": (
        lambda: under(jac=lambda x: 2 * x),
        ["contradict the derivatives", "slope", "check_derivatives", "the option check"],
    ),
    "values of float32": (lambda: minimize(lambda x: np.float32(f(x)), **RIGHT), ["Converged"]),
    "rounded values": (lambda: minimize(lambda x: round(f(x), 3)), ["rounded", "around", "return more digits"]),
    "integer values": (lambda: minimize(lambda x: int(100 * f(x))), ["rounded", "around 2", "return more digits"]),
    "NaN at x0": (lambda: minimize(lambda x: np.nan), ["At the start x0, fun is nan", "start elsewhere"]),
    "NaN later": (
        lambda: minimize(after(3, lambda x: np.nan), **RIGHT),
        ["The objective is nan", "Add bounds", "start elsewhere"],
    ),
    "infeasible": (
        lambda: under(lambda x: -1 - x @ x),
        ["Locally infeasible", "constraints['fun'][0] >= lb by 1", "Check the constraints against each other"],
    ),
    "unbounded": (lambda: minimize(lambda x: x[0]), ["Diverging", "unbounded below", "add bounds"]),
    "fun raises": (
        lambda: minimize(after(3, lambda x: 1 / 0), **RIGHT),
        ["division by zero", "after", "partial_result holds the best point"],
    ),
    "Ctrl-C": (
        lambda: minimize(interrupted(), **RIGHT, options={"disp": False}),
        ["Interrupted from the keyboard", "the best point so far is returned"],
    ),
}

X, Y = torch.linspace(-1, 1, 16).reshape(8, 2), torch.tensor([1.0, 0.0] * 4)


class Training:
    """A training run with one limit, and what a user may do in it."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.net = torch.nn.Linear(2, 1)
        self.sgd = torch.optim.SGD(self.net.parameters(), lr=0.1)
        self.limits = Limits(recall=at_least(0.9))
        self.opt = gdpa.torch.constrain(self.sgd, self.limits)

    @property
    def loss(self):
        return self.net(X).square().mean()

    @property
    def scores(self):
        return self.net(X).squeeze(1)[Y == 1]

    @property
    def recall(self):
        return self.scores.sigmoid().mean()

    def lagrangian(self, recall=None):
        return self.opt.lagrangian(self.loss, {"recall": self.recall if recall is None else recall})

    def without_gradient(self):
        with torch.no_grad():
            recall = self.recall
        self.lagrangian(recall)

    def f_alone(self):
        loss = self.loss
        self.opt.lagrangian(loss, {"recall": self.recall})
        loss.backward()
        self.opt.step()

    def without_backward(self):
        self.lagrangian()
        self.opt.step()

    def without_lagrangian(self):
        self.loss.backward()
        self.opt.step()
        return str(self.opt.report())

    def twice(self):
        self.lagrangian()
        self.lagrangian()


NO_GRADIENT = ["'recall' does not require a gradient", "detached", "no_grad", "0/1 rate", "gdpa.torch.terms"]

TORCH = {
    "value detached": (lambda run: run.lagrangian(run.recall.detach()), NO_GRADIENT),
    "value under no_grad": (Training.without_gradient, NO_GRADIENT),
    "a rate of decisions": (lambda run: run.lagrangian((run.scores > 0).float().mean()), NO_GRADIENT),
    "value by .item()": (
        lambda run: run.lagrangian(run.recall.item()),
        ["'recall'", "tensor computed from the parameters", "0.", "leave out .item()"],
    ),
    "name missing": (
        lambda run: run.opt.lagrangian(run.loss, {}),
        ["the values lack ['recall']", "give one for each of"],
    ),
    "a name too many": (
        lambda run: run.opt.lagrangian(run.loss, {"recall": run.recall, "accuracy": run.recall}),
        ["unknown ['accuracy']", "keep metrics without a limit in a dict of their own"],
    ),
    "f.backward()": (Training.f_alone, ["did not go through the loss that lagrangian returned", "write loss ="]),
    "lagrangian twice": (Training.twice, ["twice without a step between", 'accumulate="exact"', "zero_grad()"]),
    "no backward": (Training.without_backward, ["no backward pass", "Call loss.backward() before opt.step()"]),
    "never lagrangian": (
        Training.without_lagrangian,
        ["No step has used the constraints yet", "call lagrangian(f, g)", "0 of 1 limits met, 1 absent"],
    ),
    "f a vector": (
        lambda run: run.opt.lagrangian(run.net(X), {"recall": run.recall}),
        ["f has shape (8, 1)", "expected a scalar", "f.mean()"],
    ),
    "value a vector": (lambda run: run.lagrangian(run.scores), ["'recall' has shape (4,)", "one number", "size="]),
    "Limits(recall=0.9)": (lambda run: Limits(recall=0.9), ["limit of 'recall'", "at_most, at_least", "got 0.9"]),
    "constrain(model)": (
        lambda run: gdpa.torch.constrain(run.net, run.limits),
        ["optimizer must be a torch optimizer", "Linear", "gdpa.torch.GDPA(params, constraints)"],
    ),
    "no limits": (lambda run: gdpa.torch.constrain(run.sgd), ["constraints", "None", "Limits(recall=at_least(0.9))"]),
    "a dict of numbers": (
        lambda run: gdpa.torch.constrain(run.sgd, {"recall": 0.9}),
        ["constraints must be Limits", "{'recall': 0.9}", "Limits({'recall': at_least(0.9)})"],
    ),
    "LBFGS": (
        lambda run: gdpa.torch.constrain(torch.optim.LBFGS(run.net.parameters()), run.limits),
        ["LBFGS", "closure several times", "SGD, Adam, AdamW"],
    ),
    "dual_rate negative": (
        lambda run: gdpa.torch.constrain(run.sgd, run.limits, dual_rate=-1),
        ["dual_rate must be a positive finite number", "-1"],
    ),
    "name of a rule": (
        lambda run: gdpa.torch.constrain(run.sgd, run.limits, rule="feedbak"),
        ["rule must be one of", "'feedback'", "got 'feedbak'"],
    ),
    "lagrangian of a pair": (
        lambda run: run.opt.lagrangian((run.loss, {"recall": run.recall})),
        ["two arguments", "opt.lagrangian(*losses(...))"],
    ),
}


def solve(function, x0=None):
    x0 = torch.zeros(2, dtype=torch.float64) if x0 is None else x0
    return gdpa.solve(gdpa.from_torch(function), x0)


FROM_TORCH = {
    "f alone": (lambda: solve(lambda x: x @ x), ["pair (f, g)", "Tensor", "x[..., :0] if there are no constraints"]),
    "f a float": (
        lambda: solve(lambda x: ((x @ x).item(), x[:1] - 1)),
        ["f must be a tensor computed from x", "0.0", "return a tensor"],
    ),
    "g a list": (
        lambda: solve(lambda x: (x @ x, [x[0] - 1])),
        ["g must be a tensor computed from x", "[tensor(-1.", "torch.stack of its parts"],
    ),
    "f detached": (
        lambda: solve(lambda x: ((x @ x).detach(), x[:1] - 1)),
        ["f changes with x but has no gradient", "detached", "compute it from x by torch operations"],
    ),
    "x0 a list": (
        lambda: solve(lambda x: (x @ x, x[:1] - 1), [0.0, 0.0]),
        ["must be a torch tensor", "give the start as torch.as_tensor(x0, dtype=torch.float64)"],
    ),
}


def fit(name, *arguments, classes=2, groups=None, **options):
    pytest.importorskip("sklearn")
    module = importlib.import_module("gdpa.sklearn")
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((60, 2)), np.arange(60) % classes
    arguments = tuple(a(module) if callable(a) else a for a in arguments)
    return getattr(module, name)(*arguments, **options).fit(X, y, **({} if groups is None else {"groups": groups}))


PRIORITY, CONSTRAINED = "NeymanPearsonClassifier", "ConstrainedClassifier"

SKLEARN = {
    "priority": (
        lambda: fit(PRIORITY, 7, classes=3),
        ["priority must be one of the classes [0, 1, 2] of y", "got 7"],
    ),
    "threshold": (
        lambda: fit(PRIORITY, 0, {1: 1.5, 2: 0.1}, classes=3),
        ["threshold of class 1", "strictly between 0 and 1", "1.5"],
    ),
    "few samples to calibrate": (
        lambda: fit(PRIORITY, 0, 0.05, calibration="order-statistic"),
        ["class 1 has 15 samples to hold out", "needs 59", "give more samples, or raise calibration_fraction"],
    ),
    "no groups": (
        lambda: fit(CONSTRAINED, lambda sk: sk.demographic_parity(0.1)),
        ["groups is missing", "a limit refers to groups", "fit(X, y, groups=...)"],
    ),
    "limits a number": (lambda: fit(CONSTRAINED, 0.1), ["limits must be a limit such as demographic_parity", "0.1"]),
}

COMMANDS = {
    "experiment": (["reproduce", "mnp"], ["no experiment is called 'mnp'", "there are mnpc, budget"]),
    "preset": (["reproduce", "mnpc", "--preset", "tune"], ["--preset", "printed, tuned, both", "got 'tune'"]),
    "seeds": (["reproduce", "mnpc", "--seeds", "0"], ["--seeds must be at least 1", "got 0"]),
    "data": (["data", "fetch", "mnits"], ["no data set is called 'mnits'", "there are mnist"]),
    "folder": (["report", "nothing-here"], ["nothing-here is not a folder", "one that gdpa reproduce wrote"]),
    "command": (["reproducee"], ["No such command 'reproducee'", "Did you mean 'reproduce'"]),
}

LIBRARIES = {
    "torch": ("import gdpa.torch", ["gdpa.torch needs torch", "pip install torch", "'.[torch]'"]),
    "matplotlib": (
        "import gdpa; gdpa.minimize(lambda x: x @ x, [1.0]).result.plot()",
        ["result.plot() needs matplotlib", "pip install matplotlib", "'.[plot]'"],
    ),
    "sklearn": ("import gdpa.sklearn", ["gdpa.sklearn needs sklearn", "pip install scikit-learn"]),
    "typer": ("import gdpa.__main__ as m; m.main()", ["command line of gdpa needs typer", "'.[experiments]'"]),
}


def run_command(words):
    pytest.importorskip("typer")
    from typer.testing import CliRunner

    from gdpa.paper.cli import app

    return " ".join(CliRunner().invoke(app, words).output.replace("│", " ").split())


def train(provoke):
    return provoke(Training())


def run_without(library, code):
    hidden = f"import sys; sys.modules[{library!r}] = None; "
    command = [sys.executable, "-c", hidden + code]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120).stderr


#: The provocation of each mistake, and words that its answer must contain.
MISTAKES: dict[str, tuple[Callable[[], Any], list[str]]] = {
    **SCIPY,
    **{name: (partial(train, do), words) for name, (do, words) in TORCH.items()},
    **{f"from_torch: {name}": case for name, case in FROM_TORCH.items()},
    **{f"sklearn: {name}": case for name, case in SKLEARN.items()},
    **{f"gdpa: {name}": (partial(run_command, args), words) for name, (args, words) in COMMANDS.items()},
}
MISSING = {
    f"without {name}": (lambda name=name, code=code: run_without(name, code), words)
    for name, (code, words) in LIBRARIES.items()
}


def answer(provoke: Callable[[], Any]) -> str:
    """Return all that the user reads: the exception with its notes, or the result's message, and warnings."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        try:
            result = provoke()
            said = [getattr(result, "message", None) or str(result)]
        except Exception as error:
            said = [str(error), *getattr(error, "__notes__", ())]
    return "\n".join([*said, *(str(warning.message) for warning in seen)])


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_answered_by_argument_value_reason_and_remedy(name):
    provoke, words = MISTAKES[name]
    said = answer(provoke)
    assert [word for word in words if word not in said] == [], said


@pytest.mark.process
@pytest.mark.parametrize("name", MISSING)
def test_a_missing_library_is_answered_by_the_command_that_installs_it(name):
    provoke, words = MISSING[name]
    said = answer(provoke)
    assert [word for word in words if word not in said] == [], said


if __name__ == "__main__":
    for name, (provoke, _) in {**MISTAKES, **MISSING}.items():
        print(f"{name}\n    {answer(provoke).strip()}")
