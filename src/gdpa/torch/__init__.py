"""Training under constraints with PyTorch: ``loss = opt.lagrangian(f, g)``, ``loss.backward()``, ``opt.step()``.

`constrain` puts any torch optimizer under limits that are known from minibatches. `GDPA` is the paper's recursion, for
whole data in every step.
"""

from gdpa.base.extras import needed_by

with needed_by("gdpa.torch"):
    import torch as _torch  # noqa: F401

from gdpa.torch import terms
from gdpa.torch.certify import Finished, ModelCertificate, certify, choose
from gdpa.torch.confidence import NewData, Statement, tighten
from gdpa.torch.constrained import ConstrainedOptimizer, constrain
from gdpa.torch.gdpa import GDPA, PowerLR
from gdpa.torch.limits import Limit, Limits, at_least, at_most, between, equal_to
from gdpa.torch.report import CSVWriter, Report, Snapshot, TensorBoardWriter, scalars
from gdpa.torch.staging import NonFiniteWarning

__all__ = [
    "terms", "constrain", "ConstrainedOptimizer", "GDPA", "Limits", "Limit", "at_most", "at_least", "between",
    "equal_to", "PowerLR", "certify", "choose", "ModelCertificate", "NewData", "Statement", "tighten", "Finished",
    "Report", "Snapshot", "CSVWriter", "TensorBoardWriter", "scalars", "NonFiniteWarning",
]  # fmt: skip
