"""The mutation tester itself: every mutant differs from the source, parses, and a wrong formula is noticed."""

import ast
from collections import Counter
from multiprocessing.forkserver import _forkserver
from pathlib import Path

import pytest

from benchmarks import mutant_runs, mutants

SOURCE = (mutants.PACKAGE / "core/lagrangian.py").read_text()


def test_every_mutant_parses_and_differs_in_one_place():
    found = list(mutants.mutants_of("core/lagrangian.py", SOURCE))
    assert len(found) > 30
    plain = ast.unparse(ast.parse(SOURCE))
    for mutant in found:
        pairs = zip(plain.splitlines(), ast.unparse(ast.parse(mutant.source)).splitlines(), strict=True)
        assert sum(old != new for old, new in pairs) == 1, mutant.change


def test_the_named_tests_are_there():
    for place, words in mutants.TESTS.items():
        assert (mutants.PACKAGE / place).exists(), place
        named = [word.partition("::")[0] for word in words if word.startswith("tests/")]
        assert [name for name in named if not (mutant_runs.ROOT / name).exists()] == []


def one(change):
    return next(m for m in mutants.mutants_of("core/lagrangian.py", SOURCE) if change in m.change)


def judged(mutant, tests):
    return mutants.judged(mutant, tests, Counter())


TESTS = ["tests/core/test_lagrangian.py", "-k", "equalities_keep or residual_violation"]


@pytest.fixture(scope="module")
def tests():
    _forkserver._stop()  # type: ignore[attr-defined]  # tests of other files may have started it, with gdpa loaded
    return mutants.measured(TESTS, ["core/lagrangian.py"])


def test_a_wrong_weight_is_killed_and_the_right_source_survives(tests):
    wrong = one("self.beta * constraints ->")
    assert judged(wrong, tests) in tests.seconds
    assert not judged(wrong._replace(source=SOURCE), tests)


def test_a_mutant_that_does_not_import_or_loops_forever_is_killed(tests):
    wrong = one("self.beta * constraints ->")
    assert judged(wrong._replace(source=SOURCE + "\n1 / 0\n"), tests) == "import"
    endless = SOURCE.replace("        return positive_part(shifted", "        while True: pass\n        return (")
    assert endless != SOURCE
    assert judged(wrong._replace(source=SOURCE.replace("inside = q > 0", "while True: pass")), tests)


def test_a_mutant_runs_the_tests_that_execute_its_line(tests):
    gated = tests.executing("core/lagrangian.py", one("q > 0 ->").statement)
    assert gated == ["tests/core/test_lagrangian.py::test_equalities_keep_their_sign_and_always_pass_the_gate"]
    seconds = list(tests.seconds.values())
    assert seconds == sorted(seconds)
    assert tests.executing("core/lagrangian.py", range(1, 2)) == []


def test_a_change_that_no_test_executes_survives(tests):
    wrong = one("q > 0 ->")
    assert not judged(wrong._replace(statement=range(1, 2), source="1 / 0"), tests)


def test_a_budget_leaves_the_slow_tests_out(tests):
    wrong = one("self.beta * constraints ->")._replace(at_import=True)
    killer = mutants.judged(wrong, tests, Counter())
    assert killer is not None
    slow = tests._replace(seconds={"gdpa.core.lagrangian.AugmentedLagrangian.residual_violation": 1.0, killer: 10.0})
    assert mutants.judged(wrong, slow, Counter(), budget=11.0) == killer
    assert mutants.judged(wrong, slow, Counter(), budget=10.9) is None
    assert mutants.judged(wrong, slow, Counter({killer: 99}), budget=10.9) == killer  # it comes first now


def test_statements_at_import_and_in_functions():
    source = """
LIMIT = (
    1 +
    2
)
def f(a=3):
    if a > 4:
        return (a +
                5)
    return 6
class C:
    b = 7
"""
    found = {m.change.split(" -> ")[0]: (m.statement, m.at_import) for m in mutants.mutants_of("m.py", source)}
    assert found["2"] == (range(2, 6), True)
    assert found["3"] == (range(6, 7), True)
    assert found["4"] == (range(7, 8), False)
    assert found["5"] == (range(8, 10), False)
    assert found["6"] == (range(10, 11), False)
    assert found["7"] == (range(12, 13), True)


def test_a_mutant_is_a_package_of_links_but_for_its_own_file(tmp_path):
    package = Path(mutant_runs._compiled().name)
    mutant_runs._link(package, tmp_path / "gdpa", Path("methods/adaptive/units.py"))
    changed = tmp_path / "gdpa" / "methods" / "adaptive"
    assert not (changed / "units.py").exists()
    assert not list((changed / "__pycache__").glob("units.*"))
    assert (changed / "state.py").resolve() == package / "methods" / "adaptive" / "state.py"
    assert list((changed / "__pycache__").glob("state.*"))
    for folder in (changed, changed / "__pycache__", changed.parent, changed.parent.parent):
        assert not folder.is_symlink()  # what is written there reaches no other package


def test_the_installed_package_is_not_tested_in_place_of_the_copy(tests, monkeypatch):
    """Without its own copy, Python would find the installed package."""
    monkeypatch.setattr(mutant_runs, "_link", lambda package, target, path: (target / path).parent.mkdir(parents=True))
    with pytest.raises(RuntimeError, match="did not run on the mutant"):
        judged(one("q > 0 ->"), tests)


def test_the_table_counts_by_file():
    rows = [{"path": "a.py", "killed": k, "line": 1, "change": "x -> y"} for k in (True, True, False)]
    assert "| a.py | 3 | 2 | 66.7% |" in mutants.table(rows)
    assert "- `a.py:1` `x -> y`" in mutants.table(rows)


def test_the_table_says_why_a_survivor_changes_nothing():
    (path, change), why = next(iter(mutants.EQUIVALENT.items()))
    row = {"path": path, "killed": False, "line": 7, "change": change}
    assert mutants.table([row]).endswith(f"- `{path}:7` `{change}` (equivalent: {why})")
