"""Cuts by hand, order statistics against the binomial distribution, the guarantee by simulation."""

import numpy as np
import pytest
from scipy.stats import binom

from gdpa.sklearn.calibration import apply_cuts, excesses, held_out_cut, samples_needed, training_cut


def test_the_rule_of_cuts_is_the_one_described(rng):
    """Decision values with cuts predict as the rule in words does."""
    scores, cuts, p = rng.standard_normal((200, 4)), rng.standard_normal(4), 2
    values = apply_cuts(scores, p, cuts)
    for row, value in zip(scores, values, strict=True):
        best = max((i for i in range(4) if i != p), key=lambda i: row[i])
        expected = p if row[p] - row[best] > cuts[best] else best
        assert value.argmax() == expected


def test_an_error_of_a_class_is_an_excess_above_its_own_cut(rng):
    scores, cuts, p = rng.standard_normal((200, 4)), rng.standard_normal(4), 0
    predicted = apply_cuts(scores, p, cuts).argmax(axis=1)
    for j in (1, 2, 3):
        np.testing.assert_array_equal(predicted != j, excesses(scores, j, p) > cuts[j])


@pytest.mark.parametrize(("limit", "cut"), [(0.3, 2.5), (0.25, 2.5), (0.2, 3.000004), (0.6, 1.5)])
def test_a_training_cut_by_hand(limit, cut):
    assert training_cut(np.array([3.0, 1.0, 2.0, 0.0]), np.full(4, 0.25), limit) == pytest.approx(cut, abs=1e-8)


def test_confusions_that_no_cut_undoes_leave_a_finite_cut():
    assert training_cut(np.array([0.0, np.inf]), np.array([0.5, 0.5]), 0.1) == pytest.approx(1e-6)
    assert training_cut(np.array([np.inf]), np.ones(1), 0.1) == 0.0
    assert held_out_cut(np.full(100, np.inf), 0.1, 0.1) == (0.0, False)


def test_weights_count_as_repetitions(rng):
    T, weights = rng.standard_normal(50), rng.integers(1, 5, 50)
    for limit in (0.01, 0.1, 0.3):
        repeated = training_cut(T.repeat(weights), np.ones(weights.sum()), limit)
        assert training_cut(T, weights.astype(float), limit) == repeated


@pytest.mark.parametrize(("n", "limit", "delta"), [(59, 0.05, 0.05), (200, 0.1, 0.05), (1000, 0.02, 0.01)])
def test_the_order_statistic_is_the_first_valid_one(n, limit, delta):
    cut, holds = held_out_cut(np.arange(n, dtype=float), limit, delta)
    k = round(cut - 0.4) + 1  # the cut lies above the k-th excess, whose value is k - 1
    assert holds
    assert binom.sf(k - 1, n, 1 - limit) <= delta
    assert binom.sf(k - 2, n, 1 - limit) > delta


@pytest.mark.parametrize(("limit", "delta"), [(0.05, 0.05), (0.1, 0.05), (0.3, 0.2)])
def test_the_fewest_samples(limit, delta):
    n = samples_needed(limit, delta)
    assert held_out_cut(np.arange(float(n)), limit, delta)[1]
    with pytest.raises(ValueError, match=f"too few, {n} are needed"):
        held_out_cut(np.arange(n - 1.0), limit, delta)


def test_the_guarantee_holds_for_uniform_excesses(rng):
    """T uniform on (0, 1): the error of a cut t is 1 - t; it may exceed the limit in a share delta of draws."""
    limit, delta, draws = 0.1, 0.1, 4000
    over = sum(1 - held_out_cut(rng.uniform(size=80), limit, delta)[0] > limit for _ in range(draws))
    # The k-th excess alone violates with P(Bin(80, 0.9) >= k) <= delta; the cut lies half-way to the next.
    assert over / draws <= delta
