"""What the tasks' gradients do while a model trains: a callback that looks at a fixed sample of rows now and then."""

from __future__ import annotations

import csv
import math
import os
import warnings
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from gradalign.alignment.arguments import is_count
from gradalign.diagnostics.gradient_look import GradientLook
from gradalign.diagnostics.gradient_rows import number_of_rows, take_rows
from gradalign.errors import GradAlignWarning, UserError
from gradalign.tasks import labelled_rows, losses_by_task, weights_by_task

__all__ = ["GradientMonitor"]


class GradientMonitor(keras.callbacks.Callback):
    """Log how the tasks' gradients at the shared tensor compare, and what the alignment makes of them.

    Every `every` batches it looks at the same rows, with the model in inference mode, so that a curve shows the model
    and not what was drawn. A look changes nothing of the model: weights, moving statistics, seeds, metrics and the
    schedule's step stay. It costs about one aligned step on `rows` rows; the first one also traces its function, which
    takes seconds. In an epoch with fewer batches it looks once, at the end.

    The epoch's logs, and so `history`, `CSVLogger` and `TensorBoard` behind it in the list of callbacks, get the means
    over the epoch's looks. With `g_ti` the gradient of row i's loss of task t, in the notation of docs/design.md:

    - `<t>_gradient_norm`: `sqrt(mean_i |g_ti|^2)` over the rows with the label.
    - `<t>_<u>_gradient_cosine`: mean of `cos(g_ti, g_ui)` over the rows for which both tasks have a label and a
      gradient that is not zero; `<t>_<u>_conflicting_rows`: the share of these rows whose cosine is below 0. With
      `per="position"` of each position. Labels that differ turn a cosine round, whatever the representation.

    With an alignment:

    - `second_to_first_order_ratio`: `|dM/ds| / |d(sum_t c_t L_t)/ds|`, with M what the alignment has the model minimise
      at strength 1, so -A for a reversal; lengths over all rows and shared tensors.
    - `alignment_strength`: `a = weight × every × schedule × damping` now;
      `second_to_first_order_ratio_at_strength`: r = a times the ratio; `alignment_share`: `r / (1 + r)`, the
      alignment's share of the gradient at the shared tensor in a step in which it takes part.

    With a discriminator, over the rows that it sees:

    - `<t>_discriminator_accuracy`: the share of t's rows that it names right. Their mean over tasks is what
      `discriminator_accuracy` is of the batches.
    - `<t>_discriminator_cross_entropy`: `mean_i -log softmax(D(q_ti))_t`, in nats; a guess has log T. It is a yardstick
      where the objective is `"least_squares"` or `"wasserstein"`, whose discriminators minimise something else.
    - `discriminator_chance`: 1/T, a blind guess; `discriminator_label_aware_chance`: `1/T sum_c max_t P(c | t)`, a
      guess from the labels alone, see `gradalign.probe`. An accuracy up to there says nothing about the representation.

    Where there is nothing to average, as for a task without a label among the rows, the figure is NaN.

    Args:
        data: `(x, y)` or `(x, y, sample_weight)`, arrays or tensors as `fit` takes them; training rows, or others.
        every: batches from one look to the next, counted in each epoch anew. With `steps_per_execution` it looks when
            control comes back.
        rows: how many rows of `data` to look at, at most; drawn once.
        seed: of the draw.
        prefix: in front of each name in the logs, such as `"val_"` for a second monitor.

    Attributes:
        history: every look so far, over several fits: `{"step": optimizer steps, name: figure}`, names without prefix.

    Raises:
        UserError: for a wrong argument; in `fit`, for a model that does not know its shared tensor, and for a name that
            the logs have already.

    Example:
        >>> import gradalign as ga
        >>> x = keras.Input((3,), name="x")
        >>> s = keras.layers.Dense(2, name="encoder")(x)
        >>> base = keras.Model(x, {task: keras.layers.Dense(1, name=task)(s) for task in ("click", "buy")})
        >>> model = ga.MultiTaskModel(base, "encoder")
        >>> model.compile("sgd", loss="mse", run_eagerly=True)
        >>> data = np.ones((8, 3), "float32"), {"click": np.zeros(8), "buy": np.ones(8)}
        >>> monitor = GradientMonitor(data, every=2)
        >>> sorted(set(model.fit(*data, batch_size=2, callbacks=[monitor], verbose=0).history))
        ['buy_gradient_norm', 'buy_loss', 'click_buy_conflicting_rows', 'click_buy_gradient_cosine',
         'click_gradient_norm', 'click_loss', 'loss']
        >>> [look["step"] for look in monitor.history]
        [2, 4]
    """

    def __init__(self, data: Any, *, every: int = 100, rows: int = 1024, seed: int = 0, prefix: str = "") -> None:
        super().__init__()
        for name, value in (("every", every), ("rows", rows)):
            if not is_count(value):
                raise UserError(f"{name} is a whole number, 1 or more; received {value!r}.")
        self.every, self.prefix = int(every), prefix
        count = number_of_rows(data)
        if count == 0:
            raise UserError("GradientMonitor has no rows to look at: the data is empty.")
        chosen = np.sort(np.random.default_rng(seed).choice(count, min(int(rows), count), replace=False))
        self._batch = tf.nest.map_structure(_as_fit_does, take_rows(data, chosen))
        self.history: list[dict[str, float]] = []
        self._look: GradientLook | None = None
        self._made_for: tuple[Any, ...] = ()
        self._in_epoch: list[dict[str, float]] = []
        self._batches = 0
        self._has_warned = False

    def on_train_begin(self, logs: Any = None) -> None:
        """Check that there is something to look at."""
        if not getattr(self.model, "shared", None):
            raise UserError(
                "GradientMonitor needs a MultiTaskModel that knows where the shared tensor is: name its layer, as in "
                'MultiTaskModel(base, shared="encoder").'
            )
        # Compiling makes new metrics, and may change losses and their weights: then the function is traced anew.
        made_for = (self.model, *self.model.metrics[:1])
        if made_for != self._made_for:
            self._look, self._made_for = None, made_for

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Start the means anew."""
        self._in_epoch, self._batches = [], 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Look where another `every` batches are done."""
        done = batch + 1
        if done // self.every > self._batches // self.every:
            self._take_a_look()
        self._batches = done

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Add the means over the epoch's looks to its logs."""
        logs = {} if logs is None else logs
        if not self._in_epoch:
            self._take_a_look()
        for name in self._in_epoch[0]:
            if name == "step":
                continue
            if self.prefix + name in logs:
                raise UserError(
                    f'The logs have "{self.prefix + name}" already, so GradientMonitor cannot add it: give it another '
                    "prefix=, or rename a task."
                )
            logs[self.prefix + name] = mean_of_looks(self._in_epoch, name)

    def write_csv(self, path: str | os.PathLike[str]) -> None:
        """Write `history`, a row for each look, as a whole or, after a crash, not at all.

        Args:
            path: of the file, which is replaced; its folder is made.
        """
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".writing-{path.name}")
        with temporary.open("w", newline="", encoding="utf-8") as file:
            # Models of other tasks may have been looked at before.
            names = dict.fromkeys(name for look in self.history for name in look)
            writer = csv.DictWriter(file, list(names), lineterminator="\n")
            writer.writeheader()
            writer.writerows(self.history)
        os.replace(temporary, path)

    def _take_a_look(self) -> None:
        is_first = self._look is None
        if self._look is None:
            self._look = GradientLook(self.model, self._batch)
        look = {"step": int(tf.convert_to_tensor(self.model.optimizer.iterations)), **self._look()}
        if is_first:
            self._warn_of_tasks_without_labels()
        self._in_epoch.append(look)
        self.history.append(look)

    def _warn_of_tasks_without_labels(self) -> None:
        _, y, sample_weight = self._batch
        tasks = list(losses_by_task(self.model.loss, self.model.tasks, []))
        weights = weights_by_task(sample_weight, tasks)
        for task in tasks:
            mask = labelled_rows(y[task], weights[task], keras.config.floatx()).mask
            if not self._has_warned and not bool(tf.reduce_any(mask)):
                self._has_warned = True
                warnings.warn(
                    f'Task "{task}" has no label among the {len(mask)} rows that GradientMonitor looks at, so its '
                    "figures are NaN; give more rows, or data with its label.",
                    GradAlignWarning,
                    stacklevel=2,
                )


def mean_of_looks(looks: list[dict[str, float]], name: str) -> float:
    """Return the mean of a figure over the looks that have one, else NaN.

    Example:
        >>> mean_of_looks([{"a": 1.0}, {"a": float("nan")}, {"a": 2.0}], "a")
        1.5
    """
    values = [look[name] for look in looks if not math.isnan(look[name])]
    return sum(values) / len(values) if values else math.nan


def _as_fit_does(values: Any) -> Any:
    """Return a column as a tensor; Keras casts floats of arrays, and leaves tensors as they are."""
    if values is None or isinstance(values, (tf.RaggedTensor, tf.SparseTensor)):
        return values
    if isinstance(values, np.ndarray) and values.dtype.kind == "f":
        return tf.convert_to_tensor(values, keras.config.floatx())
    return tf.convert_to_tensor(values)
