"""Certified full-batch solves over data in shards: in this process, on Ray, or on the ranks of torchrun.

Each engine and `from_module` import their library, Ray or torch, when they are used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gdpa.base.extras import needed_by
from gdpa.sharded.combine import mean, rate
from gdpa.sharded.engines import Engine
from gdpa.sharded.problem import ShardedProblem, problem
from gdpa.sharded.shard import Shard, ShardError

if TYPE_CHECKING:
    from gdpa.sharded.module import from_module
    from gdpa.sharded.ray import Ray
    from gdpa.sharded.torch import Torch

__all__ = ["problem", "from_module", "mean", "rate", "Shard", "ShardError", "ShardedProblem", "Engine", "Ray", "Torch"]

#: Names that need another library, with their modules.
_LATER = {"from_module": "gdpa.sharded.module", "Ray": "gdpa.sharded.ray", "Torch": "gdpa.sharded.torch"}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    with needed_by(f"gdpa.sharded.{name}"):
        return getattr(import_module(_LATER[name]), name)
