"""Every wrong call has a defined answer, and says what to do."""

from __future__ import annotations

import math
import warnings

import pytest
import torch

import gdpa.torch
from gdpa.torch import Limits, NonFiniteWarning, at_least, at_most
from tests.torch.helpers import KINDS, batch, duals, flat, make, network, same, terms, train


def param(n=3, **kwargs):
    return torch.nn.Parameter(torch.ones(n, **kwargs))


CONSTRUCTION = [
    ({"constraints": -1}, ValueError, "constraints must be a nonnegative number, got -1"),
    ({"constraints": 1.5}, TypeError, "constraints must be a number, a list of names or Limits, got 1.5"),
    ({"constraints": True}, TypeError, "constraints must be a number"),
    ({"constraints": "recall"}, TypeError, r"got the string 'recall'; write \['recall'\]"),
    ({"constraints": ["a", "a"]}, ValueError, "the name 'a' more than once"),
    ({"constraints": ["a", 3]}, TypeError, "list of nonempty names, got 3"),
    ({"constraints": ["a", ""]}, TypeError, "list of nonempty names, got ''"),
    ({"constraints": 2, "equalities": ["a"]}, ValueError, "equalities holds 'a', which is not a constraint"),
    ({"constraints": 2, "equalities": [2]}, ValueError, "equalities holds 2, which is not a constraint"),
    ({"constraints": ["a", "b"], "equalities": ["a", "a"]}, ValueError, "equalities must differ"),
    ({"constraints": ["a", "b"], "equalities": "a"}, TypeError, r"equalities must be a list of names, got 'a'"),
    ({"constraints": Limits(a=at_most(1.0)), "equalities": ["a"]}, ValueError, r"write equal_to\(value\)"),
    ({"constraints": 1, "lr": -0.1}, ValueError, "lr must be a finite number of at least 0, got -0.1"),
    ({"constraints": 1, "lr": math.inf}, ValueError, "lr must be a finite number"),
    ({"constraints": 1, "lr": torch.ones(2)}, ValueError, r"lr must be a finite number .*, got tensor\(\[1., 1.\]\)"),
    ({"constraints": 1, "lr": "fast"}, ValueError, "lr must be a finite number .*, got 'fast'"),
    ({"constraints": 1, "beta": 0.0}, ValueError, "beta must be a positive finite number, got 0.0"),
    ({"constraints": 1, "beta": math.nan}, ValueError, "beta must be a positive finite number, got nan"),
    ({"constraints": 1, "tau": 1.0}, ValueError, "tau must lie strictly between 0 and 1, got 1.0"),
    ({"constraints": 1, "tau": 0.0}, ValueError, "tau must lie strictly between 0 and 1"),
    ({"constraints": 1, "tau": torch.tensor(-0.5)}, ValueError, "tau must lie strictly between 0 and 1, got -0.5"),
    ({"constraints": 1, "lr_power": math.inf}, ValueError, "lr_power must lie strictly between"),
    ({"constraints": 1, "accumulate": "sum"}, ValueError, 'accumulate must be None, "exact" or "stale"'),
    ({"constraints": 1, "nan": "ignore"}, ValueError, 'nan must be "skip" or "absent"'),
    ({"constraints": 1, "process_group": "all"}, ValueError, 'process_group must be "world", None or a process group'),
    ({"constraints": 1, "accumulate": "exact", "capturable": True}, ValueError, "cannot be combined"),
]


@pytest.mark.parametrize(("kwargs", "error", "message"), CONSTRUCTION)
def test_construction(kwargs, error, message):
    with pytest.raises(error, match=message):
        gdpa.torch.GDPA([param()], **kwargs)


def test_unknown_options_and_empty_parameters():
    with pytest.raises(TypeError, match="unexpected keyword"):
        gdpa.torch.GDPA([param()], 1, momentum=0.9)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="unexpected keyword"):
        gdpa.torch.constrain(torch.optim.SGD([param()], lr=0.1), 1, beta=1.0)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="empty parameter list"):
        gdpa.torch.GDPA([], 1)
    x = param()
    with pytest.raises(ValueError, match="some parameters appear in more than one parameter group"):
        gdpa.torch.GDPA([{"params": [x]}, {"params": [x]}], 1)


