"""Learning-rate schedules of the paper."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from gdpa.base.checks import is_number
from gdpa.base.schedules import Power


class PowerLR(LRScheduler):
    """``lr_r = lr * r**power`` with r = 1 at the first step: the paper's alpha_r for any optimizer.

    `GDPA` has this schedule built in (``lr_power``); give it ``lr_power=0`` when a scheduler is to drive it.

    >>> x = torch.nn.Parameter(torch.zeros(1))
    >>> opt = torch.optim.SGD([x], lr=0.5)
    >>> scheduler = PowerLR(opt)
    >>> for _ in range(7):
    ...     opt.step()
    ...     scheduler.step()
    >>> opt.param_groups[0]["lr"]
    0.25
    """

    def __init__(self, optimizer: torch.optim.Optimizer, power: float = -1 / 3, last_epoch: int = -1) -> None:
        if not (is_number(power) and math.isfinite(power)):
            raise ValueError(f"power must be a finite number, got {power!r}")
        self.power = power
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Any]:
        """Return the learning rate of every group at this step."""
        factor = Power(1.0, self.power)(self.last_epoch + 1)
        return [base * factor for base in self.base_lrs]
