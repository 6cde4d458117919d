"""Finite differences that never leave a box and never take noise for a derivative."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

import numpy as np

from gdpa.base.arrays import machine_eps
from gdpa.base.sets import REALS, Box, ConvexSet
from gdpa.base.text import warn_user
from gdpa.base.typing import Vector
from gdpa.numerics.sparse.matrix import Pattern, SparseMatrix

#: The schemes by the names SciPy gives them.
SCHEMES = ("2-point", "3-point", "cs")
#: A change of this many roundings of the value, or fewer, is noise ...
NOISE = 4.0
#: ... and one of this many is not.
CLEAR = 100.0
#: Steps relative to max(1, |x|) for a second look at a function that did not change, after the cube root of eps.
LEVELS = (1e-3, 1e-1, 1.0)
#: Values that all have this many decimal digits or fewer were rounded; by chance a double has them once in 1e7.
DIGITS = 8
EPS_SINGLE, EPS_DOUBLE = float(np.finfo(np.float32).eps), float(np.finfo(float).eps)
#: Coordinates that move together, the rows and columns of their entries of J, and where these are stored.
Group: TypeAlias = tuple[Any, Any, Any, Any]


class FiniteDifferenceWarning(UserWarning):
    """Derivatives are approximated by finite differences, possibly inaccurately."""


def precision(value: Any) -> float:
    """Return the relative precision of a function's answer, by its dtype; double for anything but floats."""
    array = np.asarray(value)
    return max(machine_eps(array) if array.dtype.kind in "fc" else 0.0, EPS_DOUBLE)


def scheme_and_steps(x: Vector, scheme: str, relative_step: Any, precision: float) -> tuple[str, Vector, float]:
    """Return the scheme to use, the step along every coordinate and the eps of the values, see `derivative`."""
    own = float(np.finfo(x.dtype).eps)
    eps = max(own, precision)
    if scheme == "2-point" and eps > own:
        scheme = "3-point"
    default = eps ** (1 / 3 if scheme == "3-point" else 1 / 2) * np.maximum(1.0, np.abs(x))
    step = default if relative_step is None else np.abs(relative_step) * np.abs(x)
    return scheme, np.where(step > 0, step, default), eps


def derivative(
    function: Callable[[Vector], Vector],
    x: Vector,
    at: Vector,
    scheme: str = "2-point",
    domain: ConvexSet = REALS,
    relative_step: Any = None,
    precision: float = 0.0,
    name: str = "the function",
) -> Vector:
    """Return the Jacobian of ``function`` at ``x`` by finite differences, of shape (len(at), d).

    Args:
        function: x -> vector.
        x: the point, in the domain.
        at: ``function(x)``, already known.
        scheme: "2-point" costs d evaluations and keeps about half the digits; "3-point" costs 2d and keeps two thirds;
            "cs" (complex step) costs d and keeps all of them, for functions that accept complex x.
        domain: steps turn round at the bounds of a box. A coordinate whose bounds leave no room gets a zero derivative.
        relative_step: the step over |x|; default: sqrt(eps) max(1, |x|), for "3-point" the cube root of eps.
        precision: the eps of the values, see `precision`, if larger than the eps of x. "2-point" becomes "3-point"
            then, because a step of sqrt(eps) would bias the derivative.
        name: how the warning calls the function.

    A row that is no larger than rounding gets a second look: one evaluation farther away, and wider differences if
    those see more. A row of values that were rounded (to three decimals, to whole numbers), and one that is all noise
    even then, is NaN, with a `FiniteDifferenceWarning`: it never looks like a stationary point. A row that does not
    change at all is zero.

    >>> square = lambda x: np.array([x @ x])
    >>> derivative(square, np.array([3.0]), np.array([9.0]), "cs").tolist()
    [[6.0]]
    """
    scheme, step, eps = scheme_and_steps(x, scheme, relative_step, precision)
    jacobian = np.zeros((at.shape[0], x.shape[0]), dtype=x.dtype)
    values = _sweep(function, x, at, scheme, domain, step, _columns(len(x)), jacobian)
    if scheme == "cs":
        dropped = ~jacobian.any(axis=1)  # the function may have dropped the imaginary part
        if dropped.any():
            real = derivative(function, x, at, "3-point", domain, relative_step, precision, name)
            jacobian[dropped] = real[dropped]
        return jacobian
    with np.errstate(all="ignore"):
        samples = np.concatenate([at[:, None], values], axis=1).astype(float)
        change = np.abs(samples[:, 1:] - samples[:, :1]).max(axis=1, initial=0.0)
        doubtful = change <= NOISE * eps * np.abs(samples).max(axis=1)
        doubtful |= (_rounded(samples, eps) | (_is_single(samples) & (eps < EPS_SINGLE))) & (change > 0)
    if doubtful.any() and values.size:
        widest = float((step / np.maximum(1.0, np.abs(x))).max())
        _look_again(function, x, samples, jacobian, doubtful, domain, widest, eps, name)
    return jacobian


