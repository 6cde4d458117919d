"""Values that stand alone: arrays that keep nothing else alive, and no oracle call."""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable
from enum import Enum
from typing import Any, TypeAlias, TypeVar

import array_api_compat
import numpy as np

from gdpa.base.typing import Array
from gdpa.core.problem import Evaluation

T = TypeVar("T")
#: What is done to an array of NumPy or torch.
_Leaf: TypeAlias = Callable[[Any], Any]
#: The values met so far by their id, each with what stands for it.
_Known: TypeAlias = dict[int, tuple[Any, Any]]

#: What is data already: looked up before anything is asked of a value.
_PLAIN = frozenset((type(None), bool, int, float, str))


def own_copy(x: Array) -> Array:
    """Return a copy of ``x`` outside any autograd graph, so that a later change of ``x`` does not reach it.

    >>> x = np.ones(2)
    >>> copy = own_copy(x)
    >>> x[0] = 5.0
    >>> copy.tolist()
    [1.0, 1.0]
    """
    if array_api_compat.is_torch_array(x):
        return x.detach().clone()
    return np.array(x) if isinstance(x, np.ndarray) else x  # JAX arrays never change


def detached(value: T) -> T:
    """Return ``value`` as data alone: oracle calls become None, arrays leave their graph and their larger buffers.

    It goes through dataclasses, tuples, lists and dicts. What needs no change is kept as it is, not copied, and
    what is shared stays shared.

    >>> column = detached((np.zeros((1000, 3))[:, 0], 1.0))[0]
    >>> column.shape, column.base is None
    ((1000,), True)
    """
    return with_arrays(value, _alone)


def with_arrays(value: T, leaf: Callable[[Any], Any]) -> T:
    """Return ``value`` with each of its arrays a replaced by ``leaf(a)``, and oracle calls by None.

    >>> with_arrays({"x": np.ones(2), "step": 3}, lambda a: (2 * a).tolist())
    {'x': [2.0, 2.0], 'step': 3}
    """
    found: T = _mapped(value, leaf, {})
    return found


def _mapped(value: Any, leaf: _Leaf, known: _Known) -> Any:
    kind: Any = type(value)
    if kind in _PLAIN:
        return value
    rebuild = _rebuilder(kind)
    if rebuild is None:
        return value
    found = known.get(id(value))
    if found is None:  # the original is kept beside its copy, so that no other object gets its id
        found = known[id(value)] = (value, rebuild(value, leaf, known))
    return found[1]


@functools.cache
def _rebuilder(kind: type[Any]) -> Callable[[Any, _Leaf, _Known], Any] | None:
    """Return the function that maps a value of this class; None if it holds no array."""
    if issubclass(kind, Evaluation):
        return _nothing
    if issubclass(kind, (int, float, str, type, Enum)):
        return None
    if issubclass(kind, np.ndarray):
        return _array
    if issubclass(kind, (tuple, list)):
        return _sequence
    if kind is dict:
        return _dictionary
    if dataclasses.is_dataclass(kind):
        names = tuple(field.name for field in dataclasses.fields(kind) if field.init)
        plain = not hasattr(kind, "__post_init__") and all("__slots__" not in vars(base) for base in kind.__mro__)
        return functools.partial(_dataclass, names, _copy if plain else dataclasses.replace)
    return _tensor


def _nothing(value: Evaluation, leaf: _Leaf, known: _Known) -> None:
    """An oracle call is no data."""


def _array(value: Any, leaf: _Leaf, known: _Known) -> Any:
    return leaf(value)


def _tensor(value: Any, leaf: _Leaf, known: _Known) -> Any:
    return leaf(value) if array_api_compat.is_torch_array(value) else value


def _sequence(value: Any, leaf: _Leaf, known: _Known) -> Any:
    items = [item if type(item) in _PLAIN else _mapped(item, leaf, known) for item in value]
    if all(map(operator.is_, items, value)):
        return value
    return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)


def _dictionary(value: dict[Any, Any], leaf: _Leaf, known: _Known) -> dict[Any, Any]:
    copy = {key: _mapped(item, leaf, known) for key, item in value.items()}
    return value if all(map(operator.is_, copy.values(), value.values())) else copy


def _dataclass(names: tuple[str, ...], replace: Callable[..., Any], value: Any, leaf: _Leaf, known: _Known) -> Any:
    pairs = [(name, old) for name in names if type(old := getattr(value, name)) not in _PLAIN]
    changed = {name: new for name, old in pairs if (new := _mapped(old, leaf, known)) is not old}
    return replace(value, **changed) if changed else value


def _copy(value: Any, /, **changed: Any) -> Any:
    """Return a dataclass without checks and slots with other values: `dataclasses.replace` in a tenth of its time."""
    copy = object.__new__(type(value))
    vars(copy).update(vars(value), **changed)
    return copy


def _alone(value: Any) -> Any:
    """Return an array outside its graph and its larger buffer."""
    if isinstance(value, np.ndarray):
        return value if value.base is None or _whole(value) else np.array(value)
    value = value.detach() if value.requires_grad else value
    small = value.untyped_storage().nbytes() > value.numel() * value.element_size()
    return value.clone() if small else value


def _whole(view: Any) -> bool:
    """Tell whether an array that does not own its memory shows all of it."""
    return isinstance(view.base, np.ndarray) and view.base.base is None and view.base.nbytes <= view.nbytes
