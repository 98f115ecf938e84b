"""Jobs, some at a time, each in a process of its own; what is finished already is left out."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from gradalign.comparison.job import Job
from gradalign.errors import UserError

__all__ = ["Running", "Schedule", "Start"]

_LOOK = 0.05  # seconds between looks at what runs


class Running(Protocol):
    """A job that was started."""

    log: Path

    def poll(self) -> int | None:
        """Return the exit code, None while it runs."""

    def kill(self) -> None:
        """End it at once, and wait until it has ended."""


Start = Callable[[Job], Running]


class Schedule:
    """Runs jobs and shows how many are done and how long the others will take.

    Args:
        total: jobs in all, over all calls of `run`.
        at_once: so many run at a time.
        console: where to show it: a bar on a terminal, a line a job elsewhere.
        start: starts a job.
    """

    def __init__(self, total: int, at_once: int, console: Console, start: Start) -> None:
        self._total, self._at_once, self._console, self._start = total, at_once, console, start
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._progress = Progress(*columns, TimeRemainingColumn(), console=console, transient=True)
        self._bar = self._progress.add_task("Comparing", total=total)
        self._done = 0
        self._seconds: list[float] = []  # of the jobs that were run, not found finished

    def __enter__(self) -> Schedule:
        if self._console.is_terminal:
            self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._console.is_terminal:  # elsewhere it would still print an empty line
            self._progress.stop()

    def run(self, jobs: Sequence[Job]) -> None:
        """Run those that are not done; when one fails, the others are ended.

        Raises:
            UserError: a job failed; with the last line that it said.
        """
        waiting = [job for job in jobs if not job.is_done]
        self._done += len(jobs) - len(waiting)
        self._progress.update(self._bar, completed=self._done)
        running: dict[Running, tuple[Job, float]] = {}
        try:
            while waiting or running:
                while waiting and len(running) < self._at_once:
                    job = waiting.pop(0)
                    running[self._start(job)] = (job, time.monotonic())
                    self._describe(running)
                ended = {process: code for process in running if (code := process.poll()) is not None}
                if not ended:
                    time.sleep(_LOOK)
                for process, code in ended.items():
                    job, started = running.pop(process)
                    if code != 0 or not job.is_done:
                        raise UserError(_failure(job, process.log, code))
                    self._tell(job, time.monotonic() - started)
                    self._describe(running)
        finally:
            for process in running:
                process.kill()

    def _describe(self, running: Mapping[Running, tuple[Job, float]]) -> None:
        names = "; ".join(job.name for job, _ in running.values())
        self._progress.update(self._bar, description=f"Comparing ({names})" if names else "Comparing")

    def _tell(self, job: Job, seconds: float) -> None:
        self._done += 1
        self._seconds.append(seconds)
        self._progress.update(self._bar, completed=self._done)
        left = (self._total - self._done) * sum(self._seconds) / len(self._seconds) / self._at_once
        said = f", about {_duration(left)} left" if self._done < self._total else ""
        line = f"{self._done}/{self._total}  {job.name}: {_duration(seconds)}{said}"
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)


def _duration(seconds: float) -> str:
    """A time for a reader.

    >>> _duration(42.4), _duration(600)
    ('42 s', '10 min')
    """
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def _failure(job: Job, log: Path, code: int) -> str:
    lines = log.read_text("utf-8", errors="replace").strip().splitlines() if log.is_file() else []
    if code < 0:
        name = signal.Signals(-code).name if sys.platform != "win32" else str(-code)
        last = f"it was ended by {name}" + (", perhaps for want of memory" if name == "SIGKILL" else "")
    else:
        last = (lines or ["it said nothing"])[-1].removeprefix("Error: ").rstrip(".")
    return (
        f"The run {job.name} failed: {last}. All that it said is in {log}; what is finished stays, and the same "
        "command goes on with the rest."
    )