CALLS = [
    (lambda x: (x.sum(), x[0]), ValueError, r"g is a scalar; return a vector even for a single constraint"),
    (lambda x: (x.sum(), x), ValueError, r"g has shape \(3,\), expected \(2,\)"),
    (lambda x: (x.sum(), x[:2].reshape(1, 2)), ValueError, r"g has shape \(1, 2\), expected \(2,\)"),
    (lambda x: (x.sum(), x[:2].detach()), ValueError, "g does not require a gradient"),
    (lambda x: (x.sum(), [x[0], x[1]]), TypeError, "stack a list of values with torch.stack"),
    (lambda x: (x.sum(), 0.5), TypeError, "g must be a tensor of shape"),
    (lambda x: (x, x[:2]), ValueError, r"f has shape \(3,\), expected a scalar; reduce it"),
    (lambda x: ("loss", x[:2]), TypeError, "f must be a scalar floating-point tensor"),
    (lambda x: (torch.tensor(3), x[:2]), TypeError, "f must be a scalar floating-point tensor"),
    (lambda x: (x.sum(), torch.view_as_complex(x[:2].expand(2, 2).contiguous())), TypeError, "real floating-point"),
    (lambda x: (x.sum(), {"a": x[0]}), KeyError, r"of g lack \['b'\];"),
    (lambda x: (x.sum(), {"a": x[0], "c": x[1]}), KeyError, r"lack \['b'\] and have unknown \['c'\]"),
    (lambda x: (x.sum(), {"a": x[0], "b": x[1], "c": x[2]}), KeyError, r"of g have unknown \['c'\];"),
    (lambda x: (x.sum(), {"a": x[0], "b": 1.0}), TypeError, r"g\['b'\] must be a tensor computed from the parameters"),
    (lambda x: (x.sum(), {"a": x[0], "b": x}), ValueError, r"g\['b'\] has shape \(3,\), expected one number"),
    (lambda x: (x.sum(), {"a": x[0], "b": x[1].detach()}), ValueError, r"g\['b'\] does not require a gradient"),
]


@pytest.mark.parametrize(("values", "error", "message"), CALLS)
def test_calls(values, error, message):
    x = param()
    opt = gdpa.torch.GDPA([x], ["a", "b"])
    with pytest.raises(error, match=message):
        opt.lagrangian(*values(x))
    # and a good call afterwards is served
    opt.lagrangian(x.sum(), {"b": x[0], "a": x[1]}).backward()
    opt.step()
    assert opt.dual_steps == 1


def test_length_may_not_change_on_the_way():
    x = param()
    opt = gdpa.torch.GDPA([x], 2)
    opt.lagrangian(x.sum(), x[:2]).backward()
    opt.step()
    opt.zero_grad()
    with pytest.raises(ValueError, match=r"g has shape \(3,\), expected \(2,\)"):
        opt.lagrangian(x.sum(), x)


def test_names_for_unnamed_constraints():
    x = param()
    with pytest.raises(TypeError, match=r"build the optimizer with constraints=\['a'\]"):
        gdpa.torch.GDPA([x], 1).lagrangian(x.sum(), {"a": x[0]})


def test_counts():
    x = param()
    opt = gdpa.torch.GDPA([x], ["a", "b"])
    with pytest.raises(KeyError, match="counts must have one entry for each"):
        opt.lagrangian(x.sum(), x[:2], counts={"a": 1})
    with pytest.raises(ValueError, match=r"counts has shape \(3,\), expected \(2,\)"):
        opt.lagrangian(x.sum(), x[:2], counts=[1, 2, 3])


def test_f_and_g_on_two_devices():
    x = param()
    opt = gdpa.torch.GDPA([x], 2)
    with pytest.raises(ValueError, match="f is on meta but g on cpu"):
        opt.lagrangian(torch.empty((), device="meta"), x[:2])


