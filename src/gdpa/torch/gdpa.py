"""The paper's recursion as a torch optimizer, and its learning rate as a scheduler."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from gdpa.base.checks import check_at_least, check_inside, check_positive
from gdpa.base.schedules import Power
from gdpa.base.sets import ConvexSet
from gdpa.torch import compat
from gdpa.torch.constrained import ConstrainedOptimizer, check_domain
from gdpa.torch.limits import Constraints
from gdpa.torch.rules import Paper


class GDPA(ConstrainedOptimizer):
    r"""Gradient descent and perturbed ascent, eq. (alg) of the paper, over the parameters of a model.

    .. math::
        q_r &= (1-\tau)\lambda_r + \beta_r g(x_r), \qquad S_r = \{i : [q_r]_i > 0\} \\
        x_{r+1} &= P_X\bigl(x_r - \alpha_r(\nabla f(x_r) + J(x_r)^T [q_r]_+)\bigr) \\
        [\lambda_{r+1}]_i &= [(1-\tau)\lambda_r + \beta_r g(x_{r+1})]_{i,+} \text{ for } i \in S_r,
            \quad 0 \text{ otherwise}

    with :math:`\alpha_r = \alpha_0 r^{-1/3}` and :math:`\beta_r = \beta_0 r^{1/3}`. The dual update needs
    :math:`g(x_{r+1})`, which is the next call's forward pass: `lagrangian` first forms :math:`\lambda_r` from the
    values it is given, then the weights of this step. With the whole data in every batch, x runs through the same
    numbers as `gdpa.solve` with `gdpa.GDPA`.

    This is the paper's method, for whole data in every step. For sampled data and any base optimizer use
    `gdpa.torch.constrain`.

    Args:
        params: parameters or parameter groups. A group may have a ``domain`` (a `gdpa.ConvexSet`): each parameter's
            rows (last axis) are projected on it after every step.
        lr: alpha_0, a number or a tensor.
        beta: beta_0, a number or a tensor.
        tau: the perturbation in (0, 1), a number or a tensor. A constraint with multiplier lambda_i is left violated by
            ``tau lambda_i / beta_r``.
        lr_power, beta_power: the exponents -1/3 and 1/3 of the schedules; 0 leaves lr to a scheduler.
        domain: the set X of groups that bring none of their own.
        constraints, equalities, accumulate, nan, process_group, capturable: see `gdpa.torch.constrain`.
        foreach: update the parameters by multi-tensor kernels (default: yes).

    No memory per parameter: the state is the multipliers and the set S_r. (In double precision, or with a tensor lr,
    the step itself needs a passing copy of the gradient.)

    Example:
        The point of the disc of radius sqrt(2) with the largest product of coordinates: (1, 1), multiplier 1/2.

        >>> import gdpa.torch
        >>> x = torch.nn.Parameter(torch.tensor([0.5, 1.5], dtype=torch.float64))
        >>> opt = gdpa.torch.GDPA([x], constraints=["disc"], lr=0.05, beta=0.5)
        >>> for _ in range(3000):
        ...     opt.zero_grad()
        ...     loss = opt.lagrangian(-x[0] * x[1], {"disc": x @ x - 2})
        ...     loss.backward()
        ...     opt.step()
        >>> x.detach().numpy().round(3).tolist(), opt.multipliers.numpy().round(3).tolist()
        ([1.002, 1.002], [0.5])

    References:
        Songtao Lu, "A Single-Loop Gradient Descent and Perturbed Ascent Algorithm for Nonconvex Functional
        Constrained Optimization", ICML 2022.

    Deviations from the paper:
        Equality constraints, absent groups and skipped steps are ours.
    """

    def __init__(
        self,
        params: Iterable[Any],
        constraints: Constraints,
        lr: float | torch.Tensor = 0.01,
        beta: float | torch.Tensor = 1.0,
        tau: float | torch.Tensor = 0.1,
        *,
        lr_power: float = -1 / 3,
        beta_power: float = 1 / 3,
        equalities: Sequence[str | int] = (),
        domain: ConvexSet | None = None,
        accumulate: str | None = None,
        nan: str = "skip",
        process_group: Any = "world",
        foreach: bool | None = None,
        capturable: bool = False,
    ) -> None:
        if isinstance(params, torch.optim.Optimizer):
            raise TypeError(
                f"GDPA is the paper's method over parameters, got the optimizer {type(params).__name__}; put an "
                "optimizer under constraints with gdpa.torch.constrain(optimizer, constraints)"
            )
        if isinstance(params, torch.nn.Module):
            raise TypeError(f"params must be parameters, got a {type(params).__name__}; pass model.parameters()")
        check_at_least(0, lr=_number(lr))
        check_positive(beta=_number(beta))
        check_inside(0, 1, tau=_number(tau))
        check_inside(-math.inf, math.inf, lr_power=lr_power, beta_power=beta_power)
        self._domain = check_domain(domain)
        super().__init__(
            _Descent(params, {"lr": lr, "lr_power": lr_power, "foreach": foreach}), constraints,
            Paper(beta, tau, beta_power), False, capturable, equalities=equalities, accumulate=accumulate, nan=nan,
            process_group=process_group,
        )  # fmt: skip

    def _descend(self, done: Any, skip: torch.Tensor | None, compiling: bool) -> None:
        base: Any = self.base
        base.r, base.skip = self.dual_state.entries["dual_steps"] + 1 if done is None else done, skip
        compat.take_step(base, compiling)


class _Descent(torch.optim.Optimizer):
    """Eq. (primal) of the paper without its projection: ``x <- x - lr r^lr_power grad``, unless ``skip`` is 1."""

    r: Any = 1
    skip: torch.Tensor | None = None

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        group = dict(param_group)
        if "lr" in group:
            check_at_least(0, lr=_number(group["lr"]))
        super().add_param_group(group)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:  # a state from before these options
            group.setdefault("foreach", None)
            group.setdefault("lr_power", -1 / 3)

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        compat.call_without_gradients(self._move)

    def _move(self) -> None:
        for group in self.param_groups:
            params: list[torch.Tensor] = []
            grads: list[torch.Tensor] = []
            for p in group["params"]:
                if (grad := p.grad) is None:
                    continue
                if grad.is_sparse:
                    raise RuntimeError("GDPA does not support sparse gradients; build the embedding with sparse=False")
                params.append(p)
                grads.append(grad)
            alpha = group["lr"] * self.r ** group["lr_power"]
            if isinstance(alpha, torch.Tensor) and alpha.ndim:
                alpha = alpha.reshape(())
            if self.skip is not None:
                _subtract_unless(self.skip, params, grads, torch.as_tensor(alpha))
            elif params:
                _subtract(params, grads, alpha, group["foreach"] is not False)


_Descent.__name__ = GDPA.__name__  # in the labels of profilers


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
        check_inside(-math.inf, math.inf, power=power)
        self.power = power
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Any]:
        """Return the learning rate of every group at this step."""
        factor = Power(1.0, self.power)(self.last_epoch + 1)
        return [base * factor for base in self.base_lrs]


def _subtract(params: list[torch.Tensor], grads: list[Any], alpha: Any, foreach: bool) -> None:
    """``x <- x - alpha grad``, rounded as two operations in double precision, as `solve` does, else as one."""
    once = params[0].dtype != torch.float64 and isinstance(alpha, float)
    for some, theirs in [(params, grads)] if foreach else [([p], [g]) for p, g in zip(params, grads, strict=True)]:
        if once:
            compat.multi_tensor_add_(some, theirs, -alpha)
        else:
            compat.multi_tensor_sub_(some, theirs, alpha)


def _subtract_unless(skip: torch.Tensor, params: list[torch.Tensor], grads: list[torch.Tensor], alpha: Any) -> None:
    """``x <- x - alpha grad`` unless ``skip`` on the device, else x as it is, whatever the gradient holds."""
    fused: dict[Any, tuple[list[torch.Tensor], list[torch.Tensor]]] = {}
    for p, g in zip(params, grads, strict=True):
        if _fusable(p, g):
            group = fused.setdefault((p.device, p.dtype), ([], []))
            group[0].append(p)
            group[1].append(g)
        else:
            move = alpha.to(p.device) * g
            p.sub_(torch.where(skip.to(p.device), torch.zeros_like(move), move))
    for (device, _), (some, theirs) in fused.items():
        compat.fused_sgd_(some, theirs, alpha.to(device, torch.float32), skip.to(device, torch.float32))


def _fusable(p: torch.Tensor, g: torch.Tensor) -> bool:
    if torch.compiler.is_compiling() or hasattr(p, "full_tensor") or p.dtype != g.dtype:
        return False
    if p.stride() != g.stride() or not p.is_contiguous():
        return False
    return p.dtype is torch.float32 if p.is_cpu else p.is_cuda and p.dtype is not torch.float64


def _number(value: Any) -> Any:
    """Return the number in a tensor of one element; anything else as it is, for the checks."""
    return value.item() if isinstance(value, torch.Tensor) and value.numel() == 1 else value
