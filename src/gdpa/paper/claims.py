"""The costs of methods to a residual, and the paper's claims about Figures 1 and 2, judged in plain words."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from gdpa.paper.base import Verdict
from gdpa.paper.contestants import METHODS, UNTUNED
from gdpa.paper.records import Record

#: The relative KKT residuals at which methods are compared.
LEVELS = (1e-1, 1e-2, 1e-3)
#: The methods of the paper other than GDPA.
RIVALS = tuple(method for method in METHODS if method not in ("GDPA", UNTUNED))
NOT_REACHED = "not reached"


def settings(records: Sequence[Record]) -> list[str]:
    """Return the settings of the figures in the order of the records: those in which not GDPA alone ran."""
    return list(dict.fromkeys(record.unit.setting for record in records if record.unit.method != "GDPA"))


def chosen(records: Iterable[Record], setting: str, method: str) -> list[Record]:
    """Return the records of a method in a setting."""
    return [r for r in records if r.unit.setting == setting and r.unit.method == method]


def costs_to(records: Iterable[Record], level: float, cost: str = "seconds", column: str = "kkt") -> list[float]:
    """Return the ``cost`` of each run to its first row with ``column`` at most ``level``; infinite if it has none."""
    costs = []
    for columns in (record.columns for record in records):
        hits = np.flatnonzero(columns[column] <= level).tolist() if columns else []
        costs.append(float(columns[cost][hits[0]]) if hits else math.inf)
    return costs


def median(values: Sequence[float]) -> float:
    """Return the upper median: infinite as soon as half of the values are."""
    return sorted(values)[len(values) // 2] if values else math.inf


def best(records: Iterable[Record]) -> float:
    """Return the median over seeds of the smallest residual of a run; infinite if there is none."""
    return median([math.inf if (value := r.summary["best_kkt"]) is None else value for r in records])


def overall(marks: Sequence[bool]) -> bool | None:
    """Return True if every mark is, False if none is, None in between or if there is none."""
    return None if len(set(marks)) != 1 else marks[0]


def _over(records: Sequence[Record]) -> str:
    """Name the number of seeds of medians, if there are several."""
    seeds = len({record.unit.seed for record in records})
    return f"Medians over {seeds} seeds. " if seeds > 1 else ""


def _show(seconds: float) -> str:
    return NOT_REACHED if math.isinf(seconds) else f"{seconds:.3g} s"


def _residual(value: float) -> str:
    return "none (it diverged)" if math.isinf(value) else f"{value:.2g}"


def _list(values: dict[str, float], show: Callable[[float], str]) -> str:
    return ", ".join(f"{method} {show(value)}" for method, value in values.items())


def _runs(records: Sequence[Record], methods: Sequence[str]) -> Iterator[tuple[str, dict[str, list[Record]]]]:
    """Yield each setting with the records of those of the methods that ran in it."""
    for setting in settings(records):
        yield setting, {method: runs for method in methods if (runs := chosen(records, setting, method))}


def faster(claim: str, records: Sequence[Record], factor: float) -> Verdict:
    """Judge whether GDPA is faster than every rival by ``factor``, at every level that any of them reached.

    If no method reached a level, a rival with a smaller residual contradicts the claim, and GDPA's being the
    smallest does not decide it.
    """
    marks: list[bool] = []
    words = []
    for setting, runs in _runs(records, ("GDPA", *RIVALS)):
        if "GDPA" not in runs or len(runs) < 2:
            continue
        times = {level: {m: median(costs_to(found, level)) for m, found in runs.items()} for level in LEVELS}
        levels = [level for level in LEVELS if math.isfinite(min(times[level].values()))]
        if not levels:
            ends = {method: best(found) for method, found in runs.items()}
            winner = min(ends, key=lambda method: ends[method])
            marks += [] if winner == "GDPA" else [False]
            words.append(
                f"{setting}: no method of the paper reaches a relative KKT residual of {LEVELS[0]:g}; the smallest is "
                f"{_residual(ends[winner])} by {winner}"
                + (f", GDPA's is {_residual(ends['GDPA'])}." if winner != "GDPA" else ".")
            )
        for level in levels:
            ours = times[level]["GDPA"]
            rival = min(seconds for method, seconds in times[level].items() if method != "GDPA")
            marks.append(ours * factor <= rival and math.isfinite(ours))
            words.append(f"{setting}, to {level:g}: {_list(times[level], _show)}.")
    parts = [
        f"{setting}: {', '.join(f'{_show(median(costs_to(found[UNTUNED], level)))} to {level:g}' for level in LEVELS)}"
        for setting, found in _runs(records, (UNTUNED,))
        if found
    ]
    if parts:
        words.append(f"For comparison {UNTUNED}, which is ours, with its defaults. {'; '.join(parts)}.")
    return Verdict(claim, overall(marks), _over(records) + " ".join(words))


def sooner_feasible(claim: str, records: Sequence[Record], method: str) -> Verdict:
    """Judge whether ``method`` is the first of the paper's methods to a tenth of the start's violation."""
    marks: list[bool] = []
    words = []
    for setting, runs in _runs([r for r in records if r.columns], ("GDPA", *RIVALS)):
        if method not in runs:
            continue
        level = 0.1 * median([r.summary["start"]["feasibility"] for r in runs[method]])
        times = {name: median(costs_to(found, level, column="feasibility")) for name, found in runs.items()}
        first = min(times, key=lambda name: times[name])
        marks += [] if math.isinf(times[first]) else [first == method]
        words.append(f"{setting}: to a violation of {level:.2g}, {_list(times, _show)}.")
    return Verdict(claim, overall(marks), _over(records) + " ".join(words))


def worse(claim: str, records: Sequence[Record], losers: Sequence[str], winner: str) -> Verdict:
    """Judge whether each of ``losers`` ends with a larger best residual than ``winner``."""
    marks: list[bool] = []
    words = []
    for setting, runs in _runs(records, (*losers, winner)):
        ends = {name: best(found) for name, found in runs.items()}
        if winner in ends and len(ends) > 1:
            marks += [ends[name] > ends[winner] for name in ends if name != winner]
            words.append(f"{setting}: {_list(ends, _residual)}.")
    return Verdict(claim, overall(marks), f"Smallest relative KKT residuals. {_over(records)}{' '.join(words)}")


def regular(claim: str, records: Sequence[Record]) -> Verdict:
    """Judge whether ||J^T g_+|| / ||g_+|| stays above a hundredth of its first value in each of GDPA's runs."""
    marks: list[bool] = []
    words = []
    for setting in dict.fromkeys(r.unit.setting for r in records):
        columns = [r.columns["regularity"] for r in chosen(records, setting, "GDPA") if r.columns]
        ends = [(float(c[0]), float(c.min())) for column in columns if len(c := column[np.isfinite(column)])]
        if ends:
            first, least = min(ends, key=lambda pair: pair[1] / pair[0])
            marks.append(least >= 0.01 * first)
            words.append(f"{setting}: from {first:.2g} down to {least:.2g}.")
    which = "the seed in which it falls furthest" if len({r.unit.seed for r in records}) > 1 else "GDPA's run"
    return Verdict(claim, overall(marks), f"||J^T g_+|| / ||g_+|| along {which}. {' '.join(words)}")
