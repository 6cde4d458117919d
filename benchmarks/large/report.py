"""Tables and figures from the saved records alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.provenance import told

Row = dict[str, Any]
LEVELS = ("0.01", "0.001", "1e-05")
TITLES = {
    "mnpc": "Neyman-Pearson classification of MNIST, digits 1 to 4",
    "disjoint": "Populations with data of their own: a Jacobian is one pass",
    "shared": "Groups through one network: a Jacobian is m backward passes",
}
OURS = "AdaptiveGDPA"


def line(row: Row) -> str:
    """One run in one line."""
    hits = ", ".join(f"{k}: {h['forwards']:g}/{h['backwards']:g} {h['seconds']:.2f} s" for k, h in row["hits"].items())
    return f"{row['case']} {row['solver']}: {hits or 'no level met'} ({row['ended']})"


def tables(rows: list[Row]) -> str:
    """One table a case, in Markdown, with how many times longer the others took than ours."""
    parts = []
    for family, title in TITLES.items():
        names = sorted({r["case"] for r in rows if r["case"].partition("-")[0] == family}, key=_size)
        if names:
            parts += [f"### {title}", ""]
        for name in names:
            parts += [_table([r for r in rows if r["case"] == name]), ""]
    return "\n".join([*parts, told(rows)]).rstrip() or "No records yet."


def _size(name: str) -> int:
    size = name.partition("-")[2]
    return int(size) if size else 10**9


def _table(rows: list[Row]) -> str:
    known = next((r for r in rows if "d" in r), None)
    facts = f"d = {known['d']}, m = {known['m']}" if known else "no run"
    lines = [
        f"`{rows[0]['case']}`: {facts}. Forwards / backwards and one-thread CPU seconds to the first KKT point of each "
        f"level, and how many times {OURS}'s seconds that is.",
        "",
        f"| solver | {' | '.join(f'{float(level):g}' for level in LEVELS)} | ended |",
        "|---|---|---|---|---|",
    ]
    ours: Row = next((r["hits"] for r in rows if r["solver"] == OURS), {})
    for row in rows:
        cells = []
        for level in LEVELS:
            hit = row["hits"].get(level)
            if hit is None:
                cells.append("not reached")
                continue
            cell = f"{hit['forwards']} / {hit['backwards']}, {hit['seconds']:.2f} s"
            if row["solver"] != OURS and level in ours:
                cell += f" ({hit['seconds'] / ours[level]['seconds']:.1f}x)"
            cells.append(cell)
        own = row.get("own")
        ended = f"budget of {row['budget']:g} s" if row["ended"] == "budget" else row["ended"]
        if own:
            ended = f"{own['status'].lower()} after {row['forwards']} forwards"
        lines.append(f"| {row['solver']} | {' | '.join(cells)} | {ended} |")
    return "\n".join(lines)


def figures(rows: list[Row], out: Path) -> None:
    """The residual against seconds for every case, and seconds to each level against m for the two families."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.lines import Line2D
    from matplotlib.ticker import LogLocator

    solvers = list(dict.fromkeys(r["solver"] for r in rows))
    colors = {solver: plt.get_cmap("tab10")(i % 10) for i, solver in enumerate(solvers)}
    names = sorted(
        {r["case"] for r in rows}, key=lambda name: (list(TITLES).index(name.partition("-")[0]), _size(name))
    )
    if not names:
        return
    columns = min(3, len(names))
    count = -(-len(names) // columns)
    fig, grid = plt.subplots(count, columns, figsize=(5.2 * columns, 3.9 * count), squeeze=False, layout="constrained")
    for axes, name in zip(grid.flat, names, strict=False):
        for row in (r for r in rows if r["case"] == name):
            points = [(seconds, residual) for _, _, seconds, residual, _ in row.get("trace", [])]
            if points:
                style = {"color": colors[row["solver"]], "linewidth": 2.4 if row["solver"] == OURS else 1.2}
                best = [min(r for _, r in points[: i + 1]) for i in range(len(points))]
                axes.step([s for s, _ in points], best, where="post", **style)
                axes.plot(points[-1][0], best[-1], "o", color=style["color"], markersize=4)
        axes.set(title=name, xscale="log", yscale="log", xlabel="CPU seconds, one thread")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter("")
        for level in LEVELS:
            axes.axhline(float(level), color="0.8", linewidth=0.8, zorder=0)
    for axes in grid.flat[len(names) :]:
        axes.axis("off")
    for row in grid:
        row[0].set_ylabel("least KKT residual so far")
    handles = [Line2D([], [], color=colors[s], linewidth=2.4 if s == OURS else 1.2, label=s) for s in solvers]
    fig.legend(handles=handles, loc="outside right center", frameon=False)
    _save(fig, out / "residuals")

    families = [f for f in ("disjoint", "shared") if any(name.startswith(f"{f}-") for name in names)]
    if not families:
        return
    fig, grid = plt.subplots(
        len(families),
        len(LEVELS),
        figsize=(5.2 * len(LEVELS), 3.9 * len(families)),
        squeeze=False,
        layout="constrained",
    )
    for family, line_of_axes in zip(families, grid, strict=True):
        for level, axes in zip(LEVELS, line_of_axes, strict=True):
            for solver in solvers:
                hits = sorted(
                    (r["m"], r["hits"][level]["seconds"])
                    for r in rows
                    if r["solver"] == solver and r["case"].startswith(f"{family}-") and level in r["hits"]
                )
                missed = [
                    (r["m"], r["budget"])
                    for r in rows
                    if r["solver"] == solver
                    and r["case"].startswith(f"{family}-")
                    and level not in r["hits"]
                    and "m" in r
                ]
                for place in missed:
                    axes.plot(*place, "x", color=colors[solver], markersize=8)
                if hits:
                    axes.plot(
                        *zip(*hits, strict=True), "o-", color=colors[solver], linewidth=2.4 if solver == OURS else 1.2
                    )
            axes.set(title=f"{family}, KKT {float(level):g}", xscale="log", yscale="log", xlabel="m")
            axes.set_xticks([3, 30, 300], ["3", "30", "300"], minor=False)
            axes.minorticks_off()
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.yaxis.set_major_formatter("{x:g}")
        line_of_axes[0].set_ylabel("CPU seconds, one thread (cross: budget spent)")
    grown = {r["solver"] for r in rows if r["case"].partition("-")[0] in families}
    handles = [handle for handle in handles if handle.get_label() in grown]
    fig.legend(handles=handles, loc="outside right center", frameon=False)
    _save(fig, out / "growth")


def _save(fig: Any, stem: Path) -> None:
    import matplotlib.pyplot as plt

    fig.savefig(stem.with_suffix(".png"), dpi=130)
    plt.close(fig)
