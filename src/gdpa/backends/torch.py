"""Problems from torch functions and modules: one weighted backward per pullback."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.func import functional_call

from gdpa.problem import Evaluation, Problem
from gdpa.sets import REALS, ConvexSet


def from_torch(
    function: Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]],
    *,
    num_constraints: int | None = None,
    num_equalities: int = 0,
    domain: ConvexSet = REALS,
    names: tuple[str, ...] | None = None,
) -> Problem:
    """Return a problem from one torch function ``fn(x) -> (f, g)``.

    f has the leading axes of x and g one more axis of length m. A pullback is one call of autograd over both:
    ``torch.autograd.grad([f, g], x, [objective, w])``.

    Example:
        >>> problem = from_torch(lambda x: ((x**2).sum(-1), 1 - x[..., :1]))
        >>> x = torch.tensor([1.0, 0.0], dtype=torch.float64)
        >>> problem.evaluate(x).pullback(torch.tensor([2.0], dtype=torch.float64)).tolist()
        [0.0, 0.0]
    """

    def evaluate(x: torch.Tensor) -> Evaluation:
        if not isinstance(x, torch.Tensor):
            raise TypeError(f"x must be a torch tensor for a torch problem, got {type(x).__name__}")
        leaf = x.detach().requires_grad_(True)
        with torch.enable_grad():
            f, g = function(leaf)
        if g.numel() and not (f.requires_grad or g.requires_grad):
            raise ValueError("neither f nor g depends on x through torch operations; return tensors computed from x")

        def pullback(w: torch.Tensor, objective: Any = 1.0) -> torch.Tensor:
            outputs, weights = [], []
            for value, weight in ((f, objective), (g, w)):
                if value.requires_grad and value.numel():
                    outputs.append(value)
                    weights.append(torch.as_tensor(weight, dtype=value.dtype, device=value.device).expand_as(value))
            # The graph is kept: certificates pull back m + 1 times. It goes when the evaluation does.
            (gradient,) = torch.autograd.grad(outputs, leaf, weights, retain_graph=True, allow_unused=True)
            return torch.zeros_like(x) if gradient is None else gradient

        return Evaluation(f.detach(), g.detach(), pullback)

    return Problem(evaluate, num_constraints=num_constraints, num_equalities=num_equalities, domain=domain, names=names)


@dataclass(frozen=True)
class ModuleProblem:
    """A problem over the parameters of a module, flattened into one vector.

    Attributes:
        problem: the problem in the flat vector x.
        x0: the module's present parameters, flat.
        module: the module; `load` writes a solution back into it.
    """

    problem: Problem
    x0: torch.Tensor
    module: torch.nn.Module

    def load(self, x: torch.Tensor) -> None:
        """Write the flat vector ``x`` into the module's parameters, shapes restored."""
        parameters = _trainable(self.module)
        if x.shape != self.x0.shape:
            raise ValueError(f"x has shape {tuple(x.shape)}, expected {tuple(self.x0.shape)}")
        with torch.no_grad():
            for name, value in _split(x, parameters).items():
                parameters[name].copy_(value)


def from_module(
    module: torch.nn.Module,
    loss: Callable[[torch.nn.Module], tuple[torch.Tensor, torch.Tensor]],
    *,
    num_constraints: int | None = None,
    num_equalities: int = 0,
    domain: ConvexSet = REALS,
    names: tuple[str, ...] | None = None,
) -> ModuleProblem:
    """Return the problem of training ``module`` under constraints.

    Args:
        module: parameters that require gradients become x; the others and the buffers stay as they are.
        loss: called with a callable of the module's signature, returns (f, g).
        num_constraints, num_equalities, domain, names: as in `gdpa.Problem`.

    Example:
        >>> net = torch.nn.Linear(2, 1, bias=False)
        >>> data = torch.ones(4, 2)
        >>> training = from_module(net, lambda net: (net(data).square().mean(), 1 - net(data).mean()[None]))
        >>> training.x0.shape, training.problem.evaluate(training.x0).constraints.shape
        (torch.Size([2]), torch.Size([1]))
    """
    parameters = _trainable(module)
    if not parameters:
        raise ValueError("module has no parameter that requires a gradient; nothing to optimise")
    x0 = torch.cat([p.detach().reshape(-1) for p in parameters.values()])

    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        values = _split(x, parameters)
        return loss(lambda *args, **kwargs: functional_call(module, values, args, kwargs))  # type: ignore[arg-type]

    problem = from_torch(
        function, num_constraints=num_constraints, num_equalities=num_equalities, domain=domain, names=names
    )
    return ModuleProblem(problem, x0, module)


def _trainable(module: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    return {name: p for name, p in module.named_parameters() if p.requires_grad}


def _split(x: torch.Tensor, parameters: dict[str, torch.nn.Parameter]) -> dict[str, torch.Tensor]:
    pieces = torch.split(x, [p.numel() for p in parameters.values()], dim=-1)
    return {name: piece.reshape(p.shape) for (name, p), piece in zip(parameters.items(), pieces, strict=True)}
