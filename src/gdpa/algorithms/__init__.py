"""One method per file; `init` and `update` only."""

from gdpa.algorithms.base import Algorithm, Probe, State
from gdpa.algorithms.gdpa import GDPA

__all__ = ["GDPA", "Algorithm", "Probe", "State"]
