"""Row-wise optimizers against PyTorch's sparse ones, Keras' dense ones and NumPy; rows outside a batch never change."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
import torch

import gradalign as ga
from gradalign.optimizers import LazyAdagrad, LazyAdam, RowWiseAdagrad
from tests.unit.run_modes import MODES, in_mode

pytestmark = pytest.mark.usefixtures("no_first_batch_check")

ROWS, WIDTH, STEPS = 7, 3, 4
KINDS = {
    "adam": lambda **k: LazyAdam(0.1, epsilon=1e-30, **k),
    "adagrad": lambda **k: LazyAdagrad(0.1, initial_accumulator_value=0.5, epsilon=0.0, **k),
    "row-wise adagrad": lambda **k: RowWiseAdagrad(0.1, initial_accumulator_value=0.5, epsilon=0.0, **k),
}


def batches(seed=0):
    """`[(ids, gradient parts)]`: ids repeat within a batch, row 6 is in none, row 5 in the last alone."""
    rng = np.random.default_rng(seed)
    ids = [np.array([0, 1, 1, 4]), np.array([1, 1, 1, 2]), np.array([3, 0, 3, 4]), np.array([5, 0, 5, 1])]
    return [(i, rng.normal(size=(len(i), WIDTH))) for i in ids]


def start():
    return np.random.default_rng(9).normal(size=(ROWS, WIDTH))


def run(optimizer, mode="eager", given=None):
    table = keras.Variable(start(), dtype="float64", name="table")
    optimizer.build([table])

    def step(ids, parts):
        optimizer.apply([tf.IndexedSlices(parts, ids, (ROWS, WIDTH))], [table])
        return tf.convert_to_tensor(table)

    step = in_mode(step, mode)
    for ids, parts in given or batches():
        step(tf.constant(ids), tf.constant(parts))
    return table.numpy()


def in_torch(kind):
    table = torch.tensor(start(), requires_grad=True)
    optimizer = {
        "adam": lambda: torch.optim.SparseAdam([table], lr=0.1, eps=1e-30),
        "adagrad": lambda: torch.optim.Adagrad([table], lr=0.1, initial_accumulator_value=0.5, eps=0.0),
    }[kind]()
    for ids, parts in batches():
        table.grad = torch.sparse_coo_tensor(torch.tensor(ids)[None], torch.tensor(parts), (ROWS, WIDTH)).coalesce()
        optimizer.step()
    return table.detach().numpy()


def by_hand_row_wise():
    table, accumulator = start(), np.full(ROWS, 0.5)
    for ids, parts in batches():
        for row in set(ids.tolist()):
            g = parts[ids == row].sum(axis=0)
            accumulator[row] += np.mean(g**2)
            table[row] -= 0.1 * g / np.sqrt(accumulator[row])
    return table


def test_rows_that_were_made_unique_before(floatx64):
    """As a lookup that reads each row once gives them; XLA pads such rows."""

    def unique_first(mode):
        table, optimizer = keras.Variable(start(), dtype="float64", name="table"), KINDS["adam"]()
        optimizer.build([table])

        def step(ids, parts):
            rows, positions = tf.unique(ids)
            totals = tf.math.unsorted_segment_sum(parts, positions, tf.size(rows))
            optimizer.apply([tf.IndexedSlices(totals, rows, (ROWS, WIDTH))], [table])

        step = in_mode(step, mode)
        for ids, parts in batches():
            step(tf.constant(ids), tf.constant(parts))
        return table.numpy()

    for mode in MODES:
        np.testing.assert_allclose(unique_first(mode), in_torch("adam"), rtol=2e-6)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
def test_values(kind, mode, floatx64):
    wanted = by_hand_row_wise() if kind == "row-wise adagrad" else in_torch(kind)
    got = run(KINDS[kind](), mode)
    np.testing.assert_allclose(got, wanted, rtol=2e-6 if kind == "adam" else 1e-9)
    np.testing.assert_array_equal(got[6], start()[6])


@pytest.mark.parametrize(
    ("kind", "dense"),
    [
        ("adam", lambda: keras.optimizers.Adam(0.1, epsilon=1e-30)),
        ("adagrad", lambda: keras.optimizers.Adagrad(0.1, initial_accumulator_value=0.5, epsilon=0.0)),
    ],
)
def test_the_first_touch_is_that_of_the_dense_optimizer(kind, dense, floatx64):
    """Row 5 is first looked up in the fourth step."""
    table, optimizer = keras.Variable(start(), dtype="float64"), dense()
    optimizer.build([table])
    for ids, parts in batches():
        whole = np.zeros((ROWS, WIDTH))
        np.add.at(whole, ids, parts)
        optimizer.apply([tf.constant(whole)], [table])
    # Keras rounds Adam's betas to float32.
    np.testing.assert_allclose(run(KINDS[kind]())[5], table.numpy()[5], rtol=1e-5 if kind == "adam" else 1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_dense_gradients_update_everything_alike(kind, floatx64):
    """Rows of which none is left out: as rows or as a whole, the same."""
    rng = np.random.default_rng(1)
    wholes = [rng.normal(size=(ROWS, WIDTH)) for _ in range(3)]
    as_rows = run(KINDS[kind](), given=[(np.arange(ROWS)[::-1], w[::-1]) for w in wholes])
    table, optimizer = keras.Variable(start(), dtype="float64"), KINDS[kind]()
    for whole in wholes:
        optimizer.apply([tf.constant(whole)], [table])
    np.testing.assert_allclose(as_rows, table.numpy(), rtol=1e-12)


def test_decay_and_clipping_of_touched_rows(floatx64):
    """In Adagrad from 1 without epsilon: row -= rate (g / sqrt(1 + g²) + decay row), the sum of the parts clipped."""
    settings = {"initial_accumulator_value": 1.0, "epsilon": 0.0}
    ids, parts = np.array([1, 1, 4]), np.array([[3.0, 0.0, 0.0], [3.0, 0.0, 0.0], [0.0, 8.0, 0.0]])
    whole = {1: np.array([6.0, 0.0, 0.0]), 4: np.array([0.0, 8.0, 0.0])}  # norm 10: the repeated row counts once
    for limit, factor in (({"clipnorm": 5.0}, 0.5), ({"global_clipnorm": 5.0}, 0.5), ({"clipvalue": 4.0}, None)):
        got = run(LazyAdagrad(0.1, weight_decay=0.2, **limit, **settings), given=[(ids, parts)])
        for row, unclipped in whole.items():
            g = np.minimum(unclipped, 4.0) if factor is None else unclipped * factor
            wanted = start()[row] - 0.1 * (g / np.sqrt(1 + g**2) + 0.2 * start()[row])
            np.testing.assert_allclose(got[row], wanted, rtol=1e-9)
        untouched = [0, 2, 3, 5, 6]
        np.testing.assert_array_equal(got[untouched], start()[untouched])


@pytest.mark.parametrize("kind", KINDS)
def test_round_trip_and_state(kind, tmp_path):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Embedding(ROWS, WIDTH), keras.layers.Flatten()])
    model.add(keras.layers.Dense(1))
    model.compile(KINDS[kind](weight_decay=0.01, clipnorm=2.0), "mse", run_eagerly=True)
    ids, y = np.array([[0, 1], [1, 2]]), np.array([[0.0], [1.0]])
    model.fit(ids, y, verbose=0)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert again.optimizer.get_config() == model.optimizer.get_config()
    for each in (model, again):
        each.fit(ids, y, verbose=0)
    for a, b in zip(
        model.variables + model.optimizer.variables, again.variables + again.optimizer.variables, strict=True
    ):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(model.get_weights()[0][3:], again.get_weights()[0][3:])


def test_two_replicas(mirrored_strategy):
    """Both replicas look row 1 up: its gradient is one sum, as on one device."""
    ids, parts = np.array([[0, 1], [1, 2]]), np.ones((2, 2, WIDTH), "float32")
    with mirrored_strategy.scope():
        table = keras.Variable(start().astype("float32"))
        optimizer = LazyAdam(0.1)
        optimizer.build([table])

    @tf.function
    def step():
        def replica():
            number = tf.distribute.get_replica_context().replica_id_in_sync_group
            rows, values = tf.constant(ids)[number], tf.constant(parts)[number]
            optimizer.apply([tf.IndexedSlices(values, rows, tf.constant([ROWS, WIDTH]))], [table])

        mirrored_strategy.run(replica)

    step()
    step()
    alone = keras.Variable(start().astype("float32"))
    one = LazyAdam(0.1)
    for _ in range(2):
        one.apply([tf.IndexedSlices(parts.reshape(4, WIDTH), ids.reshape(4), (ROWS, WIDTH))], [alone])
    np.testing.assert_allclose(table.numpy(), alone.numpy(), rtol=1e-6)
    np.testing.assert_array_equal(table.numpy()[3:], start().astype("float32")[3:])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"use_ema": True}, "LazyAdam keeps no averaged weights"),
        ({"gradient_accumulation_steps": 2}, "LazyAdam does not accumulate gradients"),
        ({"loss_scale_factor": 128.0}, "LazyAdam takes no loss_scale_factor"),
        ({"beta_1": 1.5}, r"beta_1 of LazyAdam is a number in \[0, 1\); received 1.5"),
        ({"beta_2": "0.9"}, r"beta_2 of LazyAdam is a number in \[0, 1\); received '0.9'"),
        ({"epsilon": None}, "epsilon of LazyAdam is a number, 0 or more; received None"),
        (
            {"learning_rate": -0.1},
            "learning_rate of LazyAdam is a number, 0 or more, or a Keras schedule; received -0.1",
        ),
        ({"learning_rate": "fast"}, "learning_rate of LazyAdam .* received 'fast'"),
        ({"weight_decay": "0.1"}, "weight_decay of LazyAdam is a number, 0 or more; received '0.1'"),
        ({"initial_accumulator_value": "0"}, "initial_accumulator_value of LazyAdagrad is a number, 0 or more"),
        ({"clipnorm": -1.0}, "clipnorm of LazyAdam is a number, 0 or more; received -1.0"),
        ({"clipnorm": 1.0, "clipvalue": 1.0}, "takes one of clipnorm, clipvalue and global_clipnorm"),
    ],
)
def test_what_is_refused(arguments, words):
    with pytest.raises(ga.UserError, match=words):
        (LazyAdagrad if "initial_accumulator_value" in arguments else LazyAdam)(**arguments)
