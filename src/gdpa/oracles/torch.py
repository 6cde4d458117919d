"""Problems from torch functions and modules: one weighted backward per pullback."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from torch.func import functional_call

from gdpa.base.arrays import to_numpy
from gdpa.base.checks import read_pair
from gdpa.base.sets import REALS, ConvexSet
from gdpa.base.typing import Array
from gdpa.core.problem import Evaluation, Problem, map_arrays
from gdpa.core.units import asymmetric_direction
from gdpa.oracles.torch_capture import CapturedEvaluation, Rows, captured

#: The tensors to return for f and g if there is none, or none yet.
REMEDIES = ("a tensor: torch.zeros((), dtype=x.dtype) for none", "a tensor: torch.stack of its parts")


@dataclass(frozen=True)
class TorchProblem(Problem):
    """A problem whose oracle takes torch tensors. `gdpa.solve` may keep x on the host, see `gdpa.run.placement`."""

    def on_host(self, device: str) -> Problem:
        """Return the problem for NumPy points; its function runs on ``device``."""
        own = {field.name: getattr(self, field.name) for field in fields(Problem)}
        domain = map_arrays(self.domain, to_numpy)
        return Problem(**own | {"evaluate": on_device(self.evaluate, device), "domain": domain})

    def to_device(self, array: Any, device: str) -> torch.Tensor:
        """Return a NumPy array as a tensor on ``device``."""
        return torch.as_tensor(array, device=device)


def from_torch(
    function: Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]],
    *,
    num_constraints: int | None = None,
    num_equalities: int = 0,
    domain: ConvexSet = REALS,
    names: tuple[str, ...] | None = None,
    device: Any = None,
    capture: bool | None = None,
) -> Problem:
    """Return a problem from one torch function ``fn(x) -> (f, g)``.

    f has the leading axes of x and g one more axis of length m. A pullback is one call of autograd over both:
    ``torch.autograd.grad([f, g], x, [objective, w])``. All rows of J are pulled back in one batched call if torch can.

    Args:
        function: fn.
        num_constraints, num_equalities, domain, names: as in `gdpa.Problem`.
        device: run the function on this device and keep x on the host, as a NumPy array or a CPU tensor. With None,
            x is on the device of x0; if that is CUDA, `gdpa.solve` keeps its own vectors of up to 20,000 variables on
            the host, where its algebra is faster, unless observers or stop rules of yours look on.
        capture: evaluate a single x on CUDA by captured graphs, which launch all kernels of the function at once. The
            default None captures if it can, and compares every 100th replay with an eager call; a function that cannot
            be captured, or whose values depend on more than x, is evaluated eagerly. True warns if that happens, False
            never captures.

    Example:
        >>> problem = from_torch(lambda x: ((x**2).sum(-1), 1 - x[..., :1]))
        >>> x = torch.tensor([1.0, 0.0], dtype=torch.float64)
        >>> problem.evaluate(x).pullback(torch.tensor([2.0], dtype=torch.float64)).tolist()
        [0.0, 0.0]
    """
    looked = False
    rows = Rows()

    def evaluate(x: torch.Tensor) -> Evaluation:
        nonlocal looked
        if not isinstance(x, torch.Tensor):
            raise TypeError(
                f"x must be a torch tensor for a torch problem, got {type(x).__name__}; "
                "give the start as torch.as_tensor(x0, dtype=torch.float64)"
            )
        leaf = x.detach().requires_grad_(True)
        with torch.enable_grad():
            f, g = read_pair(function(leaf), "tensor", torch.Tensor, REMEDIES)
        if g.numel() and not (f.requires_grad or g.requires_grad):
            raise ValueError("neither f nor g depends on x through torch operations; return tensors computed from x")
        if not looked and (not f.requires_grad or _has_loose_parts(g)):
            looked = True
            _refuse_cut_off(function, leaf, f, g, problem)

        def pullback(w: torch.Tensor, objective: Any = 1.0) -> torch.Tensor:
            outputs, weights = [], []
            for value, weight in ((f, objective), (g, w)):
                if value.requires_grad and value.numel():
                    outputs.append(value)
                    weights.append(torch.as_tensor(weight, dtype=value.dtype, device=value.device).expand_as(value))
            # The graph is kept: certificates pull back m + 1 times. It goes when the evaluation does.
            (gradient,) = torch.autograd.grad(outputs, leaf, weights, retain_graph=True, allow_unused=True)
            return torch.zeros_like(x) if gradient is None else gradient

        if x.ndim != 1 or not g.requires_grad:
            return Evaluation(f.detach(), g.detach(), pullback)
        return Evaluation(f.detach(), g.detach(), pullback, lambda: rows(g, leaf), passes=g.shape[-1])

    oracle = evaluate if capture is False else captured(function, evaluate, capture)
    oracle, kind = (oracle, TorchProblem) if device is None else (on_device(oracle, device), Problem)
    problem = kind(oracle, num_constraints=num_constraints, num_equalities=num_equalities, domain=domain, names=names)
    return problem


def _has_loose_parts(g: torch.Tensor) -> bool:
    """Return whether g, or a part that it is stacked of, has no gradient: a constant, or a value cut off from x."""
    if not g.requires_grad or g.grad_fn is None:
        return g.numel() > 0
    stacked = type(g.grad_fn).__name__.startswith(("StackBackward", "CatBackward"))
    return stacked and any(part is None for part, _ in g.grad_fn.next_functions)


def _refuse_cut_off(
    function: Callable[[torch.Tensor], Any], leaf: torch.Tensor, f: torch.Tensor, g: torch.Tensor, problem: Problem
) -> None:
    """Raise if a value without gradient changes with x: then it is not a constant. One more call of the function."""
    with torch.no_grad():
        size = leaf.abs().clamp(min=1.0)
        nearby = problem.domain.project(leaf.detach() + 0.01 * size * asymmetric_direction(leaf.detach()))
        f_nearby, g_nearby = function(nearby)
    values = [("the objective f", f, f_nearby)]
    for i in range(g.shape[-1] if g.ndim else 0):
        values.append((f"the constraint {problem.constraint_name(i)}", g[..., i], g_nearby[..., i]))
    for name, here, there in values:
        slope = None
        if here.requires_grad:
            (slope,) = torch.autograd.grad(here.sum(), leaf, retain_graph=True, allow_unused=True)
        flat = slope is None or not bool(slope.any())
        if flat and bool(torch.isfinite(there).all()) and bool((here != there).any()):
            raise ValueError(
                f"{name} changes with x but has no gradient: it was detached, made by .item() or torch.tensor, or "
                "computed under no_grad; compute it from x by torch operations"
            )


def on_device(oracle: Callable[[torch.Tensor], Evaluation], device: Any) -> Callable[[Array], Evaluation]:
    """Return ``oracle`` for points on the host; the function runs on ``device``.

    Points are NumPy arrays or CPU tensors, and so are values and gradients. f and g come back in one transfer, a
    pullback in one, and all rows of J in one.

    >>> double = lambda x: Evaluation((x * x).sum(), x - 1, lambda w, objective=1.0: 2 * objective * x + w)
    >>> now = on_device(double, "cpu")(np.ones(2))
    >>> float(now.objective), now.pullback(np.zeros(2)).tolist()
    (2.0, [2.0, 2.0])
    """
    device = torch.device(device)

    def evaluate(x: Array) -> Evaluation:
        if isinstance(x, np.ndarray):
            back: Callable[[torch.Tensor], Array] = lambda values: values.cpu().numpy()  # noqa: E731
        elif isinstance(x, torch.Tensor) and x.device.type == "cpu":
            back = torch.Tensor.cpu
        else:
            raise TypeError(
                f"x must be a NumPy array or a CPU tensor for a problem with device={str(device)!r}, got {x!r}; "
                "pass x0.cpu(), or leave device out to keep every vector on the device of x0"
            )
        now = oracle(torch.as_tensor(x).to(device))
        if isinstance(now, CapturedEvaluation):
            return _captured_on_host(now, back)
        values = back(torch.cat([now.objective[..., None], now.constraints], dim=-1).detach())

        def pullback(w: Array, objective: Any = 1.0) -> Array:
            scale = objective if isinstance(objective, float) else torch.as_tensor(objective, device=device)
            return back(now.pullback(torch.as_tensor(w).to(device), scale).detach())

        def jacobian() -> Array:
            return back(now.jacobian().detach())

        whole = jacobian if now.whole is not None else None
        return Evaluation(values[..., 0], values[..., 1:], pullback, whole, now.passes)

    return evaluate


def _captured_on_host(now: CapturedEvaluation, back: Callable[[torch.Tensor], Array]) -> Evaluation:
    """Return the oracle call on the host: all derivatives in one transfer if the device has them or the method asks."""
    rows: Array | None = None

    def derivatives() -> Array:
        nonlocal rows
        rows = back(now.derivatives()) if rows is None else rows
        return rows

    def pullback(w: Array, objective: Any = 1.0) -> Array:
        if rows is None and not now.ahead:
            return back(now.pullback(w, objective))
        known = derivatives()
        return objective * known[0] + w @ known[1:]

    values = back(now.values)
    return Evaluation(values[0], values[1:], pullback, lambda: derivatives()[1:], now.passes)


@dataclass(frozen=True)
class ModuleProblem:
    """A problem over the parameters of a module, flattened into one vector; `gdpa.solve` takes it as it is.

    Attributes:
        problem: the problem in the flat vector x.
        x0: the module's present parameters, flat.
        module: the module; `load` writes a solution back into it.
    """

    problem: Problem
    x0: torch.Tensor
    module: torch.nn.Module

    def __repr__(self) -> str:
        return f"ModuleProblem({type(self.module).__name__} with {self.x0.numel()} parameters)"

    def load(self, x: torch.Tensor) -> None:
        """Write the flat vector ``x`` into the module's parameters, shapes restored."""
        parameters = trainable(self.module)
        if x.shape != self.x0.shape:
            raise ValueError(f"x has shape {tuple(x.shape)}, expected {tuple(self.x0.shape)}")
        with torch.no_grad():
            for name, value in split_parameters(x, parameters).items():
                parameters[name].copy_(value)


