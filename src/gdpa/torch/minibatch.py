"""A base optimizer with multipliers that scale themselves, for sampled data."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from gdpa.arrays import namespace
from gdpa.perturbed import pressure, weights
from gdpa.torch.core import ConstrainedOptimizer
from gdpa.torch.optimizer import check_domain
from gdpa.torch.roster import Constraints
from gdpa.torch.stage import Stage, host

_logger = logging.getLogger("gdpa.torch")

#: Above this many constraints calibration measures random sums of them instead of each one.
_PROBES = 32
#: Calibration batches after which a constraint that never appeared is an error.
_PATIENCE = 64
#: The sizes G_i follow the largest |g_i| seen from this step on; earlier values are the start's transient.
_WARM = 20
_SEVERAL_PASSES = (
    "calibration takes several backward passes through one batch's graph. A compiled model that was trained before "
    "allows them with torch._functorch.config.donated_buffer = False, set before its first call; or calibrate with the "
    "model that is not compiled: opt.calibrate((f, g) of a few batches)"
)


class MinibatchGDPA(ConstrainedOptimizer):
    r"""Any base optimizer under constraints that are known from minibatches.

    The weights of a fixed-weight loss, found while training. With :math:`\rho_i` the ratio of gradient norms of f and
    :math:`g_i` at the start and :math:`G_i` the size of :math:`g_i`, so that the units of f and g cancel,

    .. math::
        \beta_i &= k\, \rho_i / G_i \\
        \lambda_i &\leftarrow \lambda_i + \theta\,([\lambda_i + \beta_i g_i]_+ - \lambda_i) \\
        w_i &= [\lambda_i + \beta_i g_i]_+

    and the base optimizer steps along :math:`\nabla f + J^T w`. This is the perturbed augmented Lagrangian of `GDPA`
    with tau = 0 and constant beta, and its dual step damped: under noise a growing beta multiplies the noise, and a
    positive tau leaves constraints violated.

    **Calibration.** The first ``calibration`` batches measure :math:`\rho_i` and :math:`G_i` and train nothing (their
    `step` changes no parameter): m + 1 extra backward passes each, 33 at most.

    Args:
        base: the optimizer that takes the primal steps, e.g. ``torch.optim.AdamW(model.parameters())``. A parameter
            group's ``domain`` (a set of `gdpa.sets`) is projected on after every step.
        constraints: how many there are, or their names, or `Limits`.
        dual_rate: k, the one knob: a constraint at its largest violation reaches the weight at which its gradient
            balances that of f in about ``1 / (theta k)`` steps.
        damping: theta in (0, 1].
        calibration: how many batches to measure.
        equalities, accumulate, nan, process_group, capturable: as for `GDPA`. With ``capturable`` a step that is not
            finite is skipped by the base optimizer's own kernels where it is built with ``fused=True``; another one
            is given gradients of zero, and its momentum goes on.

    Example:
        >>> import gdpa.torch
        >>> _ = torch.manual_seed(0)
        >>> net, data = torch.nn.Linear(3, 1), torch.randn(64, 3)
        >>> opt = gdpa.torch.GDPA(torch.optim.Adam(net.parameters(), lr=0.01), constraints=["mean"])
        >>> type(opt).__name__
        'MinibatchGDPA'
        >>> for _ in range(2000):
        ...     opt.zero_grad()
        ...     out = net(data[torch.randint(64, (16,))])
        ...     loss = opt.lagrangian(out.square().mean(), {"mean": 1 - out.mean()})   # mean output at least 1
        ...     loss.backward()
        ...     opt.step()
        >>> bool((net(data).mean() - 1).abs() < 0.1)
        True
    """

    def __init__(
        self,
        base: torch.optim.Optimizer,
        constraints: Constraints,
        dual_rate: float = 0.1,
        *,
        damping: float = 0.1,
        calibration: int = 8,
        equalities: Sequence[str | int] = (),
        accumulate: str | None = None,
        nan: str = "skip",
        process_group: Any = "world",
        capturable: bool = False,
    ) -> None:
        if not isinstance(base, torch.optim.Optimizer):
            raise TypeError(f"base must be a torch optimizer, got {base!r}; GDPA(params, ...) takes parameters")
        if isinstance(base, ConstrainedOptimizer):
            raise TypeError(f"base is a {type(base).__name__}, which has constraints already; give a plain optimizer")
        closure = inspect.signature(base.step).parameters.get("closure")
        if closure is not None and closure.default is inspect.Parameter.empty:
            raise TypeError(
                f"{type(base).__name__} evaluates its closure several times a step, in which the multipliers would "
                "have to stand still; use an optimizer of one gradient a step (SGD, Adam, AdamW, ...)"
            )
        if isinstance(dual_rate, bool) or not isinstance(dual_rate, (int, float)) or not 0 < dual_rate < float("inf"):
            raise ValueError(f"dual_rate must be a positive finite number, got {dual_rate!r}")
        if not isinstance(damping, (int, float)) or not 0 < damping <= 1:
            raise ValueError(f"damping must lie in (0, 1], got {damping!r}")
        if isinstance(calibration, bool) or not isinstance(calibration, int) or calibration < 1:
            raise ValueError(f"calibration must be a positive number of batches, got {calibration!r}")
        self.base = base
        self._prepare(constraints, equalities, accumulate, nan, process_group, capturable)
        self._domains = [check_domain(group.pop("domain", None)) for group in base.param_groups]
        torch.optim.Optimizer.__setstate__(self, {})  # hooks and step, as Optimizer.__init__ sets them
        m = self._roster.size
        self._calibration = calibration
        self._install(
            {
                "multipliers": torch.zeros(m),
                "ratio": torch.zeros(m),
                "size": torch.zeros(m),
                "dual_steps": 0,
                "dual_rate": float(dual_rate),
                "damping": float(damping),
                "batches_measured": 0,
                "measured": torch.zeros(3 * m + 3),
                "calibrated": m == 0,
            }
        )

    # The base optimizer's groups and state are ours: schedulers, scalers and checkpoints see one optimizer.

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The base optimizer's parameter groups; the first also holds the dual state."""
        return self.base.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        """The base optimizer's state."""
        return self.base.state

    @property
    def defaults(self) -> dict[str, Any]:  # type: ignore[override]
        """The base optimizer's defaults."""
        return self.base.defaults

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group to the base optimizer; its ``domain`` is the set its parameters live in."""
        group = dict(param_group)
        self._domains.append(check_domain(group.pop("domain", None)))
        self.base.add_param_group(group)

    def register_step_pre_hook(self, hook: Callable[..., Any]) -> Any:
        """Register a hook before every step of the base optimizer; it is called with this optimizer."""
        return self.base.register_step_pre_hook(lambda _, args, kwargs: hook(self, args, kwargs))

    def register_step_post_hook(self, hook: Callable[..., Any]) -> Any:
        """Register a hook after every step of the base optimizer; it is called with this optimizer."""
        return self.base.register_step_post_hook(lambda _, args, kwargs: hook(self, args, kwargs))

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step the base optimizer and commit the multipliers staged by `lagrangian`; see `GDPA.step`."""
        return self._step(closure)

    step.hooked = True  # type: ignore[attr-defined]  # hooks run with the base optimizer's step, not twice

    def __setstate__(self, state: dict[str, Any]) -> None:
        rest = dict(state)
        loaded: dict[str, Any] = {key: rest.pop(key) for key in ("state", "param_groups") if key in rest}
        if loaded:  # from load_state_dict: the base optimizer fills in what its older states lack
            self.base.__setstate__(loaded)
        super().__setstate__(rest)

    def _advance(self, values: Any, present: Any) -> tuple[dict[str, Any], Any]:
        slot, p = self._slot, self._roster.num_equalities
        lam, ratio, size = slot["multipliers"], slot["ratio"], slot["size"]
        if not self._capturable:
            lam, ratio, size = host(lam), host(ratio), host(size)
        xp = namespace(values)
        done = slot["dual_steps"]
        if self._capturable or done >= _WARM:
            grown = xp.maximum(size, xp.abs(values))
            if self._capturable:
                grown = torch.where(done >= _WARM, grown, size)
            size = grown if present is None else xp.where(present, grown, size)
        moved, w = _damped(lam, values, slot["dual_rate"] * ratio / size, slot["damping"], p)
        if present is not None:
            moved, w = xp.where(present, moved, lam), xp.where(present, w, xp.zeros_like(w))
        return {"multipliers": moved, "size": size, "dual_steps": done + 1}, w

    def _advance_each(self, values: list[float]) -> tuple[dict[str, Any], list[float]]:
        slot, first = self._slot, self._first_equality
        done, rate, damping = slot["dual_steps"], slot["dual_rate"], slot["damping"]
        multipliers, ratio = self._numbers("multipliers").tolist(), self._numbers("ratio").tolist()
        size = self._numbers("size").tolist()
        updates, w = {"multipliers": multipliers, "dual_steps": done + 1}, values.copy()
        for i, g in enumerate(values):
            lam, equality = multipliers[i], i >= first
            if done >= _WARM and abs(g) > size[i]:
                size[i] = abs(g)
                updates["size"] = size
            beta = rate * ratio[i] / size[i]
            q = pressure(lam, g, beta, 0.0)  # `_damped` of one number
            lam = multipliers[i] = lam + damping * ((q if equality or q > 0 else 0.0) - lam)
            q = pressure(lam, g, beta, 0.0)
            w[i] = q if equality or q > 0 else 0.0
        return updates, w

    def _descend(self, stage: Stage | None) -> None:
        if stage is None or not stage.guarded:
            self.base.step()
        elif all(group.get("fused") for group in self.param_groups):
            base: Any = self.base
            base.found_inf = (~stage.check).float()  # the switch that fused kernels have
            try:
                base.step()
            finally:
                del base.found_inf
        else:
            bad = ~stage.check
            for group in self.param_groups:
                for p in group["params"]:
                    if p.grad is not None:
                        p.grad.masked_fill_(bad.to(p.device), 0.0)
            self.base.step()

    # Calibration.

    def _measuring(self) -> bool:
        return not self._slot["calibrated"]

    def calibrate(self, values: Iterable[tuple[Any, Any]]) -> None:
        """Measure the scales from pairs (f, g) of batches before training, instead of on the first batches of it.

        >>> import gdpa.torch
        >>> net = torch.nn.Linear(2, 1)
        >>> opt = gdpa.torch.GDPA(torch.optim.SGD(net.parameters(), lr=0.1), constraints=1)
        >>> batches = (net(torch.randn(8, 2)) for _ in range(8))
        >>> opt.calibrate((out.square().mean(), 1 - out.mean(dim=0)) for out in batches)
        >>> opt.report().advice
        ('No step has used the constraints yet: call lagrangian(f, g) before backward and step.',)
        """
        slot, seen, self._quick_dtype = self._slot, 0, None
        slot["calibrated"], slot["batches_measured"] = False, 0
        slot["measured"] = torch.zeros_like(slot["measured"])
        for f, g in values:
            if seen == self._calibration:
                break
            self.lagrangian(f, g)
            stage, self._stage = self._stage, None
            assert stage is not None
            self._commit(stage)
            seen += 1
        if not slot["calibrated"] and seen:
            self._finish(slot)

    def _measure(self, f: torch.Tensor, g: torch.Tensor, counts: torch.Tensor | None) -> Stage:
        """Add squared gradient norms of f and each g_i, and squares of their values, to the running sums."""
        try:
            return self._measure_each(f, g, counts)
        except RuntimeError as error:
            error.add_note(_SEVERAL_PASSES)
            raise

    def _measure_each(self, f: torch.Tensor, g: torch.Tensor, counts: torch.Tensor | None) -> Stage:
        params = [p for group in self.param_groups for p in group["params"] if p.requires_grad]
        m, values = self._roster.size, g.detach()
        present = torch.ones_like(values) if counts is None else (counts > 0).to(values.dtype)
        slopes = torch.zeros_like(values)
        if m <= _PROBES:
            for i in range(m):
                if present[i]:
                    slopes[i] = _squared_norm(g[i], params)
        else:
            # E ||J^T s||^2 = sum of ||grad g_i||^2 for random signs s: one common slope in units of each |g_i|.
            size = values.abs().clamp_min(torch.finfo(values.dtype).tiny)
            total = torch.zeros((), dtype=values.dtype, device=values.device)
            for _ in range(_PROBES):
                signs = torch.randint(0, 2, (m,), device=values.device).to(values.dtype) * 2 - 1
                total += _squared_norm(torch.dot(g, present * signs / size), params)
            slopes = present * size.square() * total / (_PROBES * present.sum().clamp_min(1.0))
        top = torch.stack([_squared_norm(f, params).to(values), f.detach().to(values).square(), present.new_ones(())])
        packed = torch.cat([top, slopes, values.square() * present, present])
        packed = self._group.sum_(packed)
        slot, stage = self._slot, self._stage
        before = slot["measured"].to(packed) if stage is None else stage.updates["measured"]
        batches = (slot["batches_measured"] if stage is None else stage.updates["batches_measured"]) + 1
        updates = {"measured": before + packed, "batches_measured": batches}
        measured = Stage(packed.sum(), f.detach(), values, updates)
        measured.measuring = True
        return measured

    def _measured(self) -> None:
        slot = self._slot
        if slot["batches_measured"] < self._calibration:
            return
        seen = slot["measured"][-self._roster.size :] > 0
        if bool(seen.all()) or slot["batches_measured"] >= _PATIENCE:
            self._finish(slot)

    def _finish(self, slot: dict[str, Any]) -> None:
        """Turn the sums of calibration into rho and G."""
        m = self._roster.size
        top, slopes, squares, seen = slot["measured"].split([3, m, m, m])
        if not bool((seen > 0).all()):
            absent = [self._roster.name(i) for i in torch.nonzero(seen == 0).flatten().tolist()]
            raise RuntimeError(
                f"calibration never saw the constraints {absent[:8]} in {slot['batches_measured']} batches; "
                "check their groups, or sample so that they appear"
            )
        slope_f, size_f = (top[:2] / top[2]).sqrt()
        slopes, size = (slopes / seen).sqrt(), (squares / seen).sqrt()
        tiny = torch.finfo(size.dtype).tiny
        size_f = torch.where(size_f > 0, size_f, torch.ones_like(size_f))
        # A ratio far off that of the values themselves is a gradient that vanishes at the start, not a scale. The
        # bounds are relative to the values, so that they change with the units as everything else does.
        size = torch.where(size > 0, size, slopes.clamp_min(tiny))
        expected = size_f / size
        ratio = torch.where(slopes > 0, slope_f / slopes.clamp_min(tiny), expected)
        slot["ratio"] = torch.minimum(torch.maximum(ratio, 1e-3 * expected), 1e3 * expected)
        slot["size"] = size
        slot["calibrated"] = True
        for i in range(min(m, 20)):
            _logger.info(
                "%s: gradient ratio %.4g, size %.4g, dual rate %.4g",
                self._roster.name(i),
                slot["ratio"][i],
                size[i],
                slot["dual_rate"] * slot["damping"] * slot["ratio"][i] / size[i],
            )

    def _advice(self) -> list[str]:
        slot = self._slot
        if slot["calibrated"]:
            return []
        return [
            f"Calibrating: {slot['batches_measured']} of {self._calibration} batches measured, nothing trained yet."
        ]


