"""Training a torch module under limits, with its data in shards."""

from __future__ import annotations

import inspect
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.func import functional_call

from gdpa.base.sets import REALS, ConvexSet
from gdpa.base.typing import Vector
from gdpa.oracles.torch import ModuleProblem, flatten, split_parameters, trainable
from gdpa.sharded.problem import Regularizer, problem, rate
from gdpa.sharded.rows import Chunk, Rows, split
from gdpa.sharded.shard import Engine

#: Rows of a chunk by default: a forward and backward pass of 1,000 numbers a row then takes about 0.5 GB in float64.
CHUNK = 32_768


def from_module(
    module: torch.nn.Module,
    loss: Callable[..., Any],
    limits: Mapping[str, float] | Sequence[float],
    dataset: Any,
    shards: int = 8,
    *,
    engine: str | Engine = "local",
    regularizer: Regularizer = 0.0,
    chunk: int = CHUNK,
    device: Any = None,
    num_equalities: int = 0,
    domain: ConvexSet = REALS,
) -> ModuleProblem:
    """Return the problem of training ``module`` on all rows of ``dataset`` under limits; `gdpa.solve` takes it.

    Args:
        module: parameters that require gradients become x; the others and the buffers stay as they are.
        loss: ``loss(net, *chunk)`` returns (f, g), one value for each row and limit: f of shape (n,) and g of shape
            (n, m). The problem is to minimize the mean of f such that the mean of each column of g is at most its
            limit. It may return (f, g, members), with weights of shape (n, m), or (n, 1 + m) if f has weights, too: the
            means are then weighted, for rates over groups and classes.
        limits: one number for each column of g; a dictionary names them.
        dataset: arrays, files or a data set of torch, see `gdpa.sharded.rows.split`. A chunk of Parquet files is a
            dictionary of tensors by column.
        shards: into how many parts the rows are split.
        engine, regularizer: as in `gdpa.sharded.problem`.
        chunk: how many rows are evaluated at a time: the memory of a worker.
        device: where shards evaluate the module; default the CPU. "cuda" is the device of the rank under torchrun.
        num_equalities, domain: as in `gdpa.Problem`.

    Example:
        >>> import gdpa
        >>> data = torch.linspace(0, 1, 100, dtype=torch.float64)[:, None]
        >>> net = torch.nn.Linear(1, 1, dtype=torch.float64)
        >>> def loss(net, x):
        ...     out = net(x)[:, 0]
        ...     return (out - x[:, 0]) ** 2, 1 - out[:, None]
        >>> training = from_module(net, loss, {"mean": 0.25}, data, shards=4)     # a mean output of at least 0.75
        >>> result = gdpa.solve(training)
        >>> training.load(result.x)
        >>> result.success, round(net(data).mean().item(), 4)
        (True, 0.75)
    """
    parameters, x0 = flatten(module)
    _check_stateless(module)
    names = tuple(limits) if isinstance(limits, Mapping) else None
    bounds = list(limits.values() if isinstance(limits, Mapping) else limits)
    parts = split(dataset, shards, chunk)
    shape = [(name, tuple(p.shape), str(p.dtype)) for name, p in parameters.items()]
    fingerprint = repr((torch.__version__, shape, bounds, [len(part) for part in parts], _code(loss)))
    whole = problem(
        [ModuleShard(module, loss, len(bounds), part, device, fingerprint) for part in parts],
        engine,
        rate,
        limits=bounds,
        regularizer=regularizer,
        num_equalities=num_equalities,
        domain=domain,
        names=names,
    )
    return ModuleProblem(whole, x0.cpu(), module)


