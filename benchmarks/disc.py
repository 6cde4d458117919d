"""PPL's gains on discs with multipliers from 1 to 1000, and the first iterates of six methods on one disc.

    python -m benchmarks.disc          write the records to results/disc/, the table and the picture
    python -m benchmarks.disc --draw   draw the saved records again

The problem is min s ||x - (2, 0)||^2 subject to ||x||^2 <= 1: x* = (1, 0), and the multiplier is s.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.provenance import ROOT, Study, markdown, told
from gdpa import (
    GDPA,
    LIPAL,
    PPL,
    Constant,
    DirectionalDecomposition,
    LinearizedALM,
    Problem,
    SwitchingSubgradient,
    from_functions,
)
from gdpa.paper.records import Row

STUDY = Study("benchmarks.disc", "disc", ("kind", "method", "multiplier"))
PICTURE = ROOT / "docs" / "assets" / "disc-iterates.png"
MULTIPLIERS, STEPS = (1.0, 10.0, 100.0, 1000.0), 20_000
#: The picture: a start outside the disc, and how many iterates are drawn.
START, DRAWN = (-1.2, 1.1), 40
#: The digits that the record keeps.
LEAST = 1e-8


@dataclass(frozen=True)
class HarmonicPPL(PPL):
    """PPL with delta_k = 50 / (k + 1), a gain whose sum diverges slowly."""

    def gain(self, k: int, residual: Any) -> Any:
        return min(1.0, 50 / (k + 1)) / (1 + residual @ residual)


#: The gains compared: as printed, ours, and one between them.
GAINS: dict[str, tuple[type[PPL], dict[str, float]]] = {
    "printed, 0.5 * 0.999^k": (PPL, {"decay": 0.999}),
    "constant, 0.5 (ours)": (PPL, {}),
    "50 / (k + 1)": (HarmonicPPL, {}),
}
#: The methods of the picture, with steps short enough to show their paths.
METHODS: dict[str, Any] = {
    "GDPA": GDPA(alpha=0.1, beta=1.0, tau=0.1),
    "augmented Lagrangian (tau = 0)": LinearizedALM(alpha=Constant(0.1), beta=Constant(1.0)),
    "PPL, constant gain": PPL(eta=0.1),
    "switching subgradient": SwitchingSubgradient(eta=0.2, tolerance=0.01),
    "LIPAL": LIPAL(beta=Constant(1.0), tau=0.1, eta=0.1),
    "directional decomposition": DirectionalDecomposition(eta=0.25),
}


def disc(multiplier: float) -> Problem:
    """Return the problem whose multiplier is ``multiplier``.

    >>> now = disc(10.0).evaluate(np.array([1.0, 0.0]))
    >>> now.constraints.tolist(), now.pullback(np.array([10.0])).tolist()
    ([0.0], [0.0, 0.0])
    """
    center = np.array([2.0, 0.0])
    return from_functions(
        lambda x: multiplier * (x - center) @ (x - center), lambda x: np.array([x @ x - 1]),
        gradient=lambda x: 2 * multiplier * (x - center), jacobian=lambda x: 2 * x[None],
    )  # fmt: skip


def path(method: Any, problem: Problem, start: Any, steps: int) -> list[Any]:
    """Return x_0, x_1, ... of a method."""
    state = method.init(problem, np.array(start))
    found = [state.x]
    for _ in range(steps):
        state = method.update(problem, state)
        found.append(state.x)
    return found


def measure_gains(steps: int = STEPS) -> list[Row]:
    """Return one record for each gain and multiplier: the violation of the last iterate."""
    rows = []
    for name, (kind, options) in GAINS.items():
        for s in MULTIPLIERS:
            method = kind(**options)  # type: ignore[arg-type]
            method = kind(eta=0.1 / (s + 4 * method.rho), **options)  # type: ignore[arg-type]
            last = path(method, disc(s), (0.5, 0.4), steps)[-1]
            rows.append(
                {"kind": "gain", "method": name, "multiplier": s, "violation": max(float(last @ last) - 1, 0.0)}
            )
    return rows


def trace_paths() -> list[Row]:
    """Return one record for each method of the picture: its iterates."""
    rows = []
    for name, method in METHODS.items():
        points = np.round(path(method, disc(1.0), START, DRAWN), 9)
        rows.append({"kind": "path", "method": name, "multiplier": 1.0, "x": points.tolist()})
    return rows


def table(rows: list[Row]) -> str:
    """Return the violations, in Markdown, from the records."""
    gains = [row for row in rows if row["kind"] == "gain"]
    found = {(row["method"], row["multiplier"]): row["violation"] for row in gains}
    lines = [[name, *(f"{found[name, s]:.1e}" for s in MULTIPLIERS)] for name in GAINS]
    head = ["gain of the memory", *(f"multiplier {s:g}" for s in MULTIPLIERS)]
    return f"{markdown(head, lines)}\n\n{told(gains)}"


def draw(rows: list[Row]) -> None:
    """Draw the iterates of the six methods from the records."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    paths = {row["method"]: np.array(row["x"]) for row in rows if row["kind"] == "path"}
    figure, grid = plt.subplots(2, 3, figsize=(9.6, 6.2), layout="constrained", sharex=True, sharey=True)
    turn = np.linspace(0, 2 * np.pi, 200)
    across, up = np.meshgrid(np.linspace(-1.7, 2.2, 100), np.linspace(-1.3, 1.7, 100))
    for ax, (name, points) in zip(grid.flat, paths.items(), strict=True):
        ax.contour(across, up, (across - 2) ** 2 + up**2, levels=12, colors="0.85", linewidths=0.7)
        ax.fill(np.cos(turn), np.sin(turn), color="#dbe9f6", zorder=0)
        ax.plot(np.cos(turn), np.sin(turn), color="#4477aa", linewidth=1)
        ax.plot(*points.T, ".-", color="#222222", markersize=4, linewidth=0.8)
        ax.plot(*points[0], "s", color="#222222", markersize=6)
        ax.plot(1, 0, "*", color="#cc3311", markersize=12, zorder=3)
        error = max(float(np.linalg.norm(points[-1] - (1, 0))), LEAST)
        ax.set_title(
            f"{name}\n{'less than ' if error == LEAST else ''}{error:.0e} from x* after {DRAWN} steps", fontsize=9
        )
        ax.set_aspect("equal")
        ax.set(xlim=(-1.7, 2.2), ylim=(-1.3, 1.7))
    figure.savefig(PICTURE, dpi=110, metadata={"Software": None})
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draw", action="store_true", help="draw the saved records, compute nothing")
    if not parser.parse_args().draw:
        STUDY.replace([*measure_gains(), *trace_paths()])
    rows = STUDY.rows()
    draw(rows)
    text = table(rows)
    STUDY.write(text)
    print(text)


if __name__ == "__main__":
    main()
