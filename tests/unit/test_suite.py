"""The suite's own set-up: two replicas at hand, and no test that leaves its settings to the next."""

from __future__ import annotations

import keras
import pytest
import tensorflow as tf

TOGETHER = True  # on one worker, or there is nothing to leak


@pytest.mark.parametrize("turn", [1, 2])
def test_settings_do_not_leak(turn):
    assert keras.config.floatx() == "float32"
    assert keras.config.dtype_policy().name == "float32"
    assert not tf.config.functions_run_eagerly()
    assert keras.layers.Dense(1).name == "dense"
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("mixed_bfloat16")
    tf.config.run_functions_eagerly(True)


@pytest.mark.parametrize("turn", [1, 2])
def test_each_test_draws_the_same_numbers(turn, request):
    drawn = keras.random.normal([4]).numpy().tolist()
    first = request.config.stash.setdefault(DRAWN, drawn)
    assert drawn == first


DRAWN = pytest.StashKey[list[float]]()


def test_two_replicas(mirrored_strategy):
    assert mirrored_strategy.num_replicas_in_sync == 2
    values = mirrored_strategy.run(lambda: tf.distribute.get_replica_context().replica_id_in_sync_group + 1)
    assert int(mirrored_strategy.reduce("SUM", values, axis=None)) == 3


def test_xla_compiles_beside_two_logical_devices():
    square = tf.function(lambda x: tf.reduce_sum(x * x), jit_compile=True)
    assert float(square(tf.constant([1.0, 2.0]))) == 5.0
