"""The classes that files may name. The program fixes them; a file cannot add one."""

from __future__ import annotations

import dataclasses
import pkgutil
from collections.abc import Iterator
from enum import Enum
from functools import cache
from importlib import import_module
from typing import Any, TypeVar

#: Every dataclass, NamedTuple and Enum that these modules define can be stored; packages with all their modules.
MODULES = (
    *("gdpa.kkt", "gdpa.units", "gdpa.lagrangian", "gdpa.numerics", "gdpa._oracle", "gdpa._result", "gdpa._state"),
    *("gdpa._run", "gdpa.schedules", "gdpa.algorithms"),
)

_registered: dict[str, type[Any]] = {}
C = TypeVar("C", bound=type)


def register(cls: C) -> C:
    """Let a dataclass, NamedTuple or Enum of your own be stored, by its name; usable as a decorator.

    A dataclass field with ``metadata={"stored": False}`` is not written and comes back as None. Registering a class
    again under the same module and name replaces it.

    >>> @register
    ... @dataclasses.dataclass(frozen=True)
    ... class Momentum:
    ...     weight: float
    >>> class_called("Momentum") is Momentum
    True
    """
    if not _storable(cls):
        raise TypeError(f"{cls!r} cannot be registered; it must be a dataclass, a NamedTuple or an Enum")
    other = class_called(cls.__name__)
    if other is not None and (other.__module__, other.__qualname__) != (cls.__module__, cls.__qualname__):
        raise ValueError(f"the name {cls.__name__} is taken by {other!r}; rename {cls!r}")
    _registered[cls.__name__] = cls
    return cls


def class_called(name: str) -> type[Any] | None:
    """Return the class that files call ``name``, or None.

    >>> class_called("GDPA")
    <class 'gdpa.algorithms.gdpa.GDPA'>
    >>> class_called("Popen") is None
    True
    """
    return _own_classes().get(name) or _registered.get(name)


def is_registered(cls: type[Any]) -> bool:
    """Tell whether values of ``cls`` can be stored.

    >>> is_registered(Exception)
    False
    """
    return class_called(cls.__name__) is cls


def stored_fields(cls: type[Any]) -> tuple[str, ...]:
    """Return the fields of a dataclass or NamedTuple that are written.

    >>> from gdpa._state import State
    >>> stored_fields(State)
    ('step', 'x', 'multipliers', 'probe', 'verdict')
    """
    if dataclasses.is_dataclass(cls):
        return tuple(field.name for field in dataclasses.fields(cls) if field.metadata.get("stored", True))
    names: tuple[str, ...] = cls._fields
    return names


def build(cls: type[Any], values: dict[str, Any]) -> Any:
    """Return an object of a dataclass or NamedTuple from its stored fields; the others are None."""
    if dataclasses.is_dataclass(cls):
        left_out = {field.name: None for field in dataclasses.fields(cls) if field.name not in values}
        return cls(**values, **left_out)
    return cls(**values)


def _storable(cls: type[Any]) -> bool:
    if dataclasses.is_dataclass(cls):
        return all(field.init for field in dataclasses.fields(cls))
    return issubclass(cls, Enum) or (issubclass(cls, tuple) and hasattr(cls, "_fields"))


@cache
def _own_classes() -> dict[str, type[Any]]:
    """Return gdpa's classes by name, found once and only if something is stored."""
    found: dict[str, type[Any]] = {}
    for module in _modules():
        for cls in vars(import_module(module)).values():
            if isinstance(cls, type) and cls.__module__ == module and _storable(cls):
                if cls.__name__ in found:
                    raise RuntimeError(f"two classes that can be stored share a name: {found[cls.__name__]!r}, {cls!r}")
                found[cls.__name__] = cls
    return found


def _modules() -> Iterator[str]:
    for name in MODULES:
        module = import_module(name)
        yield name
        if hasattr(module, "__path__"):
            yield from (info.name for info in pkgutil.walk_packages(module.__path__, f"{name}."))
