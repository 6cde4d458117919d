"""The numbers of a handful of constraints, and absent constraints: tensors and numbers say the same."""

from __future__ import annotations

import copy
import math
import pickle

import pytest
import torch

import gdpa.torch
from gdpa.torch.dual import FEW, Rows
from gdpa.torch.rules import RULES, Paper, make_rule
from tests.torch.helpers import KINDS, make, network, train


def state_of(rule, m):
    """A dual state with a different number in every place."""
    numbers = {key: torch.arange(m) + 10.0 * i for i, key in enumerate((*rule.vectors, *rule.given))}
    return {key: v > 1 if key == "gate" else v.double() for key, v in numbers.items() if key != "limit"}


@pytest.mark.parametrize("name", list(RULES))
def test_rows_are_the_columns_of_the_state(name):
    rule, m = make_rule(name, None), 3
    dual, limits = state_of(rule, m), [1.0, 2.0, math.inf]
    expected = {**dual, "limit": torch.tensor(limits)}
    rows = Rows(rule, limits)
    numbers = list(rows.read(dual))
    for j, key in enumerate((*rule.vectors, *rule.given)):
        assert [row[j] for row in numbers] == expected[key].tolist()
    new = [tuple(not x if isinstance(x, bool) else x + 0.5 for x in row[: len(rule.vectors)]) for row in numbers]
    rows.write(new)
    for j, key in enumerate(rule.vectors):
        assert dual[key].tolist() == [row[j] for row in new]
    for key in set(rule.given) - {"limit"}:
        assert dual[key].tolist() == expected[key].tolist()


def test_rows_follow_edits_and_replaced_tensors():
    rows, dual = Rows(Paper(), [1.0, 1.0]), state_of(Paper(), 2)
    rows.read(dual)
    dual["multipliers"].fill_(7.0)
    assert [row[0] for row in rows.read(dual)] == [7.0, 7.0]
    dual["multipliers"] = torch.tensor([1, 2], dtype=torch.float32)
    assert [row[0] for row in rows.read(dual)] == [1.0, 2.0]
    assert dual["multipliers"].dtype is torch.float64


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))])
def test_a_copy_of_the_rows_has_its_own_memory(duplicate):
    pair = Rows(Paper(), [1.0, 1.0]), state_of(Paper(), 2)
    before = list(pair[0].read(pair[1]))
    other, dual = duplicate(pair)
    assert list(other.read(dual)) == before
    other.write([(5.0, True), (6.0, False)])
    assert dual["multipliers"].tolist() == [5.0, 6.0]
    assert list(pair[0].read(pair[1])) == before


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("replace", [False, True])
def test_multipliers_set_by_hand_are_used_and_kept(kind, replace):
    net = network()
    opt = make(kind, net.parameters(), **({"tau": 1e-9} if kind == "paper" else {"rule": "two-sample"}))
    train(net, opt, 3)
    wanted = torch.tensor([50.0, 60.0, -70.0], dtype=torch.float64)
    if replace:
        opt.param_groups[0]["multipliers"] = wanted.clone()
    else:
        opt.param_groups[0]["multipliers"].copy_(wanted)
    train(net, opt, 1)
    assert torch.allclose(opt.multipliers, wanted, atol=2.0)
    assert not torch.equal(opt.multipliers, wanted)
    assert torch.equal(opt.state_dict()["param_groups"][0]["multipliers"], opt.param_groups[0]["multipliers"])


@pytest.mark.parametrize("value", [0.5, math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("m", [2, FEW + 4])
@pytest.mark.parametrize("how", ["tensor", "dict"])
def test_an_absent_constraint_is_in_neither_the_loss_nor_its_gradient(value, m, how):
    """By hand: rule "two-sample" with penalty 1 and multipliers 2 weighs g_i > -2 by 2 + g_i."""
    x = torch.nn.Parameter(torch.full((m,), 0.25, dtype=torch.float64))
    names = [str(i) for i in range(m)]
    opt = gdpa.torch.constrain(torch.optim.SGD([x], lr=0.0), names, rule="two-sample")
    opt.param_groups[0]["multipliers"].fill_(2.0)
    g = x + torch.tensor([0.0] * (m - 1) + [value - 0.25], dtype=torch.float64)
    counts = [3] * (m - 1) + [0]
    f = 3 * x.sum()
    loss = opt.lagrangian(f, g if how == "tensor" else dict(zip(names, g, strict=True)), counts=counts)
    assert loss.item() == pytest.approx(f.item() + (m - 1) * 2.25 * 0.25)
    loss.backward()
    assert x.grad.tolist() == pytest.approx([3 + 2.25] * (m - 1) + [3.0])
    opt.step()
    assert opt.skipped == 0
    assert opt.multipliers.tolist() == pytest.approx([2 + 0.01 * 0.25] * (m - 1) + [2.0])
    assert [row.absent for row in opt.snapshot().rows] == [False] * (m - 1) + [True]


@pytest.mark.parametrize("m", [2, FEW + 4])
def test_an_absent_constraint_is_not_named_if_a_step_is_skipped(m):
    x = torch.nn.Parameter(torch.ones(m))
    opt = gdpa.torch.constrain(torch.optim.SGD([x], lr=0.1), [f"group {i}" for i in range(m)])
    bad = torch.tensor([math.nan] + [0.0] * (m - 2) + [math.inf])
    opt.lagrangian(x.sum(), x + bad, counts=[1] * (m - 1) + [0]).backward()
    with pytest.warns(gdpa.torch.NonFiniteWarning, match="step skipped: group 0 was not a finite number"):
        opt.step()
