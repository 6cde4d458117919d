"""Tests of a changed copy of the package, in a process forked from one that has loaded the libraries.

`measured` runs tests once without a change and notes for each the time it takes and the lines that it executes.
`killer` runs tests on a mutant. Nothing here imports the package: a child must find its own copy.
"""

from __future__ import annotations

import compileall
import gc
import importlib
import json
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "gdpa"
#: Loaded once, before the first fork.
LIBRARIES = [
    *("numpy", "scipy.optimize", "scipy.sparse.linalg", "coverage", "hypothesis", "pytest", "sympy"),
    *("torch", "torch._dynamo", "torch.distributed.checkpoint.state_dict"),
]
#: A mutant may loop forever. The processor time of a test counts as a failure above this many seconds, and ...
LIMIT = 5.0
#: ... this many times what it takes without a mutant.
LIMIT_SHARE = 10.0
#: Seconds by the clock for all tests of a mutant: the last net, for tests that wait.
LIMIT_BY_CLOCK = 1800.0
#: Read instead of pyproject.toml: no option of a plug-in that a machine may lack, warnings are errors as there.
INI = """[pytest]
filterwarnings =
    error
    ignore::pytest.PytestWarning
markers =
    slow: takes more than a few seconds
    process: starts processes
    campaign: takes minutes
"""
#: Exit code of a child that tested another package than its copy.
FOREIGN = 99
#: pytest's exit code if it found no test.
NO_TESTS = 5


class Measured(NamedTuple):
    """Tests without a mutant.

    Args:
        seconds: processor time of each test that passes, under coverage; the quickest comes first.
        lines: the lines of each file of the package that a test executes, by file and test.
        left_out: the tests that fail here.
    """

    seconds: dict[str, float]
    lines: dict[str, dict[str, list[int]]]
    left_out: list[str]

    def executing(self, path: str, lines: range) -> list[str]:
        """Return the tests that execute one of the lines of a file, the quickest first."""
        by_test = self.lines.get(path, {})
        return [name for name in self.seconds if not set(lines).isdisjoint(by_test.get(name, ()))]


def measured(words: list[str], files: list[str]) -> Measured:
    """Run tests, and the examples in files of the package, without a mutant; raise if none passes."""
    with tempfile.TemporaryDirectory(prefix="gdpa-mutant-") as name:
        folder = Path(name)
        shutil.copytree(_compiled().name, folder / "gdpa")
        words = [*words, *(str(folder / "gdpa" / file) for file in files)]
        code, out = _forked(_measure, folder, words, files)
        if not (folder / "found.json").exists():
            raise RuntimeError(f"{' '.join(words)} ended with {code}: {out[-2000:]}")
        found = Measured(**json.loads((folder / "found.json").read_text()))
    if not found.seconds:
        raise RuntimeError(f"none of {' '.join(words)} passes without a mutant: {out[-2000:]}")
    return found


def killer(path: str, source: str, tests: dict[str, float]) -> str | None:
    """Run tests on a copy of the package in which ``source`` replaces the file ``path``.

    Args:
        path: the file, relative to the package.
        source: its new text.
        tests: the tests in their order, with the processor time that each takes without a mutant.

    Returns:
        the test that fails, "import" if none can begin, None if all pass.
    """
    with tempfile.TemporaryDirectory(prefix="gdpa-mutant-") as name:
        folder = Path(name)
        _link(Path(_compiled().name), folder / "gdpa", Path(path))
        (folder / "gdpa" / path).write_text(source)
        code, out = _forked(_test, folder, path, tests)
        last = (folder / "last").read_text() if (folder / "last").exists() else "import"
    if code in (FOREIGN, NO_TESTS):
        raise RuntimeError(f"the tests of {path} did not run on the mutant (exit code {code}): {out[-2000:]}")
    return None if code == 0 else last


def _link(package: Path, target: Path, path: Path) -> None:
    """Make a folder of links to all files of ``package`` but the one at ``path`` and its bytecode."""
    first, *rest = path.parts
    target.mkdir()
    for entry in package.iterdir():
        if entry.name == "__pycache__" and not rest:
            (target / entry.name).mkdir()
            for code in entry.iterdir():
                if not code.name.startswith(f"{path.stem}."):
                    (target / entry.name / code.name).symlink_to(code)
        elif entry.name != first:
            (target / entry.name).symlink_to(entry)
        elif rest:
            _link(entry, target / first, Path(*rest))


