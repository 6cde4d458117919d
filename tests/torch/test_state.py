"""Checkpoints: cloned both ways, by name, complete under every way of copying."""

from __future__ import annotations

import copy
import io
import pickle
import warnings

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)

import gdpa.torch
from tests.torch.helpers import KINDS, NAMES, batch, duals, flat, make, network, same, terms, train


def resumed(kind, transport, cut=6, total=12, **kwargs):
    """Train ``cut`` steps, carry the state over by ``transport``, train the rest in a new optimizer."""
    net = network()
    opt = make(kind, net.parameters(), **kwargs)
    train(net, opt, cut)
    other = network(seed=1)
    other.load_state_dict(net.state_dict())
    new = make(kind, other.parameters(), **kwargs)
    transport(opt, new, net, other)
    train(other, new, total - cut, start=cut)
    return other, new


def straight(kind, total=12, **kwargs):
    net = network()
    opt = make(kind, net.parameters(), **kwargs)
    train(net, opt, total)
    return net, opt


def by_dictionary(opt, new, *_):
    new.load_state_dict(opt.state_dict())


def by_file(opt, new, *_):
    file = io.BytesIO()
    torch.save(opt.state_dict(), file)
    file.seek(0)
    new.load_state_dict(torch.load(file, weights_only=True))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cut", [1, 2, 6])
@pytest.mark.parametrize("transport", [by_dictionary, by_file])
def test_save_and_load_continues_bit_for_bit(kind, cut, transport):
    net, opt = straight(kind)
    other, new = resumed(kind, transport, cut)
    assert torch.equal(flat(net), flat(other))
    assert same(duals(opt), duals(new))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["deepcopy", "pickle"])
def test_copies_are_complete(kind, how):
    net = network()
    opt = make(kind, net.parameters())
    train(net, opt, 5)
    pair = (net, opt)
    net2, opt2 = copy.deepcopy(pair) if how == "deepcopy" else pickle.loads(pickle.dumps(pair))
    assert type(opt2) is type(opt)
    assert opt2.param_groups[0]["params"][0] is next(net2.parameters())
    train(net, opt, 5, start=5)
    train(net2, opt2, 5, start=5)
    assert torch.equal(flat(net), flat(net2))
    assert same(duals(opt), duals(opt2))


@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_lives_its_own_life(kind):
    net = network()
    opt = make(kind, net.parameters())
    train(net, opt, 5)
    before = duals(opt)
    net2, opt2 = copy.deepcopy((net, opt))
    train(net2, opt2, 5)
    assert same(before, duals(opt))
    assert not same(before, duals(opt2))


@pytest.mark.parametrize("kind", KINDS)
def test_dictionary_in_memory_does_not_change_when_training_goes_on(kind):
    net = network()
    opt = make(kind, net.parameters())
    train(net, opt, 4)
    state = opt.state_dict()
    kept = copy.deepcopy(state["param_groups"][0])
    train(net, opt, 4)
    assert same({k: state["param_groups"][0][k] for k in duals(opt)}, {k: kept[k] for k in duals(opt)})


@pytest.mark.parametrize("kind", KINDS)
def test_loading_neither_aliases_nor_changes_the_given_dictionary(kind):
    net = network()
    opt = make(kind, net.parameters())
    train(net, opt, 4)
    state = copy.deepcopy(opt.state_dict())
    kept = copy.deepcopy(state)
    other = network()
    new = make(kind, other.parameters())
    new.load_state_dict(state)
    train(other, new, 4)
    for key in duals(opt):
        a, b = state["param_groups"][0][key], kept["param_groups"][0][key]
        assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


