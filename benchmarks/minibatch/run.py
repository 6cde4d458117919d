"""Train every task by every rule, append one record per run, and write the tables.

    python -m benchmarks.minibatch.run --jobs 8                # defaults on 5 seeds, then the best of four settings
    python -m benchmarks.minibatch.run defaults --seeds 2      # only this part, fewer seeds
    python -m benchmarks.minibatch.run sensitivity units       # changed settings, changed units
    python -m benchmarks.minibatch.table                       # the tables again, from the records alone

Parts:
    defaults      every task, every rule's default setting, --seeds seeds
    tuned         the four settings of every peer on two further seeds; the best of the four on --seeds seeds
    sensitivity   another base optimizer, learning rate, batch, dual rate or start, defaults otherwise
    units         f or g times 1e-4, 0.01, 100 and 1e4, seed 0
    constants     other values of our rule's constants, on the tasks and seeds that chose them

A run that is in the records is not run again (--again does). Ctrl-C keeps what has ended. The peers are cooper-optim
and humancompatible-train, versions in constraints.txt; a rule whose package is missing is left out with a remark.
"""

from __future__ import annotations

import os

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):  # before torch is loaded
    os.environ[_name] = "1"

import argparse  # noqa: E402
import multiprocessing  # noqa: E402
import signal  # noqa: E402
import sys  # noqa: E402
import time  # noqa: E402
import warnings  # noqa: E402
from collections.abc import Callable  # noqa: E402
from concurrent.futures import ProcessPoolExecutor, as_completed  # noqa: E402
from importlib.util import find_spec  # noqa: E402
from pathlib import Path  # noqa: E402

import torch  # noqa: E402

from benchmarks.minibatch import table, tasks, training  # noqa: E402
from benchmarks.minibatch.rules import OURS, RULES  # noqa: E402
from benchmarks.minibatch.table import Records  # noqa: E402
from benchmarks.minibatch.training import Run  # noqa: E402
from benchmarks.provenance import Study  # noqa: E402

#: What each rule needs besides torch.
_PACKAGES = {"Cooper": "cooper", "hct": "humancompatible"}
#: Tasks of the parts that change something; between them they bind in the end, have absent groups and 1 to 240 limits.
SENSITIVITY_TASKS = ("adult-recall", "digits", "groups-loss", "saturated")
UNITS_TASKS = ("budget-0.3", "compas", "finetune-kl", "groups-loss", "narrow-limit")
#: The tasks on which the peers are beside it: what a change of units does to them shows there.
UNITS_PEER_TASKS = ("budget-0.3", "compas")


def defaults(_: Records, seeds: int) -> list[Run]:
    """The runs of every rule's default."""
    return [
        Run(task, name, rule.default, seed)
        for seed in range(seeds) for task in tasks.NAMES for name, rule in RULES.items()
    ]  # fmt: skip


def tuning(_: Records, seeds: int) -> list[Run]:
    """The runs that the settings of the peers are chosen by."""
    return [
        Run(task, name, setting, seed)
        for task in tasks.NAMES for name, rule in RULES.items() if name != OURS
        for setting in rule.settings for seed in table.TUNING_SEEDS
    ]  # fmt: skip


def tuned(records: Records, seeds: int) -> list[Run]:
    """The chosen settings on the seeds that count."""
    chosen = table.best_settings(records)
    return [Run(*pair, setting, seed) for pair, setting in chosen.items() for seed in range(seeds) if pair[1] != OURS]


def sensitivity(_: Records, seeds: int) -> list[Run]:
    """The runs under changed settings."""
    return [
        Run(task, name, rule.default, seed, change)
        for seed in range(min(seeds, 2)) for change, how in training.SENSITIVITY.items()
        for task in SENSITIVITY_TASKS for name, rule in RULES.items()
        if how.rate == 1.0 or rule.rate is not None
    ]  # fmt: skip


