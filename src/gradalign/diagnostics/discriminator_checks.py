"""What a discriminator must not see: rows that are left out, and what the labels' signs alone give away."""

from __future__ import annotations

from collections.abc import Mapping

import tensorflow as tf

from gradalign.alignment.base import Alignment
from gradalign.alignment.rows import TaskRows
from gradalign.tasks import LabelledRows

__all__ = ["LabelLeak", "label_leak", "mixes_rows"]

# Relative change of the alignment loss that is more than rounding.
_MATTERS = 1e-4


class LabelLeak:
    """How well the labels alone tell tasks apart.

    Attributes:
        positives: `{task: share of positive labels among its labelled rows}`.
        accuracy: balanced accuracy of a guess from the label alone.
        chance: that of a blind guess, 1 / number of tasks.
    """

    def __init__(self, positives: dict[str, float]) -> None:
        self.positives = positives
        shares = list(positives.values())
        self.chance = 1.0 / len(shares)
        # A positive row is laid to the task with the most of them, a negative row to the one with the fewest.
        self.accuracy = (max(shares) + 1.0 - min(shares)) / len(shares)

    def __str__(self) -> str:
        shares = ", ".join(f"{task} {share:.1%}" for task, share in self.positives.items())
        return (
            "Label leak: the sign of a row's gradient is that of its label, and the shares of positive labels differ "
            f"({shares}), so a discriminator that reads nothing else is right in {self.accuracy:.3f} of the rows, a "
            f"blind guess in {self.chance:.3f}; an accuracy up to there says nothing about the representation."
        )


def label_leak(
    rows: Mapping[str, LabelledRows], predictions: Mapping[str, tf.Tensor], tasks: list[str]
) -> LabelLeak | None:
    """Return what the labels of `tasks` give away; `None` unless each is binary, with one output, and has labels.

    Args:
        rows: `{task: labelled rows}` of a batch.
        predictions: `{task: predictions}`.
        tasks: the aligned ones.

    Example:
        >>> from gradalign.tasks import labelled_rows
        >>> rows = {t: labelled_rows(tf.constant(y), None, "float32") for t, y in
        ...         {"click": [1.0, 1.0, 0.0, 0.0], "buy": [1.0, 0.0, 0.0, 0.0]}.items()}
        >>> label_leak(rows, {t: tf.zeros([4, 1]) for t in rows}, ["click", "buy"]).accuracy
        0.625
    """
    positives = {}
    for task in tasks:
        labels = tf.cast(tf.boolean_mask(rows[task].y_true, rows[task].mask), tf.float32)
        binary = bool(tf.reduce_all(tf.logical_or(tf.equal(labels, 0.0), tf.equal(labels, 1.0))))
        one_output = predictions[task].shape.rank == 1 or predictions[task].shape[-1] == 1
        if not (binary and one_output) or int(tf.size(labels)) == 0:
            return None
        positives[task] = float(tf.reduce_mean(labels))
    return LabelLeak(positives) if len(positives) > 1 else None


def mixes_rows(alignment: Alignment, rows: TaskRows) -> bool:
    """Whether the alignment loss changes with rows that are left out, so that those leak into the ones that count.

    A discriminator with batch normalisation does: its statistics hold unlabelled rows, whose zeros give tasks away.

    Args:
        alignment: a built alignment; call this where its seeds are put back afterwards.
        rows: the rows of a batch.
    """
    # Whole examples: a convolutional discriminator is meant to look at the positions around a position.
    behind = [1] * (rows.kept.shape.rank - 2)
    examples = tf.reduce_any(rows.kept, axis=list(range(2, rows.kept.shape.rank)))
    if bool(tf.reduce_all(examples)):  # leave the first one of each task out
        first = tf.one_hot(0, tf.shape(examples)[1], on_value=False, off_value=True, dtype=tf.bool)
        examples = tf.logical_and(examples, first)
    examples = tf.reshape(examples, [*examples.shape[:1], -1, *behind])
    kept = tf.logical_and(rows.kept, examples)
    losses = []
    for filling in (0.0, 3.0):
        seeds = [tf.identity(v.value) for v in alignment.non_trainable_variables]
        gradients = tf.where(examples[..., None], rows.gradients, tf.cast(filling, rows.gradients.dtype))
        losses.append(float(alignment.align(TaskRows(gradients, kept), update_metrics=False)))
        for variable, seed in zip(alignment.non_trainable_variables, seeds, strict=True):
            variable.assign(seed)  # the same dropout masks in both
    return abs(losses[1] - losses[0]) > _MATTERS * max(abs(losses[0]), 1e-30)
