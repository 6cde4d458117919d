"""A million steps of the torch optimizer in single precision beside the paper's recursion in double precision.

    python -m benchmarks.faults.long_run STEPS                        one record as JSON

min ||x - c_r||^2 / 2 subject to x_1 + x_2 <= 1 and x_1 - x_2 <= b_r, whose target c_r and limit b_r swing, so that
multipliers never stand still. The recursion is written out here from eq. (alg), without the library.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

from benchmarks.faults.line import ROOT, Line, Row

STEPS, SHORT = 1_000_000, 20_000
LR, BETA, TAU = 0.05, 0.5, 0.1
#: Memory is compared from this share of the steps on.
WARM = 0.1
PERIOD = 1000
LIMIT = 6 * 3600


def target(step: int) -> tuple[float, float, float]:
    """Return c_r and b_r."""
    angle = 2 * math.pi * step / PERIOD
    return 1.0 + 0.5 * math.sin(angle), 1.0 + 0.5 * math.cos(angle), 0.3 * math.sin(2 * angle)


class Reference:
    """Eq. (alg) with constant steps, in Python's double precision."""

    def __init__(self) -> None:
        self.x, self.multipliers = [0.0, 0.0], [0.0, 0.0]

    def values(self, step: int) -> list[float]:
        b = target(step)[2]
        return [self.x[0] + self.x[1] - 1, self.x[0] - self.x[1] - b]

    def step(self, step: int) -> None:
        c = target(step)
        g = self.values(step)
        q = [(1 - TAU) * lam + BETA * one for lam, one in zip(self.multipliers, g, strict=True)]
        w = [max(one, 0.0) for one in q]
        gradient = [self.x[0] - c[0] + w[0] + w[1], self.x[1] - c[1] + w[0] - w[1]]
        self.x = [x - LR * slope for x, slope in zip(self.x, gradient, strict=True)]
        after = self.values(step + 1)
        self.multipliers = [
            max((1 - TAU) * lam + BETA * one, 0.0) if gate > 0 else 0.0
            for lam, one, gate in zip(self.multipliers, after, q, strict=True)
        ]


def memory() -> int:
    """Return the resident memory of this process in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def march(steps: int) -> Row:
    import torch

    import gdpa.torch

    torch.set_num_threads(1)
    x = torch.nn.Parameter(torch.zeros(2))
    opt = gdpa.torch.GDPA([x], ["sum", "difference"], lr=LR, beta=BETA, tau=TAU, lr_power=0.0, beta_power=0.0)
    rows = torch.tensor([[1.0, 1.0], [1.0, -1.0]])
    reference, worst, first = Reference(), 0.0, 0
    for step in range(1, steps + 1):
        c1, c2, b = target(step)
        opt.zero_grad()
        f = (x - torch.tensor([c1, c2])).square().sum() / 2
        opt.lagrangian(f, rows @ x - torch.tensor([1.0, b])).backward()
        opt.step()
        if step % 100 == 0:  # lambda_r, formed from g(x_r); the recursion has it before its step
            gaps = (abs(a - b) for a, b in zip(opt.multipliers.tolist(), reference.multipliers, strict=True))
            worst = max(worst, *gaps)
        reference.step(step)
        if step == max(1, int(WARM * steps)):
            first = memory()
    last = memory()
    return {
        "steps": steps,
        "gap": worst,
        "growth": (last - first) / first,
        "megabytes": round(last / 2**20, 1),
        "ok": worst <= 1e-5 and (last - first) / first < 0.01,
    }


def run_steps(steps: int) -> Row:
    """March in a process of its own, whose memory is nobody else's."""
    words = [sys.executable, "-m", "benchmarks.faults.long_run", str(steps)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT)
    if done.returncode:
        return {"ok": False, "note": done.stderr[-2000:]}
    row: Row = json.loads(done.stdout)
    return row


def found(rows: list[Row]) -> str:
    parts = [
        f"{row['steps']} steps: memory growth {row['growth']:.2%}, multipliers within {row['gap']:.1e}"
        for row in rows
        if "gap" in row
    ]
    return "; ".join(parts)


LINE = Line(
    "million-step run",
    "memory growth < 1 %, multipliers within 1e-5 of a float64 reference",
    lambda short: [f"steps {SHORT if short else STEPS}"],
    lambda case, folder: run_steps(int(case.rpartition(" ")[2])),
    found,
)


if __name__ == "__main__":
    print(json.dumps(march(int(sys.argv[1]))))
