"""Ready terms for limits. Each is (surrogate, true value, count), NaN and 0 if its group is absent from the batch."""

from gdpa.torch.terms.models import (
    density,
    kl,
    kl_sampled,
    lipschitz_bound,
    mean,
    monotonicity,
    open_gates,
    sampled_cost,
    steepness,
    weight_norm,
)
from gdpa.torch.terms.rates import (
    calibration,
    demographic_parity,
    equalized_odds,
    false_positive_rate,
    margin,
    positive_rate,
    recall,
)
from gdpa.torch.terms.term import Mean, Term, proxy

__all__ = [
    "positive_rate", "recall", "false_positive_rate", "demographic_parity", "equalized_odds", "calibration", "margin",
    "mean", "kl", "kl_sampled", "sampled_cost", "weight_norm", "density", "open_gates", "monotonicity", "steepness",
    "lipschitz_bound", "proxy", "Term", "Mean",
]  # fmt: skip
