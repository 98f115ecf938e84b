"""Peak memory of a row: the largest resident set of a fresh process that builds the row and runs it alone.

Not `resource.getrusage` where Linux tells better: its maximum is handed on through fork and exec, so that the child of
a large process never reports less than its parent.
"""

from __future__ import annotations

import dataclasses
import resource
import sys
from pathlib import Path

from gradalign.benchmarks.children import run_child

__all__ = ["PeakMemory", "peak_memory", "peak_resident_set"]

STEPS = 3


@dataclasses.dataclass(frozen=True)
class PeakMemory:
    """Bytes: of the whole process, and beyond what it held once all libraries were loaded."""

    whole: int
    over_imports: int


def peak_memory(case: str, row: str, small: bool) -> PeakMemory:
    """Measure a row in a process of its own."""
    return PeakMemory(**run_child("memory", case, row, "small" if small else "full").result)


def peak_resident_set() -> int:
    """Return the largest resident set of this process so far, in bytes.

    >>> peak_resident_set() > 1_000_000
    True
    """
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text(encoding="ascii").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
