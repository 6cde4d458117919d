"""Does the start decide? Far starts, starts at the solution, restarts, and policies from zero: ``gdpa.minimize``.

python -m benchmarks.starts            # all parts; prints the table
python -m benchmarks.starts far --save # one part; keeps its records in results/starts/
"""

from __future__ import annotations

import os

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):  # before NumPy is loaded
    os.environ[_name] = "1"

import argparse  # noqa: E402
import sys  # noqa: E402
import warnings  # noqa: E402
from collections.abc import Callable, Iterator  # noqa: E402
from dataclasses import replace  # noqa: E402
from functools import partial  # noqa: E402
from typing import Any  # noqa: E402

import numpy as np  # noqa: E402

import gdpa  # noqa: E402
from benchmarks.nonlinear import suite  # noqa: E402
from benchmarks.nonlinear.equalities import posed  # noqa: E402
from benchmarks.provenance import Study, markdown, told  # noqa: E402
from benchmarks.units.problems import CASES  # noqa: E402
from benchmarks.units.runs import MAXITER, Posed, Units, judge  # noqa: E402
from benchmarks.units.runs import solve as solve_units  # noqa: E402

Row = dict[str, Any]
DISTANCES = (2, 4, 6, 8, 10)
#: Limits of a random model, as shares of the way from the utility of the best policy to the largest utility.
SHARES = (0.25, 0.5, 0.75)


def far() -> Iterator[Row]:
    """The problems of `benchmarks.units` from starts 10^2 to 10^10 away, both ways along a fixed direction."""
    for index, case in enumerate(CASES):
        d = len(case.x)
        way = np.random.default_rng(index).choice([-1.0, 1.0], d) * np.random.default_rng(index).uniform(0.5, 1, d)
        for power in DISTANCES:
            x0 = np.array(case.x0, dtype=float) + 10.0**power * way
            x0 = np.clip(x0, case.lower, case.upper)
            if np.abs(x0 - np.array(case.x0)).max() < 10:
                continue  # the bounds keep it near
            given = Posed(replace(case, x0=tuple(x0)), Units(1.0, 1.0, 1.0))
            if not np.isfinite([given.fun(x0), *given.grad(x0)]).all():
                continue  # an exponential that overflows
            found = solve_units(given, "gdpa")
            verdict = judge(case, np.asarray(found.x), bool(found.success))
            yield {"problem": case.name, "case": f"1e{power}", "verdict": verdict, "nfev": int(found.nfev)}


def solution() -> Iterator[Row]:
    """The Hock-Schittkowski problems again from their solution, with and without its multipliers."""
    yield from _again([name for name in suite.names() if suite.is_development(name)])


def restart() -> Iterator[Row]:
    """Thirty problems with equalities, spread over the set, again from the point that succeeded."""
    yield from _again([row["name"] for row in suite.with_equalities() if row["set"] == "eq"][::4], most=30)


def _again(names: list[str], most: int | None = None) -> Iterator[Row]:
    done = 0
    for name in names:
        case = suite.load(name)
        arguments, options = posed(case), {"maxiter": MAXITER}
        first = gdpa.minimize(x0=case.x0, options=options, **arguments)
        if not first.success:
            if most is None:
                yield {"problem": name, "case": "first", "success": False, "nfev": int(first.nfev)}
            continue
        for kind, more in (("x", {}), ("x and multipliers", {"multipliers0": first.multipliers})):
            found = gdpa.minimize(x0=first.x, options=options | more, **arguments)
            yield {"problem": name, "case": kind, "success": bool(found.success), "nfev": int(found.nfev)}
        done += 1
        if done == most:
            return


