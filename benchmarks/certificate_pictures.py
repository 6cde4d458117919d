"""Which points the certificate accepts, and which the measure before it accepted, in several units.

    python -m benchmarks.certificate_pictures          write the records to results/certificate/ and draw them
    python -m benchmarks.certificate_pictures --draw   draw the saved records again

The measure before it, here the *product form*, with s_f as in `gdpa.core.units.Units` (s there)::

    s_g          = ||g(x0)||_inf, clipped to [1e-3, 1]
    stationarity = ||grad f + J^T lambda||_inf / s_f
    feasibility  = ||g_+||_inf / s_g
    slackness    = sum_i |lambda_i g_i| / (s_g max(s_f, sum_i lambda_i))

Both measures see the same points, and each is given the multiplier that suits it best among `SHARES` of the one of
least squares.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from benchmarks.provenance import ROOT, Study, told
from gdpa import Evaluation, Problem
from gdpa.core.certificate import relative_residuals
from gdpa.core.units import lengths_of, reference_at, units_at
from gdpa.paper.records import Row

STUDY = Study("benchmarks.certificate_pictures", "certificate", ("picture",))
PICTURES = ROOT / "docs" / "assets"
MEASURES = ("product form", "gdpa")
SHARES = np.linspace(0.0, 1.0, 41)
#: The points (t, 0) of the first picture, in units of the disc's radius.
AXIS = np.linspace(-0.2, 2.6, 281)
#: The points of the second picture and the slope of its constraint.
ALONG, STEEP = np.linspace(-1.0, 3.0, 401), 1e6
#: Below this a residual is drawn as this: the logarithm of zero cannot be.
LEAST = 1e-12
#: The tolerance of the pictures, and how far from the solution a point is wrong for certain.
TOLERANCE, FAR = 1e-4, 0.1


class Change(NamedTuple):
    """f, g and x are multiplied by these."""

    f: float = 1.0
    g: float = 1.0
    x: float = 1.0


CHANGES = {"as written": Change(), "g times 1e-8": Change(g=1e-8), "x times 1e-5": Change(x=1e-5)}


def in_units(problem: Problem, by: Change) -> Problem:
    """Return the problem with f, g and x multiplied by the factors of ``by``.

    >>> from gdpa import certify
    >>> from gdpa import problems
    >>> hs = problems.get("HS12")
    >>> moved = in_units(hs.problem, Change(f=10.0, x=2.0))
    >>> certify(moved, 2 * hs.solution).multipliers.round(6).tolist()  # 10 times those of HS12
    [5.0]
    """

    def evaluate(x: Any) -> Evaluation:
        now = problem.evaluate(x / by.x)

        def pullback(w: Any, objective: Any = 1.0) -> Any:
            return now.pullback(by.g * w, by.f * objective) / by.x

        return Evaluation(by.f * now.objective, by.g * now.constraints, pullback, lambda: by.g * now.jacobian() / by.x)

    return replace(problem, evaluate=evaluate)


def disc() -> Problem:
    """Return min (x0 - 2)^2 + x1^2 subject to x0^2 + x1^2 <= 1, for any number of points at once."""
    center = np.array([2.0, 0.0])

    def evaluate(x: Any) -> Evaluation:
        def pullback(w: Any, objective: Any = 1.0) -> Any:
            return objective * 2 * (x - center) + w * 2 * x

        return Evaluation(((x - center) ** 2).sum(-1), (x**2).sum(-1, keepdims=True) - 1, pullback)

    return Problem(evaluate, num_constraints=1)


def steep() -> Problem:
    """Return min (x - 1)^2 subject to sin(1e6 x) - 2 <= 0, which always holds, for any number of points at once."""

    def evaluate(x: Any) -> Evaluation:
        def pullback(w: Any, objective: Any = 1.0) -> Any:
            return objective * 2 * (x - 1) + w * STEEP * np.cos(STEEP * x)

        return Evaluation(((x - 1) ** 2)[..., 0], np.sin(STEEP * x) - 2, pullback)

    return Problem(evaluate, num_constraints=1)


def product_form(start: Evaluation, now: Evaluation, multipliers: Any) -> Any:
    """Return the largest residual of the product form, see above."""
    gradient, sizes = now.gradient(), np.abs(multipliers)
    s_f = np.maximum(np.abs(gradient).max(-1), min(1.0, np.abs(start.gradient()).max()))
    s_g = np.clip(np.abs(start.constraints).max(), 1e-3, 1.0)
    stationarity = np.abs(now.pullback(multipliers)).max(-1) / s_f
    feasibility = np.maximum(now.constraints, 0).max(-1) / s_g
    slackness = (sizes * np.abs(now.constraints)).sum(-1) / (s_g * np.maximum(s_f, sizes.sum(-1)))
    return np.maximum(np.maximum(stationarity, feasibility), slackness)


def both(problem: Problem, x0: Any, x: Any) -> list[Any]:
    """Return the residual of each point by each measure, with the multiplier that suits it best (one constraint)."""
    first, now = problem.evaluate(x0), problem.evaluate(x)
    units = units_at(lengths_of(None, x), reference_at(first, x0), x, now)
    row = now.jacobian()[..., 0, :]
    least_squares = np.maximum(0.0, -(now.gradient() * row).sum(-1) / (row**2).sum(-1).clip(1e-300))[..., None]
    found = []
    for share in SHARES:
        lam = share * least_squares
        own = relative_residuals(problem.domain, x, now.pullback(lam), now.constraints, lam, units)
        found.append((product_form(first, now, lam), own.worst))
    return [np.maximum(np.min(values, axis=0), LEAST) for values in zip(*found, strict=True)]


def axis() -> None:
    """Judge the points of the axis through the solution of the disc problem, in each of the units of `CHANGES`."""
    y = np.stack([AXIS, 0 * AXIS], axis=-1)
    columns, names = [AXIS], ["x0"]
    for name, by in CHANGES.items():
        columns += both(in_units(disc(), by), by.x * np.array([0.5, 0.5]), by.x * y)
        names += [f"{measure}, {name}" for measure in MEASURES]
    write("disc", names, columns)


def slopes() -> None:
    """Judge points along the line beside the steep constraint."""
    x = ALONG[:, None]
    write("steep", ["x", *MEASURES], [ALONG, *both(steep(), np.array([0.3]), x)])


def write(name: str, names: list[str], columns: list[Any]) -> None:
    rounded = [[float(f"{value:.4g}") for value in column] for column in columns]
    STUDY.add({"picture": name, "columns": dict(zip(names, rounded, strict=True))})


def read(name: str, rows: list[Row] | None = None) -> dict[str, Any]:
    (record,) = (row for row in (STUDY.rows() if rows is None else rows) if row["picture"] == name)
    return {name: np.array(values) for name, values in record["columns"].items()}


def draw() -> None:
    """Draw the pictures from the records."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    from gdpa.paper.figures import COLORS

    plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    draw_disc(plt, COLORS)
    draw_steep(plt, COLORS)


