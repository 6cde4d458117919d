"""Defects that users reported, each by its number in the list of corrections."""

from __future__ import annotations

import copy
import math
import warnings

import numpy as np
import pytest
import torch

import gdpa.torch
from gdpa.torch import CSVWriter, Limits, NonFiniteWarning, at_least, at_most, between, certify
from gdpa.torch.limits import Roster
from gdpa.torch.report import diagnose
from tests.torch.helpers import KINDS, batch, duals, flat, make, network, same, terms, train


def param(*shape, **kwargs):
    return torch.nn.Parameter(torch.ones(*shape, **kwargs))


# Safety.


@pytest.mark.parametrize("bad", [-math.inf, math.inf, math.nan])
@pytest.mark.parametrize("where", ["g", "term"])
def test_b5_one_batch_that_is_not_finite_is_not_feasible(bad, where):
    net = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.ones_(net.weight)

    def losses(net, x):
        value = net(x).mean() if where == "g" else gdpa.torch.terms.mean(net(x)[:, 0])
        return net(x).square().mean().nan_to_num(0.0, 0.0, 0.0), {"level": value}

    batches = [torch.full((4, 1), 10.0), torch.full((4, 1), bad), torch.full((4, 1), 10.0)]
    found = certify(net, batches, losses, constraints=Limits(level=at_most(5.0)), stationarity=False, tolerance=0.1)
    assert not found.feasible
    assert found.violation == math.inf
    assert str(found).splitlines()[2].endswith("NO")


def test_b6_finish_prefers_weights_with_a_finite_objective():
    x = param(1)
    net = torch.nn.Module()
    net.x = x
    opt = gdpa.torch.constrain(torch.optim.SGD([x], lr=0.0), ["low"])
    for _ in range(10):
        opt.zero_grad()
        opt.lagrangian(x.sum(), {"low": x.sum() - 2}).backward()
        opt.step()
    with torch.no_grad():
        x.fill_(-1.0)  # the last weights: feasible, objective log(-1); the average is 1

    def losses(net, _):
        return net.x.log().sum(), {"low": net.x.sum() - 2}

    done = opt.finish(net, [torch.ones(1)], losses)
    assert done.chosen == "average"
    assert x.item() == 1.0


@pytest.mark.parametrize("stop_at", [1, 2, 3])
def test_b7_an_interrupted_finish_restores_batch_norm_and_weights(stop_at):
    net = torch.nn.Sequential(torch.nn.BatchNorm1d(2), torch.nn.Linear(2, 1))
    opt = gdpa.torch.constrain(torch.optim.SGD(net.parameters(), lr=0.1), ["mean"])

    def losses(net, x):
        return net(x).square().mean(), {"mean": 0.1 - net(x).mean()}

    for i in range(12):
        opt.zero_grad()
        opt.lagrangian(*losses(net, batch(i)[:, :2])).backward()
        opt.step()
    before = copy.deepcopy(net.state_dict())

    class Loader:
        passes = 0

        def __iter__(self):
            self.passes += 1
            yield batch(0)[:, :2]
            if self.passes == stop_at:
                raise KeyboardInterrupt
            yield batch(1)[:, :2]

    with pytest.raises(KeyboardInterrupt):
        opt.finish(net, Loader(), losses)
    assert net[0].momentum == 0.1
    assert net.training
    assert all(torch.equal(value, before[key]) for key, value in net.state_dict().items())


def masked_means(x, form, groups):
    """Return means over groups of which the last has no sample in the batch: 0 / 0."""
    mask = torch.zeros(4, groups)
    mask[torch.arange(4), torch.arange(4) % (groups - 1)] = 1.0
    mask[:, : groups - 1] += 1.0
    if form == "division":
        return (x[:, None] * mask).sum(0) / mask.sum(0) - 0.5
    means = [(x * mask[:, i]).sum() / mask[:, i].sum() - 0.5 for i in range(groups)]
    return torch.stack(means) if form == "stack" else {f"g{i}": g for i, g in enumerate(means)}


@pytest.mark.parametrize("accumulate", [None, "exact", "stale"])
@pytest.mark.parametrize("groups", [3, 12])
@pytest.mark.parametrize("form", ["dict", "stack", "division"])
@pytest.mark.parametrize("kind", ["paper", "sgd"])
def test_b8_an_absent_masked_mean_does_not_poison_the_step(kind, form, groups, accumulate):
    x = param(4)
    names = [f"g{i}" for i in range(groups)]
    opt = make(kind, [x], names, equalities=(), nan="absent", accumulate=accumulate)
    if accumulate == "exact":
        with torch.no_grad():
            opt.add_micro_batch(x.square().sum(), masked_means(x, form, groups))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        opt.lagrangian(x.square().sum(), masked_means(x, form, groups)).backward()
        assert torch.isfinite(x.grad).all()
        opt.step()
    assert opt.dual_steps == 1
    assert opt.report()[names[-1]].absent
    assert not opt.report()[names[0]].absent


