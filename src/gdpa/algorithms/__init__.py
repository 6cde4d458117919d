"""One method per file; `init` and `update` only."""

from gdpa.algorithms.adaptive import AdaptiveGDPA
from gdpa.algorithms.base import Algorithm, Probe, State
from gdpa.algorithms.damped_gdpa import DampedGDPA
from gdpa.algorithms.gdpa import GDPA

__all__ = ["AdaptiveGDPA", "DampedGDPA", "GDPA", "Algorithm", "Probe", "State"]
