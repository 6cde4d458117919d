"""Dual rules by name, all with one interface; see `gdpa.torch.rules.base.Rule`."""

from __future__ import annotations

from gdpa.base.checks import check_positive
from gdpa.torch.rules.base import Rule
from gdpa.torch.rules.feedback import Damped, Feedback
from gdpa.torch.rules.published import RCML, SPBM, SSLALM, NuPI, Paper, PenaltyBarrier, TwoSample
from gdpa.torch.rules.recursive import SpiderPenalty, StormPenalty

#: The names that ``constrain(..., rule=name)`` takes; the first is the default.
RULES: dict[str, type[Rule]] = {
    rule.name: rule for rule in (Feedback, Damped, Paper, NuPI, SPBM, SSLALM, RCML, PenaltyBarrier, TwoSample)
}


def make_rule(rule: str | Rule, dual_rate: float | None) -> Rule:
    """Return the rule called ``rule``, or ``rule`` itself if it is one."""
    if dual_rate is not None:
        check_positive(dual_rate=dual_rate)
    if isinstance(rule, Rule):
        if dual_rate is not None:
            raise ValueError("dual_rate= goes with the name of a rule; give it to the rule itself instead")
        return rule
    if not isinstance(rule, str) or rule not in RULES:
        raise ValueError(f"rule must be one of {list(RULES)} or a gdpa.torch.rules.Rule, got {rule!r}")
    if dual_rate is None:
        return RULES[rule]()
    if rule == Paper.name:
        raise ValueError('the rule "paper" has no dual_rate; give rule=Paper(beta=..., tau=...) instead')
    return RULES[rule](dual_rate=float(dual_rate))  # type: ignore[call-arg]


__all__ = [
    "RCML", "RULES", "SPBM", "SSLALM", "Damped", "Feedback", "NuPI", "Paper", "PenaltyBarrier", "Rule", "SpiderPenalty",
    "StormPenalty", "TwoSample", "make_rule",
]  # fmt: skip