def policies() -> Iterator[Row]:
    """Softmax policies of random models from theta = 0, against the linear program."""
    from scipy.optimize import NonlinearConstraint, linprog

    for states, seed in ((20, 0), (30, 1), (40, 2), (50, 3)):
        rng, actions, gamma = np.random.default_rng(seed), 6, 0.9
        T = rng.uniform(0, 1, (states * actions, states))
        T /= T.sum(1, keepdims=True)
        reward, utility = rng.uniform(0, 1, (2, states * actions))
        rho = np.full(states, 1 / states)
        flow = np.repeat(np.eye(states), actions, axis=1) - gamma * T.T
        top = utility @ linprog(-utility, A_eq=flow, b_eq=rho).x
        low = utility @ linprog(-reward, A_eq=flow, b_eq=rho).x
        value = _policy_values(T, (reward, utility), rho, gamma)
        for share in SHARES:
            limit = low + share * (top - low)
            best = reward @ linprog(-reward, A_ub=-utility[None], b_ub=[-limit], A_eq=flow, b_eq=rho).x
            found = gdpa.minimize(
                partial(_part, value, 0, 0, -1.0),
                np.zeros(states * actions),
                jac=partial(_part, value, 0, 1, -1.0),
                constraints=NonlinearConstraint(
                    partial(_part, value, 1, 0, 1.0), limit, np.inf, jac=partial(_part, value, 1, 1, 1.0)
                ),
                tol=1e-5,
                options={"maxiter": 3000},
            )
            gap = max((best + found.fun) / best, (limit - value(found.x)[1][0]) / limit)
            row = {"problem": f"{states} states", "case": f"{share:g}", "gap": gap, "status": int(found.status)}
            yield row | {"success": bool(found.success), "nfev": int(found.nfev)}


def _part(value: Callable[[Any], Any], signal: int, order: int, sign: float, x: Any) -> Any:
    """Return value (order 0) or gradient (order 1) of a signal, with a sign."""
    return sign * value(x)[signal][order]


def _policy_values(T: Any, signals: Any, rho: Any, gamma: float) -> Callable[[Any], list[tuple[float, Any]]]:
    """Return the function that maps theta to value and gradient of each signal under its softmax policy."""
    states = len(rho)
    actions = len(T) // states

    def at(theta: Any) -> list[tuple[float, Any]]:
        logits = theta.reshape(states, actions)
        e = np.exp(logits - logits.max(1, keepdims=True))
        pi = e / e.sum(1, keepdims=True)
        G = np.eye(states) - gamma * np.einsum("sa,sat->st", pi, T.reshape(states, actions, states))
        visits, out = np.linalg.solve(G.T, rho), []
        for signal in signals:
            V = np.linalg.solve(G, (pi * signal.reshape(states, actions)).sum(1))
            Q = (signal + gamma * T @ V).reshape(states, actions)
            out.append((float(rho @ V), (visits[:, None] * pi * (Q - V[:, None])).ravel()))
        return out

    return at


def limits() -> Iterator[Row]:
    """Thirty-three limits one after the other, each from the result before it, and each on its own."""
    for name, (x0, arguments, grid) in _families().items():
        before = None
        for index, limit in enumerate(grid):
            given = arguments(limit)
            cold = gdpa.minimize(x0=x0, **given)
            warm = cold if before is None else gdpa.minimize(after=before, **given)
            before = warm
            same = abs(warm.fun - cold.fun) <= 1e-4 * max(1.0, abs(cold.fun))
            row = {"problem": name, "case": str(index), "cold": int(cold.nfev), "after": int(warm.nfev)}
            yield row | {"success": bool(cold.success and warm.success), "same": bool(same)}


def _families() -> dict[str, tuple[Any, Callable[[Any], dict[str, Any]], Any]]:
    """Return a start, the arguments of `minimize` for a limit, and the limits of three problems."""
    from scipy.optimize import NonlinearConstraint, rosen, rosen_der

    rng = np.random.default_rng(0)
    negative = np.hstack([rng.normal(size=(300, 20)), np.ones((300, 1))])
    positive = np.hstack([rng.normal(size=(200, 20)) + 0.35, np.ones((200, 1))])

    def loss(w: Any, A: Any, sign: float) -> Any:
        return np.logaddexp(0.0, sign * (A @ w)).mean()

    def slope(w: Any, A: Any, sign: float) -> Any:
        return sign * (1 / (1 + np.exp(-sign * (A @ w)))) @ A / len(A)

    def neyman_pearson(limit: float) -> dict[str, Any]:
        row = NonlinearConstraint(
            lambda w: loss(w, negative, 1.0), -np.inf, limit, jac=lambda w: slope(w, negative, 1.0)
        )
        return {"fun": lambda w: loss(w, positive, -1.0), "jac": lambda w: slope(w, positive, -1.0), "constraints": row}

    def ring(limit: float) -> dict[str, Any]:
        row = NonlinearConstraint(lambda x: x @ x, limit - 0.5, limit, jac=lambda x: 2 * x)
        return {"fun": rosen, "jac": rosen_der, "constraints": row}

    center, A = rng.normal(size=15), rng.normal(size=(15, 15)) / 4
    H = A @ A.T + np.eye(15)

    def two(limit: tuple[float, float]) -> dict[str, Any]:
        rows = NonlinearConstraint(
            lambda x: np.array([x @ x, np.logaddexp.reduce(x)]),
            -np.inf,
            np.array(limit),
            jac=lambda x: np.stack([2 * x, np.exp(x - np.logaddexp.reduce(x))]),
        )
        return {
            "fun": lambda x: float((x - center) @ H @ (x - center) / 2 + 0.1 * ((x - center) ** 4).sum()),
            "jac": lambda x: H @ (x - center) + 0.4 * (x - center) ** 3,
            "constraints": rows,
        }

    return {
        "Neyman-Pearson": (np.zeros(21), neyman_pearson, np.linspace(0.65, 0.3, 33)),
        "ring": (np.full(10, 0.3), ring, np.linspace(9.0, 2.0, 33)),
        "two limits": (np.zeros(15), two, list(zip(np.linspace(9, 4, 33), np.linspace(2.9, 3.1, 33), strict=True))),
    }


