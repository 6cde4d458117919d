"""The conditions of the paper's convergence proof, and whether a run satisfied them."""

from gdpa.paper.theory.conditions import Condition, Report, c2_bracket, check, multiplier_bound, tau_bound, vartheta
from gdpa.paper.theory.constants import Constants, Trajectory, estimate_constants, regularity

__all__ = [
    "Condition",
    "Constants",
    "Report",
    "Trajectory",
    "c2_bracket",
    "check",
    "estimate_constants",
    "multiplier_bound",
    "regularity",
    "tau_bound",
    "vartheta",
]
