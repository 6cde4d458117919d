"""The checks of PyTorch's test_optim that apply, over torch's own list of optimizers and their inputs.

`torch.testing._internal.common_optimizers` is in the wheel; the test file that uses it is not, so its generic checks
are written out here. Not applicable, with the reason:

- ``fused`` on meta tensors: our check of gradients needs their values;
- "a step is no operation for zero gradients" with weight decay, and for ASGD, whose lambd decays as well;
- ``maximize=True``: refused, because it would maximize the violations;
- LBFGS: refused, because it evaluates its closure several times a step; SparseAdam: its parameters have sparse
  gradients, which the losses of a Lagrangian do not give; Muon: it takes matrices alone;
- checks of ``foreach`` and ``fused`` against the loop, of peak memory, of large tensors and of several devices: these
  compare implementations inside the base optimizer, which is called as it is; `benchmarks.cuda` runs ours on a device;
- checks of torch's list of optimizers itself, and of CyclicLR and OneCycleLR around the paper's recursion, which has no
  momentum to cycle.
"""

from __future__ import annotations

import copy
import importlib.util
import io
import sys
import types
import unittest
import warnings

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

import gdpa.torch

if importlib.util.find_spec("expecttest") is None:  # torch's helpers need its TestCase at import, and we need none
    stub = types.ModuleType("expecttest")
    stub.TestCase = unittest.TestCase
    sys.modules["expecttest"] = stub
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    common = pytest.importorskip("torch.testing._internal.common_optimizers")