def from_module(
    module: torch.nn.Module,
    loss: Callable[[torch.nn.Module], tuple[torch.Tensor, torch.Tensor]],
    *,
    num_constraints: int | None = None,
    num_equalities: int = 0,
    domain: ConvexSet = REALS,
    names: tuple[str, ...] | None = None,
    device: Any = None,
    capture: bool | None = None,
) -> ModuleProblem:
    """Return the problem of training ``module`` under constraints.

    Args:
        module: parameters that require gradients become x; the others and the buffers stay as they are.
        loss: called with a callable of the module's signature, returns (f, g).
        num_constraints, num_equalities, domain, names: as in `gdpa.Problem`.
        device, capture: as in `from_torch`. With ``device`` the module must be there; `x0` is on the host.

    Example:
        >>> net = torch.nn.Linear(2, 1, bias=False)
        >>> data = torch.ones(4, 2)
        >>> training = from_module(net, lambda net: (net(data).square().mean(), 1 - net(data).mean()[None]))
        >>> training.x0.shape, training.problem.evaluate(training.x0).constraints.shape
        (torch.Size([2]), torch.Size([1]))
        >>> from gdpa import solve
        >>> training.load(solve(training).x)  # until this line the module keeps its parameters
        >>> bool(abs(net(data).mean() - 1) < 1e-2)
        True
    """
    parameters, x0 = flatten(module)
    x0 = x0 if device is None else x0.cpu()

    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        values = split_parameters(x, parameters)
        return loss(lambda *args, **kwargs: functional_call(module, values, args, kwargs))  # type: ignore[arg-type]

    problem = from_torch(
        function,
        num_constraints=num_constraints,
        num_equalities=num_equalities,
        domain=domain,
        names=names,
        device=device,
        capture=capture,
    )
    return ModuleProblem(problem, x0, module)


def trainable(module: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """Return the parameters that require gradients, by name."""
    return {name: p for name, p in module.named_parameters() if p.requires_grad}


def flatten(module: torch.nn.Module) -> tuple[dict[str, torch.nn.Parameter], torch.Tensor]:
    """Return the parameters of a module to optimize, by name, and their present values as one vector."""
    parameters = trainable(module)
    if not parameters:
        raise ValueError("module has no parameter that requires a gradient; nothing to optimize")
    return parameters, torch.cat([p.detach().reshape(-1) for p in parameters.values()])


def split_parameters(x: torch.Tensor, parameters: dict[str, torch.nn.Parameter]) -> dict[str, torch.Tensor]:
    """Return the flat vector ``x`` as tensors with the names and shapes of ``parameters``."""
    pieces = torch.split(x, [p.numel() for p in parameters.values()], dim=-1)
    return {name: piece.reshape(p.shape) for (name, p), piece in zip(parameters.items(), pieces, strict=True)}