def units(_: Records, seeds: int) -> list[Run]:
    """The runs under changed units, and those in natural units beside which they are judged."""
    return [
        Run(task, name, rule.default, 0, change)
        for task in UNITS_TASKS for change in (training.AS_IT_IS, *training.UNITS) for name, rule in RULES.items()
        if name == OURS or task in UNITS_PEER_TASKS
    ]  # fmt: skip


def constants(_: Records, seeds: int) -> list[Run]:
    """The runs with other values of our rule's constants."""
    return [
        Run(task, OURS, RULES[OURS].default, seed, change)
        for change in (training.NONE, *training.CONSTANTS)
        for task in table.DEVELOPMENT_TASKS for seed in table.DEVELOPMENT_SEEDS
    ]  # fmt: skip


#: A part is a sequence of stages; a stage sees the records of those before it.
PARTS: dict[str, list[Callable[[Records, int], list[Run]]]] = {
    "defaults": [defaults],
    "tuned": [tuning, tuned],
    "sensitivity": [sensitivity],
    "units": [units],
    "constants": [constants],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)} (default: the first two)")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--tasks", nargs="*", default=list(tasks.NAMES), choices=tasks.NAMES, metavar="TASK")
    parser.add_argument("--rules", nargs="*", default=list(RULES), choices=list(RULES), metavar="RULE")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--again", action="store_true", help="run again what is in the records")
    parser.add_argument("--certify", action="store_true", help="add KKT residuals to the default runs of seed 0")
    parser.add_argument("--out", type=Path, default=None, help="default: results/minibatch")
    options = parser.parse_args()
    for part in options.parts:
        if part not in PARTS:
            parser.error(f"there is no part {part!r}; there are {', '.join(PARTS)}")
    study, rules, ended = table.study(options.out), _installed(options.rules), True
    records, fresh = table.by_run(study.rows()), set[Run]()
    for part in options.parts or ["defaults", "tuned"]:
        for stage in PARTS[part]:
            runs = [r for r in stage(records, options.seeds) if r.task in options.tasks and r.rule in rules]
            missing = list(dict.fromkeys(r for r in runs if r not in (fresh if options.again else records)))
            fresh.update(missing)
            ended = ended and _train_all(part, missing, options, study, records)
    text = table.report(records)
    study.tidy()
    study.write(text, table.TABLES)
    print(text)
    if not ended:
        raise SystemExit(130)


def _train_all(part: str, runs: list[Run], options: argparse.Namespace, study: Study, records: Records) -> bool:
    """Train and append; return False if interrupted."""
    spawn, start = multiprocessing.get_context("spawn"), time.monotonic()
    with ProcessPoolExecutor(options.jobs, spawn, _quiet) as pool:
        certified = [options.certify and r.seed == 0 and r.change == training.NONE for r in runs]
        running = {pool.submit(training.train, r, c): r for r, c in zip(runs, certified, strict=True)}
        try:
            for done, future in enumerate(as_completed(running), 1):
                record = records[running[future]] = study.add(future.result())
                left = (time.monotonic() - start) / done * (len(runs) - done)
                print(f"{part} {done}/{len(runs)} {table.line(record)}, {left / 60:.0f} min left", file=sys.stderr)
        except KeyboardInterrupt:
            for process in (pool._processes or {}).values():
                process.terminate()
            pool.shutdown(wait=False, cancel_futures=True)
            print("\ninterrupted; ended runs are kept, the same command goes on from here", file=sys.stderr)
            return False
    return True


def _quiet() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")


def _installed(rules: list[str]) -> list[str]:
    kept = [r for r in rules if r == OURS or find_spec(_PACKAGES[r.split()[0]]) is not None]
    for rule in rules:
        if rule not in kept:
            print(f"{rule} is left out: {_PACKAGES[rule.split()[0]]} is not installed", file=sys.stderr)
    return kept


if __name__ == "__main__":
    main()
