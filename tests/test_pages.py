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
