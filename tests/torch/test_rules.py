"""Dual rules: by hand, and the same for numbers, vectors and tensors, whole or masked."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gdpa.torch
from gdpa.torch.rules import RULES, Damped, Feedback, NuPI, Paper, PenaltyBarrier, TwoSample, make_rule
from gdpa.torch.rules.base import Part, advance
from tests.torch.helpers import advance_each

NAMES = list(RULES)


def state(rule, m, seed=0, **entries):
    """A dual state in the middle of a run."""
    rng = np.random.default_rng(seed)
    dual = {"dual_steps": 25, "ratio": rng.uniform(0.1, 2, m), "limit": np.where(rng.random(m) < 0.5, 1.0, np.inf)}
    for key, vector in rule.vectors.items():
        dual[key] = rng.random(m) < 0.5 if vector.start is False else rng.uniform(0.1, 2, m)
    dual |= {key: scalar.start for key, scalar in rule.scalars().items()}
    return {**dual, **entries}


def as_lists(dual):
    return {key: value.tolist() if isinstance(value, np.ndarray) else value for key, value in dual.items()}


def as_tensors(dual):
    return {key: torch.from_numpy(value) if isinstance(value, np.ndarray) else value for key, value in dual.items()}


def whole(updates, dual, key):
    """The vector ``key`` after the updates."""
    value = updates.get(key, dual[key])
    if isinstance(value, Part):
        full = np.array(dual[key])
        full[value.positions] = value.numbers
        return full
    return np.asarray(value)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=15)
@given(
    g=st.lists(st.floats(-3, 3, width=32), min_size=2, max_size=12),
    seed=st.integers(0, 1000),
    equalities=st.integers(0, 1),
    masked=st.booleans(),
)
def test_numbers_vectors_and_tensors_agree(name, g, seed, equalities, masked):
    rule, m, values = RULES[name](), len(g), np.array(g)
    dual = state(rule, m, seed)
    present = np.random.default_rng(seed).random(m) < 0.6 if masked else None
    updates, w = advance(rule, dual, values, present, equalities)
    mask = None if present is None else present.tolist()
    each, w_each = advance_each(rule, as_lists(dual), g, mask, m - equalities)
    tensors, w_tensors = advance(
        rule, as_tensors(dual), torch.tensor(g, dtype=torch.float64),
        None if present is None else torch.from_numpy(present), equalities,
    )  # fmt: skip
    assert w_each == pytest.approx(w.tolist(), rel=1e-12)
    assert w_tensors.tolist() == pytest.approx(w.tolist(), rel=1e-12)
    few = advance(rule, dual, values, np.ones(m, bool) if present is None else present, equalities)
    assert few[1].tolist() == pytest.approx(w.tolist(), rel=1e-12)
    for key in rule.vectors:
        expected = pytest.approx(whole(updates, dual, key).astype(float).tolist(), rel=1e-12)
        for other in (each, tensors, few[0]):
            assert whole(other, dual, key).astype(float).tolist() == expected
        if present is not None:
            assert np.array_equal(whole(updates, dual, key)[~present], dual[key][~present])  # absent stands still
    if present is not None:
        assert (w[~present] == 0).all()
    assert updates["dual_steps"] == 26
    assert (whole(updates, dual, "multipliers")[: m - equalities] >= 0).all()
    # and permuting the constraints permutes the answer
    if not equalities and not masked:
        order = np.random.default_rng(seed).permutation(m)
        shuffled = {k: v[order] if isinstance(v, np.ndarray) else v for k, v in dual.items()}
        assert advance(rule, shuffled, values[order], None, 0)[1].tolist() == pytest.approx(w[order].tolist())


def run(rule, gs, **entries):
    """Weights and multipliers of one constraint through the values ``gs``, from the rule's own start."""
    dual: dict[str, Any] = {key: [float(vector.start)] for key, vector in rule.vectors.items()}
    dual |= {key: scalar.start for key, scalar in rule.scalars().items()}
    dual |= {"dual_steps": 0, **{key: [value] for key, value in entries.items()}}
    if "gate" in dual:
        dual["gate"] = [False]
    trail = []
    for g in gs:
        updates, (w,) = advance_each(rule, dual, [g], None, 1)
        dual |= updates
        trail.append((w, dual["multipliers"][0]))
    return trail, dual


def test_paper_by_hand():
    # tau = .5, beta = 2 constant, g = 2, 1.5: w_1 = 2 * 2; lambda_2 = 0 + 2 * 1.5 = 3, w_2 = .5 * 3 + 2 * 1.5
    trail, _ = run(Paper(beta=2.0, tau=0.5, beta_power=0.0), [2.0, 1.5])
    assert trail == [(4.0, 0.0), (4.5, 3.0)]
    assert run(Paper(beta=2.0), [1.0] * 8)[1]["beta_r"] == pytest.approx(4.0)  # 2 r^(1/3) at r = 8


