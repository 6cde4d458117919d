"""The staging protocol between `lagrangian` and `step`: nothing is committed before the step really happens.

The samples of a step may lie on several ranks or in several micro-batches. The weights are nonlinear in g, so they need
the mean of g over *all* samples before the backward pass: the mean of local weights, or the weights of local means, are
something else.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from enum import Enum
from functools import cache
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from gdpa.torch import compat
from gdpa.torch.limits import Roster


class NonFiniteWarning(RuntimeWarning):
    """A step was skipped because the objective, a constraint or a gradient was not a finite number."""


class Batch(NamedTuple):
    """The constraints of a step in internal order, without their graph.

    Attributes:
        values: g, NaN if absent: of a handful of constraints on the CPU a list of floats, else a tensor.
        present: which constraints have samples, a list or a tensor; None for all.
        samples: of how many samples f and each g are means; None if one call of `lagrangian` has all of them.
    """

    values: Any
    present: Any
    samples: torch.Tensor | None = None


class Phase(Enum):
    """Where a staged step stands: STAGED --backward--> READY --step--> committed, or STAGED --zero_grad--> CLEARED.

    `lagrangian` again replaces the stage from CLEARED, and from READY if the gradients are gone; if they are not, the
    new stage is MIXED, and only ``zero_grad`` can save it. From STAGED it is an error.
    """

    STAGED = "the backward pass has not run"
    CLEARED = "gradients were cleared since, before the backward pass"
    READY = "the backward pass has run"
    MIXED = "gradients of an earlier call may still be in .grad"


class Stage:
    """A step that `lagrangian` has prepared and `step` will take.

    Attributes:
        batch, objective: g and f, means over all samples of the step.
        check: a number that is finite exactly if f and g are; if ``guarded``, whether it is, as a tensor on the device.
        updates: the entries that `step` writes into the dual state; without "dual_steps" if `step` applies the rule.
        loss: of the last call of `lagrangian`. It keeps its gradient, the sure sign of the backward pass: gradients of
            parameters may be clipped, scaled, or of several losses.
        weights, calls: w of grad f + J^T w for further micro-batches, and how many there were.
        guarded: the host does not look at ``check``; if it is False, the kernels of the step change nothing.
    """

    loss: torch.Tensor
    weights: torch.Tensor
    objective: Any
    check: Any
    calls = 0
    guarded = False
    _phase = Phase.STAGED
    _arrived: Any = None

    def __init__(
        self, batch: Batch, f: torch.Tensor, check: torch.Tensor, updates: dict[str, Any], on_device: bool
    ) -> None:
        # One is made at every step: attributes that most leave at their defaults stay on the class.
        self.batch, self.updates = batch, updates
        if check.is_cpu and not on_device:
            self.objective, self.check = f.item(), check.item()
            return
        self.objective, self.check = f.detach(), check.detach()
        if on_device:
            self.guarded, self.check = True, (self.check - self.check) == 0  # isfinite in half the kernels
        elif check.is_cuda:  # a copy to the host that waits for the forward pass alone
            self.check = self.check.to("cpu", non_blocking=True)
            self._arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._arrived.record()

    def phase(self) -> Phase:
        return self._phase if self._phase is Phase.MIXED or self.loss.grad is None else Phase.READY

    def clear(self) -> bool:
        """Note that gradients were cleared; return whether the stage is over with that."""
        if self._phase is not Phase.MIXED and self.loss.grad is not None:
            return True
        self._phase = Phase.CLEARED
        return False

    def mix(self) -> None:
        """Note that gradients of an earlier call may still be there."""
        self._phase = Phase.MIXED

    def check_backward(self, groups: list[dict[str, Any]]) -> bool:
        """Return whether the backward pass has run; raise if the gradients do not belong to the staged loss."""
        if self._phase is Phase.MIXED:
            raise RuntimeError(TWICE)
        if self.loss.grad is not None:
            return True
        if any_gradient(groups):
            raise RuntimeError(
                "the backward pass did not go through the loss that lagrangian returned, so the constraints have no "
                "part in the gradients; write loss = opt.lagrangian(f, g), then loss.backward(). Nothing was changed"
            )
        hint = " Call loss.backward() before opt.step()."
        warn_skipped("no backward pass has run since lagrangian", hint, RuntimeWarning)
        return False

    def check_finite(self, roster: Roster) -> bool:
        """Return whether objective and constraints are all finite; warn if they are not."""
        if self._arrived is not None:
            self._arrived.synchronize()
        if math.isfinite(self.check):
            return True
        values, present, _ = self.batch
        bad = [] if math.isfinite(float(self.objective)) else ["the objective"]
        here = [True] * roster.size if present is None else present
        bad += [roster.name(i) for i, g in enumerate(values) if here[i] and not math.isfinite(g)]
        text = ", ".join(bad[:8]) or "the weighted sum of objective and constraints"
        hint = ' A group absent from a batch is declared with counts= or nan="absent"'
        warn_skipped(f"{text} was not a finite number", hint)
        return False


TWICE = (
    "lagrangian was called twice without a step between. To add up gradients of several micro-batches build the "
    'optimizer with accumulate="exact" or "stale"; to drop the first call use opt.zero_grad() or opt.discard()'
)


def any_gradient(groups: list[dict[str, Any]]) -> bool:
    """Return whether any parameter has a gradient."""
    return any(p.grad is not None for group in groups for p in group["params"])


def warn_skipped(what: str, hint: str = "", kind: type[Warning] = NonFiniteWarning) -> None:
    """Warn that a step was skipped, and why; called by functions that ``_step`` calls."""
    warnings.warn(f"step skipped: {what}; parameters and multipliers are as they were.{hint}", kind, stacklevel=5)


@cache
def _one(device: torch.device) -> torch.Tensor:
    return torch.ones((), dtype=torch.float32, device=device)


class GradientCheck:
    """Tests all gradients of a step in one kernel per device, whose error shows that they are on several."""

    def __init__(self) -> None:
        self._sorts = False
        #: On the device of the gradients, the zero that the kernel writes its answer into, and a one; None at first.
        self._numbers: tuple[torch.Tensor, torch.Tensor] | None = None

    def nonfinite(self, groups: list[dict[str, Any]], guarded: bool, compiling: bool) -> torch.Tensor | None:
        """Return a number above 0 on the device if any gradient is not finite, else 0; None without gradients."""
        grads: list[torch.Tensor] = []
        for group in groups:
            for p in group["params"]:
                if (grad := p.grad) is not None:
                    grads.append(grad)
        if grads and not (self._sorts or guarded or compiling):
            if self._numbers is None:
                self._numbers = torch.zeros_like(_one(grads[0].device)), _one(grads[0].device)
            found, one = self._numbers
            try:
                compat.find_nonfinite_(grads, found, one)
            except RuntimeError:
                self._sorts = True
            else:
                return found
        everywhere = None
        for device in {grad.device for grad in grads}:
            here = [grad._values() if grad.is_sparse else grad for grad in grads if grad.device == device]
            found = torch.zeros((), dtype=torch.float32, device=device)
            if compiling:
                for grad in here:
                    found += (~torch.isfinite(grad).all()).to(found.dtype)
            else:
                compat.find_nonfinite_(here, found, _one(device))
            everywhere = found if everywhere is None else everywhere + found.to(everywhere.device)
        return everywhere

    def warn(self, groups: list[dict[str, Any]], batch: Batch, roster: Roster) -> None:
        """Name the parameters of a skipped step whose gradients were not finite, and the absent constraints."""
        self._numbers = None  # the zero is another number now
        names = []
        for j, group in enumerate(groups):
            for i, p in enumerate(group["params"]):
                grad: Any = torch.zeros(()) if p.grad is None else p.grad
                grad = grad.to_local() if hasattr(grad, "to_local") else grad._values() if grad.is_sparse else grad
                if not bool(torch.isfinite(grad).all()):
                    known = group.get("param_names")
                    names.append(known[i] if known else f"parameter {i} of group {j}, shape {tuple(p.shape)}")
        shown = ", ".join(names[:8]) or "a parameter of another rank"
        more = f" and {len(names) - 8} more" if len(names) > 8 else ""
        hint = ""
        if batch.present is not None and not all(batch.present):
            absent = [roster.name(i) for i, here in enumerate(batch.present) if not here]
            hint = f" Absent from the batch: {', '.join(absent[:8])}; a mean over no samples may have the gradient NaN."
            hint += " gdpa.torch.terms.mean(values, inside) has none."
        warn_skipped(f"the gradient of {shown}{more} was not finite", hint)


#: Whether this process is one of several; False if torch was built without distributed support.
initialized: Callable[[], bool] = dist.is_initialized if dist.is_available() else lambda: False


class Group:
    """The ranks that train together: "world" for the default group if one is set up, None for this process alone."""

    def __init__(self, process_group: Any) -> None:
        if isinstance(process_group, str) and process_group != "world":
            raise ValueError(f'process_group must be "world", None or a process group, got {process_group!r}')
        self._group = process_group

    @property
    def size(self) -> int:
        if self._group is None or not initialized():
            return 1
        return dist.get_world_size(None if self._group == "world" else self._group)

    def sum_(self, packed: torch.Tensor) -> torch.Tensor:
        """Add ``packed`` up over the ranks, in place. One blocking collective: the backward pass needs its result."""
        if self.size > 1:
            dist.all_reduce(packed, group=None if self._group == "world" else self._group)
        return packed

    def __getstate__(self) -> dict[str, Any]:
        # A process group belongs to its process; a copy elsewhere finds the default group there.
        return {"_group": None if self._group is None else "world"}


class Pool:
    """Sums of f and g over the parts of a step; ``mode`` None has one call of ``lagrangian`` a step."""

    def __init__(self, mode: str | None, group: Group) -> None:
        self.mode, self.group = mode, group
        self.forget()

    def forget(self) -> None:
        """Drop the parts of a step that did not happen."""
        self._sums: torch.Tensor | None = None
        self.calls = 0

    def add(self, f: torch.Tensor, g: torch.Tensor, samples: torch.Tensor) -> None:
        """Add the means f and g over ``samples`` (of f, then of each g) of one part, in double precision."""
        wide = torch.float32 if g.device.type == "mps" else torch.float64  # mps has no other
        values = torch.cat([f.detach().reshape(1).to(g.device, wide), g.detach().to(wide)])
        counts = samples.to(wide)
        sums = torch.stack([torch.where(counts > 0, values, torch.zeros_like(values)) * counts, counts])
        self._sums = sums if self._sums is None else self._sums + sums
        self.calls += 1

    def means(self, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (f and all g, their samples) over all ranks and parts, in the precision of ``like``."""
        if self._sums is None:
            raise RuntimeError(
                'accumulate="exact" needs the mean of g before the first backward pass: call '
                "opt.add_micro_batch(f, g) on every micro-batch under torch.no_grad() first"
            )
        total, samples = self.group.sum_(self._sums.clone())
        return (total / torch.where(samples > 0, samples, torch.ones_like(samples))).to(like.dtype), samples

    def shares(self, part: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
        """Return the weights of a part's means in the loss, times the ranks that gradients are averaged over."""
        ratio = part / torch.where(whole > 0, whole, torch.ones_like(whole))
        return (ratio * self.group.size).to(part.dtype)
