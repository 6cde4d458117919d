"""Every Python block of the README and of the documentation runs, page by page, block after block."""

import doctest
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
CODE = [path.relative_to(ROOT).as_posix() for path in PAGES if BLOCK.search(path.read_text())]


def blocks(page):
    return BLOCK.findall((ROOT / page).read_text())


def test_the_front_page_and_the_tutorials_have_code():
    assert {"README.md", "docs/getting-started.md", "docs/five-minutes.md", "docs/certificate.md"} <= set(CODE)


@pytest.mark.no_cover
@pytest.mark.parametrize("page", CODE)
def test_the_code_of_a_page_runs_and_solves_its_problems(page, capsys):
    plt = pytest.importorskip("matplotlib.pyplot")
    plt.switch_backend("Agg")
    names: dict = {}
    for block in blocks(page):
        if block.startswith(">>>"):
            test = doctest.DocTestParser().get_doctest(block, names, page, page, 0)
            results = doctest.DocTestRunner().run(test, clear_globs=False)
            assert results.attempted > results.failed == 0, block
            names = test.globs
        else:
            exec(compile(block, page, "exec"), names)
        assert getattr(names.get("result"), "success", True), block
    plt.close("all")


def navigation(entries):
    """Return the pages of a navigation with groups."""
    for entry in entries:
        for content in entry.values():
            yield from [content] if isinstance(content, str) else navigation(content)


def test_the_navigation_lists_every_page_once():
    config = tomllib.loads((ROOT / "zensical.toml").read_text())
    pages = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))
    assert sorted(navigation(config["project"]["nav"])) == pages


def test_pages_link_to_pages_that_exist():
    for path in [*PAGES, ROOT / "CONTRIBUTING.md"]:
        for target in re.findall(r"\]\((?!http)([^)#]+)", path.read_text()):
            assert (path.parent / target).exists(), f"{path.name} links to {target}"


def test_n16_the_page_of_choices_names_slsqp_as_long_as_small_solves_are_slower():
    text = (ROOT / "results/small_steps/table.md").read_text()
    milliseconds = {name: float(ms) for name, ms in re.findall(r"^\| ([\w]+) \|.*\| ([\d.]+) \|$", text, re.M)}
    row = next(
        (line for line in (DOCS / "how-to-choose.md").read_text().splitlines() if "many tiny problems" in line), ""
    )
    assert ("SLSQP" in row) == (milliseconds["minimize"] > milliseconds["SLSQP"])


def test_n17_install_lines_work_from_a_checkout():
    extras = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    assert "all" in extras
    sources = sorted((ROOT / "src").rglob("*.py"))
    installs = [line for path in [*PAGES, *sources] for line in re.findall(r"pip install ([^`\n]+)", path.read_text())]
    assert any(line.startswith('-e ".[torch]"') for line in installs)
    for line in installs:
        assert not re.match(r"""["']?gdpa\b""", line), line  # there is no such package on the index
        for names in re.findall(r"\.\[([\w,]+)\]", line):
            assert set(names.split(",")) <= extras, line
