"""Averages of the weights, which under minibatch noise sit closer to the constraints than any one iterate."""

from __future__ import annotations

import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from gdpa.torch.core import ConstrainedOptimizer


def average_weights(
    model: torch.nn.Module, optimizer: ConstrainedOptimizer, decay: float | None = 0.995, *, start: int = 0
) -> AveragedModel:
    """Return a running average of the weights, updated after every step of ``optimizer``.

    Args:
        model: the model being trained.
        optimizer: its optimizer.
        decay: of the exponential average; None for the plain mean (the tail average, with ``start``).
        start: steps to let pass first, e.g. 80 % of those planned for the tail average.

    The result is a ``torch.optim.swa_utils.AveragedModel``; ``average.module`` is the averaged copy of the model.
    Judge it beside the last iterate with `gdpa.torch.certify` or `choose`: while training still descends, the average
    lags behind. Models with batch norm need ``torch.optim.swa_utils.update_bn`` first.

    >>> import gdpa.torch
    >>> net = torch.nn.Linear(2, 1)
    >>> opt = gdpa.torch.GDPA(torch.optim.SGD(net.parameters(), lr=0.1), constraints=1)
    >>> average = average_weights(net, opt)
    """
    if decay is not None and not 0 <= decay < 1:
        raise ValueError(f"decay must lie in [0, 1) or be None, got {decay!r}")
    averaged = AveragedModel(model, multi_avg_fn=None if decay is None else get_ema_multi_avg_fn(decay))  # type: ignore[no-untyped-call]
    passed = 0

    def update(*_: object) -> None:
        nonlocal passed
        passed += 1
        if passed > start:
            averaged.update_parameters(model)

    optimizer.register_step_post_hook(update)
    return averaged
