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

os.environ.setdefault("JAX_ENABLE_X64", "1")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# JAX compiles every operation for every shape: half of the time of its tests. On disk, all processes share the results.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parents[1] / ".pytest_cache" / "jax"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
os.environ.setdefault("MPLBACKEND", "Agg")

import numpy as np
import pytest
from hypothesis import settings

from tests.libraries import LIBRARIES, Library

settings.register_profile("gdpa", deadline=None, derandomize=True, max_examples=25)
settings.load_profile("gdpa")

# A shell starts background commands with interrupts ignored, and children inherit that; the tests of Ctrl-C must not
# depend on how the tests were started.
signal.signal(signal.SIGINT, signal.default_int_handler)


#: Modules and helpers by which a test file starts processes.
STARTS_PROCESSES = re.compile(r"\b(?:subprocess|multiprocessing|kill_loop|run_units|CliRunner|import ranks)\b")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test of a file that starts processes."""
    files = {item.path for item in items if item.path.is_relative_to(Path(__file__).parent)}
    starting = {path for path in files if STARTS_PROCESSES.search(path.read_text(encoding="utf-8"))}
    for item in items:
        if item.path in starting:
            item.add_marker(pytest.mark.process)


@pytest.fixture(scope="module", autouse=True)
def free_memory() -> Iterator[None]:
    """Give memory back after each file: the operations that JAX keeps in memory reach 2 GB in a worker."""
    yield
    if "jax" in sys.modules:
        sys.modules["jax"].clear_caches()
    gc.collect()
    if sys.platform == "linux":
        getattr(ctypes.CDLL(None), "malloc_trim", int)(0)  # of glibc


@pytest.fixture(params=LIBRARIES)
def library(request: pytest.FixtureRequest) -> Library:
    """One of NumPy, torch and JAX."""
    return Library(request.param)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)
