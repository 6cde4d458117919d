"""Averages of the weights, which under minibatch noise sit closer to the constraints than any one iterate."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from gdpa.torch import compat

#: Decay of the exponential average a step: it looks back about 200 steps. Measured on seven tasks (last, tail average,
#: .995): docs/torch.md.
DECAY = 0.995
#: The average takes in every tenth iterate: a tenth of the cost, and iterates closer than that hardly differ.
EVERY = 10
_KEY = "average"


class Averages:
    """An exponential average of the parameters, kept in the optimizer's own state of each parameter.

    There every checkpoint format finds it. A short run's average is dominated by its second half: the share of the
    newest iterate is ``2 / (k + 1)`` at the k-th one until that falls below the weight of the decay.
    """

    @torch.no_grad()
    def take_in(self, groups: list[dict[str, Any]], state: Any, step: int) -> None:
        """Take the iterate in if it is due at this step; 0 for a step that does not count."""
        due = step > 0 and step % EVERY == 0
        averages, params = [], []
        for group in groups:
            for p in group["params"]:
                # A parameter without gradient has not moved, and an entry of ours could pass for the base's state.
                if p.grad is None and _KEY not in state.get(p, ()):
                    continue
                entry = state[p]
                if _KEY not in entry:
                    entry[_KEY] = p.detach().clone(memory_format=torch.preserve_format)
                elif due:
                    averages.append(entry[_KEY])
                    params.append(p)
        if averages:
            share = max(1 - DECAY**EVERY, 2 / (step // EVERY + 1))
            compat.multi_tensor_lerp_(averages, params, share)

    def pairs(self, groups: list[dict[str, Any]], state: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return (parameter, average) for every parameter that has one."""
        found = ((p, state[p]) for group in groups for p in group["params"] if p in state)
        return [(p, entry[_KEY]) for p, entry in found if _KEY in entry]

    @contextmanager
    def swapped(self, groups: list[dict[str, Any]], state: Any) -> Iterator[None]:
        """Substitute the averages for the parameters, and restore the parameters at the end."""
        pairs = self.pairs(groups, state)
        kept = [p.detach().clone() for p, _ in pairs]
        copy_(pairs)
        try:
            yield
        finally:
            copy_(zip((p for p, _ in pairs), kept, strict=True))


@torch.no_grad()
def copy_(pairs: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Copy the second of each pair into the first."""
    for p, value in pairs:
        p.copy_(value)
