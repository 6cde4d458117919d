"""The classes that files may name. They are registered where they are defined; a file cannot add one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from enum import Enum
from typing import Any, TypeVar

REGISTERED: dict[str, type[Any]] = {}
_loaders: list[Callable[[], object]] = []
C = TypeVar("C", bound=type)


def stored(cls: C) -> C:
    """Let values of a dataclass, NamedTuple or Enum be stored, by the name of the class. A decorator.

    A dataclass field with ``metadata={"stored": False}`` is not written and comes back as None. Registering a class
    again under the same module and name replaces it.
    """
    is_dataclass = dataclasses.is_dataclass(cls) and all(field.init for field in dataclasses.fields(cls))
    if not (is_dataclass or issubclass(cls, Enum) or (issubclass(cls, tuple) and hasattr(cls, "_fields"))):
        raise TypeError(f"{cls!r} cannot be registered; it must be a dataclass, a NamedTuple or an Enum")
    other = REGISTERED.get(cls.__name__)
    if other is not None and (other.__module__, other.__qualname__) != (cls.__module__, cls.__qualname__):
        raise ValueError(f"the name {cls.__name__} is taken by {other!r}; rename {cls!r}")
    REGISTERED[cls.__name__] = cls
    return cls


def register(cls: C) -> C:
    """Let a dataclass, NamedTuple or Enum of your own be stored, see `stored`; usable as a decorator.

    >>> @register
    ... @dataclasses.dataclass(frozen=True)
    ... class Momentum:
    ...     weight: float
    >>> class_called("Momentum") is Momentum
    True
    """
    _load_all()
    return stored(cls)


def load_on_demand(load: Callable[[], object]) -> None:
    """Have ``load`` called before a name counts as unknown; it imports modules that define stored classes."""
    _loaders.append(load)


def _load_all() -> None:
    for load in _loaders:
        load()


def class_called(name: str) -> type[Any] | None:
    """Return the class that files call ``name``, or None."""
    if name not in REGISTERED:
        _load_all()
    return REGISTERED.get(name)


def is_registered(cls: type[Any]) -> bool:
    """Return whether values of ``cls`` can be stored."""
    return REGISTERED.get(cls.__name__) is cls


def stored_fields(cls: type[Any]) -> dict[str, bool]:
    """Return the fields of a dataclass or NamedTuple that are written, and whether a file must have each.

    A file of an earlier version may lack fields with a default.
    """
    if not dataclasses.is_dataclass(cls):
        return {name: name not in cls._field_defaults for name in cls._fields}
    written = (field for field in dataclasses.fields(cls) if field.metadata.get("stored", True))
    missing = dataclasses.MISSING
    return {f.name: f.default is missing and f.default_factory is missing for f in written}


def build(cls: type[Any], values: dict[str, Any]) -> Any:
    """Return an object of a dataclass or NamedTuple from its stored fields; fields that are never stored are None."""
    never = () if not dataclasses.is_dataclass(cls) else (f.name for f in dataclasses.fields(cls))
    return cls(**values, **{name: None for name in never if name not in stored_fields(cls)})