@pytest.mark.parametrize("kind", KINDS)
def test_multipliers_go_to_their_names(kind):
    net = network()
    opt = make(kind, net.parameters())
    train(net, opt, 30)
    shuffled = ("balance", "norm", "mean")
    new = make(kind, network().parameters(), names=shuffled)
    by_file(opt, new)
    wanted = dict(zip(NAMES, opt.multipliers.tolist(), strict=True))
    assert dict(zip(shuffled, new.multipliers.tolist(), strict=True)) == wanted
    assert len(set(wanted.values())) == 3  # a mix-up would show
    # and training goes on to the same weights
    other = network()
    other.load_state_dict(net.state_dict())
    new = make(kind, other.parameters(), names=shuffled)
    new.load_state_dict(opt.state_dict())
    train(net, opt, 5, start=30)
    train(other, new, 5, start=30)
    assert torch.allclose(flat(net), flat(other), atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
class TestRefusals:
    def test_another_number_of_constraints(self, kind):
        opt = make(kind, network().parameters())
        new = make(kind, network().parameters(), names=["a"], equalities=[])
        before = duals(new)
        with pytest.raises(ValueError, match="multipliers of 3 constraints, this optimizer has 1"):
            new.load_state_dict(opt.state_dict())
        assert same(before, duals(new))

    def test_other_names(self, kind):
        opt = make(kind, network().parameters())
        new = make(kind, network().parameters(), names=["mean", "norm", "parity"], equalities=["parity"])
        with pytest.raises(ValueError, match=r"it has \['balance'\], this optimizer has \['parity'\]"):
            new.load_state_dict(opt.state_dict())

    def test_a_plain_optimizers_state(self, kind):
        plain = torch.optim.Adam(network().parameters())
        with pytest.raises(ValueError, match="it was not saved by"):
            make(kind, network().parameters()).load_state_dict(plain.state_dict())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("flat_form", [False, True], ids=["nested", "flat"])
def test_distributed_checkpoint_round_trip(kind, flat_form, tmp_path):
    options = StateDictOptions(flatten_optimizer_state_dict=flat_form)

    def by_checkpoint(opt, new, net, other):
        opt.zero_grad()  # without gradients the checkpoint takes a dummy step of its own: it must not count
        before = duals(opt)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            dcp.save({"optim": get_optimizer_state_dict(net, opt, options=options)}, checkpoint_id=tmp_path / "c")
            assert same(before, duals(opt))
            state = {"optim": get_optimizer_state_dict(other, new, options=options)}
            dcp.load(state, checkpoint_id=tmp_path / "c")
            set_optimizer_state_dict(other, new, state["optim"], options=options)

    net, opt = straight(kind)
    other, new = resumed(kind, by_checkpoint)
    assert same(duals(opt), duals(new))
    assert torch.equal(flat(net), flat(other))


@pytest.mark.parametrize("kind", ["paper", "sgd"])
def test_many_constraints_are_stored_once(kind, tmp_path):
    m = 3000
    A = torch.randn(m, 5, generator=torch.Generator().manual_seed(0))

    def build():
        x = torch.nn.Linear(5, 2)
        with torch.no_grad():
            x.weight.fill_(0.5)
            x.bias.zero_()
        return x, make(kind, x.parameters(), names=m, equalities=[])

    def go(x, opt, steps):
        for _ in range(steps):
            opt.zero_grad()
            opt.lagrangian(x.weight.square().sum() + x.bias.sum(), A @ x.weight[0] - 0.1).backward()
            opt.step()

    x, opt = build()
    go(x, opt, 6)
    options = StateDictOptions(flatten_optimizer_state_dict=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        state = get_optimizer_state_dict(x, opt, options=options)
        assert not any(isinstance(v, torch.Tensor) and v.numel() >= m for v in state.values())
        # the dual state alone, as its own key
        dcp.save({"optim": state, "duals": opt.dual_state}, checkpoint_id=tmp_path / "c")
        y, new = build()
        loaded = {"optim": get_optimizer_state_dict(y, new, options=options), "duals": new.dual_state}
        dcp.load(loaded, checkpoint_id=tmp_path / "c")
    assert torch.equal(new.multipliers, opt.multipliers)
    # a plain dictionary holds everything
    z, newer = build()
    newer.load_state_dict(opt.state_dict())
    assert same(duals(newer), duals(opt))
    # a checkpoint without the duals is not silently complete
    part = {k: v for k, v in opt.state_dict().items() if k != "gdpa"}
    newest = build()[1]
    newest.load_state_dict(part)
    with pytest.raises(RuntimeError, match=r"kept in\s+opt.dual_state"):
        go(newest_net := z, newest, 1)
    newest.dual_state.load_state_dict(opt.dual_state.state_dict())
    assert torch.equal(newest.multipliers, opt.multipliers)
    assert newest_net is z


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_with_nothing_staged_changes_no_multiplier(kind):
    net = network()
    opt = make(kind, net.parameters())
    train(net, opt, 5)
    before = duals(opt)
    opt.zero_grad()
    terms(net, batch(0))[0].backward()
    point = flat(net)
    opt.step()
    assert same(before, duals(opt))
    assert not torch.equal(point, flat(net))  # an ordinary step on f


def test_bf16_parameters_do_not_round_the_multipliers():
    net = network(dtype=torch.bfloat16)
    opt = make("adam", net.parameters())
    train(net, opt, 30, dtype=torch.bfloat16)
    new = make("adam", network(dtype=torch.bfloat16).parameters())
    new.load_state_dict(opt.state_dict())
    assert new.multipliers.dtype == torch.float64
    assert torch.equal(new.multipliers, opt.multipliers)
    assert not torch.equal(opt.multipliers, opt.multipliers.bfloat16().float())


def test_stale_weights_are_part_of_the_state():
    net, opt = straight("paper", accumulate="stale")
    other, new = resumed("paper", by_file, accumulate="stale")
    assert torch.equal(flat(net), flat(other))
    assert same(duals(opt), duals(new))


def test_wrapping_again_is_a_new_start():
    net = network()
    base = torch.optim.Adam(net.parameters())
    gdpa.torch.constrain(base, 3)
    assert gdpa.torch.constrain(base, 2).multipliers.shape == (2,)
