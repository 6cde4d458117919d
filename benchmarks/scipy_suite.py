"""SciPy's own tests of ``minimize`` with ``method=gdpa.minimize``: ``python -m benchmarks.scipy_suite``.

The tests are those of the installed SciPy (``scipy/optimize/tests``; SciPy's wheels have them). Nothing but the
method is changed: this module is also a pytest plugin that substitutes a function for ``scipy.optimize.minimize``
which calls SciPy's own with ``method=gdpa.minimize``, and `gdpa.minimize` for what ``fmin_slsqp`` and
``fmin_cobyla`` call. A test applies if it makes at least one such call. Two sets:

- constrained: the tests of SLSQP, trust-constr, COBYLA, COBYQA, of bounded Nelder-Mead and of constraint conversion;
  these five names, and the default if there are constraints, are replaced.
- general: test_optimize without the tests about one method; every name is replaced.
"""

from __future__ import annotations

import argparse
import functools
import inspect
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CONSTRAINED = ("slsqp", "trust-constr", "cobyla", "cobyqa", "nelder-mead")
#: What ``status`` means depends on the solver, and some tests read the code of the solver they name. Ours are SLSQP's.
#: Converged becomes a code that trust-constr does not have: a certificate is neither its gtol (1) nor its xtol (2).
STATUS = {"trust-constr": {0: 10, 9: 0, 99: 3}, "cobyla": {0: 1}, "cobyqa": {9: 6, 99: 3}}
#: Tests of test_optimize about one method and its own options, by their names.
ONE_METHOD = re.compile("Wrapper|IterationLimits|NewtonCg|LBFGSB|neldermead|powell|bfgs|ncg|trustregion|_cg")
#: Tests that do not pass, by how their names begin, with the reason.
KNOWN = {
    "test_slsqp::TestSLSQP::test_infeasible_initial": "0 to 1e-10 is asked for; -8e-10 has residuals of 8e-11",
    "test_slsqp::TestSLSQP::test_nested_minimization": "exactly 0 is asked for; differences of 1e-8 give 7e-9",
    "test_minimize_constrained::TestTrustRegionConstr::test_raise_exception": "an error about Hessians, not used here",
    "test_minimize_constrained::TestTrustRegionConstr::test_issue_9044": "a step from the solution is asked for",
    "test_minimize_constrained::test_gh20665_too_many_constraints": "an error about a factorization of trust-constr",
    "test_minimize_constrained::test_issue_18882": "no success is asked for; the problem is solved here",
    "test_cobyla::TestCobyla::test_minimize_constraint_violation": "success at a violation of 0.5 is asked for",
    "test_cobyqa::TestCOBYQA::test_minimize_simple": "one callback for each evaluation is asked for",
    "test_cobyqa::TestCOBYQA::test_minimize_array": "a TypeError is asked for; SLSQP's tests ask for a ValueError",
    "test_constraint_conversion::TestNewToOldSLSQP::test_list_of_problems": "a rotation of the electrons, as good",
    "test_constraint_conversion::TestNewToOldSLSQP::test_warn_ignored_options": "a sparsity of 42 is to be ignored",
    "test_constraint_conversion::TestNewToOldSLSQP::test_warn_mixed_constraints": "a warning about a cost of SLSQP",
    "test_optimize::TestOptimizeSimple::test_finite_differences_hess": "an error about Hessians, not used here",
    "test_optimize::TestOptimizeSimple::test_slsqp_respect_bounds": "exactly 0 is asked for; differences leave 2e-10",
    "test_optimize::TestOptimizeSimple::test_initial_step_scaling": "the first steps of CG and BFGS",
    "test_optimize::TestOptimizeSimple::test_runtime_warning": "a RuntimeWarning; ours is an OptimizeWarning",
    "test_optimize::TestOptimizeSimple::test_minimize_warnings_gh1953[powell]": "a RuntimeWarning, as above",
    "test_optimize::TestOptimizeSimple::test_callback_stopiteration": "of COBYLA its messages, of COBYQA one callback "
    "for each evaluation, of Nelder-Mead its count of iterations",
}
#: Seconds for one set.
LIMIT = 3600
SETS = {
    "constrained": (
        "test_slsqp.py",
        "test_minimize_constrained.py",
        "test_cobyla.py",
        "test_cobyqa.py",
        "test_constraint_conversion.py",
    ),
    "general": ("test_optimize.py",),
}


def folder() -> Path | None:
    """Return the folder of SciPy's tests, or None if this SciPy came without them."""
    import scipy.optimize

    found = Path(scipy.optimize.__file__).parent / "tests"
    return found if (found / "test_slsqp.py").exists() else None


# The plugin: pytest -p benchmarks.scipy_suite, with GDPA_SUITE=<set>:<file for the outcomes> in the environment.

_swapped = 0
_outcomes: list[dict[str, Any]] = []


