"""What runs in a process of its own: `python -m gradalign.comparison.one_run`, with a job in its first line of input.

It ends when its input does, so that no run outlives the command that started it, however that was killed.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import traceback
import warnings
from pathlib import Path
from typing import Any, Literal

from gradalign.comparison.job import COST, MEASURED, Job
from gradalign.errors import GradAlignWarning, UserError
from gradalign.training.config import Config
from gradalign.training.peak_memory import peak_resident_set
from gradalign.training.run_folder import CONFIG, Run, is_run, partial_of, write_text

__all__ = ["main", "perform"]


def perform(job: Job) -> None:
    """Train and measure what is missing of a job's runs.

    Raises:
        UserError: the data does not fit the config.
    """
    for number, (folder, config) in enumerate(job.runs.items()):
        if number:
            import keras

            keras.utils.clear_session()
        _perform(folder, config, job.part, job.probe)


def _perform(folder: Path, config: Config, part: Literal["test", "validation"], probe: dict[str, Any] | None) -> None:
    from gradalign.comparison.measures import measures
    from gradalign.training.run import resume, train

    said: list[str] = []
    with warnings.catch_warnings():
        _note_warnings(said)
        if not is_run(folder):
            folder.parent.mkdir(parents=True, exist_ok=True)
            if (partial_of(folder) / CONFIG).is_file():
                resume(folder)
            else:
                train(config, folder, overwrite=True)  # of what was interrupted before there was anything to resume
            write_text(folder / COST, json.dumps({"memory_mb": peak_resident_set() / 1e6, "warnings": said}) + "\n")
        if not (folder / MEASURED).is_file():
            found = measures(Run.open(folder), part, probe)
            write_text(folder / MEASURED, json.dumps(found, indent=1) + "\n")


def _note_warnings(said: list[str]) -> None:
    """Collect what GradAlign warns of, each sentence once; other warnings go where they go."""
    plain: Any = warnings.showwarning

    def note(message: Any, category: type[Warning], *where: Any) -> None:
        if not issubclass(category, GradAlignWarning):
            plain(message, category, *where)
        elif str(message) not in said:
            said.append(str(message))

    warnings.showwarning = note  # type: ignore[assignment]  # the last arguments are handed on as they come
    warnings.simplefilter("always", GradAlignWarning)


def _end_with_input() -> None:
    sys.stdin.read()
    os._exit(1)


def main() -> None:
    """Perform the job that the first line of the standard input describes; what goes wrong is the last line said."""
    job = Job.from_json(sys.stdin.readline())
    threading.Thread(target=_end_with_input, daemon=True).start()
    try:
        perform(job)
    except UserError as error:
        _end(f"Error: {error}")
    except BaseException as error:
        traceback.print_exc()
        _end(f"Error: {type(error).__name__}: {' '.join(str(error).split())}")
    sys.stderr.flush()
    os._exit(0)  # nothing is left to do, and TensorFlow takes its time to go


def _end(last: str) -> None:
    sys.stderr.write(last + "\n")
    sys.stderr.flush()
    os._exit(2)


if __name__ == "__main__":
    main()
