"""The machinery that both optimizers share: stage in `lagrangian`, commit in `step`."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.compiler import is_compiling

from gdpa.base.sets import ConvexSet
from gdpa.torch import compat
from gdpa.torch.dual import AWAITED, DualState
from gdpa.torch.pooling import Group, Pool, initialized
from gdpa.torch.record import Observer, Record
from gdpa.torch.report import Report, Snapshot
from gdpa.torch.roster import Constraints, Roster, objective
from gdpa.torch.rules import Rule
from gdpa.torch.staging import TWICE, GradientCheck, Phase, Stage, any_gradient
from gdpa.torch.terms.term import has_terms, resolve


class MultiplierOptimizer(torch.optim.Optimizer):
    """An optimizer with multipliers, the base of `GDPA` and `ConstrainedOptimizer`.

    One step is one forward and one backward pass::

        opt.zero_grad()
        loss = opt.lagrangian(f, g)     # stages multipliers and weights
        loss.backward()
        opt.step()                      # commits them with the step

    A step that never happens (an overflow under GradScaler, an exception, a skipped batch) and a step with nothing
    staged leave the multipliers as they are. A step whose objective, constraints or gradients are not finite is
    skipped, with a `NonFiniteWarning` that names them.
    """

    _roster: Roster
    dual_state: DualState
    _stage: Stage | None
    _domains: list[ConvexSet | None]
    _averages = False

    def _prepare(
        self,
        rule: Rule,
        constraints: Constraints,
        *,
        equalities: Sequence[str | int],
        accumulate: str | None,
        nan: str,
        process_group: Any,
        capturable: bool,
        sizes: Sequence[float] | float | None = None,
        owner: torch.optim.Optimizer | None = None,
    ) -> None:
        """Validate and set the parts of both optimizers; call before the parameter groups are built."""
        if accumulate not in (None, "exact", "stale"):
            raise ValueError(f'accumulate must be None, "exact" or "stale", got {accumulate!r}')
        if nan not in ("skip", "absent"):
            raise ValueError(f'nan must be "skip" or "absent", got {nan!r}')
        if capturable and accumulate is not None:
            raise ValueError("capturable=True cannot be combined with accumulate=; capture whole batches")
        self._roster = Roster(constraints, equalities, sizes)
        self.dual_state = DualState(owner or self, rule, self._roster, accumulate == "stale", bool(capturable))
        self._accumulate, self._nan, self._capturable = accumulate, nan, bool(capturable)
        self._group = Group(process_group)
        self._pool = Pool(accumulate, self._group)
        self._record = Record(self.dual_state)
        self._stage = None
        self._gradients = GradientCheck()
        self._domains = []
        self._skipped = 0

    @abstractmethod
    def _descend(self, stage: Stage | None, skip: torch.Tensor | None, compiling: bool) -> None:
        """Take the primal step with the gradients in ``.grad``, unless ``skip`` (on the device) is 1."""

    def _after(self, stage: Stage | None) -> None:
        """Finish a primal step."""

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
            updates, w = dual.weigh(batch, vector.dtype)
            loss = f + torch.dot(vector, w)
            stage = Stage(batch, f, loss, updates, self._capturable)
        else:
            size, first = self._roster.sizes(vector.detach(), samples, counts, self._nan == "absent"), stage is None
            here = size[1:] > 0
            vector, f = self._leave_out(g, vector, here), torch.where(size[0] > 0, f, torch.zeros_like(f))
            if pool.mode == "stale":
                pool.add(f, vector, size)
                batch = dual.read(vector, samples=size)
                stage = stage or Stage(batch, f, f, {}, self._capturable)
                w = dual.entries["multipliers" if dual.rule.lagged else "stale_weights"].to(vector)
                loss = f + torch.dot(vector, torch.where(here, w, torch.zeros_like(w)))
            else:
                if pool.mode is None:  # the samples of this call and of other ranks
                    pool.forget()
                    pool.add(f, vector, size)
                if stage is None:
                    stage = self._weigh_means(vector)
                    stage.calls = 0
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

    def _weigh_means(self, like: torch.Tensor) -> Stage:
        """Return a stage of the means in the pool, with the rule applied to them."""
        means, samples = self._pool.means(like)
        batch = self.dual_state.read(means[1:], samples=samples)
        updates, w = self.dual_state.weigh(batch, means.dtype)
        stage = Stage(batch, means[0], means[0] + torch.dot(means[1:], w), updates, self._capturable)
        stage.weights = w.clone()
        return stage

    def _leave_out(self, g: Any, vector: torch.Tensor, present: Any) -> torch.Tensor:
        """Return the vector with 0 for absent constraints, out of its graph: a mean over no samples is 0 / 0."""
        if vector.is_cpu and not self._capturable:
            if math.isfinite(vector.detach().sum().item()):
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
        if self._accumulate != "exact":
            raise RuntimeError('add_micro_batch is for accumulate="exact"; build the optimizer with it')
        if self._stage is not None:
            raise RuntimeError("add_micro_batch came after lagrangian; add all micro-batches first, then train on them")
        if true is not None or has_terms(g):
            g, counts = resolve(g, true, counts, samples)
        vector = self._roster.vector(g, differentiable=False).detach()
        self._pool.add(torch.as_tensor(f), vector, self._roster.sizes(vector, samples, counts, self._nan == "absent"))

    observe = add_micro_batch  # the name of 0.1.0

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take the primal step and commit the multipliers staged by `lagrangian`.

        ``closure`` is evaluated once, with gradients on, before the step; it may call `lagrangian` itself.
        """
        if compat.step_is_watched(self):
            return self._watched_step(closure)
        enabled = torch.is_grad_enabled()
        compat.set_grad_enabled(False)
        try:
            return self._step(closure)
        finally:
            compat.set_grad_enabled(enabled)

    # Skip torch's profiling wrapper unless a profiler or a hook is active.
    step.hooked = True  # type: ignore[attr-defined]

    @torch.optim.Optimizer.profile_hook_step
    @torch.no_grad()
    def _watched_step(self, closure: Callable[[], Any] | None) -> Any:
        return self._step(closure)

    def _step(self, closure: Callable[[], Any] | None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        stage, self._stage, dual = self._stage, None, self.dual_state
        compiling = is_compiling()
        if stage is None:
            self._descend(None, None, compiling)
            _project_(self.param_groups, self._domains)
            self._after(None)
            return loss
        groups = dual.owner.param_groups
        if not (compiling or stage.check_backward(groups)):  # the compiler does not see graphs of others
            return loss
        if self._accumulate is not None:
            stage = self._close_parts(stage)
        if not stage.guarded and not stage.check_finite(self._roster):
            self._skipped += 1
            return loss
        if "dual_steps" not in stage.updates:
            dual.catch_up(stage)
        skip = self._gradients.nonfinite(groups, stage.guarded, compiling)
        if stage.guarded:
            skip = dual.guard(stage, skip)
        elif skip is not None and skip.item():
            self._skipped += 1
            self._gradients.warn(groups, stage.batch, self._roster)
            return loss
        self._descend(stage, skip if stage.guarded else None, compiling)
        if self._domains.count(None) < len(self._domains):
            _project_(groups, self._domains)
        self._after(stage)
        if stage.guarded:
            (compat.uncompiled(dual.commit_guarded) if compiling else dual.commit_guarded)(stage)
        else:
            dual.write(stage.updates)
        self._record.keep(stage)
        return loss

    def _close_parts(self, stage: Stage) -> Stage:
        """Return the stage of all micro-batches of a step."""
        if self._accumulate == "exact":
            if stage.calls != self._pool.calls:
                seen = f"{self._pool.calls} micro-batches but lagrangian {stage.calls}"
                raise RuntimeError(f"add_micro_batch saw {seen}; both must see the same")
        else:
            updates, stage = stage.updates, self._weigh_means(stage.loss)
            stage.updates |= updates
            if not self.dual_state.rule.lagged:
                stage.updates["stale_weights"] = stage.weights.double()
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
        for group in self.dual_state.owner.param_groups:
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
        if self._accumulate is not None and phase is not Phase.CLEARED:
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

    # State: everything survives deepcopy and pickle; dictionaries are cloned both ways and matched by name.

    def __getstate__(self) -> dict[str, Any]:
        drop = {"step", "_stage", "_record", "_gradients"}
        return {k: v for k, v in self.__dict__.items() if k not in drop and not k.startswith("_optimizer_")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
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
