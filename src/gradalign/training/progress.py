"""What a user sees: a progress bar with rate and time left on a terminal, one line an epoch elsewhere, one table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text


class _RateColumn(ProgressColumn):
    """Rows per second, over the last steps."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:,.0f} rows/s")


def _bar(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        _RateColumn(),
        TimeRemainingColumn(compact=True),
        console=console,
        transient=True,
    )


class TrainingProgress(keras.callbacks.Callback):
    """Shows training: a bar that counts rows over all epochs, and a line of losses at the end of each epoch.

    Args:
        console: where to print; without a terminal there are only the lines.
        rows: rows of the training part.
        epochs: epochs in all.
        batch_size: rows a step.
    """

    def __init__(self, console: Console, rows: int, epochs: int, batch_size: int) -> None:
        super().__init__()
        self._console, self._rows, self._epochs, self._batch_size = console, rows, epochs, batch_size
        self._bar = _bar(console) if console.is_terminal else None
        self._epoch = 0

    def __enter__(self) -> TrainingProgress:
        if self._bar is not None:
            self._bar.start()
            self._task = self._bar.add_task("Training", total=self._rows * self._epochs)
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Name the epoch."""
        self._epoch = epoch
        if self._bar is not None:
            self._bar.update(self._task, completed=epoch * self._rows, description=f"Epoch {epoch + 1}/{self._epochs}")

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Move the bar on."""
        if self._bar is not None:
            seen = min((batch + 1) * self._batch_size, self._rows)
            self._bar.update(self._task, completed=self._epoch * self._rows + seen)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Print the epoch's line."""
        self._console.print(epoch_line(epoch + 1, self._epochs, logs or {}), highlight=False, soft_wrap=True)


def epoch_line(epoch: int, epochs: int, logs: Mapping[str, float]) -> str:
    """One epoch in one line: the loss, the tasks' AUCs (of validation, where there is one), the discriminator.

    >>> epoch_line(1, 5, {"loss": 0.5, "buy_auc": 0.7, "val_buy_auc": 0.75, "val_loss": 0.4})
    'epoch 1/5  loss 0.5000  val_loss 0.4000  val_buy_auc 0.7500'
    """
    aucs = [name for name in logs if name.endswith("_auc")]
    aucs = [name for name in aucs if name.startswith("val_")] or aucs
    names = ["loss", "val_loss", *aucs, "alignment_loss", "discriminator_accuracy"]
    return f"epoch {epoch}/{epochs}  " + "  ".join(f"{name} {logs[name]:.4f}" for name in names if name in logs)


class Counter:
    """A bar over a number of rows that is known only once the work has begun; without a terminal nothing is shown.

    Args:
        console: where to show it.
        description: what is being done.
    """

    def __init__(self, console: Console, description: str) -> None:
        self._bar = _bar(console) if console.is_terminal else None
        self._description = description
        self._task: TaskID | None = None
        self.rows = 0  # done so far

    def __enter__(self) -> Counter:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, done: int, rows: int) -> None:
        """Say how many rows are done, and how many there are."""
        self.rows = done
        if self._bar is not None:
            if self._task is None:
                self._task = self._bar.add_task(self._description, total=rows)
            self._bar.update(self._task, completed=done)


def results_table(metrics: Mapping[str, Mapping[str, Any]], alignment: Mapping[str, Any] | None, part: str) -> Table:
    """The table at the end: a row per task, and the discriminator's accuracy beside its chance level."""
    table = Table(title=f"Metrics on {part}", title_justify="left")
    for name in ("task", "AUC", "log loss", "rows", "positives"):
        table.add_column(name, justify="left" if name == "task" else "right")
    for task, found in metrics.items():
        auc, loss = (_number(found[key]) for key in ("auc", "log_loss"))
        table.add_row(task, auc, loss, f"{found['rows']:,}", f"{found['positives']:,}")
    if alignment and alignment.get("discriminator_accuracy") is not None:
        table.caption = (
            f"discriminator accuracy {alignment['discriminator_accuracy']:.4f} (chance {alignment['chance']:.4f})\n"
            "in the last epoch of training"
        )
        table.caption_justify = "left"
    return table


def _number(value: float | None) -> str:
    return "no value" if value is None else f"{value:.4f}"
