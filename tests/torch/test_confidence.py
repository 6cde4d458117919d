"""Bounds against the binomial distribution and hand-made formulas; statements against known truths; margins."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats

from benchmarks import confidence as simulation
from gdpa.torch import Limits, at_least, at_most, between, certify, choose, equal_to, terms, tighten
from gdpa.torch.confidence import Estimate, Statistic, clopper_pearson, empirical_bernstein, judge


@pytest.mark.parametrize(("k", "n", "level"), [(0, 10, 0.05), (3, 40, 0.01), (39, 40, 1e-4), (200, 1000, 5e-4)])
def test_clopper_pearson_inverts_the_binomial_distribution(k, n, level):
    """U is the rate at which k successes or fewer have probability ``level``."""
    upper = clopper_pearson(k, n, level)
    assert stats.binom.cdf(k, n, upper) == pytest.approx(level, rel=1e-8)
    wanted = stats.binomtest(k, n, alternative="less").proportion_ci(1 - level).high
    assert upper == pytest.approx(wanted, rel=1e-8)
    lower = -Statistic(n, k / n, 0.0, (0.0, 1.0), True).upper(level, -1.0)
    wanted = stats.binomtest(k, n, alternative="greater").proportion_ci(1 - level).low
    assert lower == pytest.approx(wanted, rel=1e-6, abs=1e-12)
    assert clopper_pearson(n, n, level) == 1.0


def test_empirical_bernstein_is_the_theorem():
    values = torch.tensor([0.1, 0.4, 0.3, 0.9, 0.2], dtype=torch.float64)
    v, log = values.var().item(), math.log(2 / 0.05)
    by_hand = values.mean().item() + math.sqrt(2 * v * log / 5) + 7 * log / (3 * 4)
    assert empirical_bernstein(values.mean().item(), v, 5, 1.0, 0.05) == pytest.approx(by_hand, rel=1e-12)
    assert empirical_bernstein(0.5, 0.0, 1, 1.0, 0.05) == math.inf
    # units: 10 X - 3 has the bound 10 U - 3
    ten = empirical_bernstein(10 * values.mean().item() - 3, 100 * v, 5, 10.0, 0.05)
    assert ten == pytest.approx(10 * by_hand - 3, rel=1e-12)


def data(n=600, seed=0):
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 3, generator=rng, dtype=torch.float64)
    y = (torch.rand(n, generator=rng) < 0.4).to(x.dtype)
    return x + y[:, None], y, torch.rand(n, generator=rng) < 0.3


def net():
    model = torch.nn.Linear(3, 1).double()
    with torch.no_grad():
        model.weight.fill_(1.0)
        model.bias.fill_(-1.5)
    return model


def losses(net, batch):
    x, y, group = batch
    scores = net(x)[:, 0]
    f = torch.nn.functional.binary_cross_entropy_with_logits(scores, y)
    return f, {
        "recall": terms.recall(scores, y),
        "gap": terms.demographic_parity(scores, group),
        "loss": terms.mean(torch.sigmoid(scores), bounds=(0, 1)),
        "norm": terms.weight_norm(net.parameters()),
    }


def batches(data, size):
    return list(zip(*(part.split(size) for part in data), strict=True))


LIMITS = Limits(recall=at_least(0.1), gap=between(-0.9, 0.9), loss=at_most(0.99), norm=at_most(9.0))


@pytest.mark.parametrize("size", [600, 70])
def test_certify_pools_terms_exactly_whatever_the_batches(size):
    """A gap of two means over batches is not the gap of the whole; the certificate is that of the whole."""
    model = net()
    x, y, group = data()
    found = certify(model, batches((x, y, group), size), losses, constraints=LIMITS, confidence=0.9)
    scores = model(x)[:, 0].detach()
    recall = (scores[y == 1] > 0).double().mean().item()
    gap = (scores[group] > 0).double().mean().item() - (scores[~group] > 0).double().mean().item()
    assert found.report["recall"].value == pytest.approx(recall, rel=1e-12)
    assert found.report["gap (upper)"].value == pytest.approx(gap, rel=1e-9)
    assert found.report["norm"].value == pytest.approx(
        math.sqrt(sum(p.square().sum().item() for p in model.parameters())), rel=1e-12
    )
    # stationarity follows the surrogates: compare with one full batch of plain tensors
    _, g = losses(model, (x, y, group))
    plain = certify(
        model,
        [(x, y, group)],
        lambda m, b: (losses(m, b)[0], {k: v.value for k, v in losses(m, b)[1].items()}),
        constraints=LIMITS,
    )
    assert found.certificate.residuals.stationarity == pytest.approx(plain.certificate.residuals.stationarity, rel=1e-8)
    # the statements, by hand: 4 one-sided bounds from data, each mean of the gap with half of its share
    level = 0.1 / 4
    new = found.new_data
    assert new is not None
    hits = int((scores[y == 1] > 0).sum())
    wanted = stats.binomtest(hits, int(y.sum()), alternative="greater").proportion_ci(1 - level).low
    assert new["recall"].lower == pytest.approx(wanted, rel=1e-6)
    assert new["recall"].upper == math.inf
    ends = []
    for mask, side in ((group, "less"), (~group, "greater")):
        test = stats.binomtest(int((scores[mask] > 0).sum()), int(mask.sum()), alternative=side)
        ends.append(test.proportion_ci(1 - level / 2))
    assert new["gap"].upper == pytest.approx(ends[0].high - ends[1].low, rel=1e-6)
    p = torch.sigmoid(scores)
    wanted = empirical_bernstein(p.mean().item(), p.var().item(), 600, 1.0, level)  # type: ignore[assignment]
    assert new["loss"].upper == pytest.approx(wanted, rel=1e-9)
    assert new["norm"].upper == pytest.approx(found.report["norm"].value)  # weights are the same on new data
    assert new.shown
    assert "Every limit holds on new data, with probability at least 0.9" in str(found)
    assert not math.isnan(g["gap"].true.item())


def rate(mean, n, bounds=(0.0, 1.0)):
    return Estimate(0.0, ((1.0, Statistic(n, mean, mean * (1 - mean), bounds, True)),))


def test_the_number_of_samples_it_says_is_enough_and_less_is_not():
    limit = {"error": at_most(0.05)}
    one = judge({"error": rate(0.04, 200)}, limit, 0.95)["error"]
    assert not one.shown
    assert one.needed is not None
    assert one.reason == f"need about {one.needed} samples"
    assert judge({"error": rate(0.04, one.needed)}, limit, 0.95).shown
    assert not judge({"error": rate(0.04, 0.95 * one.needed)}, limit, 0.95).shown


WORDS = [
    (rate(0.06, 1000), at_most(0.05), "the data violate it"),
    (rate(0.05, 1000), at_most(0.05), "the data violate it"),
    (rate(0.5, 1000), equal_to(0.5), r"no data show an equality exactly; use between"),
    (rate(math.nan, 0), at_most(0.5), "no sample of its group is in the data"),
    (rate(0.05 * (1 - 1e-6), 100), at_most(0.05), "too close to the limit"),
    (Estimate(0.0, ((1.0, Statistic(50, 1.0, 1.0, None, False)),)), at_most(2.0), "its values have no bounds"),
]


@pytest.mark.parametrize(("estimate", "limit", "words"), WORDS)
def test_why_a_limit_is_not_shown(estimate, limit, words):
    found = judge({"a": estimate}, {"a": limit}, 0.95)
    assert not found.shown
    assert words in str(found)
    assert "Not shown for 1 of 1 limits" in str(found)


def test_an_equality_is_shown_within_a_tolerance_and_refused_names():
    found = judge({"a": rate(0.5, 100_000)}, {"a": equal_to(0.5)}, 0.95, tolerance=0.05)
    assert found.shown
    assert found["a"].lower == pytest.approx(0.5 - found["a"].upper + 0.5)  # two-sided, symmetric at one half
    with pytest.raises(KeyError):
        found["b"]
    with pytest.raises(ValueError, match="confidence must lie between 0 and 1, got 95"):
        judge({"a": rate(0.5, 10)}, {"a": at_most(1.0)}, 95)


def test_names_without_limits_and_equalities():
    """Bare g <= 0 and g = 0: terms shifted by their limit."""
    x, y, _ = data()
    found = certify(
        net(),
        [(x, y)],
        lambda m, b: (m(b[0]).mean(), {"miss": 0.9 - terms.recall(m(b[0])[:, 0], b[1])}),
        constraints=["miss"],
        confidence=0.95,
    )
    assert found.new_data is not None
    assert found.new_data["miss"].value == pytest.approx(found.report["miss"].value)
    assert found.new_data["miss"].limit == at_most(0.0)


def test_what_confidence_refuses():
    x, y, group = data()
    means = {"a": lambda m, b: (m(b[0]).mean(), {"a": m(b[0]).mean()})}
    with pytest.raises(TypeError, match=r"need the values of single samples, but \['g'\] are means; return e\.g\."):
        certify(net(), [(x, y)], means["a"], constraints=["a"], confidence=0.95)

    def mixed(m, b):
        return m(b[0]).mean(), {"a": m(b[0]).mean(), "b": terms.mean(m(b[0])[:, 0], bounds=(0, 1e-3))}

    with pytest.raises(TypeError, match=r"but \['a'\] are means"):
        certify(net(), [(x, y)], mixed, constraints=["a", "b"], confidence=0.95)
    with pytest.raises(ValueError, match=r"a value of 'b' is .*, outside its bounds \(0, 0.001\); widen them"):
        certify(
            net(), [(x, y)], lambda m, b: (0 * m(b[0]).mean(), {"b": mixed(m, b)[1]["b"]}), constraints=["b"],
            confidence=0.95,
        )  # fmt: skip
    with pytest.raises(ValueError, match="gap has no sample in the whole loader"):
        certify(net(), [(x, y, group & False)], losses, constraints=LIMITS)


def test_choose_passes_confidence_on():
    _, _, found = choose({"a": net()}, batches(data(), 100), losses, constraints=LIMITS, confidence=0.95)
    assert found["a"].new_data.shown


# Margins.


def test_a_tightened_limit_is_tighter_in_training_only():
    limits = Limits(
        fpr=at_most(0.05, tighten=0.01), recall=at_least(0.9, tighten=0.02), gap=between(-1, 1, tighten=0.5)
    )
    values = {"fpr": torch.tensor(0.04), "recall": torch.tensor(0.92), "gap": torch.tensor(0.5)}
    assert limits.violations(values)["fpr"].item() == pytest.approx(0, abs=1e-7)
    assert limits.violations(values)["recall"].item() == pytest.approx(0, abs=1e-7)
    assert limits.violations(values)["gap (upper)"].item() == 0
    assert limits.judged().violations(values)["fpr"].item() == pytest.approx(-0.2)
    assert limits.value("fpr", 0.0) == (pytest.approx(0.04), pytest.approx(0.04))  # type: ignore[comparison-overlap]
    assert "<= 0.05  " in repr(limits)
    assert "tightened by 0.01 in training" in repr(limits)
    with pytest.raises(ValueError, match=r"leaves no room for a margin of 0\.1"):
        between(-0.1, 0.1, tighten=0.1)
    with pytest.raises(ValueError, match="margin of 'a limit' must be a finite number at least 0, got -1"):
        at_most(1.0, tighten=-1)


def test_the_margin_of_a_rate_gives_the_power_asked_for():
    """At the tightened limit the binomial probability of showing the limit is the power, up to its steps."""
    x, y, group = data(2000)
    n = int((y == 1).sum())
    limits = Limits(recall=at_least(0.8))

    def recall(m, b):
        return losses(m, b)[0], {"recall": losses(m, b)[1]["recall"]}

    tight = tighten(limits, net(), [(x, y, group)], recall, confidence=0.95, power=0.9)
    target = 0.8 + tight.limits["recall"].tighten
    shown = [
        judge({"recall": rate(k / n, n)}, limits.limits, 0.95).shown for k in range(n + 1)
    ]  # of k recalled samples of n
    power = sum(stats.binom.pmf(k, n, target) for k in range(n + 1) if shown[k])
    assert power == pytest.approx(0.9, abs=1e-6)
    half = tighten(limits, net(), [(x, y, group)], recall, share=0.5)
    assert half.limits["recall"].tighten > tight.limits["recall"].tighten
    with pytest.raises(ValueError, match=r"\d+ held-out samples of 'recall' cannot show its limit .* at least 21 are"):
        tighten(limits, net(), [(x, y, group)], recall, share=10 / n, confidence=0.99)  # 0.8^21 < 0.01 < 0.8^20
    with pytest.raises(ValueError, match="share must be positive and power between 0 and 1"):
        tighten(limits, net(), [(x, y, group)], recall, power=1.0)


def test_margins_of_other_terms():
    x, y, group = data(2000)
    limits = Limits(recall=at_least(0.1), gap=between(-0.9, 0.9), loss=at_most(0.9), norm=at_most(9.0))
    tight = tighten(limits, net(), [(x, y, group)], losses)
    p = torch.sigmoid(net()(x)[:, 0]).detach()
    level, miss = 0.05 / 4, 0.1 / 4
    width = empirical_bernstein(0.0, p.var().item(), 2000, 1.0, level)
    wanted = width + stats.norm.ppf(1 - miss) * p.std().item() / math.sqrt(2000)
    assert tight.limits["loss"].tighten == pytest.approx(wanted, rel=1e-9)
    assert tight.limits["gap"].tighten > 0
    assert tight.limits["norm"].tighten == 0
    assert tight.limits["recall"].upper == math.inf


# Simulation; benchmarks/confidence.py runs more of it.


@pytest.mark.parametrize("kind", list(simulation.KINDS))
def test_statements_are_false_at_most_at_their_level(kind):
    """Ten limits just beyond the truth. The bound on false repetitions fails once in 1000 at a true level of 0.05."""
    false = sum(simulation.repetition(kind, 10, seed)[0] for seed in range(60))
    assert false <= stats.binom.ppf(0.999, 60, 0.05)


def test_tightened_training_is_shown_on_held_out_data():
    assert [simulation.trained(True, seed)[:2] for seed in range(2)] == [(True, False)] * 2
    text = simulation.table(simulation.simulate(1, (1,)), simulation.train_all(1))
    assert "with `tighten`" in text
    assert "| 0/1 rate | 1 |" in text
