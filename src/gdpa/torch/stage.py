"""What one call of ``lagrangian`` leaves for ``step``: nothing is committed before the step really happens."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import torch

from gdpa.torch.pooling import Pooled
from gdpa.torch.roster import Roster


class NonFiniteWarning(RuntimeWarning):
    """A step was skipped because the objective, a constraint or a gradient was not a finite number."""


def host(value: torch.Tensor) -> Any:
    """Return a NumPy view of a tensor on the CPU, the tensor itself elsewhere.

    The formulas of `gdpa.perturbed` are the same for both; on a handful of numbers NumPy has the smaller overhead.

    >>> type(host(torch.zeros(2))).__name__
    'ndarray'
    """
    return value.numpy() if value.device.type == "cpu" else value


def tensor(value: Any) -> torch.Tensor:
    """Undo `host`."""
    return torch.from_numpy(value) if isinstance(value, np.ndarray) else value


class Stage:
    """A step in waiting.

    Attributes:
        check: a number that is finite exactly if the objective and all constraints are; where ``guarded``, whether it
            is, as a tensor on the device.
        objective, values: f and g of the step (means over all its samples), g in internal order.
        present: which constraints had samples; None for all.
        updates: what `step` writes into the dual state.
        weights: w of grad f + J^T w.
        product: w . g, whose autograd node tells whether the backward pass has run.
        pooled: sums over ranks and micro-batches, where there were any.
        packed: this rank's running sums (``accumulate="stale"``).
        calls: calls of ``lagrangian`` so far.
        guarded: the host does not look at ``check``: where it is False, the kernels of the step change nothing.
        measuring: a calibration batch: nothing is trained.
        cleared: gradients were cleared since, before the backward pass (many loops have this order).
        suspect: an earlier call's gradients may still be in ``.grad``; a step now would add the two up.
    """

    weights: torch.Tensor | None = None
    present: torch.Tensor | None = None
    pooled: Pooled | None = None
    packed: torch.Tensor | None = None
    calls = 1
    guarded = False
    measuring = False
    cleared = False
    suspect = False
    _arrived: Any = None

    def __init__(
        self, check: Any, objective: Any, values: Any, updates: dict[str, Any], product: torch.Tensor | None = None
    ) -> None:
        # One is made at every step: what most of them leave at its default stays on the class.
        self.check, self.objective, self.values, self.updates, self.product = check, objective, values, updates, product

    def prefetch(self) -> None:
        """Start copying ``check`` to the host, so that `finite` waits for the forward pass alone."""
        if isinstance(self.check, torch.Tensor) and self.check.is_cuda:
            self.check = self.check.to("cpu", non_blocking=True)
            self._arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._arrived.record()

    def finite(self) -> bool:
        """Tell whether objective and constraints are all finite."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return math.isfinite(self.check)

    def backward_ran(self) -> bool:
        """Tell whether the graph of the staged loss has been used up."""
        if self.product is None:
            return False
        try:
            _ = self.product.grad_fn._saved_tensor  # type: ignore[union-attr]
        except RuntimeError:
            return True
        return False


def warn_skipped(stage: Stage, roster: Roster) -> None:
    """Say which numbers of a step that is not taken were not finite."""
    finite = torch.isfinite(torch.as_tensor(stage.values))
    bad = [roster.name(i) for i in torch.nonzero(~finite).flatten().tolist()]
    if not math.isfinite(float(stage.objective)):
        bad.insert(0, "the objective")
    text = ", ".join(bad[:8]) or "the weighted sum of objective and constraints"
    warnings.warn(
        f"step skipped: {text} was not a finite number; parameters and multipliers are as they were. "
        'A group absent from a batch is declared with counts= or nan="absent"',
        NonFiniteWarning,
        stacklevel=4,
    )
