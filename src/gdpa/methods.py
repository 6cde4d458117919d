"""The methods by name. A class is imported only when its name is asked for."""

from __future__ import annotations

from importlib import import_module
from typing import Any

#: name -> "module:Class", each a frozen dataclass with ``init`` and ``update``.
_METHODS = {
    "adaptive-gdpa": "gdpa.algorithms.adaptive:AdaptiveGDPA",
    "gdpa": "gdpa.algorithms.gdpa:GDPA",
    "damped-gdpa": "gdpa.algorithms.damped_gdpa:DampedGDPA",
    "ialm-sahin": "gdpa.algorithms.ialm_sahin:IALMSahin",
    "ialm-li": "gdpa.algorithms.ialm_li:IALMLi",
    "ippp": "gdpa.algorithms.ippp:IPPP",
    "iqrc": "gdpa.algorithms.iqrc:IQRC",
    "proximal-admm": "gdpa.algorithms.proximal_admm:ProximalADMM",
    "pdd": "gdpa.algorithms.pdd:PDD",
    "gda": "gdpa.algorithms.gda:GDA",
    "hibsa": "gdpa.algorithms.hibsa:HiBSA",
    "smoothed-gda": "gdpa.algorithms.smoothed_gda:SmoothedGDA",
    "penalty": "gdpa.algorithms.penalty:Penalty",
    "linearized-alm": "gdpa.algorithms.linearized_alm:LinearizedALM",
}

#: What a door runs unless told otherwise: the first of these that is there.
_PREFERRED = ("adaptive-gdpa", "gdpa")


def method_names() -> tuple[str, ...]:
    """Return the names `get_method` knows.

    >>> "gdpa" in method_names()
    True
    """
    return tuple(_METHODS)


def default_method() -> str:
    """Return the name of the method that runs unless another is asked for.

    >>> default_method() in method_names()
    True
    """
    return next(name for name in _PREFERRED if name in _METHODS)


def get_method(name: str) -> type[Any]:
    """Return the algorithm class called ``name``, in any case of letters.

    >>> get_method("GDPA")(tau=0.5).tau
    0.5
    """
    if not isinstance(name, str):
        raise TypeError(f"method must be a name, got {name!r}; there are {', '.join(_METHODS)}")
    if name.lower() not in _METHODS:
        raise ValueError(f"method {name!r} is unknown; there are {', '.join(_METHODS)}")
    module, _, attribute = _METHODS[name.lower()].partition(":")
    found: type[Any] = getattr(import_module(module), attribute)
    return found
