"""Batches: each row once an epoch, another order each epoch, and the same orders from wherever one starts."""

from __future__ import annotations

import numpy as np

from gradalign.training.batches import batches, shuffled_batches, steps_per_epoch

ROWS, SIZE = 103, 10
X = {"id": np.arange(ROWS), "tags": np.arange(ROWS)[:, None] * np.ones((1, 2), int)}
Y = {"buy": np.arange(ROWS, dtype="float32")}


def _epochs(seed, first, last):
    seen = list(shuffled_batches(X, Y, SIZE, seed, first, last).as_numpy_iterator())
    steps = steps_per_epoch(ROWS, SIZE)
    assert len(seen) == steps * (last - first)
    for x, y in seen:
        np.testing.assert_array_equal(x["id"], y["buy"])
        np.testing.assert_array_equal(x["tags"], np.stack([x["id"]] * 2, axis=1))
    orders = [np.concatenate([x["id"] for x, _ in seen[i * steps : (i + 1) * steps]]) for i in range(last - first)]
    for order in orders:
        np.testing.assert_array_equal(np.sort(order), np.arange(ROWS))
    return [order.tolist() for order in orders]


def test_the_order_depends_on_seed_and_epoch_alone():
    whole = _epochs(7, 0, 4)
    assert _epochs(7, 2, 4) == whole[2:]
    assert len({tuple(order) for order in whole}) == 4
    assert _epochs(8, 0, 1) != whole[:1]
    assert whole[0] != sorted(whole[0])


def test_validation_keeps_its_order():
    seen = np.concatenate([x["id"] for x, _ in batches(X, Y, SIZE).as_numpy_iterator()])
    np.testing.assert_array_equal(seen, np.arange(ROWS))
