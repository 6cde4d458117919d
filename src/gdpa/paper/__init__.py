"""The studies that `gdpa reproduce` runs: units of work, records, figures and one report.

An experiment is a module with the shape of `gdpa.paper.base.Experiment` and one line in `EXPERIMENTS`.
"""

from __future__ import annotations

from importlib import import_module
from typing import cast

from gdpa.paper.base import Experiment, UsageError

#: The order in which `gdpa reproduce all` runs them and the report shows them.
EXPERIMENTS = {
    "mnpc": "gdpa.paper.studies.mnpc",
    "budget": "gdpa.paper.studies.budget",
    "rate": "gdpa.paper.studies.rate",
    "cmdp": "gdpa.paper.studies.cmdp",
    "energy": "gdpa.paper.studies.energy",
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
