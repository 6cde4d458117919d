"""Any torch optimizer under constraints: stage in `lagrangian`, commit in `step`."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.compiler import is_compiling

from gdpa.base.sets import ConvexSet
from gdpa.torch import compat
from gdpa.torch.certify import EVERY, average_, finish
from gdpa.torch.dual import AWAITED, DualState
from gdpa.torch.limits import Constraints, Roster, objective
from gdpa.torch.report import Observer, Record, Report, Snapshot
from gdpa.torch.rules import Rule, make_rule
from gdpa.torch.staging import TWICE, Batch, GradientCheck, Group, Phase, Pool, Stage, any_gradient, initialized
from gdpa.torch.terms import has_terms, resolve


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


class ConstrainedOptimizer(torch.optim.Optimizer):
    """A base optimizer with multipliers; made by `constrain`, which documents the arguments.

    One step is one forward and one backward pass::

        opt.zero_grad()
        loss = opt.lagrangian(f, g)     # stages multipliers and weights
        loss.backward()
        opt.step()                      # commits them with the step

    A step that never happens (an overflow under GradScaler, an exception, a skipped batch) and a step with nothing
    staged leave the multipliers as they are. A step whose objective, constraints or gradients are not finite is
    skipped, with a `NonFiniteWarning` that names them. The optimizer shares parameter groups and state with its base,
    so that schedulers, scalers and checkpoints see one optimizer.
    """

    #: The set of the groups that bring none of their own.
    _domain: ConvexSet | None = None

    def __init__(
        self,
        base: torch.optim.Optimizer,
        constraints: Constraints,
        rule: Rule,
        average: bool | None = None,
        capturable: bool = False,
        *,
        equalities: Sequence[str | int] = (),
        sizes: Sequence[float] | float | None = None,
        accumulate: str | None = None,
        nan: str = "skip",
        process_group: Any = "world",
    ) -> None:
        _check_base(base)
        if accumulate not in (None, "exact", "stale"):
            raise ValueError(f'accumulate must be None, "exact" or "stale", got {accumulate!r}')
        if nan not in ("skip", "absent"):
            raise ValueError(f'nan must be "skip" or "absent", got {nan!r}')
        if capturable and accumulate is not None:
            raise ValueError("capturable=True cannot be combined with accumulate=; capture whole batches")
        if average and capturable:
            raise ValueError(
                "average=True cannot be combined with capturable=True: the average takes in every tenth iterate, which "
                "a captured graph cannot count; average outside it with torch.optim.swa_utils"
            )
        self.base = base
        self._roster = Roster(constraints, equalities, sizes)
        if not rule.signed and self._roster.num_equalities:
            raise ValueError(f'the rule "{rule.name}" has no equalities; use another one, or two inequalities')
        self.dual_state = DualState(base, rule, self._roster, accumulate == "stale", bool(capturable))
        self._nan, self._capturable = nan, bool(capturable)
        self._averages = not capturable if average is None else bool(average)
        self._group = Group(process_group)
        self._pool = Pool(accumulate, self._group)
        self._record = Record(self.dual_state)
        self._stage: Stage | None = None
        self._gradients = GradientCheck()
        self._skipped = 0
        self._domains: list[ConvexSet | None] = []
        for group in base.param_groups:
            self._add_domain(group.pop("domain", self._domain), group)
        compat.restore_hooks(self)
        self.dual_state.install()

    def __repr__(self) -> str:
        names = ", ".join((self._roster.names or [])[:8]) or str(self._roster.size)
        multipliers = ", ".join(f"{value:.4g}" for value in self.multipliers[:8].tolist())
        own, base = type(self).__name__, type(self.base).__name__
        settings = f"{'' if base == own else f'{base}, '}rule={self.dual_state.rule.name!r}"
        return f"{own}({settings}, constraints: {names}; multipliers: {multipliers}; {self.dual_steps} steps)"

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
        domain = check_domain(group.pop("domain", self._domain))
        self.base.add_param_group(group)
        self._add_domain(domain, self.param_groups[-1])

    def _add_domain(self, domain: Any, group: dict[str, Any]) -> None:
        self._domains.append(check_domain(domain))
        if domain is not None:
            for p in group["params"]:
                domain.check_dimension(p.shape[-1] if p.ndim else 1)

    def register_step_pre_hook(self, hook: Callable[..., Any]) -> Any:
        """Register a hook before every step of the base optimizer; it is called with this optimizer."""
        return self.base.register_step_pre_hook(lambda _, args, kwargs: hook(self, args, kwargs))

    def register_step_post_hook(self, hook: Callable[..., Any]) -> Any:
        """Register a hook after every step of the base optimizer; it is called with this optimizer."""
        return self.base.register_step_post_hook(lambda _, args, kwargs: hook(self, args, kwargs))

    def lagrangian(
        self, f: Any, g: Any = None, *, true: Any = None, samples: int | None = None, counts: Any = None
    ) -> torch.Tensor:
        """Return the scalar whose backward pass is the step's: ``f + w . g`` with w this step's weights.

        Args:
            f: the objective, a scalar tensor.
            g: the constraints, feasible if ``<= 0``: a tensor (m,) or a dict by name, which may hold the terms of
                `gdpa.torch.terms`. With `Limits`, the values.
            true: the value for the multipliers if it has no gradient, a 0/1 rate, in the form of g or a dict with some
                of its names; g is then a differentiable surrogate (see `terms.proxy`). For the rule "two-sample", g on
                a second sample.
            samples: how many samples f is a mean of on this rank and in this micro-batch; needed if they differ.
            counts: how many samples each g_i is a mean of, by position or name; default ``samples``. 0 declares the
                constraint's group absent from this batch: its multiplier stands still.
        """
        roster = self._roster
        if not roster.size:
            return torch.as_tensor(f)
        if g is None:
            raise TypeError("lagrangian takes f and g as two arguments; of a pair write opt.lagrangian(*losses(...))")
        if true is not None or (type(g) is not torch.Tensor and has_terms(g)):
            g, counts = resolve(g, true, counts, samples)
        vector = roster.vector(g)
        f = objective(f, vector)
        mixed = self._stage is not None and self._abandon_stage()
        if self.dual_state.awaited:
            raise RuntimeError(AWAITED.format(roster.size))
        loss = self._form_loss(f, g, vector, samples, counts)
        if mixed and self._stage is not None:
            self._stage.mix()
        return loss

    def _form_loss(self, f: torch.Tensor, g: Any, vector: torch.Tensor, samples: Any, counts: Any) -> torch.Tensor:
        """Stage the step of this call, or of all its micro-batches, and return the loss of this call."""
        dual, pool, stage = self.dual_state, self._pool, self._stage
        if samples != 0 and pool.mode is None and not (initialized() and self._group.size > 1):
            batch, first = dual.read(vector, counts, self._nan == "absent"), True
            here = batch.present
            if here is not None:
                vector = self._leave_out(g, vector, here)
            stage = self._weigh(batch, f, vector)
            loss = stage.loss
        else:
            size, first = self._roster.sizes(vector.detach(), samples, counts, self._nan == "absent"), stage is None
            here = size[1:] > 0
            vector, f = self._leave_out(g, vector, here), torch.where(size[0] > 0, f, torch.zeros_like(f))
            if pool.mode is None:  # the samples of this call and of other ranks
                pool.forget()
            if pool.mode != "exact":
                pool.add(f, vector, size)
            if pool.mode == "stale":
                batch = dual.read(vector, samples=size)
                stage = stage or Stage(batch, f, f, {}, self._capturable)
                w = dual.entries["multipliers" if dual.rule.lagged else "stale_weights"].to(vector)
                loss = f + torch.dot(vector, torch.where(here, w, torch.zeros_like(w)))
            else:
                stage = stage or self._weigh_means(vector)
                stage.calls += 1
                batch = stage.batch
                share = pool.shares(size, batch.samples)  # type: ignore[arg-type]  # the pool's have samples
                loss = f * share[0] + torch.dot(vector, stage.weights * share[1:])
        if first and dual.measures(batch.values):
            stage.updates |= dual.calibrate(f, vector, batch, here, self._group)
        self._stage, stage.loss = stage, loss
        if not is_compiling():
            loss.retain_grad()  # 5 microseconds; no cheaper sign of the backward pass is sure
        return loss

    def _weigh(self, batch: Batch, f: torch.Tensor, g: torch.Tensor) -> Stage:
        """Return the stage of a batch with f and g, to which the rule is applied; its loss is ``f + w . g``."""
        updates, w = self.dual_state.weigh(batch, g.dtype)
        loss = f + torch.dot(g, w)
        stage = Stage(batch, f, loss, updates, self._capturable)
        stage.loss, stage.weights = loss, w
        return stage

    def _weigh_means(self, like: torch.Tensor) -> Stage:
        """Return the stage of the means in the pool."""
        means, samples = self._pool.means(like)
        return self._weigh(self.dual_state.read(means[1:], samples=samples), means[0], means[1:])

    def _leave_out(self, g: Any, vector: torch.Tensor, present: Any) -> torch.Tensor:
        """Return the vector with 0 for absent constraints, out of its graph: a mean over no samples is 0 / 0."""
        if vector.is_cpu and not self._capturable:
            values = vector.detach()
            if math.isfinite(sum(values.tolist()) if type(present) is list else values.sum().item()):
                return vector  # the weight 0 is enough
            if isinstance(g, torch.Tensor):
                compat.cut_divisions_by_zero(vector)
            else:
                vector = self._roster.vector(g, present=present if type(present) is list else present.tolist())
        elif self._nan == "absent":
            compat.cut_divisions_by_zero(vector)
        return torch.where(torch.as_tensor(present, device=vector.device), vector, torch.zeros_like(vector))

    def add_micro_batch(
        self, f: Any, g: Any, *, true: Any = None, samples: int | None = None, counts: Any = None
    ) -> None:
        """Add one micro-batch to the means that ``accumulate="exact"`` needs before the first backward pass.

        Call it for every micro-batch under ``torch.no_grad()``, then `lagrangian` and ``backward`` for each again.
        """
        if self._pool.mode != "exact":
            raise RuntimeError('add_micro_batch is for accumulate="exact"; build the optimizer with it')
        if self._stage is not None:
            raise RuntimeError("add_micro_batch came after lagrangian; add all micro-batches first, then train on them")
        if true is not None or has_terms(g):
            g, counts = resolve(g, true, counts, samples)
        vector = self._roster.vector(g, differentiable=False).detach()
        self._pool.add(torch.as_tensor(f), vector, self._roster.sizes(vector, samples, counts, self._nan == "absent"))

    observe = add_micro_batch  # the name of 0.1.0

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step the base optimizer and commit the multipliers staged by `lagrangian`.

        ``closure`` is evaluated once, with gradients on, before the step; it may call `lagrangian` itself.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        stage, self._stage, dual = self._stage, None, self.dual_state
        groups, compiling, done, skip = self.base.param_groups, is_compiling(), None, None
        if stage is not None:
            if not (compiling or stage.check_backward(groups)):  # the compiler does not see graphs of others
                return loss
            if self._pool.mode is not None:
                stage = self._close_parts(stage)
            if not stage.guarded and not stage.check_finite(self._roster):
                self._skipped += 1
                return loss
            if "dual_steps" not in stage.updates:
                dual.catch_up(stage)
            found = self._gradients.nonfinite(groups, stage.guarded, compiling)
            if stage.guarded:
                skip = dual.guard(stage, found)
            elif found is not None and found.item():
                self._skipped += 1
                self._gradients.warn(groups, stage.batch, self._roster)
                return loss
            done = stage.updates["dual_steps"]
        self._descend(done, skip, compiling)
        if self._domains.count(None) < len(self._domains):
            _project_(groups, self._domains)
        if self._averages and (done is None or done == 1 or done % EVERY == 0):
            average_(groups, self.base.state, done or 0)
        if stage is not None:
            if stage.guarded:
                (compat.uncompiled(dual.commit_guarded) if compiling else dual.commit_guarded)(stage)
            else:
                dual.write(stage.updates)
            self._record.keep(stage)
        return loss

    step.hooked = True  # type: ignore[attr-defined]  # hooks run with the base optimizer's step, not twice

    def _descend(self, done: Any, skip: torch.Tensor | None, compiling: bool) -> None:
        """Step the base optimizer with the gradients in ``.grad``, unless ``skip`` (on the device) is 1.

        ``done`` is the number of the step among those that use the constraints; None if this one does not.
        """
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

    def _close_parts(self, stage: Stage) -> Stage:
        """Return the stage of all micro-batches of a step."""
        if self._pool.mode == "exact":
            if stage.calls != self._pool.calls:
                seen = f"{self._pool.calls} micro-batches but lagrangian {stage.calls}"
                raise RuntimeError(f"add_micro_batch saw {seen}; both must see the same")
        else:
            updates, stage = stage.updates, self._weigh_means(stage.loss)
            stage.updates |= updates
            if not self.dual_state.rule.lagged:
                stage.updates["stale_weights"] = stage.weights.to(torch.float64, copy=True)
        self._pool.forget()
        return stage

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients, and with them the stage of a step that did not happen.

        Between `lagrangian` and the backward pass, where many loops have it, it keeps the stage.
        """
        if self._stage is not None and self._stage.clear():
            self.discard()
        if not set_to_none or compat.profiler_enabled():
            super().zero_grad(set_to_none)
            return
        for group in self.base.param_groups:
            for p in group["params"]:
                p.grad = None

    def discard(self) -> None:
        """Discard the stage of `lagrangian`; the multipliers stay as they are."""
        self._stage = None
        self._pool.forget()

    def _abandon_stage(self) -> bool:
        """Deal with the stage of an earlier call; return whether its gradients may still be in ``.grad``."""
        assert self._stage is not None
        phase = self._stage.phase()
        if self._pool.mode is not None and phase is not Phase.CLEARED:
            return False  # the next micro-batch of the same step
        if phase is Phase.STAGED:
            raise RuntimeError(TWICE)
        self.discard()
        ran = phase in (Phase.READY, Phase.MIXED)
        return ran and any_gradient(self.param_groups)

    @property
    def multipliers(self) -> torch.Tensor:
        """The multipliers lambda_r of the last committed step, in the order the constraints were given (a copy)."""
        return self._roster.to_user(self.dual_state.entries["multipliers"])

    @property
    def dual_steps(self) -> int:
        """How many steps have used the constraints (the paper's r)."""
        return int(self.dual_state.entries["dual_steps"])

    @property
    def skipped(self) -> int:
        """How many steps were skipped because a value or a gradient was not finite."""
        return self._skipped + int(self.dual_state.skipped)

    def snapshot(self) -> Snapshot:
        """Return the state of every constraint at the last committed step, for observers and writers."""
        return self._record.snapshot()

    def report(self, tolerance: float = 0.0) -> Report:
        """Return value, limit, violation and multiplier of each constraint, and a warning in words if one is due.

        Values are means over the last steps (at most 200) in which the constraint was present.
        """
        return self._record.report(self.skipped, tolerance)

    def plot(self, names: Sequence[str] | None = None) -> Any:
        """Draw values against their limits, and multipliers, over the steps so far; return the matplotlib figure.

        By default it shows the four constraints with the largest violations and multipliers.
        """
        return self._record.plot(None if names is None else list(names))

    def observe_steps(self, observer: Observer, every: int = 1) -> None:
        """Call ``observer(snapshot)`` after every ``every``-th committed step; see `gdpa.torch.CSVWriter`.

        Its method ``prepare(snapshot)``, if it has one, is called at once. Its exceptions end `step` after parameters
        and multipliers have moved.
        """
        self._record.observe(observer, every)

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

    finish = finish

    # State: everything survives deepcopy and pickle; dictionaries are cloned both ways and matched by name.

    def __getstate__(self) -> dict[str, Any]:
        drop = {"step", "_stage", "_record", "_gradients"}
        return {k: v for k, v in self.__dict__.items() if k not in drop and not k.startswith("_optimizer_")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        rest = dict(state)
        loaded: dict[str, Any] = {key: rest.pop(key) for key in ("state", "param_groups") if key in rest}
        if loaded:  # from load_state_dict: the base optimizer fills in entries that its older states lack
            self.base.__setstate__(loaded)
        super().__setstate__(rest)
        self._stage, self._gradients = None, GradientCheck()
        self._pool.forget()
        if "_record" not in self.__dict__:
            self._record = Record(self.dual_state)

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of the state, which later training does not change (base optimizers: as theirs do)."""
        return self.dual_state.save(super().state_dict())

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state; multipliers go to the constraints of the same *name*."""
        checked = self.dual_state.check(state_dict)
        super().load_state_dict(checked)
        self.discard()
        self.dual_state.restore(checked)


@torch.no_grad()
def _project_(groups: Sequence[dict[str, Any]], domains: Sequence[ConvexSet | None]) -> None:
    """Project the rows (last axis) of the parameters, whole or sharded, of each group on its set, in place."""
    for group, domain in zip(groups, domains, strict=True):
        if domain is None:
            continue
        for p in group["params"]:
            full: Any = p.full_tensor() if hasattr(p, "full_tensor") else p
            projected = domain.project(full if full.ndim else full.reshape(1)).reshape(full.shape)
            if full is not p:
                from torch.distributed.tensor import distribute_tensor

                projected = distribute_tensor(projected, p.device_mesh, p.placements)
            p.copy_(projected)


def check_domain(domain: Any) -> ConvexSet | None:
    """Return ``domain`` if it is a set or None."""
    if domain is not None and not isinstance(domain, ConvexSet):
        raise TypeError(f"domain must be a gdpa.ConvexSet or None, got {domain!r}")
    return domain


def _check_base(base: Any) -> None:
    if not isinstance(base, torch.optim.Optimizer):
        raise TypeError(
            f"optimizer must be a torch optimizer, got {base!r}; for the paper's method over parameters use "
            "gdpa.torch.GDPA(params, constraints)"
        )
    if isinstance(base, ConstrainedOptimizer):
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
