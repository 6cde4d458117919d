"""Compute a certificate again from its receipt and the problem."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from importlib import import_module
from operator import attrgetter
from typing import Any

import numpy as np

from gdpa.base.arrays import largest, max_norm, namespace, positive_part, to_numpy
from gdpa.base.checks import is_number
from gdpa.base.text import make_printable, number, vector
from gdpa.core.certificate import Certificate, certificate_from, is_whole
from gdpa.core.problem import Evaluation, Problem, as_problem
from gdpa.core.units import ROUNDINGS, lengths_of, nearby, units_at
from gdpa.files.receipt import Receipt, load_receipt
from gdpa.run.result import constraint_rows, text_table
from gdpa.run.solve import default_tolerance

#: Values that differ by more roundings of their terms than this are others: another machine may add up differently.
MOST_ROUNDINGS = 1e4


@dataclass(frozen=True)
class Verification:
    """The contradictions that `verify` found, one sentence each (``findings``), at the given ``tolerance``.

    ``certificate`` is computed again at the receipt's point with its multipliers; None if the problem is so different
    that there is none.
    """

    receipt: Receipt
    certificate: Certificate | None
    tolerance: float
    findings: tuple[str, ...]

    @property
    def holds(self) -> bool:
        """Whether problem and receipt fit each other and the recomputed residuals meet the tolerance."""
        return not self.findings

    def __str__(self) -> str:
        receipt, certificate = self.receipt, self.certificate
        lines = [
            f"receipt     {receipt.source}, written by gdpa {make_printable(receipt.gdpa)}",
            f"point       {vector(receipt.x)}, SHA-256 {receipt.sha256['point'][:16]}...",
        ]
        if certificate is not None:
            lines += [
                f"objective   {vector(np.asarray(certificate.objective), 8)}",
                f"residuals   {certificate}",
                *text_table(constraint_rows(certificate, self.tolerance)),
            ]
        lines += [f"- {finding}" for finding in self.findings]
        verdict = "holds" if self.holds else "does not hold"
        return "\n".join([*lines, f"The certificate {verdict} at the relative tolerance {self.tolerance:g}."])


def verify(problem: Any, receipt: str | os.PathLike[str] | Receipt, *, tolerance: float | None = None) -> Verification:
    """Compute the certificate of a receipt again and compare.

    The point and the multipliers are the receipt's, all else is computed from the problem: two forward and m + 3
    backward passes at most. The receipt holds if the problem has the recorded constraints, f and g have the recorded
    values up to rounding, x lies in X, the multipliers of inequalities are nonnegative, and the relative residuals are
    at most ``tolerance``.

    Args:
        problem: a `Problem`, or an object whose attribute ``problem`` is one, such as `from_module` returns.
        receipt: the file that ``certificate.save(path)`` wrote, or `load_receipt` of it.
        tolerance: default as in `solve`, by the precision of x, or the receipt's if that is tighter.

    Example:
        >>> import tempfile
        >>> from gdpa import problems, solve
        >>> disc = problems.get("disc-product")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     solve(disc.problem, disc.x0).certificate.save(f"{folder}/receipt.json")
        ...     verify(disc.problem, f"{folder}/receipt.json").holds
        True
    """
    problem = as_problem(problem)
    receipt = receipt if isinstance(receipt, Receipt) else load_receipt(receipt)
    given = default_tolerance(receipt.x) if tolerance is None else tolerance
    if tolerance is None and receipt.tolerance is not None:
        given = min(given, receipt.tolerance)
    if not (is_number(given) and given > 0):
        raise ValueError(f"tolerance must be a positive number, got {given!r}")
    x, m = receipt.x, receipt.constraints.shape[-1]
    try:
        problem.domain.check_dimension(x.shape[-1])
        now = problem.evaluate(x)
        found = (now.constraints.shape[-1], problem.num_equalities)
    except Exception as error:
        error.add_note(f"raised at the point of {receipt.source}, of {x.shape[-1]} coordinates: is it its problem?")
        raise
    if found != (m, receipt.equalities):
        other = f"another problem: {found[0]} constraints, {found[1]} of them equalities"
        return Verification(receipt, None, given, (f"{other}; the receipt has {m} and {receipt.equalities}",))
    lengths = lengths_of(problem.x_scale, x, now)
    units = units_at(lengths, nearby(problem, x, now, lengths), x, now, is_whole(x, now))
    gradient = now.pullback(receipt.multipliers)
    certificate = certificate_from(
        problem, lengths, units, now.objective, now.constraints, x, receipt.multipliers, gradient
    )
    findings = [*_other_values(problem, receipt, certificate, now), *_outside(problem, receipt)]
    if not certificate.holds(given):
        worst = number(largest(certificate.relative.worst), 3)
        findings.append(f"the largest relative residual is {worst}, above {given:g}")
    return Verification(receipt, certificate, given, tuple(findings))


def _other_values(problem: Problem, receipt: Receipt, certificate: Certificate, now: Evaluation) -> list[str]:
    """Compare names, f and g with the receipt's."""
    findings = []
    if problem.names != receipt.names:
        findings.append(f"the constraints are called {_brief(problem.names)}; the receipt has {_brief(receipt.names)}")
    lengths, rounding = to_numpy(certificate.lengths), to_numpy(certificate.units.rounding)
    terms = np.sum(np.abs(to_numpy(now.gradient())) * lengths, axis=-1, keepdims=True)
    eps = MOST_ROUNDINGS * float(np.finfo(lengths.dtype).eps)
    for name, value, recorded, allowed in (
        ("f", to_numpy(now.objective)[..., None], receipt.objective[..., None], eps * terms),
        ("g", to_numpy(now.constraints), receipt.constraints, MOST_ROUNDINGS / ROUNDINGS * rounding),
    ):
        with np.errstate(invalid="ignore"):
            near = np.abs(value - recorded) <= eps * np.abs(recorded) + allowed
        far = ~(near | (value == recorded) | (np.isnan(value) & np.isnan(recorded)))
        if far.any():
            i = int(np.argmax(far.reshape(-1, far.shape[-1]).any(axis=0)))
            called = name if name == "f" else certificate.constraint_name(i)
            was, found = (float(v.reshape(-1, v.shape[-1])[:, i].max()) for v in (recorded, value))
            findings.append(f"the value of {called} at x is {number(found, 12)}; the receipt has {number(was, 12)}")
    return findings


