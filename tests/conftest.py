"""Set-up of all tests: three array libraries in double precision, hypothesis without a clock, bounded memory."""

from __future__ import annotations

import ctypes
import gc
import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_ENABLE_X64", "1")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=2")
# JAX compiles every operation for every shape: half of the time of its tests. On disk, all processes share the results.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parents[1] / ".pytest_cache" / "jax"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
os.environ.setdefault("MPLBACKEND", "Agg")

import numpy as np
import pytest
from hypothesis import settings

from tests.libraries import LIBRARIES, Library

ROOT = Path(__file__).parents[1]
settings.register_profile("gdpa", deadline=None, derandomize=True, max_examples=25)
settings.load_profile("gdpa")

# Bytecode is kept whatever the environment says: without it every worker rewrites all tests at every start, and every
# process that a test starts compiles the package again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A shell starts background commands with interrupts ignored, and children inherit that; the tests of Ctrl-C must not
# depend on how the tests were started.
signal.signal(signal.SIGINT, signal.default_int_handler)


#: The tests of which one case takes over `SLOW` seconds of processor time or all cases over `SLOW_TOGETHER`, and files
#: that are slow to import; ``pytest --write-slow`` writes the tests and keeps the files.
SLOW_LIST = Path(__file__).parent / "slow.txt"
SLOW, SLOW_TOGETHER = 0.2, 1.0
#: Modules and helpers by which a test file starts processes.
STARTS_PROCESSES = re.compile(r"\b(?:subprocess|multiprocessing|kill_loop|run_units|CliRunner|import ranks)\b")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-slow", action="store_true", help=f"write the tests of over {SLOW} s to {SLOW_LIST.name}")


def starts_processes(path: Path) -> bool:
    return path.suffix == ".py" and STARTS_PROCESSES.search(path.read_text(encoding="utf-8")) is not None


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave files out without importing them if ``-m`` leaves out all of their tests."""
    excluded = re.findall(r"not (\w+)", config.option.markexpr)
    slow = SLOW_LIST.read_text(encoding="utf-8").splitlines()
    if "slow" in excluded and collection_path.relative_to(ROOT).as_posix() in slow:
        return True
    return True if "process" in excluded and starts_processes(collection_path) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of a file that starts processes, those that JAX compiles for, and those of the list.

    The slow ones run untraced: the others run over 95 % of all lines and branches, and tracing takes as long again.
    """
    files = {item.path for item in items if item.path.is_relative_to(Path(__file__).parent)}
    starting = {path for path in files if starts_processes(path)}
    slow = set(SLOW_LIST.read_text(encoding="utf-8").splitlines())
    for item in items:
        if item.path in starting:
            item.add_marker(pytest.mark.process)
        name = without_parameters(item.nodeid)
        if name in slow or name.partition("::")[0] in slow or "jax" in item.nodeid:
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.no_cover)


def without_parameters(name: str) -> str:
    return name.partition("[")[0]


def processor_time() -> float:
    """Return the processor time of this process and of those it has started and waited for."""
    return sum(os.times()[:4])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    before = processor_time()
    item.user_properties.append(("started", before))
    result = yield
    MEMORY.bound()
    return result


class Memory:
    """The resident memory of a worker, given back whenever it has grown by `STEP` bytes since the last time.

    The operations that JAX compiles reach 2 GB in a worker, and glibc keeps the room of arrays that are gone.
    """

    STEP = 200_000_000

    def __init__(self) -> None:
        self.least = sys.maxsize

    def bound(self) -> None:
        resident = self.resident()
        if resident > self.least + self.STEP:
            if "jax" in sys.modules:
                sys.modules["jax"].clear_caches()
            gc.collect()
            getattr(ctypes.CDLL(None), "malloc_trim", int)(0)  # of glibc
            self.least = self.resident()
        self.least = min(self.least, resident)

    @staticmethod
    def resident() -> int:
        statm = Path("/proc/self/statm")  # of Linux
        return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if statm.exists() else 0


MEMORY = Memory()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    started: Any = dict(item.user_properties)["started"]
    report = yield
    report.user_properties = [("seconds", processor_time() - started)]
    return report


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--write-slow") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(SlowList())


class SlowList:
    """Collects the processor time of the tests and writes the names of the slow ones; the list keeps the others."""

    def __init__(self) -> None:
        self.cases: dict[str, dict[str, float]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        seconds: Any = dict(report.user_properties).get("seconds", 0.0)
        if "jax" not in report.nodeid:
            cases = self.cases.setdefault(without_parameters(report.nodeid), {})
            cases[report.nodeid] = max(cases.get(report.nodeid, 0.0), seconds)  # the last of three reports has it all

    def pytest_sessionfinish(self) -> None:
        known = set(SLOW_LIST.read_text(encoding="utf-8").splitlines()) - set(self.cases)
        seconds = {name: cases.values() for name, cases in self.cases.items()}
        slow = {name for name, each in seconds.items() if max(each) > SLOW or sum(each) > SLOW_TOGETHER}
        SLOW_LIST.write_text("".join(f"{name}\n" for name in sorted(known | slow)), encoding="utf-8")


@pytest.fixture(params=LIBRARIES)
def library(request: pytest.FixtureRequest) -> Library:
    """One of NumPy, torch and JAX."""
    return Library(request.param)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)
