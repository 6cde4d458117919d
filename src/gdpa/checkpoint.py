"""Save a state and continue from it to the same iterates, bit for bit."""

from __future__ import annotations

import os
import pickle
import tempfile
from dataclasses import replace
from pathlib import Path

from gdpa.algorithms.base import State


def save_state(path: str | os.PathLike[str], state: State) -> None:
    """Write ``state`` to ``path``, whole or not at all.

    The oracle call in the state is dropped (it is made anew on loading). The file is a pickle: read only
    files you trust.

    >>> import tempfile, numpy as np
    >>> from gdpa import GDPA
    >>> from gdpa.problems import get
    >>> disc = get("disc-product")
    >>> state = GDPA().init(disc.problem, disc.x0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_state(f"{folder}/state", state)
    ...     bool((load_state(f"{folder}/state").x == state.x).all())
    True
    """
    target = Path(path)
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=target.name, suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            pickle.dump(replace(state, evaluation=None, probe=None), file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def load_state(path: str | os.PathLike[str]) -> State:
    """Read a state written by `save_state`; continue with ``solve(problem, state=...)``."""
    with open(path, "rb") as file:
        state = pickle.load(file)
    if not isinstance(state, State):
        raise ValueError(f"{path} does not hold a state of gdpa but {type(state).__name__}")
    return state
