import re
from dataclasses import replace
from pathlib import Path

import pytest

from gdpa.paper.base import OutputError, Settings, UsageError
from gdpa.paper.figures import Chart, Panel, Series, draw, save, to_svg
from gdpa.paper.records import Folder
from gdpa.paper.report import write_report
from gdpa.paper.runner import run_units

CHROMIUM = Path("/usr/bin/chromium")


@pytest.fixture
def filled(toy, tmp_path):
    folder, units = Folder(tmp_path, "gdpa reproduce toy --out <here>"), toy.units(Settings())
    folder.begin("toy", units)
    run_units(folder, units[:2], lambda event: None)
    return folder


def test_the_report_is_one_file_that_says_everything(filled):
    html = write_report(filled).read_text()
    assert "<!doctype html>" in html
    body = html[html.index("<body>") :]
    assert "A toy with &lt;markup&gt; &amp; ampersand" in body
    assert "Words &amp; &lt;tags&gt;." in body
    assert "gdpa reproduce toy --out &lt;here&gt;" in body
    assert "1 of 3 units have no record yet" in body
    assert re.search(r"<td>n 2</td><td>1</td>", body)  # 1/3 + 2/3
    assert [word in body for word in ("Holds: It adds.", "Does not hold: It subtracts.", "Not clear-cut: Hm.")] == [
        True
    ] * 3
    assert not re.search(r"<(script|link|img)[^>]+(src|href)=.(?!data:)", html)
    assert html.count("<svg") == 1


def test_the_report_opens_with_the_claims_and_its_contents(filled):
    html = write_report(filled).read_text()
    body = html[html.index("<body>") :]
    claims, rest = body.split("<nav>")
    assert re.findall(r'<td class="(\w*)">([^<]*)</td>', claims) == [
        ("holds", "Holds"),
        ("fails", "Does not hold"),
        ("", "Not clear-cut"),
    ]
    contents, sections = rest.split("</nav>")
    targets = re.findall(r'href="#([^"]+)"', claims + contents)
    assert {"toy", "toy-values", "toy-sums", "toy-verdict"} <= set(targets)
    assert [target for target in targets if f'id="{target}"' not in sections] == []


def test_drawing_again_changes_nothing(filled):
    first = write_report(filled).read_bytes()
    picture = (filled.path / "toy" / "figures" / "toy-values.svg").read_bytes()
    assert write_report(filled).read_bytes() == first
    assert (filled.path / "toy" / "figures" / "toy-values.svg").read_bytes() == picture
    assert (filled.path / "toy" / "figures" / "toy-values.png").read_bytes().startswith(b"\x89PNG")


def test_a_folder_without_records_is_refused(toy, tmp_path):
    with pytest.raises(UsageError, match="holds no records; fill it with: gdpa reproduce all"):
        write_report(Folder(tmp_path))


def test_a_figure_that_cannot_be_written_is_named(filled):
    (filled.path / "toy" / "figures").write_text("in the way")
    with pytest.raises(OutputError, match="cannot write the figure toy-values"):
        write_report(filled)


def test_an_unknown_style_is_refused():
    with pytest.raises(ValueError, match=r"style must be one of line, dashed, .*, got 'wavy'"):
        Series("a", [1], [1], "wavy")


def test_linear_axes_keep_values_that_are_not_positive(tmp_path):
    panel = Panel("p", "x", "y", [Series("a", [0, 1], [-1.0, 2.0])], log_x=False, log_y=False)
    (png, svg) = save(Chart("c", "t", "words", [panel]), tmp_path)
    assert png.is_file()
    assert "<svg" in svg.read_text()


def test_a_long_title_is_broken_into_lines_as_wide_as_the_panels():
    panel = Panel("p", "x", "y", [Series("a", [1, 2], [1.0, 2.0])])
    titles = [draw(Chart("c", "word " * 12, "words", [panel] * columns)).get_suptitle() for columns in (1, 2)]
    assert [title.count("\n") for title in titles] == [1, 0]


def test_n9_panels_stand_below_each_other_on_a_narrow_page():
    panel = Panel("p", "x", "y", [Series("a", [1, 2], [1.0, 2.0])])
    chart = Chart("c", "t", "words", [panel, panel], columns=2)
    wide, narrow = (
        [float(size) for size in re.search(r'viewBox="0 0 (\S+) (\S+)"', to_svg(drawn)).groups()]
        for drawn in (chart, replace(chart, columns=1))
    )
    assert narrow[0] < 0.6 * wide[0]
    assert narrow[1] > 1.5 * wide[1]


@pytest.mark.skipif(not CHROMIUM.exists(), reason="no browser: /usr/bin/chromium is not installed")
def test_the_report_opens_offline_without_a_console_error(filled):
    from playwright.sync_api import sync_playwright

    path = write_report(filled)
    complaints, requests = [], []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=str(CHROMIUM),
            args=["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"],
        )
        page = browser.new_page()
        page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(path.as_uri(), timeout=120_000)  # a busy machine takes its time
        assert page.locator("figure svg").count() == 1
        box = page.locator("figure svg").bounding_box()
        assert box is not None
        assert box["width"] > 300
        assert box["height"] > 200
        entry = page.locator('[id="toy-values:2:text"]')
        drawn = [page.locator(f'[id="toy-values:2:{part}"]') for part in (2, 3)]  # the curve and its band
        assert [one.locator("title").text_content() for one in drawn] == ["band", "band"]
        for hidden in ("off", ""):  # the first click hides, the second shows
            entry.click()
            assert [one.get_attribute("class") for one in drawn] == [hidden, hidden]
            assert drawn[0].is_visible() == (hidden == "")
            assert page.locator('[id="toy-values:1:1"]').is_visible()
        browser.close()
    assert complaints == []
    assert [url for url in requests if not url.startswith(("file:", "data:", "blob:"))] == []
