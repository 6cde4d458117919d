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
from gdpa.torch.gradients import GradientCheck
from gdpa.torch.microbatches import MicroBatches
from gdpa.torch.plot import plot_course
from gdpa.torch.pooling import Group, Pooled, initialized, mask, pack
from gdpa.torch.projection import product_of_sets, project_groups_
from gdpa.torch.record import Observer, Record
from gdpa.torch.report import Report, Snapshot
from gdpa.torch.roster import Constraints, Roster, objective
from gdpa.torch.rules import Rule
from gdpa.torch.staging import TWICE, Phase, Stage, absent_names, warn_values, warn_without_backward
from gdpa.torch.terms.term import has_terms, resolve


class MultiplierOptimizer(torch.optim.Optimizer):
    """An optimizer with multipliers, the base of `GDPA` and `ConstrainedOptimizer`.

    One step is one forward and one backward pass::

        opt.zero_grad()
        loss = opt.lagrangian(f, g)     # stages multipliers and weights
        loss.backward()
        opt.step()                      # commits them with the step

    A step that never happens (an overflow under GradScaler, an exception, a skipped batch) leaves the multipliers as
    they were. A step with nothing staged leaves them as they are. A step whose objective, constraints or gradients are
    not finite is skipped, with a `NonFiniteWarning` that names them.
    """

    _roster: Roster
    dual_state: DualState
    _stage: Stage | None
    _domains: list[ConvexSet | None]

    def _prepare(
        self,
        rule: Rule,
        constraints: Constraints,
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
        self._rounds = MicroBatches(accumulate, self._group)
        self._record = Record(self._roster)
        self._stage = None
        self._gradients = GradientCheck()
        self._domains = []
        self._skipped = 0

    @abstractmethod
    def _descend(self, stage: Stage | None, skip: torch.Tensor | None, compiling: bool) -> None:
        """Take the primal step with the gradients in ``.grad``, unless ``skip`` (on the device) is 1."""

    def _after(self, stage: Stage | None) -> None:
        """Finish a primal step."""

    # The loop's three calls.

    def lagrangian(
        self, f: Any, g: Any = None, *, true: Any = None, samples: int | None = None, counts: Any = None
    ) -> torch.Tensor:
        """Return the scalar whose backward pass is the step's: ``f + w . g`` with w this step's weights.

        Args:
            f: the objective, a scalar tensor.
            g: the constraints, feasible if ``<= 0``: a tensor (m,) or a dict by name, which may hold the terms of
                `gdpa.torch.terms`. With `Limits`, the values.
            true: the value for the multipliers if it has no gradient, a 0/1 rate: in the form of g, or a dict with some
                of its names. The gradient is then taken of g, a differentiable surrogate (see `terms.proxy`). Also g
                on a second sample, for the rule "two-sample".
            samples: how many samples f is a mean of on this rank and in this micro-batch. Needed if ranks or
                micro-batches differ in size; default: they count alike.
            counts: how many samples each g_i is a mean of, by position or name; default ``samples``. A count of 0
                says that the constraint's group is absent from this batch: it is neither satisfied nor violated, its
                multiplier stands still.
        """
        roster, dual = self._roster, self.dual_state
        if not roster.size:
            return torch.as_tensor(f)
        if g is None:
            raise TypeError("lagrangian takes f and g as two arguments; of a pair write opt.lagrangian(*losses(...))")
        if true is not None or (type(g) is not torch.Tensor and has_terms(g)):
            g, counts = resolve(g, true, counts, samples)
        vector = roster.vector(g)
        f = objective(f, vector)
        mixed = self._stage is not None and self._abandon_stage()
        if dual.awaited:
            raise RuntimeError(AWAITED.format(roster.size))
        if self._accumulate is not None or samples == 0 or (initialized() and self._group.size > 1):
            loss = self._pooled(f, g, vector, samples, counts)
        else:
            loss = self._whole(f, g, vector, counts)
        if mixed and self._stage is not None:
            self._stage.mix()
        if not is_compiling():
            loss.retain_grad()
        return loss

    def _whole(self, f: torch.Tensor, g: Any, vector: torch.Tensor, counts: Any) -> torch.Tensor:
        """Stage a call whose samples are all those of the step."""
        dual = self.dual_state
        batch = dual.read(vector, counts, self._nan == "absent")
        if batch.present is not None:
            vector = self._leave_out(g, vector, batch.present)
        updates, w = dual.weigh(batch, vector.dtype)
        total = f + torch.dot(vector, w)
        if dual.measures():
            updates |= dual.calibrate(f, vector, *batch, batch.present, self.param_groups, self._group)
        host = type(batch.values) is list
        check, objective = (total.item(), f.item()) if host else (total.detach(), f.detach())
        stage = self._stage = Stage(check, objective, batch.values, updates, total, batch.present)
        if not host:
            stage.later = dual.defers
            self._settle(stage)
        return total

    def _leave_out(self, g: Any, vector: torch.Tensor, present: Any) -> torch.Tensor:
        """Return the vector with 0 for absent constraints, out of its graph: a mean over no samples is 0 / 0."""
        known = vector.is_cpu and not self._capturable
        if not known:
            if self._nan == "absent":
                compat.cut_divisions_by_zero(vector)
        elif math.isnan(vector.detach().sum().item()):  # else no value is 0 / 0
            if isinstance(g, torch.Tensor):
                compat.cut_divisions_by_zero(vector)
            else:
                vector = self._roster.vector(g, present=present if type(present) is list else present.tolist())
        return mask(vector, torch.as_tensor(present, device=vector.device))

    def _pooled(self, f: torch.Tensor, g: Any, vector: torch.Tensor, samples: int | None, counts: Any) -> torch.Tensor:
        """Stage a call whose samples are only part of the step's."""
        n, c = self._roster.sizes(vector.detach(), samples, counts, self._nan == "absent")
        vector, f = self._leave_out(g, vector, c > 0), torch.where(n > 0, f, torch.zeros_like(f))
        seen = vector.detach()
        stage, rounds, dual = self._stage, self._rounds, self.dual_state
        packed, first = pack(f.detach(), seen, n, c), stage is None
        if self._accumulate == "stale":
            stage = rounds.add_stale(stage, packed, f, vector)
            weights = dual.entries["multipliers" if dual.rule.lagged else "stale_weights"].to(vector)
            w = torch.where(c > 0, weights, torch.zeros_like(weights))
            loss, known, present = f + torch.dot(vector, w), seen, c > 0
        else:
            if stage is None:
                stage = rounds.open(packed, vector.dtype, self._advance_pooled)
                self._settle(stage)
            loss = rounds.loss(stage, f, vector, n, c)
            assert stage.pooled is not None
            known, present = stage.pooled.values, stage.pooled.present
        if first and dual.measures():
            stage.updates |= dual.calibrate(f, vector, known, present, c > 0, self.param_groups, self._group)
        self._stage, stage.loss = stage, loss
        return loss

    def _advance_pooled(self, pooled: Pooled) -> tuple[dict[str, Any], torch.Tensor]:
        return self.dual_state.advance(self.dual_state.widen(pooled.values), pooled.present)

    def observe(self, f: Any, g: Any, *, true: Any = None, samples: int | None = None, counts: Any = None) -> None:
        """Add one micro-batch to the means that ``accumulate="exact"`` needs before the first backward pass.

        Call it for every micro-batch under ``torch.no_grad()``, then `lagrangian` and ``backward`` for each again.
        """
        if self._accumulate != "exact":
            raise RuntimeError('observe is for accumulate="exact"; build the optimizer with it')
        if self._stage is not None:
            raise RuntimeError("observe came after lagrangian; observe all micro-batches first, then train on them")
        if true is not None or has_terms(g):
            g, counts = resolve(g, true, counts, samples)
        vector = self._roster.vector(g, differentiable=False).detach()
        n, c = self._roster.sizes(vector, samples, counts, self._nan == "absent")
        self._rounds.observe(pack(torch.as_tensor(f).detach(), vector, n, c))

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
            self._project()
            self._after(None)
            return loss
        groups = self.param_groups
        if not stage.check_backward(groups):
            warn_without_backward()
            return loss
        if self._accumulate is not None:
            self._rounds.close(stage, stage.values.dtype, self._advance_pooled)
        if not stage.guarded and not stage.finite():
            self._skipped += 1
            warn_values(stage, self._roster)
            return loss
        if stage.later:
            dual.catch_up(stage)
        skip = self._gradients.nonfinite(groups, stage.guarded, compiling)
        if stage.guarded:
            skip = dual.guard(stage, skip)
        elif skip is not None and skip.item():
            self._skipped += 1
            self._gradients.warn(groups, absent_names(stage, self._roster))
            return loss
        self._descend(stage, skip if stage.guarded else None, compiling)
        self._project()
        self._after(stage)
        commit = dual.commit_aside if stage.guarded else dual.commit
        (compat.uncompiled(commit) if compiling else commit)(stage)
        self._record.keep(stage, dual.entries, self._capturable)
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients, and with them the stage of a step that did not happen.

        Between `lagrangian` and the backward pass, where many loops have it, it keeps the stage.
        """
        if self._stage is not None and self._stage.clear():
            self.discard()
        if not set_to_none or compat.profiler_enabled():
            super().zero_grad(set_to_none)
            return
        for group in self.param_groups:
            for p in group["params"]:
                p.grad = None

    def discard(self) -> None:
        """Discard the stage of `lagrangian`; the multipliers stay as they are."""
        self._stage = None
        self._rounds.forget()

    # Stage, commit.

    def _abandon_stage(self) -> bool:
        """Deal with the stage of an earlier call; return whether its gradients may still be in ``.grad``."""
        assert self._stage is not None
        phase = self._stage.phase
        if self._accumulate is not None and phase is not Phase.CLEARED:
            return False  # the next micro-batch of the same step
        if phase is Phase.STAGED:
            raise RuntimeError(TWICE)
        self.discard()
        ran = phase in (Phase.READY, Phase.MIXED)
        return ran and any(p.grad is not None for group in self.param_groups for p in group["params"])

    def _settle(self, stage: Stage) -> None:
        """Prepare the test that keeps non-finite numbers from being committed, on the host or on the device."""
        if not self._capturable:
            stage.prefetch()
            return
        stage.guarded, stage.check = True, (stage.check - stage.check) == 0  # isfinite in half the kernels

    def _project(self) -> None:
        if self._domains.count(None) < len(self._domains):
            project_groups_(self.param_groups, self._domains)

    def domain_of(self, params: Sequence[torch.Tensor]) -> ConvexSet:
        """Return the set X that the vector of ``params`` lies in."""
        return product_of_sets(self.param_groups, self._domains, params)

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
        return self._record.snapshot(self.dual_state.entries)

    def report(self, tolerance: float = 0.0) -> Report:
        """Return value, limit, violation and multiplier of each constraint, and a warning in words if one is due.

        Values are means over the last steps (at most 200) in which the constraint was present.
        """
        return self._record.report(self.dual_state.entries, self.skipped, tolerance)

    def plot(self, names: Sequence[str] | None = None) -> Any:
        """Draw values against their limits, and multipliers, over the steps so far; return the matplotlib figure.

        Args:
            names: the constraints to show; by default the four with the largest violations and multipliers.
        """
        return plot_course(self._roster, self._record.course(), None if names is None else list(names))

    def observe_steps(self, observer: Observer, every: int = 1) -> None:
        """Call ``observer(snapshot)`` after every ``every``-th committed step; see `gdpa.torch.writers`.

        An observer's method ``prepare(snapshot)``, if it has one, is called at once. An exception of an observer ends
        `step` after parameters and multipliers have moved.
        """
        self._record.observe(observer, every)
        if hasattr(observer, "prepare"):
            observer.prepare(self.snapshot())

    # State: everything survives deepcopy and pickle; dictionaries are cloned both ways and matched by name.

    def __getstate__(self) -> dict[str, Any]:
        drop = {"step", "_stage", "_record", "_gradients"}
        return {k: v for k, v in self.__dict__.items() if k not in drop and not k.startswith("_optimizer_")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._stage, self._gradients = None, GradientCheck()
        self._rounds.forget()
        if "_record" not in self.__dict__:
            self._record = Record(self._roster)

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of the state, which later training does not change (base optimizers: as theirs do)."""
        return self.dual_state.save(super().state_dict())

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state; multipliers go to the constraints of the same *name*."""
        checked = self.dual_state.check(state_dict)
        super().load_state_dict(checked)
        self.discard()
        self.dual_state.restore(checked)
