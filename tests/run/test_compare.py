"""Methods side by side: one budget for all, honest counts, refusals as rows, and the docs' table from the classes."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from gdpa import GDPA, compare, method_names, problems
from gdpa.run.compare import draw, report, tuned

ROOT = Path(__file__).parents[2]


def test_all_methods_share_problem_start_and_budget() -> None:
    known = problems.get("disc-square")
    rows = compare(known.problem, known.x0, passes=600, tolerance=1e-3)
    assert [row.name for row in rows] == list(method_names())
    for row in rows:
        if row.result is None:
            assert row.name == "proximal-admm"
            continue
        # an update may overdraw the budget by its own passes only
        assert row.result.forwards + row.result.backwards <= 600 + 20
        assert row.result.success or row.result.forwards + row.result.backwards >= 600


def test_passes_are_read_off_the_history() -> None:
    known = problems.get("disc-square")
    (row,) = compare(known.problem, known.x0, [("mine", GDPA(0.01, 1.0, 0.01))], passes=4000)
    passes, best = row.curve()
    assert row.name == "mine"
    assert (np.diff(best) <= 0).all()
    n = row.passes_to(1e-2)
    assert n in passes
    assert best[passes < n].min() > 1e-2 >= best[passes == n][0]
    assert math.isinf(row.passes_to(1e-12))


def test_the_table_has_a_line_for_every_method_and_a_reason_for_refusals() -> None:
    known = problems.get("HS71")
    rows = compare(known.problem, known.x0, ["pdd", "iqrc"], passes=200)
    lines = report(rows, tolerances=(1e-2,)).splitlines()
    assert len(lines) == 3
    assert lines[1].startswith("pdd")
    assert "1 constraints are equalities" in lines[2]


def test_the_figure_has_a_curve_for_every_method_that_ran() -> None:
    known = problems.get("disc-square")
    rows = compare(known.problem, known.x0, ["pdd", "gda", "proximal-admm"], passes=100)
    figure, axes = plt.subplots()
    draw(rows, axes)
    assert [line.get_label() for line in axes.lines] == ["pdd", "gda"]
    plt.close(figure)


def test_tuned_falls_back_on_the_defaults() -> None:
    assert tuned("gdpa").tau == 0.01  # type: ignore[attr-defined]
    assert type(tuned("adaptive-gdpa")).__name__ == "AdaptiveGDPA"


def test_the_example_prints_a_table_and_draws_a_figure(tmp_path: Path, capsys: Any) -> None:
    spec = importlib.util.spec_from_file_location("compare_methods", ROOT / "examples" / "compare_methods.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.main("disc-square", str(tmp_path), "1000")
    printed = capsys.readouterr().out
    assert all(name in printed for name in method_names())
    assert (tmp_path / "disc-square.png").stat().st_size > 10_000