def _outside(problem: Problem, receipt: Receipt) -> list[str]:
    """Check that x lies in X and that multipliers have the right sign."""
    x, findings = receipt.x, []
    eps = float(namespace(x).finfo(x.dtype).eps)
    if np.any(to_numpy(max_norm(problem.domain.project(x) - x)) > 10 * eps * to_numpy(max_norm(x))):
        findings.append("x lies outside the set X of the problem")
    if bool(namespace(x).any(positive_part(receipt.multipliers, receipt.equalities) != receipt.multipliers)):
        findings.append("a multiplier of an inequality is negative")
    return findings


def _brief(names: tuple[str, ...] | None) -> str:
    if names is None:
        return "nothing"
    return ", ".join(map(make_printable, names[:3])) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def import_problem(name: str) -> Problem:
    """Return the problem called ``module:attribute``: a problem, or a function without arguments that makes one.

    Modules of the current folder can be named.

    >>> import_problem("gdpa.oracles.library:nonsense")
    Traceback (most recent call last):
    ...
    ValueError: gdpa.oracles.library has no attribute 'nonsense'
    """
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise ValueError(f"the problem must be given as module:attribute, got {name!r}")
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    module = import_module(module_name)
    try:
        found: Any = attrgetter(attribute)(module)
    except AttributeError:
        raise ValueError(f"{module_name} has no attribute {attribute!r}") from None
    return as_problem(found() if callable(found) and not isinstance(found, Problem) else found)
