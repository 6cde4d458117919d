"""Projections against optimizers and the variational inequality, tangent cones against difference quotients."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gdpa import REALS, Ball, Box, NonNegative, Product, Simplex
from tests.libraries import Library, contains, scipy_minimize, to_numpy

CENTER = np.array([0.5, -0.5, 0.0, 0.25])
SETS = {
    "reals": REALS,
    "box": Box([-1.0, 0.0, -np.inf, -0.5], [1.0, 0.5, 0.0, np.inf]),
    "scalar box": Box(-0.5, 0.5),
    "nonnegative": NonNegative(),
    "ball": Ball(1.5, CENTER),
    "unit ball": Ball(1.0),
    "simplex": Simplex(),
    "wide simplex": Simplex(total=2.5),
    "rows": Simplex(rows=2),
    "product": Product([(2, Simplex()), (1, REALS), (1, Box(0.0, 1.0))]),
}


def equal(function):
    return {"type": "eq", "fun": function}


def above(function):
    return {"type": "ineq", "fun": function}


SIDES = {
    "reals": {},
    "box": {"bounds": [(-1, 1), (0, 0.5), (None, 0), (-0.5, None)]},
    "scalar box": {"bounds": [(-0.5, 0.5)] * 4},
    "nonnegative": {"bounds": [(0, None)] * 4},
    "ball": {"constraints": above(lambda x: 2.25 - ((x - CENTER) ** 2).sum())},
    "unit ball": {"constraints": above(lambda x: 1 - x @ x)},
    "simplex": {"bounds": [(0, None)] * 4, "constraints": equal(lambda x: x.sum() - 1)},
    "wide simplex": {"bounds": [(0, None)] * 4, "constraints": equal(lambda x: x.sum() - 2.5)},
    "rows": {"bounds": [(0, None)] * 4, "constraints": equal(lambda x: [x[:2].sum() - 1, x[2:].sum() - 1])},
    "product": {
        "bounds": [(0, None), (0, None), (None, None), (0, 1)],
        "constraints": equal(lambda x: x[:2].sum() - 1),
    },
}
vectors = st.lists(st.floats(-3, 3), min_size=4, max_size=4).map(np.array)
# Halves put coordinates on the boundary and keep the others well inside.
halves = st.lists(st.integers(-6, 6), min_size=4, max_size=4).map(lambda v: np.array(v) / 2)
every_set = pytest.mark.parametrize("name", SETS)


@every_set
@settings(max_examples=20)
@given(y=vectors)
def test_projection_is_what_an_optimizer_finds(name, y):
    found = scipy_minimize(
        lambda x: (x - y) @ (x - y) / 2,
        np.full(4, 0.2) if "ball" in name else SETS[name].project(np.zeros(4)),
        jac=lambda x: x - y,
        method="SLSQP",
        options={"ftol": 1e-12, "maxiter": 300},
        **SIDES[name],
    )
    assert SETS[name].project(y) == pytest.approx(found.x, abs=2e-4)


@every_set
@given(y=vectors, other=vectors)
def test_projection_satisfies_the_variational_inequality(name, y, other):
    domain = SETS[name]
    x, z = domain.project(y), domain.project(other)
    assert contains(domain, x)
    assert (y - x) @ (z - x) <= 1e-9
    assert domain.project(x) == pytest.approx(x, abs=1e-12)


@every_set
@given(y=halves, v=halves)
def test_tangent_is_the_limit_of_projected_steps(name, y, v):
    domain = SETS[name]
    x = domain.project(y)
    if "ball" not in name:
        assume(not ((np.abs(x) > 0) & (np.abs(x) < 1e-3)).any())
    h = 1e-7
    quotient = (domain.project(x + h * v) - x) / h
    assert domain.tangent(x, v) == pytest.approx(quotient, abs=1e-5)


@every_set
@given(y=halves, v=halves, other=vectors)
def test_tangent_splits_by_moreau(name, y, v, other):
    domain = SETS[name]
    x, z = domain.project(y), domain.project(other)
    if "ball" not in name:
        assume(not ((np.abs(x) > 0) & (np.abs(x) < 1e-3)).any())
    inside = domain.tangent(x, v)
    normal = v - inside
    assert normal @ inside == pytest.approx(0, abs=1e-9)
    assert normal @ (z - x) <= 1e-9  # the rest lies in the normal cone


@every_set
@given(y=vectors)
def test_snap_stays_in_the_set_and_near_the_projection(name, y):
    domain = SETS[name]
    x = domain.snap(y, 1e-3)
    assert np.isfinite(x).all()
    assert contains(domain, x, 1e-12)
    assert x == pytest.approx(domain.project(y), abs=5e-3)
    assert domain.snap(x, 1e-3) == pytest.approx(x, abs=1e-12)


def test_snap_moves_what_is_near_the_boundary_and_nothing_else():
    near = 1e-6
    assert Box([0.0, 0.0, 0.0], [1.0, 1.0, np.inf]).snap(np.array([near, 1 - near, 0.5]), 1e-4).tolist() == [0, 1, 0.5]
    assert NonNegative().snap(np.array([near, 1e-3, 7.0]), 1e-4).tolist() == [0, 1e-3, 7]
    assert Box(-np.inf, np.inf).snap(np.array([1e300, -5.0]), 1e-4).tolist() == [1e300, -5]
    simplex = Simplex().snap(np.array([near, 0.25, 0.75 - near]), 1e-4)
    assert simplex[0] == 0
    assert simplex.sum() == pytest.approx(1, abs=1e-15)
    assert np.linalg.norm(Ball(2.0).snap(np.array([2 - near, 0.0]), 1e-4)) == pytest.approx(2, abs=1e-15)
    assert Ball(2.0).snap(np.array([1.0, 0.0]), 1e-4).tolist() == [1, 0]
    product = Product([(2, Box(0.0, 1.0)), (1, REALS)]).snap(np.array([near, 0.5, near]), 1e-4)
    assert product.tolist() == [0, 0.5, near]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("distance", [0.0, 10.0, 1000.0])
def test_a_point_put_on_the_edge_of_a_ball_counts_as_there(dtype, distance, rng):
    ball = Ball(1.0, np.full(3, distance))
    for outward in rng.normal(size=(50, 3)):
        x = ball.snap((distance + 5 * outward).astype(dtype), 1e-6)
        along = (x - distance).astype(dtype)
        assert np.linalg.norm(ball.tangent(x, along)) < 1e-3 * np.linalg.norm(along)
        assert ball.tangent(x, -along).tolist() == (-along).tolist()


# JAX compiles every operation anew for a shape: for it, the sets that cover each line once.
each_with_each = pytest.mark.parametrize(
    ("name", "library"),
    [(name, Library(kind)) for kind in ("numpy", "torch") for name in SETS]
    + [(name, Library("jax")) for name in ("ball", "product")],
    ids=lambda value: getattr(value, "name", value),
)


@each_with_each
def test_torch_and_jax_agree_with_numpy_with_leading_axes(name, library, rng):
    domain = SETS[name]
    y, v = rng.normal(size=(2, 3, 5, 4))
    x = domain.project(y)
    expected = [x, domain.tangent(x, v), domain.snap(y, 1e-2)]
    ours = [
        domain.project(library.array(y)),
        domain.tangent(library.array(x), library.array(v)),
        domain.snap(library.array(y), 1e-2),
    ]
    for one, other in zip(ours, expected, strict=True):
        assert type(one) is type(library.array(y))
        assert to_numpy(one) == pytest.approx(other, abs=1e-12)
    rows = np.array([[domain.project(row) for row in block] for block in y])
    assert to_numpy(ours[0]) == pytest.approx(rows, abs=1e-12)


@pytest.mark.parametrize(("name", "library"), [(name, Library("torch")) for name in SETS] + [("ball", Library("jax"))])
def test_single_precision_stays_single(name, library, rng):
    y = library.array(rng.normal(size=4), "float32")
    v = library.array(rng.normal(size=4), "float32")
    domain = SETS[name]
    x = domain.project(y)
    assert x.dtype == domain.tangent(x, v).dtype == domain.snap(y, 1e-3).dtype == y.dtype
    assert contains(domain, x, 1e-5)


BAD = [
    (lambda: Box([0.0, 2.0], [1.0, 1.0]), ValueError, r"lower bound 2\.0 exceeds upper bound 1\.0 at index 1"),
    (lambda: Box(1.0, 0.0), ValueError, r"lower bound 1\.0 exceeds upper bound 0\.0 at index 0"),
    (lambda: Box([0.0, np.nan], 1.0), ValueError, "bounds must not be NaN"),
    (lambda: Box(0.0, [1.0, np.nan]), ValueError, "bounds must not be NaN"),
    (lambda: Box(np.inf, np.inf), ValueError, "leaves no point"),
    (lambda: Box(-np.inf, -np.inf), ValueError, "leaves no point"),
    (lambda: Box([0.0, 0.0, 0.0], [1.0, 1.0]), ValueError, "broadcast"),
    (lambda: Ball(0.0), ValueError, r"radius must be a positive finite number, got 0\.0"),
    (lambda: Ball(np.inf), ValueError, "radius must be a positive finite number, got inf"),
    (lambda: Ball(1.0, [0.0, np.nan]), ValueError, "center must be finite"),
    (lambda: Simplex(total=0.0), ValueError, r"total must be a positive finite number, got 0\.0"),
    (lambda: Simplex(total=np.nan), ValueError, "total must be a positive finite number, got nan"),
    (lambda: Simplex(rows=0), ValueError, "rows must be a positive integer, got 0"),
    (lambda: Simplex(rows=1.5), ValueError, r"rows must be a positive integer, got 1\.5"),
    (lambda: Product([]), ValueError, "at least one"),
    (lambda: Product([(0, REALS)]), ValueError, r"each block must be \(positive size, ConvexSet\), got \(0, "),
    (lambda: Product([(1, "box")]), ValueError, r"each block must be .*'box'"),  # type: ignore[list-item]
    (lambda: Product([(3, Simplex(rows=2))]), ValueError, "rows must divide it"),
    (lambda: Box([0.0, 0.0], 1.0).check_dimension(3), ValueError, "the box has 2 bounds but x has 3 coordinates"),
    (lambda: Ball(1.0, [0.0, 0.0]).check_dimension(3), ValueError, "center has 2 coordinates but x has 3"),
    (lambda: Simplex(rows=2).check_dimension(3), ValueError, "a simplex of 2 rows cannot hold 3 coordinates"),
    (lambda: Product([(2, REALS)]).check_dimension(3), ValueError, "blocks have 2 coordinates but x has 3"),
]


@pytest.mark.parametrize(("make", "kind", "message"), BAD)
def test_bad_sets_say_what_is_wrong(make, kind, message):
    with pytest.raises(kind, match=message):
        make()


@every_set
def test_good_sets_accept_their_dimension(name):
    SETS[name].check_dimension(4)


def test_equal_bounds_fix_a_coordinate_and_torch_bounds_are_read():
    torch = pytest.importorskip("torch")
    box = Box(torch.tensor([1.0, 0.0]), torch.tensor([1.0, 2.0]))
    assert box.project(np.array([5.0, 1.0])).tolist() == [1.0, 1.0]
    assert box.tangent(np.array([1.0, 1.0]), np.array([3.0, 3.0])).tolist() == [0.0, 3.0]


def test_a_box_does_not_share_the_arrays_it_was_given():
    lower = np.zeros(2)
    box = Box(lower, 1.0)
    lower[0] = 0.9
    assert box.project(np.array([0.5, 0.5])).tolist() == [0.5, 0.5]
