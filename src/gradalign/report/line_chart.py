"""Line charts: figures over epochs, as SVG with real text, in colours that the page's style gives."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from gradalign.report.markup import Html, breakable, tag
from gradalign.report.numbers import as_number, decimals_of, nice_ticks

__all__ = ["COLOURS", "Level", "Line", "legend", "line_chart"]

COLOURS = 8  # that the style has
_WIDTH, _HEIGHT = 360, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 50, 12, 10, 36
_MOST_MARKS = 60  # on a line; more would run together


@dataclasses.dataclass(frozen=True)
class Line:
    """A line through points.

    Args:
        name: for the legend.
        points: (x, y), by rising x; a y of None or NaN is a gap.
        colour: its number.
        dashed: told apart from a line of the same colour.
    """

    name: str
    points: Sequence[tuple[float, float | None]]
    colour: int = 0
    dashed: bool = False

    @property
    def known(self) -> list[tuple[float, float]]:
        """The points that have a y."""
        return [(x, y) for x, y in self.points if _is_there(y)]  # type: ignore[misc]


@dataclasses.dataclass(frozen=True)
class Level:
    """A level that lines are held against, such as a chance; None where it is not known, which draws nothing."""

    name: str
    value: float | None


def line_chart(
    caption: str, lines: Sequence[Line], *, levels: Sequence[Level] = (), x_label: str = "epoch"
) -> Html | None:
    """Return a figure, or None where no line has a point.

    Args:
        caption: says what the figure shows.
        lines: to draw.
        levels: drawn across; two at most are told apart.
        x_label: of the horizontal axis.
    """
    lines = [line for line in lines if line.known]
    levels = [level for level in levels if _is_there(level.value)]
    if not lines:
        return None
    known = [point for line in lines for point in line.known]
    xs = _Scale([x for x, _ in known], _LEFT, _WIDTH - _RIGHT, pad=0.02, flat=0.5)
    ys = _Scale([y for _, y in known] + [_value(level) for level in levels], _HEIGHT - _BOTTOM, _TOP, 0.06, 0.01)
    drawn = [_axes(xs, ys, x_label)]
    for i, level in enumerate(levels):
        y = ys(_value(level))
        style = "mark level second" if i else "mark level"
        drawn.append(tag("line", x1=_LEFT, x2=_WIDTH - _RIGHT, y1=y, y2=y, class_=style))
    drawn += [_line(line, xs, ys, x_label) for line in lines]
    said = f"{caption}. {' '.join(_in_words(line, x_label) for line in lines)}"
    said += "".join(f" {level.name}: {as_number(level.value)}." for level in levels)
    svg = tag("svg", drawn, viewBox=f"0 0 {_WIDTH} {_HEIGHT}", role="img", aria_label=said)
    swatches = [(line.name, line.colour, "line dashed" if line.dashed else "line") for line in lines]
    swatches += [(level.name, 0, "level second" if i else "level") for i, level in enumerate(levels)]
    return tag(
        "figure", tag("figcaption", breakable(caption)), svg, legend([(n, _swatch(c, s)) for n, c, s in swatches])
    )


def legend(entries: Sequence[tuple[str, Html]]) -> Html:
    """Return what each mark stands for: names, which may be long, and a piece of each line."""
    return tag("ul", [tag("li", swatch, tag("span", breakable(name))) for name, swatch in entries], class_="legend")


def _swatch(colour: int, style: str) -> Html:
    line = tag("line", x1=1, x2=27, y1=6, y2=6, class_=style)
    return tag("svg", line, viewBox="0 0 28 12", aria_hidden="true", class_=f"c{colour % COLOURS}")


class _Scale:
    """From figures to places along an axis; numbers that are written are rounded to tenths of a pixel."""

    def __init__(self, values: Sequence[float], start: float, end: float, pad: float, flat: float) -> None:
        low, high = min(values), max(values)
        around = pad * (high - low) or max(flat, 0.02 * abs(high))
        self.low, self.high = low - around, high + around
        self._start, self._end = start, end

    def __call__(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return round(self._start + share * (self._end - self._start), 1)


def _axes(xs: _Scale, ys: _Scale, x_label: str) -> Html:
    bottom, parts = _HEIGHT - _BOTTOM, []
    ticks, decimals = nice_ticks(ys.low, ys.high, 5)
    for tick in ticks:
        y = ys(tick)
        parts.append(tag("line", x1=_LEFT, x2=_WIDTH - _RIGHT, y1=y, y2=y, class_="grid"))
        parts.append(tag("text", f"{tick:,.{decimals}f}", x=_LEFT - 6, y=round(y + 4, 1), text_anchor="end"))
    parts.append(tag("line", x1=_LEFT, x2=_WIDTH - _RIGHT, y1=bottom, y2=bottom, class_="axis"))
    for tick in [t for t in nice_ticks(xs.low, xs.high, 8)[0] if t == round(t)]:
        x = xs(tick)
        parts.append(tag("line", x1=x, x2=x, y1=bottom, y2=bottom + 4, class_="axis"))
        parts.append(tag("text", f"{tick:.0f}", x=x, y=bottom + 16, text_anchor="middle"))
    parts.append(tag("text", x_label, x=_WIDTH - _RIGHT, y=_HEIGHT - 4, text_anchor="end"))
    return tag("g", parts)


def _line(line: Line, xs: _Scale, ys: _Scale, x_label: str) -> Html:
    stretches: list[list[tuple[float, float]]] = [[]]
    for x, y in line.points:
        if _is_there(y):
            stretches[-1].append((x, y))  # type: ignore[arg-type]
        elif stretches[-1]:
            stretches.append([])
    lines = [stretch for stretch in stretches if len(stretch) > 1]
    path = "".join("M" + "L".join(f"{xs(x)} {ys(y)}" for x, y in stretch) for stretch in lines)
    parts = [tag("path", d=path, class_="mark line dashed" if line.dashed else "mark line")] if lines else []
    decimals = decimals_of(ys.high - ys.low, least=4)
    are_few = len(line.known) <= _MOST_MARKS
    for x, y in (point for stretch in stretches if are_few or len(stretch) == 1 for point in stretch):
        hint = tag("title", f"{line.name}, {x_label} {x:g}: {as_number(y, decimals)}")
        parts.append(tag("circle", hint, cx=xs(x), cy=ys(y), r=2.75, class_="mark dot"))
    return tag("g", parts, class_=f"c{line.colour % COLOURS}")


def _in_words(line: Line, x_label: str) -> str:
    (first, at_first), (last, at_last) = line.known[0], line.known[-1]
    if first == last:
        return f"{line.name}: {as_number(at_first)} at {x_label} {first:g}."
    return f"{line.name}: {as_number(at_first)} at {x_label} {first:g}, {as_number(at_last)} at {x_label} {last:g}."


def _value(level: Level) -> float:
    assert level.value is not None
    return level.value


def _is_there(value: float | None) -> bool:
    return value is not None and math.isfinite(value)
