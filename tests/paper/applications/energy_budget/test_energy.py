"""Counts by hand, ridge regression in closed form, counters of joules."""

import numpy as np
import pytest
import torch
from torch import nn

from gdpa.paper.applications.energy_budget import (
    Chain,
    CountedEnergy,
    EnergyModel,
    MeasuredEnergy,
    count_layers,
    fit_energy,
    measure_model,
    rapl_counter,
    sample_widths,
)
from tests.paper.applications.energy_budget.networks import convolutional, perceptron


def test_counts_of_a_perceptron_by_hand():
    net = nn.Sequential(
        nn.Flatten(), nn.Linear(784, 300), nn.ReLU(), nn.Linear(300, 100), nn.ReLU(), nn.Linear(100, 10)
    )
    layers = count_layers(net, torch.zeros(1, 1, 28, 28))
    assert [layer.macs for layer in layers] == [235_200, 30_000, 1_000]
    assert [layer.parameters for layer in layers] == [235_500, 30_100, 1_010]
    assert [layer.words for layer in layers] == [235_500 + 784 + 300, 30_100 + 300 + 100, 1_010 + 100 + 10]


def test_counts_of_convolutions_by_hand():
    layers = count_layers(convolutional(), torch.zeros(1, 1, 10, 10, dtype=torch.float64))
    # 10 x 10 -> 8 x 8 (3 x 3 kernel), pooled to 4 x 4, kept by the padding; without bias, with bias.
    assert [layer.macs for layer in layers] == [4 * 64 * 9, 6 * 16 * 4 * 9, 96 * 5, 5 * 3]
    assert [layer.parameters for layer in layers] == [36, 6 * 4 * 9 + 6, 96 * 5 + 5, 5 * 3 + 3]
    assert layers[0].words == 36 + 100 + 4 * 64
    assert layers[1].words == 222 + 4 * 16 + 6 * 16


def test_counts_of_strides_and_groups_by_hand():
    net = nn.Conv2d(4, 6, (3, 5), stride=2, groups=2)
    (layer,) = count_layers(net, torch.zeros(2, 4, 9, 11))
    assert layer.macs == 2 * 6 * 4 * 4 * (2 * 3 * 5)  # two images, 4 x 4 outputs, 2 of 4 input channels each


def test_counting_leaves_the_network_as_it_was():
    net = convolutional().train()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    count_layers(net, torch.ones(1, 1, 10, 10, dtype=torch.float64))
    assert net.training
    assert not any(layer._forward_hooks for layer in net)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


def test_counted_energy_weighs_both_counts():
    net, example = perceptron(), torch.zeros(1, 3, dtype=torch.float64)
    macs, words = 15 + 20 + 8, (20 + 8) + (24 + 9) + (10 + 6)
    assert CountedEnergy(example, mac=2.0, word=3.0)(net) == 2 * macs + 3 * words


def test_psi_by_hand_in_both_libraries():
    psi = EnergyModel((1.0, 2.0, 3.0, 4.0), full=(10, 20))
    by_hand = 1 + 2 * 0.5 + 3 * 0.5 * 0.25 + 4 * 0.25
    assert psi(np.array([5.0, 5.0])) == pytest.approx(by_hand)
    assert psi(torch.tensor([5.0, 5.0])).item() == pytest.approx(by_hand)
    assert psi(np.array([[5.0, 5.0], [10.0, 20.0]])).tolist() == pytest.approx([by_hand, 10.0])
    assert psi.dense == 10.0


