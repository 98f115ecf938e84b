"""Reports in a real browser, headless: on a phone and on a desk, light and dark; nothing is loaded, all is drawn."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gradalign.report import write_report
from tests.unit.report.folders import write_comparison, write_run

if TYPE_CHECKING:
    from playwright.sync_api import Browser

PHONE = 375
COMMANDS = ("chromium", "chromium-browser", "google-chrome")

# What a person would see, in figures. Colours are compared as WCAG 2.2 does: the contrast of text and of marks with
# whatever they stand on.
MEASURE = """
() => {
  const channels = colour => (colour.match(/[\\d.]+/g) || []).map(Number);
  const light = colour => {
    const linear = v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
    const [r, g, b] = channels(colour).map(v => linear(v / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const isClear = colour => colour === "none" || channels(colour)[3] === 0;
  const behind = element => {
    for (let e = element; e; e = e.parentElement) {
      const colour = getComputedStyle(e).backgroundColor;
      if (!isClear(colour)) return colour;
    }
    return "rgb(255, 255, 255)";
  };
  const contrast = (one, other) => {
    const [low, high] = [light(one), light(other)].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  };
  const isInside = (inner, outer) => inner.left >= outer.left - 1 && inner.right <= outer.right + 1
    && inner.top >= outer.top - 1 && inner.bottom <= outer.bottom + 1;
  document.querySelectorAll("details").forEach(details => details.open = true);

  const texts = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const parent = walker.currentNode.parentElement, text = walker.currentNode.data.trim();
    if (!text || parent.closest("title")) continue;
    const style = getComputedStyle(parent);
    const colour = parent.closest("svg") ? style.fill : style.color;
    const size = parent.closest("svg") ? parent.getBoundingClientRect().height : parseFloat(style.fontSize);
    texts.push({text, contrast: contrast(colour, behind(parent)), size});
  }
  const figures = [...document.querySelectorAll("svg[role=img]")].map(svg => {
    const box = svg.getBoundingClientRect();
    const marks = [...svg.querySelectorAll(".mark")].map(mark => {
      const style = getComputedStyle(mark), at = mark.getBoundingClientRect();
      const paints = [style.stroke, style.fill].filter(colour => !isClear(colour));
      return {
        isDrawn: at.width + at.height > 0 && isInside(at, box),
        contrast: Math.max(0, ...paints.map(colour => contrast(colour, behind(mark)))),
      };
    });
    const cut = [...svg.querySelectorAll("text")].filter(t => !isInside(t.getBoundingClientRect(), box));
    const boxes = [...svg.querySelectorAll("text")].map(t => t.getBoundingClientRect());
    const overlaps = boxes.some((a, i) => boxes.slice(i + 1).some(
      b => a.left < b.right && b.left < a.right && a.top + 2 < b.bottom && b.top + 2 < a.bottom));
    return {overlaps, label: svg.getAttribute("aria-label"), width: box.width, height: box.height, marks,
            cut: cut.map(t => t.textContent), isScale: svg.closest("thead") !== null};
  });
  return {
    scrollWidth: document.scrollingElement.scrollWidth,
    background: getComputedStyle(document.body).backgroundColor,
    texts, figures,
    title: document.title,
    lang: document.documentElement.lang,
    headings: [...document.querySelectorAll("h1, h2, h3")].map(h => Number(h.tagName[1])),
    unnamed: [...document.querySelectorAll("table")].filter(t => !t.caption || !t.caption.textContent.trim()).length
      + [...document.querySelectorAll("svg")].filter(s => !s.getAttribute("aria-label") && !s.ariaHidden).length
      + [...document.querySelectorAll("figure")].filter(f => !f.querySelector("figcaption, caption")).length,
    looseScrollers: [...document.querySelectorAll("body *")].filter(
      e => e.scrollWidth > e.clientWidth + 1 && getComputedStyle(e).overflowX === "auto" && e.tabIndex !== 0).length,
    links: [...document.querySelectorAll("nav a")].filter(a => !document.querySelector(a.hash)).length,
  };
}
"""


@dataclasses.dataclass
class Opened:
    """A report as it was shown at each width and scheme of colours, and what the browser complained of."""

    seen: dict[tuple[int, str], dict[str, Any]]
    complaints: list[str]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright  # here: each worker imports this file, and one opens the browser

    command = next((found for name in COMMANDS if (found := shutil.which(name))), None)
    assert command, "There is no Chromium to open the reports in; install it (on Debian: apt-get install chromium)."
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-background-networking"]
        started = playwright.chromium.launch(executable_path=command, args=arguments)
        yield started
        started.close()


@pytest.fixture(scope="module")
def opened(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Opened]:
    folder = tmp_path_factory.mktemp("reports")
    bare = {"monitored": False, "probed": False, "label_aware_chance": None}
    folders = {
        "run": write_run(folder / "run"),
        "bare run": write_run(folder / "bare", **bare),
        "comparison": write_comparison(folder / "comparison"),
    }
    return {name: open_report(browser, write_report(path)) for name, path in folders.items()}


def open_report(browser: Browser, report: Path) -> Opened:
    page = browser.new_page(viewport={"width": PHONE, "height": 800})
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("requestfailed", lambda request: complaints.append(request.url))
    page.on("request", lambda request: None if request.url == report.as_uri() else complaints.append(request.url))
    page.goto(report.as_uri())
    seen = {}
    for width, scheme in ((PHONE, "light"), (PHONE, "dark"), (1280, "light")):
        page.set_viewport_size({"width": width, "height": 800})
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        seen[width, scheme] = page.evaluate(MEASURE)
    page.close()
    return Opened(seen, complaints)


REPORTS = ("run", "bare run", "comparison")


@pytest.mark.parametrize("name", REPORTS)
def test_the_browser_complains_of_nothing_and_asks_for_nothing_else(name, opened):
    assert opened[name].complaints == []


@pytest.mark.parametrize("name", REPORTS)
def test_no_page_scrolls_sideways(name, opened):
    for (width, scheme), seen in opened[name].seen.items():
        assert seen["scrollWidth"] <= width, scheme
        assert seen["looseScrollers"] == 0, "what scrolls in its own box can be reached with the keyboard"


@pytest.mark.parametrize(("name", "drawn"), [("run", 14), ("bare run", 5), ("comparison", 18)])
def test_every_figure_is_drawn(name, drawn, opened):
    for seen in opened[name].seen.values():
        figures = [figure for figure in seen["figures"] if not figure["isScale"]]
        assert len(figures) >= drawn
        for figure in figures:
            assert figure["width"] > 100 and figure["height"] > 10 and figure["marks"], figure["label"]
            assert all(mark["isDrawn"] for mark in figure["marks"]), figure["label"]
            assert min(mark["contrast"] for mark in figure["marks"]) >= 3, figure["label"]
        assert [figure["cut"] for figure in seen["figures"] if figure["cut"]] == []
        assert [figure["label"] for figure in seen["figures"] if figure["overlaps"]] == []


@pytest.mark.parametrize("name", REPORTS)
def test_text_can_be_read_in_light_and_in_dark(name, opened):
    shown = opened[name].seen
    assert shown[PHONE, "light"]["background"] != shown[PHONE, "dark"]["background"]
    for seen in shown.values():
        assert len(seen["texts"]) > 50
        assert [text for text in seen["texts"] if text["contrast"] < 4.5 or text["size"] < 9] == []


@pytest.mark.parametrize("name", REPORTS)
def test_what_a_screen_reader_needs_is_there(name, opened):
    [seen, *_] = opened[name].seen.values()
    assert seen["title"].startswith("GradAlign") and seen["lang"] == "en"
    assert seen["headings"].count(1) == 1 and seen["headings"][0] == 1
    assert all(later <= earlier + 1 for earlier, later in zip(seen["headings"], seen["headings"][1:], strict=False))
    assert seen["unnamed"] == 0 and seen["links"] == 0
