"""Convex sets X on which Euclidean projection is easy. All operations act on the last axis."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from gdpa.base.arrays import from_numpy, max_norm, namespace, norm, some, to_numpy
from gdpa.base.checks import is_count
from gdpa.base.typing import Array


class ConvexSet(ABC):
    """A closed convex set of points x (last axis)."""

    @abstractmethod
    def project(self, x: Array) -> Array:
        """Return the point of the set nearest to ``x`` in the Euclidean norm."""

    @abstractmethod
    def tangent(self, x: Array, v: Array) -> Array:
        """Return the projection of ``v`` on the tangent cone at ``x``, a point of the set.

        By Moreau's decomposition its norm for v = -grad is dist(grad, -N_X(x)), the paper's stationarity, and
        v minus it is the part of v in the normal cone (the multipliers of the set).
        """

    def snap(self, x: Array, tolerance: float) -> Array:
        """Return ``x`` projected on the set, with pieces nearly on its boundary moved onto it.

        A gradient mapping of one fixed step certifies the *projected* point, not a point near the boundary
        (see docs/theory.md on Proposition 1), so certificates are computed at the snapped point.
        """
        return self.project(x)

    @property
    def shortens(self) -> bool:
        """Whether `project` stops short of the nearest point, for a step that is cut; see `gdpa.run.loop`."""
        return False

    def check_dimension(self, dimension: int) -> None:  # noqa: B027 - most sets fit every dimension
        """Raise ValueError if points of ``dimension`` coordinates cannot lie in the set."""


@dataclass(frozen=True)
class Reals(ConvexSet):
    """The whole space: nothing to project."""

    def project(self, x: Array) -> Array:
        return x

    def tangent(self, x: Array, v: Array) -> Array:
        return v


REALS = Reals()


@dataclass(frozen=True, eq=False)
class Box(ConvexSet):
    """``lower <= x <= upper`` componentwise; infinite bounds are allowed.

    >>> box = Box([0.0, -np.inf], [1.0, 2.0])
    >>> box.project(np.array([-1.0, 3.0])).tolist()
    [0.0, 2.0]
    >>> box.tangent(np.array([0.0, 1.0]), np.array([-1.0, 5.0])).tolist()
    [0.0, 5.0]
    """

    lower: Any
    upper: Any

    def __post_init__(self) -> None:
        lower, upper = np.broadcast_arrays(*(np.asarray(to_numpy(b), dtype=float) for b in (self.lower, self.upper)))
        if np.isnan(lower).any() or np.isnan(upper).any():
            raise ValueError(f"bounds must not be NaN, got lower={self.lower!r}, upper={self.upper!r}")
        if (lower > upper).any():
            i, low, high = int(np.argmax(lower > upper)), lower.ravel(), upper.ravel()
            raise ValueError(f"lower bound {low[i]} exceeds upper bound {high[i]} at index {i}; swap them or relax one")
        if (np.isposinf(lower) | np.isneginf(upper)).any():
            raise ValueError("a lower bound of +inf or an upper bound of -inf leaves no point; relax it")
        object.__setattr__(self, "lower", lower.copy())
        object.__setattr__(self, "upper", upper.copy())
        object.__setattr__(self, "_cache", {})

    def bounds(self, like: Array) -> tuple[Array, Array]:
        """Return (lower, upper) as arrays of the library, dtype and device of ``like``."""
        plain = type(like) is np.ndarray
        key = like.dtype if plain else (type(like), str(like.dtype), str(getattr(like, "device", "cpu")))
        cache: dict[Any, tuple[Array, Array]] = self._cache  # type: ignore[attr-defined]
        if key not in cache:
            cache[key] = (from_numpy(self.lower, like), from_numpy(self.upper, like))
        return cache[key]

    def project(self, x: Array) -> Array:
        lower, upper = self.bounds(x)
        xp = namespace(x)
        return xp.minimum(xp.maximum(x, lower), upper)

    def tangent(self, x: Array, v: Array) -> Array:
        lower, upper = self.bounds(x)
        xp = namespace(x)
        blocked = ((x <= lower) & (v < 0)) | ((x >= upper) & (v > 0))
        if xp is np and not some(blocked):
            return v
        return xp.where(blocked, 0.0 if xp is np else xp.zeros_like(v), v)

    def snap(self, x: Array, tolerance: float) -> Array:
        lower, upper = self.bounds(x)
        xp = namespace(x)
        x = self.project(x)
        for bound in (lower, upper):
            size = xp.where(xp.isfinite(bound), xp.abs(bound), xp.zeros_like(bound))  # no point is near infinity
            x = xp.where(xp.abs(bound - x) <= tolerance * (1 + size), bound + xp.zeros_like(x), x)
        return x

    def check_dimension(self, dimension: int) -> None:
        if self.lower.ndim and self.lower.shape[-1] not in (1, dimension):
            raise ValueError(f"the box has {self.lower.shape[-1]} bounds but x has {dimension} coordinates")


def NonNegative() -> Box:  # noqa: N802 - a set, named like its siblings
    """Return the nonnegative orthant ``x >= 0``."""
    return Box(0.0, np.inf)


@dataclass(frozen=True, eq=False)
class Ball(ConvexSet):
    """``||x - center|| <= radius``.

    >>> Ball(5.0).project(np.array([6.0, 8.0])).tolist()
    [3.0, 4.0]
    """

    radius: float
    center: Any = 0.0

    def __post_init__(self) -> None:
        if not (np.isfinite(self.radius) and self.radius > 0):
            raise ValueError(f"radius must be a positive finite number, got {self.radius!r}")
        center = np.asarray(to_numpy(self.center), dtype=float)
        if not np.isfinite(center).all():
            raise ValueError(f"center must be finite, got {self.center!r}")
        object.__setattr__(self, "center", center)

    def project(self, x: Array) -> Array:
        center = from_numpy(self.center, x)
        offset = x - center
        length = norm(offset)[..., None]
        xp = namespace(x)
        scale = self.radius / xp.where(length > self.radius, length, self.radius + xp.zeros_like(length))
        return center + offset * scale

    def tangent(self, x: Array, v: Array) -> Array:
        xp = namespace(x)
        offset = x - from_numpy(self.center, x)
        length = norm(offset)[..., None]
        unit = offset / xp.where(length > 0, length, xp.ones_like(length))
        outward = xp.sum(unit * v, axis=-1)[..., None]
        # A point put on the edge is there up to the rounding of its coordinates, which a far center makes large.
        edge = length >= self.radius - 8 * float(xp.finfo(x.dtype).eps) * (self.radius + max_norm(x)[..., None])
        return v - xp.where(edge & (outward > 0), outward, xp.zeros_like(outward)) * unit

    def snap(self, x: Array, tolerance: float) -> Array:
        xp = namespace(x)
        x = self.project(x)
        center = from_numpy(self.center, x)
        length = norm(x - center)[..., None]
        near = length >= self.radius * (1 - tolerance)
        return center + (x - center) * xp.where(near, self.radius / xp.where(near, length, 1 + length), 1 + 0 * length)

    def check_dimension(self, dimension: int) -> None:
        if self.center.ndim and self.center.shape[-1] != dimension:
            raise ValueError(f"the ball's center has {self.center.shape[-1]} coordinates but x has {dimension}")


@dataclass(frozen=True)
class Simplex(ConvexSet):
    """``x >= 0, sum(x) = total``; with ``rows=n``, x is n such rows one after another.

    >>> Simplex().project(np.array([0.5, 1.5])).tolist()
    [0.0, 1.0]
    >>> Simplex(rows=2).project(np.array([0.5, 1.5, 3.0, 0.0])).tolist()
    [0.0, 1.0, 1.0, 0.0]
    """

    total: float = 1.0
    rows: int = 1

    def __post_init__(self) -> None:
        if not (np.isfinite(self.total) and self.total > 0):
            raise ValueError(f"total must be a positive finite number, got {self.total!r}")
        if not is_count(self.rows, 1):
            raise ValueError(f"rows must be a positive integer, got {self.rows!r}")

    def _rows(self, x: Array) -> Array:
        return namespace(x).reshape(x, (*x.shape[:-1], self.rows, x.shape[-1] // self.rows))

    def project(self, x: Array) -> Array:
        return _project_on_sum(self._rows(x), True, self.total).reshape(x.shape)

    def tangent(self, x: Array, v: Array) -> Array:
        # T = {t : sum t = 0, t_i >= 0 where x_i = 0}
        return _project_on_sum(self._rows(v), self._rows(x) <= 0, 0.0).reshape(v.shape)

    def snap(self, x: Array, tolerance: float) -> Array:
        xp, rows = namespace(x), self._rows(self.project(x))
        out = xp.min(rows, axis=-1)[..., None] - self.total - 1  # its projection is 0
        return _project_on_sum(xp.where(rows > tolerance * self.total, rows, out), True, self.total).reshape(x.shape)

    def check_dimension(self, dimension: int) -> None:
        if dimension % self.rows:
            raise ValueError(f"a simplex of {self.rows} rows cannot hold {dimension} coordinates; rows must divide it")


def _project_on_sum(v: Array, signed: Array | bool, total: float) -> Array:
    """Project on ``{t : sum t = total, t_i >= 0 where signed_i}``: t = v - s, clipped at 0 on the signed entries.

    s -> sum(t) is decreasing and piecewise linear: of the sorted signed entries the k largest stay, for some k, as in
    the sorting formula for the simplex (Held et al. 1974).
    """
    xp = namespace(v)
    zero, one = xp.zeros_like(v), xp.ones_like(v)
    signed = signed & (one > 0)
    free_sum = xp.sum(xp.where(signed, zero, v), axis=-1)[..., None] - total
    free_count = xp.sum(xp.where(signed, zero, one), axis=-1)[..., None]
    u = xp.flip(xp.sort(xp.where(signed, v, xp.min(v, axis=-1)[..., None] - 1), axis=-1), axis=-1)  # signed ones first
    place = xp.cumulative_sum(one, axis=-1)
    is_signed = place <= v.shape[-1] - free_count
    shifts = (free_sum + xp.cumulative_sum(xp.where(is_signed, u, zero), axis=-1)) / (free_count + place)
    kept = xp.count_nonzero(is_signed & (u > shifts), axis=-1)[..., None]
    # If no signed entry stays, the free entries have the sum; if there are none, only t = 0 sums to 0.
    mean = free_sum / xp.where(free_count > 0, free_count, one[..., :1])
    free = xp.where(free_count > 0, mean, xp.max(v, axis=-1)[..., None])
    shift = xp.where(kept > 0, xp.take_along_axis(shifts, xp.where(kept > 0, kept - 1, kept), axis=-1), free)
    return xp.where(signed, xp.maximum(v - shift, zero), v - shift)


@dataclass(frozen=True, eq=False)
class Product(ConvexSet):
    """The product of sets over consecutive blocks of x.

    >>> Product([(2, Simplex()), (1, NonNegative())]).project(np.array([0.5, 1.5, -1.0])).tolist()
    [0.0, 1.0, 0.0]
    """

    blocks: Sequence[tuple[int, ConvexSet]]

    def __post_init__(self) -> None:
        if not self.blocks:
            raise ValueError("blocks must hold at least one (size, set) pair, got none")
        for size, block in self.blocks:
            if not is_count(size, 1) or not isinstance(block, ConvexSet):
                raise ValueError(f"each block must be (positive size, ConvexSet), got ({size!r}, {block!r})")
            block.check_dimension(size)

    @property
    def shortens(self) -> bool:
        return any(block.shortens for _, block in self.blocks)

    def _parts(self) -> Iterator[tuple[ConvexSet, slice]]:
        ends = accumulate((size for size, _ in self.blocks), initial=0)
        return ((block, slice(*ends)) for (_, block), ends in zip(self.blocks, pairwise(ends), strict=True))

    def project(self, x: Array) -> Array:
        return namespace(x).concat([block.project(x[..., part]) for block, part in self._parts()], axis=-1)

    def tangent(self, x: Array, v: Array) -> Array:
        parts = [block.tangent(x[..., part], v[..., part]) for block, part in self._parts()]
        return namespace(x).concat(parts, axis=-1)

    def snap(self, x: Array, tolerance: float) -> Array:
        return namespace(x).concat([block.snap(x[..., part], tolerance) for block, part in self._parts()], axis=-1)

    def check_dimension(self, dimension: int) -> None:
        total = sum(size for size, _ in self.blocks)
        if total != dimension:
            raise ValueError(f"the product's blocks have {total} coordinates but x has {dimension}")
