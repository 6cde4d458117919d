"""The machinery that the paper's method and the minibatch method share: stage in `lagrangian`, commit in `step`."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._C._autograd import _profiler_enabled
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from gdpa.sets import ConvexSet
from gdpa.torch import state as dual_state
from gdpa.torch.few import FEW, FewConstraints
from gdpa.torch.microbatches import MicroBatches, view
from gdpa.torch.pooling import Group, initialized
from gdpa.torch.projection import project_
from gdpa.torch.report import Report, Snapshot, make_report
from gdpa.torch.roster import Constraints, Roster, objective
from gdpa.torch.stage import Stage, tensor, warn_skipped
from gdpa.torch.terms.term import has_terms, resolve

_TWICE = (
    "lagrangian was called twice without a step between. To add up gradients of several micro-batches build the "
    'optimizer with accumulate="exact" or "stale"; to drop the first call use opt.zero_grad() or opt.discard()'
)
#: Steps that `report` looks back on.
WINDOW = 200


class ConstrainedOptimizer(MicroBatches, FewConstraints, torch.optim.Optimizer):
    """An optimizer with multipliers. Use `GDPA` (the paper's method) or `MinibatchGDPA` (around a base optimizer).

    One step is one forward and one backward pass::

        opt.zero_grad()
        loss = opt.lagrangian(f, g)     # stages multipliers and weights
        loss.backward()
        opt.step()                      # commits them with the step

    A step that never happens (an overflow under GradScaler, an exception, a skipped batch) leaves the multipliers as
    they were. A step with nothing staged leaves them as they are.
    """

    _roster: Roster
    _apart: dict[str, Any] | None
    _stage: Stage | None
    _domains: list[ConvexSet | None]

    def _prepare(
        self,
        constraints: Constraints,
        equalities: Sequence[str | int],
        accumulate: str | None,
        nan: str,
        process_group: Any,
        capturable: bool,
    ) -> None:
        """Validate and set what both methods share; call before the parameter groups are built."""
        if accumulate not in (None, "exact", "stale"):
            raise ValueError(f'accumulate must be None, "exact" or "stale", got {accumulate!r}')
        if nan not in ("skip", "absent"):
            raise ValueError(f'nan must be "skip" or "absent", got {nan!r}')
        if capturable and accumulate is not None:
            raise ValueError("capturable=True cannot be combined with accumulate=; capture whole batches")
        self._roster = Roster(constraints, equalities)
        self._accumulate, self._nan, self._capturable = accumulate, nan, bool(capturable)
        self._group = Group(process_group)
        self._plain = accumulate is None and nan == "skip"
        self._quick_dtype: torch.dtype | None = None
        self._windows = {}
        self._first_equality = self._roster.size - self._roster.num_equalities
        self._stage = None
        self._observed: torch.Tensor | None = None
        self._observations = 0
        self._domains = []
        self._observers: list[tuple[Callable[[Snapshot], None], int]] = []
        self._history: deque[tuple[Any, Any]] = deque(maxlen=WINDOW if self._roster.size <= 1024 else 2)
        self._last: tuple[Any, Any] | None = None
        self.skipped = 0

    def _install(self, initial: dict[str, Any]) -> None:
        """Put the initial dual state in its place; call after the parameter groups are built."""
        roster = self._roster
        initial = {"constraint_names": list(roster.names or ()), "constraint_order": list(roster.order), **initial}
        if self._accumulate == "stale":
            initial["stale_weights"] = torch.zeros(roster.size)
        self._awaits_duals = False
        self._keys = tuple(initial)
        if self._capturable:
            initial["dual_steps"] = torch.zeros(())
        if roster.size <= dual_state.LIMIT:
            self._apart = None
            self.param_groups[0].update(initial)
        else:  # the flat form of distributed checkpoints writes a group's entries once per parameter
            self._apart = initial

    @property
    def _slot(self) -> dict[str, Any]:
        return self.param_groups[0] if self._apart is None else self._apart

    # What a method of this family defines.

    @abstractmethod
    def _advance(self, values: Any, present: Any) -> tuple[dict[str, Any], Any]:
        """Return the dual state after seeing g (``present`` masks it; None for all there) and the weights w."""

    @abstractmethod
    def _descend(self, stage: Stage | None) -> None:
        """Take the primal step with the gradients in ``.grad``."""

    def _measuring(self) -> bool:
        """Tell whether the next batch is for calibration only."""
        return False

    def _measure(self, f: torch.Tensor, g: torch.Tensor, counts: torch.Tensor | None) -> Stage:
        raise NotImplementedError

    def _measured(self) -> None:
        """See whether calibration is done; called when a batch's measurements are committed."""

    # The loop's three calls.

    def lagrangian(
        self, f: Any, g: Any, *, true: Any = None, samples: int | None = None, counts: Any = None
    ) -> torch.Tensor:
        """Return the scalar whose backward pass is the step's: ``f + w . g`` with w this step's weights.

        Args:
            f: the objective, a scalar tensor.
            g: the constraints, feasible when ``<= 0``: a tensor (m,) or a dict by name, which may hold the terms of
                `gdpa.torch.terms`. With `Limits`, the values.
            true: what the multipliers are to follow if it has no gradient, a 0/1 rate: in the form of g, or a dict with
                some of its names. The gradient is then that of g, a differentiable surrogate (see `terms.proxy`).
            samples: how many samples f is a mean of on this rank and in this micro-batch. Needed where ranks or
                micro-batches differ in size; default: they count alike.
            counts: how many samples each g_i is a mean of, by position or name; default ``samples``. A count of 0
                says that the constraint's group is absent from this batch: it is neither satisfied nor violated, its
                multiplier stands still.
        """
        if not self._roster.size:
            return torch.as_tensor(f)
        if true is not None or has_terms(g):
            g, counts = resolve(g, true, counts, samples)
        vector = self._roster.vector(g)
        if (
            vector.dtype is self._quick_dtype
            and samples is None
            and counts is None
            and self._stage is None
            and type(f) is torch.Tensor
            and not f.ndim
            and f.is_cpu
            and vector.is_cpu
            and not initialized()
        ):
            return self._lagrangian_of_few(f, vector)
        f = objective(f, vector)
        suspect = self._stage is not None and self._abandon_stage()
        loss = self._lagrangian(f, vector, samples, counts)
        if suspect and self._stage is not None:
            self._stage.suspect = True
        return loss

    def _lagrangian(self, f: torch.Tensor, vector: torch.Tensor, samples: int | None, counts: Any) -> torch.Tensor:
        roster = self._roster
        if self._awaits_duals:
            raise RuntimeError(
                f"the loaded checkpoint holds no multipliers: those of {roster.size} constraints are kept in "
                "opt.dual_state; save and load it beside the optimizer"
            )
        lam = self._slot["multipliers"]
        if lam.dtype is not vector.dtype or lam.device != vector.device:
            self._follow(vector)
        if not (self._plain and samples is None and counts is None and self._group.size == 1):
            return self._pooled(f, vector, samples, counts)
        if self._measuring():
            self._stage = self._measure(f, vector, None)
            product = torch.dot(vector, torch.zeros_like(vector))
            self._stage.product = product
            return f + product
        if vector.is_cpu and not self._capturable and roster.size <= FEW:
            self._quick_dtype = vector.dtype  # everything looked at above holds for the calls to come
            return self._lagrangian_of_few(f, vector)
        values = vector.detach()
        if vector.is_leaf or vector._is_view():  # of the parameters, perhaps, which the step will change
            values = values.clone()
        updates, weights = self._advance(view(values, self._capturable), None)
        product = torch.dot(vector, tensor(weights))
        total = f + product
        self._stage = Stage(total.detach(), f.detach(), values, updates, product)
        self._settle(self._stage)
        return total

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take the primal step and commit the multipliers staged by `lagrangian`.

        ``closure`` is evaluated once, with gradients on, before the step; it may call `lagrangian` itself.
        """
        if (
            _profiler_enabled()
            or self._optimizer_step_pre_hooks
            or self._optimizer_step_post_hooks
            or _global_optimizer_pre_hooks
            or _global_optimizer_post_hooks
        ):
            return self._step_attended(closure)
        # torch.no_grad() is the same at several times the cost.
        enabled = torch.is_grad_enabled()
        torch._C._set_grad_enabled(False)
        try:
            return self._step(closure)
        finally:
            torch._C._set_grad_enabled(enabled)

    # torch wraps every optimizer's step in a profiler's label and its hooks; ours asks for it where somebody listens.
    step.hooked = True  # type: ignore[attr-defined]

    @torch.optim.Optimizer.profile_hook_step
    @torch.no_grad()
    def _step_attended(self, closure: Callable[[], Any] | None) -> Any:
        return self._step(closure)

    def _step(self, closure: Callable[[], Any] | None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        stage, self._stage = self._stage, None
        if stage is None:
            self._descend(None)
            self._project()
            return loss
        if stage.suspect:
            raise RuntimeError(_TWICE)
        if self._accumulate is not None:
            self._close_round(stage)
        if not stage.guarded and not stage.finite():
            self.skipped += 1
            warn_skipped(stage, self._roster)
            return loss
        if not stage.measuring:
            self._descend(stage)
            self._project()
        self._commit(stage)
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients, and with them what was staged for a step that did not happen.

        Between `lagrangian` and the backward pass, where many loops have it, it keeps what is staged.
        """
        stage = self._stage
        if stage is not None:
            if stage.backward_ran():
                self.discard()
            else:
                stage.cleared, stage.suspect = True, False
        if not set_to_none or _profiler_enabled():
            super().zero_grad(set_to_none)
            return
        for group in self.param_groups:
            for p in group["params"]:
                p.grad = None

    def discard(self) -> None:
        """Forget what `lagrangian` staged; the multipliers stay as they are."""
        self._stage, self._observed, self._observations = None, None, 0

    # Stage, commit, skip.

    def _abandon_stage(self) -> bool:
        """Deal with what an earlier call staged; return whether its gradients may still lie in ``.grad``."""
        stage = self._stage
        assert stage is not None
        ran = stage.backward_ran()
        if self._accumulate is not None and (ran or not stage.cleared):
            return False  # the next micro-batch of the same step
        if not ran and not stage.cleared:
            raise RuntimeError(_TWICE)
        self.discard()
        return ran and any(p.grad is not None for group in self.param_groups for p in group["params"])

    def _follow(self, vector: torch.Tensor) -> None:
        """Move the dual state to the device and precision of g (at least single)."""
        slot = self._slot
        for key in self._keys:
            value = slot[key]
            if isinstance(value, torch.Tensor):
                slot[key] = value.to(vector.device, vector.dtype if value.is_floating_point() else None)

    def _settle(self, stage: Stage) -> None:
        """See to it that nothing that is not finite gets committed, from the host or on the device."""
        if not self._capturable:
            stage.prefetch()
            return
        stage.guarded, stage.check = True, (stage.check - stage.check) == 0  # isfinite in half the kernels

    def _commit(self, stage: Stage) -> None:
        slot = self._slot
        for key, value in stage.updates.items():
            if type(value) is list:
                numbers = self._numbers(key)
                for i, number in enumerate(value):
                    numbers[i] = number
            elif stage.guarded:  # in place, where a captured graph will look for it
                torch.where(stage.check, value, slot[key], out=slot[key])
            else:
                slot[key] = tensor(value)
        self._last = (stage.objective, stage.values)
        if stage.measuring:
            self._measured()
            return
        if self._capturable:
            return
        self._history.append((stage.values, stage.updates["multipliers"]))
        for observer, every in self._observers:
            if slot["dual_steps"] % every == 0:
                observer(self.snapshot())

    def _project(self) -> None:
        if self._domains.count(None) < len(self._domains):
            self._project_on_sets()

    @torch.no_grad()
    def _project_on_sets(self) -> None:
        for group, domain in zip(self.param_groups, self._domains, strict=True):
            if domain is not None:
                for p in group["params"]:
                    project_(domain, p)

    # What is known.

    @property
    def multipliers(self) -> torch.Tensor:
        """The multipliers lambda_r of the last committed step, in the order the constraints were given (a copy)."""
        return self._roster.to_user(self._slot["multipliers"])

    @property
    def dual_steps(self) -> int:
        """How many steps have moved the multipliers (the paper's r)."""
        return int(self._slot["dual_steps"])

    def snapshot(self) -> Snapshot:
        """Return the state of every constraint at the last committed step, for observers and writers."""
        return Snapshot.of(self._roster, self._slot["multipliers"], self.dual_steps, self._last)

    def report(self, tolerance: float = 0.0) -> Report:
        """Return value, limit, violation and multiplier of each constraint, and what looks wrong in words."""
        to_user = self._roster.to_user
        history = [(to_user(torch.as_tensor(values)), to_user(torch.as_tensor(lam))) for values, lam in self._history]
        return make_report(self.snapshot(), history, self.skipped, tolerance, self._advice())

    def _advice(self) -> list[str]:
        return []

    def observe_steps(self, observer: Callable[[Snapshot], None], every: int = 1) -> None:
        """Call ``observer(snapshot)`` after every ``every``-th committed step; see `gdpa.torch.writers`."""
        if not callable(observer) or not isinstance(every, int) or every < 1:
            raise ValueError(f"observer must be callable and every a positive integer, got {observer!r}, {every!r}")
        self._observers.append((observer, every))

    # State: everything survives deepcopy and pickle; dictionaries are cloned both ways and matched by name.

    def __getstate__(self) -> dict[str, Any]:
        drop = {"step", "_stage", "_observed", "_observers", "_history", "_last", "_windows"}
        return {k: v for k, v in self.__dict__.items() if k not in drop and not k.startswith("_optimizer_")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._stage, self._quick_dtype, self._windows = None, None, {}
        self._observed, self._observations = None, 0
        if "_observers" not in self.__dict__:
            self._observers = []
            self._history = deque(maxlen=WINDOW if self._roster.size <= 1024 else 2)
            self._last = None

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of the state: what training does later does not show in it (base optimizers: as theirs do)."""
        return dual_state.save(self, super().state_dict())

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state; multipliers go to the constraints of the same *name*."""
        checked = dual_state.check(self, state_dict)
        super().load_state_dict(checked)
        dual_state.restore(self, checked)

    @property
    def dual_state(self) -> dual_state.DualState:
        """The dual state alone, a ``Stateful`` for distributed checkpoints of more than 1024 constraints."""
        return dual_state.DualState(self)
