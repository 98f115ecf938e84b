"""Fresh processes: started by `run_child`, which waits for what they print last."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import time
from typing import Any

from gradalign.errors import UserError

__all__ = ["Finished", "run_child", "run_process"]


@dataclasses.dataclass(frozen=True)
class Finished:
    """A process that has ended well: when it was started and ended (`time.time()`), and what it said."""

    started: float
    ended: float
    output: str

    @property
    def result(self) -> dict[str, Any]:
        """The JSON object in the last line of its output."""
        found: dict[str, Any] = json.loads(self.output.strip().splitlines()[-1])
        return found


def run_process(*arguments: str) -> Finished:
    """Run Python with `arguments` and return once it has ended.

    >>> run_process("-c", "print('{}')").result
    {}

    Raises:
        UserError: it failed; with the last line of what it wrote to its error stream.
    """
    environment = {"TF_CPP_MIN_LOG_LEVEL": "2", **os.environ}
    started = time.time()
    done = subprocess.run([sys.executable, *arguments], check=False, capture_output=True, text=True, env=environment)
    ended = time.time()
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise UserError(f"A process of the benchmark failed (python {' '.join(arguments)}): {last}")
    return Finished(started, ended, done.stdout)


def run_child(*arguments: str) -> Finished:
    """Run one of the functions of `gradalign.benchmarks.child`."""
    return run_process("-m", "gradalign.benchmarks.child", *arguments)
