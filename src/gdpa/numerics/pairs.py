"""The last pairs (s, y) of a limited-memory matrix, in one array that successive values share."""

from __future__ import annotations

import threading
import weakref
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import array_api_compat
import numpy as np

from gdpa.base.arrays import from_numpy, namespace, products
from gdpa.base.stored import stored
from gdpa.base.typing import Array
from gdpa.numerics.dense import Matrix

#: Places beyond the pairs that are kept: a run adds a pair while its state before the step is alive.
SPARE = 1
#: Two threads may continue from one value.
_CLAIM = threading.Lock()


@stored
@dataclass(frozen=True, eq=False)
class Pairs:
    """The last pairs (s, y). A value does not change, though values that follow each other share their array.

    `joined` writes into a place of the array that no living value uses; if there is none, it copies the array.

    Args:
        data: the array, of shape (2 n, d). Pair i is in place i mod n: s in row 2 (i mod n), y in the next row. A pair
            has the same place whatever else is alive, so sums have the same order.
        newest: the number i of the newest pair, from 0 on.
        scales: the factors of the y, oldest first.

    >>> one = Pairs.none(np.ones(2), 1).joined(np.ones(2), np.ones(2), 1)
    >>> two = one.joined(2 * np.ones(2), 3 * np.ones(2), 1)
    >>> two.data is one.data, one.vectors()[0].tolist(), two.vectors()[0].tolist()
    (True, [1.0, 1.0], [2.0, 2.0])
    """

    data: Array
    newest: int
    scales: tuple[float, ...]

    @classmethod
    def none(cls, like: Array, most: int) -> Pairs:
        """Return no pairs, with places for ``most`` pairs of vectors such as ``like``."""
        xp, shape = namespace(like), (2 * (most + SPARE), like.shape[0])
        return cls(xp.zeros(shape, dtype=like.dtype, device=array_api_compat.device(like)), -1, ())

    def __reduce__(self) -> Any:  # a copy shares no array, because its users would not be known
        return type(self), (_copied(self.data), self.newest, self.scales)

    @cached_property
    def _users(self) -> list[weakref.ref[Pairs]]:
        """The values that share the array."""
        return [weakref.ref(self)]

    def _sharing(self, newest: int, scales: tuple[float, ...]) -> Pairs:
        """Return other pairs in the same array."""
        pairs = Pairs(self.data, newest, scales)
        vars(pairs)["_users"] = self._users
        self._users[:] = [*(user for user in self._users if user() is not None), weakref.ref(pairs)]
        return pairs

    def joined(self, s: Array, y: Array, most: int) -> Pairs:
        """Return the last ``most`` pairs with (s, y) as the newest."""
        newest, scales = self.newest + 1, (*self.scales, 1.0)[-most:]
        places = self.data.shape[0] // 2
        place = newest % places
        if array_api_compat.is_jax_array(self.data):  # these arrays never change
            data = self.data.at[2 * place : 2 * place + 2].set(namespace(s).stack([s, y]))
            return Pairs(data, newest, scales)
        with _CLAIM:
            living = [user for reference in self._users if (user := reference()) is not None]
            taken = any((user.newest - place) % places < len(user.scales) for user in living)
            if array_api_compat.is_torch_array(s):  # torch locks arrays of its inference mode outside it
                taken |= self.data.is_inference() and not s.is_inference()
            joined = Pairs(_copied(self.data), newest, scales) if taken else self._sharing(newest, scales)
        joined.data[2 * place], joined.data[2 * place + 1] = s, y
        return joined

    def rescaled(self, factor: float) -> Pairs:
        """Return the pairs with each y multiplied by a number."""
        with _CLAIM:
            return self._sharing(self.newest, tuple(factor * scale for scale in self.scales))

    @cached_property
    def rows(self) -> Array:
        """The rows of the array that hold or held pairs; all of them for JAX, which compiles for every shape."""
        return self.data if array_api_compat.is_jax_array(self.data) else self.data[: 2 * (self.newest + 1)]

    @cached_property
    def index(self) -> Any:
        """The places of the vectors in `rows`: the steps s, oldest first, then the y."""
        places = np.arange(self.newest + 1 - len(self.scales), self.newest + 1) % (self.data.shape[0] // 2)
        return np.concatenate((2 * places, 2 * places + 1))

    @cached_property
    def factors(self) -> Matrix:
        """The factors of these rows."""
        return np.concatenate((np.ones(len(self.scales)), self.scales))

    def products(self, vectors: Array) -> Matrix:
        """Return the products of the s, then of the y, with each of the vectors, on the host."""
        return np.asarray(self.factors[:, None] * products(self.rows, vectors)[self.index])

    def combine(self, coefficients: Matrix) -> Array:
        """Return the combination of the s, then of the y, by coefficients from the host."""
        spread = np.zeros(self.rows.shape[0])
        spread[self.index] = self.factors * coefficients
        return from_numpy(spread, self.data) @ self.rows

    def vectors(self) -> list[Array]:
        """Return the s, oldest first, then the y."""
        rows = zip(self.index.tolist(), self.factors.tolist(), strict=True)
        return [self.data[i] if factor == 1 else factor * self.data[i] for i, factor in rows]


@stored
@dataclass(frozen=True, eq=False)
class ShortPairs(Pairs):
    """Pairs of short vectors of NumPy: copied with each new pair, the s before the y, as dense algebra needs them."""

    def joined(self, s: Array, y: Array, most: int) -> ShortPairs:
        k = self.data.shape[0] // 2
        first = max(0, k + 1 - most)
        return ShortPairs(np.concatenate((self.data[first:k], s[None], self.data[k + first :], y[None])), -1, ())

    def rescaled(self, factor: float) -> ShortPairs:
        k = self.data.shape[0] // 2
        return ShortPairs(np.concatenate((self.data[:k], factor * self.data[k:])), -1, ())

    @cached_property
    def rows(self) -> Array:
        return self.data

    @cached_property
    def index(self) -> Any:
        return np.arange(self.data.shape[0])

    @cached_property
    def factors(self) -> Matrix:
        return np.ones(self.data.shape[0])


def _copied(data: Array) -> Array:
    return namespace(data).asarray(data, copy=True)
