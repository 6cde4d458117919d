"""Every constant of AdaptiveGDPA, with its symbol, its meaning and its source."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Any


def _rule(default: Any, symbol: str, meaning: str, source: str = "", off: Any = None) -> Any:
    """Return a field with what the table of docs/adaptive.md says about it.

    Args:
        default: the value.
        symbol: its name in the formulas of docs/adaptive.md, in LaTeX.
        meaning: what it does.
        source: where it comes from; "" if it was set on the development problems.
        off: the value that switches the rule off, for `benchmarks.ablation`; None if there is none.
    """
    return field(default=default, metadata={"symbol": symbol, "meaning": meaning, "source": source, "off": off})


@dataclass(frozen=True)
class Rules:
    """The constants of `AdaptiveGDPA`. The defaults are part of the method; `benchmarks.ablation` varies each.

    >>> Rules().sufficient_decrease
    0.0001
    >>> Rules(sufficient_decrease=-1.0)
    Traceback (most recent call last):
    ValueError: sufficient_decrease must be a number of at least 0, got -1.0
    """

    # Line search
    sufficient_decrease: float = _rule(1e-4, "c", "share of the promised decrease a trial delivers", "Armijo 1966")
    reference_points: int = _rule(8, "M", "accepted points whose largest merit is the reference", "GLL 1986", 1)
    shortest_cut: float = _rule(0.1, "", "a refused step is cut to this share at least", "Nocedal and Wright 3.5")
    longest_cut: float = _rule(0.5, "", "a refused step is cut to this share at most", "Nocedal and Wright 3.5")
    value_roundings: float = _rule(10.0, "", "roundings of the merit that count as equal", off=0.0)
    shortest_step: float = _rule(4 / 3, "", "steps shorter than eps to half this power are given up")
    # Ends of a run
    unmoved_restore: int = _rule(3, "", "accepted points in a row without a move after which a violation is restored")
    unmoved_stall: int = _rule(20, "", "accepted points in a row without a move after which the run has stalled")
    move_roundings: float = _rule(4.0, "", "a move of this many roundings of a coordinate is none", off=0.0)
    unbounded: float = _rule(1e15, "", "a scaled objective below minus this has no lower bound")
    # Penalty
    largest_beta: float = _rule(1e8, r"\beta_{\max}", "the penalty is not raised above this", off=math.inf)
    beta_factor: float = _rule(2.0, r"\kappa", "the penalty is raised and lowered by this factor", off=1.0)
    enough_progress: float = _rule(0.5, "", "complementarity must fall to this share, or beta is raised", off=math.inf)
    violation_left: float = _rule(0.25, r"\eta", "the SQP step leaves this share of the violation at most", off=1.0)
    raises: int = _rule(4, "", "beta is raised this many times at one point at most")
    minor_violation: float = _rule(1e-3, "", "a violation below this share of the stationarity is ignored", off=0.0)
    # Multipliers
    tau_factor: float = _rule(4.0, "", "tau is divided by this at every multiplier update", off=1.0)
    longest_wait: int = _rule(200, "", "accepted points after which multipliers are updated in any case", off=10**9)
    adopted: float = _rule(
        0.1, "", "least-squares multipliers and their residual below this share replace lambda", off=0.0
    )
    # Units
    enlargement: float = _rule(100.0, "", "a function that is flat at the start is enlarged by this at most", off=1.0)
    drift: float = _rule(10.0, "", "units are renewed when a gradient has changed by this factor", off=math.inf)
    measured_rows: int = _rule(100, "", "up to this many constraints each gradient at the start is measured", off=0)
    ordinary: float = _rule(10.0, "", "lengths of variables within this factor of 1 are left alone")
    few_variables: int = _rule(100, "", "with more variables than this all get one length")
    ordinary_many: float = _rule(1000.0, "", "the same as ordinary, for many variables")
    least_slope: float = _rule(1e-7, "", "a slope below this share of its value tells no length", off=0.0)
    # Rows of the Jacobian
    all_rows: int = _rule(10, "", "up to this many constraints every row is pulled back", off=0)
    few_rows: int = _rule(30, "", "up to this many constraints the SQP step is used from the start", off=0)
    largest_jacobian: int = _rule(50_000_000, "", "entries of J above which it is not formed")
    near_rows: int = _rule(45, "", "the SQP step is taken up if at most this many rows are nearly active")
    trial_points: int = _rule(20, "", "SQP points whose passes the quasi-Newton step makes before its turn is over")
    # Restoration
    patience: int = _rule(20, "", "SQP points without progress after which the violation is restored")
    update_weight: int = _rule(4, "", "a multiplier update at a stationary point counts as this many SQP points", off=1)
    fallen: float = _rule(0.9, "", "the violation makes progress below this share")
    restored: float = _rule(0.1, "", "the phase ends when the violation has fallen to this share")
    longest_phase: int = _rule(300, "", "the phase ends after this many points")
    stationary: float = _rule(1e-6, "", "a violation that changes by this share over the size of x is stationary")
    judged_after: int = _rule(20, "", "accepted points after which a probe is judged")
    way_down: float = _rule(0.99, "", "a probe succeeds if it lowers the violation to this share")
    shove: float = _rule(0.01, "", "length of the second probe, as a share of the size of x", off=0.0)
    plateaus: int = _rule(3, "", "flat points that are left to the objective before a verdict", off=0)
    farthest: float = _rule(10.0, "", "steps of the phase are at most this many times as long as x", off=math.inf)
    restart_beta: float = _rule(1000.0, "", "cap of the penalty after a restoration, doubled each time", off=math.inf)
    restart_factor: float = _rule(10.0, "", "the penalty is raised by this factor after a restoration", off=1.0)

    def __post_init__(self) -> None:
        for rule in fields(self):
            value = getattr(self, rule.name)
            whole = isinstance(rule.default, int)
            if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)) or not value >= 0:
                kind = "an integer" if whole else "a number"
                raise ValueError(f"{rule.name} must be {kind} of at least 0, got {value!r}")
