"""The staging protocol between `lagrangian` and `step`. Nothing is committed before the step really happens."""

from __future__ import annotations

import math
import warnings
from enum import Enum
from typing import Any

import torch
from torch.compiler import is_compiling

from gdpa.torch.pooling import Pooled
from gdpa.torch.roster import Roster


class NonFiniteWarning(RuntimeWarning):
    """A step was skipped because the objective, a constraint or a gradient was not a finite number."""


class Phase(Enum):
    """Where a staged step stands.

    ::

        lagrangian ---> STAGED ---backward---> READY ---step---> committed
                          |                      ^
                          +--zero_grad--> CLEARED --backward

    `lagrangian` again: from CLEARED it replaces the stage, from READY it replaces it too if the gradients are gone;
    if they are not, the new stage is MIXED, and only ``zero_grad`` can save it. From STAGED it is an error.
    """

    STAGED = "the backward pass has not run"
    CLEARED = "gradients were cleared since, before the backward pass"
    READY = "the backward pass has run"
    MIXED = "gradients of an earlier call may still be in .grad"


class Stage:
    """A step that `lagrangian` has prepared and `step` will take.

    Attributes:
        check: a number that is finite exactly if the objective and all constraints are; if ``guarded``, whether it
            is, as a tensor on the device.
        objective, values: f and g of the step (means over all its samples), g in internal order, NaN if absent.
        updates: the entries that `step` writes into the dual state.
        loss: the answer of `lagrangian`; it keeps its gradient, which shows that a backward pass went through it.
        present: which constraints had samples; None for all, or if ``pooled`` tells.
        weights: w of grad f + J^T w.
        pooled: sums over ranks and micro-batches, if there are several.
        packed: this rank's running sums (``accumulate="stale"``).
        calls: calls of ``lagrangian`` so far.
        later: `step` applies the dual rule, whose weights do not depend on it.
        guarded: the host does not look at ``check``; if it is False, the kernels of the step change nothing.
    """

    weights: torch.Tensor | None = None
    pooled: Pooled | None = None
    packed: torch.Tensor | None = None
    calls = 1
    guarded = False
    later = False
    _phase = Phase.STAGED
    _arrived: Any = None

    def __init__(
        self,
        check: Any,
        objective: Any,
        values: Any,
        updates: dict[str, Any],
        loss: torch.Tensor | None = None,
        present: list[bool] | torch.Tensor | None = None,
    ) -> None:
        # One is made at every step: attributes that most leave at their defaults stay on the class.
        self.check, self.objective, self.values, self.updates = check, objective, values, updates
        self.loss, self.present = loss, present

    @property
    def phase(self) -> Phase:
        """Where the step stands now."""
        if self._phase is Phase.MIXED or self.loss is None or self.loss.grad is None:
            return self._phase
        return Phase.READY

    def clear(self) -> bool:
        """Note that gradients were cleared; return whether the stage is over with that."""
        if self.phase is Phase.READY:
            return True
        self._phase = Phase.CLEARED
        return False

    def mix(self) -> None:
        """Note that gradients of an earlier call may still be there."""
        self._phase = Phase.MIXED

    def check_backward(self, groups: list[dict[str, Any]]) -> bool:
        """Return whether the backward pass has run; raise if the gradients do not belong to the staged loss."""
        if is_compiling() or self.phase is Phase.READY:  # the compiler does not see graphs of others
            return True
        if self._phase is Phase.MIXED:
            raise RuntimeError(TWICE)
        if any(p.grad is not None for group in groups for p in group["params"]):
            raise RuntimeError(
                "the backward pass did not go through the loss that lagrangian returned, so the constraints have no "
                "part in the gradients; write loss = opt.lagrangian(f, g), then loss.backward(). Nothing was changed"
            )
        return False

    def prefetch(self) -> None:
        """Start copying ``check`` to the host, so that `finite` waits for the forward pass alone."""
        if isinstance(self.check, torch.Tensor) and self.check.is_cuda:
            self.check = self.check.to("cpu", non_blocking=True)
            self._arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._arrived.record()

    def finite(self) -> bool:
        """Return whether objective and constraints are all finite."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return math.isfinite(self.check)


TWICE = (
    "lagrangian was called twice without a step between. To add up gradients of several micro-batches build the "
    'optimizer with accumulate="exact" or "stale"; to drop the first call use opt.zero_grad() or opt.discard()'
)


def absent_names(stage: Stage, roster: Roster) -> list[str]:
    """Return the names of the constraints without samples in a stage."""
    present: Any = stage.present if stage.pooled is None else stage.pooled.present
    return [] if present is None else [roster.name(i) for i, here in enumerate(present) if not here]


def warn_values(stage: Stage, roster: Roster) -> None:
    """Name the numbers of a skipped step that were not finite."""
    values = torch.as_tensor(stage.values, device="cpu")
    present = stage.present if stage.pooled is None else stage.pooled.present
    if present is not None:
        values = torch.where(torch.as_tensor(present, device="cpu"), values, torch.zeros_like(values))
    bad = [roster.name(i) for i in torch.nonzero(~torch.isfinite(values)).flatten().tolist()]
    if not math.isfinite(float(stage.objective)):
        bad.insert(0, "the objective")
    text = ", ".join(bad[:8]) or "the weighted sum of objective and constraints"
    hint = ' A group absent from a batch is declared with counts= or nan="absent"'
    warn_skipped(f"{text} was not a finite number", hint)


def warn_skipped(what: str, hint: str = "", kind: type[Warning] = NonFiniteWarning) -> None:
    """Warn that a step was skipped, and why; called by functions that ``_step`` calls."""
    warnings.warn(f"step skipped: {what}; parameters and multipliers are as they were.{hint}", kind, stacklevel=5)


def warn_without_backward() -> None:
    """Warn of a step for which no backward pass has run."""
    warn_skipped(
        "no backward pass has run since lagrangian", " Call loss.backward() before opt.step().", RuntimeWarning
    )