def draw_disc(plt: Any, colors: Any) -> None:
    record = read("disc")
    figure, axes = plt.subplots(1, len(CHANGES), figsize=(8.6, 3.2), sharex=True, sharey=True, layout="constrained")
    for ax, name in zip(axes, CHANGES, strict=True):
        for measure, color, style in zip(MEASURES, (colors[1], colors[0]), ("dashed", "solid"), strict=True):
            values = record[f"{measure}, {name}"]
            ax.semilogy(record["x0"], values, color=color, linestyle=style, linewidth=1.8, label=measure)
            if measure == MEASURES[0]:
                ax.fill_between(record["x0"], 1e-9, TOLERANCE, where=values <= TOLERANCE, color=color, alpha=0.25)
        ax.axhline(TOLERANCE, color="0.35", linewidth=1, linestyle="dotted")
        ax.axvline(1.0, color="0.35", linewidth=1, linestyle="dotted")
        ax.set_title(name)
        ax.set_xlabel("x0 / radius, x1 = 0")
    axes[0].annotate("tolerance 1e-4", (-0.2, TOLERANCE), (2, 3), textcoords="offset points")
    axes[0].annotate("solution", (1.0, 3e-9), (4, 0), textcoords="offset points")
    axes[0].set_ylim(1e-9, 10)
    axes[0].set_ylabel("largest relative residual")
    handles, labels = axes[0].get_legend_handles_labels()
    band = plt.Rectangle((0, 0), 1, 1, color=colors[1], alpha=0.25)
    names = [*labels, "accepted by the product form"]
    figure.legend([*handles, band], names, loc="outside lower center", ncols=3, frameon=False)
    save(plt, figure, "certificate-disc")


def draw_steep(plt: Any, colors: Any) -> None:
    record = read("steep")
    figure, ax = plt.subplots(figsize=(6.4, 3.4), layout="constrained")
    for measure, color, marker in zip(MEASURES, (colors[1], colors[0]), ("x", "o"), strict=True):
        ax.semilogy(record["x"], record[measure], marker, color=color, markersize=3.5, label=measure)
    ax.axhline(TOLERANCE, color="0.35", linewidth=1, linestyle="dashed")
    ax.annotate("tolerance 1e-4", (3.0, TOLERANCE), (0, 3), textcoords="offset points", ha="right")
    ax.axvline(1.0, color="0.35", linewidth=1, linestyle="dotted")
    ax.annotate("solution", (1.0, 1e-9), (4, 0), textcoords="offset points")
    ax.set_ylim(3e-10, 10)
    ax.set_xlabel("x")
    ax.set_ylabel("largest relative residual")
    ax.legend(loc="lower left", frameon=False)
    save(plt, figure, "certificate-steep")


def save(plt: Any, figure: Any, name: str) -> None:
    figure.savefig(PICTURES / f"{name}.png", dpi=110, metadata={"Software": None})
    plt.close(figure)
    print(f"docs/assets/{name}.png")


def summary(rows: list[Row]) -> str:
    """Return how many wrong points each measure accepts, in Markdown, from the records."""
    on_axis, along = read("disc", rows), read("steep", rows)
    cases = [("disc, " + name, on_axis["x0"], {m: on_axis[f"{m}, {name}"] for m in MEASURES}) for name in CHANGES]
    cases.append(("steep constraint that is never active", along["x"], along))
    lines = [
        f"Points further than {FAR:g} from the solution, x = 1, that are accepted at {TOLERANCE:g}:",
        "",
        f"| problem | {' | '.join(MEASURES)} |",
        "|---|---|---|",
    ]
    for name, x, values in cases:
        far = np.abs(x - 1) > FAR
        counts = [f"{np.sum(far & (values[measure] <= TOLERANCE))} of {far.sum()}" for measure in MEASURES]
        lines.append(f"| {name} | {' | '.join(counts)} |")
    return "\n".join([*lines, "", told(rows)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draw", action="store_true", help="draw the saved records, compute nothing")
    if not parser.parse_args().draw:
        axis()
        slopes()
        STUDY.tidy()
    draw()
    text = summary(STUDY.rows())
    STUDY.write(text)
    print(text)


if __name__ == "__main__":
    main()