def test_b8_capturable_steps_leave_absent_means_out():
    x = param(4)
    opt = gdpa.torch.GDPA([x], 3, nan="absent", capturable=True)
    opt.lagrangian(x.square().sum(), masked_means(x, "division", 3)).backward()
    assert torch.isfinite(x.grad).all()


def test_b8_the_warning_names_the_absent_group():
    x = param(1)
    opt = gdpa.torch.GDPA([x], ["all", "one"], nan="absent")
    opt.lagrangian(x.sum(), torch.stack([x.sum(), (x - 2).sqrt().sum()])).backward()  # NaN by no division
    with pytest.warns(NonFiniteWarning, match=r"gradient of parameter 0 .* Absent from the batch: one; a mean over no"):
        opt.step()


def test_b9_csv_drops_a_torn_row(tmp_path):
    path = tmp_path / "run.csv"
    net = network()
    opt = make("paper", net.parameters())
    opt.observe_steps(CSVWriter(path))
    train(net, opt, 2)
    whole = path.read_bytes()
    path.write_bytes(whole + b"3,0.1")  # killed while writing
    again = make("paper", net.parameters())
    again.load_state_dict(opt.state_dict())
    again.observe_steps(CSVWriter(path))
    assert path.read_bytes() == whole
    train(net, again, 1)
    assert [line.split(",")[0] for line in path.read_text().splitlines()] == ["step", "1", "2", "3"]
    path.write_bytes(b"step,obj")  # killed while writing the header
    again.observe_steps(CSVWriter(path))
    assert path.read_text().startswith("step,objective,mean value")


def test_b9_a_writer_that_fails_does_not_stop_training(tmp_path):
    path = tmp_path / "run.csv"
    net = network()
    opt = make("paper", net.parameters())
    opt.observe_steps(CSVWriter(path))
    path.unlink()
    path.mkdir()  # no row can be written any more
    with pytest.warns(RuntimeWarning, match="step 1 is missing in"):
        train(net, opt, 1)

    def observer(snapshot):
        raise ValueError("no")

    opt = make("paper", net.parameters())
    opt.observe_steps(observer)
    with pytest.raises(ValueError, match="no") as caught:
        train(net, opt, 1)
    assert "step 1 was taken" in caught.value.__notes__[0]
    assert opt.dual_steps == 1


@pytest.mark.parametrize("kind", KINDS)
def test_b19_a_step_without_backward_moves_nothing_and_warns(kind):
    net = network()
    opt = make(kind, net.parameters())
    train(net, opt, 12)
    before, point = duals(opt), flat(net)
    opt.zero_grad()
    opt.lagrangian(*terms(net, batch(0)))
    with pytest.warns(RuntimeWarning, match=r"step skipped: no backward pass has run .* Call loss.backward\(\)"):
        opt.step()
    f, g = terms(net, batch(0))
    opt.lagrangian(f, g)
    f.backward(retain_graph=True)  # the loss without the constraints
    with pytest.raises(RuntimeError, match="did not go through the loss that lagrangian returned"):
        opt.step()
    assert same(before, duals(opt))
    assert torch.equal(point, flat(net))
    opt.zero_grad()
    opt.lagrangian(*terms(net, batch(0))).backward(retain_graph=True)
    opt.step()
    assert opt.dual_steps == 13


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("lr", math.nan, "lr is nan, which must be a finite number in"),
        ("lr", -1.0, "lr is -1.0"),
        ("lr", "fast", "lr is 'fast'"),
        ("dual_steps", 2**70, "dual_steps is 1180591620717411303424"),
        ("multipliers", 1e308, r"multipliers of 'mean' is 1e\+308, which must be a finite number in \[0, 1e\+100\]"),
        ("multipliers", math.inf, "multipliers of 'mean' is inf"),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_b20_poisoned_states_are_refused(kind, key, value, message):
    opt = make(kind, network().parameters())
    state = copy.deepcopy(opt.state_dict())
    group = state["param_groups"][0]
    group[key] = torch.full_like(group[key], value) if key == "multipliers" else value
    with pytest.raises(ValueError, match=message):
        opt.load_state_dict(state)
    assert opt.multipliers.tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_b20_multipliers_of_equalities_are_finite(bad):
    opt = make("paper", network().parameters())
    state = opt.state_dict()
    state["param_groups"][0]["multipliers"][2] = bad
    with pytest.raises(ValueError, match="multipliers of 'balance' is"):
        opt.load_state_dict(state)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("dtype", "device"), [(torch.float64, "cpu"), (torch.float32, "meta")])
