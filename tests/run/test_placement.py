"""Algebra on the host with the problem on a device gives the run that everything on the host gives."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

import gdpa
from gdpa import Ball, Box
from gdpa.oracles.torch import TorchProblem
from gdpa.run import placement

START = torch.tensor([2.0, -1.0, 0.5], dtype=torch.float64)


def function(x):
    return ((x - 1) ** 2).sum() + x[0] ** 4, torch.stack([x @ x - 1.0, x[0] - x[1] - 0.3])


def as_if_on_a_device(monkeypatch):
    """Let the CPU stand in for the device: every tensor counts as one to take from there."""
    monkeypatch.setattr(placement, "_is_faster_on_host", lambda problem, x0, algorithm: isinstance(x0, torch.Tensor))


@pytest.fixture
def plain():
    return gdpa.solve(gdpa.from_torch(function), START, record=0)


def test_the_run_is_that_of_the_host(plain, monkeypatch):
    as_if_on_a_device(monkeypatch)
    result = gdpa.solve(gdpa.from_torch(function), START, record=0)
    assert result.run.device == "cpu"
    assert isinstance(result.run.state.x, np.ndarray)
    assert result.success
    for ours, reference in (
        (result.x, plain.x),
        (result.multipliers, plain.multipliers),
        (result.x_last, plain.x_last),
        (result.certificate.gradient, plain.certificate.gradient),
        (result.certificate.units.coordinates, plain.certificate.units.coordinates),
    ):
        assert isinstance(ours, torch.Tensor)
        assert torch.allclose(ours, reference, atol=1e-7)
    assert result.forwards == plain.forwards


def test_a_run_continues_where_it_was(plain, monkeypatch, tmp_path):
    as_if_on_a_device(monkeypatch)
    problem = gdpa.from_torch(function)
    stop = (gdpa.KKTBelow(1e-6), gdpa.MaxSteps(3))
    first = gdpa.solve(problem, START, stop=stop, checkpoint=tmp_path / "run")
    assert not first.success
    for rest in (
        gdpa.solve(problem, run=first.run),
        gdpa.solve(problem, START, checkpoint=tmp_path / "run", resume=True),
    ):
        assert rest.success
        assert rest.steps == plain.steps
        assert torch.allclose(rest.x, plain.x, atol=1e-9)


def test_observers_and_rules_of_the_user_keep_their_arrays(monkeypatch):
    as_if_on_a_device(monkeypatch)
    seen = []
    problem = gdpa.from_torch(function)
    result = gdpa.solve(problem, START, observers=lambda progress: seen.append(type(progress.state.x)))
    assert set(seen) == {torch.Tensor}
    assert result.run.device is None
    result = gdpa.solve(problem, START, stop=lambda progress: seen.append(type(progress.state.x)))
    assert set(seen) == {torch.Tensor}


def test_rules_may_come_from_a_generator():
    rules = (rule for rule in (gdpa.KKTBelow(1e-6), gdpa.MaxSteps(2)))
    assert gdpa.solve(gdpa.from_torch(function), START, stop=rules).steps == 2


def test_multipliers_and_bounds_come_along(plain, monkeypatch):
    as_if_on_a_device(monkeypatch)
    box = Box(torch.full((3,), -5.0, dtype=torch.float64), torch.full((3,), 5.0, dtype=torch.float64))
    result = gdpa.solve(gdpa.from_torch(function, domain=box), START, multipliers0=plain.multipliers)
    assert result.success
    assert torch.allclose(result.x, plain.x, atol=1e-5)


@dataclass
class OnCuda:
    """What `placement` asks of a tensor on CUDA."""

    size: int
    ndim: int = 1
    is_cuda: bool = True

    def __len__(self):
        return self.size


@pytest.mark.parametrize(
    ("x0", "algorithm", "domain", "expected"),
    [
        (OnCuda(3), gdpa.AdaptiveGDPA(), gdpa.base.sets.REALS, True),
        (OnCuda(3), gdpa.AdaptiveGDPA(), Box(-1.0, 1.0), True),
        (OnCuda(3), gdpa.AdaptiveGDPA(), Ball(1.0), False),
        (OnCuda(3), gdpa.GDPA(), gdpa.base.sets.REALS, False),
        (OnCuda(3, is_cuda=False), gdpa.AdaptiveGDPA(), gdpa.base.sets.REALS, False),
        (OnCuda(3, ndim=2), gdpa.AdaptiveGDPA(), gdpa.base.sets.REALS, False),
        (OnCuda(placement.MOST_VARIABLES + 1), gdpa.AdaptiveGDPA(), gdpa.base.sets.REALS, False),
    ],
)
def test_which_runs_take_their_algebra_to_the_host(x0, algorithm, domain, expected, monkeypatch):
    monkeypatch.setattr(placement.array_api_compat, "is_torch_array", lambda x: True)
    problem = replace(gdpa.from_torch(function), domain=domain)
    assert isinstance(problem, TorchProblem)
    assert placement._is_faster_on_host(problem, x0, algorithm) is expected
