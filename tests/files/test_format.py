"""What is stored comes back bit for bit, and what cannot be stored is refused."""

import base64
import dataclasses
import inspect
import math
import struct
import subprocess
import sys
from enum import Enum
from typing import Any, NamedTuple

import numpy as np
import pytest

from gdpa import (
    AdaptiveGDPA,
    Box,
    Constant,
    History,
    MaxSteps,
    Power,
    Residuals,
    State,
    Status,
    UnsupportedProblemError,
    get_method,
    method_names,
    problems,
    save_run,
    solve,
    storage,
)
from gdpa.base import stored as registry
from gdpa.core.problem import detach
from gdpa.core.units import ReferencePoint
from gdpa.files.values import DEEPEST
from tests.libraries import Library
from tests.stored import assert_same

NUMPY_DTYPES = ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
NUMPY_DTYPES += ["float16", "float32", "float64"]


def back(value):
    """The value after a round trip."""
    data = storage.encode(value)
    assert data == storage.encode(value)
    return storage.decode(data, "memory")


# Values


VALUES = [
    None, True, False, 0, -1, 2**63 - 1, 2**63, -(2**63), 10**19, -(10**5000),
    0.1, -0.0, 5e-324, 1.7976931348623157e308,
    math.inf, -math.inf, math.nan, struct.unpack("<d", bytes.fromhex("010000000000f4ff"))[0],
    "", "naïve λ\n\0", "\ud800", (), [], {}, (1,), [(), [None]], {"": 1, "class": "State", "array": 0},
    {"class": "State", "fields": {}}, {"tuple": [1]}, {"b": 1, "a": 2}, Status.STALLED, Residuals(1.0, math.nan, 0.0),
    ReferencePoint(np.ones(2), np.zeros(2), np.ones(1)), Constant(0.1),
    Power(2.0, -1 / 3), History({"step": np.arange(3), "kkt": np.ones(3)}),
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=[f"{i}-{type(value).__name__}" for i, value in enumerate(VALUES)])
def test_values_come_back_bit_for_bit(value):
    assert_same(value, back(value))


@pytest.mark.parametrize("dtype", NUMPY_DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 3), (2, 3), (1,) * 8])
def test_numpy_arrays_of_every_dtype_and_shape(dtype, shape, rng):
    array = np.asarray(rng.integers(0, 2 if dtype == "bool" else 100, shape)).astype(dtype)
    assert_same(array, back(array))
    assert_same(array[()], back(array[()]))  # a NumPy number if there are no dimensions


def test_numpy_bits_order_and_byte_order(rng):
    special = np.frombuffer(bytes.fromhex("010000000000f07f000000000000f8ff0000000000000080"), "<f8")
    assert_same(special.copy(), back(special))
    matrix = rng.normal(size=(4, 5))
    assert_same(np.asfortranarray(matrix), back(np.asfortranarray(matrix)))
    assert_same(np.ascontiguousarray(matrix[::2, 1::2]), back(matrix[::2, 1::2]))
    for foreign in (">f8", "<f8"):
        assert_same(matrix, back(matrix.astype(foreign)))


@pytest.mark.parametrize("name", [*NUMPY_DTYPES, "bfloat16"])
@pytest.mark.parametrize("shape", [(), (0,), (2, 3)])
def test_torch_tensors(name, shape):
    import torch

    tensor = (torch.arange(math.prod(shape)).reshape(shape) % 2).to(getattr(torch, name))
    assert_same(tensor, back(tensor))


def test_torch_strides_graphs_and_bits():
    import torch

    matrix = torch.arange(6.0).reshape(2, 3)
    assert_same(matrix.T, back(matrix.T))
    assert_same(matrix[:, ::2].contiguous(), back(matrix[:, ::2]))
    assert_same(matrix, back(matrix.clone().requires_grad_()))
    nan = torch.tensor([0x7F81, -1], dtype=torch.int16).view(torch.bfloat16)
    assert_same(nan, back(nan))


@pytest.mark.parametrize("name", [*NUMPY_DTYPES, "bfloat16"])
@pytest.mark.parametrize("shape", [(), (0,), (2, 3)])
def test_jax_arrays(name, shape):
    import jax.numpy as jnp

    assert_same(jnp.ones(shape, name), back(jnp.ones(shape, name)))


