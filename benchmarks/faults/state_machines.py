"""State machines: random sequences of calls on `solve`, `minimize`, the torch optimizer and files of runs.

    python -m benchmarks.faults.state_machines KIND SEED OPERATIONS        one record as JSON

Each operation is followed by the invariants of its machine. Hypothesis draws the sequences and shrinks one that breaks
an invariant.
"""

from __future__ import annotations

import io
import json
import shutil
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from scipy.optimize import Bounds, NonlinearConstraint

import gdpa
from benchmarks.faults.line import Row
from gdpa import problems
from gdpa.files import DamagedFileError, load
from gdpa.files.checkpoints import Checkpoints

#: Operations of one sequence, and how many sequences are drawn at a time.
LENGTH, SEQUENCES = 40, 5


class Machine(RuleBasedStateMachine):
    """Counts operations; ``setUp`` of a subclass is its ``initialize`` rule."""

    operations: ClassVar[int] = 0

    def count(self) -> None:
        type(self).operations += 1


class Failing:
    """A problem whose n-th call raises an exception; 0 never."""

    def __init__(self, problem: Any, call: int, error: BaseException) -> None:
        self.calls, self.call, self.error, self._inner = 0, call, error, problem
        self.problem = replace(problem, evaluate=self._evaluate)

    def _evaluate(self, x: Any) -> Any:
        self.calls += 1
        if self.calls == self.call:
            raise self.error
        return self._inner.evaluate(x)


class SolveMachine(Machine):
    """Runs that are advanced, saved, interrupted and broken are the straight run at every step."""

    @initialize(
        name=st.sampled_from(["HS12", "HS43", "disc-product", "HS22"]),
        method=st.sampled_from([gdpa.AdaptiveGDPA(), gdpa.GDPA(alpha=0.01, beta=2.0), gdpa.DampedGDPA()]),
    )
    def begin(self, name: str, method: Any) -> None:
        self.known, self.method = problems.get(name), method
        self.run: Any = None
        self.folder = Path(tempfile.mkdtemp(prefix="gdpa-machine-"))

    def _go(self, problem: Any, steps: int) -> Any:
        done = 0 if self.run is None else self.run.step
        options: dict[str, Any] = {"stop": (gdpa.KKTBelow(1e-8), gdpa.MaxSteps(done + steps)), "tolerance": 1e-8}
        if self.run is None:
            return gdpa.solve(problem, self.known.x0, self.method, **options)
        return gdpa.solve(problem, run=self.run, **options)

    def _keep(self, result: Any) -> None:
        before = 0 if self.run is None else self.run.step
        self.run = result.run
        assert result.steps == self.run.step >= before
        assert np.isfinite(result.x).all()
        assert (result.multipliers[self.known.problem.num_equalities :] >= 0).all()
        assert not result.success or result.certificate.holds(1e-8)
        steps = list(result.history.get("step", ()))  # a run that ended before its first step has recorded nothing
        assert steps == sorted(set(steps))

    @rule(steps=st.integers(1, 4))
    def advance(self, steps: int) -> None:
        self.count()
        self._keep(self._go(self.known.problem, steps))

    @rule(call=st.integers(1, 12), steps=st.integers(1, 4))
    def interrupt(self, call: int, steps: int) -> None:
        self.count()
        with suppress(KeyboardInterrupt):  # outside of the loop, as an exception and no signal: the run stays
            self._keep(self._go(Failing(self.known.problem, call, KeyboardInterrupt()).problem, steps))

    @rule(call=st.integers(1, 12), steps=st.integers(1, 4))
    def fail(self, call: int, steps: int) -> None:
        self.count()
        try:
            self._keep(self._go(Failing(self.known.problem, call, ArithmeticError("told to")).problem, steps))
        except ArithmeticError as error:
            if hasattr(error, "partial_result"):
                self._keep(error.partial_result)

    @precondition(lambda self: self.run is not None)
    @rule()
    def through_a_file(self) -> None:
        self.count()
        gdpa.save_run(self.folder / "run", self.run)
        self.run = gdpa.load_run(self.folder / "run")

    @precondition(lambda self: self.run is not None)
    @rule(at=st.integers(0, 10**6), bit=st.integers(0, 7))
    def damaged_file(self, at: int, bit: int) -> None:
        self.count()
        gdpa.save_run(self.folder / "run", self.run)
        data = bytearray((self.folder / "run").read_bytes())
        data[at % len(data)] ^= 1 << bit
        (self.folder / "run").write_bytes(data)
        _refused(lambda: gdpa.load_run(self.folder / "run"))

    def teardown(self) -> None:
        if getattr(self, "run", None) is not None and self.run.step:
            reached, self.run = self.run, None
            straight = self._go(self.known.problem, reached.step).run
            assert straight.state.x.tobytes() == reached.state.x.tobytes()
            assert straight.state.multipliers.tobytes() == reached.state.multipliers.tobytes()
        shutil.rmtree(getattr(self, "folder", "/nonexistent"), ignore_errors=True)


