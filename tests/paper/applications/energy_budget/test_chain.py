"""Chains: the smaller dense network computes what the masked network computes."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

from gdpa.paper.applications.energy_budget import Chain
from tests.paper.applications.energy_budget.networks import convolutional, perceptron

KEEP = {
    perceptron: [torch.tensor([0, 2, 3]), torch.tensor([1, 3])],
    convolutional: [torch.tensor([1, 3]), torch.tensor([0, 2, 5]), torch.tensor([4, 0])],
}
SHAPES = {perceptron: (7, 3), convolutional: (7, 1, 10, 10)}


def mask(network, keep):
    """Return a copy of full size in which the channels that are not kept have no effect: weights out of them are 0."""
    masked = copy.deepcopy(network)
    for hidden, chosen in zip(Chain(network).hidden, keep, strict=True):
        gone = torch.ones(hidden.width, dtype=torch.bool)
        gone[chosen] = False
        weight = masked[hidden.after].weight.data
        weight.view(len(weight), hidden.width, -1)[:, gone] = 0.0
    return masked


@pytest.mark.parametrize("build", KEEP)
def test_the_narrow_network_equals_the_masked_one(build):
    chain, inputs = Chain(build()), torch.randn(*SHAPES[build], dtype=torch.float64)
    narrow, masked = chain.narrow(KEEP[build]), mask(chain.network, KEEP[build])
    torch.testing.assert_close(narrow(inputs), masked(inputs), rtol=1e-12, atol=1e-12)
    assert not torch.allclose(narrow(inputs), chain.network(inputs))
    assert sum(p.numel() for p in narrow.parameters()) < sum(p.numel() for p in masked.parameters())


@pytest.mark.parametrize("build", KEEP)
def test_a_narrow_network_is_a_chain_of_the_widths_kept_and_trains(build):
    small = Chain(build()).narrow(KEEP[build])
    assert Chain(small).widths == tuple(map(len, KEEP[build]))
    small.train()
    small(torch.randn(*SHAPES[build], dtype=torch.float64)).sum().backward()
    assert all(p.grad is not None and p.grad.shape == p.shape for p in small.parameters())


@pytest.mark.parametrize("build", KEEP)
def test_keeping_every_channel_changes_nothing_and_copies(build):
    network = build()
    chain, inputs = Chain(network), torch.randn(*SHAPES[build], dtype=torch.float64)
    same = chain.of_widths(chain.widths)
    assert torch.equal(same(inputs), network(inputs))
    with torch.no_grad():
        next(same.parameters()).zero_()
    assert not torch.equal(same(inputs), network(inputs))


def test_the_norm_of_a_channel_has_the_weights_into_and_out_of_it():
    net: Any = perceptron()
    first, second = net[0], net[2]
    rows, biases, columns = first.weight.tolist(), first.bias.tolist(), second.weight.T.tolist()
    by_hand = [sum(v**2 for v in [*rows[i], biases[i], *columns[i]]) for i in range(5)]
    torch.testing.assert_close(Chain(net).squared_norms()[0], torch.tensor(by_hand, dtype=torch.float64))


def test_behind_a_flatten_a_channel_owns_a_block_of_inputs():
    net: Any = convolutional()
    chain = Chain(net)
    norms, outgoing = chain.squared_norms()[1], net[7].weight.detach()[:, 2 * 16 : 3 * 16]
    expected = net[4].weight[2].square().sum() + net[4].bias[2].square() + outgoing.square().sum()
    torch.testing.assert_close(norms[2], expected)


@pytest.mark.parametrize(
    ("network", "error", "words"),
    [
        (nn.Linear(2, 2), TypeError, "torch.nn.Sequential"),
        (nn.Sequential(nn.Linear(2, 2)), ValueError, "no hidden width"),
        (nn.Sequential(nn.Linear(2, 4), nn.Softmax(-1), nn.Linear(4, 2)), TypeError, "layer 1 is a Softmax"),
        (nn.Sequential(nn.Conv2d(2, 4, 3), nn.Conv2d(4, 4, 3, groups=2)), ValueError, "2 groups"),
        (nn.Sequential(nn.Linear(2, 4), nn.Linear(6, 2)), ValueError, "6 inputs for 4 channels"),
        (nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(8), nn.Linear(4, 2)), ValueError, "normalizes 8 features"),
    ],
)
def test_networks_that_are_no_chain_are_refused(network, error, words):
    with pytest.raises(error, match=words):
        Chain(network)


@pytest.mark.parametrize(
    ("keep", "words"),
    [
        ([torch.tensor([0])], "one index tensor per hidden width"),
        ([torch.tensor([], dtype=torch.long), torch.tensor([0])], "one or more different channels"),
        ([torch.tensor([0, 0]), torch.tensor([0])], "different channels"),
        ([torch.tensor([5]), torch.tensor([0])], r"0\.\.4"),
    ],
)
def test_channels_that_are_not_there_are_refused(keep, words):
    with pytest.raises(ValueError, match=words):
        Chain(perceptron()).narrow(keep)


@pytest.mark.parametrize(
    ("widths", "words"),
    [((5,), "one index tensor per hidden width, 2, got 1"), ((0, 4), "one or more"), ((6, 4), r"channels of 0\.\.4")],
)
def test_widths_out_of_range_are_refused(widths, words):
    with pytest.raises(ValueError, match=words):
        Chain(perceptron()).of_widths(widths)