def test_another_precision_on_the_way_is_followed():
    x = param(dtype=torch.float64)
    opt = gdpa.torch.GDPA([x], 2)
    for dtype in (torch.float64, torch.float32, torch.float64):
        opt.zero_grad()
        opt.lagrangian(x.sum(), x[:2].to(dtype)).backward()
        opt.step()
        assert opt.multipliers.dtype == torch.float64  # the dual state has one precision
    assert (opt.multipliers > 0).all()


def test_a_number_for_f_is_a_pure_feasibility_problem():
    x = param()
    opt = gdpa.torch.GDPA([x], 2, lr=0.1)
    opt.lagrangian(0.0, x[:2]).backward()
    opt.step()
    assert (x[:2] < 1).all()


@pytest.mark.parametrize("kind", KINDS)
class TestNonFinite:
    @pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
    @pytest.mark.parametrize("where", ["norm", "balance", "objective"])
    def test_step_is_skipped_named_and_forgotten(self, kind, where, bad):
        net = network()
        opt = make(kind, net.parameters())
        train(net, opt, 5)
        before, point = duals(opt), flat(net)
        opt.zero_grad()
        f, g = terms(net, batch(99))
        if where == "objective":
            f = f * bad
        else:
            g[where] = g[where] + bad
        opt.lagrangian(f, g).backward()
        name = "the objective" if where == "objective" else where
        with pytest.warns(NonFiniteWarning, match=f"step skipped: {name} was not a finite number"):
            opt.step()
        assert torch.equal(point, flat(net))
        assert same(before, duals(opt))
        assert opt.skipped == 1
        train(net, opt, 5, start=5)
        twin = network()
        other = make(kind, twin.parameters())
        train(twin, other, 10)
        assert torch.equal(flat(net), flat(twin))  # as if it had never happened

    def test_in_the_first_batch_too(self, kind):
        net = network()
        opt = make(kind, net.parameters())
        before = duals(opt)
        f, g = terms(net, batch(0))
        opt.lagrangian(f * math.nan, g).backward()
        with pytest.warns(NonFiniteWarning):
            opt.step()
        assert same(before, duals(opt))


@pytest.mark.parametrize("kind", KINDS)
class TestOrder:
    def test_lagrangian_twice(self, kind):
        net = network()
        opt = make(kind, net.parameters())
        opt.lagrangian(*terms(net, batch(0)))
        with pytest.raises(RuntimeError, match="called twice without a step between"):
            opt.lagrangian(*terms(net, batch(1)))

    def test_undeclared_accumulation(self, kind):
        net = network()
        opt = make(kind, net.parameters())
        train(net, opt, 3)
        before, point = duals(opt), flat(net)
        opt.zero_grad()
        opt.lagrangian(*terms(net, batch(0))).backward()
        opt.lagrangian(*terms(net, batch(1))).backward()
        with pytest.raises(RuntimeError, match='accumulate="exact" or "stale"'):
            opt.step()
        assert same(before, duals(opt))
        assert torch.equal(point, flat(net))

    @pytest.mark.parametrize("skips", [False, True])
    def test_gradients_cleared_after_the_forward_pass(self, kind, skips):
        """Lightning and many tutorials: forward, zero_grad, backward, step; with steps skipped on the way."""
        net, twin = network(), network()
        opt, other = make(kind, net.parameters()), make(kind, twin.parameters())
        for i in range(8):
            for skipped in (True, False) if skips else (False,):
                loss = opt.lagrangian(*terms(net, batch(100 + i if skipped else i)))
                opt.zero_grad()
                loss.backward()
                if not skipped:
                    opt.step()
        train(twin, other, 8)
        assert torch.equal(flat(net), flat(twin))
        assert same(duals(opt), duals(other))

    def test_a_batch_dropped_before_its_backward_pass(self, kind):
        net = network()
        opt = make(kind, net.parameters())
        opt.lagrangian(*terms(net, batch(9)))  # dropped: no backward, no step
        train(net, opt, 3)
        assert opt.dual_steps == 3

    @pytest.mark.parametrize("clear", ["zero_grad", "discard", "elsewhere"])
    def test_a_step_that_did_not_happen_is_forgotten(self, kind, clear):
        net = network()
        opt = make(kind, net.parameters())
        train(net, opt, 4)
        before = duals(opt)
        opt.zero_grad()
        opt.lagrangian(*terms(net, batch(50))).backward()
        if clear == "zero_grad":
            opt.zero_grad()
        elif clear == "discard":
            opt.discard()
            opt.zero_grad()
        else:
            for p in net.parameters():
                p.grad = None
        assert same(before, duals(opt))
        if clear == "elsewhere":
            opt.lagrangian(*terms(net, batch(4))).backward()
            opt.step()
        else:
            train(net, opt, 1, start=4)
        twin = network()
        other = make(kind, twin.parameters())
        train(twin, other, 5)
        assert torch.equal(flat(net), flat(twin))
        assert same(duals(opt), duals(other))

    def test_step_first_is_a_plain_step(self, kind):
        net = network()
        opt = make(kind, net.parameters())
        before = duals(opt)
        opt.step()
        assert same(before, duals(opt))
        assert "No step has used the constraints yet" in str(opt.report())

    def test_closure(self, kind):
        """Lightning runs the whole training step inside ``optimizer.step(closure)``."""
        net, twin = network(), network()
        opt, other = make(kind, net.parameters()), make(kind, twin.parameters())
        for i in range(8):

            def closure(i=i):
                opt.zero_grad()
                loss = opt.lagrangian(*terms(net, batch(i)))
                loss.backward()
                return loss

            loss = opt.step(closure)
            assert loss.requires_grad
        train(twin, other, 8)
        assert torch.equal(flat(net), flat(twin))
        assert same(duals(opt), duals(other))

    def test_exception_between(self, kind):
        net = network()
        opt = make(kind, net.parameters())
        train(net, opt, 4)
        before = duals(opt)

        def failing():
            opt.lagrangian(*terms(net, batch(4)))
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            opt.step(failing)
        assert same(before, duals(opt))
        train(net, opt, 1, start=4)
        assert opt.dual_steps == 5