def _sweep(
    function: Callable[[Vector], Vector], x: Vector, at: Vector, scheme: str, domain: ConvexSet, step: Vector,
    groups: Iterable[Group], out: Vector,
) -> Vector:  # fmt: skip
    """Write the derivatives by differences with these steps into ``out``; return the values they were made of.

    A coordinate without room for a step keeps its zeros. A central difference that does not fit into the box becomes
    one of second order to one side.
    """
    lower, upper = _bounds(domain, x)
    above, below = upper - x, x - lower
    far = np.where(above >= below, above, -below)
    movable = np.abs(far) > 8 * np.finfo(x.dtype).eps * np.maximum(1.0, np.abs(x))  # less room than this is rounding
    is_central = (step <= above) & (step <= below)
    if scheme == "3-point":
        near = np.minimum(step, np.abs(far) / 2) * np.sign(far)
        first, second = np.where(is_central, step, near), np.where(is_central, -step, 2 * near)
    else:
        first = np.where(step <= above, step, np.where(step <= below, -step, far))
    values: list[Vector] = []

    def move(chosen: Any, distance: Vector) -> tuple[Vector, Vector]:
        y = x.copy()
        y[chosen] = np.minimum(np.maximum(x[chosen] + distance[chosen], lower[chosen]), upper[chosen])
        values.append(function(y))
        return values[-1], y - x  # the step as it was rounded

    for chosen, rows, columns, place in groups:
        if not movable[chosen].any():
            continue
        if scheme == "cs":
            y = x.astype(complex)
            y[chosen] += 1j * step[chosen]
            out[place] = np.imag(function(y))[rows] / step[columns]
            continue
        value, a = move(chosen, first)
        other, b = (at, np.zeros_like(a)) if scheme == "2-point" else move(chosen, second)
        with np.errstate(all="ignore"):
            slope = (value - other)[rows] / (a - b)[columns]
            if scheme == "3-point" and not is_central[columns].all():
                one, two = (value - at)[rows] / a[columns], (other - at)[rows] / b[columns]
                one_sided = (one * b[columns] - two * a[columns]) / (b - a)[columns]
                slope = np.where(is_central[columns], slope, one_sided)
            out[place] = np.where(movable[columns], slope, 0.0)
    return np.stack(values, axis=1) if values else np.zeros((at.shape[0], 0))


def _bounds(domain: ConvexSet, x: Vector) -> tuple[Vector, Vector]:
    lower, upper = domain.bounds(x) if isinstance(domain, Box) else (-np.inf, np.inf)
    return np.broadcast_to(lower, x.shape), np.broadcast_to(upper, x.shape)


def _columns(d: int) -> Iterator[Group]:
    """Yield every column of a dense Jacobian as a group."""
    return ((i, slice(None), i, (slice(None), i)) for i in range(d))