def test_the_constants_of_the_paper_and_the_ranges_of_a_saved_state():
    """beta_0 = 1, tau = 0.1 as documented; tau lies in (0, 1], a gate is 0 or 1, beta_r is 0 before the first step."""
    scalars, gate = Paper().scalars(), Paper.vectors["gate"]
    assert (scalars["beta"].start, scalars["tau"].start, scalars["beta_r"].start) == (1.0, 0.1, 0.0)
    assert (scalars["tau"].low, scalars["tau"].high, scalars["tau"].open_low) == (0.0, 1.0, True)
    assert (gate.start, gate.low, gate.high) == (False, 0, 1)


def test_no_damping_is_a_damping_of_one():
    assert Damped(damping=1.0).scalars()["damping"].high == 1.0


def test_damped_by_hand():
    # rho = 2, G = 4: beta = .1 * 2 / 4 = .05; lambda = .1 * .05 * 4 = .02, w = .02 + .05 * 4 = .22.
    # then g = 2: lambda = .02 + .1 (.02 + .05 * 2 - .02) = .03, w = .03 + .1
    trail, dual = run(Damped(), [4.0, 2.0], ratio=2.0)
    assert [x for pair in trail for x in pair] == pytest.approx([0.22, 0.02, 0.13, 0.03])
    assert dual["size"] == [4.0]
    assert run(Damped(), [4.0], ratio=0.0)[0] == [(0.0, 0.0)]  # not calibrated: no weight
    assert run(Damped(), [4.0], ratio=0.0)[1]["size"] == [0.0]  # and nothing seen
    assert run(Damped(), [-4.0], ratio=0.5)[1]["size"] == [4.0]
    # below 1, too: G = .5, beta = .4, lambda = .1 * .4 * .5 = .02, w = .02 + .2
    assert run(Damped(), [0.5], ratio=2.0)[0][0] == pytest.approx((0.22, 0.02))
    # three times the rate: beta = .15, lambda = .1 * .15 * 4 = .06, w = .06 + .6
    assert run(Damped(dual_rate=3.0), [4.0], ratio=2.0)[0][0] == pytest.approx((0.66, 0.06))


def test_nupi_by_hand():
    # xi = .1 * 2 = .2: lambda = .01 * 2 + .1 * .2 = .04; then g = -1, xi = .2 + .1 (-1.2) = .08:
    # lambda = .04 - .01 - .1 * .12 = .018. The gains of Lemma 2 of the paper.
    trail, _ = run(NuPI(), [2.0, -1.0])
    assert [lam for _, lam in trail] == pytest.approx([0.04, 0.018])
    assert [w for w, _ in trail] == pytest.approx([0.04, 0.018])


def test_penalty_barrier_by_hand():
    # lambda = .01, p = 1. g = 1: w = .01 (1 + 1) = .02, lambda = .01 + .1 * .01 = .011, p = .999.
    # g = -.999: t = -1, slope = 1/4: w = .00275, lambda = .011 - .1 * .00825 = .010175
    trail, dual = run(PenaltyBarrier(), [1.0, -0.999])
    assert [x for pair in trail for x in pair] == pytest.approx([0.02, 0.011, 0.00275, 0.010175])
    assert dual["penalties"] == pytest.approx([0.999**2])


def test_penalty_barrier_near_its_limit():
    # 1 - gamma is at most 1, so lambda = w: .01 (1 + .25), then t = -.25: .0125 (1 - .25)
    trail, _ = run(PenaltyBarrier(dual_rate=20.0), [0.25, -0.25 * 0.999])
    assert [x for pair in trail for x in pair] == pytest.approx([0.0125, 0.0125, 0.009375, 0.009375])
    assert run(PenaltyBarrier(shrink=0.25), [0.0] * 3)[1]["penalties"] == [0.1]  # .25, then not below .1


@pytest.mark.parametrize("name", NAMES)
def test_every_state_of_a_run_can_be_loaded(name):
    def fresh():
        w = torch.nn.Parameter(torch.zeros(2))
        return w, gdpa.torch.constrain(torch.optim.SGD([w], lr=0.01), ["met", "violated"], rule=name)

    w, opt = fresh()
    for _ in range(12):
        opt.zero_grad()
        opt.lagrangian(w.square().sum(), torch.stack([w[0] - 1, 1 - w[1]])).backward()
        opt.step()
    _, other = fresh()
    other.load_state_dict(opt.state_dict())
    assert torch.equal(other.multipliers, opt.multipliers)