PARTS: dict[str, Callable[[], Iterator[Row]]] = {
    "far": far, "solution": solution, "restart": restart, "policies": policies, "limits": limits,
}  # fmt: skip


def table(rows: list[Row]) -> str:
    """Return the figures of all parts, in Markdown.

    >>> row = {"part": "far", "problem": "disc", "case": "1e2", "verdict": "right", "nfev": 9}
    >>> print(table([row]).splitlines()[2])
    | starts 1e2 to 1e10 away | 1 of 1 right (0 at another KKT point), **0 false** |
    """
    parts = {part: [row for row in rows if row["part"] == part] for part in PARTS}
    lines = []
    if found := parts["far"]:
        right, other, false = (sum(r["verdict"] == v for r in found) for v in ("right", "other", "false"))
        cell = f"{right + other} of {len(found)} right ({other} at another KKT point), **{false} false**"
        lines.append(["starts 1e2 to 1e10 away", cell])
    for part, most, name in (
        ("solution", 2, "66 Hock-Schittkowski problems from their solution"),
        ("restart", 3, "problems with equalities from the point that succeeded"),
    ):
        for kind in ("x", "x and multipliers"):
            if found := [r for r in parts[part] if r["case"] == kind]:
                quick = sum(r["success"] and r["nfev"] <= most for r in found)
                said = sum(r["success"] for r in found)
                cell = f"{said} of {len(found)} succeed, {quick} within {most} evaluations"
                lines.append([f"{name}, {kind}", cell])
    if found := parts["policies"]:
        gaps, claims = [r["gap"] for r in found], sum(r["status"] == 4 for r in found)
        cell = f"median gap {np.median(gaps):.0e}, largest {max(gaps):.0e}, {claims} called infeasible"
        lines.append([f"{len(found)} softmax policies from zero", cell])
    for name in dict.fromkeys(r["problem"] for r in parts["limits"]):
        found = [r for r in parts["limits"] if r["problem"] == name][1:]  # the first one has no result before it
        cold, warm = (sum(r[key] for r in found) for key in ("cold", "after"))
        failed, other = (sum(not r[key] for r in found) for key in ("success", "same"))
        cell = f"{warm / cold:.2f} ({warm / len(found):.1f} of {cold / len(found):.1f}), {failed} not solved"
        cell += f", {other} at another minimum" if other else ""
        lines.append([f"{name}, {len(found)} limits: evaluations with `after` over cold", cell])
    text = markdown(["measure", "gdpa.minimize"], lines)
    origin = told(rows)
    return f"{text}\n\n{origin}" if origin else text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="default: all")
    parser.add_argument("--save", action="store_true", help="keep the records in results/starts/")
    options = parser.parse_args()
    rows: list[Row] = []
    for part in options.parts or PARTS:
        study = Study("benchmarks.starts", "starts", part=part)
        new = []
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")  # of values that overflow on the way
            for row in PARTS[part]():
                new.append({"part": part, **row})
                sys.stderr.write(f"{part} {row}\n")
        rows += study.replace(new) if options.save else new
    print(table(rows))


if __name__ == "__main__":
    main()
