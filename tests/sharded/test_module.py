"""Modules trained on shards of arrays, files and data sets, against the same problem in one piece."""

import pickle

import numpy as np
import pytest
import torch

import gdpa
from gdpa import sharded
from gdpa.sharded.rows import split

GEN = torch.Generator().manual_seed(0)
X = torch.randn(210, 3, generator=GEN, dtype=torch.float64)
Y = (X @ torch.tensor([1.0, -1.0, 0.5], dtype=torch.float64) + torch.randn(210, generator=GEN) > 0).double()


def network(dtype=torch.float64, seed=1):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)).to(dtype)


def loss(net, x, y):
    """Logistic loss; the mean score of each label is limited, as a rate over its members."""
    out = net(x)[:, 0]
    f = torch.nn.functional.softplus(out) - y * out
    return f, torch.stack([out, -out], 1), torch.stack([1 - y, y], 1)


def whole(net):
    """The same problem by gdpa.from_module, which has all rows in one tensor."""

    def values(net):
        f, g, members = loss(net, X, Y)
        return f.mean(), (g * members).sum(0) / members.sum(0) - torch.tensor([-0.5, -0.3])

    return gdpa.from_module(net, values)


def test_shards_solve_the_same_problem():
    parts = sharded.from_module(network(), loss, [-0.5, -0.3], (X, Y), 4, chunk=32, regularizer=0.01)
    one = whole(network())
    problem = gdpa.Problem(lambda x: ridge(one.problem.evaluate(x), x), num_constraints=2)
    a, b = (gdpa.solve(p, x0=one.x0, tolerance=1e-10) for p in (parts.problem, problem))
    assert a.success
    assert b.success
    np.testing.assert_allclose(a.x, b.x, rtol=1e-8, atol=1e-10)


def ridge(now, x):
    pullback = lambda w, objective=1.0: now.pullback(w, objective) + 0.01 * objective * x  # noqa: E731
    return gdpa.Evaluation(now.objective + 0.005 * x @ x, now.constraints, pullback)


class Listed(torch.utils.data.Dataset):
    def __len__(self):
        return len(X)

    def __getitem__(self, i):
        return X[i], Y[i]


def sources(folder):
    np.save(folder / "x.npy", X.numpy())
    np.save(folder / "y.npy", Y.numpy())
    yield folder / "x.npy", str(folder / "y.npy")
    yield np.load(folder / "x.npy", mmap_mode="r"), Y.numpy()
    yield torch.utils.data.TensorDataset(X, Y)
    yield Listed()


def test_every_kind_of_data_set_has_the_same_rows(tmp_path):
    net = network()
    expected = whole(net)
    x = expected.x0
    right = expected.problem.evaluate(x)
    w = torch.tensor([0.3, 0.7], dtype=torch.float64)
    for dataset in sources(tmp_path):
        now = sharded.from_module(net, loss, [-0.5, -0.3], dataset, 3, chunk=32).problem.evaluate(x)
        np.testing.assert_allclose(now.objective, right.objective, rtol=1e-12)
        np.testing.assert_allclose(now.constraints, right.constraints, rtol=1e-6)  # limits in float32
        np.testing.assert_allclose(now.pullback(w), right.pullback(w), rtol=1e-11)


def test_only_the_rows_of_a_shard_travel(tmp_path):
    np.save(tmp_path / "x.npy", X.numpy())
    for data, most in ((X, 1.5 * X.nbytes / 7), (X.numpy(), 1.5 * X.nbytes / 7), (tmp_path / "x.npy", 500)):
        sent = [pickle.dumps(part) for part in split(data, 7, chunk=100)]
        assert max(map(len, sent)) < most
        assert np.array_equal(np.concatenate([x for one in sent for (x,) in pickle.loads(one).chunks()]), X)


def test_parquet_files_are_read_by_row_groups(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow

    paths = [tmp_path / f"part-{i}.parquet" for i in range(2)]
    for path, rows in zip(paths, (slice(0, 120), slice(120, 210)), strict=True):
        table = pyarrow.table({"x": list(X[rows].numpy()), "y": Y[rows].numpy()})
        parquet.write_table(table, path, row_group_size=30)
    net = network()
    by_column = lambda net, chunk: loss(net, chunk["x"], chunk["y"])  # noqa: E731
    training = sharded.from_module(net, by_column, {"low": -0.5, "high": -0.3}, paths, 3)
    right = whole(net).problem.evaluate(training.x0)
    now = training.problem.evaluate(training.x0)
    np.testing.assert_allclose(now.objective, right.objective, rtol=1e-12)
    assert training.problem.names == ("low", "high")
    with pytest.raises(ValueError, match="7 row groups, too few or too uneven for shards=8; use fewer"):
        sharded.from_module(net, by_column, [0.0, 0.0], paths, 8)


def test_single_precision_and_a_module_with_constants():
    net = network(torch.float32)
    net[0].requires_grad_(False)
    before = net[0].weight.clone()
    training = sharded.from_module(net, loss, [-0.2, 0.0], (X.float(), Y.float()), 2)
    result = gdpa.solve(training)
    training.load(result.x)
    assert result.success
    assert result.x.dtype == torch.float32
    assert result.x.shape == (5,)
    assert torch.equal(net[0].weight, before)


@pytest.mark.parametrize("how", ["nan", "raises"])
def test_a_bad_row_is_named_with_its_shard(how):
    bad = X.clone()
    bad[140] = torch.nan if how == "nan" else 1e6

    def refuses(net, x, y):
        if how == "raises" and bool((x > 1e5).any()):
            raise RuntimeError("value out of range")
        return loss(net, x, y)

    training = sharded.from_module(network(), refuses, [0.0, 0.0], (bad, Y), 3, chunk=32)
    with pytest.raises(sharded.ShardError, match=r"shard 2 .*its row 0\b" if how == "nan" else "shard 2 .*row 0: Run"):
        gdpa.solve(training)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shards": 300}, "210 rows, fewer than shards=300: a shard would be empty; use fewer shards"),
        ({"dataset": (X, Y[:5])}, r"same number of rows, got \[210, 5\]"),
        ({"module": torch.nn.Dropout()}, "no parameter that requires a gradient"),
        ({"module": torch.nn.Sequential(torch.nn.Linear(3, 1), torch.nn.Dropout())}, r"Dropout '1'.*module.eval\(\)"),
        ({"limits": [0.0]}, r"expected \(70,\) and \(70, 1\): one value for each row, not their mean"),
        ({"loss": lambda net, x, y: net(x).mean()}, r"loss must return \(f, g\)"),
        ({"loss": lambda net, x, y: (*loss(net, x, y)[:2], y)}, r"members must have shape \(70, 2\) or \(70, 3\)"),
    ],
)
def test_bad_arguments(change, message):
    given = {"module": network(), "loss": loss, "limits": [0.0, 0.0], "dataset": (X, Y), "shards": 3} | change
    with pytest.raises((ValueError, sharded.ShardError), match=message):
        gdpa.solve(sharded.from_module(**given))
