"""What every test shares: three array libraries in double precision, and hypothesis without a clock."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

os.environ.setdefault("JAX_ENABLE_X64", "1")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("MPLBACKEND", "Agg")

import numpy as np
import pytest
from hypothesis import settings

from tests.libraries import LIBRARIES, Library

settings.register_profile("gdpa", deadline=None, derandomize=True, max_examples=25)
settings.load_profile("gdpa")

# A shell starts what it runs in the background with interrupts ignored, and children inherit that; the tests of Ctrl-C
# must not depend on how the tests were started.
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


@pytest.fixture(params=LIBRARIES)
def library(request: pytest.FixtureRequest) -> Library:
    """One of NumPy, torch and JAX."""
    return Library(request.param)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)