def test_weak_jax_arrays_stay_weak():
    """0.5 as a JAX array gives way to float32; a float64 array does not. A continued run must promote alike."""
    import jax.numpy as jnp

    for weak in (jnp.asarray(0.5), jnp.asarray(3), jnp.full((2,), math.nan), jnp.full((0,), 1.0)):
        assert weak.weak_type
        assert_same(weak, back(weak))
        assert (back(weak) * jnp.ones((), "float32")).dtype == "float32"


def test_an_array_that_occurs_twice_is_kept_once():
    x = np.zeros(1000)
    data = storage.encode([x, {"again": x}])
    assert len(data) < 1.1 * x.nbytes
    first, second = storage.decode(data, "memory")
    assert first is second["again"]
    assert_same(x, first)


def test_a_library_is_imported_only_for_its_arrays(tmp_path):
    import torch

    storage.save(tmp_path / "numpy", State(step=0, x=np.ones(1), multipliers=np.ones(1), evaluation=None, probe=None))
    storage.save(tmp_path / "torch", torch.ones(1))
    code = """if 1:
        import sys
        from gdpa.files import encode, load
        for name in ("numpy", "torch"):
            encode(load(name))
            print(*[library for library in ("torch", "jax") if library in sys.modules])"""
    command = [sys.executable, "-c", code]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=300)
    assert ran.stdout.splitlines() == ["", "torch"]


# Refusals of what cannot be stored


class Foreign(NamedTuple):
    value: int


@dataclasses.dataclass
class Derived:
    value: int = dataclasses.field(init=False, default=0)


def unstorable_tensors():
    import torch

    yield torch.nn.Parameter(torch.ones(1)), "a Parameter"
    yield torch.eye(2).to_sparse(), "only dense tensors"
    yield torch.ones(1, dtype=torch.complex64), "dtype complex64"
    yield torch.ones(1, device="meta"), "device meta"


def test_what_cannot_be_stored_is_named_with_its_place():
    cases = [
        (lambda r: 0.1, "function"), (object(), "object"), (b"bytes", "bytes"), ({1}, "set"), (1j, "complex"),
        (Foreign(1), "Foreign"), (np.array([object()]), "dtype object"), (np.array(["text"]), "dtype str128"),
        (np.ones(1, dtype=complex), "dtype complex128"), (np.ma.ones(1), "MaskedArray"),
        (np.datetime64("2022-01-01"), "dtype datetime64"), (np.zeros(1, "i4,f8"), "dtype void"),
        (np.ones(1, dtype=np.longdouble), f"dtype {np.dtype(np.longdouble).name}"),
    ]  # fmt: skip
    for value, name in (*cases, *unstorable_tensors()):
        with pytest.raises(TypeError, match=rf"value\['a'\]\[1\].*{name}"):
            storage.encode({"a": [None, value]})
    with pytest.raises(TypeError, match=r"value\.alpha is of <class 'function'>"):
        storage.encode(get_method("gdpa")(alpha=lambda r: 0.1))
    with pytest.raises(TypeError, match="value has keys that are not str"):
        storage.encode({1: 2})


def test_what_holds_itself_is_refused_and_what_is_deep_enough_is_not():
    loop: list = []
    loop.append(loop)
    with pytest.raises(ValueError, match="nested deeper than 50 levels, or holds itself"):
        storage.encode(loop)
    deep = None
    for _ in range(DEEPEST):
        deep = (deep,)  # type: ignore[assignment]
    assert back(deep) == deep
    with pytest.raises(ValueError, match="nested deeper"):
        storage.encode([deep])


def test_a_structure_that_is_too_large_is_refused_on_writing(monkeypatch):
    monkeypatch.setattr("gdpa.files.format.LARGEST_STRUCTURE", 1000)
    with pytest.raises(ValueError, match="keep long lists of numbers in arrays"):
        storage.encode([0.123456789] * 100)


# The registry


