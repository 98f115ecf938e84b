"""The parts that pages are made of: the page itself, sections, tables, lists, text that is folded away."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from importlib import resources

from gradalign.report.markup import Child, Html, breakable, join, tag

__all__ = ["Section", "bullets", "code", "folded", "grouped", "page", "paragraph", "preformatted", "section", "table"]

# The page may load nothing at all, wherever it is opened; its styles and figures stand in it.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"


def page(title: str, lead: Sequence[Html], sections: Sequence[Section]) -> str:
    """Return a whole page, which needs no other file.

    Args:
        title: of the page.
        lead: under the title.
        sections: from `section`; the table of contents links to them.
    """
    style = (resources.files("gradalign.report") / "report.css").read_text("utf-8")
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("meta", name="color-scheme", content="light dark"),
        tag("link", rel="icon", href="data:,"),
        tag("title", title),
        tag("style", Html(style)),
    )
    links = [tag("li", tag("a", of_page.heading, href=f"#{of_page.name}")) for of_page in sections]
    contents = tag("nav", tag("ul", links), aria_label="Contents")
    body = tag(
        "body", tag("header", tag("h1", title), lead, contents), tag("main", [of_page.body for of_page in sections])
    )
    return f"<!DOCTYPE html>\n{tag('html', head, body, lang='en')}\n"


@dataclasses.dataclass(frozen=True)
class Section:
    """A part of a page, from `section`; `name` is what links call it."""

    name: str
    heading: str
    body: Html


def section(name: str, heading: str, *children: Child) -> Section:
    """Return a section with a heading of the second level."""
    return Section(name, heading, tag("section", tag("h2", heading), *children, id=name))


def paragraph(*children: Child, soft: bool = False) -> Html:
    """Return a paragraph; `soft` is for notes."""
    return tag("p", breakable(*children), class_="soft" if soft else None)


def code(text: str) -> Html:
    """Return a command, or a name of a file or a key."""
    return tag("code", text)


def bullets(items: Sequence[Child]) -> Html:
    """Return a list."""
    return tag("ul", [tag("li", breakable(item)) for item in items])


def table(caption: str, header: Sequence[str], rows: Sequence[Sequence[Child]], texts: Sequence[int] = ()) -> Html:
    """Return a table whose first column names its rows, in a box of its own that scrolls where it is too wide.

    Args:
        caption: what it shows.
        header: of each column.
        rows: a cell for each column.
        texts: numbers of the columns, from 0, that hold words; the others hold figures.
    """

    def cell(i: int, child: Child) -> Html:
        return (
            tag("th", breakable(child), scope="row")
            if i == 0
            else tag("td", child, class_="text" if i in texts else None)
        )

    head = [tag("th", name, scope="col", class_="text" if i in texts else None) for i, name in enumerate(header)]
    body = [tag("tr", [cell(i, child) for i, child in enumerate(row)]) for row in rows]
    inside = tag("table", tag("caption", tag("span", caption)), tag("thead", tag("tr", head)), tag("tbody", body))
    return _scrolling("div", caption, inside)


def preformatted(label: str, text: str) -> Html:
    """Return text with its own line breaks, in a box that scrolls; `label` is its name for screen readers."""
    return _scrolling("pre", label, text)


def _scrolling(name: str, label: str, inside: Child) -> Html:
    # A box that scrolls can be reached with the keyboard, and so has a name.
    return tag(name, inside, class_="scroll", tabindex=0, role="region", aria_label=label)


def folded(summary: str, *children: Child) -> Html:
    """Return text of which only the summary shows until it is opened."""
    return tag("details", tag("summary", summary), *children)


def grouped(children: Sequence[Html]) -> Html:
    """Return figures or tables side by side where there is room."""
    return tag("div", join(children), class_="side-by-side")
