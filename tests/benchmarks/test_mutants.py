"""The mutation tester itself: every mutant differs from the source, parses, and a wrong formula is noticed."""

import ast

from benchmarks import mutants

SOURCE = (mutants.PACKAGE / "lagrangian.py").read_text()


def test_every_mutant_parses_and_differs_in_one_place():
    found = list(mutants.mutants_of("lagrangian.py", SOURCE))
    assert len(found) > 30
    plain = ast.unparse(ast.parse(SOURCE))
    for mutant in found:
        pairs = zip(plain.splitlines(), ast.unparse(ast.parse(mutant.source)).splitlines(), strict=True)
        assert sum(old != new for old, new in pairs) == 1, mutant.change


def test_a_wrong_weight_is_killed_and_the_right_source_survives(monkeypatch):
    wrong = next(m for m in mutants.mutants_of("lagrangian.py", SOURCE) if "self.beta * constraints ->" in m.change)
    tests = ["tests/test_lagrangian.py::test_equalities_keep_their_sign_and_always_pass_the_gate"]
    assert mutants.is_killed(wrong, tests)
    assert not mutants.is_killed(wrong._replace(source=SOURCE), tests)


def test_the_table_counts_by_file():
    rows = [{"path": "a.py", "killed": k, "line": 1, "change": "x -> y"} for k in (True, True, False)]
    assert "| a.py | 3 | 2 | 66.7% |" in mutants.table(rows)
    assert "- `a.py:1` `x -> y`" in mutants.table(rows)