NAMES = (
    *("SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "NAdam", "RAdam", "Adadelta", "Adamax"),
    *("ASGD", "Rprop", "Adafactor"),
)
INFOS = [info for info in common.optim_db if info.optim_cls.__name__ in NAMES]
ALL = [(info, case) for info in INFOS for case in info.optim_inputs_func("cpu")]
CASES = [(info, case) for info, case in ALL if not case.kwargs.get("maximize")]
OURS = [{}, {"lr": 0.02}, {"lr": torch.tensor(0.02)}, {"lr": torch.tensor([[0.02]])}, {"foreach": False}]
IDS = [f"{info.optim_cls.__name__}-{case.desc}".replace(" ", "_") for info, case in CASES]


def point():
    torch.manual_seed(0)
    return [torch.nn.Parameter(torch.randn(2, 3)), torch.nn.Parameter(torch.randn(3))]


def wrapped(info, case, params):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return gdpa.torch.constrain(info.optim_cls(params, **copy.deepcopy(case.kwargs)), ["a", "b"])


def losses(params):
    a, b = params
    return (a @ b - 1).square().sum(), {"a": a.sum() - 0.1, "b": 0.2 - b.square().sum()}


def train(opt, params, steps=4):
    for _ in range(steps):
        opt.zero_grad()
        opt.lagrangian(*losses(params)).backward()
        opt.step()


def equal(a, b):
    return all(torch.equal(p, q) for p, q in zip(a, b, strict=True))


@pytest.mark.parametrize(("info", "case"), CASES, ids=IDS)
class TestAroundTorchsOptimizers:
    def test_a_step_on_f_alone_is_the_base_optimizers(self, info, case):
        mine, theirs = point(), point()
        opt = wrapped(info, case, mine)
        base = info.optim_cls(theirs, **copy.deepcopy(case.kwargs))
        for _ in range(3):
            for params, one in ((mine, opt), (theirs, base)):
                one.zero_grad()
                losses(params)[0].backward()
                one.step()
        assert equal(mine, theirs)

    def test_no_gradients_and_zero_gradients_change_nothing(self, info, case):
        params = point()
        opt, before = wrapped(info, case, params), [p.detach().clone() for p in params]
        opt.step()
        assert equal(params, before)
        if any(case.kwargs.get(name, opt.defaults.get(name, 0)) for name in ("weight_decay", "lambd")):
            return  # decay is no gradient
        for p in params:
            p.grad = torch.zeros_like(p)
        opt.step()
        assert equal(params, before)

    def test_hooks_of_a_staged_step(self, info, case):
        params, seen = point(), []
        opt = wrapped(info, case, params)
        handles = [
            register_optimizer_step_pre_hook(lambda *_: seen.append("global pre")),
            opt.register_step_pre_hook(lambda *_: seen.append("pre")),
            opt.register_step_post_hook(lambda *_: seen.append("post")),
            register_optimizer_step_post_hook(lambda *_: seen.append("global post")),
        ]
        try:
            train(opt, params, 1)  # the first batch measures, too
        finally:
            for handle in handles:
                handle.remove()
        assert seen == ["global pre", "pre", "post", "global post"]

    def test_state_is_complete_deterministic_and_loads_without_newer_flags(self, info, case):
        runs = []
        for _ in range(2):
            params = point()
            opt = wrapped(info, case, params)
            train(opt, params, 12)
            runs.append((params, opt))
        assert str(runs[0][1].state_dict()) == str(runs[1][1].state_dict())
        file = io.BytesIO()
        torch.save(runs[0][1].state_dict(), file)
        file.seek(0)
        state = torch.load(file, weights_only=True)
        for group in state["param_groups"]:  # as an older torch saved it
            for flag in info.not_og_supported_flags:
                if flag not in case.kwargs:
                    group.pop(flag, None)
        params = [torch.nn.Parameter(p.detach().clone()) for p in runs[0][0]]
        new = wrapped(info, case, params)
        new.load_state_dict(state)
        train(new, params, 3)
        train(runs[0][1], runs[0][0], 3)
        assert equal(params, runs[0][0])
        assert torch.equal(new.multipliers, runs[0][1].multipliers)
        assert "ConstrainedOptimizer" in repr(new)

    def test_a_deep_copy_has_every_public_attribute_and_makes_the_same_steps(self, info, case):
        params = point()
        opt = wrapped(info, case, params)
        train(opt, params, 3)
        new, copies = copy.deepcopy((opt, params))
        assert {name for name in opt.__dict__ if name[0] != "_"} == {name for name in new.__dict__ if name[0] != "_"}
        train(opt, params, 3)
        train(new, copies, 3)
        assert equal(params, copies)

    def test_a_scheduler_and_groups_with_their_own_rate_go_downhill(self, info, case):
        params = point()
        rate = float(case.kwargs.get("lr", info.optim_cls(params).defaults["lr"]))
        groups = [{"params": params[:1], "lr": 2 * rate}, {"params": params[1:]}]
        opt = wrapped(info, case, groups)
        scheduler = torch.optim.lr_scheduler.StepLR(opt, 10, gamma=0.9)
        first = losses(params)[0].item()
        for _ in range(30):
            opt.zero_grad()
            f, g = losses(params)
            opt.lagrangian(f, {name: value - 100 for name, value in g.items()}).backward()  # never violated: f decides
            opt.step()
            scheduler.step()
        assert losses(params)[0].item() < first
        assert [float(group["lr"]) for group in opt.param_groups] == pytest.approx([2 * rate * 0.9**3, rate * 0.9**3])

    def test_hooks_of_states(self, info, case):
        params, seen = point(), []
        opt = wrapped(info, case, params)
        opt.register_state_dict_pre_hook(lambda *_: seen.append("pre save"))
        opt.register_state_dict_post_hook(lambda *_: seen.append("post save"))
        opt.register_load_state_dict_pre_hook(lambda *_: seen.append("pre load"))
        opt.register_load_state_dict_post_hook(lambda *_: seen.append("post load"))
        opt.load_state_dict(opt.state_dict())
        assert seen == ["pre save", "post save", "pre load", "post load"]


@pytest.mark.parametrize("info", INFOS, ids=lambda info: info.optim_cls.__name__)
def test_a_base_optimizer_that_maximizes_is_refused(info):
    with pytest.raises(ValueError, match="pass -f to lagrangian"):
        gdpa.torch.constrain(info.optim_cls(point(), maximize=True), 1)
    opt = gdpa.torch.constrain(info.optim_cls(point()[:1]), 1)
    with pytest.raises(ValueError, match="maximize=True"):
        opt.add_param_group({"params": point()[1:], "maximize": True})
    assert len(opt.param_groups) == 1


@pytest.mark.parametrize("info", INFOS, ids=lambda info: info.optim_cls.__name__)
def test_named_parameters(info):
    named = list(zip(("a", "b"), point(), strict=True))
    opt = gdpa.torch.constrain(info.optim_cls(named), ["a", "b"])
    train(opt, [p for _, p in named], 2)
    assert opt.state_dict()["param_groups"][0]["param_names"] == ["a", "b"]


@pytest.mark.parametrize("info", INFOS, ids=lambda info: info.optim_cls.__name__)
def test_errors_of_the_base_optimizer_come_through(info):
    for bad in info.optim_error_inputs_func("cpu", torch.float32):
        case = bad.optimizer_error_input
        if bad.error_on != common.OptimizerErrorEnum.CONSTRUCTION_ERROR:
            continue
        with pytest.raises(bad.error_type):
            gdpa.torch.constrain(info.optim_cls(case.params, **case.kwargs), 1)


@pytest.mark.parametrize("kwargs", OURS, ids=lambda kwargs: str(kwargs).replace(" ", ""))
class TestThePapersMethod:
    def test_same_steps_whatever_the_form_of_the_rate(self, kwargs):
        mine, plain = point(), point()
        train(gdpa.torch.GDPA(mine, ["a", "b"], **kwargs), mine)
        rate = float(kwargs.get("lr", 0.01))
        train(gdpa.torch.GDPA(plain, ["a", "b"], lr=rate), plain)
        assert all(torch.allclose(p, q, atol=1e-6) for p, q in zip(mine, plain, strict=True))

    def test_no_gradients_and_zero_gradients_change_nothing(self, kwargs):
        params = point()
        opt, before = gdpa.torch.GDPA(params, ["a", "b"], **kwargs), [p.detach().clone() for p in params]
        opt.step()
        for p in params:
            p.grad = torch.zeros_like(p)
        opt.step()
        assert equal(params, before)

    def test_older_states_load(self, kwargs):
        params = point()
        opt = gdpa.torch.GDPA(params, ["a", "b"], **kwargs)
        train(opt, params)
        state = copy.deepcopy(opt.state_dict())
        for group in state["param_groups"]:
            group.pop("foreach")
            group.pop("lr_power")
        copies = [torch.nn.Parameter(p.detach().clone()) for p in params]
        new = gdpa.torch.GDPA(copies, ["a", "b"], **kwargs)
        new.load_state_dict(state)
        train(new, copies, 2)
        train(opt, params, 2)
        assert all(torch.allclose(p, q, atol=1e-6) for p, q in zip(copies, params, strict=True))
