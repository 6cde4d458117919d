"""The model to keep: the better of the last and the averaged weights, by certificate on whole data."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from gdpa.torch.averaging import Averages, copy_
from gdpa.torch.certify import Losses, ModelCertificate, best, certify
from gdpa.torch.core import MultiplierOptimizer

#: Share of the size of a limit by which it may be violated and still counts as met.
TOLERANCE = 0.01


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
    optimizer: MultiplierOptimizer,
    averages: Averages | None,
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
        optimizer: the optimizer that trained the model.
        averages: its averages; None if it keeps none.
        model: the model whose parameters the optimizer holds.
        loader: batches of the whole data; it must be possible to go through it several times.
        losses: as for `certify`.
        tolerance: the violation that still counts as met, a share of the size of the limit; by default 1 %. Of a g
            whose size is not known (no `Limits`, no ``sizes=``) it is in units of g, and by default 0.
        kwargs: further arguments of `certify`; ``stationarity=True`` adds the KKT residuals.
    """
    groups, state = optimizer.param_groups, optimizer.state
    if tolerance is None:
        tolerance = TOLERANCE if all(math.isfinite(size) for size in optimizer._roster.user_sizes) else 0.0
    kwargs.setdefault("stationarity", False)
    found = {"last": certify(model, loader, losses, optimizer=optimizer, tolerance=tolerance, **kwargs)}
    pairs = [] if averages is None else averages.pairs(groups, state)
    if averages is None or not pairs:
        return Finished("last", found)
    own = {id(p) for p in model.parameters()}
    if not any(id(p) in own for p, _ in pairs):
        raise ValueError("model holds none of the optimizer's parameters; give the model that was trained")
    kept = [(value, value.clone()) for value in model.buffers()]
    try:
        with averages.swapped(groups, state):
            _measure_statistics(model, loader, losses)
            found["average"] = certify(model, loader, losses, optimizer=optimizer, tolerance=tolerance, **kwargs)
            if best(found) == "average":
                kept = [(value, value.clone()) for value in model.buffers()]
    finally:  # also if the loader raises or the user interrupts it
        copy_(kept)
    chosen = best(found)
    if chosen == "average":
        copy_(pairs)
    return Finished(chosen, found)


@torch.no_grad()
def _measure_statistics(model: torch.nn.Module, loader: Iterable[Any], losses: Losses) -> None:
    """Measure running means and variances of batch norm layers for the weights now in the model."""
    layers = [module for module in model.modules() if isinstance(module, torch.nn.modules.batchnorm._BatchNorm)]
    layers = [layer for layer in layers if layer.track_running_stats]
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
