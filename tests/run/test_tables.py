"""What is printed about constraints, against points whose values are known by hand."""

from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

from gdpa import GDPA, Evaluation, MaxSteps, Problem, Status, certify, from_functions, minimize, problems, solve
from gdpa.base.text import number, vector
from gdpa.run.result import MOST_ROWS, constraint_rows, html_table, most_violated, text_table


def lines_in(A, b, names=None, num_equalities=0):
    """min |x|^2 / 2 with A x <= b (the last ones as equalities)."""
    return from_functions(
        lambda x: x @ x / 2,
        lambda x: A @ x - b,
        gradient=lambda x: x,
        jacobian=lambda x: A,
        names=names,
        num_equalities=num_equalities,
    )


@pytest.fixture
def problem():
    # At (1, 0): "left" is violated by 2, "tight" is active with multiplier 0.5, "loose" is away, "even" holds.
    A = np.array([[1.0, 0.0], [-2.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    return lines_in(A, np.array([-1.0, -2.0, 5.0, 0.0]), ("left", "tight", "loose", "even"), num_equalities=1)


def test_the_rows_say_what_the_numbers_say(problem):
    rows = constraint_rows(certify(problem, np.array([1.0, 0.0])), 1e-6)
    assert [row.name for row in rows] == ["left", "tight", "even", "loose"]
    assert [row.value for row in rows] == [2.0, 0.0, 0.0, -5.0]
    assert [row.violation for row in rows] == [2.0, 0.0, 0.0, 0.0]
    assert [row.multiplier for row in rows] == pytest.approx([0.0, 0.5, 0.0, 0.0])
    assert [row.mark for row in rows] == ["violated", "active", "active", ""]


def test_an_equality_is_violated_on_either_side():
    problem = lines_in(np.eye(2), np.array([3.0, 3.0]), num_equalities=2)
    rows = constraint_rows(certify(problem, np.array([1.0, 4.0])), 1e-6)
    assert [(row.place, row.value, row.violation, row.mark) for row in rows] == [
        (0, -2.0, 2.0, "violated"),
        (1, 1.0, 1.0, "violated"),
    ]


@pytest.mark.parametrize("unit", [1e-9, 1.0, 1e9])
def test_the_marks_do_not_depend_on_the_unit_of_a_constraint(unit):
    A = unit * np.array([[1.0, 0.0], [-2.0, 0.0], [0.0, 1.0]])
    problem = lines_in(A, unit * np.array([-1.0, -2.0, 5.0]))
    rows = constraint_rows(certify(problem, np.array([1.0, 0.0])), 1e-6)
    assert [(row.place, row.mark) for row in rows] == [(0, "violated"), (1, "active"), (2, "")]


def test_a_value_that_is_not_finite_comes_first():
    problem = Problem(
        lambda x: Evaluation(x @ x, np.array([-1.0, np.nan]), lambda w, objective=1.0: 2 * x), names=("one", "log")
    )
    rows = constraint_rows(certify(problem, np.ones(2), np.zeros(2)), 1e-6)
    assert (rows[0].name, rows[0].mark) == ("log", "not finite")


def test_a_long_table_shows_the_worst_and_says_how_many_are_left():
    rng = np.random.default_rng(3)
    A = rng.normal(size=(300, 4))
    x = rng.normal(size=4)
    b = A @ x + rng.uniform(0.1, 5.0, size=300)
    b[[17, 250]] = (A @ x)[[17, 250]] - [1.0, 3.0]
    b[99] = (A @ x)[99]
    rows = constraint_rows(certify(lines_in(A, b), x), 1e-6)
    worst = sorted([17, 250], key=lambda i: -(A @ x - b)[i] * max(1, 1 / np.abs(A[i] * x).sum()))
    assert [row.place for row in rows[:3]] == [*worst, 99]
    lines = text_table(rows)
    assert len(lines) == MOST_ROWS + 2
    assert lines[-1] == f"... and {300 - MOST_ROWS} more"
    assert "g[250]" in lines[1] + lines[2]
    assert html_table(rows).endswith(f"<p>... and {300 - MOST_ROWS} more</p>")


def test_a_short_table_keeps_the_order_of_the_problem(problem):
    lines = text_table(constraint_rows(certify(problem, np.array([1.0, 0.0])), 1e-6))
    assert [line.split()[0] for line in lines] == ["constraint", "left", "tight", "loose", "even"]
    assert lines[1].split() == ["left", "2", "2", "0", "violated"]
    assert lines[2].split() == ["tight", "0", "0", "0.5", "active"]
    assert len({line.index("violation") + len("violation") for line in lines[:1]}) == 1


def test_no_constraints_no_table():
    free = from_functions(lambda x: x @ x, gradient=lambda x: 2 * x)
    rows = constraint_rows(certify(free, np.zeros(2)), 1e-6)
    assert (rows, text_table(rows), html_table(rows)) == ((), [], "")


def test_locally_infeasible_names_the_culprits():
    """No point lies in both discs; the third constraint has nothing to do with it."""
    problem = from_functions(
        lambda x: x @ x,
        lambda x: np.array([x @ x - 1, (x - 3) @ (x - 3) - 1, x[0] - 100]),
        gradient=lambda x: 2 * x,
        jacobian=lambda x: np.array([2 * x, 2 * (x - 3), [1.0, 0.0]]),
        names=("near disc", "far disc", "fence"),
    )
    result = solve(problem, np.zeros(2))
    assert result.status is Status.LOCALLY_INFEASIBLE
    sentence = result.message.partition("Most violated: ")[2]
    assert {"near disc", "far disc"} <= {part.rpartition(" by ")[0] for part in sentence.partition(". ")[0].split(", ")}
    assert "fence" not in result.message


def test_only_the_three_most_violated_are_named():
    problem = lines_in(np.eye(5), -np.arange(1.0, 6.0))
    certificate = certify(problem, np.zeros(5))
    assert most_violated(certificate, 1e-6) == "g[4] by 5, g[3] by 4, g[2] by 3, and 2 more"
    assert most_violated(certify(problem, np.full(5, -6.0)), 1e-6) == ""


class Cells(HTMLParser):
    """Reads the cells of every table, and the tags."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.cells, self._open = [], [], []  # type: ignore[var-annotated]
        self.feed(text)
        assert self._open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag not in ("br",):
            self._open.append(tag)
        if tag in ("td", "th"):
            self.cells.append("")

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        if self._open and self._open[-1] in ("td", "th"):
            self.cells[-1] += data


def test_a_notebook_gets_tables_with_escaped_names():
    problem = lines_in(np.eye(2), np.array([1.0, 2.0]), names=("<script>alert(1)</script>", 'a & "b"'))
    result = solve(problem, np.array([3.0, 4.0]))
    page = Cells(result._repr_html_())
    assert "script" not in page.tags
    assert page.tags.count("table") == 2
    assert {"<script>alert(1)</script>", 'a & "b"', "violation", "multiplier", "objective"} <= set(page.cells)


def test_minimize_prints_the_names_of_its_rows():
    found = minimize(lambda x: x @ x, [2.0], constraints={"type": "ineq", "fun": lambda x: x[0] - 1})
    assert "constraints['fun'][0] >= lb" in repr(found.result)


def test_a_long_name_is_cut():
    problem = lines_in(np.eye(1), np.zeros(1), names=("n" * 200,))
    line = repr(solve(problem, np.ones(1))).splitlines()[-1]
    assert line.split()[0] == "n" * 37 + "..."


def test_underflow_prints_as_zero():
    problem = lines_in(np.eye(2), np.array([-1.0, 5.0]))
    result = solve(problem, np.zeros(2), GDPA(), stop=MaxSteps(400))
    assert "e-1" not in text_table(constraint_rows(result.certificate, 1e-3))[2]


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([1.6e-288, 1.0], "[0, 1]"),
        ([1e-8, 1.0], "[1e-08, 1]"),
        ([np.nan, 1.0, np.inf], "[nan, 1, inf]"),
        ([0.0], "[0]"),
        ([], "[]"),
        (np.arange(9), "[0, 1, 2, ..., 6, 7, 8]"),
    ],
)
def test_vectors_read_well(values, text):
    assert vector(np.array(values, dtype=float)) == text


def test_vectors_of_every_library_read_alike(library):
    assert vector(library.array([1.0, 2.5], "float32")) == "[1, 2.5]"
    assert vector(library.array(2.5)) == number(2.5) == "2.5"


def test_b17_names_cannot_draw_on_the_terminal():
    hs = problems.get("HS12")
    problem = replace(hs.problem, names=("limit\n\x1b[2K\x1b[1Aa verdict of its own",))
    shown = repr(solve(problem, hs.x0)) + solve(problem, hs.x0)._repr_html_()
    assert "\x1b" not in shown
    assert r"limit\n\x1b[2K" in shown
