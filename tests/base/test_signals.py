"""Requests to stop: noted once, obeyed between two steps, passed on to whoever handled them before."""

import signal
import subprocess
import sys
import threading

import numpy as np
import pytest

from gdpa import GDPA, MaxSteps, Status, StopRequest, from_functions, minimize, solve

INT, TERM = signal.SIGINT, signal.SIGTERM


@pytest.fixture
def handled():
    """The signals that a handler of the program's own receives."""
    seen = []
    before = {number: signal.signal(number, lambda number, frame: seen.append(number)) for number in (INT, TERM)}
    yield seen
    for number, handler in before.items():
        signal.signal(number, handler)


def test_nothing_is_noted_without_a_signal():
    before = signal.getsignal(INT)
    with StopRequest() as stop:
        assert not stop
        assert signal.getsignal(INT) is not before
    assert (stop.number, stop.exit_code) == (0, 0)
    assert signal.getsignal(INT) is before


def test_the_first_interrupt_is_noted_and_the_second_raises(capfd):
    with StopRequest() as stop:
        signal.raise_signal(INT)
        assert stop.exit_code == 130
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(INT)
    assert "Interrupt again" in capfd.readouterr().err
    assert signal.getsignal(INT) is signal.default_int_handler


def test_a_request_inside_another_is_the_same_request():
    with StopRequest(INT) as outer:
        with StopRequest(INT) as inner:
            signal.raise_signal(INT)
            assert inner
        assert outer
        with StopRequest(INT) as later:
            assert later
    with StopRequest(INT) as fresh:
        assert not fresh


@pytest.mark.parametrize("number", [INT, TERM])
def test_a_handler_of_the_program_gets_the_signal_afterwards(handled, number):
    with StopRequest() as stop:
        signal.raise_signal(number)
        assert stop.number == number
        assert handled == []
    assert handled == [number]


def test_a_second_sigterm_does_not_disturb_the_save(handled):
    with StopRequest() as stop:
        signal.raise_signal(TERM)
        signal.raise_signal(TERM)
    assert stop.exit_code == 143
    assert handled == [TERM]


def test_ignored_signals_stay_ignored():
    before = signal.signal(INT, signal.SIG_IGN)
    try:
        with StopRequest() as stop:
            signal.raise_signal(INT)
            assert not stop
    finally:
        signal.signal(INT, before)


def test_outside_the_main_thread_nothing_is_noted():
    seen = []

    def work():
        with StopRequest() as stop:
            seen.append((bool(stop), solve(problem(), np.array([3.0, 1.0]), stop=MaxSteps(2)).steps))

    with StopRequest():
        signal.raise_signal(INT)
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert seen == [(False, 2)]


FORKS = """
import os, signal
from gdpa.base.signals import StopRequest

with StopRequest():
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, b"!")
        signal.pause()
        os._exit(0)
    os.read(reader, 1)
    os.kill(child, signal.SIGTERM)
    print(os.WTERMSIG(os.waitpid(child, 0)[1]))
"""


def test_a_forked_child_ends_by_sigterm():
    # In a process of its own: torch and JAX, which the tests load, do not survive a fork.
    done = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, timeout=60, check=True)
    assert int(done.stdout) == TERM


def problem(interrupt_at=0):
    """min x'x subject to x_0 >= 1; the objective's call number ``interrupt_at`` is the moment of Ctrl-C."""
    calls = 0

    def f(x):
        nonlocal calls
        calls += 1
        if calls == interrupt_at:
            signal.raise_signal(INT)
        return x @ x

    return from_functions(f, lambda x: 1 - x[:1], gradient=lambda x: 2 * x, jacobian=lambda x: -np.eye(1, 2))


X0, METHOD = np.array([3.0, 1.0]), GDPA(alpha=1e-2, beta=1.0)


@pytest.mark.parametrize("call", [1, 2, 3, 7])
def test_solve_finishes_its_step_and_continues_to_the_same_end(call, tmp_path):
    options = {"stop": MaxSteps(50), "tolerance": 1e-12}
    first = solve(problem(call), X0, METHOD, checkpoint=tmp_path / "run", **options)
    assert first.status is Status.INTERRUPTED
    assert first.steps <= call
    assert f"saved in {tmp_path / 'run'}-0000000" in first.message
    straight = solve(problem(), X0, METHOD, **options)
    rest = solve(problem(), checkpoint=tmp_path / "run", resume=True, **options)
    assert rest.x.tobytes() == straight.x.tobytes()
    assert rest.steps == straight.steps


CONSTRAINT = {"type": "ineq", "fun": lambda x: 1 - x @ x}


class Objective:
    """Counts its calls; the one with number ``interrupt_at`` is the moment of Ctrl-C."""

    def __init__(self, interrupt_at=0):
        self.calls, self.interrupt_at = 0, interrupt_at

    def __call__(self, x):
        self.calls += 1
        if self.calls == self.interrupt_at:
            signal.raise_signal(INT)
        return (x[0] - 2) ** 2 + x[1] ** 2 + x[0] * x[1]


def test_every_moment_of_minimize_gives_a_result():
    fun = Objective()
    whole = minimize(fun, [0.0, 1.0], constraints=CONSTRAINT)
    assert whole.success
    for call in range(1, fun.calls + 1):
        found = minimize(Objective(call), [0.0, 1.0], constraints=CONSTRAINT)
        assert found.status in (98, 0)
        assert np.isfinite(found.x).all()
        assert found.nit <= whole.nit
    assert signal.getsignal(INT) is signal.default_int_handler


def test_best_of_ends_with_what_it_has():
    found = solve(problem(40), X0, METHOD, stop=MaxSteps(20), best_of=5)
    assert "Ended after" in found.message


def test_minimize_saves_and_resumes(tmp_path):
    saving = {"checkpoint": tmp_path / "run", "every": 1}
    start = {"fun": Objective(), "x0": [0.0, 1.0], "constraints": CONSTRAINT}
    straight = minimize(**start, options={"checkpoint": tmp_path / "straight"})
    minimize(**start, options={**saving, "maxiter": 3})
    rest = minimize(**start, options={**saving, "resume": True})
    assert straight.success
    assert (rest.success, rest.nit, rest.x.tobytes()) == (True, straight.nit, straight.x.tobytes())


@pytest.mark.parametrize("entry", ["solve", "minimize"])
def test_b11_a_handler_that_raises_does_not_cost_the_result(entry):
    class StopNowError(Exception):
        pass

    def stop(number, frame):
        raise StopNowError

    calls = []

    def fun(x):
        calls.append(x)
        if len(calls) == 4:
            signal.raise_signal(INT)
        return float((x[0] - 2) ** 2 + x[1] ** 2)

    def gradient(x):
        return np.array([2 * (x[0] - 2), 2 * x[1]])

    entries = {
        "solve": lambda: solve(from_functions(fun, gradient=gradient), np.ones(2), GDPA(), stop=MaxSteps(100)),
        "minimize": lambda: minimize(fun, [0.3, 0.4], jac=gradient, method="gdpa", options={"maxiter": 100}),
    }
    before = signal.signal(INT, stop)
    try:
        with pytest.raises(StopNowError) as raised:
            entries[entry]()
    finally:
        signal.signal(INT, before)
    partial = raised.value.partial_result
    assert (partial.steps if entry == "solve" else partial.nit) < 100
    assert np.isfinite(partial.x).all()
