"""The machinery that the paper's method and the minibatch method share: stage in `lagrangian`, commit in `step`."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch

from gdpa.sets import ConvexSet
from gdpa.torch import state as dual_state
from gdpa.torch.pooling import Group, pack, share, unpack
from gdpa.torch.report import Report, Snapshot, make_report
from gdpa.torch.roster import Constraints, Roster
from gdpa.torch.stage import NonFiniteWarning, Stage, host, tensor

#: Steps that `report` looks back on.
WINDOW = 200


class ConstrainedOptimizer(torch.optim.Optimizer):
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
        self._stage = None
        self._observed: torch.Tensor | None = None
        self._observations = 0
        self._domains = []
        self._observers: list[tuple[Callable[[Snapshot], None], int]] = []
        self._history: deque[tuple[Any, Any]] = deque(maxlen=WINDOW if self._roster.size <= 1024 else 2)
        self._last: tuple[torch.Tensor, torch.Tensor] | None = None
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

    # The loop's three calls.

    def lagrangian(self, f: Any, g: Any, *, samples: int | None = None, counts: Any = None) -> torch.Tensor:
        """Return the scalar whose backward pass is the step's: ``f + w . g`` with w this step's weights.

        Args:
            f: the objective, a scalar tensor.
            g: the constraints, feasible when ``<= 0``: a tensor (m,) or a dict by name. With `Limits`, the values.
            samples: how many samples f is a mean of on this rank and in this micro-batch. Needed where ranks or
                micro-batches differ in size; default: they count alike.
            counts: how many samples each g_i is a mean of, by position or name; default ``samples``. A count of 0
                says that the constraint's group is absent from this batch: it is neither satisfied nor violated, its
                multiplier stands still.
        """
        roster = self._roster
        if roster.size == 0:
            return torch.as_tensor(f)
        vector = roster.vector(g)
        if type(f) is not torch.Tensor or f.ndim or not f.requires_grad or f.device != vector.device:
            f = _objective(f, vector)
        if self._stage is not None and self._accumulate is None:
            self._second_call()
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
            return f + torch.dot(vector, torch.zeros_like(vector))
        values = vector.detach()
        updates, weights = self._advance(values if self._capturable else host(values), None)
        product = torch.dot(vector, tensor(weights))
        total = f + product
        self._stage = Stage(total.detach(), f.detach(), values, updates, node=product.grad_fn)
        if self._capturable:
            self._guard(self._stage)
        else:
            self._stage.prefetch()
        return total

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take the primal step and commit the multipliers staged by `lagrangian`.

        ``closure`` is evaluated once, with gradients on, before the step; it may call `lagrangian` itself.
        """
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
        self._observed, observations, self._observations = None, self._observations, 0
        if self._accumulate is not None and not stage.measuring:
            self._close_round(stage, observations)
        if not self._capturable and not stage.finite():
            self._skip(stage)
            return loss
        if not stage.measuring:
            self._descend(stage)
            self._project()
        self._commit(stage)
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients and whatever was staged for a step that did not happen."""
        if self._stage is not None:
            self.discard()
        super().zero_grad(set_to_none)

    def discard(self) -> None:
        """Forget what `lagrangian` staged; the multipliers stay as they are."""
        self._stage, self._observed, self._observations = None, None, 0

    def observe(self, f: Any, g: Any, *, samples: int | None = None, counts: Any = None) -> None:
        """Add one micro-batch to the means that ``accumulate="exact"`` needs before the first backward pass.

        Call it for every micro-batch under ``torch.no_grad()``, then `lagrangian` and ``backward`` for each again.
        """
        if self._accumulate != "exact":
            raise RuntimeError('observe is for accumulate="exact"; build the optimizer with it')
        if self._stage is not None:
            raise RuntimeError("observe came after lagrangian; observe all micro-batches first, then train on them")
        vector = self._roster.vector(g, differentiable=False).detach()
        n, c = self._sizes(vector, samples, counts)
        packed = pack(torch.as_tensor(f).detach(), vector, n, c)
        self._observed = packed if self._observed is None else self._observed + packed
        self._observations += 1

    # Ranks and micro-batches.

    def _sizes(self, vector: torch.Tensor, samples: int | None, counts: Any) -> tuple[torch.Tensor, torch.Tensor]:
        n = torch.tensor(1.0 if samples is None else float(samples), dtype=vector.dtype, device=vector.device)
        c = n.expand(vector.shape) if counts is None else self._roster.counts(counts, vector)
        if self._nan == "absent":
            c = torch.where(torch.isnan(vector.detach()), torch.zeros_like(c), c)
        return n, c

    def _pooled(self, f: torch.Tensor, vector: torch.Tensor, samples: int | None, counts: Any) -> torch.Tensor:
        n, c = self._sizes(vector, samples, counts)
        safe = torch.where(c > 0, vector, torch.zeros_like(vector))
        f = torch.where(n > 0, f, torch.zeros_like(f))
        stage = self._stage
        if stage.measuring if stage is not None else self._measuring():
            self._stage = self._measure(f, safe, c)
            return f + torch.dot(safe, torch.zeros_like(vector))
        if self._accumulate == "stale":
            return self._stale(f, safe, n, c)
        if stage is None:
            if self._accumulate == "exact":
                if self._observed is None:
                    raise RuntimeError(
                        'accumulate="exact" needs the mean of g before the first backward pass: call opt.observe(f, g) '
                        "on every micro-batch under torch.no_grad() first"
                    )
                packed = self._observed.clone()
            else:
                packed = pack(f.detach(), safe.detach(), n, c)
            pooled = unpack(self._group.sum_(packed))
            updates, weights = self._advance(_view(pooled.values, self), _view(pooled.present, self))
            weights = tensor(weights)
            check = pooled.objective + torch.dot(pooled.values, weights)
            stage = Stage(check, pooled.objective, pooled.values, updates, weights, pooled.present, pooled=pooled)
            stage.calls = 0
            if self._capturable:
                self._guard(stage)
            else:
                stage.prefetch()
            self._stage = stage
        assert stage.pooled is not None
        assert stage.weights is not None
        world = self._group.size
        stage.calls += 1
        product = torch.dot(safe, stage.weights * share(c, stage.pooled.counts, world))
        stage.node = product.grad_fn
        return f * share(n, stage.pooled.samples, world) + product

    def _stale(self, f: torch.Tensor, safe: torch.Tensor, n: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        packed = pack(f.detach(), safe.detach(), n, c)
        stage = self._stage
        if stage is None:
            self._stage = Stage(f.detach(), f.detach(), safe.detach(), {}, packed=packed)
        else:
            assert stage.packed is not None
            stage.packed, stage.calls = stage.packed + packed, stage.calls + 1
        weights = self._slot["stale_weights"].to(safe)
        return f + torch.dot(safe, torch.where(c > 0, weights, torch.zeros_like(weights)))

    def _close_round(self, stage: Stage, observations: int) -> None:
        """Finish a step of several micro-batches."""
        if self._accumulate == "exact":
            if stage.calls != observations:
                raise RuntimeError(
                    f"observe saw {observations} micro-batches but lagrangian {stage.calls}; both must see the same"
                )
            return
        assert stage.packed is not None
        pooled = unpack(self._group.sum_(stage.packed.clone()))
        updates, weights = self._advance(_view(pooled.values, self), _view(pooled.present, self))
        stage.updates = {**updates, "stale_weights": weights}
        stage.objective, stage.values, stage.present = pooled.objective, pooled.values, pooled.present
        stage.check = pooled.objective + torch.dot(pooled.values, tensor(weights))

    # Stage, commit, skip.

    def _second_call(self) -> None:
        stage = self._stage
        assert stage is not None
        cleared = all(p.grad is None for group in self.param_groups for p in group["params"])
        if cleared and stage.backward_ran():
            self.discard()  # the step was skipped (an overflow, say) and its gradients cleared by other means
            return
        raise RuntimeError(
            "lagrangian was called twice without a step between. To add up gradients of several micro-batches build the "
            'optimizer with accumulate="exact" or "stale"; to drop the first call use opt.zero_grad() or opt.discard()'
        )

    def _follow(self, vector: torch.Tensor) -> None:
        """Move the dual state to the device and precision of g (at least single)."""
        slot = self._slot
        for key in self._keys:
            value = slot[key]
            if isinstance(value, torch.Tensor):
                slot[key] = value.to(vector.device, vector.dtype if value.is_floating_point() else None)

    def _guard(self, stage: Stage) -> None:
        """Keep the old dual state on the device wherever the new one is not finite (no look from the host)."""
        slot, ok = self._slot, torch.isfinite(stage.check)
        stage.check = ok
        for key, new in stage.updates.items():
            stage.updates[key] = torch.where(ok, new, slot[key])

    def _commit(self, stage: Stage) -> None:
        slot = self._slot
        for key, value in stage.updates.items():
            if self._capturable:
                slot[key].copy_(value)
            else:
                slot[key] = tensor(value)
        self._last = (stage.objective, stage.values)
        if stage.measuring or self._capturable:
            return
        self._history.append((stage.values, slot["multipliers"]))
        for observer, every in self._observers:
            if slot["dual_steps"] % every == 0:
                observer(self.snapshot())

    def _skip(self, stage: Stage) -> None:
        self.skipped += 1
        bad = [self._roster.name(i) for i in torch.nonzero(~torch.isfinite(stage.values)).flatten().tolist()]
        if not torch.isfinite(stage.objective):
            bad.insert(0, "the objective")
        text = ", ".join(bad[:8]) or "the weighted sum of objective and constraints"
        warnings.warn(
            f"step skipped: {text} was not a finite number; parameters and multipliers are as they were. "
            'A group absent from a batch is declared with counts= or nan="absent"',
            NonFiniteWarning,
            stacklevel=4,
        )

    def _project(self) -> None:
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
        history = [(to_user(values), to_user(lam)) for values, lam in self._history]
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
        drop = {"step", "_stage", "_observed", "_observers", "_history", "_last"}
        return {k: v for k, v in self.__dict__.items() if k not in drop and not k.startswith("_optimizer_")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._stage = None
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


def _view(value: torch.Tensor, optimizer: ConstrainedOptimizer) -> Any:
    return value if optimizer._capturable else host(value)


def _objective(f: Any, vector: torch.Tensor) -> torch.Tensor:
    if isinstance(f, (int, float)) and not isinstance(f, bool):
        return torch.as_tensor(float(f), dtype=vector.dtype, device=vector.device)
    if not isinstance(f, torch.Tensor) or not f.is_floating_point():
        raise TypeError(f"f must be a scalar floating-point tensor, got {f!r}")
    if f.numel() != 1:
        raise ValueError(f"f has shape {tuple(f.shape)}, expected a scalar; reduce it, e.g. f.mean()")
    if f.device != vector.device:
        raise ValueError(f"f is on {f.device} but g on {vector.device}; compute both on one device")
    return f.reshape(())


def project_(domain: ConvexSet, p: torch.Tensor) -> None:
    """Project the rows (last axis) of ``p`` on the set, in place."""
    full: Any = p.full_tensor() if hasattr(p, "full_tensor") else p
    projected = domain.project(full if full.ndim else full.reshape(1)).reshape(full.shape)
    if full is not p:
        from torch.distributed.tensor import distribute_tensor

        projected = distribute_tensor(projected, p.device_mesh, p.placements)  # type: ignore[attr-defined]
    p.copy_(projected)
