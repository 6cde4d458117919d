"""The studies that `gdpa reproduce` runs: units of work, records, figures and one report.

An experiment has the shape of `gdpa.paper.base.Experiment`, as a module or as a value in one, and one line in
`EXPERIMENTS`.
"""

from __future__ import annotations

from pkgutil import resolve_name
from typing import cast

from gdpa.paper.base import Experiment, UsageError

#: Name -> module, or module:value. The order in which `gdpa reproduce all` runs them and the report shows them.
EXPERIMENTS = {
    "mnpc": "gdpa.paper.studies.mnist:MNPC",
    "budget": "gdpa.paper.studies.mnist:BUDGET",
    "rate": "gdpa.paper.studies.rate",
    "cmdp": "gdpa.paper.studies.cmdp",
    "energy": "gdpa.paper.studies.energy",
    "race": "gdpa.paper.studies.race",
}
#: Too long for `gdpa reproduce all`: run by name.
APART = ("race",)
#: Other names: the paper's items.
ALIASES = {"figure1": "mnpc", "figure2": "budget", "figure3": "cmdp", "theorem1": "rate"}
#: The experiments to which a user can add a method.
OPEN = ("mnpc", "budget", "cmdp", "race")


def names() -> tuple[str, ...]:
    """Return the names of the experiments that `gdpa reproduce all` runs."""
    return tuple(name for name in EXPERIMENTS if name not in APART)


def resolve(name: str) -> str:
    """Return the name of the experiment that ``name`` stands for, in any case of letters."""
    known = ALIASES.get(name.lower(), name.lower())
    if known not in EXPERIMENTS:
        raise UsageError(
            f"no experiment is called {name!r}; there are {', '.join(EXPERIMENTS)} and all, and the aliases "
            + ", ".join(ALIASES)
        )
    return known


def get(name: str) -> Experiment:
    """Return the experiment called ``name``."""
    return cast(Experiment, resolve_name(EXPERIMENTS[resolve(name)]))