def test_own_classes_are_registered_by_hand(monkeypatch):
    registry.class_called("Own")  # the methods register their classes now, not in the copy
    monkeypatch.setattr(registry, "REGISTERED", dict(registry.REGISTERED))

    @storage.register
    class Own(NamedTuple):
        value: int = 3

    @storage.register
    @dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
    class OwnState(State):
        own: Own
        graph: object = dataclasses.field(default=None, metadata={"stored": False})

    @storage.register
    class Color(Enum):
        RED = (1, 2)

    state = OwnState(step=1, x=np.ones(2), multipliers=np.zeros(0), evaluation=None, probe=None, own=Own(4))
    assert_same(state, back(state))
    assert back(dataclasses.replace(state, graph=object())).graph is None
    assert back(Color.RED) is Color.RED
    assert storage.register(Own) is Own
    for wrong in (Exception, int, Derived):
        with pytest.raises(TypeError, match="must be a dataclass, a NamedTuple or an Enum"):
            storage.register(wrong)
    with pytest.raises(ValueError, match="the name State is taken"):
        storage.register(NamedTuple("State", []))  # type: ignore[type-var]


# Files of gdpa 0.1.0, written by its encode: GDPA() before it had the field lipschitz, and the start of a run, whose
# class has another name now.
GDPA_010 = (
    "iWdkcGENChoBAAAA6gAAAAAAAAAAAAAAAAAAAHsiYXJyYXlzIjpbXSwidmFsdWUiOnsiY2xhc3MiOiJHRFBBIiwiZmllbGRzIjp7"
    "ImFscGhhIjp7ImNsYXNzIjoiUG93ZXIiLCJmaWVsZHMiOnsiaW5pdGlhbCI6MC4wMSwiZXhwb25lbnQiOi0wLjMzMzMzMzMzMzMz"
    "MzMzMzN9fSwiYmV0YSI6eyJjbGFzcyI6IlBvd2VyIiwiZmllbGRzIjp7ImluaXRpYWwiOjEuMCwiZXhwb25lbnQiOjAuMzMzMzMz"
    "MzMzMzMzMzMzM319LCJ0YXUiOjAuMSwiZ2F0ZSI6dHJ1ZX19fSVaze+KfRXlMNu69+ciwBcCg5nIJSyCUENz0fNFwh2B"
)
START_010 = (
    "iWdkcGENChoBAAAALgEAAAAAAAAQAAAAAAAAAHsiYXJyYXlzIjpbeyJsaWJyYXJ5IjoibnVtcHkiLCJkdHlwZSI6ImZsb2F0NjQi"
    "LCJzaGFwZSI6WzFdLCJvcmRlciI6IkMiLCJkZXZpY2UiOiJjcHUiLCJ3ZWFrIjpmYWxzZX0seyJsaWJyYXJ5IjoibnVtcHkiLCJk"
    "dHlwZSI6ImZsb2F0NjQiLCJzaGFwZSI6WzFdLCJvcmRlciI6IkMiLCJkZXZpY2UiOiJjcHUiLCJ3ZWFrIjpmYWxzZX1dLCJ2YWx1"
    "ZSI6eyJjbGFzcyI6IlN0YXJ0IiwiZmllbGRzIjp7IngiOnsiYXJyYXkiOjB9LCJncmFkaWVudCI6eyJhcnJheSI6MX0sInhfc2Nh"
    "bGUiOm51bGwsImNvbnN0cmFpbnRzIjpudWxsfX19AAAAAAAA8D8AAAAAAADwP3URwS8f9C8F+NqWwRmvOEhPjpZK3BiiqSHGWlAb"
    "DWJz"
)


def test_a_file_of_an_earlier_version_loads_with_defaults_or_is_refused_with_the_remedy():
    assert storage.decode(base64.b64decode(GDPA_010), "old") == get_method("gdpa")()
    with pytest.raises(
        storage.DamagedFileError, match=r"old .*the class 'Start'.*read it with the version that saved it"
    ):
        storage.decode(base64.b64decode(START_010), "old")


LOAD = """
import sys
from gdpa import load_run
print(type(load_run(sys.argv[1]).state).__name__)
"""


