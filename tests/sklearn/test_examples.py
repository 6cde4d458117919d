"""The examples run, and print what their texts promise."""

import re
import runpy
import sys
from pathlib import Path

import pytest

from gdpa.paper.data.adult import load_adult
from gdpa.paper.data.images import DataNotAvailableError

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(monkeypatch, capsys, name, *arguments):
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    return capsys.readouterr().out


@pytest.mark.parametrize("name", ["neyman_pearson_sklearn.py", "fair_adult.py"])
def test_examples_stay_short(name):
    assert len((EXAMPLES / name).read_text().splitlines()) <= 40


def test_neyman_pearson(monkeypatch, capsys):
    out = run(monkeypatch, capsys, "neyman_pearson_sklearn.py")
    assert "certified: True" in out
    (others,) = re.findall(r"limit with a guarantee .* others ([0-9.]+)", out)
    assert float(others) <= 0.05


def test_fair_adult(monkeypatch, capsys):
    try:
        load_adult()
    except DataNotAvailableError as error:
        pytest.skip(f"UCI Adult cannot be fetched here: {error}")
    out = run(monkeypatch, capsys, "fair_adult.py", "80")  # every 80th row
    assert out.count("not met: none") == 4
    assert "selection rate of Female" in out


def test_the_code_of_the_page_runs_and_meets_its_limits(capsys):
    page = (EXAMPLES.parent / "docs" / "sklearn.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    assert len(blocks) == 3
    names: dict = {}
    for block in blocks:
        exec(compile(block, "sklearn.md", "exec"), names)
        assert names["result"].unmet_ == [], block
        assert names["result"].certificate_.holds(1e-4), block
    assert capsys.readouterr().out