def _damped(multipliers: Any, g: Any, beta: Any, damping: float, num_equalities: int) -> tuple[Any, Any]:
    """Return the multipliers moved by ``damping`` towards ``[lambda + beta g]_+``, and the weights they give."""
    moved = multipliers + damping * (weights(multipliers, g, beta, 0.0, num_equalities) - multipliers)
    return moved, weights(moved, g, beta, 0.0, num_equalities)


def _squared_norm(value: torch.Tensor, params: list[torch.Tensor]) -> torch.Tensor:
    """Return ||grad value||^2 over the parameters, keeping the graph for the passes to come."""
    zero = torch.zeros((), dtype=value.dtype, device=value.device)
    if not value.requires_grad:
        return zero
    grads: Any
    if any(hasattr(p, "full_tensor") for p in params):
        # Sharded parameters (FSDP2) are not nodes of the graph: their gradients arrive in .grad alone.
        kept = [p.grad for p in params]
        for p in params:
            p.grad = None
        value.backward(retain_graph=True)  # type: ignore[no-untyped-call]
        grads = [p.grad for p in params]
        for p, old in zip(params, kept, strict=True):
            p.grad = old
    else:
        grads = torch.autograd.grad(value, params, retain_graph=True, allow_unused=True)
    found = [g.coalesce().values() if g.is_sparse else g for g in grads if g is not None]
    if not found:
        return zero
    norm: Any = torch.nn.utils.get_total_norm(found)
    norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
    square: torch.Tensor = norm.square().to(value.dtype)
    return square
