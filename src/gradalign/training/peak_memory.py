"""The most memory that this process has held.

Not `resource.getrusage` where Linux tells better: its maximum is handed on through fork and exec, so that the child of
a large process never reports less than its parent.
"""

from __future__ import annotations

import resource
import sys
from pathlib import Path

__all__ = ["peak_resident_set"]


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