class ModuleShard:
    """Numerators and denominators of weighted means of a module's losses over some rows, chunk by chunk."""

    def __init__(
        self, module: torch.nn.Module, loss: Any, limits: int, rows: Rows, device: Any, fingerprint: str
    ) -> None:
        self._module, self._loss, self._limits, self._rows = module, loss, limits, rows
        self._device, self.fingerprint = device, fingerprint

    def __len__(self) -> int:
        return len(self._rows)

    def sums(self, x: Vector) -> Vector:
        total: Any = 0.0
        with torch.no_grad():
            leaf = torch.as_tensor(x).to(self._device)
            for chunk in self._rows.chunks():
                total = total + self._sums(leaf, chunk)
        return total.cpu().numpy()  # type: ignore[no-any-return]

    def pullback(self, x: Vector, w: Vector) -> Vector:
        leaf = torch.as_tensor(x).to(self._device).requires_grad_(True)
        weights = torch.as_tensor(w, device=leaf.device)
        total = torch.zeros_like(leaf)
        with torch.enable_grad():
            for chunk in self._rows.chunks():
                value = weights @ self._sums(leaf, chunk)
                if value.requires_grad:
                    total += torch.autograd.grad(value, leaf)[0]
        return total.cpu().numpy()

    def first_bad_row(self, x: Vector) -> int | None:
        """Return the index of the first row whose terms are not finite or raise."""
        leaf, at = torch.as_tensor(x).to(self._device), 0
        with torch.no_grad():
            for chunk in self._rows.chunks():
                rows = range(1, 1 + _length(chunk))
                first = bisect_left(rows, True, key=partial(self._is_bad, leaf, chunk))
                if first < len(rows):
                    return at + first
                at += len(rows)
        return None

    def _is_bad(self, leaf: torch.Tensor, chunk: Chunk, rows: int) -> bool:
        """Return whether one of the first rows of a chunk is bad."""
        try:
            return not torch.isfinite(self._sums(leaf, _head(chunk, rows))).all()
        except Exception:
            return True

    def _sums(self, leaf: torch.Tensor, chunk: Chunk) -> torch.Tensor:
        """Return numerators and denominators, in float64."""
        values = split_parameters(leaf, trainable(self._module))
        batch = [_to_tensor(part, leaf.device) for part in chunk]
        returned = self._loss(lambda *a, **k: functional_call(self._module, values, a, k), *batch)
        if not isinstance(returned, (tuple, list)) or len(returned) not in (2, 3):
            raise TypeError(f"loss must return (f, g) or (f, g, members), got {type(returned).__name__}")
        f, g = returned[:2]
        n, m = _length(chunk), self._limits
        if f.shape != (n,) or g.shape != (n, m):
            raise ValueError(
                f"loss returned f of shape {tuple(f.shape)} and g of shape {tuple(g.shape)} for {n} rows and {m} "
                f"limits; expected {(n,)} and {(n, m)}: one value for each row, not their mean"
            )
        terms = torch.cat([f[:, None], g], dim=1).double()
        if len(returned) == 2:
            return torch.cat([terms.sum(0), terms.new_full((1 + m,), n)])
        members = returned[2].double()
        if members.shape == (n, m):
            members = torch.cat([members.new_ones(n, 1), members], dim=1)
        if members.shape != (n, 1 + m):
            raise ValueError(f"members must have shape {(n, m)} or {(n, 1 + m)}, got {tuple(members.shape)}")
        return torch.cat([(members * terms).sum(0), members.sum(0)])


def _to_tensor(part: Any, device: Any) -> Any:
    if isinstance(part, dict):
        return {name: _to_tensor(column, device) for name, column in part.items()}
    if isinstance(part, np.ndarray) and not part.flags.writeable:
        part = np.array(part)  # torch warns of arrays that cannot be written; mapped files cannot
    return torch.as_tensor(part).to(device)


def _length(chunk: Chunk) -> int:
    first = chunk[0]
    return len(next(iter(first.values())) if isinstance(first, dict) else first)


def _head(chunk: Chunk, rows: int) -> Chunk:
    return tuple({k: v[:rows] for k, v in p.items()} if isinstance(p, dict) else p[:rows] for p in chunk)


def _check_stateless(module: torch.nn.Module) -> None:
    random = (torch.nn.modules.dropout._DropoutNd, torch.nn.modules.batchnorm._BatchNorm)
    for name, part in module.named_modules():
        if part.training and isinstance(part, random):
            raise ValueError(
                f"module has {type(part).__name__} {name!r} in training mode, whose output depends on more than a row "
                "and x; call module.eval() first"
            )


def _code(function: Any) -> str:
    """Return the source of a function; the name of its class if there is none."""
    try:
        return inspect.getsource(function)
    except (OSError, TypeError):
        return type(function).__qualname__
