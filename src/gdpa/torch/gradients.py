"""Whether all gradients of a step are finite, and whose are not."""

from __future__ import annotations

from typing import Any

import torch

from gdpa.torch import compat
from gdpa.torch.staging import warn_skipped


class GradientCheck:
    """Tests all gradients of a step in one kernel per device; see `compat.add_nonfinite_`.

    The kernel takes dense gradients on one device as they are. Others are noticed by its error, and sorted by device
    from then on.
    """

    def __init__(self) -> None:
        self._sorts = False
        #: A zero on the device of the gradients, which the kernel writes its answer into; None before the first step.
        self._zero: torch.Tensor | None = None

    def nonfinite(self, groups: list[dict[str, Any]], guarded: bool, compiling: bool) -> torch.Tensor | None:
        """Return a number above 0 on the device if any gradient is not finite, else 0; None without gradients.

        Args:
            groups: the parameter groups.
            guarded: the step is captured, so that the zeros must be part of it.
            compiling: the step is being compiled.
        """
        grads = [grad for group in groups for p in group["params"] if (grad := p.grad) is not None]
        if not grads:
            return None
        if not (self._sorts or guarded or compiling):
            zero = self._zero
            if zero is None:
                zero = self._zero = torch.zeros((), dtype=torch.float32, device=grads[0].device)
            try:
                compat.add_nonfinite_(grads, zero)
            except RuntimeError:
                self._sorts = True
            else:
                return zero
        grads = [grad._values() if grad.is_sparse else grad for grad in grads]
        found = None
        for device in {grad.device for grad in grads}:
            zero = torch.zeros((), dtype=torch.float32, device=device)
            compat.add_nonfinite_([grad for grad in grads if grad.device == device], zero, compiling)
            found = zero if found is None else found + zero.to(found.device)
        return found

    def warn(self, groups: list[dict[str, Any]], absent: list[str]) -> None:
        """Name the parameters of a skipped step whose gradients were not finite, and the ``absent`` constraints."""
        self._zero = None  # it is another number now
        names = bad_gradients(groups)
        more = f" and {len(names) - 8} more" if len(names) > 8 else ""
        hint = f" Absent from the batch: {', '.join(absent[:8])}; a mean over no samples may have the gradient NaN."
        hint += " gdpa.torch.terms.mean(values, inside) has none."
        warn_skipped(f"the gradient of {', '.join(names[:8])}{more} was not finite", hint if absent else "")


def bad_gradients(groups: list[dict[str, Any]]) -> list[str]:
    """Return the names of the parameters whose gradients are not finite."""
    names = []
    for j, group in enumerate(groups):
        known = group.get("param_names")
        for i, p in enumerate(group["params"]):
            grad: Any = p.grad
            if grad is None:
                continue
            grad = grad.to_local() if hasattr(grad, "to_local") else grad._values() if grad.is_sparse else grad
            if not bool(torch.isfinite(grad).all()):
                names.append(known[i] if known else f"parameter {i} of group {j}, shape {tuple(p.shape)}")
    return names or ["a parameter of another rank"]
