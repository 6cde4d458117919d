"""What users return by mistake: each is refused with the argument, the value, the reason and the remedy."""

import warnings

import numpy as np
import pytest

import gdpa
from gdpa import certify, from_functions, from_jax, from_module, from_torch, minimize, solve

torch = pytest.importorskip("torch")
jax = pytest.importorskip("jax")

X = torch.tensor([0.5, 0.5], dtype=torch.float64)


def f(x):
    return (x[0] - 2) ** 2 + x[1] ** 2


def disc(x):
    return x @ x - 1


MISTAKES = [
    (lambda x: None, TypeError, r"must return the pair \(f, g\), got None; is its return statement missing\?"),
    (f, TypeError, r"must return the pair \(f, g\), got .*; g is a vector, x\[..., :0\] if there are no constraints"),
    (lambda x: {"f": f(x), "g": disc(x)}, TypeError, r"must return the pair \(f, g\), got dict"),
    (lambda x: (f(x), disc(x), 1), TypeError, r"must return the pair \(f, g\), got tuple"),
    (lambda x: (f(x), [disc(x)]), TypeError, r"g must be a .* computed from x, got \["),
    (lambda x: (f(x), {"disc": disc(x)}), TypeError, r"g must be a .* computed from x, got \{'disc'"),
    (lambda x: (f(x), 0.5), TypeError, r"g must be a .* computed from x, got 0.5"),
    (lambda x: (0.0, disc(x)[None]), TypeError, r"f must be a .* computed from x, got 0.0; return .* for none"),
    (
        lambda x: (f(x), (x @ x <= 1)[None]),
        TypeError,
        "g must hold real numbers, got the booleans .* instead of a comp",
    ),
]


@pytest.mark.parametrize(("function", "kind", "message"), MISTAKES)
def test_torch_functions(function, kind, message):
    with pytest.raises(kind, match=f"(?s){message}"):
        from_torch(function).evaluate(X)


@pytest.mark.parametrize(("function", "kind", "message"), MISTAKES)
@pytest.mark.parametrize("jit", [True, False])
def test_jax_functions(function, kind, message, jit):
    with pytest.raises(kind, match=f"(?s){message}"):
        from_jax(function, jit=jit).evaluate(jax.numpy.array([0.5, 0.5]))


def test_integers_are_refused():
    with pytest.raises(TypeError, match=r"g must hold floating-point numbers, got dtype torch.int64"):
        from_torch(lambda x: (f(x), torch.ones(1, dtype=torch.int64))).evaluate(X)


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (lambda x: (f(x), disc(x).detach()[None]), "the constraint disc"),
        (lambda x: (f(x), torch.tensor([disc(x).item()], dtype=x.dtype)), "the constraint disc"),
        (lambda x: (f(x).detach(), disc(x)[None]), "the objective f"),
    ],
)
def test_a_value_cut_off_from_x_is_named(function, name):
    message = f"{name} changes with x but has no gradient: it was detached"
    with pytest.raises(ValueError, match=message):
        from_torch(function, names=("disc",)).evaluate(X)
    with pytest.raises(ValueError, match=message):
        solve(from_torch(function, names=("disc",)), X)


@pytest.mark.parametrize("join", [torch.stack, lambda parts: torch.cat([part[None] for part in parts])])
def test_one_cut_off_row_among_others_is_named(join):
    own = from_torch(lambda x: (f(x), join([disc(x), (x[0] - 2).detach(), x[1]])))
    with pytest.raises(ValueError, match=r"the constraint g\[1\] changes with x but has no gradient"):
        own.evaluate(X)


def test_a_constant_row_is_no_mistake_and_looked_at_once():
    calls = []

    def function(x):
        calls.append(x)
        return f(x), torch.stack([disc(x), torch.tensor(-1.0, dtype=x.dtype)])

    own = from_torch(function)
    assert own.evaluate(X).jacobian()[1].tolist() == [0.0, 0.0]
    assert len(calls) == 2
    own.evaluate(X + 1)
    assert len(calls) == 3


