"""Problems over shards in one process: values, derivatives, solutions, and messages about bad shards."""

import sys

import numpy as np
import pytest

import gdpa
from gdpa import sharded
from tests.sharded.cases import DATA, Quadratic, RowsToo, quadratic, solution


@pytest.mark.parametrize("count", [1, 3, 4])
@pytest.mark.parametrize("kind", [Quadratic, RowsToo])
def test_the_solution_is_the_closed_form_for_any_number_of_shards(count, kind):
    result = gdpa.solve(sharded.problem(quadratic(count, kind)), np.zeros(5), tolerance=1e-10)
    x, multiplier = solution()
    assert result.success
    np.testing.assert_allclose(result.x, x, rtol=1e-9)
    np.testing.assert_allclose(result.multipliers, [multiplier], rtol=1e-8)


def test_a_tree_of_workers_adds_the_same_bits():
    parts = list(DATA[:8])
    whole = sharded.shard.add(parts)
    for workers in (2, 4, 8):
        dealt = [sharded.shard.add(parts[i : i + 8 // workers]) for i in range(0, 8, 8 // workers)]
        assert (sharded.shard.add(dealt) == whole).all()


class Precision:
    """The soft rate of true positives among predicted positives: its denominator depends on x."""

    def __init__(self, X, y):
        self.X, self.y = X, y

    def sums(self, x):
        p = 1 / (1 + np.exp(-self.X @ x))
        return np.array([(p * (1 - self.y)).sum(), (self.y * p).sum(), len(p), p.sum()])

    def pullback(self, x, w):
        p = 1 / (1 + np.exp(-self.X @ x))
        return self.X.T @ (p * (1 - p) * (w[0] * (1 - self.y) + w[1] * self.y + w[3]))


def test_a_rate_whose_denominator_depends_on_x_has_the_right_derivative():
    y = (DATA[:, 0] > 1).astype(float)
    shards = [Precision(DATA[a], y[a]) for a in (slice(0, 20), slice(20, 64))]
    problem = sharded.problem(shards, combine=sharded.rate, limits=[0.7], regularizer=0.1)
    x, direction = DATA[3] / 3, np.ones(5)

    def value(t):
        now = problem.evaluate(x + t * direction)
        return 2.0 * now.objective + 3.0 * now.constraints[0]

    slope = problem.evaluate(x).pullback(np.array([3.0]), 2.0) @ direction
    assert slope == pytest.approx((value(1e-5) - value(-1e-5)) / 2e-5, rel=1e-8)


def test_a_regularizer_is_added_once():
    x = np.arange(5.0)
    plain, number, function = (
        sharded.problem(quadratic(4), regularizer=r).evaluate(x) for r in (0.0, 3.0, lambda x: (7.0, np.ones(5)))
    )
    assert number.objective - plain.objective == pytest.approx(1.5 * x @ x)
    assert function.objective - plain.objective == pytest.approx(7.0)
    np.testing.assert_allclose(number.gradient() - plain.gradient(), 3 * x)
    np.testing.assert_allclose(function.gradient() - plain.gradient(), 1.0)


class Raises(Quadratic):
    def sums(self, x):
        raise KeyError("age")


class NoMemory(Quadratic):
    def pullback(self, x, w):
        raise MemoryError("cannot allocate 8 GB")


class NotFinite(Quadratic):
    def first_bad_row(self, x):
        return int(np.flatnonzero(~np.isfinite(self.rows).all(1))[0])


class OneMore(Quadratic):
    def sums(self, x):
        return np.append(super().sums(x), 1.0)


class OtherModel(Quadratic):
    def pullback(self, x, w):
        return np.zeros(4)


WITH_NAN = DATA[:10].copy()
WITH_NAN[6, 2] = np.nan


def unreadable():
    raise FileNotFoundError("part-2.parquet")


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (Raises(DATA), "shard 1 failed in sums: KeyError: 'age'"),
        (NoMemory(DATA), "shard 1 failed in pullback: its process has no memory left .*; use more shards"),
        (
            NotFinite(WITH_NAN),
            "shard 1 has sums that are not finite at the start at its row 6.*; repair or drop",
        ),
        (OneMore(DATA), "shard 1 returned 4 sums and shard 0 returned 3.*number of constraints"),
        (OtherModel(DATA), r"shard 1 returned shape \(4,\) from pullback, expected \(5,\).*same model"),
        (Quadratic(DATA[:0]), "shard 1 has no rows; leave it out"),
        (unreadable, "shard 1 cannot be made: FileNotFoundError: part-2.parquet"),
        (lambda: 3, r"shard 1 must have the methods sums\(x\) and pullback\(x, w\), got int"),
    ],
)
def test_a_bad_shard_is_named_with_the_remedy(bad, message):
    with pytest.raises(sharded.ShardError, match=message):
        gdpa.solve(sharded.problem([Quadratic(DATA), bad]), np.zeros(5))


class FailsLater(Quadratic):
    calls = 0

    def sums(self, x):
        self.calls += 1
        if self.calls > 4:
            raise OSError("disk is gone")
        return super().sums(x)


def test_the_run_before_a_failure_is_saved_and_continues(tmp_path):
    straight = gdpa.solve(sharded.problem(quadratic(2)), np.zeros(5), "GDPA", stop=gdpa.MaxSteps(20))
    shards = [Quadratic(DATA[:32]), FailsLater(DATA[32:])]
    with pytest.raises(sharded.ShardError, match="shard 1 failed in sums: OSError") as caught:
        gdpa.solve(sharded.problem(shards), np.zeros(5), "GDPA", stop=gdpa.MaxSteps(20), checkpoint=tmp_path)
    assert caught.value.partial_result.steps > 0
    rest = gdpa.solve(sharded.problem(quadratic(2)), checkpoint=tmp_path, resume=True, stop=gdpa.MaxSteps(20))
    assert (rest.x == straight.x).all()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"shards": []}, ValueError, "at least one shard"),
        ({"engine": "spark"}, ValueError, "engine must be 'local', 'ray', 'torch'"),
        ({"combine": "mean"}, TypeError, "combine must be a function of the sums"),
        ({"combine": sharded.rate}, ValueError, "numerators and as many denominators, got 3"),
        ({"combine": lambda s: sharded.rate(np.array([1.0, 1, 2, 0]))}, ValueError, r"denominator of g\[0\] is zero"),
    ],
)
def test_bad_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        sharded.problem(**{"shards": quadratic(2)} | arguments).evaluate(np.zeros(5))


def test_a_batch_of_points_is_refused():
    with pytest.raises(ValueError, match=r"one point for a sharded problem, got shape \(2, 5\)"):
        gdpa.solve(sharded.problem(quadratic(2)), np.zeros((2, 5)), "GDPA")


def test_displays_show_shards_and_rates(capsys):
    gdpa.solve(sharded.problem(quadratic(4)), np.zeros(5), disp="lines")
    last = capsys.readouterr().out.splitlines()[-1]
    assert "4 shards (local)" in last
    assert last.endswith(" rows/s")


def test_an_engine_that_is_not_installed_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "gdpa.sharded.ray", raising=False)
    with pytest.raises(ModuleNotFoundError, match=r"engine='ray' needs ray, which is not installed; .*pip install ray"):
        sharded.problem(quadratic(2), "ray")


def test_one_engine_serves_several_problems():
    engine = sharded.Engine()
    first, second = (sharded.problem(quadratic(2, data=data), engine) for data in (DATA, 3 * DATA))
    x = np.ones(5)
    assert first.evaluate(x).objective == sharded.problem(quadratic(2)).evaluate(x).objective
    assert first.evaluate(x).objective != second.evaluate(x).objective