@pytest.mark.parametrize(("name", "state"), [("iqrc", "IQRCState"), ("adaptive-gdpa", "AdaptiveState")])
def test_a_new_process_knows_the_classes_of_every_method(name, state, tmp_path):
    hs = problems.get("HS12")
    save_run(tmp_path / "run", solve(hs.problem, hs.x0, name, stop=MaxSteps(3)).run)
    ended = subprocess.run(
        [sys.executable, "-c", LOAD, str(tmp_path / "run")], capture_output=True, text=True, timeout=300
    )
    assert ended.stdout.strip() == state, ended.stderr


# States


def problem_of(library, name):
    """Two constraints in a box, one linear equality for the method that asks for it."""
    linear = name == "proximal-admm"

    def formulas(stack, x):
        a, b = x[..., 0], x[..., 1]
        return a**2 - a * b, stack([a + b - 1] if linear else [a**2 + b**2 - 2, a - 0.3])

    def gradient(x):
        return np.stack([2 * x[..., 0] - x[..., 1], -x[..., 0]], axis=-1)

    def jacobian(x):
        return np.ones((1, 2)) if linear else np.array([2 * x, [1.0, 0.0]])

    return library.problem(formulas, gradient, jacobian, num_equalities=int(linear), domain=Box(-5.0, 5.0))


# JAX compiles every operation for every shape: for it, two methods and a few steps.
CASES = [(name, kind) for kind in ("numpy", "torch") for name in method_names()]
CASES += [("gdpa", "jax"), ("adaptive-gdpa", "jax")]


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_every_state_comes_back_bit_for_bit_and_continues_alike(name, kind):
    method = get_method(name)()
    assert_same(method, back(method))
    assert back(method) == method
    library = Library(kind)
    problem = problem_of(library, name)
    try:
        state = method.init(problem, library.array([0.5, 1.5]))
    except UnsupportedProblemError as error:
        pytest.skip(str(error))
    last, more = (1, 1) if kind == "jax" else (25, 3)
    for step in range(last + 1):
        if step in (0, 1, last):
            state = detach(state)
            assert_same(state, back(state))
            after, again = state, back(state)
            for _ in range(more):
                after, again = method.update(problem, after), method.update(problem, again)
            assert_same(detach(after), detach(again))
        state = method.update(problem, state)


def test_every_state_class_is_known():
    """All dataclasses of the algorithms' modules that hold a state, whoever adds one."""
    methods = [get_method(name) for name in method_names()]  # their modules are imported by this
    states, todo = set(), [State]
    while todo:
        cls = todo.pop()
        states.add(cls)
        todo.extend(cls.__subclasses__())
    own = {cls for cls in states if cls.__module__.startswith("gdpa.methods")}
    # dataclass(slots=True) makes a second class; the first lives on as a subclass of State without its slots.
    own = {cls for cls in own if getattr(sys.modules[cls.__module__], cls.__name__) is cls}
    assert len(own) >= 12
    assert all(registry.is_registered(cls) for cls in own)
    for method in methods:
        assert registry.is_registered(method)
        assert "evaluation" not in registry.stored_fields(State)
        returned = inspect.signature(method.init, eval_str=True).return_annotation
        assert returned is Any or registry.is_registered(returned)  # Any: a plain State


@pytest.mark.parametrize("step", ["pullback", "jacobian"])
def test_the_adaptive_state_in_every_phase(step):
    """SQP, quasi-Newton and restoration, the last on an infeasible problem."""
    seen = set()
    method = AdaptiveGDPA(step=step)
    for known in (problems.get("HS43"), problems.get("disjoint-discs")):
        state = method.init(known.problem, known.x0)
        for _ in range(200):
            seen.add(type(state.phase).__name__)
            assert_same(detach(state), back(detach(state)))
            if state.verdict is not None:
                seen.add("verdict")
                break
            state = method.update(known.problem, state)
    assert seen == {"Restoration", "verdict", "SQP" if step == "jacobian" else "QuasiNewton"}


def test_a_result_with_certificate_and_history_comes_back(tmp_path):
    known = problems.get("HS12")
    result = solve(known.problem, known.x0, record=1)
    storage.save(tmp_path / "result", result)
    assert_same(result, storage.load(tmp_path / "result"))


def test_tensors_on_cuda_come_back_there():
    import torch

    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    for tensor in (torch.ones(3, device="cuda"), torch.ones((), device="cuda", dtype=torch.bfloat16)):
        assert_same(tensor, back(tensor))
