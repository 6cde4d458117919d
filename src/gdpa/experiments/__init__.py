"""The studies that `gdpa reproduce` runs: units of work, records, figures and one report.

An experiment is a module with the shape of `gdpa.experiments.base.Experiment` and one line in `EXPERIMENTS`.
"""

from __future__ import annotations

from importlib import import_module
from typing import cast

from gdpa.experiments.base import Experiment, UsageError

#: The order in which `gdpa reproduce all` runs them and the report shows them.
EXPERIMENTS = {
    "mnpc": "gdpa.experiments.mnpc",
    "budget": "gdpa.experiments.budget",
    "rate": "gdpa.experiments.rate",
    "cmdp": "gdpa.experiments.cmdp",
    "energy": "gdpa.experiments.energy",
}


def names() -> tuple[str, ...]:
    """Return the names of the experiments.

    >>> "rate" in names()
    True
    """
    return tuple(EXPERIMENTS)


def get(name: str) -> Experiment:
    """Return the experiment called ``name``.

    >>> get("rate").NAME
    'rate'
    """
    if name not in EXPERIMENTS:
        raise UsageError(f"no experiment is called {name!r}; there are {', '.join(EXPERIMENTS)} and all")
    return cast(Experiment, import_module(EXPERIMENTS[name]))
