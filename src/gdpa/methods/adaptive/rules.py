"""The parameters of AdaptiveGDPA, and every other constant with its symbol, its meaning and its source."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Any

from gdpa.base.checks import check_count, check_positive, is_count, is_number
from gdpa.base.stored import stored


def _rule(default: Any, symbol: str, meaning: str, source: str = "ours", off: Any = None) -> Any:
    """Return a field with its entries in the table of docs/adaptive.md; the symbol is LaTeX.

    A rule of ours was set on the development problems. `benchmarks.ablation` has the evidence, for which ``off`` is the
    value that switches the rule off, if there is one.
    """
    return field(default=default, metadata={"symbol": symbol, "meaning": meaning, "source": source, "off": off})


@stored
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
    sufficient_decrease: float = _rule(1e-4, "c", "share of the promised decrease that a trial delivers", "Armijo 1966")
    reference_points: int = _rule(8, "M", "accepted points whose largest merit is the reference", "Grippo 1986", off=1)
    shortest_cut: float = _rule(0.1, r"\rho_-", "a refused step is cut to this share at least", "Nocedal 2006, 3.5")
    longest_cut: float = _rule(0.5, r"\rho_+", "a refused step is cut to this share at most", "Nocedal 2006, 3.5")
    shortest_step: float = _rule(2 / 3, "q", "steps shorter than the precision to this power are given up")
    unbounded: float = _rule(1e15, "f_0", "a scaled objective below minus this has no lower bound")
    # Penalty
    largest_beta: float = _rule(1e8, r"\beta_{\max}", "the penalty is not raised above this; that of a stiff model")
    near: float = _rule(0.01, r"\nu_0", "below this violation, an SQP step is first tried with a stiff model", off=0.0)
    beta_factor: float = _rule(2.0, r"\kappa", "the penalty is raised and lowered by this factor", off=1.0)
    violation_left: float = _rule(
        0.25, r"\eta", "an SQP step, or restoration, leaves at most this share of the violation", off=1.0
    )
    raises: int = _rule(4, "n_1", "the penalty is raised at most this many times at one point")
    # Multipliers
    adopted: float = _rule(
        0.1, r"\theta", "fitted multipliers whose size and residual are below this share replace lambda", off=0.0
    )
    # Units
    drift: float = _rule(10.0, r"\delta", "units are renewed if a gradient has changed by this factor", off=math.inf)
    ordinary: float = _rule(100.0, r"\ell", "a length of x within this factor of 1 or of D is left alone", off=math.inf)
    # Rows of the Jacobian
    few_rows: int = _rule(30, "m_0", "up to this many rows are worth a backward pass each", off=0)
    # Restoration
    patience: int = _rule(
        20, "n_3", "points without progress that end a phase; SQP points worth as many quasi-Newton passes"
    )
    update_weight: int = _rule(4, "n_4", "a multiplier update counts as this many of these points", off=1)
    fallen: float = _rule(0.9, r"\nu_1", "a violation below this share is progress")
    stationary: float = _rule(
        1e-6, r"\epsilon", "a violation is stationary if moving x by its size changes it by this share"
    )
    shove: float = _rule(0.01, r"\omega", "length of the second probe as a share of the size of x", off=0.0)

    def __post_init__(self) -> None:
        for rule in fields(self):
            value, whole = getattr(self, rule.name), isinstance(rule.default, int)
            if not (is_count(value) if whole else is_number(value) and value >= 0):
                kind = "an integer" if whole else "a number"
                raise ValueError(f"{rule.name} must be {kind} of at least 0, got {value!r}")


@dataclass(frozen=True)
class Settings:
    """The parameters of `AdaptiveGDPA`, which its phases read."""

    beta: float = 10.0
    memory: int = 20
    step: str = "auto"
    rules: Rules = field(default=Rules(), repr=False)

    def __post_init__(self) -> None:
        check_positive(beta=self.beta)
        check_count(1, memory=self.memory)
        if self.step not in ("auto", "pullback", "jacobian"):
            raise ValueError(f"step must be 'auto', 'pullback' or 'jacobian', got {self.step!r}")
        if not isinstance(self.rules, Rules):
            raise TypeError(f"rules must be a Rules of gdpa.methods.adaptive, got {self.rules!r}")


def table() -> str:
    """Return the rules as a Markdown table, for docs/adaptive.md.

    >>> print(table().splitlines()[2])
    | `sufficient_decrease` | $c$ | 0.0001 | share of the promised decrease that a trial delivers | Armijo 1966 |
    """
    lines = ["| rule | symbol | value | meaning | source |", "| --- | --- | --- | --- | --- |"]
    for rule in fields(Rules):
        about = rule.metadata
        value = f"{rule.default:g}" if isinstance(rule.default, float) else f"{rule.default}"
        lines.append(f"| `{rule.name}` | ${about['symbol']}$ | {value} | {about['meaning']} | {about['source']} |")
    return "\n".join(lines)
