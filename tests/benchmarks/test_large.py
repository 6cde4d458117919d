"""The judge of benchmarks/large against a problem solved by hand, and the cases' gradients against autograd."""

import pytest

torch = pytest.importorskip("torch")

from benchmarks.large.cases import Case, load  # noqa: E402
from benchmarks.large.judge import Finished, Judge, stationarity  # noqa: E402


class Disc:
    """The projection of (2, 0) on the unit disc: x = (1, 0), lambda = 1/2; and a constraint that is never active."""

    def __init__(self, x):
        self.x, self.center = x, torch.tensor([2.0, 0.0], dtype=torch.float64)
        self.f = ((x - self.center) ** 2).sum() / 2
        self.g = torch.stack([x @ x - 1, x[1] - 5])

    def jacobian(self):
        return torch.stack([2 * self.x, torch.tensor([0.0, 1.0], dtype=torch.float64)])

    def pullback(self, w, objective=1.0):
        return objective * (self.x - self.center) + w @ self.jacobian()


def point(*x):
    return torch.tensor(x, dtype=torch.float64)


def disc(one_pass):
    return Case("disc", point(0.0, 0.0), 2, Disc, one_pass)


def test_stationarity_at_points_whose_value_is_known():
    assert stationarity(Disc(point(1.0, 0.0)), 1e-5) < 1e-15
    # Inside, no constraint is active to within the level: what is left is grad f = (-1.5, 0), relative to itself.
    assert stationarity(Disc(point(0.5, 0.0)), 1e-2) == 1.0
    # At (1, t) the residual is what of (-1, t) is normal to (1, t): 2 t (-t, 1) / (1 + t^2); the unit is |grad f| = 1.
    t = 1e-3
    assert stationarity(Disc(point(1.0, t)), 1e-2) == pytest.approx(2 * t / (1 + t * t), rel=1e-9)


def test_a_negative_multiplier_is_not_accepted():
    # At (-1, 0) the constraint's gradient (-2, 0) would have to be taken with weight -3/2.
    assert stationarity(Disc(point(-1.0, 0.0)), 1e-5) == 1.0


def test_levels_are_met_one_by_one_and_the_tightest_ends_the_run():
    judge = Judge(disc(True), max_seconds=60.0)
    judge.at(point(0.5, 0.0))
    assert judge.hits == {}
    judge.at(point(1.0, 4e-3))
    assert list(judge.hits) == [1e-2]
    assert judge.hits[1e-2]["forwards"] == 2
    with pytest.raises(Finished):
        judge.at(point(1.0, 0.0))
    assert list(judge.hits) == [1e-2, 1e-3, 1e-5]
    assert judge.finished


def test_a_violation_above_the_level_is_no_hit():
    judge = Judge(disc(True), max_seconds=60.0)
    judge.at(point(1.02, 0.0))  # g = 0.0404
    assert judge.hits == {}


@pytest.mark.parametrize(("one_pass", "backwards"), [(True, 1), (False, 1 + 2 + 1)])
def test_passes_are_counted_as_the_case_makes_them(one_pass, backwards):
    judge = Judge(disc(one_pass), max_seconds=60.0)
    for _ in range(2):  # the same point asked for again is the same forward, and what is kept is not made again
        here = judge.at(point(0.5, 0.0))
        here.gradient()
        here.jacobian()
    here.pullback(torch.zeros(2, dtype=torch.float64))
    assert (judge.forwards, judge.backwards) == (1, backwards)


def test_the_budget_of_forwards_ends_the_run():
    judge = Judge(disc(True), max_seconds=60.0, max_forwards=1)
    judge.at(point(0.5, 0.0))
    with pytest.raises(Finished):
        judge.at(point(0.6, 0.0))


@pytest.mark.parametrize("name", ["disjoint-3", "shared-3"])
def test_gradients_agree_with_autograd(name):
    case = load(name)
    x = case.x0.clone().requires_grad_()
    traced, here = case.at(x), case.at(case.x0)
    rows = [torch.autograd.grad(value, x, retain_graph=True)[0] for value in (traced.f, *traced.g)]
    w = torch.linspace(-1.0, 2.0, case.m, dtype=torch.float64)
    torch.testing.assert_close(here.jacobian(), torch.stack(rows[1:]))
    torch.testing.assert_close(here.pullback(w, 0.5), 0.5 * rows[0] + w @ torch.stack(rows[1:]))
