"""The one abstraction of the library: an oracle call.

Every method here needs only the values of f and g at a point and *weighted* gradients there::

    min f(x)   subject to   g_i(x) <= 0  (i < m - p),   g_i(x) = 0  (the last p),   x in X

One call of `Problem.evaluate` is one forward pass; one call of `Evaluation.pullback` is one backward pass.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any, Protocol, TypeVar, cast

import array_api_compat
import numpy as np

from gdpa.base.arrays import namespace, to_numpy, zeros_like
from gdpa.base.checks import is_count
from gdpa.base.sets import REALS, ConvexSet
from gdpa.base.status import Status
from gdpa.base.text import make_printable
from gdpa.base.typing import Array, Operand, Pullback
from gdpa.numerics.sparse.matrix import SparseMatrix, is_sparse, read

T = TypeVar("T")
#: Types without arrays, which `map_arrays` leaves as they are.
PLAIN = frozenset((type(None), bool, int, float, np.float64, str, Status))


class Account(Protocol):
    """The counting oracle of a run, to which derivatives are charged: to measuring, or to the method."""

    @property
    def is_measuring(self) -> bool: ...
    def settle(self, passes: int) -> None: ...
    def charge_hessian(self, passes: int) -> None: ...


class Evaluation:
    """An oracle call at a point x: values, weighted gradients and, on request, the Jacobian.

    It unpacks as ``objective, constraints, pullback``. The gradient of f and the Jacobian are computed at most once.

    Args:
        objective: f(x), a scalar array (or one value per leading axis).
        constraints: g(x), its last axis of length m.
        pullback: ``pullback(w, objective=1.0)`` is ``objective * grad f(x) + J(x)^T w``, one backward pass.
        jacobian: a function without arguments that returns J(x) of shape (..., m, d). Without it `jacobian` pulls the
            rows back one at a time. It may be a sparse array of SciPy, and then stays sparse.
        passes: how many backward passes a call of ``jacobian`` costs.
        hessian: ``hessian(w, objective=1.0)`` is ``objective * Hess f(x) + sum_i w_i Hess g_i(x)``, a dense or sparse
            array of shape (d, d). `AdaptiveGDPA` uses it in a box or the whole space.
        hessian_passes: how many oracle calls a call of ``hessian`` costs.
        sparse: whether ``jacobian`` returns a sparse array, if that is known before it is called.

    Attributes:
        whole, second: the functions that compute J(x) and the Hessian; None if they were not given.
        account: the account of a run to which derivatives are charged; its oracle puts its own functions around
            ``pullback``, ``whole`` and ``second``. None outside a run.

    >>> import numpy as np
    >>> J = np.array([[1.0, 2.0], [3.0, 4.0]])
    >>> e = Evaluation(np.array(0.0), np.zeros(2), lambda w, objective=1.0: objective + w @ J)
    >>> e.jacobian().tolist(), e.gradient().tolist(), e.has_cheap_jacobian
    ([[1.0, 2.0], [3.0, 4.0]], [1.0, 1.0], False)
    """

    __slots__ = (
        *("_gradient", "_is_own", "_jacobian", "_owed", "account", "constraints", "hessian_passes", "objective"),
        *("passes", "pullback", "second", "sparse", "whole"),
    )

    def __init__(
        self,
        objective: Operand,
        constraints: Operand,
        pullback: Pullback,
        jacobian: Callable[[], Array] | None = None,
        passes: int = 1,
        hessian: Callable[..., Any] | None = None,
        hessian_passes: int = 1,
        sparse: bool = False,
    ) -> None:
        self.objective: Array = objective
        self.constraints: Array = constraints
        self.pullback = pullback
        self.whole, self.second, self.sparse = jacobian, hessian, sparse
        self.passes, self.hessian_passes = passes, hessian_passes
        self._gradient: Array | None = None
        self._jacobian: Array | None = None
        self.account: Account | None = None
        self._owed: dict[str, int] | None = None  # backward passes paid by measuring, by derivative
        self._is_own = False

    def __iter__(self) -> Iterator[Any]:
        return iter((self.objective, self.constraints, self.pullback))

    @property
    def has_cheap_jacobian(self) -> bool:
        """Whether the whole Jacobian costs about one backward pass instead of m."""
        return self.whole is not None and self.passes <= 1

    @property
    def knows_derivatives(self) -> bool:
        """Whether grad f(x) and J(x) have been computed."""
        return self._gradient is not None and (self._jacobian is not None or self.constraints.shape[-1] == 0)

    def gradient(self) -> Array:
        """Return grad f(x): one backward pass the first time."""
        if self._gradient is None:
            self._gradient = self.pullback(zeros_like(self.constraints))
            if self.account is not None and self.account.is_measuring:
                self._owed = {**(self._owed or {}), "gradient": 1}
        elif self._owed:
            self._settle("gradient")
        return self._gradient

    def jacobian(self) -> Array:
        """Return J(x) of shape (..., m, d): about one backward pass if cheap, else m; computed once."""
        if self._jacobian is None:
            J = _rows(self) if self.whole is None else self.whole()
            self._jacobian = read(J, "the jacobian") if type(J) is not np.ndarray and is_sparse(J) else J
            if self.account is not None and self.account.is_measuring:
                passes = self.passes if self.whole is not None else max(1, self.constraints.shape[-1])
                self._owed = {**(self._owed or {}), "jacobian": passes}
        elif self._owed:
            self._settle("jacobian")
        return self._jacobian

    def _settle(self, name: str) -> None:
        """Let the method pay for a derivative that it uses, though measuring asked for it first."""
        if self.account is not None and self._owed and not self.account.is_measuring:
            self.account.settle(self._owed.pop(name, 0))

    @property
    def is_sparse(self) -> bool:
        """Whether J(x) is, or will be, a sparse matrix."""
        return self.sparse or isinstance(self._jacobian, SparseMatrix)

    @property
    def has_hessian(self) -> bool:
        """Whether second derivatives were given as a function."""
        return self.second is not None

    def hessian(self, w: Operand, objective: float = 1.0) -> SparseMatrix | None:
        """Return ``objective * Hess f(x) + sum_i w_i Hess g_i(x)``; None if it is not known."""
        H = None if self.second is None else self.second(w, objective)
        if self.account is not None and self.second is not None and self.hessian_passes:
            self.account.charge_hessian(self.hessian_passes)  # known after the call: the first one finds the pattern
        return None if H is None else read(H, "the hessian", (self.gradient().shape[-1],) * 2)

    def own(self) -> Evaluation:
        """Return the same call in an object that the problem does not keep, so that it can be released."""
        given = self.objective, self.constraints, self.pullback, self.whole, self.passes, self.second
        own = Evaluation(*given, self.hessian_passes, self.sparse)
        own.account, own._is_own = self.account, True
        return own

    def release(self, again: Callable[[], Evaluation]) -> None:
        """Drop the derivatives of an `own` call and all that its functions keep alive, such as a graph.

        A derivative that is asked for later comes from the oracle call that ``again`` returns.

        >>> call = lambda: Evaluation(np.array(0.0), np.zeros(1), lambda w, objective=1.0: objective * np.ones(2))
        >>> e = call().own()
        >>> e.release(call)
        >>> e.gradient().tolist()
        [1.0, 1.0]
        """
        if not self._is_own:
            return
        made = functools.cache(again)
        self._gradient = self._jacobian = self._owed = None
        self.pullback = lambda w, objective=1.0: made().pullback(w, objective)
        self.whole = None if self.whole is None else lambda: made().jacobian()
        self.second = None if self.second is None else lambda w, objective: made().hessian(w, objective)


@dataclass(frozen=True)
class Problem:
    """``min f(x)`` subject to ``g(x) <= 0`` and ``x in X``, given by its oracle.

    Args:
        evaluate: maps x to an `Evaluation`.
        num_constraints: m, the length of g. ``None`` takes it from the first evaluation.
        num_equalities: p, how many of the *last* constraints must equal zero instead.
        domain: the convex set X, see `gdpa.base.sets`.
        names: one name per constraint, used by messages and reports.
        x_scale: the length of every coordinate of x, or one for all, if points do not tell; see `gdpa.core.units`.

    Example:
        The projection of (2, 0) on the unit disc.

        >>> import numpy as np
        >>> def evaluate(x):
        ...     c = x - np.array([2.0, 0.0])
        ...     pullback = lambda w, objective=1.0: objective * c + 2 * w[0] * x
        ...     return Evaluation(c @ c / 2, np.array([x @ x - 1]), pullback)
        >>> problem = Problem(evaluate, num_constraints=1)
        >>> problem.evaluate(np.array([1.0, 0.0])).pullback(np.array([0.5])).tolist()
        [0.0, 0.0]
    """

    evaluate: Callable[[Array], Evaluation]
    num_constraints: int | None = None
    num_equalities: int = 0
    domain: ConvexSet = REALS
    names: tuple[str, ...] | None = None
    x_scale: Array | None = None

    def __post_init__(self) -> None:
        if not callable(self.evaluate):
            raise TypeError(f"evaluate must be callable, got {self.evaluate!r}; pass a function x -> Evaluation")
        m = self.num_constraints
        if m is not None and not is_count(m):
            raise ValueError(f"num_constraints must be a nonnegative integer or None, got {m!r}")
        p = self.num_equalities
        if not is_count(p) or (m is not None and p > m):
            raise ValueError(f"num_equalities must be an integer between 0 and num_constraints={m!r}, got {p!r}")
        if not isinstance(self.domain, ConvexSet):
            raise TypeError(f"domain must be a gdpa.ConvexSet, such as gdpa.Box, got {self.domain!r}")
        if self.x_scale is not None:
            lengths = np.asarray(to_numpy(self.x_scale), dtype=float)
            if lengths.ndim > 1 or not ((lengths > 0) & np.isfinite(lengths)).all():
                raise ValueError(
                    f"x_scale must be one positive length or one for each coordinate of x, got {self.x_scale!r}"
                )
            object.__setattr__(self, "x_scale", lengths)
        if self.names is not None:
            if m is not None and len(self.names) != m:
                raise ValueError(f"names has {len(self.names)} entries for {m} constraints; give one name each")
            if len(set(self.names)) != len(self.names):
                raise ValueError(f"names must differ from each other, got {self.names!r}")

    def constraint_name(self, index: int) -> str:
        """Return the name of constraint ``index`` for messages."""
        return constraint_name(self.names, index)


def constraint_name(names: tuple[str, ...] | None, index: int) -> str:
    r"""Return the name of constraint ``index`` for people, control characters spelled out, or a stand-in."""
    return make_printable(names[index]) if names is not None else f"g[{index}]"


class WithStart(Protocol):
    """A problem with its own start, such as `gdpa.from_module` and `gdpa.problems.get` return."""

    @property
    def problem(self) -> Problem: ...
    @property
    def x0(self) -> Array: ...


def as_problem(value: Any) -> Problem:
    """Return a problem from a `Problem` or an object that has one as its attribute ``problem``."""
    inner = value if isinstance(value, Problem) else getattr(value, "problem", None)
    if not isinstance(inner, Problem):
        raise TypeError(
            f"problem must be a Problem, got {type(value).__name__}; create one with gdpa.from_functions, from_torch, "
            "from_module or from_jax, or give an object that has one as its attribute problem"
        )
    return inner


def row_by_row(problem: Problem) -> Problem:
    """Return the problem without its Jacobian in one piece, so that every row of J is a backward pass."""
    return replace(problem, evaluate=lambda x: Evaluation(*problem.evaluate(x)))


def unit_vectors(constraints: Operand) -> Iterator[Array]:
    """Yield e_1, ..., e_m with the shape, dtype and device of g: the weights that pull back single rows of J."""
    return (unit_vector(constraints, i) for i in range(constraints.shape[-1]))


def unit_vector(constraints: Operand, i: int) -> Array:
    """Return e_i with the shape, dtype and device of g: the weights that pull back row i of J.

    >>> import numpy as np
    >>> unit_vector(np.zeros(3), 1).tolist()
    [0.0, 1.0, 0.0]
    """
    xp = namespace(constraints)
    index = xp.arange(constraints.shape[-1], device=array_api_compat.device(constraints))
    return xp.zeros_like(constraints) + xp.astype(index == i, constraints.dtype)


def _rows(evaluation: Evaluation) -> Array:
    """Return J(x) by m backward passes, one per constraint."""
    g = evaluation.constraints
    if g.shape[-1] == 0:
        return evaluation.pullback(g, objective=0.0)[..., None, :][..., :0, :]
    rows = (evaluation.pullback(unit, objective=0.0) for unit in unit_vectors(g))
    return namespace(g).stack(list(rows), axis=-2)


# Results are data: arrays that keep nothing else alive, and no oracle calls.


def detach(value: T) -> T:
    """Return ``value`` as data alone: oracle calls become None, arrays leave their graph and their larger buffers."""
    return map_arrays(value, _stand_alone, owned=False)


def map_arrays(value: T, leaf: Callable[[Any], Any], owned: bool = True) -> T:
    """Return ``value`` with each array a of NumPy or torch replaced by ``leaf(a)``, and oracle calls by None.

    Unless ``owned``, an array of NumPy that owns its memory stays as it is.

    It goes through dataclasses, tuples, lists and dicts. A part without a change is kept, not copied, and shared parts
    stay shared.
    """
    changed: dict[int, Any] = {}  # by the id of the original
    wholes: list[tuple[Any, Any, Any]] = []
    pending: list[Any] = [value]
    for part in pending:  # it grows: the parts of a whole come after it
        kind: Any = type(part)
        if kind in PLAIN or id(part) in changed or (kind is np.ndarray and not owned and part.base is None):
            continue
        names, parts = None, part
        if hasattr(kind, "__dataclass_fields__"):
            names = _fields(kind)[0]
            parts = tuple(map(getattr, repeat(part), names))
        elif kind is dict:
            names, parts = part, tuple(part.values())
        elif not isinstance(part, (tuple, list)):
            is_array = isinstance(part, np.ndarray) or array_api_compat.is_torch_array(part)
            new = leaf(part) if is_array else None if isinstance(part, Evaluation) else part
            if new is not part:
                changed[id(part)] = new
            continue
        wholes.append((part, names, parts))
        pending.extend(parts)
    for whole, names, parts in reversed(wholes):
        if id(whole) in changed or changed.keys().isdisjoint(map(id, parts)):
            continue
        kind, items = type(whole), map(changed.get, map(id, parts), parts)
        if names is None:
            changed[id(whole)] = getattr(kind, "_make", kind)(items)
        else:
            named: Any = dict(zip(names, items, strict=True))
            if kind is not dict and not _fields(kind)[1]:
                named = dataclasses.replace(whole, **named)
            elif kind is not dict:  # the same in a tenth of the time
                values, named = named, object.__new__(kind)
                vars(named).update(values)
            changed[id(whole)] = named
    return cast(T, changed.get(id(value), value))


@functools.cache
def _fields(kind: type[Any]) -> tuple[tuple[str, ...], bool]:
    """Return the names of a dataclass, and whether these are all it has: no checks, no slots, no further fields."""
    names = tuple(field.name for field in dataclasses.fields(kind) if field.init)
    plain = not hasattr(kind, "__post_init__") and all("__slots__" not in vars(base) for base in kind.__mro__)
    return names, plain and len(names) == len(dataclasses.fields(kind))


def _stand_alone(value: Any) -> Any:
    """Return an array outside its graph and its larger buffer."""
    if isinstance(value, np.ndarray):
        base = value.base
        whole = isinstance(base, np.ndarray) and base.base is None and base.nbytes <= value.nbytes
        return value if base is None or whole else np.array(value)
    value = value.detach() if value.requires_grad else value
    small = value.untyped_storage().nbytes() > value.numel() * value.element_size()
    return value.clone() if small else value
