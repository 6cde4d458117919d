"""Optional libraries and the extras of the package that bring them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

#: Which extra brings a library, by the name under which the library is imported.
EXTRAS = {
    "torch": "torch", "jax": "jax", "sklearn": "sklearn", "ray": "ray", "pyarrow": "parquet", "gymnasium": "rl",
    "matplotlib": "plot", "jinja2": "experiments", "rich": "experiments", "typer": "experiments",
}  # fmt: skip
#: The name of a library on the package index, if it is not the name under which it is imported.
DISTRIBUTIONS = {"sklearn": "scikit-learn"}


@contextmanager
def needed_by(what: str) -> Iterator[None]:
    """Name the command that installs an optional library if an import inside fails for it.

    >>> with needed_by("from_torch"):  # doctest: +ELLIPSIS
    ...     raise ModuleNotFoundError("No module named 'torch'", name="torch")
    Traceback (most recent call last):
    ...
    ModuleNotFoundError: from_torch needs torch, which is not installed; install it with: pip install torch (or ...
    """
    try:
        yield
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        if library not in EXTRAS:
            raise
        pip = f"pip install {DISTRIBUTIONS.get(library, library)}"
        remedy = f"install it with: {pip} (or pip install -e '.[{EXTRAS[library]}]' in a checkout of gdpa)"
        text = f"{what} needs {library}, which is not installed; {remedy}"
        raise ModuleNotFoundError(text, name=error.name) from error
