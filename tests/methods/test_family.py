"""One family of dual rules, docs/theory.md: a pressure w and a memory mu. Its members agree with one recursion.

w = [a mu + rho_r g]_+ weighs the primal step, mu <- mu + gain (w - mu) remembers it. The recursion is written out here
in NumPy, without the library's formulas, and every member must follow it to 1e-12.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gdpa import GDPA, PPL, Constant, DampedGDPA, LinearizedALM, Penalty, from_functions

ALPHA, RHO, STEPS = 0.02, 0.7, 40


def quadratics(seed: int) -> tuple[Any, Any, Any, Any]:
    """Two inequalities and one equality, all quadratic, in four variables: f, its gradient, g and its Jacobian."""
    rng = np.random.default_rng(seed)
    H, Q = rng.standard_normal((4, 4)), rng.standard_normal((3, 4, 4)) / 4
    H, Q = H @ H.T / 4, Q + Q.transpose(0, 2, 1)
    b, B, c = rng.standard_normal(4), rng.standard_normal((3, 4)), rng.standard_normal(3)
    return (
        lambda x: x @ H @ x / 2 + b @ x,
        lambda x: H @ x + b,
        lambda x: x @ Q @ x / 2 + B @ x + c,
        lambda x: Q @ x + B,
    )


def part(q: Any) -> Any:
    return np.concatenate([np.maximum(q[:2], 0), q[2:]])


def recursion(
    seed: int,
    share: float,
    rho: Callable[[int], float],
    gain: Callable[[int, Any], float],
    fresh: bool = True,
    alpha: Callable[[int], float] = lambda r: ALPHA,
) -> tuple[Any, Any]:
    """Return x and mu of the family after STEPS steps."""
    _, df, g, J = quadratics(seed)
    x, mu = np.ones(4), np.zeros(3)
    for r in range(1, STEPS + 1):
        w = part(share * mu + rho(r) * g(x))
        x_next = x - alpha(r) * (df(x) + w @ J(x))
        pressure = part(share * mu + rho(r) * g(x_next)) if fresh else w
        x, mu = x_next, mu + gain(r, pressure - mu) * (pressure - mu)
    return x, mu


def run(method: Any, seed: int) -> tuple[Any, Any]:
    f, df, g, J = quadratics(seed)
    problem = from_functions(f, g, gradient=df, jacobian=J, num_equalities=1)
    state = method.init(problem, np.ones(4))
    for _ in range(STEPS):
        state = method.update(problem, state)
    return state.x, state.multipliers


class FullGain(PPL):
    """PPL that remembers the whole pressure."""

    def gain(self, k: int, residual: Any) -> float:
        return 1.0


def ppl(kind: type[PPL] = PPL, **options: Any) -> PPL:
    return kind(eta=ALPHA, alpha=RHO / (1 - 0.5 * RHO), beta=0.5, **options)


def normalized(decay: float) -> Callable[[int, Any], float]:
    return lambda r, residual: 0.5 * decay ** (r - 1) / (1 + residual @ residual)


FIXED, FULL = lambda r: RHO, lambda r, residual: 1.0
STEADY = {"alpha": Constant(ALPHA), "beta": Constant(RHO), "gate": False}
MEMBERS = {
    "GDPA": (GDPA(0.02, 0.7, 0.3, gate=False), 0.7, lambda r: RHO * r ** (1 / 3), FULL),
    "penalty": (Penalty(**STEADY), 0.0, FIXED, FULL),
    "augmented Lagrangian": (LinearizedALM(**STEADY), 1.0, FIXED, FULL),
    "GDPA at tau = 0": (GDPA(**STEADY, tau=0.0), 1.0, FIXED, FULL),
    "PPL with gain 1": (ppl(FullGain, fresh=True), 1.0, FIXED, FULL),
    "PPL, constant gain": (ppl(fresh=True), 1.0, FIXED, normalized(1.0)),
    "PPL as printed": (ppl(decay=0.999), 1.0, FIXED, normalized(0.999)),
    "damped": (
        DampedGDPA(ALPHA, RHO, theta=0.1, smoothing=0.0, scaled=False), 1.0, FIXED, lambda r, residual: 0.1,
    ),
}  # fmt: skip


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", MEMBERS)
def test_every_member_follows_the_family(name: str, seed: int) -> None:
    method, share, rho, gain = MEMBERS[name]
    falling = (lambda r: ALPHA * r ** (-1 / 3)) if name == "GDPA" else (lambda r: ALPHA)
    x, mu = recursion(seed, share, rho, gain, fresh=name != "PPL as printed", alpha=falling)
    found = run(method, seed)
    np.testing.assert_allclose(found[0], x, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(found[1], mu, rtol=1e-12, atol=1e-12)
    assert np.abs(mu).max() > 1e-3


@pytest.mark.parametrize("seed", range(3))
def test_the_equivalences(seed: int) -> None:
    """AL = PPL with gain 1, and GDPA = AL at tau = 0."""
    one, *others = (run(MEMBERS[k][0], seed) for k in ("augmented Lagrangian", "PPL with gain 1", "GDPA at tau = 0"))
    for other in others:
        for a, b in zip(one, other, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)
