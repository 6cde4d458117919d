"""Certified full-batch solves over data in shards: in this process, on Ray, or on the ranks of torchrun.

`Ray`, `Torch` and `from_module` import their library when they are used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gdpa.base.extras import needed_by
from gdpa.sharded.problem import ShardedProblem, mean, problem, rate
from gdpa.sharded.shard import Engine, Shard, ShardError

if TYPE_CHECKING:
    from gdpa.sharded.module import from_module
    from gdpa.sharded.ray import Ray
    from gdpa.sharded.torch import Torch

__all__ = ["problem", "from_module", "mean", "rate", "Shard", "ShardError", "ShardedProblem", "Engine", "Ray", "Torch"]


def __getattr__(name: str) -> Any:
    module = {"from_module": "module", "Ray": "ray", "Torch": "torch"}.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with needed_by(f"gdpa.sharded.{name}"):
        return getattr(import_module(f"{__name__}.{module}"), name)
