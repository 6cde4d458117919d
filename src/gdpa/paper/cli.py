"""The command line: parses, dispatches and displays, nothing else.

Exit codes: 0 done; 1 some units of work failed, or a receipt does not hold; 2 bad usage or input; 3 the output folder
cannot be used; 4 data not reachable; 130 interrupted from the keyboard; 143 ended by SIGTERM.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from gdpa import paper as experiments
from gdpa.paper.base import PRESETS, DataError, ExperimentError, Settings, Unit, UsageError
from gdpa.paper.provenance import versions
from gdpa.paper.records import Folder
from gdpa.paper.runner import Event, Listener, Terminated, interruptible, run_units
from gdpa.version import __version__

app = typer.Typer(
    name="gdpa",
    help="Constrained optimization for machine learning: repeat the paper's experiments.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
console = Console()
complaints = Console(stderr=True)

INTERRUPTED, TERMINATED = 130, 143


@contextmanager
def _exit_codes(kept: str = "") -> Iterator[None]:
    """Turn an error that the user can fix into one line and an exit code; ``kept`` names the files left."""
    try:
        with interruptible():
            yield
    except ExperimentError as error:
        _complain(str(error))
        raise typer.Exit(error.exit_code) from error
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "gdpa":
            raise
        _complain(f"this needs {error.name}, which is not installed; install it with: pip install -e '.[experiments]'")
        raise typer.Exit(UsageError.exit_code) from error
    except KeyboardInterrupt as error:
        word, code = ("terminated", TERMINATED) if isinstance(error, Terminated) else ("interrupted", INTERRUPTED)
        _complain(word + kept)
        raise typer.Exit(code) from error


def _complain(text: str) -> None:
    complaints.print(f"gdpa: {text}", style="red", highlight=False, markup=False, soft_wrap=True)


def _say(text: str) -> None:
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def _print_version(asked: bool) -> None:
    if asked:
        _say(__version__)
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Constrained optimization for machine learning: repeat the paper's experiments."""


#: The experiments by name, for messages and help.
_EXPERIMENTS = f"{', '.join(experiments.EXPERIMENTS)}, or all (without {', '.join(experiments.APART)})"
_ALIASES = ", ".join(f"{alias} = {name}" for alias, name in experiments.ALIASES.items())


@app.command()
def reproduce(
    names: Annotated[
        list[str] | None, typer.Argument(help=f"Experiments to run: {_EXPERIMENTS}. Also {_ALIASES}.", metavar="NAME")
    ] = None,
    out: Annotated[Path, typer.Option(help="Where records, figures and the report go.")] = Path("out"),
    seeds: Annotated[int, typer.Option(help="How many seeds.")] = 1,
    budget: Annotated[float | None, typer.Option(help="Seconds of processor time for a method in a unit.")] = None,
    steps: Annotated[int | None, typer.Option(help="Iterations a unit may use.")] = None,
    preset: Annotated[str, typer.Option(help=f"Constants: {', '.join(PRESETS)}.")] = "both",
    method: Annotated[
        str | None, typer.Option(help="Add a registered method to Figures 1 to 3; MODULE:NAME imports MODULE first.")
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="A constant of the added method.", metavar="CONSTANT=VALUE")
    ] = None,
    jobs: Annotated[int | None, typer.Option(help="Units run at once; default: one per core.")] = None,
    only: Annotated[str | None, typer.Option(help="Only units whose name contains this text.")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Run again what is already recorded.")] = False,
) -> None:
    """Run experiments and write OUT/report.html. A killed run continues where it stopped."""
    with _exit_codes(f"; finished units are recorded in {out}, the same command continues"):
        from gdpa.paper.report import write_report

        if not names:
            raise UsageError(f"name the experiments to run: {_EXPERIMENTS}")
        settings = Settings(seeds, budget, steps, preset, method, dict(_constant(text) for text in set_ or ()))
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        workers = cores if jobs is None else jobs
        if workers < 1:
            raise UsageError(f"--jobs must be at least 1, got {jobs}")
        chosen = dict.fromkeys(experiments.names() if "all" in names else map(experiments.resolve, names))
        if method is not None:
            from gdpa.paper.contestants import check_method

            check_method(method, settings.constants)
            if not set(chosen) & set(experiments.OPEN):
                raise UsageError(f"--method adds a method to {', '.join(experiments.OPEN)}; name one of these")
        plans = {name: _plan(name, settings, only) for name in chosen}
        if not any(plans.values()):
            raise UsageError(f"no unit of {', '.join(plans)} has {only!r} in its name")
        problems: list[int] = []
        folder = Folder(out, _command(plans, out, settings, only))
        with folder.lock():
            for name, units in plans.items():
                if units:
                    command = _command([name], out, settings, only)
                    problems.append(_run(name, Folder(out, command), units, workers, fresh))
            report = write_report(folder)
        _say(f"report: {report.resolve()}")
    if any(problems):
        raise typer.Exit(max(problems))


def _constant(text: str) -> tuple[str, Any]:
    """Return the name and the value in CONSTANT=VALUE; a value that is not JSON is text."""
    name, equals, value = text.partition("=")
    if not name.isidentifier() or not equals:
        raise UsageError(f"--set must be CONSTANT=VALUE, got {text!r}; such as --set alpha=0.1")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _plan(name: str, settings: Settings, only: str | None) -> list[Unit]:
    """Return the units whose name contains ``only``, and those they need."""
    units = experiments.get(name).units(settings)
    wanted = [unit for unit in units if only is None or only in unit.name]
    names = {one.name for unit in wanted for one in (unit, unit.after) if one is not None}
    return [unit for unit in units if unit.name in names]


