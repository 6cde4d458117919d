"""Penalty methods over minibatches without multipliers: estimates are corrected by the last point on the same batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from gdpa.base.arrays import positive_part
from gdpa.base.checks import check_count, check_positive

#: Computes f and g (feasible if <= 0) of one batch at the current parameters, with their graph.
Closure = Callable[[], tuple[torch.Tensor, torch.Tensor]]


class _Recursive(torch.optim.Optimizer):
    """Keeps the parameters of the step before, to evaluate a batch at both points; all of it in ``state_dict``."""

    def __init__(self, params: Iterable[Any], lr: float, **numbers: float) -> None:
        check_positive(lr=lr, **numbers)
        super().__init__(params, {"lr": float(lr)})
        self.param_groups[0]["steps"] = 0

    @property
    def steps(self) -> int:
        """How many steps were taken."""
        return int(self.param_groups[0]["steps"])

    def _params(self) -> list[torch.Tensor]:
        return [p for group in self.param_groups for p in group["params"]]

    def _kept(self, key: str) -> list[torch.Tensor]:
        """Return the tensors of all parameters that the last step has kept under ``key``; empty before it."""
        return [self.state[p][key] for p in self._params() if key in self.state[p]]

    @torch.no_grad()
    def _keep(self, key: str, values: list[torch.Tensor]) -> None:
        for p, value in zip(self._params(), values, strict=True):
            self.state[p][key] = value.detach().clone()

    def _gradient(self, value: torch.Tensor) -> list[torch.Tensor]:
        return list(torch.autograd.grad(value, self._params()))

    def _at_last_point(self, compute: Callable[[], Any]) -> Any:
        """Return ``compute()`` with the parameters of the step before."""
        here = [p.detach().clone() for p in self._params()]
        try:
            self._set(self._kept("before"))
            return compute()
        finally:
            self._set(here)

    @torch.no_grad()
    def _set(self, values: list[torch.Tensor]) -> None:
        for p, value in zip(self._params(), values, strict=True):
            p.copy_(value)

    @torch.no_grad()
    def _move(self, direction: list[torch.Tensor], factor: float) -> None:
        self._keep("before", self._params())
        self.param_groups[0]["steps"] += 1
        moves = iter(direction)
        for group in self.param_groups:
            for p in group["params"]:
                p.add_(next(moves), alpha=-factor * group["lr"])


class StormPenalty(_Recursive):
    r"""A quadratic penalty that grows, with STORM's gradient estimate: a single loop, one batch per step.

    .. math::
        d_k &= \nabla Q_{\rho_k}(x_k; \xi_k) + (1 - a_k)(d_{k-1} - \nabla Q_{\rho_{k-1}}(x_{k-1}; \xi_k)),
            \qquad Q_\rho = f + \tfrac{\rho}{2} \|[g]_+\|^2 \\
        x_{k+1} &= x_k - \eta_k d_k, \qquad \rho_k = \rho k^{1/3}, \quad \eta_k = \eta k^{-1/3}, \quad
            a_k = \min(1, a k^{-2/3})

    Both gradients of a step are of one batch, so it costs two forward and two backward passes. The penalty has
    GDPA's exponents and no multipliers: the violation left is lambda / rho_k.

    ``lr``, ``penalty`` and ``memory`` are eta, rho and a; the last ``num_equalities`` constraints are equalities.

    Example:
        >>> x = torch.nn.Parameter(torch.tensor([2.0]))
        >>> opt = StormPenalty([x], lr=0.1, penalty=10.0)
        >>> for _ in range(200):
        ...     opt.step(lambda: ((x - 2).square().sum() / 2, x - 1))
        >>> round(x.item(), 2)  # x* = 1 with multiplier 1, and rho_200 = 58
        1.02

    References:
        A. Alacaoglu, S. J. Wright, "Complexity of single loop algorithms for nonlinear programming with stochastic
        objective and constraints", AISTATS 2024 (arXiv 2311.00678), for deterministic constraints, O~(1/eps^3).

    Deviations from the source:
        Inequalities by their positive part, and g on the batch of f; with a noisy g, [g]_+ on one batch is biased.
    """

    def __init__(
        self, params: Iterable[Any], lr: float, penalty: float = 1.0, memory: float = 1.0, num_equalities: int = 0
    ) -> None:
        super().__init__(params, lr, penalty=penalty, memory=memory)
        self.penalty, self.memory, self.num_equalities = penalty, memory, num_equalities

    def step(self, closure: Closure) -> None:  # type: ignore[override]
        """Take one step on the batch of ``closure``, which is called twice."""
        k = self.steps + 1

        def gradient(rho: float) -> list[torch.Tensor]:
            f, g = closure()
            return self._gradient(f + rho / 2 * positive_part(g, self.num_equalities).square().sum())

        new = gradient(self.penalty * k ** (1 / 3))
        if estimate := self._kept("estimate"):
            keep = 1 - min(1.0, self.memory * k ** (-2 / 3))
            old = self._at_last_point(lambda: gradient(self.penalty * (k - 1) ** (1 / 3)))
            new = [n + keep * (d - o) for n, d, o in zip(new, estimate, old, strict=True)]
        self._keep("estimate", new)
        self._move(new, k ** (-1 / 3))


class SpiderPenalty(_Recursive):
    r"""The exact penalty f + beta sum [g]_+, smoothed, with SPIDER's estimate u of g: a single loop.

    .. math::
        u_k &= g(x_k; \text{large batch}) \text{ every } q \text{ steps}, \quad
            u_{k-1} + g(x_k; \xi_k) - g(x_{k-1}; \xi_k) \text{ otherwise} \\
        x_{k+1} &= x_k - \eta \nabla_x \bigl(f + \textstyle\sum_i w_i g_i\bigr)(x_k; \xi_k), \qquad
            w_i = \beta\, \mathrm{clip}(u_{k,i}/\nu, 0, 1)

    The weights follow an estimate whose noise does not pass through [.]_+ on every batch. Multipliers up to beta can be
    held; the violation left is lambda_i nu / beta. One backward pass and two forward passes per step.

    ``lr``, ``penalty``, ``smoothing`` and ``period`` are eta, beta, nu and q.

    Example:
        >>> x = torch.nn.Parameter(torch.tensor([2.0]))
        >>> opt = SpiderPenalty([x], lr=0.02, penalty=4.0, smoothing=0.1)
        >>> batch = lambda: ((x - 2).square().sum() / 2, x - 1)
        >>> for _ in range(200):
        ...     opt.step(batch, large=batch)
        >>> round(x.item(), 2)  # x - 2 + 4 (x - 1)/0.1 = 0
        1.02

    References:
        W. Liu, Y. Xu, "A single-loop SPIDER-type stochastic subgradient method for expectation-constrained nonconvex
        nonsmooth optimization", arXiv 2501.19214; from a summary of its formulas.

    Deviations from the source:
        The source estimates the gradients recursively, too; here they are of the batch.
    """

    def __init__(
        self, params: Iterable[Any], lr: float, penalty: float = 10.0, smoothing: float = 0.01, period: int = 10
    ) -> None:
        check_count(1, period=period)
        super().__init__(params, lr, penalty=penalty, smoothing=smoothing)
        self.penalty, self.smoothing, self.period = penalty, smoothing, period
        self.param_groups[0]["value"] = None

    def step(self, closure: Closure, large: Closure) -> None:  # type: ignore[override]
        """Take one step on the batch of ``closure``; every ``period`` steps g is estimated by ``large``."""
        group = self.param_groups[0]
        renewed = group["value"] is None or self.steps % self.period == 0
        with torch.no_grad():  # before the graph is built, which parameters that are set would spoil
            known = large()[1].clone() if renewed else group["value"] - self._at_last_point(closure)[1]
        f, g = closure()
        group["value"] = known if renewed else known + g.detach()
        weights = self.penalty * (group["value"] / self.smoothing).clamp(0.0, 1.0)
        self._move(self._gradient(f + weights @ g), 1.0)
