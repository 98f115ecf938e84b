"""What was measured, and its two files: everything as JSON, one line a row as CSV."""

from __future__ import annotations

import csv
import dataclasses
import json
import os
from collections.abc import Mapping
from io import StringIO
from pathlib import Path
from typing import Any

from gradalign.benchmarks.targets import TARGETS
from gradalign.benchmarks.timing import Spread, paired_ratio, spread

__all__ = ["COLUMNS", "PEAK", "CaseResult", "Results", "RowResult"]

PEAK = "peak_flops_per_second"  # among the facts of a case
COLUMNS = (
    *("case", "row", "rounds", "seconds", "seconds_lower", "seconds_upper", "ratio", "ratio_lower", "ratio_upper"),
    *("rows_per_second", "flops", "share_of_peak", "peak_memory", "memory_over_imports", "missing"),
)


@dataclasses.dataclass
class RowResult:
    """A row of a case.

    Args:
        row: its name.
        what: one line for readers.
        seconds: of a step, or of what the case times; one number a round.
        examples: rows of data that these seconds train on; 0 where that says nothing.
        flops: of the matrix products of one step.
        peak_memory: bytes of a process that runs this row alone, at their most.
        memory_over_imports: the same, less what the libraries took before.
        missing: why it was not measured.
    """

    row: str
    what: str
    seconds: list[float] = dataclasses.field(default_factory=list)
    examples: int = 0
    flops: float | None = None
    peak_memory: int | None = None
    memory_over_imports: int | None = None
    missing: str | None = None

    @property
    def time(self) -> Spread | None:
        """Median and quartiles of the seconds."""
        return spread(self.seconds)


@dataclasses.dataclass
class CaseResult:
    """A case.

    Args:
        case: its name.
        what: one line for readers.
        rows: its rows, in order.
        baselines: the rows that ratios are taken to; the fastest of them counts.
        facts: what else is known of the case: forward flops, bounds, the machine's peak.
        complete: whether all rounds were run.
    """

    case: str
    what: str
    rows: list[RowResult]
    baselines: tuple[str, ...] = ()
    facts: dict[str, float] = dataclasses.field(default_factory=dict)
    complete: bool = False

    def row(self, name: str) -> RowResult | None:
        """Return the row of this name, if it was measured."""
        return next((row for row in self.rows if row.row == name and (row.seconds or row.peak_memory)), None)

    @property
    def baseline(self) -> str:
        """The row that ratios are taken to: of `baselines`, the one with the smallest median."""
        timed = {row.row: row.time.median for row in self.rows if row.row in self.baselines and row.time}
        return min(timed, key=lambda name: timed[name]) if timed else ""

    def ratio(self, row: RowResult) -> Spread | None:
        """Return the spread of a row's ratios to the baseline, round by round."""
        baseline = self.row(self.baseline)
        return paired_ratio(row.seconds, baseline.seconds) if baseline else None

    def share_of_peak(self, row: RowResult) -> float | None:
        """Return the flops of a row's matrix products in a second, over the machine's peak."""
        peak = self.facts.get(PEAK)
        return row.flops / row.time.median / peak if peak and row.flops and row.time else None


@dataclasses.dataclass
class Results:
    """A run of the benchmark: settings and versions, and the cases that were measured."""

    settings: Mapping[str, Any]
    versions: Mapping[str, str]
    machine: Mapping[str, Any]
    cases: list[CaseResult] = dataclasses.field(default_factory=list)

    def targets(self) -> list[dict[str, Any]]:
        """Return every target with what was measured and whether it was reached."""
        by_name = {case.case: case for case in self.cases}
        found = []
        for target in TARGETS:
            measured = target.measured(by_name[target.case]) if target.case in by_name else None
            found.append({**dataclasses.asdict(target), "measured": measured, "verdict": target.verdict(measured)})
        return found

    def lines(self) -> list[dict[str, Any]]:
        """Return a dict for each row of each case, with the keys `COLUMNS`."""
        found = []
        for case in self.cases:
            for row in case.rows:
                time, ratio = row.time, case.ratio(row)
                rate = row.examples / time.median if time and row.examples else None
                values = (
                    *(case.case, row.row, len(row.seconds), *_three(time), *_three(ratio)),
                    *(rate, row.flops, case.share_of_peak(row), row.peak_memory, row.memory_over_imports, row.missing),
                )
                found.append(dict(zip(COLUMNS, values, strict=True)))
        return found

    def write(self, folder: Path) -> None:
        """Write bench.json and bench.csv into `folder`."""
        folder.mkdir(parents=True, exist_ok=True)
        whole = {**dataclasses.asdict(self), "table": self.lines(), "targets": self.targets()}
        _write(folder / "bench.json", json.dumps(whole, indent=1) + "\n")
        table = StringIO()
        writer = csv.DictWriter(table, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.lines())
        _write(folder / "bench.csv", table.getvalue())


def _three(of: Spread | None) -> tuple[float | None, float | None, float | None]:
    return (of.median, of.lower, of.upper) if of else (None, None, None)


def _write(path: Path, text: str) -> None:
    temporary = path.with_name(path.name + ".writing")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)