def test_the_gradient_of_psi_is_that_of_differences():
    psi = EnergyModel((1.0, 2.0, 3.0, 4.0), full=(10, 20))
    widths = torch.tensor([5.0, 7.0], dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(psi(widths), widths)
    h, at = 1e-6, np.array([5.0, 7.0])
    differences = [(psi(at + h * unit) - psi(at - h * unit)) / (2 * h) for unit in np.eye(2)]
    np.testing.assert_allclose(gradient.numpy(), differences, rtol=1e-8)


def test_the_fit_is_the_ridge_regression_of_an_augmented_least_squares_problem():
    rng = np.random.default_rng(0)
    full, widths = (6, 9, 4), np.array(sample_widths((6, 9, 4), 30))
    energies = rng.uniform(1, 2, size=30)
    psi = fit_energy(widths, energies, full, penalty=0.3)
    a, b, c = (widths / np.array(full)).T
    design = np.stack([np.ones(30), a, a * b, b * c, c], axis=1)
    augmented = np.vstack([design, np.sqrt(0.3) * np.eye(5)])
    expected = np.linalg.lstsq(augmented, np.concatenate([energies, np.zeros(5)]), rcond=None)[0]
    np.testing.assert_allclose(psi.coefficients, expected, rtol=1e-9)
    assert psi.error == pytest.approx(np.abs(design @ expected - energies).max() / energies.max())


def test_psi_of_a_counted_perceptron_is_exact():
    """All of its terms are bilinear or belong to a width beside the input or the output."""
    net, example = perceptron(), torch.zeros(1, 3, dtype=torch.float64)
    meter = CountedEnergy(example)
    psi = measure_model(net, meter)
    for widths in [(5, 4), (2, 3), (1, 1)]:
        true = meter(Chain(net).of_widths(widths))
        assert float(psi(np.array(widths, dtype=float))) == pytest.approx(true, rel=1e-3)


def test_widths_are_sampled_within_their_range_and_from_the_seed():
    found = sample_widths((3, 50), 200, seed=1)
    assert found == sample_widths((3, 50), 200, seed=1) != sample_widths((3, 50), 200, seed=2)
    assert {a for a, _ in found} == {1, 2, 3}
    assert min(b for _, b in found) >= 1
    assert max(b for _, b in found) <= 50


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (([(1, 1)] * 5, [1.0] * 4, (2, 2)), r"shape \(n, 2\)"),
        (([(1, 1)] * 3, [1.0] * 3, (2, 2)), "4 coefficients need"),
        (([(1, 1)] * 5, [1.0, 2.0, 3.0, 4.0, np.nan], (2, 2)), "finite"),
    ],
)
def test_measurements_that_fit_nothing_are_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        fit_energy(*arguments)


def test_bad_models_and_penalties_are_refused():
    with pytest.raises(ValueError, match="need 3 finite coefficients"):
        EnergyModel((1.0, 2.0), full=(4,))
    with pytest.raises(ValueError, match="positive hidden widths"):
        EnergyModel((1.0, 2.0), full=())
    with pytest.raises(ValueError, match="finite"):
        EnergyModel((1.0, float("nan"), 2.0), full=(4,))
    with pytest.raises(ValueError, match="penalty must be positive"):
        fit_energy([(1,), (2,), (3,)], [1.0, 2.0, 3.0], (3,), penalty=0.0)


def test_measured_energy_is_the_mean_over_the_calls_between_two_readings():
    class Count(nn.Module):
        calls = 0

        def forward(self, inputs):
            self.calls += 1
            return inputs

    net = Count()
    meter = MeasuredEnergy(torch.zeros(1), lambda: 0.25 * net.calls, repeats=40, warm_up=3)
    assert meter(net) == 0.25
    assert net.calls == 43
    assert net.training


def test_the_processors_counter_goes_on_after_it_has_started_again(tmp_path):
    energy = tmp_path / "energy_uj"
    energy.write_text("900000\n")
    (tmp_path / "max_energy_range_uj").write_text("1000000\n")
    read = rapl_counter(tmp_path)
    before = read()
    energy.write_text("100000\n")
    assert read() - before == pytest.approx(0.2)
    with pytest.raises(FileNotFoundError, match="RAPL zone"):
        rapl_counter(tmp_path / "nothing")
