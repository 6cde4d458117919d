"""SciPy's own tests of minimize, with method=gdpa.minimize: those that pass keep passing."""

import pytest

from benchmarks.scipy_suite import KNOWN, SETS, folder, report, run, unexpected

needs_tests = pytest.mark.skipif(
    folder() is None, reason="this SciPy came without scipy/optimize/tests; install SciPy's wheel to run them"
)


@needs_tests
@pytest.mark.campaign
@pytest.mark.parametrize(("name", "applying", "failing"), [("constrained", 290, 11), ("general", 350, 15)])
def test_scipys_own_tests(name, applying, failing):
    outcomes = run(name)
    assert len(outcomes) >= applying
    assert unexpected(outcomes) == {}
    assert sum(o["outcome"] == "failed" for o in outcomes) <= failing


@needs_tests
def test_only_what_calls_minimize_applies():
    # The second ends by a skip before it calls anything.
    outcomes = run("constrained", "test_minimize_bounded_approximated or 3-point-3-point-prob0")
    assert [o["test"] for o in outcomes] == ["test_slsqp::TestSLSQP::test_minimize_bounded_approximated"]


def test_the_report_groups_failures_and_names_reasons():
    known = next(iter(KNOWN))
    outcomes = [
        {"test": "a", "outcome": "passed", "reason": ""},
        {"test": "b", "outcome": "failed", "reason": "ValueError:\n mine"},
        {"test": "c", "outcome": "failed", "reason": "ValueError: mine"},
        {"test": f"{known}[1]", "outcome": "failed", "reason": "AssertionError"},
    ]
    assert unexpected(outcomes) == {"b": "ValueError:\n mine", "c": "ValueError: mine"}
    assert list(report("set", outcomes)) == [
        "set: 1 of 4 passed, 0 skipped",
        "  2  ValueError: mine",
        "       b",
        "       c",
        f"  1  known: {KNOWN[known]}",
        f"       {known}[1]",
    ]
    assert all(test.split("::")[0] + ".py" in [file for files in SETS.values() for file in files] for test in KNOWN)
