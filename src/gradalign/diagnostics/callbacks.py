"""Callbacks for `fit`: the best checkpoint by the tasks' validation AUCs together, with early stopping on it."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import keras

from gradalign.errors import UserError, nearest

__all__ = ["BestCheckpoint"]


class BestCheckpoint(keras.callbacks.Callback):
    """Keep the checkpoint with the best weighted mean of the tasks' validation AUCs, and stop when it stays behind.

    Each epoch's mean is logged as `val_mean_auc`. The file is written under another name and then renamed, so there is
    never half a checkpoint.

    Args:
        path: file to write, `.keras` for the whole model or `.weights.h5` for its weights.
        weights: `{task: weight}` of the mean, not negative; tasks left out do not count. Default: every task that has a
            validation AUC, equally.
        patience: stop after this many epochs without a better mean; `None` never stops.
        min_delta: smallest increase that counts as better.

    Raises:
        UserError: for a wrong argument; at the end of an epoch, where a task has no `val_<task>_auc` in the logs, which
            takes `metrics={task: ["AUC"]}` in compile and validation data in fit.

    Example:
        >>> callback = BestCheckpoint("best.keras", weights={"income": 2, "college": 1}, patience=3)
        >>> callback.mean({"val_income_AUC": 0.75, "val_college_AUC": 0.5, "val_loss": 1.0}) == (2 * 0.75 + 0.5) / 3
        True
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        weights: dict[str, float] | None = None,
        patience: int | None = None,
        min_delta: float = 0.0,
    ) -> None:
        super().__init__()
        self.path = Path(path)
        if not self.path.name.endswith((".keras", ".weights.h5")):
            raise UserError(f"A checkpoint's name ends in .keras or .weights.h5; received {str(path)!r}.")
        if weights is not None and (not weights or any(w < 0 for w in weights.values()) or not any(weights.values())):
            raise UserError(f"weights are numbers of 0 or more for each task, not all 0; received {weights!r}.")
        if patience is not None and patience < 1:
            raise UserError(f"patience is a number of epochs, 1 or more; received {patience!r}.")
        self.weights = weights
        self.patience = patience
        self.min_delta = min_delta
        self.best = -math.inf
        self.best_epoch: int | None = None
        self._epochs_without = 0

    def mean(self, logs: dict[str, float]) -> float:
        """Return the weighted mean of the validation AUCs in `logs`."""
        aucs = _validation_aucs(logs)
        weights = self.weights or dict.fromkeys(aucs, 1.0)
        for task in weights:
            if task not in aucs:
                raise UserError(
                    f'There is no validation AUC of task "{task}" to choose the best checkpoint by: give '
                    f'metrics={{"{task}": ["AUC"]}} to compile and validation data to fit.{nearest(task, aucs)}'
                )
        if not weights:
            raise UserError(
                "There is no validation AUC to choose the best checkpoint by: "
                "give metrics={task: ['AUC']} to compile and validation data to fit."
            )
        return sum(w * aucs[task] for task, w in weights.items()) / sum(weights.values())

    def on_train_begin(self, logs: Any = None) -> None:
        """Start the count of epochs without a better mean; the best mean so far is kept over several fits."""
        self._epochs_without = 0

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Keep the model if its mean is the best so far; stop training when it has not been for `patience` epochs."""
        logs = {} if logs is None else logs
        mean = self.mean(logs)
        logs["val_mean_auc"] = mean
        if mean > self.best + self.min_delta or self.best_epoch is None:
            self.best, self.best_epoch, self._epochs_without = mean, epoch, 0
            self._save()
            return
        self._epochs_without += 1
        if self.patience is not None and self._epochs_without >= self.patience:
            self.model.stop_training = True

    def _save(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # In the same folder, so that the rename is one step; Keras wants the ending kept.
        temporary = self.path.with_name(f".writing-{self.path.name}")
        save = self.model.save_weights if self.path.name.endswith(".weights.h5") else self.model.save
        save(temporary)
        os.replace(temporary, self.path)


def _validation_aucs(logs: dict[str, float]) -> dict[str, float]:
    """Return `{task: AUC}` from keys such as `val_click_AUC`, `val_click_auc` or `val_click_auc_1`."""
    aucs: dict[str, float] = {}
    for key, value in logs.items():
        task, _, metric = key.removeprefix("val_").rpartition("_")
        if metric.isdigit():
            task, _, metric = task.rpartition("_")
        if key.startswith("val_") and metric.lower() == "auc" and task and task not in aucs:
            aucs[task] = float(value)
    return aucs
