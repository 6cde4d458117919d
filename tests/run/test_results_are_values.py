"""Results are values: they pickle, they copy, and they keep nothing alive but their numbers."""

import copy
import gc
import multiprocessing
import pickle
import sys
import tracemalloc
import types
import weakref
from concurrent.futures import ProcessPoolExecutor
from dataclasses import fields, is_dataclass

import array_api_compat
import numpy as np
import pytest

from gdpa import (
    AdaptiveGDPA,
    Evaluation,
    MaxSteps,
    Problem,
    Status,
    UnsupportedProblemError,
    get_method,
    method_names,
    minimize,
    solve,
)
from gdpa.base.arrays import own_copy
from gdpa.core.problem import detach
from tests.libraries import Library, to_numpy

MIB = 2**20


def is_array(value):
    return isinstance(value, np.ndarray) or array_api_compat.is_array_api_obj(value)


def leaves(value, path="result"):
    """Yield (path, leaf) of everything a value holds, field by field."""
    if is_dataclass(value):
        for field in fields(value):
            yield from leaves(getattr(value, field.name), f"{path}.{field.name}")
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, f"{path}[{key!r}]")
    elif isinstance(value, (tuple, list)):
        for i, item in enumerate(value):
            yield from leaves(item, f"{path}[{i}]")
    else:
        yield path, value


def assert_equal(one, other):
    pairs = list(zip(leaves(one), leaves(other), strict=True))
    assert len(pairs) > 20
    for (path, a), (same_path, b) in pairs:
        assert path == same_path
        assert type(a) is type(b), path
        if is_array(a):
            assert a.dtype == b.dtype, path
            np.testing.assert_array_equal(to_numpy(a), to_numpy(b), err_msg=path)
        else:
            assert a == b or (a != a and b != b), path


def disc(library):
    """min (x - 2)^2 + y^2 on the unit disc with x <= 3 and y = 0 in the library of ``x``; the answer is (1, 0)."""
    center = np.array([2.0, 0.0])
    return library.problem(
        lambda stack, x: ((x[0] - 2) ** 2 + x[1] ** 2, stack([x[0] ** 2 + x[1] ** 2 - 1, x[0] - 3, x[1]])),
        lambda x: 2 * (x - center),
        lambda x: np.array([2 * x, [1.0, 0.0], [0.0, 1.0]]),
        num_equalities=1,
    )


@pytest.mark.parametrize(
    ("dtype", "options"),
    [("float64", {}), ("float32", {}), ("float64", {"feasible": True}), ("float64", {"best_of": 3})],
)
def test_a_result_pickles_and_copies(library, dtype, options):
    jax = library.name == "jax"  # it compiles every operation: one case of it, and not to the end
    if jax and (dtype, options) != ("float32", {}):
        pytest.skip("one case of JAX is enough")
    result = solve(disc(library), library.array([0.3, 0.4], dtype), stop=MaxSteps(2) if jax else None, **options)
    assert result.success != jax
    assert_equal(pickle.loads(pickle.dumps(result)), result)
    assert_equal(copy.deepcopy(result), result)
    assert_equal(copy.copy(result), result)


@pytest.mark.parametrize("name", method_names())
def test_the_result_of_every_method_pickles(name):
    from gdpa import problems

    own = problems.get("HS12")
    try:
        result = solve(own.problem, own.x0, get_method(name)(), stop=MaxSteps(7))
    except UnsupportedProblemError as refusal:
        pytest.skip(str(refusal))
    assert_equal(pickle.loads(pickle.dumps(result)), result)
    assert not [path for path, leaf in leaves(result) if callable(leaf)]


@pytest.mark.parametrize("name", ["numpy", "torch"])
def test_a_copy_continues_like_the_original(name):
    library = Library(name)
    problem = disc(library)
    first = solve(problem, library.array([0.3, 0.4]), stop=MaxSteps(3))
    straight = solve(problem, run=first.run)
    again = solve(problem, run=pickle.loads(pickle.dumps(first)).run)
    assert straight.steps == again.steps
    assert to_numpy(straight.x).tolist() == to_numpy(again.x).tolist()


def rosenbrock(x):
    return (1 - x[0]) ** 2 + 100 * (x[1] - x[0] ** 2) ** 2


def outside(x):
    return x @ x - 0.25


def from_start(x0):
    """Solve in a worker: 1/2 is the distance of the disc that is left out."""
    return minimize(rosenbrock, x0, constraints={"type": "ineq", "fun": outside}, bounds=[(-2, 2), (-2, 2)])


def test_scipys_result_pickles_and_copies():
    found = from_start([1.2, 1.0])
    assert found.success
    for other in (pickle.loads(pickle.dumps(found)), copy.deepcopy(found)):
        assert type(other) is type(found)
        assert list(other) == list(found)
        assert_equal({**other}, {**found})


def test_a_process_pool_returns_results():
    starts = [[1.2, 1.0], [-1.0, 1.0], [0.0, 1.5]]
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        found = list(pool.map(from_start, starts))
    for one, start in zip(found, starts, strict=True):
        assert one.success
        np.testing.assert_array_equal(one.x, from_start(start).x)


def test_joblib_returns_results():
    joblib = pytest.importorskip("joblib")
    found = joblib.Parallel(n_jobs=2)(joblib.delayed(from_start)(x0) for x0 in ([1.2, 1.0], [0.0, 1.5]))
    assert all(one.success for one in found)