def _look_again(
    function: Callable[[Vector], Vector], x: Vector, samples: Vector, jacobian: Vector, doubtful: Vector,
    domain: ConvexSet, first: float, eps: float, name: str,
) -> None:  # fmt: skip
    """Decide about the doubtful rows by values farther away, and write the known entries into ``jacobian``."""
    at, size = samples[:, 0], np.maximum(1.0, np.abs(x))
    direction = size * np.sin(np.arange(1, x.shape[0] + 1) ** 2)  # no coordinate is left out, no two are alike
    coarse, single, faint, dim = (np.zeros(len(at), dtype=bool) for _ in range(4))
    for level in (eps ** (1 / 3), *LEVELS):
        if not doubtful.any():
            break
        if level <= 2 * first:
            continue
        try:
            value = function(np.clip(x + level * direction, *_bounds(domain, x)).astype(x.dtype))
        except (ArithmeticError, ValueError):  # the function is not defined there
            break
        samples = np.concatenate([samples, np.asarray(value, dtype=float)[:, None]], axis=1)
        with np.errstate(all="ignore"):
            noise = eps * np.abs(samples).max(axis=1)
            change = np.abs(samples[:, -1] - at)
            moves = change > NOISE * noise
            coarse |= doubtful & moves & _rounded(samples, eps)
            single |= doubtful & moves & ~coarse & _is_single(samples) & (eps < EPS_SINGLE)
            doubtful &= ~coarse & ~single
            dim = moves
            clear = doubtful & (change > CLEAR * noise)
            # A change in proportion would have shown at the first step: the derivative is as small as it looked.
            hidden = clear & (change * first / level <= NOISE * noise)
        doubtful &= ~clear
        if hidden.any():
            wider = np.zeros_like(jacobian)
            _sweep(function, x, at, "3-point", domain, level * size, _columns(len(x)), wider)
            faint |= hidden & (np.abs(wider) * level * size <= noise[:, None]).all(axis=1)
            jacobian[hidden] = wider[hidden]
    if single.any():
        jacobian[single] = derivative(function, x, at, "3-point", domain, precision=EPS_SINGLE, name=name)[single]
    blind = coarse | faint | (doubtful & dim)
    if blind.any():
        jacobian[blind] = np.nan
        row = int(np.argmax(blind))
        entry = f"value {row} of {name}" if len(at) > 1 else name
        reason = "is rounded to a few digits" if coarse[row] else "changes by less than its rounding"
        warn_user(
            f"no derivative of {entry} can be seen: it {reason} around {at[row]:.6g}, so differences are all noise; "
            "return more digits, subtract a constant, or pass the derivative",
            FiniteDifferenceWarning,
        )


def _is_single(samples: Vector) -> Vector:
    """Return which rows hold numbers of single precision only."""
    return np.asarray((samples.astype(np.float32) == samples).all(axis=1))


def _rounded(samples: Vector, eps: float) -> Vector:
    """Return which rows hold only numbers of few decimal digits, counted from the largest of them."""
    digits = min(DIGITS, int(-np.log10(400 * eps)))  # the eps of the values leaves no more to tell by
    size = np.abs(samples).max(axis=1)
    quantum = 10.0 ** (np.ceil(np.log10(np.where(size > 0, size, 1.0))) - digits)
    multiples = samples / quantum[:, None]
    return np.asarray((np.abs(multiples - np.round(multiples)) <= 4 * eps * np.abs(multiples)).all(axis=1))


class GroupedDifferences:
    """Differences of a function with a sparse Jacobian: columns without a common row are found together.

    A banded Jacobian takes as many evaluations as its band is wide, whatever the number of variables. The groups of one
    pattern are found once.

    References:
        A. R. Curtis, M. J. D. Powell and J. K. Reid, "On the estimation of sparse Jacobian matrices", IMA J. Applied
        Mathematics 13 (1974).

    >>> from gdpa.numerics.sparse.matrix import read
    >>> differences = GroupedDifferences(read(np.eye(3)).pattern)
    >>> calls = []
    >>> square = lambda x: calls.append(1) or x * x
    >>> x = np.array([1.0, 2.0, 3.0])
    >>> differences(square, x, x * x, "3-point").data.round(6).tolist(), len(calls)
    ([2.0, 4.0, 6.0], 2)
    """

    def __init__(self, pattern: Pattern) -> None:
        from scipy.optimize._numdiff import group_columns  # SciPy documents it, and exports it from there alone

        self.pattern = pattern
        self.group_of = np.asarray(group_columns(pattern.csr(), order=np.arange(pattern.shape[1])))
        self.num_groups = int(self.group_of.max(initial=-1)) + 1
        self._groups: list[Group] = []
        for group in range(self.num_groups):
            mine = np.flatnonzero(self.group_of[pattern.indices] == group)
            self._groups.append((self.group_of == group, pattern.rows[mine], pattern.indices[mine], mine))

    def __call__(
        self, function: Callable[[Vector], Vector], x: Vector, at: Vector, scheme: str = "2-point",
        domain: ConvexSet = REALS, relative_step: Any = None, precision: float = 0.0, step: Any = None,
    ) -> SparseMatrix:  # fmt: skip
        """Return the Jacobian at ``x``; with the arguments of `derivative`, or absolute steps ``step``."""
        scheme, usual, _ = scheme_and_steps(x, scheme, relative_step, precision)
        data = np.zeros(len(self.pattern.indices))
        _sweep(function, x, at, scheme, domain, usual if step is None else step, self._groups, data)
        return SparseMatrix(self.pattern, data)