def test_b22_other_defaults_of_torch_change_nothing(kind, dtype, device):
    nets, batches = [network(), network()], {i: batch(i) for i in range(70)}
    found = []
    for net, (kind_of_number, where) in zip(nets, [(torch.float32, "cpu"), (dtype, device)], strict=True):
        torch.set_default_dtype(kind_of_number)
        torch.set_default_device(where)
        try:
            opt = make(kind, net.parameters(), nan="absent")
            for i in range(70):
                opt.zero_grad()
                opt.lagrangian(*terms(net, batches[i])).backward()
                opt.step()
            opt.load_state_dict(opt.state_dict())
            found.append((flat(net), opt.multipliers, str(opt.report())))
        finally:
            torch.set_default_dtype(torch.float32)
            torch.set_default_device(None)
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])
    assert found[0][2] == found[1][2]


# The first five minutes.


def course(g, lam, names, ratio=None):
    """Return the advice on a run whose last 200 values and multipliers are given by column."""
    g, lam = (np.stack(columns, axis=1) for columns in (g, lam))
    return [line for _, line in diagnose(Roster(names), g, lam, None if ratio is None else np.array(ratio))]


def test_n4_advice_is_about_the_set_of_limits_in_conflict():
    steps, rng = np.linspace(0, 1, 200), np.random.default_rng(0)
    names = ["recall", "a", "b", "c", "d", "e", "f", "loose"]
    g = [0.05 + 0.01 * rng.standard_normal(200) for _ in names[:-1]] + [-0.1 + 0 * steps]
    lam = [1 + 0.01 * steps for _ in names[:-1]] + [0 * steps]
    (line,) = course(g, lam, names)
    assert line.startswith(
        "The limits 'recall', 'a', 'b', 'c', 'd' and 2 more pull against each other: all of them stay"
    )
    assert "loose" not in line
    assert "relax some of them" in line


def test_n4_the_last_line_counts_the_limits_met():
    x = param(3)
    opt = gdpa.torch.constrain(torch.optim.SGD([x], lr=0.0), Limits(a=at_most(0.5), b=at_most(1.0), c=at_most(2.0)))
    opt.lagrangian(x.sum(), {"a": x[0], "b": x[1], "c": x[2]}).backward()
    opt.step()
    assert str(opt.report()).splitlines()[-1] == "2 of 3 limits met"
    line = str(opt.report(tolerance=1.0)).splitlines()[-1]
    assert line == "3 of 3 limits met (a violation of up to 100 % of the limit counts as met)"


def test_n5_nothing_is_said_of_limits_that_hold_with_a_multiplier_near_zero():
    t = np.arange(200) / 8.0
    swinging, steady = 0.003 * (1 + np.sin(t)), 1 + 0 * t
    g = [np.cos(t) - 0.02, -0.1 + 0 * t]
    assert course(g, [swinging, 0 * t], ["recall", "rest"], [1.0, 1.0]) == []
    assert course(g, [swinging, steady], ["recall", "rest"]) == []
    assert "'recall' oscillates" in course(g, [100 * swinging, steady], ["recall", "rest"], [1.0, 1.0])[0]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda base, x: gdpa.torch.constrain(base), r"got None; write e.g. Limits\(recall=at_least\(0.9\)\)"),
        (
            lambda base, x: gdpa.torch.constrain(base, {"recall": 0.9}),
            r"got the dict \{'recall': 0.9\}; write Limits\(\{'recall': at_least\(0.9\)\}\), or at_most",
        ),
        (
            lambda base, x: gdpa.torch.constrain(base, ["a"]).lagrangian((x.sum(), {"a": x[0]})),
            r"lagrangian takes f and g as two arguments; of a pair write opt.lagrangian\(\*losses\(...\)\)",
        ),
        (
            lambda base, x: gdpa.torch.constrain(base, ["a"]).lagrangian(x.sum(), {"a": x[0], "accuracy": x[1]}),
            r"have unknown \['accuracy'\]; .* keep metrics without a limit in a dict of their own",
        ),
    ],
)
def test_messages_name_the_remedy(call, message):
    x = param(3)
    with pytest.raises((TypeError, KeyError), match=message):
        call(torch.optim.SGD([x], lr=0.1), x)


