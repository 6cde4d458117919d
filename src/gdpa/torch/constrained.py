"""Any torch optimizer under constraints that are known from minibatches."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from gdpa.torch import compat
from gdpa.torch.core import MultiplierOptimizer
from gdpa.torch.finish import EVERY, Finished, average_, finish
from gdpa.torch.optimizer import check_domain
from gdpa.torch.roster import Constraints
from gdpa.torch.rules import Rule, make_rule
from gdpa.torch.staging import Stage


def constrain(
    optimizer: torch.optim.Optimizer,
    constraints: Constraints = None,  # type: ignore[assignment]  # refused with a remedy
    dual_rate: float | None = None,
    *,
    rule: str | Rule = "feedback",
    equalities: Sequence[str | int] = (),
    sizes: Sequence[float] | float | None = None,
    average: bool | None = None,
    accumulate: str | None = None,
    nan: str = "skip",
    process_group: Any = "world",
    capturable: bool = False,
) -> ConstrainedOptimizer:
    """Put a torch optimizer under constraints.

    Args:
        optimizer: takes the primal steps. A parameter group's ``domain`` (a set of `gdpa.base.sets`) is projected on
            after every step.
        constraints: `Limits`, or names, or how many there are. `Limits` also tell the rule the size of each limit.
        dual_rate: k, the one knob (default 1): larger is sooner feasible, and over-tightens more.
        rule: how multipliers follow the constraints: "feedback" (ours, scales itself), "damped", "paper", "nupi",
            "spbm", "ssl-alm", "rcml", "penalty-barrier", "two-sample", or a `gdpa.torch.rules.Rule`.
        equalities: names (or positions) of the constraints that must equal zero.
        sizes: the size of the limits behind a g without `Limits`, or one for each constraint in their order;
            infinite if unknown. The rule "feedback" measures violations in them, and so do `certify` and `finish`.
        average: keep an average of the weights for `ConstrainedOptimizer.finish`; default: yes, unless ``capturable``.
        accumulate: the meaning of several calls of `lagrangian` before one `step`: None refuses them, "exact" takes the
            weights of the whole batch (`add_micro_batch` first), "stale" the weights of the step before.
        nan: "skip": a step with a value that is not finite is skipped, with a warning that names it.
            "absent": NaN in g means that the constraint's group is absent from this batch.
        process_group: the ranks whose samples are pooled: "world", None, or a process group.
        capturable: keep every number on the device, for CUDA graphs and ``torch.compile``. A step that is not finite
            is skipped by the base optimizer's own kernels if it is built with ``fused=True``; another one is given
            gradients of zero, and its momentum continues. Call `calibrate` before capturing.

    Example:
        >>> import gdpa.torch
        >>> _ = torch.manual_seed(0)
        >>> net, data = torch.nn.Linear(3, 1), torch.randn(64, 3)
        >>> opt = gdpa.torch.constrain(torch.optim.Adam(net.parameters(), lr=0.01), ["mean"])
        >>> for _ in range(1000):
        ...     opt.zero_grad()
        ...     out = net(data[torch.randint(64, (16,))])
        ...     loss = opt.lagrangian(out.square().mean(), {"mean": 1 - out.mean()})   # mean output at least 1
        ...     loss.backward()
        ...     opt.step()
        >>> bool((net(data).mean() - 1).abs() < 0.1)
        True
    """
    return ConstrainedOptimizer(
        optimizer, constraints, make_rule(rule, dual_rate), average, capturable, equalities=equalities, sizes=sizes,
        accumulate=accumulate, nan=nan, process_group=process_group,
    )  # fmt: skip


class ConstrainedOptimizer(MultiplierOptimizer):
    """A base optimizer with multipliers; made by `constrain`, which documents the arguments.

    It shares parameter groups and state with its base, so that schedulers, scalers and checkpoints see one optimizer.
    """

    def __init__(
        self,
        base: torch.optim.Optimizer,
        constraints: Constraints,
        rule: Rule,
        average: bool | None = None,
        capturable: bool = False,
        **options: Any,
    ) -> None:
        _check_base(base)
        if average and capturable:
            raise ValueError(
                "average=True cannot be combined with capturable=True: the average takes in every tenth iterate, which "
                "a captured graph cannot count; average outside it with torch.optim.swa_utils"
            )
        self.base = base
        self._prepare(rule, constraints, capturable=capturable, owner=base, **options)
        if not rule.signed and self._roster.num_equalities:
            raise ValueError(f'the rule "{rule.name}" has no equalities; use another one, or two inequalities')
        self._domains = [check_domain(group.pop("domain", None)) for group in base.param_groups]
        compat.restore_hooks(self)
        self._averages = not capturable if average is None else bool(average)
        self.dual_state.install()

    def __repr__(self) -> str:
        names = ", ".join((self._roster.names or [])[:8]) or str(self._roster.size)
        multipliers = ", ".join(f"{value:.4g}" for value in self.multipliers[:8].tolist())
        return (
            f"{type(self).__name__}({type(self.base).__name__}, rule={self.dual_state.rule.name!r}, "
            f"constraints: {names}; multipliers: {multipliers}; {self.dual_steps} steps)"
        )

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The base optimizer's parameter groups; the first also holds the dual state."""
        return self.base.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        """The base optimizer's state, with the average of each parameter."""
        return self.base.state

    @property
    def defaults(self) -> dict[str, Any]:  # type: ignore[override]
        """The base optimizer's defaults."""
        return self.base.defaults

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group to the base optimizer; its ``domain`` is the set of its parameters."""
        group = dict(param_group)
        _check_descends(self.defaults | group)
        self._domains.append(check_domain(group.pop("domain", None)))
        self.base.add_param_group(group)

    def register_step_pre_hook(self, hook: Callable[..., Any]) -> Any:
        """Register a hook before every step of the base optimizer; it is called with this optimizer."""
        return self.base.register_step_pre_hook(lambda _, args, kwargs: hook(self, args, kwargs))

    def register_step_post_hook(self, hook: Callable[..., Any]) -> Any:
        """Register a hook after every step of the base optimizer; it is called with this optimizer."""
        return self.base.register_step_post_hook(lambda _, args, kwargs: hook(self, args, kwargs))

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step the base optimizer and commit the multipliers staged by `lagrangian`."""
        return self._step(closure)

    step.hooked = True  # type: ignore[attr-defined]  # hooks run with the base optimizer's step, not twice

    def __setstate__(self, state: dict[str, Any]) -> None:
        rest = dict(state)
        loaded: dict[str, Any] = {key: rest.pop(key) for key in ("state", "param_groups") if key in rest}
        if loaded:  # from load_state_dict: the base optimizer fills in entries that its older states lack
            self.base.__setstate__(loaded)
        super().__setstate__(rest)

    def _descend(self, stage: Stage | None, skip: torch.Tensor | None, compiling: bool) -> None:
        if skip is None:
            compat.take_step(self.base, compiling)
        elif all(group.get("fused") for group in self.param_groups):
            base: Any = self.base
            base.found_inf = skip.float()  # the switch that fused kernels have
            try:
                base.step()
            finally:
                del base.found_inf
        else:
            for group in self.param_groups:
                for p in group["params"]:
                    if p.grad is not None:
                        p.grad.masked_fill_(skip.to(p.device), 0.0)
            self.base.step()

    def _after(self, stage: Stage | None) -> None:
        if self._averages:
            step = 0 if stage is None else stage.updates["dual_steps"]
            if step <= 1 or step % EVERY == 0:
                average_(self.param_groups, self.state, step)

    def calibrate(self, values: Iterable[tuple[Any, Any]]) -> None:
        """Measure the gradient ratios of all constraints from pairs (f, g) of batches before training.

        A constraint's ratio is otherwise measured in the first batches that violate it, which captured graphs cannot.

        >>> import gdpa.torch
        >>> net = torch.nn.Linear(2, 1)
        >>> opt = gdpa.torch.constrain(torch.optim.SGD(net.parameters(), lr=0.1), 1)
        >>> batches = (net(torch.randn(8, 2)) for _ in range(8))
        >>> opt.calibrate((out.square().mean(), 1 - out.mean(dim=0)) for out in batches)
        >>> bool(opt.param_groups[0]["ratio"] > 0)
        True
        """
        dual = self.dual_state
        if not dual.calibrates:
            raise RuntimeError(f"the rule {dual.rule.name!r} has nothing to calibrate")
        for f, g in values:
            vector = self._roster.vector(g)
            batch = dual.read(vector)
            dual.write(dual.calibrate(f, vector, batch, None, self._group, everything=True))
        dual.settle()

    def finish(self, model: torch.nn.Module, loader: Iterable[Any], losses: Any, **kwargs: Any) -> Finished:
        """Load the better of the last and the averaged weights into ``model``; see `gdpa.torch.finish.finish`."""
        return finish(self, model, loader, losses, **kwargs)


def _check_base(base: Any) -> None:
    if not isinstance(base, torch.optim.Optimizer):
        raise TypeError(
            f"optimizer must be a torch optimizer, got {base!r}; for the paper's method over parameters use "
            "gdpa.torch.GDPA(params, constraints)"
        )
    if isinstance(base, MultiplierOptimizer):
        raise TypeError(f"optimizer is a {type(base).__name__}, which has constraints already; give a plain optimizer")
    parameters = inspect.signature(base.step).parameters
    if "closure" in parameters and parameters["closure"].default is inspect.Parameter.empty:
        raise TypeError(
            f"{type(base).__name__} evaluates its closure several times a step, in which the multipliers would "
            "have to stand still; use an optimizer of one gradient a step (SGD, Adam, AdamW, ...)"
        )
    for group in base.param_groups:
        _check_descends(group)


def _check_descends(group: dict[str, Any]) -> None:
    if group.get("maximize"):
        raise ValueError(
            "optimizer has maximize=True, with which f + w g would be maximized and the violations with it; leave "
            "maximize out and pass -f to lagrangian"
        )