def test_a_module_with_a_detached_limit_is_refused():
    net, data = torch.nn.Linear(2, 1).double(), torch.ones(4, 2, dtype=torch.float64)
    training = from_module(net, lambda net: (net(data).square().mean(), net(data).mean().detach()[None]))
    with pytest.raises(ValueError, match=r"the constraint g\[0\] changes with x but has no gradient"):
        solve(training)


@pytest.mark.parametrize("start", [[0.5, 0.5], np.array([0.5, 0.5])])
def test_other_arrays_are_refused_with_the_conversion(start):
    with pytest.raises(TypeError, match=r"got ndarray; give the start as torch.as_tensor\(x0, dtype=torch.float64\)"):
        solve(from_torch(lambda x: (f(x), disc(x)[None])), start)


def test_starts_of_every_dtype():
    own = from_torch(lambda x: (f(x), disc(x)[None]))
    with pytest.raises(TypeError, match=r"got torch.int64; convert it to float64"):
        solve(own, torch.ones(2, dtype=torch.int64))
    for short in (torch.bfloat16, torch.float16):  # a hundred roundings, which count as zero, are a tenth in float16
        with pytest.raises(TypeError, match=rf"x0 has dtype {short}, too few digits .* float32 or float64"):
            solve(own, torch.ones(2, dtype=short))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = solve(own, X.float().requires_grad_())
    assert result.success
    assert result.x.tolist() == pytest.approx([1.0, 0.0], abs=1e-3)
    assert not result.x.requires_grad


# NumPy


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (
            {"objective": lambda x: None},
            r"objective must return real numbers, got None; is its return statement missing",
        ),
        ({"constraints": lambda x: None}, "constraints must return real numbers, got None; is its return"),
        ({"constraints": lambda x: np.array([x @ x <= 1])}, "constraints must return real numbers, got the booleans"),
        ({"constraints": lambda x: {"disc": 1}}, r"constraints must return real numbers, got \{'disc': 1\}"),
        ({"constraints": lambda x: [1.0, [2.0]]}, r"constraints must return real numbers, got \[1.0, \[2.0\]\]"),
        ({"gradient": lambda x: None}, "gradient must return real numbers, got None"),
        ({"objective": lambda x: 1j}, "objective must return real numbers, got 1j"),
    ],
)
def test_numpy_functions(parts, message):
    good = {"objective": f, "constraints": lambda x: np.array([disc(x)]), "gradient": lambda x: x, "jacobian": np.diag}
    with pytest.raises(TypeError, match=message):
        from_functions(**{**good, **parts}).evaluate(np.ones(2)).pullback(np.zeros(1))


def test_boolean_constraints_are_refused_by_minimize():
    # Newcomer's case: it was solved without the constraint, with success.
    with pytest.raises(
        TypeError, match=r"constraints\['fun'\] must return real numbers, got the booleans .*x @ x <= 1"
    ):
        minimize(f, [0.5, 0.5], constraints={"type": "ineq", "fun": lambda x: x @ x <= 1})
    with pytest.raises(TypeError, match="fun must return real numbers, got None; is its return statement missing"):
        minimize(lambda x: None, [0.5, 0.5])


def test_certify_names_a_point_of_the_wrong_length():
    own = from_functions(
        f, lambda x: np.array([x[0] - 1]), gradient=lambda x: np.ones(2), jacobian=lambda x: np.eye(1, 2)
    )
    with pytest.raises(ValueError, match=r"x has 3 components, so either x or the gradient has the wrong length"):
        certify(own, np.ones(3))


# A problem with its own start


def test_solve_takes_a_module_problem():
    torch.manual_seed(0)
    net, data = torch.nn.Linear(2, 1).double(), torch.randn(8, 2, dtype=torch.float64)
    training = from_module(net, lambda net: (net(data).square().mean(), 1 - net(data).mean()[None]))
    result = solve(training)
    same = solve(training.problem, training.x0)
    assert result.success
    assert torch.equal(result.x, same.x)
    training.load(result.x)
    assert net(data).mean().item() == pytest.approx(1.0, abs=1e-5)
    other = solve(training, torch.zeros(3, dtype=torch.float64))
    assert other.success
    assert solve(training, run=result.run).success


def test_solve_refuses_what_is_no_problem():
    with pytest.raises(TypeError, match="problem must be a Problem, got function; create one with"):
        gdpa.solve(f, np.ones(2))
