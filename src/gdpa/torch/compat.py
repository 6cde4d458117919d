"""Every private interface of torch that the package uses, one function each.

Each function documents its effect and why no public function serves; `tests/torch/test_compat.py` calls them all.
If a torch release moves one of them, this file is the only one to change.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch._C._autograd import _profiler_enabled
from torch.optim.optimizer import (
    _global_optimizer_post_hooks,
    _global_optimizer_pre_hooks,
    _use_grad_for_differentiable,
)

#: Whether a profiler records. The public wrapper of ``Optimizer.step`` checks the same at several microseconds a step.
profiler_enabled: Callable[[], bool] = _profiler_enabled

_set_grad_enabled: Callable[[bool], None] = torch._C._set_grad_enabled


def call_without_gradients(function: Callable[..., Any], *args: Any) -> None:
    """Call ``function(*args)`` under ``torch.no_grad()``, which does the same at several times the cost."""
    enabled = torch.is_grad_enabled()
    _set_grad_enabled(False)
    try:
        function(*args)
    finally:
        _set_grad_enabled(enabled)


#: The code of torch's two wrappers of ``step``: the outer labels the step for profilers and calls hooks, the inner
#: switches gradients off unless the optimizer is differentiable.
_OUTER = torch.optim.Optimizer.profile_hook_step(lambda optimizer: None).__code__
_INNER = _use_grad_for_differentiable(lambda optimizer: None).__code__


def take_step(optimizer: torch.optim.Optimizer, compiling: bool = False) -> None:
    """Call ``optimizer.step()``, without torch's wrappers (a third of a small step) if no profiler or hook observes it.

    A step that was replaced, on the instance or in a subclass, is called as it is.
    """
    step: Any = type(optimizer).step
    if (
        compiling
        or getattr(step, "__code__", None) is not _OUTER
        or "step" in vars(optimizer)
        or _profiler_enabled()
        or optimizer._optimizer_step_pre_hooks
        or optimizer._optimizer_step_post_hooks
        or _global_optimizer_pre_hooks
        or _global_optimizer_post_hooks
    ):
        optimizer.step()
    elif step.__wrapped__.__code__ is not _INNER or optimizer.defaults["differentiable"]:
        step.__wrapped__(optimizer)
    else:
        call_without_gradients(step.__wrapped__.__wrapped__, optimizer)


def restore_hooks(optimizer: torch.optim.Optimizer) -> None:
    """Give an optimizer whose ``__init__`` does not run the hooks and the patched ``step`` of every torch optimizer."""
    torch.optim.Optimizer.__setstate__(optimizer, {})


#: How many hold a tensor: 1 if no graph does, as after a backward pass that frees its graph and its saved tensors.
#: Asking the graph itself for a freed tensor raises an error, which costs 100 microseconds.
count_uses: Callable[[torch.Tensor], int] = torch.Tensor._use_count  # type: ignore[attr-defined]


#: The node of a division in a graph, and of a parameter, which ends it.
_DIVISION: Any = type((torch.ones((), requires_grad=True) / torch.ones(())).grad_fn)
_END: Any = torch._C._functions.AccumulateGrad  # type: ignore[attr-defined]


def cut_divisions_by_zero(value: torch.Tensor, nodes: int = 1000) -> None:
    """Let no gradient pass through divisions by zero among the first ``nodes`` nodes of the graph behind ``value``.

    A mean over no samples, ``(v * mask).sum() / mask.sum()``, is 0 / 0. Its gradient is NaN even with the weight 0.
    """
    if torch.compiler.is_compiling():  # there is no graph to look at
        return
    seen: set[Any] = set()
    pending = deque([value.grad_fn])
    while pending and len(seen) < nodes:
        node: Any = pending.popleft()
        if node is None or type(node) is _END or node in seen:
            continue
        seen.add(node)
        if type(node) is _DIVISION:
            zero = torch.as_tensor(node._saved_other) == 0
            if not zero.is_cpu or bool(zero.any()):
                node.register_hook(partial(_cut, zero))
        pending.extend(following for following, _ in node.next_functions)


def _cut(zero: torch.Tensor, gradients: tuple[Any, ...], _: Any) -> tuple[Any, ...]:
    return tuple(
        g if g is None
        else torch.where(zero.expand_as(g), 0.0, g) if zero.ndim == 0 or zero.shape == g.shape
        else torch.nan_to_num(g, 0.0, 0.0, 0.0)
        for g in gradients
    )  # fmt: skip


#: ``find_nonfinite_(grads, found, one)`` sets ``found`` (one float32 on the gradients' device) to 1 if a gradient is
#: not finite. The kernel of ``torch.amp.GradScaler``, with a scale of ``one``: a single call for all gradients of a
#: device. Sharded gradients (DTensor) are reduced over their ranks. The compiler's functional form of the kernel does
#: not hand its answer back (torch 2.13).
find_nonfinite_: Callable[[list[torch.Tensor], torch.Tensor, torch.Tensor], None]
find_nonfinite_ = torch._amp_foreach_non_finite_check_and_unscale_


def uncompiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``function`` kept out of the compiled graph, which loses writes into the dual state (torch 2.13)."""
    disabled: Callable[..., Any] = torch.compiler.disable(function)  # type: ignore[no-untyped-call]
    return disabled


def multi_tensor_add_(params: list[torch.Tensor], grads: list[torch.Tensor], alpha: float) -> None:
    """``p += alpha grad`` for all parameters in one call."""
    torch._foreach_add_(params, grads, alpha=alpha)


def multi_tensor_sub_(params: list[torch.Tensor], grads: list[torch.Tensor], alpha: Any) -> None:
    """``p -= alpha grad``, rounded as two operations."""
    torch._foreach_sub_(params, torch._foreach_mul(grads, alpha))


#: ``average += weight (p - average)`` for all parameters in one call, which may differ in dtype and device.
multi_tensor_lerp_: Callable[[list[torch.Tensor], list[torch.Tensor], float], None] = torch._foreach_lerp_


def fused_sgd_(params: list[torch.Tensor], grads: list[torch.Tensor], lr: torch.Tensor, skip: torch.Tensor) -> None:
    """``p -= lr grad`` unless ``skip`` is 1, decided on the device."""
    torch._fused_sgd_(
        params, grads, [], weight_decay=0.0, momentum=0.0, dampening=0.0, nesterov=False, maximize=False,
        is_first_step=False, lr=lr, found_inf=skip,
    )  # fmt: skip
