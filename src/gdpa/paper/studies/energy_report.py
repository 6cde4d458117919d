"""The report on networks under an energy budget: charts, tables and verdicts from records."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from gdpa.base.typing import Vector
from gdpa.paper.base import Section, Table, Verdict
from gdpa.paper.figures import Chart, Panel, Series
from gdpa.paper.records import Record

Row = Mapping[str, Any]

#: The budgets that the verdicts are about, as shares of the dense energy.
JUDGED = (0.25, 0.1)
#: The color of the dense network, which no method has.
DENSE = 6
#: By method: a dashed line shows a solid one under it, because pruning in equal shares has the uniform widths.
STYLES = ("line", "line", "dashed", "dotted")

INTRODUCTION = (
    "min loss(W) subject to phi(w_u) <= s_u for every hidden width u and psi(S) <= E, a motivating example of the "
    "paper, after Yang et al. (CVPR 2019). GDPA around Adam trains the weights and the widths of a dense network "
    "under the budget; channels that became small are cut out, and the smaller dense network is fine-tuned. "
    "Beside it: pruning the dense network by the norms of its channels, in equal shares or by one ranking over all "
    "widths; and networks whose widths are scaled alike, trained from scratch. What equal shares leave of the "
    "budget is filled channel by channel. Energy is counted for one image: "
    "4.6 pJ per multiply-accumulate and 640 pJ per number moved to or from memory. psi, the bilinear model, is "
    "fitted to 200 counted networks; 'true energy' is the count of the network that results."
)


class Results:
    """The chosen networks of all records, by network, budget and method, one row per seed."""

    def __init__(self, records: Sequence[Record]) -> None:
        self.records = records
        self.networks = tuple(sorted({record.unit.setting for record in records}, reverse=True))
        self.budgets = tuple(sorted({b for record in records for b in record.unit.config["budgets"]}, reverse=True))

    def rows(self, network: str, budget: float, method: str) -> list[Row]:
        """Return one row per seed."""
        chosen = [row for record in self.records if record.unit.setting == network for row in record.summary["chosen"]]
        return [row for row in chosen if row["budget"] == budget and row["method"] == method]

    def dense(self, network: str) -> list[Row]:
        """Return the dense network of each record."""
        return [record.summary["dense"] for record in self.records if record.unit.setting == network]

    def cells(self, *methods: str) -> Iterator[tuple[str, float, str, list[Row]]]:
        """Yield network, budget, method and the rows of each cell that has some."""
        for network in self.networks:
            for budget in self.budgets:
                for method in methods:
                    if rows := self.rows(network, budget, method):
                        yield network, budget, method, rows


def describe(records: Sequence[Record], methods: Sequence[str], scratch: str) -> Section:
    """Return the whole section; the first of ``methods`` is ours."""
    results, everyone = Results(records), (*methods, scratch)
    if not records:
        return Section(INTRODUCTION, (), (), ())
    return Section(
        f"{INTRODUCTION} {_settings(results)}",
        charts=(_accuracy_chart(results, everyone), _widths_chart(results, methods)),
        tables=(
            _accuracy_table(results, everyone),
            _size_table(results, methods[0]),
            _training_table(results, methods),
        ),
        verdicts=_verdicts(results, methods),
    )


def _settings(results: Results) -> str:
    """Return the settings of the runs in words."""
    config = results.records[0].unit.config
    first, under, after = config["epochs"]
    seeds = sorted({record.unit.seed for record in results.records})
    rates = " and ".join(f"{rate:g}" for rate in config["rates"])
    errors = ", ".join(
        f"{100 * max(r.summary['fit_error'] for r in results.records if r.unit.setting == network):.2g} % ({network})"
        for network in results.networks
    )
    return (
        f"{config['images']} training images, seed{'s' if len(seeds) > 1 else ''} "
        f"{', '.join(map(str, seeds))}; settings were chosen on seed 0 by the held-out images. Every method has "
        f"{first + under + after} epochs: GDPA {first} dense, {under} under the budget, {after} of fine-tuning; "
        f"pruning {first} dense and {under + after} of fine-tuning; uniform widths all of them. Steps of Adam "
        f"tried: {rates}; the variant that is best on 5000 held-out images counts. psi differs from the "
        f"counts it is fitted to by at most {errors} of the dense energy."
    )


def _curve(method: str, color: int, x: Any, values: Vector) -> list[Series]:
    """Return a line with its band, and points on it; ``values`` has a row per seed."""
    mean = values.mean(axis=0)
    line = Series(method, x, mean, STYLES[color], color, values.min(axis=0), values.max(axis=0))
    return [line, Series(method, x, mean, "points", color)]


def _accuracy_chart(results: Results, methods: Sequence[str]) -> Chart:
    """Return test accuracy against the energy used, one panel per network."""
    panels = []
    for network in results.networks:
        series: list[Series] = []
        for color, method in enumerate(methods):
            found = [rows for budget in results.budgets if (rows := results.rows(network, budget, method))]
            if found:
                energy = [100 * float(np.mean([row["energy"] for row in rows])) for rows in found]
                series += _curve(method, color, energy, np.array([[row["test"] for row in rows] for rows in found]).T)
        ends = [100 * min(results.budgets), 100 * max(results.budgets)]
        dense = float(np.mean([row["test"] for row in results.dense(network)]))
        series.append(Series("dense network", ends, [dense, dense], "dashed", DENSE))
        panels.append(Panel(network, "true energy (% of dense)", "test accuracy (%)", series, log_x=False, log_y=False))
    return Chart(
        "energy-accuracy",
        "Test accuracy against energy",
        "Lines: means over seeds; bands: least and most. All methods have the same number of epochs in all; the dense "
        "network has fewer, those before pruning.",
        panels,
        columns=2,
    )


def _widths_chart(results: Results, methods: Sequence[str]) -> Chart:
    """Return the share of channels kept in every hidden width, one panel per network and budget."""
    panels = []
    for network in results.networks:
        full = _widths(results.dense(network)[0])
        places = np.arange(1, len(full) + 1)
        ticks = {float(place): f"{place} (of {width})" for place, width in zip(places, full, strict=True)}
        for budget in results.budgets:
            series: list[Series] = []
            for color, method in enumerate(methods):
                if rows := results.rows(network, budget, method):
                    series += _curve(method, color, places, np.array([_widths(row) for row in rows]) / full * 100)
            name = f"{network}, {budget:.0%} of the energy"
            panels.append(Panel(name, "hidden width u", "channels kept (%)", series, False, False, ticks))
    return Chart(
        "energy-widths",
        "Channels that are kept in each hidden width",
        "Shares of the dense widths, which stand in brackets. Lines: means over seeds; bands: least and most.",
        panels,
        columns=max(1, len(results.budgets)),
    )


def _widths(row: Row) -> Vector:
    return np.array([int(width) for width in row["widths"].split("-")])


def _accuracy_table(results: Results, methods: Sequence[str]) -> Table:
    rows: list[list[Any]] = []
    for network, budget, method, found in results.cells(*methods):
        dense, ours = results.dense(network), results.rows(network, budget, methods[0])
        if network not in {row[0] for row in rows}:
            rows.append([network, "all", "dense", dense[0]["widths"], 1.0, _spread(dense, "test"), None, None])
        gap = np.mean([row["test"] for row in ours]) - np.mean([row["test"] for row in found]) if ours else None
        before = _spread(found, "before fine-tuning") if "before fine-tuning" in found[0] else None
        better = None if method == methods[0] or gap is None else f"{gap:+.2f}"
        widths, most = ", ".join(row["widths"] for row in found), max(row["energy"] for row in found)
        rows.append([network, f"{budget:.0%}", method, widths, most, _spread(found, "test"), before, better])
    head = (
        *("network", "budget", "method", "widths, by seed", "largest true energy / dense"),
        *("test accuracy in %", "before fine-tuning", "GDPA is better by"),
    )
    return Table("Accuracy at equal energy: means over seeds, in brackets least and most", head, rows)


def _ratios(results: Results, network: str, found: Sequence[Row]) -> list[float]:
    """Return how many times smaller parameters, multiply-accumulates and time of a call are than the dense ones."""
    dense = results.dense(network)[0]
    sizes = [min(dense[name] / row[name] for row in found) for name in ("parameters", "macs")]
    return [*sizes, min(row["dense seconds"] / row["seconds"] for row in found)]


def _size_table(results: Results, method: str) -> Table:
    rows = []
    for network, budget, _, found in results.cells(method):
        parameters, macs, times = _ratios(results, network, found)
        numbers = (parameters, macs, min(1 / row["energy"] for row in found), times)
        rows.append([network, f"{budget:.0%}", *(f"{number:.1f}" for number in numbers)])
    head = ("network", "budget", "parameters", "multiply-accumulates", "energy", "time of a call with 256 images")
    return Table(f"How many times smaller the network of {method} is than the dense one (least over seeds)", head, rows)


def _training_table(results: Results, methods: Sequence[str]) -> Table:
    rows: list[list[Any]] = []
    for network, budget, method, found in results.cells(*methods):
        tried = {
            str(variant)
            for record in results.records
            if record.unit.setting == network and record.unit.method == method and record.columns
            for name, variant in zip(record.columns["method"], record.columns["variant"], strict=True)
            if name == method
        }
        prices = [", ".join(f"{row[key]:.3g}" for key in row if key.startswith("price of ")) for row in found]
        violations = [f"{row['largest violation']:.3f}" for row in found if "largest violation" in row]
        cells = ("; ".join(prices) if any(prices) else None, ", ".join(violations) or None)
        chosen = "; ".join(row["variant"] for row in found)
        rows.append([network, f"{budget:.0%}", method, len(tried), chosen, *cells])
    head = (
        *("network", "budget", "method", "variants tried", "chosen, by seed"),
        *("GDPA's multipliers (widths, energy)", "largest violation before pruning"),
    )
    return Table("Variants and multipliers", head, rows)


def _verdicts(results: Results, methods: Sequence[str]) -> list[Verdict]:
    """Judge energy, accuracy beside each rival, and size at each judged budget."""

    def inside(network: str, budget: float, found: Sequence[Row]) -> tuple[bool, str]:
        shares = ", ".join(f"{100 * row['energy']:.2f} %" for row in found)
        return all(row["energy"] <= budget for row in found), f"{shares}."

    def smaller(network: str, budget: float, found: Sequence[Row]) -> tuple[bool, str]:
        parameters, macs, times = _ratios(results, network, found)
        return min(parameters, macs, times) > 1, (
            f"{parameters:.1f} times fewer parameters, {macs:.1f} times fewer multiply-accumulates, a call "
            f"{times:.1f} times as fast."
        )

    def as_good(rival: str) -> Callable[[str, float, Sequence[Row]], tuple[bool, str] | None]:
        def judge(network: str, budget: float, found: Sequence[Row]) -> tuple[bool, str] | None:
            others = results.rows(network, budget, rival)
            if not others:
                return None
            ours, theirs = (np.array([row["test"] for row in rows]) for rows in (found, others))
            gap = ours.mean() - theirs.mean()
            several = 1 < len(ours) == len(theirs)
            each = f" (by seed {', '.join(f'{value:+.2f}' for value in ours - theirs)})" if several else ""
            return bool(gap >= 0), f"{'better' if gap >= 0 else 'worse'} by {abs(gap):.2f} points{each}."

        return judge

    claims: dict[str, tuple[str, Callable[..., tuple[bool, str] | None]]] = {
        "The pruned network's true energy is inside the budget in every seed.": (
            "Shares of the dense energy, by seed. ",
            inside,
        ),
        **{
            f"{methods[0]}'s test accuracy is at least that of {rival} at the same energy.": ("", as_good(rival))
            for rival in methods[1:]
        },
        "The pruned network is really smaller: parameters, multiply-accumulates and time of a call on the CPU.": (
            "",
            smaller,
        ),
    }
    verdicts = []
    for claim, (opening, judge) in claims.items():
        marks, words = [], []
        for network, budget, _, found in results.cells(methods[0]):
            if budget in JUDGED and (judged := judge(network, budget, found)) is not None:
                marks.append(judged[0])
                words.append(f"{network}, {budget:.0%}: {judged[1]}")
        verdicts.append(Verdict(claim, all(marks) if marks else None, opening + " ".join(words), ours=True))
    return verdicts


def _spread(rows: Sequence[Row], name: str) -> str:
    """Return a mean, with its range if there is one.

    >>> _spread([{"test": 97.5}], "test"), _spread([{"test": 97.0}, {"test": 98.0}], "test")
    ('97.50', '97.50 (97.00 to 98.00)')
    """
    values = np.array([row[name] for row in rows])
    mean = f"{values.mean():.2f}"
    return mean if values.min() == values.max() else f"{mean} ({values.min():.2f} to {values.max():.2f})"
