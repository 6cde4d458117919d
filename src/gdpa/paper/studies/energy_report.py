"""What the report says of networks under an energy budget: charts, tables and verdicts from records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gdpa.paper.base import Section, Table, Verdict
from gdpa.paper.figures.chart import Chart, Panel, Series
from gdpa.paper.records.folder import Record

#: The budgets that the verdicts are about, as shares of the dense energy.
JUDGED = (0.25, 0.1)
#: The color of the dense network, which no method has.
DENSE = 6
#: By method: a dashed line shows a solid one under it, because pruning in equal shares has the uniform widths.
STYLES = ("line", "line", "dashed", "dotted")


class Results:
    """The chosen networks of all records, by network, budget and method."""

    def __init__(self, records: Sequence[Record]) -> None:
        self.records = records
        self.networks = tuple(sorted({record.unit.setting for record in records}, reverse=True))
        self.budgets = tuple(sorted({b for record in records for b in record.unit.config["budgets"]}, reverse=True))

    def rows(self, network: str, budget: float, method: str) -> list[Mapping[str, Any]]:
        """Return one row per seed."""
        return [
            row
            for record in self.records
            if record.unit.setting == network
            for row in record.summary["chosen"]
            if row["budget"] == budget and row["method"] == method
        ]

    def dense(self, network: str) -> list[Mapping[str, Any]]:
        """Return what is known of the dense network, one row per record."""
        return [record.summary["dense"] for record in self.records if record.unit.setting == network]

    def values(self, network: str, budget: float, method: str, name: str) -> np.ndarray[Any, np.dtype[Any]]:
        """Return one number per seed."""
        return np.array([row[name] for row in self.rows(network, budget, method)], dtype=float)


def describe(records: Sequence[Record], methods: Sequence[str], scratch: str) -> Section:
    """Return the whole section; the first of ``methods`` is ours."""
    results = Results(records)
    if not records:
        return Section(_introduction(results), (), (), ())
    everyone = (*methods, scratch)
    return Section(
        _introduction(results),
        charts=(_accuracy_chart(results, everyone), _widths_chart(results, methods)),
        tables=(
            _accuracy_table(results, everyone),
            _size_table(results, methods[0]),
            _training_table(results, methods),
        ),
        verdicts=(
            _inside(results, methods[0]),
            *(_as_good(results, methods[0], rival) for rival in methods[1:]),
            _smaller(results, methods[0]),
        ),
    )


def _introduction(results: Results) -> str:
    words = (
        "min loss(W) subject to phi(w_u) <= s_u for every hidden width u and psi(S) <= E, a motivating example of the "
        "paper, after Yang et al. (CVPR 2019). GDPA around Adam trains the weights and the widths of a dense network "
        "under the budget; channels that became small are cut out, and the smaller dense network is fine-tuned. "
        "Beside it: pruning the dense network by the norms of its channels, in equal shares or by one ranking over all "
        "widths; and networks whose widths are scaled alike, trained from scratch. What equal shares leave of the "
        "budget is filled channel by channel. Energy is counted for one image: "
        "4.6 pJ per multiply-accumulate and 640 pJ per number moved to or from memory. psi, the bilinear model, is "
        "fitted to 200 counted networks; 'true energy' is the count of the network that results."
    )
    if not results.records:
        return words
    config = results.records[0].unit.config
    first, under, after = config["epochs"]
    seeds = sorted({record.unit.seed for record in results.records})
    rates = " and ".join(f"{rate:g}" for rate in config["rates"])
    errors = ", ".join(
        f"{100 * max(r.summary['fit_error'] for r in results.records if r.unit.setting == network):.2g} % ({network})"
        for network in results.networks
    )
    return (
        f"{words} {config['images']} training images, seed{'s' if len(seeds) > 1 else ''} "
        f"{', '.join(map(str, seeds))}; settings were chosen on seed 0 by the held-out images. Every method has "
        f"{first + under + after} epochs: GDPA {first} dense, {under} under the budget, {after} of fine-tuning; "
        f"pruning {first} dense and {under + after} of fine-tuning; uniform widths all of them. Steps of Adam "
        f"tried: {rates}; the variant that is best on 5000 held-out images counts. psi differs from the "
        f"counts it is fitted to by at most {errors} of the dense energy."
    )


def _accuracy_chart(results: Results, methods: Sequence[str]) -> Chart:
    """Return test accuracy against the energy used, one panel per network."""
    panels = []
    for network in results.networks:
        series = []
        for color, method in enumerate(methods):
            found = [rows for budget in results.budgets if (rows := results.rows(network, budget, method))]
            if not found:
                continue
            energy = [100 * float(np.mean([row["energy"] for row in rows])) for rows in found]
            tests = [[row["test"] for row in rows] for rows in found]
            middle, low, high = ([float(pick(values)) for values in tests] for pick in (np.mean, min, max))
            series.append(Series(method, energy, middle, STYLES[color], color, low, high))
            series.append(Series(method, energy, middle, "points", color))
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
        full = np.array([int(width) for width in results.dense(network)[0]["widths"].split("-")])
        places = np.arange(1, len(full) + 1)
        for budget in results.budgets:
            series = []
            for color, method in enumerate(methods):
                rows = results.rows(network, budget, method)
                if not rows:
                    continue
                shares = np.array([[int(width) for width in row["widths"].split("-")] for row in rows]) / full * 100
                band = (shares.min(axis=0), shares.max(axis=0))
                series.append(Series(method, places, shares.mean(axis=0), STYLES[color], color, *band))
                series.append(Series(method, places, shares.mean(axis=0), "points", color))
            title = f"{network}, {budget:.0%} of the energy"
            ticks = {float(place): f"{place} (of {width})" for place, width in zip(places, full, strict=True)}
            panels.append(Panel(title, "hidden width u", "channels kept (%)", series, False, False, ticks))
    return Chart(
        "energy-widths",
        "Channels that are kept in each hidden width",
        "Shares of the dense widths, which stand in brackets. Lines: means over seeds; bands: least and most.",
        panels,
        columns=max(1, len(results.budgets)),
    )


def _accuracy_table(results: Results, methods: Sequence[str]) -> Table:
    rows: list[list[Any]] = []
    for network in results.networks:
        dense = results.dense(network)
        tests = np.array([row["test"] for row in dense])
        rows.append([network, "all", "dense", dense[0]["widths"], 1.0, _spread(tests), None, None])
        for budget in results.budgets:
            ours = results.values(network, budget, methods[0], "test")
            for method in methods:
                found = results.rows(network, budget, method)
                if not found:
                    continue
                tests = np.array([row["test"] for row in found])
                before = np.array([row.get("before fine-tuning", np.nan) for row in found])
                rows.append(
                    [
                        network,
                        f"{budget:.0%}",
                        method,
                        ", ".join(row["widths"] for row in found),
                        max(row["energy"] for row in found),
                        _spread(tests),
                        None if np.isnan(before).any() else _spread(before),
                        None if method == methods[0] or not len(ours) else f"{ours.mean() - tests.mean():+.2f}",
                    ]
                )
    head = (
        "network", "budget", "method", "widths, by seed", "largest true energy / dense",
        "test accuracy in %", "before fine-tuning", "GDPA is better by",
    )  # fmt: skip
    return Table("Accuracy at equal energy: means over seeds, in brackets least and most", head, rows)


def _size_table(results: Results, method: str) -> Table:
    rows: list[list[Any]] = []
    for network in results.networks:
        for budget in results.budgets:
            found = results.rows(network, budget, method)
            if found:
                dense = results.dense(network)[0]
                times = np.array([row["dense seconds"] / row["seconds"] for row in found])
                rows.append(
                    [
                        network,
                        f"{budget:.0%}",
                        _ratio([dense["parameters"] / row["parameters"] for row in found]),
                        _ratio([dense["macs"] / row["macs"] for row in found]),
                        _ratio([1 / row["energy"] for row in found]),
                        _ratio(times),
                    ]
                )
    head = ("network", "budget", "parameters", "multiply-accumulates", "energy", "time of a call with 256 images")
    return Table(f"How many times smaller the network of {method} is than the dense one (least over seeds)", head, rows)


def _training_table(results: Results, methods: Sequence[str]) -> Table:
    rows: list[list[Any]] = []
    for network in results.networks:
        for budget in results.budgets:
            for method in methods:
                found = results.rows(network, budget, method)
                if not found:
                    continue
                tried = {
                    str(variant)
                    for record in results.records
                    if record.unit.setting == network and record.unit.method == method and record.columns
                    for name, variant in zip(record.columns["method"], record.columns["variant"], strict=True)
                    if name == method
                }
                prices = [
                    ", ".join(f"{value:.3g}" for key, value in row.items() if key.startswith("price of "))
                    for row in found
                ]
                violations = [f"{row['largest violation']:.3f}" for row in found if "largest violation" in row]
                chosen = "; ".join(row["variant"] for row in found)
                cells = ("; ".join(prices) if any(prices) else None, ", ".join(violations) or None)
                rows.append([network, f"{budget:.0%}", method, len(tried), chosen, *cells])
    head = (
        "network", "budget", "method", "variants tried", "chosen, by seed",
        "GDPA's multipliers (widths, energy)", "largest violation before pruning",
    )  # fmt: skip
    return Table("Variants and multipliers", head, rows)


def _inside(results: Results, method: str) -> Verdict:
    cases = _cases(results, method)
    shares = [results.values(*case, method, "energy") for case in cases]
    marks = [bool((values <= case[1]).all()) for case, values in zip(cases, shares, strict=True)]
    words = [
        f"{network}, {budget:.0%}: {', '.join(f'{100 * value:.2f} %' for value in values)}."
        for (network, budget), values in zip(cases, shares, strict=True)
    ]
    claim = "The pruned network's true energy is inside the budget in every seed."
    return Verdict(
        claim, all(marks) if marks else None, f"Shares of the dense energy, by seed. {' '.join(words)}", ours=True
    )


def _as_good(results: Results, method: str, rival: str) -> Verdict:
    """Judge by means over seeds whether ours is at least as accurate at each judged budget."""
    words, marks = [], []
    for network, budget in _cases(results, method):
        ours, theirs = (results.values(network, budget, name, "test") for name in (method, rival))
        if not len(theirs):
            continue
        gap = ours.mean() - theirs.mean()
        marks.append(bool(gap >= 0))
        each = "" if len(ours) < 2 or len(ours) != len(theirs) else f" (by seed {_signed(ours - theirs)})"
        side = "better" if gap >= 0 else "worse"
        words.append(f"{network}, {budget:.0%}: {side} by {abs(gap):.2f} points{each}.")
    claim = f"{method}'s test accuracy is at least that of {rival} at the same energy."
    return Verdict(claim, all(marks) if marks else None, " ".join(words), ours=True)


def _smaller(results: Results, method: str) -> Verdict:
    words, marks = [], []
    for network, budget in _cases(results, method):
        dense, found = results.dense(network)[0], results.rows(network, budget, method)
        parameters = min(dense["parameters"] / row["parameters"] for row in found)
        macs = min(dense["macs"] / row["macs"] for row in found)
        times = min(row["dense seconds"] / row["seconds"] for row in found)
        marks.append(min(parameters, macs, times) > 1)
        words.append(
            f"{network}, {budget:.0%}: {parameters:.1f} times fewer parameters, {macs:.1f} times fewer "
            f"multiply-accumulates, a call {times:.1f} times as fast."
        )
    claim = "The pruned network is really smaller: parameters, multiply-accumulates and time of a call on the CPU."
    return Verdict(claim, all(marks) if marks else None, " ".join(words), ours=True)


def _cases(results: Results, method: str) -> list[tuple[str, float]]:
    return [
        (network, budget)
        for network in results.networks
        for budget in results.budgets
        if budget in JUDGED and results.rows(network, budget, method)
    ]


def _spread(values: np.ndarray[Any, np.dtype[Any]]) -> str:
    """Return a mean, with its range if there is one.

    >>> _spread(np.array([97.5])), _spread(np.array([97.0, 98.0]))
    ('97.50', '97.50 (97.00 to 98.00)')
    """
    mean = f"{values.mean():.2f}"
    return mean if values.min() == values.max() else f"{mean} ({values.min():.2f} to {values.max():.2f})"


def _ratio(values: Any) -> str:
    return f"{min(values):.1f}"


def _signed(values: np.ndarray[Any, np.dtype[Any]]) -> str:
    return ", ".join(f"{value:+.2f}" for value in values)
