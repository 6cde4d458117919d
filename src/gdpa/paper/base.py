"""The shape of an experiment: a list of units of work, a function that runs one, and a section of the report."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from gdpa.paper.figures import Chart
    from gdpa.paper.records import Record


class ExperimentError(Exception):
    """An error that the user can fix; the message says how. ``exit_code`` is the exit code of the command line."""

    exit_code = 1


class UsageError(ExperimentError):
    """A name, number or folder given by the user makes no sense."""

    exit_code = 2


class OutputError(ExperimentError):
    """The output folder cannot be written to, or another run holds it."""

    exit_code = 3


class DataError(ExperimentError):
    """Data that the experiment needs is not reachable."""

    exit_code = 4


PRESETS = ("printed", "tuned", "both")


@dataclass(frozen=True)
class Settings:
    """The options of a run.

    ``budget`` is the seconds of processor time that a method may use in a unit; it and ``steps`` default to the
    experiment's own. ``method`` is a registered method to add to the paper's figures, with ``constants`` in place of
    its defaults; "module:name" imports the module first.

    >>> Settings(method="gdpa", constants={"alpha": 0.1}).label
    'gdpa (alpha=0.1)'
    """

    seeds: int = 1
    budget: float | None = None
    steps: int | None = None
    preset: str = "both"
    method: str | None = None
    constants: Mapping[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The name of the added method in the figures, with its constants."""
        assert self.method is not None
        values = ", ".join(f"{name}={value}" for name, value in self.constants.items())
        return self.method.rpartition(":")[2] + (f" ({values})" if values else "")

    @property
    def choice(self) -> dict[str, Any]:
        """The part of a unit's configuration that names the added method."""
        return {"method": self.method, "constants": dict(self.constants)}

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise UsageError(f"--seeds must be at least 1, got {self.seeds}")
        if self.budget is not None and not (math.isfinite(self.budget) and self.budget > 0):
            raise UsageError(f"--budget must be a positive number of seconds, got {self.budget}")
        if self.steps is not None and self.steps < 1:
            raise UsageError(f"--steps must be at least 1, got {self.steps}")
        if self.preset not in PRESETS:
            raise UsageError(f"--preset must be one of {', '.join(PRESETS)}, got {self.preset!r}")
        if self.constants and self.method is None:
            raise UsageError("--set gives the constants of a method; name it with --method")


@dataclass(frozen=True)
class Unit:
    """One unit of work: a method in a setting with a seed.

    ``setting`` is a problem, a preset or a reading of the paper. ``config`` is all else that decides the outcome, as
    JSON values; its hash is part of the name, so another configuration makes another unit. ``after`` is a unit whose
    record this one reads, run before it.

    >>> unit = Unit("rate", "GDPA tau=0.1", "HS12", 0, {"tau": 0.1})
    >>> unit.name
    'GDPA-tau-0.1_HS12_0_1106f593'
    """

    experiment: str
    method: str
    setting: str
    seed: int
    config: Mapping[str, Any] = field(default_factory=dict)
    after: Unit | None = field(default=None, compare=False, repr=False)

    @property
    def name(self) -> str:
        """The unit's name, fit for a file."""
        parts = (re.sub(r"[^A-Za-z0-9.]+", "-", part).strip("-") for part in (self.method, self.setting))
        return f"{'_'.join(parts)}_{self.seed}_{self.hash[:8]}"

    @property
    def hash(self) -> str:
        """The hash of all that decides the outcome."""
        content = [self.experiment, self.method, self.setting, self.seed, dict(self.config)]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


class Log(Protocol):
    """Where a running unit reports to."""

    def row(self, **columns: float | int | str) -> None:
        """Write one row; every row of a unit has the same columns."""

    def progress(self, fraction: float, note: str = "") -> None:
        """Say how far the unit is, from 0 to 1."""

    def summary(self, unit: Unit) -> Mapping[str, Any]:
        """Return the summary of the unit that this one runs ``after``."""


@dataclass(frozen=True)
class Table:
    """A table of the report: a caption, the head, and rows of text or numbers (None is an empty cell)."""

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[Any]]


@dataclass(frozen=True)
class Verdict:
    """A claim, whether it holds by the records (None: undecided), the measurement in words, and whose claim it is."""

    claim: str
    holds: bool | None
    words: str
    ours: bool = False


#: One comparison in the judgment of a claim: whether it agrees (None: it does not count), and a sentence.
Finding = tuple[bool | None, str]


def judge(
    claim: str, findings: Iterable[Finding], opening: str = "", *, ours: bool = False, strict: bool = False
) -> Verdict:
    """Return the verdict of findings: it holds if all agree and fails if none does, if ``strict`` already if one fails.

    >>> mixed = [(True, "a: yes."), (False, "b: no."), (None, "For comparison c.")]
    >>> judge("It is so.", mixed, "By seed: "), judge("It is so.", mixed, strict=True).holds
    (Verdict(claim='It is so.', holds=None, words='By seed: a: yes. b: no. For comparison c.', ours=False), False)
    """
    found = list(findings)
    marks = {bool(mark) for mark, _ in found if mark is not None}
    holds = None if not marks or (len(marks) > 1 and not strict) else all(marks)
    return Verdict(claim, holds, opening + " ".join(words for _, words in found if words), ours)


@dataclass(frozen=True)
class Section:
    """An experiment's part of the report, a function of its records alone."""

    introduction: str
    charts: Sequence[Chart]
    tables: Sequence[Table]
    verdicts: Sequence[Verdict]


class Experiment(Protocol):
    """The shape of an experiment: a module, or a value such as `gdpa.paper.comparison.Study`."""

    @property
    def title(self) -> str:
        """Its heading in the report."""

    def units(self, settings: Settings) -> list[Unit]:
        """Return the units of work, cheap to make: no data is touched."""

    def run(self, unit: Unit, log: Log) -> Mapping[str, Any]:
        """Run one unit, report rows as they come, and return a summary of JSON values."""

    def section(self, records: Sequence[Record]) -> Section:
        """Return the experiment's part of the report."""
