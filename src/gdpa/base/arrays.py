"""The few array operations every formula needs, for NumPy, torch and JAX alike.

Formulas act on the last axis; leading axes are independent problems solved side by side.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import array_api_compat
import numpy as np

from gdpa.base.typing import Array, Vector

#: Products of single-precision rows of more columns than this are summed in double precision. A chained quartic takes
#: 28, 25 and 22 steps to 1e-4 with 30,000, 60,000 and 1,000,000 variables; with sums in single precision 89, 335 and
#: hundreds. With 15,000 variables it takes 28 and 26.
LONG_ROW = 1 << 14
#: They are copied in pieces of this many columns, on a device in few operations. On the host larger pieces are new
#: pages of the system: 44 rows of 1,000,000 columns take 42 ms, and 197 ms in pieces as on a device.
PIECE, HOST_PIECE = 1 << 18, 1 << 14


def namespace(x: Array) -> Any:
    """Return the array-API namespace of ``x`` (NumPy, torch or JAX).

    >>> namespace(np.zeros(2)) is np
    True
    """
    if type(x) is np.ndarray:  # NumPy 2 is its own array-API namespace; this is the hot path
        return np
    return array_api_compat.array_namespace(x)


def machine_eps(x: Array) -> float:
    """Return the precision of the numbers of ``x``, looked up once for each dtype."""
    eps = _EPS.get(x.dtype)
    if eps is None:
        eps = _EPS[x.dtype] = float(namespace(x).finfo(x.dtype).eps)
    return eps


_EPS: dict[Any, float] = {}


def positive_part(q: Array, num_equalities: int = 0) -> Array:
    """Return ``[q]_+`` componentwise; the last ``num_equalities`` components pass unchanged.

    The one projection of the library's dual side: multipliers of ``g_i <= 0`` live in the
    nonnegative half-line, multipliers of ``g_i = 0`` on the whole line. Applied to constraint
    values it is the violation, whose half squared norm has the gradient ``J^T [g]_+``.

    >>> positive_part(np.array([-1.0, 2.0, -3.0]), num_equalities=1).tolist()
    [0.0, 2.0, -3.0]
    """
    if type(q) is float:  # one constraint's number: `gdpa.torch` goes through a handful of them one by one
        return 0.0 if q < 0.0 and not num_equalities else q
    if num_equalities == 0 and type(q) is np.ndarray:
        return np.maximum(q, 0.0)
    xp = namespace(q)
    if num_equalities == 0:
        return xp.clip(q, min=0.0)
    split = q.shape[-1] - num_equalities
    return xp.concat([xp.clip(q[..., :split], min=0.0), q[..., split:]], axis=-1)


def norm(v: Array) -> Array:
    """Return the Euclidean norm over the last axis."""
    if type(v) is np.ndarray and v.ndim == 1:
        return np.sqrt(v.dot(v))
    return namespace(v).linalg.vector_norm(v, axis=-1)


def max_norm(v: Array) -> Array:
    """Return the largest absolute value over the last axis; 0 for an empty axis, NaN if any is NaN."""
    if type(v) is not np.ndarray:
        return _long_max_norm(v) if _is_long_tensor(v) else top(namespace(v).abs(v))
    sizes = np.abs(v)
    return sizes[sizes.argmax()] if v.ndim == 1 and v.shape[0] else top(sizes)


def _long_max_norm(v: Array) -> Array:
    """Return the same without a copy of ``v``: two reads take less time than a read, a write and a read."""
    xp = namespace(v)
    return xp.maximum(xp.max(v, axis=-1), -xp.min(v, axis=-1))


def top(v: Array) -> Array:
    """Return the largest number over the last axis; 0 for an empty axis, NaN if any is NaN."""
    if v.shape[-1] == 0:
        return namespace(v).sum(v, axis=-1)
    if type(v) is not np.ndarray:
        xp = namespace(v)
        largest = xp.max(v, axis=-1)
        if not array_api_compat.is_jax_array(v):
            return largest
        return xp.where(xp.any(xp.isnan(v), axis=-1), xp.nan, largest)  # JAX loses a NaN in a long vector on the host
    # On a short vector argmax, which finds NaN first, takes a quarter of the time of a reduction.
    return v[v.argmax()] if v.ndim == 1 else np.maximum.reduce(v, axis=-1)


def peaks(*vectors: Array) -> list[Any]:
    """Return the largest number of each over the last axis, kept as an axis; floats for single vectors of NumPy."""
    if type(vectors[0]) is np.ndarray and vectors[0].ndim == 1:
        return [float(v[v.argmax()]) for v in vectors]
    return [top(v)[..., None] for v in vectors]


def every(mask: Array) -> bool:
    """Return whether all entries of a mask are true; on short vectors of NumPy in a quarter of the time of `all`."""
    if type(mask) is np.ndarray and mask.ndim == 1:
        return mask.shape[0] == 0 or bool(mask[mask.argmin()])
    return bool(mask.all())


def some(mask: Array) -> bool:
    """Return whether an entry of a mask is true; on short vectors of NumPy in a quarter of the time of `any`."""
    if type(mask) is np.ndarray and mask.ndim == 1:
        return mask.shape[0] > 0 and bool(mask[mask.argmax()])
    return bool(mask.any())


def all_finite(*arrays: Array) -> bool:
    """Return whether all numbers are finite."""
    answers: tuple[Array, ...] = ()  # of arrays on a device, in one transfer
    for v in arrays:
        if type(v) is np.ndarray:
            flat = v.ravel()  # the largest and the smallest number tell; argmax and argmin find NaN first
            if len(flat) and not (math.isfinite(flat[flat.argmax()]) and math.isfinite(flat[flat.argmin()])):
                return False
        elif not isinstance(v, float):
            answers += (_finite(v).all(),)
        elif not math.isfinite(v):
            return False
    return not answers or bool(namespace(answers[0]).stack(answers).all())


def _finite(v: Array) -> Array:
    """Return whether the numbers are finite; of long vectors the largest and the smallest, which are NaN if one is."""
    xp = namespace(v)
    return xp.isfinite(xp.stack([xp.max(v, axis=-1), xp.min(v, axis=-1)]) if _is_long_tensor(v) else v)


def _is_long_tensor(v: Array) -> bool:
    return v.ndim > 0 and v.shape[-1] > LONG_ROW and array_api_compat.is_torch_array(v)


def total(v: Array) -> Array:
    """Return the sum over the last axis; for NumPy the ufunc's own reduction, a third of np.sum's time when short."""
    return np.add.reduce(v, axis=-1) if type(v) is np.ndarray else namespace(v).sum(v, axis=-1)


def dot(v: Array, w: Array) -> float:
    """Return the inner product of two vectors as a number; torch sums single precision in double precision."""
    if type(v) is np.ndarray:
        return float(v.dot(w))
    xp = namespace(v)
    if v.dtype == xp.float64:
        return float(v @ w)
    return float((v * w).sum(dtype=xp.float64) if _sums_in_double(v) else xp.sum(v * w))


def matmul(a: Array, b: Array) -> Array:
    """Return ``a @ b`` of vectors and matrices; for NumPy by `dot`, in half of the time if they are small."""
    return a.dot(b) if type(a) is np.ndarray and type(b) is np.ndarray else a @ b


def row_sums(J: Array, v: Array) -> Array:
    """Return J v, for each member of a batch of dense matrices or for a `SparseMatrix`."""
    if type(J) is np.ndarray and v.ndim == 1:
        return np.add.reduce(J * v, axis=-1)
    return J @ v if hasattr(J, "pattern") else total(J * (v if v.ndim == 1 else v[..., None, :]))


def combined(weights: Array, J: Array) -> Array:
    """Return J^T weights, for each member of a batch of dense matrices or for a `SparseMatrix`."""
    if type(J) is np.ndarray:
        return np.add.reduce(weights[..., None] * J, axis=-2)
    return weights @ J if hasattr(J, "pattern") else namespace(weights).sum(weights[..., None] * J, axis=-2)


def row_sizes(J: Array) -> Array:
    """Return the largest absolute value in every row of dense matrices or of a `SparseMatrix`."""
    if type(J) is np.ndarray and J.ndim == 2:
        return np.maximum.reduce(np.abs(J), axis=-1)  # of as many columns as x has, at least one
    return J.row_sizes() if hasattr(J, "pattern") else max_norm(J)


def _sums_in_double(v: Array) -> bool:
    """Return whether ``v`` is of torch on a device with double precision; JAX may have none, mps has none."""
    return array_api_compat.is_torch_array(v) and v.device.type != "mps"


def products(a: Array, b: Array) -> Vector:
    """Return a b^T on the host. Long rows in single precision are summed in double precision.

    >>> products(np.ones((1, 3), dtype=np.float32), np.ones((2, 3), dtype=np.float32)).tolist()
    [[3.0, 3.0]]
    """
    xp = namespace(a)
    if a.shape[1] <= LONG_ROW or a.dtype != xp.float32 or not (type(a) is np.ndarray or _sums_in_double(a)):
        # BLAS takes less time for few rows times many columns: 40 ms for 4 rows by 42 of 1,000,000 numbers, not 54.
        whole = a @ b.T if a.shape[0] <= b.shape[0] else (b @ a.T).T
        return np.asarray(to_numpy(whole), dtype=np.float64)
    pieces = column_pieces(a)
    return to_numpy(sum(xp.astype(b[:, j], xp.float64) @ xp.astype(a[:, j], xp.float64).T for j in pieces)).T


def column_pieces(rows: Array) -> list[slice]:
    """Return the columns in pieces whose copies, for long rows, are small beside the rows."""
    on_host = type(rows) is np.ndarray or (array_api_compat.is_torch_array(rows) and rows.device.type == "cpu")
    size, d = HOST_PIECE if on_host else PIECE, rows.shape[1]
    return [slice(j, j + size) for j in range(0, max(d, 1), size)]


def stacked(rows: Iterable[Array | None], m: int, like: Array) -> Array:
    """Return m vectors such as ``like``, None for zero, as the rows of one array.

    No row is needed beside the array once it is in its place, except for arrays of JAX, which never change.

    >>> stacked(iter([np.ones(2), None]), 2, np.zeros(2)).tolist()
    [[1.0, 1.0], [0.0, 0.0]]
    """
    xp = namespace(like)
    if array_api_compat.is_jax_array(like):
        return xp.stack([xp.zeros_like(like) if row is None else row for row in rows])
    J = xp.empty((m, *like.shape), dtype=like.dtype, device=array_api_compat.device(like))
    for i, row in enumerate(rows):
        J[i] = 0.0 if row is None else row
    return J


def zeros_like(v: Array) -> Array:
    """Return zeros of the shape, dtype and device of ``v``."""
    return np.zeros(v.shape, v.dtype) if type(v) is np.ndarray else namespace(v).zeros_like(v)


def to_numpy(x: Array) -> Vector:
    """Return ``x`` as a NumPy array on the host, detached from any graph."""
    if type(x) is np.ndarray:
        return x
    if array_api_compat.is_torch_array(x):
        return x.detach().cpu().numpy()
    return np.asarray(x)


def to_float64(a: Array) -> Vector:
    """Return ``a`` as an array of NumPy in double precision."""
    if type(a) is np.ndarray and a.dtype == np.float64:
        return a
    return np.asarray(to_numpy(a), dtype=np.float64)


def on_host(*arrays: Array) -> tuple[Any, ...]:
    """Return short arrays or numbers of one library as arrays of NumPy: from a device in one transfer.

    >>> on_host(np.zeros(2), np.float64(1.0))
    (array([0., 0.]), np.float64(1.0))
    """
    first = arrays[0]
    if isinstance(first, (np.ndarray, np.generic)):
        return arrays
    xp = namespace(first)
    flat = to_numpy(xp.concat([xp.reshape(a, (-1,)) for a in arrays]))
    ends = np.cumsum([math.prod(a.shape) for a in arrays])
    return tuple(part.reshape(a.shape) for part, a in zip(np.split(flat, ends[:-1]), arrays, strict=True))


def own_copy(x: Array) -> Array:
    """Return a copy of ``x`` outside any autograd graph, so that a later change of ``x`` does not reach it."""
    if array_api_compat.is_torch_array(x):
        return x.detach().clone()
    return np.array(x) if isinstance(x, np.ndarray) else x  # JAX arrays never change


def largest(value: Array) -> float:
    """Return a number as it is and the largest of a batch of numbers, as a float."""
    return value if isinstance(value, float) else float(namespace(value).max(value))


def from_numpy(values: Any, like: Array) -> Array:
    """Return host values as an array of the library, dtype and device of ``like``."""
    if type(like) is np.ndarray:
        return np.asarray(values, dtype=like.dtype)
    xp = namespace(like)
    return xp.asarray(np.asarray(values), dtype=like.dtype, device=array_api_compat.device(like))


def is_floating(x: Array) -> bool:
    """Return whether ``x`` is an array of real floating-point numbers."""
    if type(x) is np.ndarray:
        return bool(np.issubdtype(x.dtype, np.floating))
    return array_api_compat.is_array_api_obj(x) and bool(namespace(x).isdtype(x.dtype, "real floating"))
