"""The origin of a record: time, commit, versions, machine and command."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import gdpa

LIBRARIES = (
    *("numpy", "scipy", "array-api-compat", "torch", "jax", "matplotlib", "typer", "rich", "gymnasium"),
    *("cooper-optim", "humancompatible-train"),
)
#: Names the commit of a copy of the source that has no git history; a trailing ``-dirty`` marks a changed copy.
COMMIT_VARIABLE = "GDPA_COMMIT"
GIT_TIMEOUT = 10.0
DIRTY = "-dirty"
#: The code that a record measures, as folders of the repository. Records and pages change while a study runs.
MEASURED = ("src", "benchmarks", "examples")


def about(command: str) -> dict[str, Any]:
    """Return the origin of a record that ``command`` makes now."""
    commit = _commit()
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": None if commit is None else commit.removesuffix(DIRTY),
        "dirty": None if commit is None else commit.endswith(DIRTY),
        "versions": versions(),
        "machine": {"system": platform.platform(), "processor": platform.machine(), "cores": os.cpu_count()},
        "command": command,
    }


def commit_named(origin: Mapping[str, Any]) -> str:
    """Return the commit of an origin as tables print it."""
    return f"{origin['commit'] or 'unknown'}{DIRTY if origin.get('dirty') else ''}"


def versions_named(origin: Mapping[str, Any]) -> str:
    """Return the versions of an origin as tables print them."""
    return ", ".join(f"{name} {version}" for name, version in origin["versions"].items())


def versions() -> dict[str, str]:
    """Return the versions of gdpa, Python and the libraries that are installed."""
    found = {"gdpa": gdpa.__version__, "python": platform.python_version()}
    for name in LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _commit() -> str | None:
    """Return the commit of the source, if it lies in its git repository; ``-dirty`` if `MEASURED` differs from it."""

    def git(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        command = ["git", *arguments]
        return subprocess.run(
            command, cwd=Path(__file__).parent, capture_output=True, text=True, timeout=GIT_TIMEOUT, check=check
        )

    try:  # an installed copy may lie in the repository of another project
        git("ls-files", "--error-unmatch", Path(__file__).name)
        commit = git("rev-parse", "--short=12", "HEAD").stdout.strip()
        changed = git("diff", "--quiet", "HEAD", "--", *(f":(top){folder}" for folder in MEASURED), check=False)
        return commit + (DIRTY if changed.returncode else "")
    except (OSError, subprocess.SubprocessError):
        return os.environ.get(COMMIT_VARIABLE) or None
