"""Batches: each row once an epoch, another order each epoch, and the same orders from wherever one starts."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from gradalign.data.encoded import EncodedRows, read_rows, write_rows
from gradalign.training.batches import batches, shuffled_batches, steps_per_epoch

ROWS, SIZE, BUFFER = 203, 20, 64


@pytest.fixture(autouse=True)
def blocks(monkeypatch):
    """So many of them fill a buffer, for what is small enough for a test."""
    monkeypatch.setattr("gradalign.training.batches._BLOCKS", 8)
    return 8


def rows_of(count):
    tags = np.arange(count)[:, None] * np.ones((1, 2), int)
    return EncodedRows.of({"id": np.arange(count), "tags": tags}, {"buy": np.arange(count, dtype="float32")})


@pytest.fixture(scope="module", params=["memory", "file"])
def rows(request, tmp_path_factory):
    found = rows_of(ROWS)
    return found if request.param == "memory" else in_file(found, tmp_path_factory.mktemp("rows"))


def in_file(rows, folder):
    write_rows(folder / "rows", rows.layout, [rows.records], "key")
    return read_rows(folder / "rows", "key", in_memory=False)


def _epochs(rows, seed, first, last, size=SIZE):
    seen = list(shuffled_batches(rows, size, seed, first, last, BUFFER).as_numpy_iterator())
    steps = steps_per_epoch(len(rows), size)
    assert len(seen) == steps * (last - first)
    for x, y in seen:
        np.testing.assert_array_equal(x["id"], y["buy"])
        np.testing.assert_array_equal(x["tags"], np.stack([x["id"]] * 2, axis=1))
    assert all(len(x["id"]) == size for i, (x, _) in enumerate(seen) if i % steps != steps - 1)
    orders = [np.concatenate([x["id"] for x, _ in seen[i * steps : (i + 1) * steps]]) for i in range(last - first)]
    for order in orders:
        np.testing.assert_array_equal(np.sort(order), np.arange(len(rows)))
    return [order.tolist() for order in orders]


def test_the_order_depends_on_seed_and_epoch_alone(rows):
    whole = _epochs(rows, 7, 0, 3)
    assert _epochs(rows, 7, 2, 3) == whole[2:]
    assert _epochs(rows, 7, 0, 1, size=70) == whole[:1]  # whatever the batches
    assert len({tuple(order) for order in whole}) == 3
    assert _epochs(rows, 8, 0, 1) != whole[:1]
    assert whole[0] != sorted(whole[0])


def test_the_order_in_memory_is_frozen():
    """Runs of different versions see the same batches for the same seed."""
    seen = shuffled_batches(rows_of(8), 4, seed=3, first_epoch=1, epochs=2).as_numpy_iterator()
    order = tf.random.experimental.stateless_shuffle(tf.range(8, dtype=tf.int64), tf.constant([3, 1], tf.int64))
    assert [x["id"].tolist() for x, _ in seen] == order.numpy().reshape(2, 4).tolist()
    assert order.numpy().tolist() == FROZEN


FROZEN = [7, 3, 6, 0, 5, 4, 2, 1]


@pytest.mark.parametrize(("count", "buffer"), [(320, 64), (1284, 64), (40, 256), (50, 1)])
def test_a_buffer_holds_no_more_rows_than_it_may(count, buffer, blocks, tmp_path):
    """However long the file: a buffer gives a permutation of so many rows, in blocks from all over the file."""
    rows = in_file(rows_of(count), tmp_path)
    seen = shuffled_batches(rows, 32, 5, 0, 1, buffer).as_numpy_iterator()
    order = np.concatenate([x["id"] for x, _ in seen])
    block = max(buffer // blocks, 1)
    spread = []
    while len(order):
        last_block = count - count % block  # the one that may be short
        size = buffer - (block - count % block if last_block < count and last_block in order[:buffer] else 0)
        held, order = np.sort(order[:size]), order[size:]
        starts = held[held % block == 0]
        whole = np.concatenate([np.arange(first, min(first + block, count)) for first in starts])
        np.testing.assert_array_equal(held, whole)
        spread.append(held[-1] - held[0])
    if count > 4 * buffer > 4:
        assert np.median(spread) > 0.6 * count


def test_rows_in_a_file_need_a_buffer(tmp_path):
    rows = in_file(rows_of(5), tmp_path)
    for wrong in (None, 0):
        with pytest.raises(ValueError, match=f"received {wrong}"):
            shuffled_batches(rows, 2, 0, 0, 1, wrong)


def test_validation_keeps_its_order(rows, monkeypatch):
    monkeypatch.setattr("gradalign.training.batches._READ", 64)
    parts = [x["id"] for x, _ in batches(rows, SIZE).as_numpy_iterator()]
    assert [len(part) for part in parts] == [SIZE] * 10 + [3]
    np.testing.assert_array_equal(np.concatenate(parts), np.arange(ROWS))


def test_validation_tells_how_many_batches_it_has(rows):
    """Keras warns of an end that it was not told of."""
    assert int(batches(rows, SIZE).cardinality()) == len(list(batches(rows, SIZE))) == steps_per_epoch(ROWS, SIZE)


def test_nothing_waits_for_a_tuner_at_the_end_of_an_epoch(rows):
    for data in (shuffled_batches(rows, SIZE, 0, 0, 1, BUFFER), batches(rows, SIZE)):
        assert data.options().autotune.enabled is False