def test_frozen_parameters_stay():
    net = network()
    net[0].weight.requires_grad_(False)
    kept = net[0].weight.clone()
    for kind in KINDS:
        opt = make(kind, net.parameters())
        train(net, opt, 4)
    assert torch.equal(net[0].weight, kept)
    for p in net.parameters():
        p.requires_grad_(False)
    with pytest.raises(ValueError, match="from frozen parameters only"):
        opt.lagrangian(*terms(net, batch(0)))


def test_sparse_gradients_are_refused_by_the_papers_step():
    table = torch.nn.Embedding(5, 2, sparse=True)
    opt = gdpa.torch.GDPA(table.parameters(), 1)
    out = table(torch.tensor([1, 2]))
    opt.lagrangian(out.sum(), out[:1, 0]).backward()
    with pytest.raises(RuntimeError, match="does not support sparse gradients; build the embedding with sparse=False"):
        opt.step()


def test_sparse_gradients_work_where_the_base_optimizer_takes_them():
    table = torch.nn.Embedding(5, 2, sparse=True)
    kept = table.weight.detach().clone()
    opt = gdpa.torch.constrain(torch.optim.SGD(table.parameters(), lr=0.1), 1)
    opt.param_groups[0].update(ratio=torch.ones(1, dtype=torch.float64))
    out = table(torch.tensor([1, 2]))
    opt.lagrangian(out.sum(), out[:1, 0] + 1).backward()
    opt.step()
    assert torch.equal(table.weight[[0, 3, 4]], kept[[0, 3, 4]])
    assert not torch.equal(table.weight[1], kept[1])
    assert opt.dual_steps == 1


def test_limits_take_values_by_name():
    x = param()
    opt = gdpa.torch.GDPA([x], Limits(recall=at_least(0.9), parity=at_most(0.05)))
    with pytest.raises(TypeError, match="with Limits the values must be a dict"):
        opt.lagrangian(x.sum(), x[:2])
    with pytest.raises(KeyError, match=r"the values lack \['parity'\] and have unknown \['gap'\]"):
        opt.lagrangian(x.sum(), {"recall": x[0], "gap": x[1]})


def test_a_good_run_warns_of_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for kind in KINDS:
            net = network()
            train(net, make(kind, net.parameters()), 6)
