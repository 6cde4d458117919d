"""Oracles from NumPy, torch and JAX functions. Each library is imported only when its constructor is called."""

from __future__ import annotations

from typing import Any

from gdpa.base.extras import needed_by
from gdpa.numerics.differences import FiniteDifferenceWarning
from gdpa.oracles.functions import from_functions

__all__ = ["FiniteDifferenceWarning", "from_functions", "from_jax", "from_module", "from_torch"]


def __getattr__(name: str) -> Any:
    if name not in ("from_torch", "from_module", "from_jax"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with needed_by(f"gdpa.{name}"):
        if name == "from_jax":
            from gdpa.oracles import jax as backend
        else:
            from gdpa.oracles import torch as backend  # type: ignore[no-redef]
    return getattr(backend, name)
