"""Figures of the tasks' gradient rows, as tensors: lengths, cosines, and what a discriminator makes of them."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from gradalign.alignment.objectives.base import cross_entropy
from gradalign.alignment.rows import TaskRows
from gradalign.gradients.normalization import at_least_float32, nonzero_rows, normalize_rows

__all__ = ["label_aware_chance", "length", "named_right", "pairwise_cosines", "root_mean_square", "whole_rows"]


def whole_rows(parts: Sequence[tf.Tensor], per: str = "row") -> tf.Tensor:
    """Return the gradients at all shared tensors as rows (B, D), or (B, P, C) with `per="position"`.

    Args:
        parts: a task's gradient at each shared tensor, (B, ...).
        per: what a row is, see `gradalign.gradients.normalize`.
    """
    shapes = [[tf.shape(g)[0], -1, g.shape[-1]] if per == "position" else [tf.shape(g)[0], -1] for g in parts]
    rows = [tf.reshape(g, shape) for g, shape in zip(parts, shapes, strict=True)]
    return tf.concat([at_least_float32(g) for g in rows], axis=-1)


def length(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """Return the Euclidean length of all tensors together, a float64 scalar.

    Example:
        >>> float(length([tf.constant([3.0]), tf.constant([[4.0]])]))
        5.0
    """
    return tf.sqrt(tf.add_n([tf.reduce_sum(tf.square(tf.cast(t, tf.float64))) for t in tensors]))


def root_mean_square(rows: tf.Tensor, counted: tf.Tensor) -> tf.Tensor:
    """Return `sqrt(mean_i |row_i|^2)` over the rows (B, D) that `counted` (B,) picks, float64; NaN where it picks none.

    Example:
        >>> float(root_mean_square(tf.constant([[3.0, 4.0], [9.0, 9.0]]), tf.constant([True, False])))
        5.0
    """
    squared = tf.reduce_sum(tf.square(tf.cast(rows, tf.float64)), axis=-1)
    return tf.sqrt(_mean(squared, counted))


def pairwise_cosines(rows: Sequence[tf.Tensor], labelled: Sequence[tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
    """Return for each pair of tasks the mean cosine of their rows, and the share of rows whose cosine is below 0.

    Over the rows that both have: with both labels, and a gradient of both that is not zero; NaN where there is none.

    Args:
        rows: of each task, (B, D) or (B, P, C).
        labelled: booleans of each task, (B,).

    Returns:
        Two float64 tensors (T, T).

    Example:
        >>> rows = [tf.constant([[1.0, 0.0], [2.0, 0.0]]), tf.constant([[3.0, 0.0], [-1.0, 0.0]])]
        >>> cosine, conflicting = pairwise_cosines(rows, [tf.constant([True, True])] * 2)
        >>> float(cosine[0, 1]), float(conflicting[0, 1])
        (0.0, 0.5)
    """
    units, kept = [], []
    for of_task, has_label in zip(rows, labelled, strict=True):
        is_kept = nonzero_rows(of_task)
        is_kept = tf.logical_and(is_kept, tf.reshape(has_label, [-1, *[1] * (is_kept.shape.rank - 1)]))
        # Lengths from 1e-30 on, whose squares float32 does not hold.
        units.append(tf.reshape(normalize_rows(of_task, is_kept, "l2"), [-1, tf.shape(of_task)[-1]]))
        kept.append(tf.reshape(is_kept, [-1]))
    widest = tf.float64 if any(u.dtype == tf.float64 for u in units) else tf.float32
    unit, there = tf.stack([tf.cast(u, widest) for u in units]), tf.stack(kept)
    cosines = tf.cast(tf.einsum("tnd,und->tun", unit, unit), tf.float64)
    both = tf.logical_and(there[:, None], there[None, :])
    return _mean(cosines, both), _mean(tf.cast(cosines < 0, tf.float64), both)


def named_right(scores: tf.Tensor, rows: TaskRows) -> tuple[tf.Tensor, tf.Tensor]:
    """Return each task's share of rows that the discriminator names right, and their mean cross-entropy, (T,).

    Rows weigh as in the alignment's loss: alike, or with `balance_labels` by label. NaN for a task without rows.

    Args:
        scores: the discriminator's, (T, B, ..., T).
        rows: what they are of.
    """
    tasks = rows.kept.shape[0]
    own = tf.reshape(tf.range(tasks, dtype=tf.int64), [tasks, *[1] * (rows.kept.shape.rank - 1)])
    right = tf.cast(tf.equal(tf.argmax(scores, axis=-1), own), scores.dtype)
    target = tf.reshape(tf.eye(tasks, dtype=scores.dtype), [tasks, *[1] * (rows.kept.shape.rank - 1), tasks])
    means = tf.cast(rows.task_means(tf.stack([right, cross_entropy(scores, target)], axis=-1)), tf.float64)
    means = tf.where(rows.present[:, None] > 0, means, tf.constant(float("nan"), tf.float64))
    return means[:, 0], means[:, 1]


def label_aware_chance(codes: Sequence[tf.Tensor], classes: int, rows: TaskRows) -> tf.Tensor:
    """Return the balanced accuracy of the best rule that sees a row's label and nothing else, a float64 scalar.

    `1/T sum_c max_t P(c | t)` over the tasks that have rows, with the weights that the rows have in the alignment; the
    same as `gradalign.probe` reports.

    Args:
        codes: whole numbers of each task, (B,): what the label makes of a row.
        classes: one more than the largest of them.
        rows: the gradients that the discriminator sees.

    Example:
        >>> rows = TaskRows(tf.ones([2, 4, 1]), tf.ones([2, 4], tf.bool))
        >>> float(label_aware_chance([tf.constant([1, 1, 1, 0]), tf.constant([1, 0, 0, 0])], 2, rows))
        0.75
    """
    shares = tf.cast(rows.shares, tf.float64)
    of_rows = tf.reduce_sum(shares, axis=list(range(2, shares.shape.rank))) if shares.shape.rank > 2 else shares
    by_class = tf.einsum("tb,tbc->tc", of_rows, tf.one_hot(tf.stack(codes), classes, dtype=tf.float64))
    present = tf.reduce_sum(tf.cast(rows.present, tf.float64))
    return tf.reduce_sum(tf.reduce_max(by_class, axis=0)) / present


def _mean(values: tf.Tensor, counted: tf.Tensor) -> tf.Tensor:
    """Return the mean along the last axis of the values that count; NaN where none does."""
    counts = tf.reduce_sum(tf.cast(counted, tf.float64), axis=-1)
    return tf.reduce_sum(tf.where(counted, values, tf.zeros_like(values)), axis=-1) / counts
