"""Uses of names that `gdpa` loads late: `make lint` checks their types under strict rules, nothing runs them.

The mistakes at the end must be found: an ignored error that mypy does not see is an error itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import gdpa


def uses() -> float:
    def rule(progress: gdpa.Progress) -> gdpa.Status | None:
        return gdpa.Status.STOPPED if progress.step > 2 else None

    stop: gdpa.StopRule = rule
    steps: float = gdpa.GDPA(alpha=gdpa.Constant(0.1), beta=2.0).alpha(3) + gdpa.Power(1.0, 0.5)(4)
    method: gdpa.IPPP = gdpa.IPPP(beta=0.1)
    own = gdpa.problems.get("HS12")
    kkt: float = gdpa.solve(own.problem, own.x0, method, stop=[stop]).history["kkt"][-1]
    gdpa.minimize(lambda x: x @ x, [1.0], method=gdpa.DampedGDPA())
    gdpa.compare(own.problem, own.x0, ["gdpa", method])

    @gdpa.register("typed")
    @dataclass(frozen=True)
    class Typed(gdpa.Method):
        alpha: gdpa.StepSize = gdpa.StepSize(0.1, exponent=0.0)

        def update(self, problem: gdpa.Problem, state: gdpa.State) -> gdpa.State:
            return state

    Typed(alpha="fast")  # type: ignore[arg-type]
    gdpa.MaxSteps("many")  # type: ignore[arg-type]
    now = own.problem.evaluate(own.x0)
    F = gdpa.AugmentedLagrangian(own.x0, beta=2.0)
    F.weights(now)  # type: ignore[arg-type]
    F.weights([0.5])  # type: ignore[arg-type]
    F.damped(now.constraints, None)  # type: ignore[arg-type]
    gdpa.certify(own.problem, None)  # type: ignore[arg-type]
    return steps + kkt