def pytest_configure(config: Any) -> None:
    """Replace ``scipy.optimize.minimize`` before the test modules import it."""
    import scipy.optimize

    import gdpa

    original = scipy.optimize.minimize
    signature = inspect.signature(original)
    general = os.environ["GDPA_SUITE"].startswith("general")

    @functools.wraps(original)
    def minimize(*args: Any, **keywords: Any) -> Any:
        global _swapped
        given = signature.bind(*args, **keywords).arguments
        method = given.get("method")
        if method is None:
            method = "slsqp" if given.get("constraints") else "bfgs"
        if not isinstance(method, str) or not (general or method.lower() in CONSTRAINED):
            return original(**given)
        _swapped += 1
        found = original(**given | {"method": gdpa.minimize})
        found.status = STATUS.get(method.lower(), {}).get(found.status, found.status)
        return found

    def direct(*args: Any, **keywords: Any) -> Any:
        global _swapped
        _swapped += 1
        callback = keywords.pop("callback", None)
        if callback is not None:  # SciPy has wrapped it: it takes an intermediate result
            keywords["callback"] = lambda intermediate_result: callback(intermediate_result)
        return gdpa.minimize(*args, **keywords)

    scipy.optimize.minimize = minimize
    scipy.optimize._slsqp_py._minimize_slsqp = direct  # type: ignore[attr-defined]
    scipy.optimize._cobyla_py._minimize_cobyla = direct  # type: ignore[attr-defined]


def pytest_runtest_setup(item: Any) -> None:
    """Count the replaced calls of each test anew."""
    global _swapped
    _swapped = 0


def pytest_runtest_logreport(report: Any) -> None:
    """Note the outcome of every test that made a replaced call."""
    name = report.nodeid.partition("::")[2]
    if report.when != "call" or not _swapped or ONE_METHOD.search(name.partition("[")[0]):
        return
    crash = getattr(report.longrepr, "reprcrash", None)
    reason = "" if report.passed else str(getattr(crash, "message", report.longrepr)).strip()
    name = f"{report.location[0].rpartition('/')[2].removesuffix('.py')}::{name}"
    _outcomes.append({"test": name, "outcome": report.outcome, "reason": reason, "seconds": report.duration})


def pytest_sessionfinish() -> None:
    """Write the outcomes for the process that started this one."""
    Path(os.environ["GDPA_SUITE"].partition(":")[2]).write_text(json.dumps(_outcomes))


# The runner.


def run(name: str, select: str = "") -> list[dict[str, Any]]:
    """Run one set in a process of its own and return the outcomes of the tests that apply."""
    tests = folder()
    if tests is None:
        raise FileNotFoundError("this SciPy came without scipy/optimize/tests; install a wheel that has them")
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "outcomes.json"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "benchmarks.scipy_suite", "-p", "no:cacheprovider"]
        command += ["--rootdir", scratch, "-c", os.devnull, *(["-k", select] if select else [])]
        command += [str(tests / file) for file in SETS[name]]
        root = str(Path(__file__).parent.parent)
        environment = os.environ | {
            "GDPA_SUITE": f"{name}:{path}",
            "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")])),
        }
        ended = subprocess.run(command, env=environment, cwd=scratch, capture_output=True, text=True, timeout=LIMIT)
        if not path.exists():
            raise RuntimeError(f"pytest ended with {ended.returncode}:\n{ended.stdout[-2000:]}{ended.stderr[-2000:]}")
        outcomes: list[dict[str, Any]] = json.loads(path.read_text())
        return outcomes


def unexpected(outcomes: list[dict[str, Any]]) -> dict[str, str]:
    """Return the failures that are not `KNOWN`, with what they say."""
    return {
        o["test"]: o["reason"] for o in outcomes if o["outcome"] == "failed" and not o["test"].startswith(tuple(KNOWN))
    }


def report(name: str, outcomes: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the lines of the report: the count, then the failures grouped by the first line of their reason."""
    count = Counter(o["outcome"] for o in outcomes)
    yield f"{name}: {count['passed']} of {count['passed'] + count['failed']} passed, {count['skipped']} skipped"
    reasons = defaultdict(list)
    for o in outcomes:
        if o["outcome"] == "failed":
            known = next((why for test, why in KNOWN.items() if o["test"].startswith(test)), "")
            reasons[f"known: {known}" if known else " ".join(o["reason"].split())[:150]].append(o["test"])
    for reason, tests in sorted(reasons.items(), key=lambda item: -len(item[1])):
        yield f"  {len(tests)}  {reason}"
        yield from (f"       {test}" for test in tests)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="*", default=list(SETS), help=f"of {', '.join(SETS)}; default: all")
    parser.add_argument("-k", default="", help="pytest's selection of tests")
    parser.add_argument("--json", type=Path, help="write the outcomes to this file too")
    options = parser.parse_args()
    outcomes = {name: run(name, options.k) for name in options.sets}
    for name, found in outcomes.items():
        print("\n".join(report(name, found)))
    if options.json:
        options.json.write_text(json.dumps(outcomes, indent=1))


if __name__ == "__main__":
    main()
