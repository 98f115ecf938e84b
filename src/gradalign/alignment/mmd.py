"""MMD alignment: the tasks' normalised gradients become one distribution, by the maximum mean discrepancy.

Gretton et al., "A Kernel Two-Sample Test", JMLR 2012, eq. 5 (the biased estimate, which is never negative); several
bandwidths at once as in Long et al., "Learning Transferable Features with Deep Adaptation Networks", ICML 2015, section
3.1, around the median distance (Gretton et al., section 8):

    A = mean over pairs t < u of  mean k(q_t, q_t') + mean k(q_u, q_u') - 2 mean k(q_t, q_u)
    k(x, y) = mean_s exp(-|x - y|^2 / (2 (s h)^2))  "gaussian",    mean_s exp(-|x - y| / (s h))  "laplacian"

h is the median distance between rows of all tasks, taken on stopped gradients: it is a unit of length, and is not to be
trained. Every task weighs the same in it.
"""

from __future__ import annotations

import math
import numbers
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from gradalign.alignment.arguments import one_of
from gradalign.alignment.direct import DirectAlignment, mean_over_pairs, squared_lengths
from gradalign.alignment.rows import TaskRows, kept_first
from gradalign.errors import UserError
from gradalign.gradients.replicas import rows_of_replicas, summed_replicas

__all__ = ["KERNELS", "MMDAlignment"]

KERNELS = ("gaussian", "laplacian")
SCALES = (0.25, 0.5, 1.0, 2.0, 4.0)
# The median of all pairs would cost more than the kernel itself.
MEDIAN_ROWS = 128


