"""Every task's gradient rows at the shared tensor of a frozen model, as arrays."""

from __future__ import annotations

import dataclasses
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from gradalign.alignment.rows import own_rows
from gradalign.errors import UserError
from gradalign.gradients.normalization import at_least_float32
from gradalign.gradients.recording import find_layers, record_outputs
from gradalign.gradients.task_gradients import TaskTape
from gradalign.tasks import Forward, losses_by_task, own_inputs, predictions_by_task

__all__ = ["GradientRows", "gradient_rows", "number_of_rows", "take_rows"]


@dataclasses.dataclass(frozen=True)
class GradientRows:
    """Gradients `g_ti` of N rows and T tasks, each of P positions with C entries; P is 1 but for per="position".

    Args:
        gradients: {task: float32 or float64 (N, P, C)}.
        kept: {task: booleans (N,)}: the row has the task's label, and a gradient that is not zero and is finite.
        codes: {task: int64 (N,)}, what the label makes of `dl/dz`: for a task with one output 1 where it is below 0, as
            for a positive label, else 0; for one with several, the output where it is lowest, the row's class.
        outputs: {task: number of its outputs}.
    """

    gradients: dict[str, np.ndarray]
    kept: dict[str, np.ndarray]
    codes: dict[str, np.ndarray]
    outputs: dict[str, int]

    def normalized(self, method: str, *, sign_free: bool = False) -> dict[str, np.ndarray]:
        """Return {task: (N, P·C)} normalised as `gradalign.gradients.normalize` does; rows that are not kept are 0.

        Args:
            method: "l2", "batch", with a task's root mean square over all of its rows that are kept, or "none".
            sign_free: turn the rows of positive labels round, so that each points the way of `dz/ds`.
        """
        found = {}
        for task, g in self.gradients.items():
            kept = self.kept[task]
            rows = np.where(kept[:, None, None], g, 0).astype(np.float64)
            squares = np.square(rows).sum(-1, keepdims=True)  # of float32, which float64 holds without overflow
            if method == "l2":
                rows = np.divide(rows, np.sqrt(squares), out=np.zeros_like(rows), where=squares > 0)
            elif method == "batch":
                there = squares[squares > 0]
                rows /= np.sqrt(there.mean()) if there.size else 1.0
            if sign_free:
                rows *= np.where(self.codes[task] == 1, -1.0, 1.0)[:, None, None]
            found[task] = rows.reshape(len(rows), -1).astype(np.float32)
        return found


def gradient_rows(model: Any, data: Any, tasks: list[str], per: str, batch_size: int) -> GradientRows:
    """Return the gradients of `tasks` on all rows of `data`; the model runs in inference mode and is not changed.

    Args:
        model: a compiled `MultiTaskModel` that knows its shared tensor.
        data: `(x, y, sample_weight)`; weights may be None.
        tasks: whose gradients.
        per: "row" or "position", see `gradalign.gradients.normalize`.
        batch_size: rows of a forward pass.
    """
    layers, losses = find_layers(model.base, model.shared), losses_by_task(model.loss, model.tasks, [])
    row_task = None if model.alignment is None else model.alignment.row_task
    batches = []
    for start in range(0, number_of_rows(data), batch_size):
        batch = take_rows(data, np.arange(start, min(start + batch_size, number_of_rows(data))))
        batches.append(_of_batch(model, batch, layers, losses, tasks, per, row_task))
    gradients, kept, codes = ({task: np.concatenate([b[i][task] for b in batches]) for task in tasks} for i in range(3))
    return GradientRows(gradients, kept, codes, batches[0][3])


def _of_batch(model: Any, batch: Any, layers: Any, losses: Any, tasks: list[str], per: str, row_task: Any) -> Any:
    x, y, sample_weight = batch
    inputs, column = own_inputs(model.base, x, row_task)
    forward = Forward()
    forward.tape = TaskTape()
    with forward.tape, record_outputs(layers, forward.tape.watch) as recorded:
        predictions = predictions_by_task(model.base, model.base(inputs, training=False))
        forward.add_losses(losses, predictions, y, sample_weight, model.tasks)
    shared = [tensor for of_layer in recorded.values() for tensor in of_layer]
    totals = {task: forward.totals[task] for task in tasks}
    gradients = forward.tape.gradients(totals, shared, create_graph=False, one_is_enough=True)
    # Of the predictions alone: for one logit, dl/dz has the sign of dl/d prediction, which only rises with it.
    outer = Forward()
    outputs = {task: tf.identity(predictions[task]) for task in losses}
    with tf.GradientTape() as tape:
        tape.watch(outputs)
        outer.add_losses(losses, outputs, y, sample_weight, model.tasks)
        total = [outer.totals[task] for task in tasks]
    at_outputs = tape.gradient(total, {task: outputs[task] for task in tasks})
    own = {} if column is None else own_rows(str(row_task), column, model.tasks)[0]
    found, kept, codes, widths = {}, {}, {}, {}
    for task in tasks:
        g = _joined([at_least_float32(part) for part in gradients[task]], per)
        mask = forward.masks[task] if task not in own else tf.logical_and(forward.masks[task], own[task])
        found[task] = g
        kept[task] = mask.numpy() & np.any(g != 0, axis=(1, 2)) & np.isfinite(g).all((1, 2))
        d = tf.reshape(at_outputs[task], [len(g), -1]).numpy()
        codes[task] = (d[:, 0] < 0).astype(np.int64) if d.shape[1] == 1 else d.argmin(1)
        widths[task] = d.shape[1]
    return found, kept, codes, widths


def _joined(parts: list[tf.Tensor], per: str) -> np.ndarray:
    """All shared tensors of a batch in one array (B, P, C)."""
    rows = parts[0].shape[0]
    if per == "row":
        return np.concatenate([tf.reshape(part, [rows, 1, -1]).numpy() for part in parts], -1)
    return np.concatenate([tf.reshape(part, [rows, -1, part.shape[-1]]).numpy() for part in parts], -1)


def number_of_rows(data: Any) -> int:
    """Return the number of rows of `(x, y, ...)`, whose labels are a dict keyed by task.

    Raises:
        UserError: there are no labels.
    """
    _, y, _ = keras.utils.unpack_x_y_sample_weight(data)
    if y is None or not tf.nest.flatten(y):
        raise UserError(
            "The data has no labels; give (x, y) or (x, y, sample_weight), the labels a dict keyed by task."
        )
    return len(tf.nest.flatten(y)[0])


def take_rows(data: Any, rows: np.ndarray) -> tuple[Any, Any, Any]:
    """Return `(x, y, sample_weight)` at some rows, given by their numbers."""

    def take(values: Any) -> Any:
        is_tensor = tf.is_tensor(values) or isinstance(values, tf.RaggedTensor)
        return tf.gather(values, rows) if is_tensor else np.asarray(values)[rows]

    parts = keras.utils.unpack_x_y_sample_weight(data)
    x, y, sample_weight = (None if part is None else tf.nest.map_structure(take, part) for part in parts)
    return x, y, sample_weight
