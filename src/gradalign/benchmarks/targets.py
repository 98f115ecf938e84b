"""What the project has promised of these ratios, printed beside what is measured."""

from __future__ import annotations

import dataclasses
from typing import Any

from gradalign.benchmarks.timing import paired_ratio

__all__ = ["TARGETS", "Target"]


@dataclasses.dataclass(frozen=True)
class Target:
    """A limit on a ratio of two rows of one case, or, without `over`, on the seconds of one.

    Args:
        what: in words.
        case: the case.
        of: the row above the line; with several, the one with the smaller median.
        over: the row below it.
        limit: the limit.
        at_least: whether the ratio has to be at least, or at most, `limit`.
        of_memory: compare peak memory instead of time.
    """

    what: str
    case: str
    of: str
    over: str | None
    limit: float
    at_least: bool = False
    of_memory: bool = False

    def measured(self, case: Any) -> float | None:
        """Return the ratio in a `CaseResult`; `None` where one of the rows was not measured."""
        rows = [case.row(case.baseline if name == "plain" else name) for name in (self.of, self.over) if name]
        if any(row is None for row in rows):
            return None
        if self.of_memory:
            above, below = (row.memory_over_imports for row in rows)
            return above / below if above and below else None
        if self.over is None:
            return rows[0].time.median if rows[0].time else None
        ratio = paired_ratio(rows[0].seconds, rows[1].seconds)
        return ratio.median if ratio else None

    def verdict(self, measured: float | None) -> str:
        """Return "reached", "missed" or "not measured".

        >>> TARGETS[0].verdict(1.5), TARGETS[0].verdict(1.7), TARGETS[0].verdict(None)
        ('reached', 'missed', 'not measured')
        """
        if measured is None:
            return "not measured"
        return "reached" if (measured >= self.limit if self.at_least else measured <= self.limit) else "missed"


TARGETS = (
    Target("ranking, ReLU towers: aligned / plain", "ranking", "aligned", "plain", 1.6),
    Target("ranking, GELU towers: aligned / plain", "ranking-gelu", "aligned", "plain", 2.1),
    Target("ranking, fraction=0.25: aligned / plain", "ranking", "aligned-fraction", "plain", 1.2),
    Target("deep encoder: aligned / plain", "deep-encoder", "aligned", "plain", 1.35),
    Target("circulating recipe, eager / aligned", "ranking", "recipe-eager", "aligned", 4.0, at_least=True),
    Target("PyTorch reference / aligned", "ranking", "pytorch-reference", "aligned", 1.5, at_least=True),
    Target("LazyAdam, tables of 5 million rows / of 10,000", "tables", "lazy-adam-large", "lazy-adam-small", 1.3),
    Target(
        "rows per second, fit from Parquet / bare step", "input", "bare-step", "fit-from-parquet", 0.85, at_least=True
    ),
    Target("peak memory: aligned / plain", "ranking", "aligned", "plain", 2.0, of_memory=True),
    Target("seconds of gradalign --help", "start-up", "help", None, 0.5),
)
