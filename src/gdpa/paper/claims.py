"""The paper's claims about Figures 1 and 2, judged from records in plain words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gdpa.paper.base import Verdict
from gdpa.paper.contestants import METHODS, UNTUNED
from gdpa.paper.records.folder import Record

#: The relative KKT residuals at which methods are compared.
LEVELS = (1e-1, 1e-2, 1e-3)
#: The methods of the paper other than GDPA.
RIVALS = tuple(method for method in METHODS if method not in ("GDPA", UNTUNED))


class Reached(NamedTuple):
    """The cost of a method to a level: medians over seeds, infinite if fewer than half of them reached it.

    Attributes:
        seconds, forwards: computing time and forward passes.
        seconds_range, forwards_range: least and most over seeds, infinite if a seed did not reach it.
    """

    seconds: float
    forwards: float
    seconds_range: tuple[float, float]
    forwards_range: tuple[float, float]


def settings(records: Sequence[Record]) -> list[str]:
    """Return the settings of the figures in the order of the records: those in which not GDPA alone ran."""
    return list(dict.fromkeys(record.unit.setting for record in records if record.unit.method != "GDPA"))


def chosen(records: Sequence[Record], setting: str, method: str) -> list[Record]:
    """Return the records of a method in a setting."""
    return [r for r in records if r.unit.setting == setting and r.unit.method == method]


def reached(records: Sequence[Record], level: float, column: str = "kkt") -> Reached:
    """Return the median seconds and forward passes to the first row with ``column`` at most ``level``."""
    seconds, forwards = [], []
    for record in records:
        hit = np.flatnonzero(record.columns[column] <= level) if record.columns else np.zeros(0, dtype=int)
        seconds.append(float(record.columns["seconds"][hit[0]]) if len(hit) else math.inf)
        forwards.append(float(record.columns["forwards"][hit[0]]) if len(hit) else math.inf)
    return Reached(_median(seconds), _median(forwards), _range(seconds), _range(forwards))


def _median(values: Sequence[float]) -> float:
    """The upper median: infinite as soon as half of the values are."""
    return sorted(values)[len(values) // 2] if values else math.inf


def _range(values: Sequence[float]) -> tuple[float, float]:
    return min(values, default=math.inf), max(values, default=math.inf)


def best(records: Sequence[Record]) -> float:
    """Return the median over seeds of the smallest residual of a run; infinite if there is none."""
    return _median([math.inf if (value := r.summary["best_kkt"]) is None else value for r in records])


def _overall(marks: Sequence[bool]) -> bool | None:
    """Return True if every mark is, False if none is, None in between or if there is none."""
    return None if len(set(marks)) != 1 else marks[0]


def _over(records: Sequence[Record]) -> str:
    """Say over how many seeds medians were taken, if there are several."""
    seeds = len({record.unit.seed for record in records})
    return f"Medians over {seeds} seeds. " if seeds > 1 else ""


def _show(seconds: float) -> str:
    return "not reached" if math.isinf(seconds) else f"{seconds:.3g} s"


def faster(claim: str, records: Sequence[Record], factor: float) -> Verdict:
    """Judge whether GDPA is faster than every rival by ``factor``, at every level that any of them reached.

    If no method reached a level, a rival with a smaller residual contradicts the claim, and GDPA's being the
    smallest does not decide it.
    """
    marks: list[bool] = []
    words = []
    for setting in settings(records):
        runs = {method: chosen(records, setting, method) for method in ("GDPA", *RIVALS)}
        runs = {method: found for method, found in runs.items() if found}
        if "GDPA" not in runs or len(runs) < 2:
            continue
        levels = [level for level in LEVELS if _anyone(runs, level)]
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
            times = {method: reached(found, level).seconds for method, found in runs.items()}
            rival = min(seconds for method, seconds in times.items() if method != "GDPA")
            marks.append(times["GDPA"] * factor <= rival and math.isfinite(times["GDPA"]))
            listed = ", ".join(f"{method} {_show(seconds)}" for method, seconds in times.items())
            words.append(f"{setting}, to {level:g}: {listed}.")
    if any(r.unit.method == UNTUNED for r in records):
        words.append(_beside(records))
    return Verdict(claim, _overall(marks), _over(records) + " ".join(words))


def _anyone(runs: dict[str, list[Record]], level: float) -> bool:
    return any(math.isfinite(reached(found, level).seconds) for found in runs.values())


def _residual(value: float) -> str:
    return "none (it diverged)" if math.isinf(value) else f"{value:.2g}"


def _beside(records: Sequence[Record]) -> str:
    parts = []
    for setting in settings(records):
        found = chosen(records, setting, UNTUNED)
        if found:
            times = ", ".join(f"{_show(reached(found, level).seconds)} to {level:g}" for level in LEVELS)
            parts.append(f"{setting}: {times}")
    return f"For comparison {UNTUNED}, which is ours, with its defaults. {'; '.join(parts)}."


def sooner_feasible(claim: str, records: Sequence[Record], method: str) -> Verdict:
    """Judge whether ``method`` is the first of the paper's methods to a tenth of the start's violation."""
    marks: list[bool] = []
    words = []
    for setting in settings(records):
        runs = {name: chosen(records, setting, name) for name in ("GDPA", *RIVALS)}
        runs = {name: found for name, found in runs.items() if found and found[0].columns}
        if method not in runs:
            continue
        level = 0.1 * _median([r.summary["start"]["feasibility"] for r in runs[method]])
        times = {name: reached(found, level, "feasibility").seconds for name, found in runs.items()}
        first = min(times, key=lambda name: times[name])
        marks += [] if math.isinf(times[first]) else [first == method]
        listed = ", ".join(f"{name} {_show(seconds)}" for name, seconds in times.items())
        words.append(f"{setting}: to a violation of {level:.2g}, {listed}.")
    return Verdict(claim, _overall(marks), _over(records) + " ".join(words))


def worse(claim: str, records: Sequence[Record], losers: Sequence[str], winner: str) -> Verdict:
    """Judge whether each of ``losers`` ends with a larger best residual than ``winner``."""
    marks: list[bool] = []
    words = []
    for setting in settings(records):
        ends = {name: best(found) for name in (*losers, winner) if (found := chosen(records, setting, name))}
        if winner not in ends or len(ends) < 2:
            continue
        marks += [ends[name] > ends[winner] for name in ends if name != winner]
        words.append(f"{setting}: {', '.join(f'{name} {_residual(value)}' for name, value in ends.items())}.")
    return Verdict(claim, _overall(marks), f"Smallest relative KKT residuals. {_over(records)}{' '.join(words)}")


def regular(claim: str, records: Sequence[Record]) -> Verdict:
    """Judge whether ||J^T g_+|| / ||g_+|| stays above a hundredth of its first value in each of GDPA's runs."""
    marks: list[bool] = []
    words = []
    for setting in dict.fromkeys(r.unit.setting for r in records):
        values = [
            column[np.isfinite(column)]
            for r in chosen(records, setting, "GDPA")
            if r.columns and len(column := r.columns["regularity"])
        ]
        values = [column for column in values if len(column)]
        if not values:
            continue
        first, least = min(((float(c[0]), float(c.min())) for c in values), key=lambda pair: pair[1] / pair[0])
        marks.append(least >= 0.01 * first)
        words.append(f"{setting}: from {first:.2g} down to {least:.2g}.")
    which = "the seed in which it falls furthest" if len({r.unit.seed for r in records}) > 1 else "GDPA's run"
    return Verdict(claim, _overall(marks), f"||J^T g_+|| / ||g_+|| along {which}. {' '.join(words)}")
