"""AdaptiveGDPA: an augmented Lagrangian method without a step size to tune. Start with `method`, the algorithm box."""

from gdpa.methods.adaptive.method import AdaptiveGDPA
from gdpa.methods.adaptive.rules import Rules

__all__ = ["AdaptiveGDPA", "Rules"]
