"""A job in a process of its own, which cannot outlive the one that started it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

from gradalign.comparison.job import Job

__all__ = ["JobProcess", "Processes", "cores", "jobs_at_once"]

LOGS = "logs"
COMMAND = (sys.executable, "-m", "gradalign.comparison.one_run")


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def jobs_at_once() -> int:
    """Return how many jobs to run at a time by default: one a core, and one alone on a GPU, whose memory they share."""
    return 1 if Path("/dev/nvidiactl").exists() else cores()


class Processes:
    """Starts a process for each job.

    Args:
        folder: the comparison's; what a job says goes to <folder>/logs.
        at_once: jobs that run at a time; they share the cores.
        lock: a file descriptor that each process holds as long as it lives.
    """

    def __init__(self, folder: Path, at_once: int, lock: int | None = None) -> None:
        self._folder, self._lock = folder, lock
        threads = str(max(1, cores() // at_once))
        self._environment = {
            "TF_CPP_MIN_LOG_LEVEL": "2",
            "TF_NUM_INTRAOP_THREADS": threads,
            "TF_NUM_INTEROP_THREADS": threads,
            "OMP_NUM_THREADS": threads,
            "TF_FORCE_GPU_ALLOW_GROWTH": "true",
            **os.environ,
        }

    def __call__(self, job: Job) -> JobProcess:
        """Start a job."""
        log = self._folder / LOGS / f"{job.name.replace(', ', '-').replace(' ', '-')}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as said:
            process = subprocess.Popen(
                COMMAND,
                stdin=subprocess.PIPE,
                stdout=said,
                stderr=subprocess.STDOUT,
                env=self._environment,
                pass_fds=() if self._lock is None else (self._lock,),
                start_new_session=True,  # Ctrl-C is for the command alone, which then ends them
            )
        return JobProcess(process, log, job)


class JobProcess:
    """A process that performs a job; its standard input stays open as long as this process lives."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path, job: Job) -> None:
        self._process, self.log = process, log
        assert process.stdin is not None
        self._input = process.stdin
        with contextlib.suppress(BrokenPipeError):  # it has ended already; its exit code and its log say why
            self._input.write(job.to_json().encode() + b"\n")
            self._input.flush()

    def poll(self) -> int | None:
        """Return the exit code, None while it runs."""
        code = self._process.poll()
        if code is not None:
            self._close()
        return code

    def kill(self) -> None:
        """End it at once, and wait until it has ended."""
        self._process.kill()
        self._process.wait()
        self._close()

    def _close(self) -> None:
        with contextlib.suppress(BrokenPipeError):  # what it never read
            self._input.close()
