"""Constrained Markov decision processes with known transitions, solved exactly.

    max_pi V_r(pi)   subject to   V_u_i(pi) >= b_i,        V_c(pi) = E[ sum_t gamma^t c(s_t, a_t) ]

>>> from gdpa.paper.applications.cmdp import paper_instance, solve_linear_program
>>> optimum = solve_linear_program(paper_instance(b=8.0))
>>> round(optimum.reward, 4), optimum.multipliers.round(4).tolist()
(8.2915, [0.9298])
"""

from __future__ import annotations

from gdpa.paper.applications.cmdp.baselines import NaturalPolicyGradient, PolicyGradient
from gdpa.paper.applications.cmdp.linear_program import (
    InfeasibleThresholdError,
    Optimum,
    max_utility,
    solve_linear_program,
)
from gdpa.paper.applications.cmdp.parametrization import as_problem, policy_of, start_of
from gdpa.paper.applications.cmdp.tabular import TabularCMDP, paper_instance, random_instance

__all__ = [
    "InfeasibleThresholdError", "NaturalPolicyGradient", "Optimum", "PolicyGradient", "TabularCMDP", "as_problem",
    "max_utility", "paper_instance", "policy_of", "random_instance", "solve_linear_program", "start_of",
]  # fmt: skip
