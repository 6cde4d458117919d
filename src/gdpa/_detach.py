"""Values that stand alone: arrays that keep nothing else alive, and no oracle call."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

import array_api_compat
import numpy as np

from gdpa._problem import Evaluation
from gdpa._typing import Array

T = TypeVar("T")

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
    found: T = _detached(value, {})
    return found


def _detached(value: Any, known: dict[int, tuple[Any, Any]]) -> Any:
    kind = type(value)
    if kind in _PLAIN or (kind is np.ndarray and value.base is None):
        return value
    if isinstance(value, Evaluation):
        return None
    if isinstance(value, (int, float, str, type)):
        return value
    if id(value) not in known:  # the original is kept beside its copy, so that no other object gets its id
        known[id(value)] = (value, _rebuilt(value, known))
    return known[id(value)][1]


def _rebuilt(value: Any, known: dict[int, tuple[Any, Any]]) -> Any:
    if isinstance(value, np.ndarray):
        return value if value.base is None or _whole(value) else np.array(value)
    if array_api_compat.is_torch_array(value):
        value = value.detach() if value.requires_grad else value
        small = value.untyped_storage().nbytes() > value.numel() * value.element_size()
        return value.clone() if small else value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value) if field.init]
        pairs = [(name, getattr(value, name)) for name in names]
        changed = {name: new for name, old in pairs if (new := _detached(old, known)) is not old}
        return dataclasses.replace(value, **changed) if changed else value
    if isinstance(value, (tuple, list)):
        items = [_detached(item, known) for item in value]
        if all(new is old for new, old in zip(items, value, strict=True)):
            return value
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if type(value) is dict:
        return {key: _detached(item, known) for key, item in value.items()}
    return value


def _whole(view: Any) -> bool:
    """Tell whether an array that does not own its memory shows all of it."""
    return isinstance(view.base, np.ndarray) and view.base.base is None and view.base.nbytes <= view.nbytes