def _refused(read: Callable[[], Any]) -> None:
    try:
        read()
    except DamagedFileError:
        return
    raise AssertionError("a damaged file was read")


class MinimizeMachine(Machine):
    """`minimize` in random settings: counts are right, bounds hold, success is a feasible point, x0 is untouched."""

    @initialize(d=st.integers(1, 4), number=st.integers(0, 1000))
    def begin(self, d: int, number: int) -> None:
        rng = np.random.default_rng(number)
        root = rng.standard_normal((d, d))
        self.H, self.c, self.A = root @ root.T + np.eye(d), rng.standard_normal(d), rng.standard_normal((2, d))
        self.x0 = rng.standard_normal(d)
        self.constraints: list[Any] = []
        self.bounds: Any = None

    @rule(kind=st.sampled_from(["ball", "plane", "dict", "none"]))
    def constrain(self, kind: str) -> None:
        self.count()
        kinds: dict[str, list[Any]] = {
            "ball": [NonlinearConstraint(lambda x: x @ x, -np.inf, 2.0)],
            "plane": [NonlinearConstraint(lambda x: self.A @ x, -1.0, 1.0, jac=lambda x: self.A)],
            "dict": [{"type": "ineq", "fun": lambda x: 3 - x @ x}, {"type": "eq", "fun": lambda x: self.A[0] @ x}],
            "none": [],
        }
        self.constraints = kinds[kind]

    @rule(low=st.floats(-3, -0.5), high=st.floats(0.5, 3), bounded=st.booleans())
    def bound(self, low: float, high: float, bounded: bool) -> None:
        self.count()
        self.bounds = Bounds(np.full(len(self.x0), low), np.full(len(self.x0), high)) if bounded else None

    @rule(
        maxiter=st.integers(0, 30),
        maxfev=st.one_of(st.none(), st.integers(1, 40)),
        stop_at=st.one_of(st.none(), st.integers(1, 10)),
        press_at=st.one_of(st.none(), st.integers(1, 30)),
        method=st.sampled_from([None, "gdpa", "damped-gdpa"]),
    )
    def minimize(self, maxiter: int, maxfev: Any, stop_at: Any, press_at: Any, method: Any) -> None:
        self.count()
        calls, start = 0, self.x0.copy()

        def fun(x: Any) -> float:
            nonlocal calls
            calls += 1
            if calls == press_at:
                signal.raise_signal(signal.SIGINT)
            return float((x - self.c) @ self.H @ (x - self.c))

        def callback(intermediate_result: Any) -> None:
            if intermediate_result.nit == stop_at:
                raise StopIteration

        options = {"maxiter": maxiter} | ({} if maxfev is None else {"maxfev": maxfev})
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = gdpa.minimize(
                fun, self.x0, method=method, constraints=self.constraints, bounds=self.bounds, callback=callback,
                options=options,
            )  # fmt: skip
        assert (self.x0 == start).all()
        assert found.nfev == calls
        assert found.nit <= maxiter
        assert np.isfinite(found.x).all()
        assert np.isfinite(found.fun)
        if self.bounds is not None:
            assert ((found.x >= self.bounds.lb) & (found.x <= self.bounds.ub)).all()
        if found.success:
            assert found.constr_violation <= 1e-6
        assert found.status in (0, *range(2, 10), 98, 99)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

    @rule()
    def start_at_the_answer(self) -> None:
        self.count()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.x0 = gdpa.minimize(
                lambda x: float((x - self.c) @ self.H @ (x - self.c)), self.x0, options={"maxiter": 50}
            ).x