def reachable(*roots):
    """Return every object that the roots keep alive, classes and modules left out."""
    seen, pending = {}, list(roots)
    while pending:
        value = pending.pop()
        if id(value) in seen or isinstance(value, (type, types.ModuleType)):
            continue
        seen[id(value)] = value
        pending += gc.get_referents(value)
    return list(seen.values())


def torch_problem(leaves_seen, size):
    import torch

    from gdpa import from_torch

    data = torch.linspace(0.5, 1.5, 50 * size, dtype=torch.float64).reshape(50, size)

    def function(x):
        leaves_seen.append(weakref.ref(x))
        scores = data @ x / size
        # Two numbers that are views of a much longer array.
        return (x - 2).square().sum(), (torch.cat([scores - 1, torch.zeros(20_000, dtype=x.dtype)]))[:2]

    return from_torch(function, names=("first", "second")), weakref.ref(function)


def test_results_hold_their_arrays_and_little_more():
    torch = pytest.importorskip("torch")
    size = 2000
    seen: list = []
    problem, function = torch_problem(seen, size)
    start = torch.full((size,), 0.3, dtype=torch.float64, requires_grad=True)
    solve(problem, start)  # what the first call imports and caches is not held by results
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.take_snapshot()
    results = [solve(problem, start * (1 + i / 20)) for i in range(8)]
    del problem
    gc.collect()
    traced = sum(entry.size_diff for entry in tracemalloc.take_snapshot().compare_to(before, "filename"))
    tracemalloc.stop()
    assert all(result.success for result in results)

    assert [leaf for leaf in seen if leaf() is not None] == []  # no graph
    assert function() is None  # no user function
    objects = reachable(*results)
    functions = [value for value in objects if isinstance(value, (types.FunctionType, types.MethodType))]
    assert functions == []
    tensors = [value for value in objects if isinstance(value, torch.Tensor)]
    arrays = [value for value in objects if isinstance(value, np.ndarray)]
    assert len(tensors) > 50
    assert not any(tensor.requires_grad or tensor.grad_fn is not None for tensor in tensors)
    storages = {tensor.untyped_storage().data_ptr(): tensor for tensor in tensors}
    unseen = sum(t.untyped_storage().nbytes() - t.numel() * t.element_size() for t in storages.values())
    assert unseen == 0
    others = sum(sys.getsizeof(value) for value in objects if not isinstance(value, (torch.Tensor, np.ndarray)))
    assert others < MIB
    # Torch's own memory is not traced: what Python and NumPy hold beyond the arrays.
    assert traced - sum(array.nbytes for array in arrays) < MIB


def test_a_start_with_a_gradient_builds_no_graph():
    torch = pytest.importorskip("torch")
    problem, _ = torch_problem([], 10)
    result = solve(problem, torch.zeros(10, dtype=torch.float64, requires_grad=True))
    assert result.success
    assert not any(isinstance(leaf, torch.Tensor) and leaf.requires_grad for _, leaf in leaves(result))


def test_the_result_does_not_change_with_the_users_start(library):
    if library.name == "jax":
        pytest.skip("JAX arrays never change")
    x0 = library.array([0.3, 0.4])
    result = solve(disc(library), x0)
    x0 += 100
    assert to_numpy(result.run.start.x).tolist() == [0.3, 0.4]


def test_a_partial_result_holds_no_evaluation_either():
    calls = []

    def evaluate(x):
        calls.append(1)
        if len(calls) > 5:
            raise RuntimeError("no more")
        return Evaluation(x @ x, x[:1] - 1, lambda w, objective=1.0: 2 * objective * x + w[0] * np.eye(2)[0])

    with pytest.raises(RuntimeError, match="no more") as raised:
        solve(Problem(evaluate), np.array([3.0, 4.0]), AdaptiveGDPA(step="pullback"))
    result = raised.value.partial_result
    assert result.status is Status.FAILED
    assert_equal(pickle.loads(pickle.dumps(result)), result)


class TestDetached:
    def test_what_stands_alone_is_not_copied(self):
        value = (np.ones(3), {"a": [1, "b", None]}, np.arange(6.0).reshape(2, 3))
        assert detach(value)[0] is value[0]
        assert detach(value)[2] is value[2]

    def test_shared_arrays_stay_shared(self):
        part = np.zeros((100, 3))[0]
        one, (two, other) = detach([part, (part, part[:2])])
        assert one is two
        assert (one.base, other.base) == (None, None)

    def test_torch_views_leave_their_storage(self):
        torch = pytest.importorskip("torch")
        whole = torch.arange(1000.0, requires_grad=True)
        part = detach({"part": (whole * 2)[10:12]})["part"]
        assert part.tolist() == [20.0, 22.0]
        assert (part.requires_grad, part.untyped_storage().nbytes()) == (False, 8)

    def test_the_layout_is_kept(self):
        part = np.zeros((10, 10), order="F")[2:5, 2:6]
        assert detach(part).flags.f_contiguous
        assert detach(part.T).flags.c_contiguous

    def test_an_own_copy_shares_nothing(self, library):
        x = library.array([1.0, 2.0])
        assert to_numpy(own_copy(x)).tolist() == [1.0, 2.0]
        if library.name != "jax":
            x += 1
            assert to_numpy(own_copy(x)).tolist() == [2.0, 3.0]