# Hundreds of limits.


def test_c1_ratios_of_constraints_without_sizes_do_not_spread():
    """100 constraints that are statistically equal, in a state in which none is measured any more."""
    torch.manual_seed(0)
    x = param(100, dtype=torch.float64)
    opt = gdpa.torch.constrain(torch.optim.SGD([x], lr=0.0), 100)
    for _ in range(40):
        opt.zero_grad()
        noise = torch.randn(100, dtype=torch.float64)
        opt.lagrangian(x.square().sum(), 1e-3 * x + noise).backward()
        opt.step()
    ratio = opt.dual_state.state_dict()["ratio"]
    assert (ratio > 0).sum() > 90
    assert ratio[ratio > 0].max() < 5 * ratio[ratio > 0].min()


def test_c3_one_size_for_all_constraints():
    x = param(3)
    base = torch.optim.SGD([x], lr=0.0)
    opt = gdpa.torch.constrain(base, 3, sizes=0.1)
    opt.lagrangian(x.sum(), x - 0.95).backward()
    opt.step()
    assert "50 %" in str(opt.report())  # 0.05 of 0.1
    for bad in (0.0, [0.1, 0.2], [0.1, 0.2, -1.0]):
        with pytest.raises(ValueError, match="sizes must be one positive number, or 3 of them"):
            gdpa.torch.constrain(base, 3, sizes=bad)


@pytest.mark.parametrize(("sizes", "met"), [(0.1, False), (10.0, True), (None, False)])
def test_c4_the_tolerance_of_finish_is_a_share_of_the_size(sizes, met):
    net = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.ones_(net.weight)
    opt = gdpa.torch.constrain(torch.optim.SGD(net.parameters(), lr=0.0), 1, sizes=sizes)

    def losses(net, x):
        return net(x).sum(), net(x)[:1, 0] - 0.992  # violated by 0.008

    opt.lagrangian(*losses(net, torch.ones(1, 1))).backward()
    opt.step()
    assert opt.finish(net, [torch.ones(1, 1)], losses).certificate.feasible == met


def test_c5_the_worst_rows_come_first():
    x = torch.nn.Parameter(torch.linspace(-1, 1, 50))
    opt = gdpa.torch.constrain(torch.optim.SGD([x], lr=0.0), [f"g{i}" for i in range(50)])
    opt.lagrangian(x.sum(), x).backward()
    opt.step()
    lines = str(opt.report()).splitlines()
    assert [line.split()[0] for line in lines[2:22]] == [f"g{i}" for i in range(49, 29, -1)]
    assert lines[22:] == ["The 30 constraints not shown have smaller violations or none.", "25 of 50 limits met"]


def test_c7_multipliers_under_noise_settle_at_the_optimum():
    """min |x - 2|^2 / 2 over x <= 1 with noise of deviation 1 on g: x* = 1, multipliers 1, f* = 1/2 for each entry."""
    torch.manual_seed(0)
    x = torch.nn.Parameter(torch.zeros(40))
    opt = gdpa.torch.constrain(torch.optim.SGD([x], lr=0.02), 40, sizes=0.5)
    points, multipliers = [], []
    for _ in range(1500):
        opt.zero_grad()
        opt.lagrangian((x - 2).square().sum() / 2, x - 1 + torch.randn(40)).backward()
        opt.step()
        points.append(x.detach().clone())
        multipliers.append(opt.multipliers.detach().clone())
    x_late, late = torch.stack(points[750:]), torch.stack(multipliers[750:])
    assert late.mean() == pytest.approx(1, abs=0.03)
    assert late.std(0).mean() < 0.15  # 0.24 if all errors act with the full gain
    assert ((x_late - 2) ** 2 / 2).mean() == pytest.approx(0.5, rel=0.03)


