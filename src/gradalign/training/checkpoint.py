"""What a run leaves after each epoch, so that it can be resumed: the model and the history, written whole or not."""

from __future__ import annotations

import csv
import io
import math
import os
import re
import time
from pathlib import Path
from typing import Any

import keras

from gradalign.errors import UserError
from gradalign.training.run_folder import HISTORY, write_text

Row = dict[str, float]
_NAME = re.compile(r"checkpoint-(\d+)\.keras")


class Checkpoint(keras.callbacks.Callback):
    """Writes history.csv and checkpoint-<epoch>.keras after each epoch, and keeps the time that training took.

    The history is written first and the checkpoint second, each by renaming a complete file; a history that is one row
    ahead of its checkpoint after a crash is cut when it is read. A loss that is not a number ends the run.

    Args:
        folder: the run's partial folder.
        history: the rows of the epochs before.
    """

    def __init__(self, folder: Path, history: list[Row]) -> None:
        super().__init__()
        self._folder = folder
        self.history = list(history)
        self._started = self._trained = 0.0

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Start the clock."""
        self._started, self._trained = time.perf_counter(), 0.0

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Stop the clock: validation is not training time."""
        self._trained = time.perf_counter() - self._started

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Write the epoch's row and the model."""
        row = {name: float(value) for name, value in (logs or {}).items()}
        bad = [name for name, value in row.items() if name.endswith("loss") and not math.isfinite(value)]
        if bad:
            raise UserError(
                f"{bad[0]} became {row[bad[0]]} in epoch {epoch + 1}; lower training.learning_rate or alignment.weight."
            )
        seconds = self._trained or time.perf_counter() - self._started
        self.history.append({"epoch": float(epoch + 1), **row, "seconds": seconds})
        write_text(self._folder / HISTORY, _to_csv(self.history))
        save(self.model, self._folder / f"checkpoint-{epoch + 1:05d}.keras")
        remove_checkpoints(self._folder, below=epoch + 1)


def save(model: keras.Model, path: Path) -> None:
    """Save a model under a temporary name, then rename it."""
    temporary = path.with_name("writing." + path.name)
    model.save(temporary)
    os.replace(temporary, path)


def last_checkpoint(folder: Path) -> tuple[Path | None, list[Row]]:
    """Return the newest checkpoint, or None, and the history up to it."""
    found = {int(name[1]): path for path in folder.iterdir() if (name := _NAME.fullmatch(path.name))}
    if not found:
        return None, []
    epoch = max(found)
    return found[epoch], _from_csv((folder / HISTORY).read_text("utf-8"))[:epoch]


def remove_checkpoints(folder: Path, below: int | None = None) -> None:
    """Remove the checkpoints of epochs before `below`, or all of them."""
    for path in list(folder.iterdir()):
        name = _NAME.fullmatch(path.name)
        if path.name.startswith("writing.") or (name and (below is None or int(name[1]) < below)):
            path.unlink()


def _to_csv(history: list[Row]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(history[0]), lineterminator="\n")
    writer.writeheader()
    for row in history:
        writer.writerow({**row, "epoch": int(row["epoch"])})
    return text.getvalue()


def _from_csv(text: str) -> list[Row]:
    return [{name: float(value) for name, value in row.items()} for row in csv.DictReader(io.StringIO(text))]
