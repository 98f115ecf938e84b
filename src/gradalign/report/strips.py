"""Tables with a strip in each row: a dot with its interval, or one ring a seed, along one axis for all rows."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from gradalign.report.line_chart import Level, legend
from gradalign.report.markup import Child, Html, breakable, join, tag
from gradalign.report.numbers import as_number, nice_ticks

__all__ = ["Strip", "strips"]

_WIDTH, _HEIGHT, _EDGE = 210, 24, 8
_CHARACTER = 7.0  # width of a digit in the style's font, on the safe side


@dataclasses.dataclass(frozen=True)
class Strip:
    """A row, of a method.

    Args:
        name: of the method.
        value: the dot; None where there is none.
        interval: around it.
        seeds: values of single seeds, as rings.
        text: under the strip.
    """

    name: str
    value: float | None
    text: Child
    interval: tuple[float, float] | None = None
    seeds: Sequence[float] = ()

    @property
    def all(self) -> list[float]:
        """Every value that is drawn."""
        return [*([] if self.value is None else [self.value]), *(self.interval or ()), *self.seeds]


def strips(caption: str, rows: Sequence[Strip], levels: Sequence[Level] = (), colour: int = 0) -> Html | None:
    """Return a figure that is a table, a row a method: its name, its strip above its text; None without a value.

    Args:
        caption: says what it shows.
        rows: of the table.
        levels: lines across all strips, such as 0 or a chance.
        colour: number of the strips' colour.
    """
    values = [value for row in rows for value in row.all]
    if not values:
        return None
    known = [level for level in levels if level.value is not None]
    values += [level.value for level in known if level.value is not None]
    low, high = min(values), max(values)
    around = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
    axis = _Axis(low - around, high + around)
    head = tag("tr", tag("th", "method", scope="col"), tag("th", axis.ticks(), scope="col"))
    body = [
        tag("tr", tag("th", breakable(row.name), scope="row"), tag("td", axis.strip(row, known, colour), row.text))
        for row in rows
    ]
    inside = tag("table", tag("caption", breakable(caption)), tag("thead", head), tag("tbody", body), class_="strips")
    entries = [(level.name, _swatch(i)) for i, level in enumerate(known)]
    return tag("figure", inside, legend(entries) if entries else None)


def _style(number: int) -> str:
    return ("zero", "level", "level second")[min(number, 2)]


def _swatch(number: int) -> Html:
    line = tag("line", x1=1, x2=27, y1=6, y2=6, class_=_style(number))
    return tag("svg", line, viewBox="0 0 28 12", aria_hidden="true")


class _Axis:
    def __init__(self, low: float, high: float) -> None:
        self.low, self.high = low, high

    def __call__(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return round(_EDGE + share * (_WIDTH - 2 * _EDGE), 1)

    def ticks(self) -> Html:
        """The axis, for the head of the table, with as many numbers as there is room for, four at most."""
        most = 4
        while self._run_together(labels := self._labels(most)) and most > 1:
            most -= 1
        parts: list[Html] = [tag("line", x1=_EDGE, x2=_WIDTH - _EDGE, y1=21, y2=21, class_="axis")]
        for x, label, anchor in labels:
            parts.append(tag("line", x1=x, x2=x, y1=18, y2=21, class_="axis"))
            parts.append(tag("text", label, x=x, y=13, text_anchor=anchor))
        said = "Scale of the strips: " + " to ".join(label for _, label, _ in labels)
        return tag("svg", parts, viewBox=f"0 0 {_WIDTH} {_HEIGHT}", role="img", aria_label=said)

    def _labels(self, most: int) -> list[tuple[float, str, str]]:
        """Place, text and anchor of each number; at an end it would leave the picture were it centred."""
        ticks, decimals = nice_ticks(self.low, self.high, most)
        found = []
        for tick in ticks:
            x = self(tick)
            anchor = "start" if x < 24 else "end" if x > _WIDTH - 24 else "middle"
            found.append((x, f"{tick:,.{decimals}f}", anchor))
        return found

    def _run_together(self, labels: Sequence[tuple[float, str, str]]) -> bool:
        before = -math.inf
        for x, label, anchor in labels:
            width = _CHARACTER * len(label)
            left = x - {"start": 0.0, "middle": width / 2, "end": width}[anchor]
            if left < before + _CHARACTER:
                return True
            before = left + width
        return False

    def strip(self, row: Strip, levels: Sequence[Level], colour: int) -> Html:
        middle, parts = _HEIGHT / 2, []
        for i, level in enumerate(levels):
            assert level.value is not None
            x = self(level.value)
            parts.append(tag("line", x1=x, x2=x, y1=0, y2=_HEIGHT, class_=_style(i)))
        if row.interval is not None:
            start, end = self(row.interval[0]), self(row.interval[1])
            parts.append(tag("line", x1=start, x2=end, y1=middle, y2=middle, class_="mark whisker"))
            for x in (start, end):
                parts.append(tag("line", x1=x, x2=x, y1=middle - 4, y2=middle + 4, class_="whisker"))
        parts += [tag("circle", cx=self(seed), cy=middle, r=3.5, class_="mark seed") for seed in row.seeds]
        if row.value is not None:
            parts.append(tag("circle", cx=self(row.value), cy=middle, r=4, class_="mark dot"))
        said = f"{row.name}: {as_number(row.value)}"
        if row.interval is not None:
            said += f", interval {as_number(row.interval[0])} to {as_number(row.interval[1])}"
        if row.seeds:
            said += f", seeds {', '.join(as_number(seed) for seed in row.seeds)}"
        group = tag("g", join(parts), class_=f"c{colour}")
        return tag("svg", group, viewBox=f"0 0 {_WIDTH} {_HEIGHT}", role="img", aria_label=said)