@keras.saving.register_keras_serializable(package="gradalign")
class MMDAlignment(DirectAlignment):
    """Minimise the squared maximum mean discrepancy between the tasks' normalised gradients.

    Exact over the global batch on several replicas, each of which gathers the rows of all. Costs a matrix (T·B, T·B) a
    step: `fraction` keeps it small.

    Args:
        weight: largest strength, 0 or more.
        kernel: `"gaussian"` or `"laplacian"`, whose tails are heavier: it pulls rows that are far apart.
        bandwidth: h, a length in units of normalised gradients; default the median distance in the batch, of the first
            128 rows of each task.
        scales: multiples of h whose kernels are averaged.
        **settings: `normalize`, `schedule`, `total_steps`, `tasks`, `row_task`, `reach`, `per`, `fraction`, `every`,
            `sign_free` and `balance_labels`, as of `AdversarialAlignment`.

    Raises:
        UserError: for a wrong argument, and when called, for gradients that do not fit it.

    Example:
        >>> alignment = MMDAlignment(0.1, schedule=1.0, normalize="none", bandwidth=1.0, scales=(1.0,))
        >>> found = alignment({"click": tf.zeros([1, 1]) + 1.0, "buy": tf.zeros([1, 1]) + 2.0})
        >>> round(float(found), 4)  # 2 - 2 exp(-1/2)
        0.7869
    """

    def __init__(
        self,
        weight: float = 0.1,
        *,
        kernel: str = "gaussian",
        bandwidth: float | None = None,
        scales: tuple[float, ...] = SCALES,
        **settings: Any,
    ) -> None:
        super().__init__(weight, **settings)
        self.kernel = one_of("kernel", kernel, KERNELS)
        if bandwidth is not None and not _is_length(bandwidth):
            raise UserError(f"bandwidth is a finite number above 0, or None for the median; received {bandwidth!r}.")
        self.bandwidth = None if bandwidth is None else float(bandwidth)
        if not isinstance(scales, (list, tuple)) or not scales or not all(map(_is_length, scales)):
            raise UserError(f"scales is a list of finite numbers above 0; received {scales!r}.")
        self.scales = [float(scale) for scale in scales]

    def distance(self, rows: TaskRows) -> tf.Tensor:
        """Return the mean over pairs of tasks of their squared discrepancy."""
        tasks, width = rows.kept.shape[0], rows.gradients.shape[-1]
        by_row = tf.reshape(rows.gradients, tf.stack([tasks, -1, width])), tf.reshape(rows.shares, [tasks, -1])
        q, shares = (rows_of_replicas(part, axis=1) for part in by_row)
        unit = tf.stop_gradient(
            self._median(q, shares) if self.bandwidth is None else tf.constant(self.bandwidth, q.dtype)
        )
        flat = tf.reshape(q, [-1, width])
        kernel = self._kernel(_squared_distances(flat), unit)
        weights = tf.reshape(tf.eye(tasks, dtype=q.dtype)[:, :, None] * shares[None], tf.stack([tasks, -1]))
        means = tf.matmul(tf.matmul(weights, kernel), weights, transpose_b=True)
        own = tf.linalg.diag_part(means)
        # Every replica has the whole of it.
        return mean_over_pairs(own[:, None] + own[None, :] - 2.0 * means, rows.present) / summed_replicas()

    def _median(self, q: tf.Tensor, shares: tf.Tensor) -> tf.Tensor:
        """Return the median distance between rows of all tasks, each task weighing the same; 1 where it is 0."""
        # Kept rows come first: a sparse task may have none among the first of the batch.
        order, counts = kept_first(shares > 0)
        first = order[:, :MEDIAN_ROWS]
        few = tf.reshape(tf.stop_gradient(tf.gather(q, first, batch_dims=1)), [-1, q.shape[-1]])
        is_kept = tf.range(tf.shape(first)[1])[None, :] < counts[:, None]
        of_task = tf.gather(shares, first, batch_dims=1) * tf.cast(is_kept, q.dtype)
        of_task = of_task / tf.maximum(tf.reduce_sum(of_task, axis=1, keepdims=True), 1e-30)
        weights = tf.reshape(of_task, [-1])
        squared = tf.reshape(_squared_distances(few), [-1])
        # A row's distance to itself, always 0, is none between rows.
        pairs = tf.reshape((weights[:, None] * weights[None, :]), [-1]) * tf.cast(squared > 0, q.dtype)
        order = tf.argsort(squared)
        below = tf.cumsum(tf.gather(pairs, order))
        place = tf.reduce_sum(tf.cast(below < below[-1] / 2.0, tf.int32))
        median = tf.sqrt(tf.gather(tf.gather(squared, order), tf.minimum(place, tf.size(order) - 1)))
        return tf.where(median > 0, median, tf.ones_like(median))

    def _kernel(self, squared: tf.Tensor, unit: tf.Tensor) -> tf.Tensor:
        exponent = squared / 2.0 if self.kernel == "gaussian" else _root(squared)
        power = 2.0 if self.kernel == "gaussian" else 1.0
        parts = [tf.exp(-exponent / (scale * unit) ** power) for scale in self.scales]
        return tf.add_n(parts) / len(parts)

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        own = {"kernel": self.kernel, "bandwidth": self.bandwidth, "scales": self.scales}
        return {**super().get_config(), **own}


def _is_length(value: Any) -> bool:
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    return is_number and math.isfinite(value) and value > 0


def _squared_distances(rows: tf.Tensor) -> tf.Tensor:
    """Return `|x_i - x_j|^2` of rows (N, D), (N, N); exactly 0 where rounding is all that keeps two rows apart."""
    lengths = squared_lengths(rows)
    sums = lengths[:, None] + lengths[None, :]
    squared = sums - 2.0 * tf.matmul(rows, rows, transpose_b=True)
    rounding = 8.0 * float(np.finfo(rows.dtype.as_numpy_dtype).eps) * sums
    return tf.where(squared > rounding, squared, tf.zeros_like(squared))


def _root(squared: tf.Tensor) -> tf.Tensor:
    """Return the square root, whose derivative is 0 instead of infinite at 0."""
    is_zero = tf.equal(squared, 0)
    return tf.where(is_zero, tf.zeros_like(squared), tf.sqrt(tf.where(is_zero, tf.ones_like(squared), squared)))
