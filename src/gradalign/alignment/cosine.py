"""Cosine alignment: two tasks' gradients of the same row point the same way.

The cosine between task gradients is what gradient surgery looks at (Yu et al., "Gradient Surgery for Multi-Task
Learning", NeurIPS 2020, definition 1; Du et al., "Adapting Auxiliary Losses Using Gradient Similarity", 2018, section
3). There it decides what happens to an update; here the representation is trained so that it rises, row by row:

    A = mean over pairs t < u of  mean over rows i of both of  1 - cos(g_ti, g_ui)

Two losses that pull a row towards each other's opposite have 2, at right angles 1, the same way 0.
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from gradalign.alignment.direct import DirectAlignment, mean_over_pairs
from gradalign.alignment.rows import TaskRows
from gradalign.gradients.replicas import sum_over_replicas

__all__ = ["CosineAlignment"]


@keras.saving.register_keras_serializable(package="gradalign")
class CosineAlignment(DirectAlignment):
    """Minimise one minus the cosine between the tasks' gradients of the same row.

    A pair of tasks is compared on the rows for which both have a label and a gradient; a row that only one task has
    takes no part, and a pair without a common row does not count. A label turns its gradient round, so tasks whose
    labels differ are at odds in it whatever the representation: `sign_free=True` compares the ways of the logits.
    It needs smooth towers: the direction of a ReLU tower's gradient does not change with the shared tensor.

    Args:
        weight: largest strength, 0 or more.
        schedule, total_steps, tasks, reach, per, fraction, every, sign_free: as of `AdversarialAlignment`.

    There is no `normalize`, since a cosine does not depend on lengths, nor `row_task`, which leaves one task a row.

    Raises:
        UserError: for a wrong argument, and when called, for gradients that do not fit it.

    Example:
        >>> alignment = CosineAlignment(0.1, schedule=1.0)
        >>> gradients = {"click": tf.constant([[1.0, 0.0], [1.0, 0.0]]), "buy": tf.constant([[2.0, 0.0], [0.0, 3.0]])}
        >>> float(alignment(gradients))
        0.5
    """

    def __init__(
        self,
        weight: float = 0.1,
        *,
        schedule: Any = "ganin",
        total_steps: int | None = None,
        tasks: list[str] | None = None,
        reach: str = "all",
        per: str = "row",
        fraction: float = 1.0,
        every: int = 1,
        sign_free: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            weight,
            normalize="l2",
            schedule=schedule,
            total_steps=total_steps,
            tasks=tasks,
            reach=reach,
            per=per,
            fraction=fraction,
            every=every,
            sign_free=sign_free,
            **kwargs,
        )

    def distance(self, rows: TaskRows) -> tf.Tensor:
        """Return the mean over pairs of tasks of the mean of one minus the cosine over their common rows."""
        tasks, width = rows.kept.shape[0], rows.gradients.shape[-1]
        unit = tf.reshape(rows.gradients, tf.stack([tasks, -1, width]))
        kept = tf.cast(tf.reshape(rows.kept, [tasks, -1]), unit.dtype)
        common = tf.matmul(kept, kept, transpose_b=True)
        # Left-out rows are zero, so they add nothing to the sum of cosines.
        cosines = tf.einsum("tid,uid->tu", unit, unit)
        counts = sum_over_replicas(common)
        distances = (common - cosines) / tf.maximum(counts, 1.0)
        return mean_over_pairs(distances, tf.cast(counts > 0, unit.dtype))

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        config = super().get_config()
        return {name: value for name, value in config.items() if name not in _FIXED}


_FIXED = ("normalize", "row_task", "balance_labels")