class TorchMachine(Machine):
    """Two optimizers get the same batches; one of them is saved, loaded and copied on the way. They stay equal."""

    @initialize(kind=st.sampled_from(["paper", "feedback", "damped", "nupi"]), momentum=st.booleans())
    def begin(self, kind: str, momentum: bool) -> None:
        self.kind, self.momentum = kind, momentum
        self.pairs = [self._make(), self._make()]
        self.batches = 0

    def _make(self) -> tuple[Any, Any]:
        import torch

        import gdpa.torch

        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1))
        names = ["mean", "norm"]
        if self.kind == "paper":
            return net, gdpa.torch.GDPA(net.parameters(), names, lr=0.05)
        base = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9 if self.momentum else 0.0)
        return net, gdpa.torch.constrain(base, names, rule=self.kind)

    def _terms(self, net: Any, poison: str = "") -> tuple[Any, Any]:
        import torch

        rng = torch.Generator().manual_seed(self.batches)
        x = torch.randn(8, 3, generator=rng)
        out = net(x).squeeze(-1)
        f, g = (out - x[:, 0]).square().mean(), {"mean": 0.2 - out.mean(), "norm": out.square().mean() - 0.5}
        bad = float("nan") if "nan" in poison else float("inf")
        if "f" in poison.split():
            f = f * bad
        if "g" in poison.split():
            g["norm"] = g["norm"] * bad
        return f, g

    def _step(self, poison: str = "", zero: bool = True) -> None:
        self.batches += 1
        for net, opt in self.pairs:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                if zero:
                    opt.zero_grad()
                opt.lagrangian(*self._terms(net, poison)).backward()
                opt.step()

    @rule(count=st.integers(1, 5))
    def steps(self, count: int) -> None:
        self.count()
        for _ in range(count):
            self._step()

    @rule(poison=st.sampled_from(["f nan", "g nan", "f inf", "g inf", "f g nan"]))
    def not_finite(self, poison: str) -> None:
        self.count()
        before = [(opt.multipliers.clone(), opt.dual_steps, opt.skipped) for _, opt in self.pairs]
        self._step(poison)
        for (_, opt), (multipliers, done, skipped) in zip(self.pairs, before, strict=True):
            assert (opt.multipliers == multipliers).all()
            assert (opt.dual_steps, opt.skipped) == (done, skipped + 1)

    @rule(which=st.integers(0, 1), weights_only=st.booleans())
    def through_a_file(self, which: int, weights_only: bool) -> None:
        import torch

        self.count()
        net, opt = self.pairs[which]
        buffer = io.BytesIO()
        torch.save({"net": net.state_dict(), "opt": opt.state_dict()}, buffer)
        buffer.seek(0)
        saved = torch.load(buffer, weights_only=weights_only)
        fresh, again = self._make()
        fresh.load_state_dict(saved["net"])
        again.load_state_dict(saved["opt"])
        again._skipped = opt.skipped
        self.pairs[which] = fresh, again

    @rule()
    def twice_without_a_step(self) -> None:
        self.count()
        for net, opt in self.pairs:
            opt.zero_grad()
            opt.lagrangian(*self._terms(net))
            try:
                opt.lagrangian(*self._terms(net))
            except RuntimeError:
                opt.discard()
            else:
                raise AssertionError("two calls of lagrangian without a backward pass were taken")

    @rule()
    def discard(self) -> None:
        self.count()
        for net, opt in self.pairs:
            opt.zero_grad()
            opt.lagrangian(*self._terms(net)).backward()
            opt.discard()
            opt.zero_grad()

    @rule(names=st.sampled_from([{"mean": 0.0}, {"mean": 0.0, "other": 0.0}, {}]))
    def wrong_names(self, names: dict[str, float]) -> None:
        import torch

        self.count()
        for net, opt in self.pairs:
            f, _ = self._terms(net)
            try:
                opt.lagrangian(f, {name: torch.tensor(value) for name, value in names.items()})
            except (ValueError, KeyError, TypeError):
                continue
            raise AssertionError("constraints with other names were taken")

    @rule(factor=st.sampled_from([0.5, 1.0, 2.0]))
    def learning_rate(self, factor: float) -> None:
        self.count()
        for _, opt in self.pairs:
            for group in opt.param_groups:
                group["lr"] = min(0.1, max(0.001, group["lr"] * factor))

    @rule()
    def report(self) -> None:
        self.count()
        for _, opt in self.pairs:
            if opt.dual_steps:
                str(opt.report())

    @invariant()
    def equal_and_finite(self) -> None:
        import torch

        if not hasattr(self, "pairs"):
            return
        (net, opt), (other, twin) = self.pairs
        assert torch.equal(opt.multipliers, twin.multipliers)
        assert bool((opt.multipliers >= 0).all() and opt.multipliers.isfinite().all())
        for p, q in zip(net.parameters(), other.parameters(), strict=True):
            assert torch.equal(p, q)
            assert bool(p.isfinite().all())