def _run(name: str, folder: Folder, units: Sequence[Unit], jobs: int, fresh: bool) -> int:
    """Run units of one experiment and return its exit code."""
    folder.begin(name, units)
    try:
        with _display(name, len(units)) as listen:
            failed = run_units(folder, units, listen, jobs=jobs, fresh=fresh)
    except DataError as error:  # the other experiments may do without these data
        _complain(str(error))
        return error.exit_code
    if failed:
        _complain(f"{len(failed)} of {len(units)} units of {name} failed; the others are recorded")
    return 1 if failed else 0


@contextmanager
def _display(title: str, total: int) -> Iterator[Listener]:
    """Give a listener that shows live bars on a terminal, and else a line for each finished unit."""
    bars = (BarColumn(bar_width=24), TextColumn("{task.percentage:>3.0f}%"), TimeElapsedColumn())
    columns = (TextColumn("{task.description}"), *bars, TextColumn("{task.fields[note]}"))
    tasks: dict[str, TaskID] = {}
    skipped = 0
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as live:
        whole = live.add_task(title, total=total, note="")

        def listen(event: Event) -> None:
            nonlocal skipped
            unit = event.unit
            named = f"{unit.method}, {unit.setting}, seed {unit.seed}"
            if event.kind == "started":
                tasks[unit.name] = live.add_task(f"  {named}", total=1.0, note="")
            elif event.kind == "progress":
                live.update(tasks[unit.name], completed=event.fraction, note=event.note)
            else:
                live.advance(whole)
                if unit.name in tasks:
                    live.remove_task(tasks.pop(unit.name))
                outcome = f"{event.seconds:.1f} s" if event.kind == "finished" else f"FAILED: {event.note}"
                skipped += event.kind == "skipped"
                if event.kind != "skipped":
                    _say(f"{title}: {live.tasks[whole].completed:.0f}/{total} {named}: {outcome}")

        yield listen
    if skipped:
        _say(f"{title}: {skipped} of {total} units were already recorded")


def _command(names: Iterable[str], out: Path, settings: Settings, only: str | None) -> str:
    """Return the command that does the experiments again."""
    words = ["gdpa", "reproduce", *names, "--out", str(out), "--seeds", str(settings.seeds)]
    words += ["--preset", settings.preset]
    for option in ("budget", "steps", "method"):
        value = getattr(settings, option)
        words += [] if value is None else [f"--{option}", str(value)]
    for name, value in settings.constants.items():
        words += ["--set", f"{name}={value if isinstance(value, str) else json.dumps(value)}"]
    return shlex.join(words + ([] if only is None else ["--only", only]))


@app.command()
def report(folder: Annotated[Path, typer.Argument(help="A folder that gdpa reproduce wrote.")]) -> None:
    """Draw figures and report again from the records; nothing is run."""
    with _exit_codes():
        from gdpa.paper.report import write_report

        if not folder.is_dir():
            raise UsageError(f"{folder} is not a folder; give one that gdpa reproduce wrote")
        _say(f"report: {write_report(Folder(folder)).resolve()}")


data = typer.Typer(help="Data sets of the experiments.", no_args_is_help=True)
app.add_typer(data, name="data")


@data.command(name="fetch")
def fetch_data(
    names: Annotated[list[str] | None, typer.Argument(help="Data sets; default: all.", metavar="[NAME]...")] = None,
    cache: Annotated[Path | None, typer.Option(help="The cache; default: $GDPA_CACHE or the user's cache.")] = None,
) -> None:
    """Fetch data sets into the cache, check them by hash, and say which source served."""
    with _exit_codes():
        from gdpa.paper.data.images import DATA_SETS, fetch

        for name in names or DATA_SETS:
            if name not in DATA_SETS:
                raise UsageError(f"no data set is called {name!r}; there are {', '.join(DATA_SETS)}")
        for name in names or DATA_SETS:
            folder, source = fetch(name, cache, _say)
            _say(f"{name}: {folder} (from {source})")


@app.command()
def verify(
    receipt: Annotated[Path, typer.Argument(help="What certificate.save wrote.")],
    problem: Annotated[str, typer.Argument(help="The problem, or a function that makes it.", metavar="MODULE:PROBLEM")],
    tolerance: Annotated[float | None, typer.Option(help="Default: the receipt's, or that of solve.")] = None,
) -> None:
    """Compute a certificate again from its receipt and the problem; ends with 1 if it does not hold."""
    with _exit_codes():
        from gdpa.files.receipt import load_receipt
        from gdpa.run.verify import import_problem
        from gdpa.run.verify import verify as check

        try:
            found = check(import_problem(problem), load_receipt(receipt), tolerance=tolerance)
        except (Exception, SystemExit) as error:  # the problem is the user's code and may raise anything
            lines = [str(error) or type(error).__name__, *getattr(error, "__notes__", ())]
            kind = "" if isinstance(error, (ValueError, OSError)) else f"{type(error).__name__}: "
            raise UsageError(f"cannot verify {receipt}: {kind}{' '.join(' '.join(lines).split())}") from error
        _say(str(found))
    if not found.holds:
        raise typer.Exit(1)


@app.command(name="versions")
def show_versions() -> None:
    """Print the versions of gdpa, Python and the libraries in use."""
    for name, version in versions().items():
        _say(f"{name} {version}")


@app.command()
def methods() -> None:
    """List the methods, each with its kind, one on a line."""
    from gdpa.methods import get_method, method_names

    width = max(map(len, method_names()))
    for name in method_names():
        line, _, _ = (get_method(name).__doc__ or "").strip().partition("\n")
        _say(f"{name:<{width}}  {line}")
