"""Batches for training: every epoch in another order, which depends on nothing but the seed and the epoch's number.

All work is whole-batch operations of `tf.data`, outside Python: a batch is one gather of records, or a slice of a
shuffled buffer, and one cast and transposition for each type of column.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import tensorflow as tf

from gradalign.data.encoded import EncodedRows

OneEpoch = Callable[[tf.Tensor], tf.data.Dataset]  # the epoch's number -> its batches of records

_BLOCKS = 128  # that a shuffle buffer is filled with, each from another place in the file
_READ = 8192  # rows that are read at once where the order stays


def steps_per_epoch(rows: int, batch_size: int) -> int:
    """Number of batches that hold `rows` rows; the last one may be smaller.

    >>> steps_per_epoch(10, 4)
    3
    """
    return math.ceil(rows / batch_size)


def shuffled_batches(
    rows: EncodedRows, batch_size: int, seed: int, first_epoch: int, epochs: int, shuffle_buffer: int | None = None
) -> tf.data.Dataset:
    """Return the batches of the epochs `first_epoch` to `epochs - 1`, one after the other.

    Each epoch's order is a pure function of (seed, epoch), so a run that is resumed at epoch 3 sees what it would have
    seen without the interruption. Give `fit` the number of batches as `steps_per_epoch`.

    Rows in memory are permuted as a whole. Rows in a file are read in blocks of `shuffle_buffer // 128` rows, the
    blocks in another order each epoch, into a buffer of `shuffle_buffer` rows that is permuted as a whole and then
    emptied, while the next one is read: at most three are in memory.

    Args:
        rows: in memory or in a file.
        batch_size: rows a batch; the last batch of an epoch may be smaller.
        seed: of the order.
        first_epoch: the first epoch's number, from 0.
        epochs: the number after the last epoch's.
        shuffle_buffer: rows, 1 or more; needed where the rows are in a file, and without effect where they are not.

    Returns:
        A dataset of (x, y) batches, of `(epochs - first_epoch) * steps_per_epoch(len(rows), batch_size)` elements.

    >>> import numpy as np
    >>> rows = EncodedRows.of({"a": np.arange(5)}, {"t": np.arange(5.0)})
    >>> data = shuffled_batches(rows, 2, seed=0, first_epoch=1, epochs=2)
    >>> batches = [x["a"].tolist() for x, _ in data.as_numpy_iterator()]
    >>> [len(b) for b in batches], sorted(sum(batches, []))
    ([2, 2, 1], [0, 1, 2, 3, 4])
    """
    with tf.device("CPU"):
        if rows.path is None:
            one_epoch = _permuted(rows, batch_size, seed)
        else:
            if shuffle_buffer is None or shuffle_buffer < 1:
                raise ValueError(f"Rows in a file need a `shuffle_buffer` of 1 or more, received {shuffle_buffer!r}.")
            one_epoch = _streamed(rows, batch_size, seed, shuffle_buffer)
        records = tf.data.Dataset.range(first_epoch, epochs).flat_map(_as_written(one_epoch))
        return _unpacked(records, rows)


# AutoGraph would read and write anew each function of a data set, a second of each training, and there is no Python
# condition or loop in them to rewrite.
_as_written = tf.autograph.experimental.do_not_convert


def _unpacked(records: tf.data.Dataset, rows: EncodedRows) -> tf.data.Dataset:
    data = records.map(_as_written(rows.layout.unpack_batch), num_parallel_calls=2, deterministic=True).prefetch(4)
    options = tf.data.Options()
    # There is nothing to tune, and letting go of an iterator waits until its tuner wakes: after a long epoch, seconds.
    options.autotune.enabled = False
    return data.with_options(options)


def _permuted(rows: EncodedRows, batch_size: int, seed: int) -> OneEpoch:
    records, count = tf.constant(rows.records), len(rows)

    def one_epoch(epoch: tf.Tensor) -> tf.data.Dataset:
        order = _order(count, seed, epoch)
        firsts = tf.data.Dataset.range(0, count, batch_size)
        return firsts.map(lambda first: tf.gather(records, order[first : first + batch_size]))

    return one_epoch


def _streamed(rows: EncodedRows, batch_size: int, seed: int, shuffle_buffer: int) -> OneEpoch:
    block = max(shuffle_buffer // _BLOCKS, 1)

    def one_epoch(epoch: tf.Tensor) -> tf.data.Dataset:
        blocks = tf.data.Dataset.from_tensor_slices(_order(steps_per_epoch(len(rows), block), seed, epoch))

        def permute(number: tf.Tensor, buffer: tf.Tensor) -> tf.Tensor:
            records = _records(buffer, rows)
            key = tf.random.experimental.stateless_fold_in(tf.stack([tf.constant(seed, tf.int64), epoch]), number)
            order = tf.random.experimental.stateless_shuffle(tf.range(tf.shape(records)[0]), seed=key)
            return tf.gather(records, order)

        buffers = blocks.flat_map(lambda i: _block(rows, i, block)).batch(max(shuffle_buffer // block, 1))
        return buffers.enumerate().map(permute).prefetch(1).rebatch(batch_size)

    return one_epoch


def _order(count: int, seed: int, epoch: tf.Tensor) -> tf.Tensor:
    key = tf.stack([tf.constant(seed, tf.int64), epoch])
    return tf.random.experimental.stateless_shuffle(tf.range(count, dtype=tf.int64), seed=key)


def _block(rows: EncodedRows, number: tf.Tensor, block: int) -> tf.data.Dataset:
    """One element: the bytes of the rows from `number * block` on, `block` of them or what is left."""
    width, total = rows.layout.width, rows.records.nbytes
    before = number * (block * width)
    size = tf.minimum(tf.constant(block * width, tf.int64), total - before)
    return tf.data.FixedLengthRecordDataset(
        str(rows.path), size, header_bytes=before, footer_bytes=total - before - size, buffer_size=block * width
    )


def _records(blocks: tf.Tensor, rows: EncodedRows) -> tf.Tensor:
    return tf.reshape(tf.io.decode_raw(tf.strings.reduce_join(blocks), tf.uint8), [-1, rows.layout.width])


def batches(rows: EncodedRows, batch_size: int) -> tf.data.Dataset:
    """Return the rows in their own order, for validation.

    >>> import numpy as np
    >>> data = batches(EncodedRows.of({"a": np.arange(3)}, {"t": np.arange(3.0)}), 2)
    >>> [x["a"].tolist() for x, _ in data.as_numpy_iterator()]
    [[0, 1], [2]]
    """
    with tf.device("CPU"):
        if rows.path is None:
            records = tf.data.Dataset.from_tensors(rows.records).rebatch(batch_size)
        else:
            numbers = tf.data.Dataset.range(steps_per_epoch(len(rows), _READ))
            blocks = numbers.flat_map(_as_written(lambda i: _block(rows, i, _READ)))
            blocks = blocks.map(_as_written(lambda block: _records(block, rows)))
            records = blocks.rebatch(batch_size)
        # Keras warns at the end of data that did not tell how many batches it has.
        count = tf.data.experimental.assert_cardinality(steps_per_epoch(len(rows), batch_size))
        return _unpacked(records, rows).apply(count)
