"""Clouds of points in two dimensions, one mark a task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gradalign.report.line_chart import COLOURS, legend
from gradalign.report.markup import Html, breakable, tag
from gradalign.report.numbers import as_count, nice_ticks

__all__ = ["Points", "cloud", "edge_of"]

Points = Sequence[tuple[float, float]]
_SIZE, _MARGIN = 340, 34
_INSIDE = 0.99  # share of the points that the axes show
# A point of each shape, about its middle: tasks are told apart without colours too.
_SHAPES = (
    "m-2.5 0a2.5 2.5 0 1 0 5 0a2.5 2.5 0 1 0-5 0",  # circle
    "m0-3.2l3 5.4h-6z",  # triangle
    "m-2.3-2.3h4.6v4.6h-4.6z",  # square
    "m0-3.2l3.2 3.2l-3.2 3.2l-3.2-3.2z",  # diamond
    "m0 3.2l3-5.4h-6z",  # triangle, its point down
    "m-1-3h2v2h2v2h-2v2h-2v-2h-2v-2h2z",  # plus
)


def edge_of(clouds: Sequence[Mapping[str, Points]]) -> float:
    """Return where the axes end, so that they show nearly all points of all clouds: one system of coordinates.

    Example:
        >>> round(edge_of([{"buy": [(1.0, -2.0)], "like": [(0.5, 0.0)]}]), 6)
        2.2
    """
    sizes = sorted(max(abs(x), abs(y)) for of_one in clouds for points in of_one.values() for x, y in points)
    return 1.1 * sizes[min(len(sizes) - 1, int(_INSIDE * len(sizes)))] or 1.0


def cloud(caption: str, points: Mapping[str, Points], edge: float, axes: tuple[str, str]) -> Html:
    """Return a figure with equal axes from -edge to edge.

    Args:
        caption: says what it shows.
        points: {task: (x, y) of each point}.
        edge: see `edge_of`; points outside of it are not drawn, and counted in the figure's name.
        axes: what each axis is.
    """
    low, high = _MARGIN, _SIZE - 8
    middle, scale = (low + high) / 2, (high - low) / 2 / edge
    parts = []
    ticks, decimals = nice_ticks(-edge, edge, 5)
    for tick in ticks:
        along, up = round(middle + scale * tick, 1), round(middle - scale * tick - low + 8, 1)
        parts.append(tag("line", x1=along, x2=along, y1=8, y2=_SIZE - _MARGIN, class_="grid"))
        parts.append(tag("line", x1=low, x2=high, y1=up, y2=up, class_="grid"))
        label = f"{tick:.{decimals}f}"
        parts.append(tag("text", label, x=along, y=_SIZE - _MARGIN + 14, text_anchor="middle"))
        parts.append(tag("text", label, x=low - 4, y=round(up + 4, 1), text_anchor="end"))
    outside = 0
    for number, (_, of_task) in enumerate(points.items()):
        inside = [(x, y) for x, y in of_task if max(abs(x), abs(y)) <= edge]
        outside += len(of_task) - len(inside)
        shape = _SHAPES[number % len(_SHAPES)]
        where = (f"M{middle + scale * x:.1f} {middle - scale * y - low + 8:.1f}{shape}" for x, y in inside)
        parts.append(tag("path", d="".join(where), class_=f"mark cloud c{number % COLOURS}"))
    parts.append(tag("text", axes[0], x=high, y=_SIZE - 4, text_anchor="end"))
    parts.append(tag("text", axes[1], x=low + 4, y=20))
    counts = ", ".join(f"{task}: {as_count(len(of_task))} points" for task, of_task in points.items())
    said = f"{caption}. {counts}; {as_count(outside)} of them lie outside of the axes, which end at {edge:.3g}."
    svg = tag("svg", parts, viewBox=f"0 0 {_SIZE} {_SIZE}", role="img", aria_label=said)
    return tag("figure", tag("figcaption", breakable(caption)), svg, legend(_entries(list(points))))


def _entries(tasks: Sequence[str]) -> list[tuple[str, Html]]:
    marks = [
        tag("path", d=f"M14 6{_SHAPES[i % len(_SHAPES)]}", class_=f"cloud c{i % COLOURS}") for i in range(len(tasks))
    ]
    return [
        (task, tag("svg", mark, viewBox="0 0 28 12", aria_hidden="true"))
        for task, mark in zip(tasks, marks, strict=True)
    ]
