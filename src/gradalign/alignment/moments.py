"""Moment alignment: mean and covariance of the tasks' normalised gradients are made equal.

The covariance term is CORAL (Sun, Saenko, "Deep CORAL: Correlation Alignment for Deep Domain Adaptation", ECCV 2016
workshops, eq. 1 to 3), on gradients instead of features; beside it stands the distance of the means:

    A = mean over pairs t < u of  m |mu_t - mu_u|^2 + c |C_t - C_u|_F^2
    mu_t = mean_i q_ti,   C_t = mean_i (q_ti - mu_t)(q_ti - mu_t)^T

Deviations: no factor 1/(4 D^2), since our rows, not their entries, are of length one, so the squared Frobenius norm
does not grow with D^2; covariances divide by n instead of n - 1, so that a task with one row has one.
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from gradalign.alignment.arguments import not_negative
from gradalign.alignment.direct import DirectAlignment, mean_over_pairs, squared_lengths
from gradalign.alignment.rows import TaskRows
from gradalign.errors import UserError
from gradalign.gradients.replicas import sum_over_replicas, summed_replicas

__all__ = ["MomentAlignment"]


@keras.saving.register_keras_serializable(package="gradalign")
class MomentAlignment(DirectAlignment):
    """Minimise the distance between the means and covariances of the tasks' normalised gradients.

    Exact over the global batch on several replicas. Costs T matrices (D, D) and T products (D, B) times (B, D) a step.

    Args:
        weight: largest strength, 0 or more.
        mean: m, what the squared distance of the means weighs; 0 leaves it out.
        covariance: c, what that of the covariances weighs; 0 leaves it out.
        **settings: `normalize`, `schedule`, `total_steps`, `tasks`, `row_task`, `reach`, `per`, `fraction`, `every`,
            `sign_free` and `balance_labels`, as of `AdversarialAlignment`.

    Raises:
        UserError: for a wrong argument, both weights 0 included, and when called, for gradients that do not fit it.

    Example:
        >>> alignment = MomentAlignment(0.1, schedule=1.0, normalize="none", covariance=0.0)
        >>> gradients = {"click": tf.constant([[1.0, 0.0], [3.0, 0.0]]), "buy": tf.constant([[2.0, 1.0], [2.0, 1.0]])}
        >>> float(alignment(gradients))
        1.0
    """

    def __init__(self, weight: float = 0.1, *, mean: float = 1.0, covariance: float = 1.0, **settings: Any) -> None:
        super().__init__(weight, **settings)
        self.mean = not_negative("mean", mean)
        self.covariance = not_negative("covariance", covariance)
        if self.mean == self.covariance == 0.0:
            raise UserError(f"mean and covariance are not both 0, which leaves nothing to align; received {mean!r}.")

    def distance(self, rows: TaskRows) -> tf.Tensor:
        """Return the mean over pairs of tasks of the weighted squared distances of their moments."""
        tasks, width = rows.kept.shape[0], rows.gradients.shape[-1]
        q = tf.reshape(rows.gradients, tf.stack([tasks, -1, width]))
        shares = tf.reshape(rows.shares, [tasks, -1, 1])
        means = sum_over_replicas(tf.reduce_sum(shares * q, axis=1))
        distances = tf.zeros([tasks, tasks], q.dtype)
        if self.mean:
            distances += self.mean * squared_lengths(means[:, None] - means[None, :])
        if self.covariance:
            centred = q - means[:, None]
            covariances = sum_over_replicas(tf.matmul(shares * centred, centred, transpose_a=True))
            flat = tf.reshape(covariances, [tasks, width * width])
            # By turns of the tasks: all pairs at once would be T^2 matrices.
            for turn in range(1, tasks):
                of_turn = squared_lengths(flat - tf.roll(flat, turn, axis=0))
                distances += self.covariance * of_turn[:, None] * tf.roll(tf.eye(tasks, dtype=q.dtype), turn, axis=0)
        # Every replica has the whole of it.
        return mean_over_pairs(distances, rows.present) / summed_replicas()

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        return {**super().get_config(), "mean": self.mean, "covariance": self.covariance}
