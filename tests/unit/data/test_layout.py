import numpy as np
import pytest
import tensorflow as tf

from gradalign.data.layout import Layout

X = {
    "z": np.array([3, -1, 2**31 - 1], "int32"),
    "tags": np.arange(6, dtype="int32").reshape(3, 2),
    "number": np.array([0.5, np.inf, -0.0], "float32"),
    "a": np.array([-(2**40), 0, 7]),
    "half": np.array([0.5, 1.0, -2.0], "float16"),
    "fine": np.array([1 / 3, np.nan, 1e300]),
    "small": np.array([1, 2, 255], "uint8"),
}
Y = {"z": np.array([1.0, np.nan, 0.0], "float32"), "buy": np.array([0.0, 1.0, 1.0], "float32")}  # a name may be both


def same(found, wanted):
    assert list(found) == list(wanted)  # in the given order
    for name, values in wanted.items():
        assert found[name].dtype == values.dtype and found[name].shape == values.shape
        np.testing.assert_array_equal(found[name], values)


def test_what_is_packed_comes_back_as_arrays_and_as_tensors():
    layout = Layout.of(X, Y)
    records = layout.pack(X, Y)
    assert records.shape == (3, layout.width) and records.dtype == np.uint8
    assert layout.width == 4 + 8 + 4 + 8 + 2 + 8 + 1 + 2 * 4
    x, y = tf.function(layout.unpack_batch)(tf.constant(records))
    for part in (layout.unpack(records), ({n: t.numpy() for n, t in p.items()} for p in (x, y))):
        for found, wanted in zip(part, (X, Y), strict=True):
            same(found, wanted)
    again = Layout.from_json(layout.to_json())
    assert again.slots == layout.slots and again.width == layout.width


@pytest.mark.parametrize("rows", [0, 1])
def test_few_rows(rows):
    x, y = ({name: values[:rows] for name, values in part.items()} for part in (X, Y))
    layout = Layout.of(x, y)
    for found, wanted in zip(layout.unpack(layout.pack(x, y)), (x, y), strict=True):
        same(found, wanted)