def test_two_samples_by_hand():
    # rho = 1, eta = .01: w = 2, lambda = .02; then g = -.01: w = .01, lambda = .02 - .0001
    trail, _ = run(TwoSample(), [2.0, -0.01])
    assert [x for pair in trail for x in pair] == pytest.approx([2.0, 0.02, 0.01, 0.0199])
    assert run(TwoSample(dual_rate=2.0), [2.0])[0] == [(2.0, pytest.approx(0.04))]


class TestFeedback:
    def test_by_hand_with_a_known_limit(self):
        # limit 1, rho = 2. g = 2 is above it: e = 2, xi = .2, u = 1/2: integral = .02 * .2 / 2 = .002;
        # lambda = 2 (.002 + .3 * .2 * 1.002 / 2), w = 0: the weight lags by one batch.
        # g = 1.8: variance = .5 * .2^2 / 2 = .01, 2 sigma = .2 < 1; e = 1.8, xi = .2 + .1 * 1.6 = .36.
        trail, dual = run(Feedback(), [2.0, 1.8], ratio=2.0, limit=1.0)
        first = 2 * (0.002 + 0.06 * 1.002 / 2)
        assert trail[0] == pytest.approx((0.0, first))
        integral = 0.002 + 0.0072 * 1.002 / 2
        assert trail[1] == pytest.approx((first, 2 * (integral + 0.108 * (1 + integral) / 2)))
        assert dual["integral"] == pytest.approx([integral])
        assert dual["variance"] == pytest.approx([0.01])
        assert dual["seen"] == [2.0]

    def test_by_hand_without_a_limit(self):
        # the size is the root mean square of g: 4, then sqrt((16 + 4) / 2); the noise is smaller: 2 sigma = 2.
        trail, dual = run(Feedback(), [4.0, 2.0], ratio=1.0, limit=float("inf"))
        assert trail[0][1] == pytest.approx(0.001 + 0.03 * 1.001 / 2)  # e = 1, xi = .1
        xi = 0.1 + 0.1 * (2 / 10**0.5 - 0.1)
        integral = 0.001 + 0.02 * xi * 1.001 / 2
        assert trail[1][1] == pytest.approx(integral + 0.3 * xi * (1 + integral) / 2)
        assert dual["square"] == [10.0]

    def test_errors_are_cut_and_noise_is_a_unit(self):
        trail, _ = run(Feedback(), [100.0], ratio=1.0, limit=1.0)
        assert trail[0][1] == pytest.approx(0.003 + 0.09 * 1.003 / 2)  # e = 3, xi = .3
        # from the second batch on xi > .5 is cut at .5: the integral grows by the factor 1 + .02 * .5 / 2 less 1
        _, dual = run(Feedback(), [100.0] * 50, ratio=1.0, limit=1.0)
        assert dual["smoothed"][0] > 2.9
        assert 1 + dual["integral"][0] == pytest.approx(1.003 * 1.005**49)
        # g = +-10 in turn: sigma^2 = 200, 2 sigma = 28: the error is 10 / 28, not the cut 3
        _, dual = run(Feedback(), [10.0, -10.0] * 20, ratio=1.0, limit=1.0)
        assert dual["variance"] == pytest.approx([200.0], rel=0.05)
        assert abs(dual["smoothed"][0]) < 0.1

    def test_the_dual_rate_multiplies_the_gains_up_to_the_cut(self):
        # g = .1 is smaller than its limit, so it is the unit: e = 1, xi = .1, 3 xi = .3
        trail, _ = run(Feedback(dual_rate=3.0), [0.1], ratio=1.0, limit=1.0)
        assert trail[0][1] == pytest.approx(0.003 + 0.09 * 1.003 / 2)
        _, fast = run(Feedback(dual_rate=30.0), [100.0] * 50, ratio=1.0, limit=1.0)
        assert 1 + fast["integral"][0] == pytest.approx(1.005**50)

    def test_noise_does_not_drift(self):
        """A multiplier that noise multiplies at every step would fall like the geometric mean of the factors."""
        rule, m, rng = Feedback(), 200, np.random.default_rng(0)
        dual: dict[str, Any] = {key: np.full(m, float(vector.start)) for key, vector in rule.vectors.items()}
        dual |= {"dual_steps": 0, "dual_rate": 1.0, "ratio": np.ones(m), "limit": np.full(m, 0.1)}
        dual["integral"] = np.ones(m)
        for _ in range(1000):
            dual |= advance(rule, dual, rng.normal(0, 1, m), None, 0)[0]
        assert dual["integral"].mean() == pytest.approx(1.0, abs=0.05)
        assert dual["multipliers"].mean() == pytest.approx(1.0, abs=0.05)

    def test_a_rare_group_counts_for_the_batches_it_is_absent_from(self):
        # seen once in 4 steps: q = 4. e = 1, xi = .1, u = q / 2: integral = .02 * 4 * 2 * .1 = .016
        rule = Feedback()
        dual: dict[str, Any] = {key: [float(vector.start)] for key, vector in rule.vectors.items()}
        dual |= {"dual_steps": 3, "dual_rate": 1.0, "ratio": [1.0], "limit": [1.0]}
        updates, _ = advance_each(rule, dual, [1.0], None, 1)
        assert updates["integral"] == pytest.approx([0.016])
        assert updates["multipliers"] == pytest.approx([0.016 + 0.03 * 4.016 / 2])
        updates, _ = advance_each(rule, dual | {"dual_steps": 999}, [1.0], None, 1)
        assert updates["integral"] == pytest.approx([0.02 * 10 * 5 * 0.1])  # at most 10

    def test_a_ratio_that_is_measured_again_takes_the_multiplier_along(self):
        gs = np.random.default_rng(0).normal(0.3, 1, 30).tolist()
        large, small = (run(Feedback(), gs, ratio=rho, limit=1.0)[1] for rho in (100.0, 1.0))
        assert large["multipliers"][0] == pytest.approx(100 * small["multipliers"][0])
        assert large["integral"] == small["integral"]

    def test_running_means_forget(self):
        # after many batches a new one has a share of .01 in the square and of .02 in the variance
        _, dual = run(Feedback(), [1.0] * 1000 + [3.0], ratio=1.0, limit=1.0)
        assert dual["square"] == pytest.approx([1 + 0.01 * (9 - 1)])
        assert dual["variance"] == pytest.approx([0.02 * 0.5 * (3 - 1) ** 2])
        # a square of 1e4 in the first batch: 1e-5 of it stays, however small g is later
        _, dual = run(Feedback(), [100.0] + [0.01] * 1999, ratio=1.0, limit=float("inf"))
        assert dual["square"][0] < 5
        assert dual["smoothed"] == pytest.approx([0.01 / 0.1**0.5], rel=1e-3)

    def test_changes_of_sign_lower_the_gain(self):
        gs = [1.0, 1.0, 1.0, -1.5, -1.5, -1.5, -1.5, 2.0, 2.0, 2.0, 2.0, 0.1]
        _, before = run(Feedback(), gs[:-1], ratio=2.0, limit=1.0)
        _, after = run(Feedback(), gs, ratio=2.0, limit=1.0)
        turned = [i for i in range(1, len(gs)) if run(Feedback(), gs[:i], ratio=2.0, limit=1.0)[1]["smoothed"][0]
                  * run(Feedback(), gs[: i + 1], ratio=2.0, limit=1.0)[1]["smoothed"][0] < 0]  # fmt: skip
        assert len(turned) == 2
        assert after["turns"] == pytest.approx([sum(0.99 ** (len(gs) - 1 - i) for i in turned)])
        ((turns,), (xi,), (old,)) = after["turns"], after["smoothed"], before["integral"]
        assert 0 < xi < 0.35  # noise could be as large
        drive = xi / (1 + turns / 6)
        new = old + 0.02 * (1 + old) / 2 * drive
        assert after["integral"] == pytest.approx([new])
        assert after["multipliers"] == pytest.approx([2.0 * (new + 0.3 * (1 + new) / 2 * drive)])

    def test_no_ratio_no_weight(self):
        trail, _ = run(Feedback(), [1.0] * 5, ratio=0.0, limit=1.0)
        assert trail == [(0.0, 0.0)] * 5

    def test_a_constraint_that_is_zero_is_no_trouble(self):
        assert run(Feedback(), [0.0] * 3, ratio=1.0, limit=float("inf"))[0][-1] == (0.0, 0.0)

    @pytest.mark.parametrize("scale", [1e-4, 1e4])
    def test_units_of_g_cancel(self, scale):
        gs = np.random.default_rng(0).normal(0.3, 1, 200)
        plain, _ = run(Feedback(), gs.tolist(), ratio=2.0, limit=float("inf"))
        scaled, _ = run(Feedback(), (gs * scale).tolist(), ratio=2.0 / scale, limit=float("inf"))
        assert [w * scale for w, _ in scaled] == pytest.approx([w for w, _ in plain], rel=1e-9)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("fast", None), "rule must be one of"),
        ((Feedback, None), "rule must be one of"),
        (("feedback", 0.0), "dual_rate must be a positive finite number, got 0.0"),
        (("feedback", float("inf")), "dual_rate must be a positive"),
        (("feedback", True), "dual_rate must be a positive"),
        (("paper", 2.0), 'the rule "paper" has no dual_rate'),
        ((Feedback(), 2.0), "give it to the rule itself"),
    ],
)
def test_bad_rules(arguments, message):
    with pytest.raises(ValueError, match=message):
        make_rule(*arguments)


@pytest.mark.parametrize("damping", [0.0, 1.5, "much"])
def test_bad_damping(damping):
    with pytest.raises(ValueError, match="damping must"):
        Damped(damping=damping)
