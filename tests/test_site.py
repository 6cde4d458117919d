"""The documentation site, built as `make docs` builds it and opened from disk as a reader opens it."""

import importlib
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest

pytest.importorskip("zensical", reason="the extra docs is not installed")

ROOT = Path(__file__).parents[1]
CHROMIUM = Path("/usr/bin/chromium")
#: What the pages are made of: everything that `zensical.toml` names.
SOURCES = ("docs", "src", "results", "README.md", "CHANGELOG.md", "zensical.toml")
#: Widths of a phone and of a laptop in pixels.
WIDTHS = (390, 1280)
PUBLIC = ("gdpa", "gdpa.torch", "gdpa.torch.terms", "gdpa.sklearn", "gdpa.oracles.library", "gdpa.paper.theory")

#: The number of formulas that are wider than their column.
CLIPPED = """[...document.querySelectorAll("article div.arithmatex")]
  .filter(formula => formula.scrollWidth > formula.clientWidth + 1).length"""

browser_needed = pytest.mark.skipif(
    not CHROMIUM.exists() or find_spec("playwright") is None, reason=f"no browser: {CHROMIUM} and playwright are needed"
)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the built site."""
    folder = tmp_path_factory.mktemp("site")
    for name in SOURCES:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.csv", "*.json*"))
        else:
            shutil.copy(source, folder)
    environment = {**os.environ, "PYTHONPATH": str(folder / "docs")}
    built = subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--strict"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return folder / "site"


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(
            executable_path=str(CHROMIUM),
            args=["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"],
        )
        yield opened
        opened.close()


class Page(HTMLParser):
    """The ids and the links of a page."""

    def __init__(self, path):
        super().__init__()
        self.ids, self.links = set(), []
        self.feed(path.read_text())

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.ids |= {attributes[key] for key in ("id", "name") if attributes.get(key)}
        self.links += [attributes[key] for key in ("href", "src") if attributes.get(key)]


def pages(site):
    return sorted(path for path in site.rglob("*.html") if path.name != "404.html")


def public_names():
    return sorted({name for module in PUBLIC for name in importlib.import_module(module).__all__} - {"__version__"})


def test_each_plugin_has_its_effect(site):
    algorithm, methods = (site / "algorithm.html").read_text(), (site / "benchmarks.html").read_text()
    assert '<math display="block">' in algorithm  # formulas
    assert 'id="gdpa.methods.gdpa.GDPA"' in algorithm  # docstrings
    assert not re.search(r"(?m)^\s*\.\. math::|:math:`", re.sub(r"(?s)<code.*?</code>", "", algorithm))
    assert "<td>AdaptiveGDPA</td>" in methods.replace(' style="text-align: left;"', "")  # a table from results/
    assert "--8&lt;--" not in methods
    assert 'class="highlight"' in algorithm  # code in colors
    assert (site / "search.js").stat().st_size > 100_000  # search without a server
    assert 'data-md-color-scheme="slate"' in algorithm  # the dark scheme
    assert 'class="md-footer__link md-footer__link--next"' in algorithm  # previous and next page


def test_no_link_is_dead(site):
    found = {path: Page(path) for path in pages(site)}
    dead = []
    for path, page in found.items():
        for link in page.links:
            target, fragment = urldefrag(unquote(link))
            if re.match(r"[a-z]+:|//", target):
                continue
            goal = (path.parent / target).resolve() if target else path
            if not goal.exists() or (fragment and goal in found and fragment not in found[goal].ids):
                dead.append(f"{path.relative_to(site)} -> {link}")
    assert dead == []


def test_the_api_pages_have_every_public_name(site):
    documented = " ".join(path.read_text() for path in (site / "api").glob("*.html"))
    assert [name for name in public_names() if not re.search(rf'id="gdpa\.[\w.]*\b{name}[".]', documented)] == []


@browser_needed
@pytest.mark.parametrize("every", [6, pytest.param(1, marks=pytest.mark.campaign)])
def test_pages_opened_from_disk_fit_a_phone_and_a_laptop(site, browser, every):
    tab = browser.new_page()
    complaints, requests, wide = [], [], []
    tab.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    tab.on("pageerror", lambda error: complaints.append(str(error)))
    tab.on("request", lambda request: requests.append(request.url))
    for path in pages(site)[::every]:
        tab.goto(path.as_uri(), timeout=120_000)
        for width in WIDTHS:
            tab.set_viewport_size({"width": width, "height": 800})
            if tab.evaluate("document.scrollingElement.scrollWidth") > width:
                wide.append(f"{path.relative_to(site)} at {width}")
            if width == max(WIDTHS) and (count := tab.evaluate(CLIPPED)):
                wide.append(f"{count} formulas of {path.relative_to(site)} at {width}")
    tab.close()
    assert wide == []
    assert complaints == []
    assert [url for url in requests if not url.startswith(("file:", "data:", "blob:", "about:"))] == []


#: Asks the search that the pages run for each name and returns the titles it finds, best first.
ASK = """async names => {
  while (!window.__index) await new Promise(resolve => setTimeout(resolve, 50))
  const config = JSON.parse(document.querySelector("#__config").textContent)
  const worker = new Worker(new URL(config.search, location.href))
  const ask = message => new Promise(resolve => {
    worker.onmessage = event => resolve(event.data)
    worker.postMessage(message)
  })
  await ask({type: 0, data: window.__index})
  const found = {}
  for (const name of names) {
    const answer = await ask({type: 2, data: {input: name, filter: {input: {type: "operator", data: {operator: "and",
      operands: []}}, aggregation: {input: []}}}})
    found[name] = answer.data.items.map(item => window.__index.items[item.id].title)
  }
  return found
}"""


@browser_needed
def test_the_search_finds_every_public_name_from_disk(site, browser):
    tab = browser.new_page()
    tab.goto((site / "index.html").as_uri(), timeout=120_000)
    found = tab.evaluate(ASK, public_names())
    assert [name for name, titles in found.items() if not any(re.match(rf"{name}\b", title) for title in titles)] == []

    tab.close()


@browser_needed
def test_n2_the_search_from_disk_keeps_every_letter_that_is_typed(site, browser):
    tab = browser.new_page()
    tab.goto((site / "index.html").as_uri(), timeout=120_000)
    tab.wait_for_function("window.__index")
    tab.click(".md-search__button")
    box = tab.locator("input[role=combobox]")
    box.wait_for(timeout=120_000)
    for end, letter in enumerate("state_dict", 1):
        tab.keyboard.type(letter)
        tab.wait_for_timeout(100)  # the answer to the letter arrives
        assert box.input_value() == "state_dict"[:end]
    found = tab.locator("[role=option]").filter(has_text="state_dict")
    found.first.wait_for(state="attached", timeout=120_000)
    tab.close()
