"""Training under constraints with PyTorch: ``loss = opt.lagrangian(f, g)``, ``loss.backward()``, ``opt.step()``.

`GDPA` over parameters is the paper's recursion. Around a base optimizer it is `MinibatchGDPA`, made for sampled data.
"""

from gdpa.torch import terms
from gdpa.torch.averaging import average_weights
from gdpa.torch.certify import ModelCertificate, certify, choose
from gdpa.torch.confidence import NewData, Statement, tighten
from gdpa.torch.limits import Limit, Limits, at_least, at_most, between, equal_to
from gdpa.torch.minibatch import MinibatchGDPA
from gdpa.torch.optimizer import GDPA
from gdpa.torch.report import Report, Snapshot
from gdpa.torch.schedules import PowerLR
from gdpa.torch.stage import NonFiniteWarning
from gdpa.torch.writers import CSVWriter, TensorBoardWriter, scalars

__all__ = [
    "terms",
    "GDPA",
    "MinibatchGDPA",
    "Limits",
    "Limit",
    "at_most",
    "at_least",
    "between",
    "equal_to",
    "PowerLR",
    "average_weights",
    "certify",
    "choose",
    "ModelCertificate",
    "NewData",
    "Statement",
    "tighten",
    "Report",
    "Snapshot",
    "CSVWriter",
    "TensorBoardWriter",
    "scalars",
    "NonFiniteWarning",
]
