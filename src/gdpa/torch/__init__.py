"""Training under constraints with PyTorch: ``loss = opt.lagrangian(f, g)``, ``loss.backward()``, ``opt.step()``."""

from gdpa.torch.averaging import average_weights
from gdpa.torch.limits import Limits, at_least, at_most, between, equal_to
from gdpa.torch.minibatch import MinibatchGDPA
from gdpa.torch.optimizer import GDPA
from gdpa.torch.schedules import PowerLR
from gdpa.torch.stage import NonFiniteWarning

__all__ = [
    "GDPA",
    "MinibatchGDPA",
    "Limits",
    "at_most",
    "at_least",
    "between",
    "equal_to",
    "average_weights",
    "PowerLR",
    "NonFiniteWarning",
]
