"""How each library turns (f, g) of a batch into a step. The peers' own classes, used as their documents say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import gdpa.torch
from benchmarks.minibatch.tasks import Batch, Task, Values

#: step(values) -> None takes f, g, counts of one batch (after zero_grad) and steps the network.
Stepper = Callable[[Callable[[], Values]], None]


def ours(task: Task, net: torch.nn.Module, primal: torch.optim.Optimizer, dual_rate: float = 0.1) -> Stepper:
    opt: Any = gdpa.torch.GDPA(primal, task.names, dual_rate=dual_rate)

    def step(values: Callable[[], Values]) -> None:
        opt.zero_grad()
        f, g, counts = values()
        opt.lagrangian(f, g, counts=counts).backward()
        opt.step()

    step.optimizer = opt  # type: ignore[attr-defined]
    return step


def present(g: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """What a careful user of a library without masks does: an absent group counts as exactly met."""
    return torch.where(counts > 0, g, torch.zeros_like(g))


def cooper(
    task: Task, net: torch.nn.Module, primal: torch.optim.Optimizer, lr: float, kind: str = "Lagrangian"
) -> Stepper:
    import cooper as library

    held: dict[str, Any] = {}

    class Problem(library.ConstrainedMinimizationProblem):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            m, extra = len(task.names), {}
            if kind == "AugmentedLagrangian":
                extra["penalty_coefficient"] = library.penalty_coefficients.DensePenaltyCoefficient(torch.ones(m))
            self.g = library.Constraint(
                constraint_type=library.ConstraintType.INEQUALITY,
                formulation_type=getattr(library.formulations, kind),
                multiplier=library.multipliers.DenseMultiplier(num_constraints=m),
                **extra,
            )

        def compute_cmp_state(self) -> Any:
            f, g, counts = held["values"]()
            state = library.ConstraintState(violation=present(g, counts))
            return library.CMPState(loss=f, observed_constraints={self.g: state})

    problem = Problem()
    dual = torch.optim.SGD(problem.dual_parameters(), lr=lr, maximize=True)
    opt = library.optim.AlternatingDualPrimalOptimizer(cmp=problem, primal_optimizers=primal, dual_optimizers=dual)

    def step(values: Callable[[], Values]) -> None:
        held["values"] = values
        opt.roll()

    return step


def hct(task: Task, net: torch.nn.Module, primal: torch.optim.Optimizer, name: str, **kwargs: Any) -> Stepper:
    from humancompatible.train import dual_optim

    dual = getattr(dual_optim, name)(m=len(task.names), is_ineq=True, **kwargs)

    def step(values: Callable[[], Values]) -> None:
        primal.zero_grad()
        f, g, counts = values()
        dual.forward_update(f, present(g, counts)).backward()
        primal.step()

    return step


Rule = Callable[[Task, torch.nn.Module, torch.optim.Optimizer], Stepper]

#: name -> settings; the first is the default, the others are what tuning may choose from: four settings for everyone.
#: Where a library has no default it is the usual one: Cooper's dual rate is 0.01 (its FAQ: ten times the primal rate,
#: which would be 0.03 here), the penalty of both augmented methods is 1, and humancompatible-train is told that the
#: constraints are inequalities.
RULES: dict[str, dict[str, Rule]] = {
    "gdpa": {f"k={k}": lambda t, n, p, k=k: ours(t, n, p, k) for k in (0.1, 0.05, 0.2, 0.4)},
    "Cooper Lagrangian": {f"lr={lr}": lambda t, n, p, lr=lr: cooper(t, n, p, lr) for lr in (0.01, 0.001, 0.003, 0.1)},
    "Cooper augmented": {
        f"lr={lr}": lambda t, n, p, lr=lr: cooper(t, n, p, lr, "AugmentedLagrangian")
        for lr in (0.01, 0.001, 0.003, 0.1)
    },
    "hct ALM": {
        f"lr={lr}": lambda t, n, p, lr=lr: hct(t, n, p, "ALM", lr=lr, penalty=1.0) for lr in (0.01, 0.001, 0.003, 0.1)
    },
    "hct nuPI": {
        "defaults": lambda t, n, p: hct(t, n, p, "nuPI"),
        **{f"ki={ki}": lambda t, n, p, ki=ki: hct(t, n, p, "nuPI", ki=ki) for ki in (0.001, 0.003, 0.1)},
    },
}

__all__ = ["RULES", "Batch", "Stepper"]