def test_n15_plot_draws_values_limits_and_multipliers():
    plt = pytest.importorskip("matplotlib.pyplot")
    x = torch.nn.Parameter(torch.tensor([2.0], dtype=torch.float64))
    opt = gdpa.torch.constrain(torch.optim.SGD([x], lr=0.05), Limits(size=at_most(1.0), far=at_least(-9.0)))
    with pytest.raises(RuntimeError, match="no step has used the constraints yet"):
        opt.plot()
    for _ in range(2100):  # longer than the picture has points
        opt.zero_grad()
        opt.lagrangian((x[0] - 3) ** 2, {"size": x[0], "far": x[0]}).backward()
        opt.step()
    figure = opt.plot()
    size, far, multipliers = figure.axes
    assert (size.get_ylabel(), far.get_ylabel(), multipliers.get_ylabel()) == ("size", "far", "multiplier")
    values = size.lines[0]
    assert 500 <= len(values.get_xdata()) <= 1000
    assert values.get_xdata()[-1] == 2100
    assert values.get_ydata()[-1] == pytest.approx(opt.snapshot().rows[0].value)
    assert set(size.lines[2].get_ydata()) == {1.0}  # the limit
    assert multipliers.lines[0].get_ydata()[-1] == pytest.approx(opt.multipliers[0].item())
    assert len(opt.plot(names=["far"]).axes) == 2
    with pytest.raises(
        KeyError, match=r"names holds \['nothing'\], which are not constraints; there are 'size', 'far'"
    ):
        opt.plot(["nothing"])
    plt.close("all")


def test_c2_a_vector_limit_is_fed_by_one_tensor():
    x = torch.nn.Parameter(torch.tensor([0.2, 0.05, -0.3, 0.7], dtype=torch.float64))
    limits = Limits(gap=between([-0.1, -0.2, -0.3], 0.1, scale=0.1), rate=at_least(0.9), low=at_most(0.0, size=1))
    by_name = Limits({f"gap {i}": between([-0.1, -0.2, -0.3][i], 0.1, scale=0.1) for i in range(3)})
    assert limits.names[:4] == ("gap[0] (upper)", "gap[0] (lower)", "gap[1] (upper)", "gap[1] (lower)")
    assert limits.names[6:] == ("rate", "low[0]")
    g = limits.violations({"gap": x[:3], "rate": x[3], "low": x[:1]})
    assert [v.item() for v in g.values()] == pytest.approx([1, -3, -0.5, -2.5, -4, 0, 2 / 9, 0.2])
    alone = by_name.violations({f"gap {i}": x[i] for i in range(3)})
    assert [v.item() for v in alone.values()] == pytest.approx([v.item() for v in g.values()][:6])
    opt = gdpa.torch.constrain(torch.optim.SGD([x], lr=0.0), limits, nan="absent")
    count = torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64)
    opt.lagrangian(x.sum(), {"gap": x[:3] * count / count, "rate": x[3], "low": x[:1]}).backward()
    opt.step()
    rows = {row.name: row for row in opt.snapshot().rows}
    assert rows["gap[0] (upper)"].value == pytest.approx(0.2)
    assert rows["gap[1] (lower)"].absent
    assert rows["low[0]"].limit == 0.0
    assert "gap   in [-0.1, 0.1] ... in [-0.3, 0.1]" in repr(limits)
    assert "each of 3 entries" in repr(limits)
    counted = limits.by_side({"gap": [4, 0, 1], "rate": 3, "low": 2})
    assert list(counted.values()) == [4, 4, 0, 0, 1, 1, 3, 2]


@pytest.mark.parametrize(
    ("make_limits", "values", "message"),
    [
        (lambda: at_most([0.1, 0.2], size=3), None, "needs one bound, or one for each entry"),
        (lambda: at_most(0.1, size=0), None, "needs one bound, or one for each entry"),
        (lambda: at_most(0.1, size=3), lambda x: x[:2], r"the value of 'a' has shape \(2,\), expected shape \(3,\)"),
        (lambda: at_most(0.1), lambda x: x, r"has shape \(3,\), expected one number; limit a vector with size="),
        (lambda: at_most(0.1, size=3), lambda x: x.detach(), "the value of 'a' does not require a gradient"),
    ],
)
def test_c2_wrong_vectors_are_refused(make_limits, values, message):
    x = param(3)
    with pytest.raises(ValueError, match=message):
        Limits(a=make_limits()).vector({"a": values(x)})


def test_low_items_an_optimizer_prints_one_line_and_a_term_has_entries():
    net = torch.nn.Linear(2, 1)
    opt = gdpa.torch.constrain(torch.optim.SGD(net.parameters(), lr=0.1), Limits(recall=at_least(0.9)))
    assert repr(opt) == ("ConstrainedOptimizer(SGD, rule='feedback', constraints: recall; multipliers: 0; 0 steps)")
    score = torch.tensor([2.0, -1.0], requires_grad=True)
    paper = gdpa.torch.GDPA(net.parameters(), ["a"])
    assert repr(paper) == "GDPA(rule='paper', constraints: a; multipliers: 0; 0 steps)"
    term = gdpa.torch.terms.recall(score, torch.tensor([1, 1]))
    assert term[1].item() == 0.5
    assert term[2].item() == 2
