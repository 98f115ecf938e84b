"""The discriminator as a critic: differences of mean scores, and a penalty that keeps it 1-Lipschitz.

Arjovsky et al., "Wasserstein GAN", ICML 2017, eq. 2; Gulrajani et al., "Improved Training of Wasserstein GANs", NeurIPS
2017, eq. 3. The papers have one critic between two distributions. For T tasks each score f_u is the critic of task u
against the rest, and W is their mean:

    W = mean_u [mean_{i in u} f_u(q_ui) - mean_{t != u} mean_{i in t} f_u(q_ti)]
    L_D = -W + lambda mean_t mean_i (|df_t(x_ti) / dx_ti| - 1)^2,    L_M = W

Each row x_ti lies somewhere between a row of task t and a row of another task, both stopped: the penalty trains the
critic alone. Deviation: places and partners are not drawn at random but spread evenly. With `normalize="batch"` rows
have a mean square length of 1, the scale that a 1-Lipschitz critic is made for. Scores have no bound, so W is a length
and no probability.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from gradalign.alignment.arguments import not_negative
from gradalign.alignment.objectives.base import Objective
from gradalign.alignment.rows import TaskRows, kept_first

__all__ = ["Wasserstein"]


@keras.saving.register_keras_serializable(package="gradalign")
class Wasserstein(Objective):
    """Critics of one task against the rest, with a gradient penalty.

    The discriminator has to judge each row by itself, without batch normalisation. On several replicas each pairs its
    own rows for the penalty.

    Args:
        gradient_penalty: lambda, 0 or more; without one, keep the critic Lipschitz with `spectral_norm=True`.

    Raises:
        UserError: for another `gradient_penalty`.

    Example:
        >>> from gradalign.alignment.rows import TaskRows, kept_first
        >>> rows = TaskRows(tf.ones([2, 1, 1]), tf.ones([2, 1], tf.bool))
        >>> float(Wasserstein().model_loss(tf.constant([[[3.0, 1.0]], [[0.0, 2.0]]]), rows))
        2.0
    """

    takes_targets = False

    def __init__(self, gradient_penalty: float = 10.0) -> None:
        self.gradient_penalty = not_negative("gradient_penalty", gradient_penalty)

    def discriminator_loss(self, scores: tf.Tensor, targets: tf.Tensor, rows: TaskRows) -> tf.Tensor:
        """Return `-W`; `targets` play no part."""
        return -self.model_loss(scores, rows)

    def model_loss(self, scores: tf.Tensor, rows: TaskRows) -> tf.Tensor:
        """Return W, 0 where fewer than two tasks have rows."""
        means = rows.task_means(scores)  # (T of the rows, T of the scores)
        present = tf.cast(rows.present, scores.dtype)
        own = tf.eye(scores.shape[-1], dtype=scores.dtype)
        others = tf.maximum(tf.reduce_sum(present) - 1.0, 1.0)
        pairs = present[:, None] * present[None, :]
        signed = pairs * (own - (1.0 - own) / others)
        found = tf.reduce_sum(signed * means) / tf.maximum(tf.reduce_sum(present), 1.0)
        return tf.where(tf.reduce_sum(present) > 1.0, found, tf.zeros_like(found))

    def penalty(self, judge: Callable[[tf.Tensor], tf.Tensor], rows: TaskRows, step: Any) -> tf.Tensor | None:
        """Return the gradient penalty of all critics, at rows between those of two tasks."""
        if self.gradient_penalty == 0.0:
            return None
        between, is_pair = _between_tasks(rows, step)
        tasks = rows.kept.shape[0]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(between)
            scores = judge(between)
            own = tf.reshape(tf.eye(tasks, dtype=scores.dtype), [tasks, *[1] * (scores.shape.rank - 2), tasks])
            critics = tf.reduce_sum(scores * own)
        slopes = tape.gradient(critics, between)
        squared = tf.reduce_sum(tf.square(slopes), axis=-1)
        # The root has no derivative at 0, where a `where` behind it would be too late.
        flat = tf.equal(squared, 0)
        length = tf.where(flat, tf.zeros_like(squared), tf.sqrt(tf.where(flat, tf.ones_like(squared), squared)))
        return self.gradient_penalty * tf.cast(rows.only(is_pair).mean(tf.square(length - 1.0)), scores.dtype)

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        return {"gradient_penalty": self.gradient_penalty}


def _between_tasks(rows: TaskRows, step: Any) -> tuple[tf.Tensor, tf.Tensor]:
    """Return rows (T, B, ..., D) between each row and one of another task, and whether there is such a pair.

    Places and partners follow additive recurrences, which spread evenly, over rows and steps: a check that runs a step
    twice meets the same ones, and so does every way of running it.
    """
    shape = tf.shape(rows.gradients)
    tasks, width = rows.kept.shape[0], rows.gradients.shape[-1]
    gradients = tf.reshape(tf.stop_gradient(rows.gradients), tf.stack([tasks, -1, width]))
    kept = tf.reshape(rows.kept, [tasks, -1])
    size = tf.shape(kept)[1]
    row = tf.cast(tf.reshape(tf.range(tasks * size), [tasks, size]), tf.float64)
    round_ = tf.cast(tf.convert_to_tensor(step) % 2**20, tf.float64) + 1.0

    def spread(of_row: float, of_step: float) -> tf.Tensor:
        """Numbers from 0 to 1, (T, B)."""
        number = row * of_row + round_ * of_step
        return number - tf.floor(number)

    order, counts = kept_first(kept)
    away = tf.cast(spread(_PLASTIC, _GOLDEN) * (tasks - 1), tf.int32) + 1
    partner = (tf.range(tasks)[:, None] + away) % tasks
    count = tf.gather(counts, partner)
    shift = tf.cast(tf.cast(count, tf.float64) * spread(0.0, _PLASTIC), tf.int32)
    position = (tf.range(size)[None, :] + shift) % tf.maximum(count, 1)
    of_partner = tf.gather_nd(order, tf.stack([partner, position], axis=-1))
    other = tf.gather_nd(gradients, tf.stack([partner, of_partner], axis=-1))
    share = tf.cast(spread(_GOLDEN, _PLASTIC_SQUARED), gradients.dtype)[..., None]
    is_pair = kept & (count > 0) & (tasks > 1)
    between = tf.where(is_pair[..., None], share * gradients + (1.0 - share) * other, tf.zeros_like(gradients))
    return tf.reshape(between, shape), tf.reshape(is_pair, shape[:-1])


# Inverses of the golden ratio, of the plastic number and of its square: no multiple of them comes near a whole number.
_GOLDEN, _PLASTIC, _PLASTIC_SQUARED = 0.6180339887498949, 0.7548776662466927, 0.5698402909980532
