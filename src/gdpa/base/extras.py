"""Optional libraries and the extras of the package that bring them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

#: Which extra brings a library, by the name under which the library is imported.
EXTRAS = {
    "torch": "torch",
    "jax": "jax",
    "sklearn": "sklearn",
    "ray": "ray",
    "pyarrow": "parquet",
    "gymnasium": "rl",
    "matplotlib": "plot",
    "plotly": "experiments",
    "rich": "experiments",
    "typer": "experiments",
}


@contextmanager
def needed_by(what: str) -> Iterator[None]:
    """Say which extra to install if an import inside fails for an optional library.

    >>> with needed_by("from_torch"):
    ...     raise ModuleNotFoundError("No module named 'torch'", name="torch")
    Traceback (most recent call last):
    ...
    ModuleNotFoundError: from_torch needs torch, which is not installed; install it with: pip install 'gdpa[torch]'
    """
    try:
        yield
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        if library not in EXTRAS:
            raise
        raise ModuleNotFoundError(
            f"{what} needs {library}, which is not installed; install it with: pip install 'gdpa[{EXTRAS[library]}]'",
            name=error.name,
        ) from error
