"""What the arguments of `fit` tell: the number of steps and the shapes, for each kind of data."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from gradalign.errors import UserError
from gradalign.tasks import read_fit_arguments

X, Y = np.zeros((10, 3)), {"a": np.zeros((10, 1), "int32"), "b": np.zeros(10, "float64")}


def read(*args, **kwargs):
    return read_fit_arguments(keras.Sequential().fit, args, kwargs)


class Batches(keras.utils.PyDataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return X, Y


def dataset(*parts, batch=4):
    return tf.data.Dataset.from_tensor_slices(parts).batch(batch)


STEPS = {
    "arrays, Keras' batch of 32": (lambda: read(X, Y), 1),
    "arrays": (lambda: read(X, Y, batch_size=4), 3),
    "epochs": (lambda: read(X, Y, batch_size=4, epochs=5), 15),
    "later epochs": (lambda: read(X, Y, batch_size=4, epochs=5, initial_epoch=3), 6),
    "positional": (lambda: read(X, Y, 4, 2), 6),
    "dict of arrays": (lambda: read({"u": X, "v": X}, Y, batch_size=5), 2),
    "list of arrays": (lambda: read([X, X], Y, batch_size=5), 2),
    "tensors": (lambda: read(tf.constant(X), Y, batch_size=3), 4),
    "validation split": (lambda: read(X, Y, batch_size=4, validation_split=0.25), 2),  # 7 rows
    "validation data instead": (lambda: read(X, Y, batch_size=4, validation_split=0.25, validation_data=(X, Y)), 3),
    "steps_per_epoch": (lambda: read(X, Y, batch_size=4, steps_per_epoch=7, epochs=2), 14),
    "data set": (lambda: read(dataset(X, Y), epochs=2), 6),
    "endless data set": (lambda: read(dataset(X, Y).repeat()), None),
    "endless data set with steps": (lambda: read(dataset(X, Y).repeat(), steps_per_epoch=5, epochs=2), 10),
    "data set of unknown length": (lambda: read(dataset(X, Y).filter(lambda x, y: True)), None),
    "PyDataset": (lambda: read(Batches(), epochs=2), 8),
    "generator": (lambda: read((X, Y) for _ in range(3)), None),
}


@pytest.mark.parametrize("kind", STEPS)
def test_total_steps(kind):
    given, wanted = STEPS[kind]
    assert given().total_steps == wanted


def spec(shape, dtype):
    return tf.TensorSpec(shape, dtype)


Y_SPECS = {"a": spec([None, 1], "int32"), "b": spec([None], "float32")}


def test_specs_of_arrays_with_floats_as_keras_casts_them():
    assert read(X, Y).data_specs == (spec([None, 3], "float32"), Y_SPECS)
    keras.config.set_floatx("float64")
    assert read({"x": X}, Y).data_specs[0] == {"x": spec([None, 3], "float64")}


def test_specs_of_data_sets():
    weights = {"a": np.ones(10, "float32")}
    x, y, w = read(dataset(X.astype("float32"), Y, weights)).data_specs
    assert x == spec([None, 3], "float32")
    assert y == {"a": spec([None, 1], "int32"), "b": spec([None], "float64")}
    assert w == {"a": spec([None], "float32")}


def test_specs_of_a_py_dataset():
    assert read(Batches()).data_specs[0] == spec([None, 3], "float32")


def test_what_does_not_tell_its_shapes():
    assert read((X, Y) for _ in range(3)).data_specs is None
    assert read(tf.data.Dataset.from_tensor_slices(X).batch(2)).data_specs is None


def test_class_weight_is_refused():
    with pytest.raises(UserError, match="class_weight does not say which task"):
        read(X, Y, class_weight={0: 1.0, 1: 2.0})


def test_text_goes_on_as_tensors():
    given = read({"word": np.array(["a", "b"]), "x": X[:2]}, {"a": np.zeros(2)}).given
    assert given["x"]["word"].dtype == tf.string and given["x"]["word"].numpy().tolist() == [b"a", b"b"]
    assert isinstance(given["x"]["x"], np.ndarray)


def test_missing_weights_become_ones():
    given = read(X, Y, sample_weight={"a": np.full(10, 2.0)}, validation_data=(X, Y, {"b": np.zeros(10)})).given
    assert given["sample_weight"]["a"].tolist() == [2.0] * 10 and given["sample_weight"]["b"].tolist() == [1.0] * 10
    assert given["validation_data"][2]["a"].tolist() == [1.0] * 10
