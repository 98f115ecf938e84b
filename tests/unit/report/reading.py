"""A report as a browser's parser sees it: its elements, its links, its text."""

from __future__ import annotations

import dataclasses
import re
from html.parser import HTMLParser
from pathlib import Path

VOID = {"meta", "link", "br"}


@dataclasses.dataclass
class Read(HTMLParser):
    """What is in a page; parsing fails where elements are not closed in the order in which they were opened."""

    elements: list[str] = dataclasses.field(default_factory=list)
    links: list[str] = dataclasses.field(default_factory=list)
    labels: list[str] = dataclasses.field(default_factory=list)
    said: list[str] = dataclasses.field(default_factory=list)
    _open: list[str] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag, attrs):
        self.elements.append(tag)
        found = dict(attrs)
        self.links += [value for name, value in attrs if name in ("href", "src", "xlink:href", "action", "srcset")]
        self.labels += [found["aria-label"]] if "aria-label" in found else []
        assert not [name for name in found if name.startswith("on")], "a handler of events"
        if tag not in VOID and tag != "wbr":
            self._open.append(tag)

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        if self._open and self._open[-1] not in ("style", "title"):
            self.said.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", "".join(self.said))


def read(path: Path) -> Read:
    page = Read()
    page.feed(path.read_text("utf-8"))
    page.close()
    assert not page._open
    return page
