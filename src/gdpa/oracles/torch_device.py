"""Points on the host, a torch function on a device: one transfer per result instead of algebra in small kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from gdpa.base.typing import Array
from gdpa.core.problem import Evaluation
from gdpa.oracles.torch_capture import CapturedEvaluation


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
            return _captured(now, back)
        values = back(torch.cat([now.objective[..., None], now.constraints], dim=-1).detach())

        def pullback(w: Array, objective: Any = 1.0) -> Array:
            scale = objective if isinstance(objective, float) else torch.as_tensor(objective, device=device)
            return back(now.pullback(torch.as_tensor(w).to(device), scale).detach())

        def jacobian() -> Array:
            return back(now.jacobian().detach())

        whole = jacobian if now.whole is not None else None
        return Evaluation(values[..., 0], values[..., 1:], pullback, whole, now.passes)

    return evaluate


def _captured(now: CapturedEvaluation, back: Callable[[torch.Tensor], Array]) -> Evaluation:
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