class FilesMachine(Machine):
    """Numbered checkpoints under damage: the newest good one is read, and nothing else ever is."""

    @initialize(keep=st.integers(1, 4))
    def begin(self, keep: int) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="gdpa-machine-"))
        self.files = Checkpoints(self.folder / "run", keep)
        self.good: dict[Path, int] = {}
        self.saves = 0

    @rule(size=st.integers(0, 50))
    def save(self, size: int) -> None:
        self.count()
        self.saves += 1
        path = self.files.save(self.saves, {"n": self.saves, "x": np.arange(float(size))})
        self.good[path] = self.saves
        assert len(self.files.files()) <= self.files.keep

    def _existing(self, which: int) -> Path | None:
        files = self.files.files()
        return files[which % len(files)] if files else None

    @rule(which=st.integers(0, 3), at=st.integers(0, 10**6), bit=st.integers(0, 7))
    def flip(self, which: int, at: int, bit: int) -> None:
        self.count()
        path = self._existing(which)
        if path is not None and path.stat().st_size:
            data = bytearray(path.read_bytes())
            data[at % len(data)] ^= 1 << bit
            path.write_bytes(data)
            self._spoiled(path)

    @rule(which=st.integers(0, 3), share=st.floats(0, 0.999))
    def cut(self, which: int, share: float) -> None:
        self.count()
        path = self._existing(which)
        if path is not None and path.stat().st_size:
            path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
            self._spoiled(path)

    @rule(which=st.integers(0, 3), data=st.binary(max_size=200))
    def overwrite(self, which: int, data: bytes) -> None:
        self.count()
        path = self._existing(which)
        if path is not None:
            path.write_bytes(data)
            self._spoiled(path)

    @rule(which=st.integers(0, 3))
    def remove(self, which: int) -> None:
        self.count()
        path = self._existing(which)
        if path is not None:
            path.unlink()
            self.good.pop(path, None)

    @rule(data=st.binary(max_size=50))
    def litter(self, data: bytes) -> None:
        self.count()
        (self.folder / "run-notes.txt").write_bytes(data)
        (self.folder / "run-00000001-step-x.gdpa").write_bytes(data)

    def _spoiled(self, path: Path) -> None:
        try:
            value = load(path)
        except DamagedFileError:
            self.good.pop(path, None)
        else:  # two flips of the same bit make it whole again
            assert value["n"] == int(path.stem.rpartition("-")[2])
            self.good[path] = value["n"]

    @invariant()
    def the_newest_good_one_is_read(self) -> None:
        if not hasattr(self, "files"):
            return
        there = self.files.files()
        good = [path for path in there if path in self.good]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                newest = self.files.newest()
            except DamagedFileError:
                assert there
                assert not good
                return
        if newest is None:
            assert not there
        else:
            assert newest.path == good[-1]
            assert newest.value["n"] == self.good[good[-1]]

    def teardown(self) -> None:
        shutil.rmtree(getattr(self, "folder", "/nonexistent"), ignore_errors=True)


MACHINES: dict[str, type[Machine]] = {
    "solve": SolveMachine,
    "minimize": MinimizeMachine,
    "torch": TorchMachine,
    "files": FilesMachine,
}


def run_machine(kind: str, first: int, operations: int) -> Row:
    """Draw sequences until at least ``operations`` were made; a broken invariant is in the note."""
    machine = MACHINES[kind]
    machine.operations, drawn = 0, 0
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts background processes with it ignored
    options = settings(
        max_examples=SEQUENCES,
        stateful_step_count=LENGTH,
        deadline=None,
        database=None,
        report_multiple_bugs=False,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    note = ""
    try:
        while machine.operations < operations:
            run_state_machine_as_test(seed(1000 * first + drawn)(machine), settings=options)
            drawn += 1
    except Exception as error:
        note = "\n".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())])[:2000]
    return {"operations": machine.operations, "broken": int(bool(note)), "ok": not note, "note": note}


if __name__ == "__main__":
    print(json.dumps(run_machine(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
