"""The code that the pages show is run, page by page, block after block."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", "docs/getting-started.md", "docs/certificate.md")


@pytest.mark.parametrize("page", PAGES)
def test_the_code_of_a_page_runs_and_solves_its_problems(page, capsys):
    import matplotlib.pyplot as plt

    plt.switch_backend("Agg")
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)
    assert len(blocks) >= 2
    names = {}
    for block in blocks:
        exec(compile(block, page, "exec"), names)
        assert names["result"].success, block
    assert capsys.readouterr().out
    plt.close("all")


def test_every_page_of_the_documentation_is_in_its_navigation():
    navigation = (ROOT / "mkdocs.yml").read_text()
    pages = [path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")]
    assert [page for page in pages if page not in navigation] == []


def test_pages_link_to_pages_that_exist():
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\((?!http)([^)#]+)", path.read_text()):
            assert (path.parent / target).exists(), f"{path.name} links to {target}"
