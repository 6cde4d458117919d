"""The model to keep: the better of the last and the averaged weights, by certificate on whole data.

Under minibatch noise an average of the weights sits closer to the constraints than any one iterate.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from gdpa.torch import compat
from gdpa.torch.certify import Losses, ModelCertificate, best, certify

if TYPE_CHECKING:
    from gdpa.torch.constrained import ConstrainedOptimizer

#: Share of the size of a limit by which it may be violated and still counts as met.
TOLERANCE = 0.01
#: Decay of the exponential average a step: it looks back about 200 steps. Measured on seven tasks (last, tail average,
#: .995): docs/torch.md.
DECAY = 0.995
#: The average takes in every tenth iterate: a tenth of the cost, and iterates closer than that hardly differ.
EVERY = 10
_KEY = "average"


@torch.no_grad()
def average_(groups: list[dict[str, Any]], state: Any, step: int) -> None:
    """Take the iterate into the average, kept in the optimizer's state, if it is due; step 0 does not count."""
    averages, params = [], []
    for p in (p for group in groups for p in group["params"]):
        # A parameter without gradient has not moved, and an entry of ours could pass for the base's state.
        if p.grad is None and _KEY not in state.get(p, ()):
            continue
        entry = state[p]
        if _KEY not in entry:
            entry[_KEY] = p.detach().clone(memory_format=torch.preserve_format)
        elif step > 0 and step % EVERY == 0:
            averages.append(entry[_KEY])
            params.append(p)
    if averages:
        compat.multi_tensor_lerp_(averages, params, max(1 - DECAY**EVERY, 2 / (step // EVERY + 1)))


@torch.no_grad()
def copy_(pairs: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Copy the second of each pair into the first."""
    for p, value in pairs:
        p.copy_(value)


@dataclass(frozen=True)
class Finished:
    """The choice of `ConstrainedOptimizer.finish`; ``print`` it.

    Attributes:
        chosen: "last" or "average", whose weights are now in the model.
        certificates: the certificate of each on the whole data.
    """

    chosen: str
    certificates: dict[str, ModelCertificate]

    @property
    def certificate(self) -> ModelCertificate:
        """The certificate of the weights that were loaded."""
        return self.certificates[self.chosen]

    def __str__(self) -> str:
        lines = []
        for name, found in self.certificates.items():
            met = "limits met" if found.feasible else f"largest violation {found.violation:.3g}"
            loaded = "  <- loaded" if name == self.chosen else ""
            lines.append(f"{name} weights: objective {found.objective:.6g}, {met}{loaded}")
        return "\n".join([*lines, str(self.certificate)])


def finish(
    optimizer: ConstrainedOptimizer,
    model: torch.nn.Module,
    loader: Iterable[Any],
    losses: Losses,
    *,
    tolerance: float | None = None,
    **kwargs: Any,
) -> Finished:
    """Judge the last and the averaged weights on all of ``loader`` and load the better ones into ``model``.

    The lowest objective among those that meet every constraint to ``tolerance`` wins; if none does, the smallest
    violation. Running statistics (batch norm) of the averaged weights are measured again on ``loader``.

    Args:
        optimizer, model: the optimizer that trained the model, and the model.
        loader, losses: as for `certify`; the loader is gone through several times.
        tolerance: the violation that still counts as met, a share of the size of the limit; by default 1 %. Of a g
            whose size is not known (no `Limits`, no ``sizes=``) it is in units of g, and by default 0.
        kwargs: further arguments of `certify`; ``stationarity=True`` adds the KKT residuals.
    """
    groups, state = optimizer.param_groups, optimizer.state
    if tolerance is None:
        tolerance = TOLERANCE if all(math.isfinite(size) for size in optimizer._roster.user_sizes) else 0.0
    kwargs.setdefault("stationarity", False)
    found = {"last": certify(model, loader, losses, optimizer=optimizer, tolerance=tolerance, **kwargs)}
    params = (p for group in groups for p in group["params"] if optimizer._averages and _KEY in state.get(p, ()))
    pairs = [(p, state[p][_KEY]) for p in params]
    if not pairs:
        return Finished("last", found)
    own = {id(p) for p in model.parameters()}
    if not any(id(p) in own for p, _ in pairs):
        raise ValueError("model holds none of the optimizer's parameters; give the model that was trained")
    kept = [(value, value.detach().clone()) for value in (*(p for p, _ in pairs), *model.buffers())]
    chosen = "last"
    try:
        copy_(pairs)
        _measure_statistics(model, loader, losses)
        found["average"] = certify(model, loader, losses, optimizer=optimizer, tolerance=tolerance, **kwargs)
        chosen = best(found)
    finally:  # also if the loader raises or the user interrupts it
        if chosen == "last":
            copy_(kept)
    return Finished(chosen, found)


@torch.no_grad()
def _measure_statistics(model: torch.nn.Module, loader: Iterable[Any], losses: Losses) -> None:
    """Measure running means and variances of batch norm layers for the weights now in the model."""
    kind = torch.nn.modules.batchnorm._BatchNorm
    layers = [layer for layer in model.modules() if isinstance(layer, kind) and layer.track_running_stats]
    if not layers:
        return
    momenta, training = [layer.momentum for layer in layers], model.training
    try:
        for layer in layers:
            layer.reset_running_stats()
            layer.momentum = None  # a plain mean over the batches
        model.train()
        for batch in loader:
            losses(model, batch)
    finally:
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.momentum = momentum
        model.train(training)
