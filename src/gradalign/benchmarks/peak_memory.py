"""Peak memory of a row: the largest resident set of a fresh process that builds the row and runs it alone."""

from __future__ import annotations

import dataclasses

from gradalign.benchmarks.children import run_child

__all__ = ["PeakMemory", "peak_memory"]

STEPS = 3


@dataclasses.dataclass(frozen=True)
class PeakMemory:
    """Bytes: of the whole process, and beyond what it held once all libraries were loaded."""

    whole: int
    over_imports: int


def peak_memory(case: str, row: str, small: bool) -> PeakMemory:
    """Measure a row in a process of its own."""
    return PeakMemory(**run_child("memory", case, row, "small" if small else "full").result)
