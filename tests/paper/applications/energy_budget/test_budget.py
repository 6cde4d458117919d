"""The problem in (W, S), its gradients, and the way to a smaller network inside the budget."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

import gdpa
import gdpa.torch
from gdpa.paper.applications.energy_budget import (
    Batches,
    Chain,
    CountedEnergy,
    EnergyBudget,
    EnergyModel,
    OverBudgetError,
    compress,
    fit_widths,
    measure_model,
    prune,
    smooth_count,
    train,
    train_within,
)
from tests.paper.applications.energy_budget.networks import convolutional, perceptron

EXAMPLES = {
    perceptron: torch.zeros(1, 3, dtype=torch.float64),
    convolutional: torch.zeros(1, 1, 10, 10, dtype=torch.float64),
}


def budgeted(build=perceptron, share=0.5, **options):
    net, meter = build(), CountedEnergy(EXAMPLES[build])
    return EnergyBudget(net, measure_model(net, meter), share * meter(net), **options), meter


def test_phi_by_hand_and_at_its_limits():
    squares = torch.tensor([0.0, 4.0, 12.0], dtype=torch.float64)
    assert smooth_count(squares, 4.0).item() == pytest.approx(0 + 1 / 2 + 3 / 4)
    assert smooth_count(squares, 1e-12).item() == pytest.approx(2)
    assert smooth_count(squares, 1e12).item() == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("build", EXAMPLES)
def test_gradients_of_phi_and_psi_in_weights_and_shares_are_those_of_differences(build):
    subject, _ = budgeted(build)
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(4, *EXAMPLES[build].shape[1:], dtype=torch.float64, generator=generator)
    stated = subject.problem(inputs, lambda outputs: outputs.square().mean())
    x = stated.x0.clone()
    x[: len(subject.shares)] = 0.7
    now = stated.problem.evaluate(x)
    weights = torch.tensor([1.0, -2.0, 0.5, 3.0][: len(subject.names)], dtype=torch.float64)
    gradient = now.pullback(weights, objective=0.0)
    h, places = 1e-6, [*torch.randperm(len(x), generator=generator)[:40].tolist(), 0, 1]
    for place in places:
        step = torch.zeros_like(x)
        step[place] = h
        ahead, behind = (stated.problem.evaluate(x + sign * step).constraints @ weights for sign in (1, -1))
        assert gradient[place].item() == pytest.approx(((ahead - behind) / (2 * h)).item(), abs=1e-7)


def test_the_constraints_by_hand():
    subject, meter = budgeted(share=0.5, smoothing=0.3)
    with torch.no_grad():
        subject.shares.copy_(torch.tensor([0.6, 0.75]))
    squares = Chain(subject.network).squared_norms()
    expected = [
        sum(q / (q + 0.09 * sorted(row)[(len(row) - 1) // 2]) for q in row) / width - share  # the lower median
        for row, width, share in zip([row.tolist() for row in squares], (5, 4), (0.6, 0.75), strict=True)
    ]
    energy = float(subject.model(np.array([3.0, 3.0]))) / (0.5 * meter(subject.network)) - 1
    assert subject.violations().tolist() == pytest.approx([*expected, energy])


def test_x_is_shares_then_weights_and_the_shares_live_in_their_box():
    subject, _ = budgeted()
    stated = subject.problem(torch.ones(2, 3, dtype=torch.float64), lambda outputs: outputs.sum())
    assert stated.x0[0] == stated.x0[1]
    assert len(stated.x0) == 2 + 20 + 24 + 10
    far = stated.problem.domain.project(-7 * torch.ones_like(stated.x0))
    assert far[:2].tolist() == pytest.approx([1 / 5, 1 / 4])
    assert far[2:].eq(-7).all()


def test_the_shares_start_alike_at_twice_the_budget_or_at_one():
    half, small, large = (budgeted(share=share)[0] for share in (0.4, 0.25, 0.6))
    assert [half.violations()[-1].item(), small.violations()[-1].item()] == pytest.approx([1.0, 1.0])
    assert large.shares.tolist() == [1.0, 1.0]


def test_a_method_of_the_library_finds_a_feasible_point():
    subject, meter = budgeted(share=0.6)
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(40, 3, dtype=torch.float64, generator=generator)
    targets = inputs[:, :2] * 0.5
    stated = subject.problem(inputs, lambda outputs: (outputs - targets).square().mean())
    start = stated.problem.evaluate(stated.x0)
    result = gdpa.solve(stated.problem, stated.x0, stop=gdpa.MaxSteps(400))
    end = stated.problem.evaluate(result.x)
    assert start.constraints[-1] > 0.5
    assert end.constraints.max() <= 1e-3
    assert end.objective < start.objective
    stated.load(result.x)
    assert prune(subject, meter).energy <= subject.limit


def toy_data(generator, count=512):
    inputs = torch.randn(count, 3, dtype=torch.float64, generator=generator)
    return inputs, (inputs[:, 0] * inputs[:, 1] > 0).long()


def test_training_with_the_optimizer_meets_every_constraint_nearly():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 2)).double()
    meter = CountedEnergy(torch.zeros(1, 3, dtype=torch.float64))
    data = Batches(*toy_data(torch.Generator().manual_seed(0)), size=32)
    train(net, data, epochs=30, lr=1e-2)
    subject = EnergyBudget(net, measure_model(net, meter), 0.3 * meter(net))
    optimizer = train_within(subject, data, epochs=200, lr=1e-2, dual_rate=1.0)
    assert isinstance(optimizer, gdpa.torch.ConstrainedOptimizer)
    assert subject.violations().max() < 0.02
    lower, upper = 1 / 32, 1.0
    assert lower <= subject.shares.min()
    assert subject.shares.max() <= upper


def test_compressing_leaves_the_network_alone_and_is_inside_the_budget():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 2)).double()
    data = Batches(*toy_data(torch.Generator().manual_seed(0)), size=32)
    train(net, data, epochs=20, lr=1e-2)
    before = copy.deepcopy(net.state_dict())
    meter = CountedEnergy(torch.zeros(1, 3, dtype=torch.float64))
    heard: list = []
    found = compress(net, data, meter, 0.3 * meter(net), epochs=20, fine_tune=20, lr=1e-2, watch=heard.append)
    assert meter(found.pruned.network) == found.pruned.energy <= 0.3 * meter(net)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert set(found.multipliers) == {"width 1", "energy"}
    assert min(found.multipliers.values()) >= 0
    assert heard == sorted(heard)
    assert heard[-1] == pytest.approx(1.0)
    inputs, targets = toy_data(torch.Generator().manual_seed(5))
    accuracy = (found.pruned.network(inputs).argmax(1) == targets).double().mean()
    assert accuracy > 0.85


@pytest.mark.parametrize("share", [0.3, 0.5, 0.9])
@pytest.mark.parametrize("build", EXAMPLES)
def test_pruning_keeps_the_largest_channels_inside_the_true_budget(build, share):
    subject, meter = budgeted(build, share)
    pruned = prune(subject, meter)
    assert meter(pruned.network) == pruned.energy <= subject.limit
    assert Chain(pruned.network).widths == pruned.widths
    for squares, keep in zip(subject.chain.squared_norms(), pruned.keep, strict=True):
        gone = sorted(set(range(len(squares))) - set(keep.tolist()))
        assert not gone or squares[keep].min() >= squares[gone].max()


def test_a_meter_that_says_more_than_psi_is_believed():
    subject, meter = budgeted(share=0.5)
    pruned = prune(subject, lambda network: 1.3 * meter(network))
    assert 1.3 * meter(pruned.network) == pruned.energy <= subject.limit
    with pytest.raises(OverBudgetError, match="inside the budget"):
        prune(subject, lambda network: 100 * meter(network))


def test_widths_fill_the_budget_to_less_than_one_channel():
    psi = EnergyModel((0.0, 10.0, 20.0, 5.0), full=(10, 20))
    for limit in (3.0, 10.0, 20.0):
        for wanted in ([1, 1], [10, 20], [3, 15]):
            widths = np.array(fit_widths(psi, limit, wanted), dtype=float)
            assert psi(widths) <= limit
            assert all(psi(widths + unit) > limit or (widths + unit > [10, 20]).any() for unit in np.eye(2))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"model": EnergyModel((0.0, 1.0, 1.0), full=(7,))}, r"widths \(7,\)"),
        ({"limit": 0.5}, "one channel in every width takes"),
        ({"limit": float("nan")}, "one channel in every width takes"),
        ({"smoothing": 0.0}, "smoothing must be positive"),
    ],
)
def test_budgets_that_make_no_sense_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        EnergyBudget(
            **{
                "network": perceptron(),
                "model": EnergyModel((1.0, 1.0, 1.0, 1.0), full=(5, 4)),
                "limit": 3.0,
                **options,
            }
        )


@pytest.mark.parametrize("size", [0, 4])
def test_batches_refuse_bad_sizes(size):
    with pytest.raises(ValueError, match="size must lie"):
        Batches(torch.zeros(3, 1), torch.zeros(3), size=size)


def test_batches_refuse_tensors_of_two_lengths():
    with pytest.raises(ValueError, match="one per input"):
        Batches(torch.zeros(3, 1), torch.zeros(2))
