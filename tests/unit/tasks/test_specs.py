"""Specs of a batch, and their round trip through a saved model's configuration."""

from __future__ import annotations

import json

import keras
import numpy as np
import tensorflow as tf

from gradalign.tasks import specs_from_config, specs_of, specs_of_symbols, specs_to_config

SPECS = {
    "ids": tf.TensorSpec([None, 3], "int32"),
    "pair": [tf.TensorSpec([None], "string"), tf.TensorSpec([None, None, 2], "float32")],
    "tags": tf.RaggedTensorSpec([None, None], "int64"),
}


def test_the_first_axis_is_free():
    found = specs_of(
        {
            "ids": tf.zeros([8, 3], "int32"),
            "pair": [tf.constant(["a"]), tf.TensorSpec([8, None, 2], "float32")],
            "tags": tf.ragged.constant([[1], [2, 3]], dtype="int64"),
        }
    )
    assert found["ids"] == SPECS["ids"] and found["pair"] == SPECS["pair"]
    assert found["tags"].shape.as_list() == [None, None] and found["tags"].dtype == tf.int64


def test_arrays_of_floats_are_floatx_and_others_stay():
    assert specs_of(np.zeros((2, 3))).dtype == tf.float32
    assert specs_of(np.zeros((2, 3), "int64")).dtype == tf.int64
    assert specs_of(tf.zeros([2, 3], tf.float64)).dtype == tf.float64
    keras.config.set_floatx("float64")
    assert specs_of(np.zeros((2, 3), "float32")).dtype == tf.float64


def test_symbols():
    symbols = {"x": keras.Input((3,), batch_size=4), "ids": [keras.Input((None,), dtype="int64")]}
    assert specs_of_symbols(symbols) == {
        "x": tf.TensorSpec([None, 3], "float32"),
        "ids": [tf.TensorSpec([None, None], "int64")],
    }


def test_ragged_symbols():
    ids = keras.Input((None,), dtype="int64", ragged=True)
    assert specs_of_symbols(ids) == tf.RaggedTensorSpec([None, None], "int64")


def test_through_a_saved_configuration():
    text = json.dumps(specs_to_config(SPECS))
    assert specs_from_config(json.loads(text)) == SPECS


def test_inputs_that_bear_the_names_of_a_spec_s_own_entries():
    """A model whose inputs are called shape, dtype and ragged."""
    specs = {name: tf.TensorSpec([None], "float32") for name in ("shape", "dtype", "ragged")}
    assert specs_from_config(json.loads(json.dumps(specs_to_config(specs)))) == specs
