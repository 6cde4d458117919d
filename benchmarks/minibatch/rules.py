"""How each library turns (f, g) of a batch into a step: the peers' own classes, used as their documents say.

Cooper: gradient ascent on the multipliers and `AlternatingDualPrimalOptimizer`, both its FAQ's advice. Its FAQ sets the
dual rate to ten times the primal rate over the number of constraints, which is among the four settings; the default
below is 0.01, the rate of the first study. A penalty coefficient has no default there; 1 is used.
humancompatible-train (hct): the constructor's defaults, told that the constraints are inequalities. The penalty of its
ALM is 0 by default, which is the plain Lagrangian that Cooper's column shows; 1 is the other value of the authors' own
search (`benchmark/` of their repository), from which the further settings of SPBM are taken, too.
Neither library knows absent groups: g = 0 is passed for them and their dual state is put back after the step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

import gdpa.torch
from benchmarks.minibatch.task import Task, Values

Forward = Callable[[], Values]
#: Takes the forward pass of one batch and steps the network.
Stepper = Callable[[Forward], None]

#: The default of the library's one knob.
OUR_RATE = 1.0


def ours(base: torch.optim.Optimizer, names: tuple[str, ...], sizes: torch.Tensor, **settings: Any) -> Any:
    """Return the library's optimizer around ``base`` for constraints g <= 0 with limits of the given sizes."""
    return gdpa.torch.constrain(base, names, sizes=sizes.tolist(), average=False, **settings)


def _ours(task: Task, primal: torch.optim.Optimizer, **settings: Any) -> Stepper:
    opt = ours(primal, task.names, task.limits, **settings)

    def step(forward: Forward) -> None:
        opt.zero_grad()
        f, g, counts = forward()
        opt.lagrangian(f, g, counts=counts).backward()
        opt.step()

    return step


def _cooper(task: Task, primal: torch.optim.Optimizer, lr: float | None, kind: str) -> Stepper:
    import cooper

    m = len(task.names)
    held: dict[str, Any] = {}
    if lr is None:
        lr = 10 * primal.param_groups[0]["lr"] / m

    class Problem(cooper.ConstrainedMinimizationProblem):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            extra = {}
            if kind == "AugmentedLagrangian":
                extra["penalty_coefficient"] = cooper.penalty_coefficients.DensePenaltyCoefficient(torch.ones(m))
            self.g = cooper.Constraint(
                constraint_type=cooper.ConstraintType.INEQUALITY,
                formulation_type=getattr(cooper.formulations, kind),
                multiplier=cooper.multipliers.DenseMultiplier(num_constraints=m),
                **extra,
            )

        def compute_cmp_state(self) -> Any:
            f, g, counts = held["forward"]()
            state = cooper.ConstraintState(violation=_present(g, counts))
            return cooper.CMPState(loss=f, observed_constraints={self.g: state})

    problem = Problem()
    dual = torch.optim.SGD(problem.dual_parameters(), lr=lr, maximize=True)
    opt = cooper.optim.AlternatingDualPrimalOptimizer(cmp=problem, primal_optimizers=primal, dual_optimizers=dual)

    def step(forward: Forward) -> None:
        held["forward"] = forward
        opt.roll()  # gradient ascent by g = 0 leaves the multiplier of an absent group as it is

    return step


def _hct(task: Task, primal: torch.optim.Optimizer, kind: str, **settings: Any) -> Stepper:
    from humancompatible.train import dual_optim

    if kind == "PBM":  # for inequalities only; its annealing wants to know the length of an epoch
        settings["epoch_length"] = len(task.data[0]) // task.batch_size
    else:
        settings["is_ineq"] = True
    dual = getattr(dual_optim, kind)(m=len(task.names), **settings)
    group = dual.param_groups[0]
    state = [p.data for p in group["params"]] + [group[k] for k in ("momentum_buffer",) if k in group]

    def step(forward: Forward) -> None:
        primal.zero_grad()
        f, g, counts = forward()
        before = [t.clone() for t in state]
        dual.forward_update(f, _present(g, counts)).backward()
        for now, old in zip(state, before, strict=True):
            now.copy_(torch.where(counts > 0, now, old))
        primal.step()

    return step


def _present(g: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    return torch.where(counts > 0, g, torch.zeros_like(g))


@dataclass(frozen=True)
class Rule:
    """A column of the tables.

    Attributes:
        build: ``build(task, primal, **settings)`` returns the stepper.
        settings: by name; the first is the default, and tuning chooses from all of them.
        rate: the setting that is the dual rate; None if there is none.
        fixed: settings of every run.
    """

    build: Callable[..., Stepper]
    settings: dict[str, dict[str, Any]]
    rate: str | None
    fixed: dict[str, Any]

    @property
    def default(self) -> str:
        """The name of the default setting."""
        return next(iter(self.settings))

    def stepper(self, task: Task, primal: torch.optim.Optimizer, setting: str, faster: float = 1.0) -> Stepper:
        """Return the stepper under ``setting``, its dual rate multiplied by ``faster``."""
        chosen = {**self.fixed, **self.settings[setting]}
        if faster != 1.0:
            assert self.rate is not None
            chosen[self.rate] = faster * chosen[self.rate]
        return self.build(task, primal, **chosen)


#: The dual rates that Cooper and hct's ALM are tried with; None is the rule of Cooper's FAQ.
_RATES: tuple[float | None, ...] = (0.01, None, 0.001, 0.1)


def _cooper_settings() -> dict[str, dict[str, Any]]:
    return {"FAQ" if lr is None else f"lr={lr}": {"lr": lr} for lr in _RATES}


RULES = {
    "gdpa": Rule(_ours, {f"rate={OUR_RATE:g}": {"dual_rate": OUR_RATE}}, "dual_rate", {}),  # ours is not tuned
    "Cooper Lagrangian": Rule(_cooper, _cooper_settings(), "lr", {"kind": "Lagrangian"}),
    "Cooper augmented": Rule(_cooper, _cooper_settings(), "lr", {"kind": "AugmentedLagrangian"}),
    "hct ALM": Rule(
        _hct, {f"lr={lr}": {"lr": lr} for lr in (0.01, 0.001, 0.05, 0.1)}, "lr", {"kind": "ALM", "penalty": 1.0}
    ),
    "hct nuPI": Rule(_hct, {f"ki={ki}": {"ki": ki} for ki in (0.01, 0.001, 0.003, 0.1)}, "ki", {"kind": "nuPI"}),
    "hct SPBM": Rule(
        _hct,
        {
            "defaults": {},
            "gamma=0.9": {"gamma": 0.9},
            "gamma=0.9 p>0.01": {"gamma": 0.9, "penalty_range": (0.01, 1.0)},
            "gamma=0.9 K=0.5": {"gamma": 0.9, "penalty_mult": 0.5},
        },
        None,
        {"kind": "PBM"},
    ),
}  # fmt: skip
OURS = "gdpa"
