"""The methods by name. A class is imported on first use; `register` adds one of your own."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar, overload

from gdpa.base import stored
from gdpa.base.text import suggest
from gdpa.methods.base import Algorithm

#: name -> "module:Class" or the class itself. The first is the default.
METHODS: dict[str, str | type[Any]] = {
    "adaptive-gdpa": "gdpa.methods.adaptive:AdaptiveGDPA",
    "gdpa": "gdpa.methods.gdpa:GDPA",
    "damped-gdpa": "gdpa.methods.damped_gdpa:DampedGDPA",
    "ialm-sahin": "gdpa.methods.baselines.ialm:IALMSahin",
    "ialm-li": "gdpa.methods.baselines.ialm:IALMLi",
    "ippp": "gdpa.methods.baselines.penalty:IPPP",
    "iqrc": "gdpa.methods.baselines.switching:IQRC",
    "proximal-admm": "gdpa.methods.baselines.proximal:ProximalADMM",
    "pdd": "gdpa.methods.baselines.penalty:PDD",
    "gda": "gdpa.methods.baselines.minmax:GDA",
    "hibsa": "gdpa.methods.baselines.minmax:HiBSA",
    "smoothed-gda": "gdpa.methods.baselines.minmax:SmoothedGDA",
    "penalty": "gdpa.methods.gdpa:Penalty",
    "linearized-alm": "gdpa.methods.gdpa:LinearizedALM",
    "ppl": "gdpa.methods.baselines.proximal:PPL",
    "switching-subgradient": "gdpa.methods.baselines.switching:SwitchingSubgradient",
    "lipal": "gdpa.methods.baselines.prox_linear:LIPAL",
    "directional-decomposition": "gdpa.methods.baselines.prox_linear:DirectionalDecomposition",
}

if TYPE_CHECKING:  # the types of gdpa.GDA, gdpa.IPPP, ... for type checkers and editors
    from gdpa.methods.adaptive import AdaptiveGDPA as AdaptiveGDPA
    from gdpa.methods.baselines.ialm import IALMLi as IALMLi
    from gdpa.methods.baselines.ialm import IALMSahin as IALMSahin
    from gdpa.methods.baselines.minmax import GDA as GDA
    from gdpa.methods.baselines.minmax import HiBSA as HiBSA
    from gdpa.methods.baselines.minmax import SmoothedGDA as SmoothedGDA
    from gdpa.methods.baselines.penalty import IPPP as IPPP
    from gdpa.methods.baselines.penalty import PDD as PDD
    from gdpa.methods.baselines.prox_linear import LIPAL as LIPAL
    from gdpa.methods.baselines.prox_linear import DirectionalDecomposition as DirectionalDecomposition
    from gdpa.methods.baselines.proximal import PPL as PPL
    from gdpa.methods.baselines.proximal import ProximalADMM as ProximalADMM
    from gdpa.methods.baselines.switching import IQRC as IQRC
    from gdpa.methods.baselines.switching import SwitchingSubgradient as SwitchingSubgradient
    from gdpa.methods.damped_gdpa import DampedGDPA as DampedGDPA
    from gdpa.methods.gdpa import GDPA as GDPA
    from gdpa.methods.gdpa import LinearizedALM as LinearizedALM
    from gdpa.methods.gdpa import Penalty as Penalty

C = TypeVar("C", bound=type[Any])


def method_names() -> tuple[str, ...]:
    """Return the names that `get_method` accepts.

    >>> "gdpa" in method_names()
    True
    """
    return tuple(METHODS)


def class_names() -> dict[str, str]:
    """Return the name of every method's class and the name of the method, without importing a class.

    >>> class_names()["IPPP"]
    'ippp'
    """
    return {(c if isinstance(c, str) else c.__name__).rpartition(":")[2]: name for name, c in METHODS.items()}


def default_method() -> str:
    """Return the name of the default method.

    >>> default_method()
    'adaptive-gdpa'
    """
    return next(iter(METHODS))


def get_method(name: str) -> type[Any]:
    """Return the algorithm class called ``name``, in any case of letters.

    >>> get_method("GDPA")(tau=0.5).tau
    0.5
    """
    if not isinstance(name, str):
        raise TypeError(f"method must be a name, got {name!r}; there are {', '.join(METHODS)}")
    found = METHODS.get(name.lower())
    if found is None:
        raise ValueError(f"method {name!r} is unknown{suggest(name, METHODS)}; there are {', '.join(METHODS)}")
    if isinstance(found, str):
        module, _, attribute = found.partition(":")
        found = METHODS[name.lower()] = getattr(import_module(module), attribute)
    return found


def as_algorithm(argument: str, method: Any, parameters: dict[str, Any] | None = None) -> Algorithm[Any]:
    """Return the method called ``method``, or ``method`` itself if it is one, with ``parameters`` set.

    Args:
        argument: the name of the argument, for messages.
        method: a name that `get_method` accepts, or an instance such as ``GDPA()``.
        parameters: fields of the method by name.

    >>> from gdpa import GDPA
    >>> as_algorithm("method", "gdpa", {"tau": 0.2}) == as_algorithm("method", GDPA(tau=0.5), {"tau": 0.2})
    True
    """
    if isinstance(method, str):
        made: Algorithm[Any] = get_method(method)(**(parameters or {}))
        return made
    if isinstance(method, type) or not isinstance(method, Algorithm):
        remedy = f"write {method.__name__}()" if isinstance(method, type) else f"the names are {', '.join(METHODS)}"
        raise TypeError(
            f"{argument} must be the name of a method or have init and update, such as GDPA(), got {method!r}; {remedy}"
        )
    return dataclasses.replace(method, **parameters) if parameters else method  # type: ignore[type-var]


@overload
def register(name: str) -> Callable[[C], C]: ...


@overload
def register(name: str, cls: C) -> C: ...


def register(name: str, cls: Any = None) -> Any:
    """Make a method known by name: to `minimize`, `solve`, `compare` and the command line. Usable as a decorator.

    Args:
        name: the name, in lower case. The name of another method is refused; registering a class again replaces it.
        cls: a frozen dataclass with ``init`` and ``update`` and a default for every field, see `gdpa.Algorithm` and
            `gdpa.Method`. Its values can then be stored, too; register its state by `gdpa.storage.register`.

    Write ``@gdpa.register("my-method")`` above ``@dataclass(frozen=True)`` above your class; ``gdpa.minimize(...,
    method="my-method")`` then runs it. CONTRIBUTING.md has a worked example.

    >>> register("gdpa", get_method("gdpa"))  # known already: nothing changes
    <class 'gdpa.methods.gdpa.GDPA'>
    """
    if cls is None:
        return lambda decorated: register(name, decorated)
    if not isinstance(name, str) or not name or name != name.lower().strip():
        raise ValueError(f"name must be a word in lower case, got {name!r}")
    missing = [part for part in ("init", "update") if not callable(getattr(cls, part, None))]
    if not isinstance(cls, type) or not dataclasses.is_dataclass(cls) or missing:
        lacks = f"; it lacks {' and '.join(missing)}" if missing else ""
        raise TypeError(f"cls must be a frozen dataclass with init and update, got {cls!r}{lacks}")
    for field in dataclasses.fields(cls):
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise TypeError(f"{cls.__name__}.{field.name} needs a default, so that {name!r} can be made by its name")
    if name in METHODS and not _same_class(get_method(name), cls):
        raise ValueError(f"the name {name!r} is taken by {get_method(name)!r}; choose another")
    stored.register(cls)
    METHODS[name] = cls
    return cls


def _same_class(one: type[Any], other: type[Any]) -> bool:
    """Return whether two classes are one, perhaps defined a second time in a notebook."""
    return (one.__module__, one.__qualname__) == (other.__module__, other.__qualname__)


def _load_methods() -> None:
    """Import the classes of all methods, and with them the states that files name."""
    for name in method_names():
        get_method(name)


stored.load_on_demand(_load_methods)
