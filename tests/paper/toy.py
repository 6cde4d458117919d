"""An experiment small enough to watch: each unit writes its rows, or does what its configuration says."""

import os
import signal

from gdpa import GDPA, MaxSteps, problems, solve
from gdpa.paper.base import DataError, Section, Table, Unit, Verdict
from gdpa.paper.figures import Chart, Panel, Series

NAME = "toy"
title = "A toy with <markup> & ampersand"


def units(settings):
    return [
        Unit(NAME, "adder", f"n {n}", seed, {"n": n, "steps": settings.steps})
        for n in (1, 2, 3)
        for seed in range(settings.seeds)
    ]


def run(unit, log):
    what = unit.config.get("what")
    for i in range(unit.config.get("n", 1)):
        log.row(step=i + 1, value=(i + 1) / 3)
        log.progress((i + 1) / unit.config.get("n", 1), f"row {i}")
    if what == "raise":
        raise ZeroDivisionError("broken unit")
    if what == "no data":
        raise DataError("no data here")
    if what == "columns":
        log.row(other=1)
    if what == "interrupt":  # solve answers Ctrl-C with a partial result and no exception
        disc = problems.get("disc-product")
        press = [lambda progress: os.kill(os.getpid(), signal.SIGINT)]
        return {"status": solve(disc.problem, disc.x0, GDPA(), stop=MaxSteps(5), observers=press).status.name}
    if unit.after is not None:
        return {"read": log.summary(unit.after)}
    return {"last": unit.config.get("n", 1) / 3}


def section(records):
    series = [Series(r.unit.setting, r.columns["step"], r.columns["value"], "points", i) for i, r in enumerate(records)]
    band = [Series("band", [1, 2], [1.0, 1.5], low=[0.9, 0.0], high=[1.1, 2.0])]
    return Section(
        "Words & <tags>.",
        [Chart("toy-values", "Values", "The values.", [Panel("values", "step", "value", series + band)])],
        [Table("Sums", ("setting", "sum"), [[r.unit.setting, float(sum(r.columns["value"]))] for r in records])],
        [Verdict("It adds.", True, "It does."), Verdict("It subtracts.", False, "No."), Verdict("Hm.", None, "?")],
    )