@cache
def _compiled() -> tempfile.TemporaryDirectory[str]:
    """Return a copy of the package with its bytecode, which then need not be made for every mutant."""
    folder = tempfile.TemporaryDirectory(prefix="gdpa-compiled-")
    shutil.copytree(PACKAGE, folder.name, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    compileall.compile_dir(folder.name, quiet=1)
    return folder


def _forked(target: Any, folder: Path, *arguments: object) -> tuple[int, str]:
    """Call ``target`` in a child that has loaded the libraries; return its exit code and what it printed."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(LIBRARIES)
    child = context.Process(target=target, args=(folder, *arguments))
    child.start()
    child.join(LIMIT_BY_CLOCK)
    if child.is_alive():
        child.kill()
        child.join()
    out = folder / "out"
    return child.exitcode or 0, out.read_text(errors="replace") if out.exists() else ""


def _test(folder: Path, path: str, tests: dict[str, float]) -> None:
    """Run the chosen tests until one fails. A child does this and ends."""
    files = dict.fromkeys(str(folder / "gdpa" / path) if "::" not in name else name.split("::")[0] for name in tests)
    _end(folder, ["-x", *files], Chosen(tests, folder / "last"))


def _measure(folder: Path, words: list[str], files: list[str]) -> None:
    """Run all tests, write what they take and which lines of the files they execute, and end."""
    import coverage

    include = [str(folder / "gdpa" / file) for file in files]
    _end(folder, words, Recorder(coverage.Coverage(data_file=None, include=include, config_file=False), folder))


def _end(folder: Path, words: list[str], plugin: object) -> None:
    if "gdpa" in sys.modules:
        os._exit(FOREIGN)
    paths = [str(folder), str(ROOT)]
    sys.path[:0] = paths
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)  # of processes that tests start
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # none is needed, and they take longer than many tests
    gc.freeze()  # pytest collects garbage several times; not that of the libraries
    sys.dont_write_bytecode = False  # that of the tests is kept
    os.chdir(ROOT)
    out = os.open(folder / "out", os.O_WRONLY | os.O_CREAT)
    os.dup2(out, 1)
    os.dup2(out, 2)
    (folder / "pytest.ini").write_text(INI)
    import pytest

    plain = ["-q", "-p", "no:cacheprovider", "--tb=short"]
    settings = ["-c", str(folder / "pytest.ini"), "--rootdir", str(ROOT), "--doctest-modules"]
    code = int(pytest.main([*settings, *plain, *words], plugins=[plugin]))
    if not str(importlib.import_module("gdpa").__file__).startswith(str(folder)):
        code = FOREIGN
    sys.stdout.flush()
    os._exit(code)  # without the threads and exit handlers of the libraries


def processor_time() -> float:
    """Return the processor time of this process and of those it has started and waited for."""
    return time.process_time() + sum(os.times()[2:4])


def name_of(item: Any) -> str:
    """Return the name of a test; that of an example does not tell in which copy of the package it is."""
    return str(item.name) if type(item).__name__ == "DoctestItem" else str(item.nodeid)


class Chosen:
    """A plug-in of pytest: takes some tests in a given order, each with its limit of processor time.

    The file ``last`` has the name of the test that was begun last.
    """

    def __init__(self, tests: dict[str, float], last: Path) -> None:
        self._tests, self._last = tests, last
        self._place = {name: place for place, name in enumerate(tests)}

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        chosen = [item for item in items if name_of(item) in self._place]
        items[:] = sorted(chosen, key=lambda item: self._place[name_of(item)])

    def pytest_sessionstart(self) -> None:
        import hypothesis

        phases = [phase for phase in hypothesis.Phase if phase.name in ("explicit", "generate")]
        hypothesis.settings.register_profile("one failure is enough", hypothesis.settings(), phases=phases)
        hypothesis.settings.load_profile("one failure is enough")

    def pytest_runtest_setup(self, item: Any) -> None:
        name = name_of(item)
        self._last.write_text(name)
        limit = max(LIMIT, LIMIT_SHARE * self._tests[name])
        signal.setitimer(signal.ITIMER_PROF, limit)  # its signal ends the process


class Recorder:
    """A plug-in of pytest: notes what each test takes and executes, and which tests fail."""

    def __init__(self, coverage: Any, folder: Path) -> None:
        self._coverage, self._folder = coverage, folder
        self._seconds: dict[str, float] = {}
        self._started: dict[str, float] = {}
        self._failed: dict[str, None] = {}
        self._now = ""

    def pytest_sessionstart(self) -> None:
        self._coverage.start()

    def pytest_runtest_logstart(self) -> None:
        self._coverage.switch_context("")

    def pytest_runtest_setup(self, item: Any) -> None:
        self._now = name_of(item)
        self._coverage.switch_context(self._now)
        self._started[self._now] = processor_time()

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self._failed[self._now] = None
        elif report.when == "call" and report.passed:
            self._seconds[self._now] = processor_time() - self._started[self._now]

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self._failed[str(report.nodeid)] = None

    def pytest_sessionfinish(self) -> None:
        self._coverage.stop()
        data = self._coverage.get_data()
        lines: dict[str, dict[str, list[int]]] = {}
        for file in data.measured_files():
            by_test = lines.setdefault(Path(file).relative_to(self._folder / "gdpa").as_posix(), {})
            for line, names in data.contexts_by_lineno(file).items():
                for name in names:
                    by_test.setdefault(name, []).append(line)
        passed = {name: seconds for name, seconds in self._seconds.items() if name not in self._failed}
        found = {
            "seconds": dict(sorted(passed.items(), key=lambda pair: pair[1])),
            "lines": lines,
            "left_out": list(self._failed),
        }
        (self._folder / "found.json").write_text(json.dumps(found))
