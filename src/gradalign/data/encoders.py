"""Keras layers that turn raw columns into ids and standardised numbers.

TensorFlow operations only, so that they ship inside a SavedModel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from gradalign.data.columns import MISSING, RAW_TYPES

MISSING_ID = 0  # null; in a list, the padding
UNKNOWN_ID = 1  # a value that is not in the vocabulary
_FIRST_ID = 2  # of the vocabulary


class Encoder(keras.layers.Layer):
    """A layer without weights that takes one raw column as it is.

    Args:
        raw: the column's type, see `gradalign.data.columns.RAW_TYPES`.
    """

    def __init__(self, raw: str, name: str | None = None, dtype: Any = None) -> None:
        # Without autocast: a float64 column must reach its bucket edges unrounded.
        super().__init__(name=name, dtype=dtype, trainable=False, autocast=False)
        if raw not in RAW_TYPES:
            raise ValueError(f"`raw` must be one of {', '.join(RAW_TYPES)}, received {raw!r}.")
        self.raw = raw

    def _missing(self, x: tf.Tensor) -> tf.Tensor:
        return tf.math.is_nan(x) if self.raw in ("float32", "float64") else tf.equal(x, MISSING[self.raw])

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        config = super().get_config()
        config.pop("trainable", None)  # nothing in it trains
        return {**config, "raw": self.raw}


@keras.saving.register_keras_serializable(package="gradalign")
class VocabularyIds(Encoder):
    """Value -> id: 0 where it is missing, 1 where it is not in the vocabulary, then 2, 3, ... in its order.

    Args:
        vocabulary: distinct texts or whole numbers; may be empty.
        raw: type of the raw column: "string", "int32", "int64", "float32", "float64". Missing is "", the least whole
            number of the type, or NaN. A float that is not a whole number is unknown.
        max_length: of a row of a multi-valued column, (B, L) -> (B, at most `max_length`); None keeps every shape.
        name: of the layer.

    Returns:
        int32 tensor of the input's shape; every id is in [0, len(vocabulary) + 2).

    Raises:
        ValueError: an unknown `raw`, or a vocabulary of the wrong type or with a value twice.

    Example:

    >>> VocabularyIds(["Oslo", "Rome"], raw="string")(tf.constant(["Rome", "Bonn", ""])).numpy()
    array([3, 1, 0], dtype=int32)
    """

    def __init__(
        self,
        vocabulary: Sequence[str] | Sequence[int],
        raw: str,
        max_length: int | None = None,
        name: str | None = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(raw, name=name, dtype=dtype)
        kind: type = str if raw == "string" else int
        for value in vocabulary:
            if not isinstance(value, kind) or isinstance(value, bool):
                raise ValueError(f"A vocabulary of {raw} must hold {kind.__name__} values, received {value!r}.")
        if len(set(vocabulary)) != len(vocabulary):
            raise ValueError("A vocabulary must not hold a value twice.")
        self.vocabulary = list(vocabulary)
        self.max_length = max_length
        # Missing is a key like any other, so that one look-up does it all.
        missing = "" if raw == "string" else MISSING["int32" if raw == "int32" else "int64"]
        with tf.init_scope():
            self._ids = tf.lookup.StaticHashTable(
                tf.lookup.KeyValueTensorInitializer(
                    tf.constant([missing, *self.vocabulary], tf.string if raw == "string" else tf.int64),
                    tf.constant([MISSING_ID, *range(_FIRST_ID, _FIRST_ID + len(self.vocabulary))], tf.int64),
                ),
                default_value=UNKNOWN_ID,
            )

    @property
    def size(self) -> int:
        """Number of ids."""
        return _FIRST_ID + len(self.vocabulary)

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Return the ids, int32."""
        return self.ids(inputs if self.max_length is None else inputs[:, : self.max_length])

    def ids(self, keys: tf.Tensor) -> tf.Tensor:
        """Return the ids of raw values, int32 of their shape, whatever it is."""
        if self.raw in ("float32", "float64"):
            keys = self._whole(keys)
        elif self.raw == "int32":
            keys = tf.cast(keys, tf.int64)
        return tf.cast(self._ids.lookup(keys), tf.int32)

    def _whole(self, x: tf.Tensor) -> tf.Tensor:
        """Floats as int64 keys; the least int64 for NaN, the next for what is no whole number of int64."""
        missing = self._missing(x)
        inside = tf.logical_and(tf.abs(x) < 2.0**62, tf.equal(tf.round(x), x))
        number = tf.cast(tf.where(inside, x, tf.zeros_like(x)), tf.int64)
        least = int(np.iinfo("int64").min)
        return tf.where(
            missing, tf.constant(least, tf.int64), tf.where(inside, number, tf.constant(least + 1, tf.int64))
        )

    def compute_output_shape(self, input_shape: Any) -> tuple[int | None, ...]:
        """Return the input's shape; the length of a row is known only when it is fed."""
        return tuple(input_shape)

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        return {**super().get_config(), "vocabulary": self.vocabulary, "max_length": self.max_length}


@keras.saving.register_keras_serializable(package="gradalign")
class BucketIds(Encoder):
    """Number -> id: 0 where it is missing, else 1 + the number of edges that are at most the number.

    Args:
        edges: ascending numbers; may be empty.
        raw: type of the raw column, a number's.
        name: of the layer.

    Returns:
        int32 tensor (B,); every id is in [0, len(edges) + 2).

    Raises:
        ValueError: `raw` is no number's type, or the edges do not ascend.

    Example:

    >>> BucketIds([0.5, 2.0], raw="float32")(tf.constant([0.0, 0.5, 9.0, float("nan")])).numpy()
    array([1, 2, 3, 0], dtype=int32)
    """

    def __init__(self, edges: Sequence[float], raw: str, name: str | None = None, dtype: Any = None) -> None:
        super().__init__(raw, name=name, dtype=dtype)
        _check_number(raw)
        self.edges = [float(e) for e in edges]
        if not np.all(np.isfinite(self.edges)) or not np.all(np.diff(self.edges) > 0):
            raise ValueError(f"The edges of buckets must be finite and ascend, received {list(edges)!r}.")

    @property
    def size(self) -> int:
        """Number of ids."""
        return len(self.edges) + 2

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Return the ids, int32."""
        missing = self._missing(inputs)
        value = tf.cast(inputs, tf.float64)
        value = tf.where(missing, tf.zeros_like(value), value)
        bucket = tf.searchsorted(tf.constant(self.edges, tf.float64), value, side="right")
        return tf.where(missing, MISSING_ID, 1 + bucket)

    def compute_output_shape(self, input_shape: Any) -> tuple[int | None, ...]:
        """Return the input's shape."""
        return tuple(input_shape)

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        return {**super().get_config(), "edges": self.edges}


@keras.saving.register_keras_serializable(package="gradalign")
class Standardize(Encoder):
    """Number -> (number - mean) / scale, 0 where it is missing.

    The number is first brought into [low, high], the range seen in training: one absurd value in serving must not
    throw a projected embedding anywhere.

    Args:
        mean, scale, low, high: of the training column; `scale` > 0.
        raw: type of the raw column, a number's.
        name: of the layer.

    Returns:
        Float tensor (B,) of the layer's type.

    Raises:
        ValueError: `raw` is no number's type, a number is not finite, `scale` is not positive or `low` above `high`.

    Example:

    >>> Standardize(mean=1.0, scale=2.0, low=0.0, high=5.0, raw="float32")(tf.constant([3.0, 99.0])).numpy()
    array([1., 2.], dtype=float32)
    """

    def __init__(
        self,
        mean: float,
        scale: float,
        low: float,
        high: float,
        raw: str,
        name: str | None = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(raw, name=name, dtype=dtype)
        _check_number(raw)
        if not np.all(np.isfinite([mean, scale, low, high])) or scale <= 0 or low > high:
            raise ValueError(
                f"Standardising wants finite numbers, a positive `scale` and low <= high, received "
                f"mean={mean!r}, scale={scale!r}, low={low!r}, high={high!r}."
            )
        self.mean, self.scale, self.low, self.high = float(mean), float(scale), float(low), float(high)

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Return the standardised numbers."""
        missing = self._missing(inputs)
        value = tf.cast(inputs, tf.float64)
        value = tf.where(missing, tf.constant(self.mean, tf.float64), value)
        value = (tf.clip_by_value(value, self.low, self.high) - self.mean) / self.scale
        return tf.cast(tf.where(missing, tf.zeros_like(value), value), self.compute_dtype)

    def compute_output_shape(self, input_shape: Any) -> tuple[int | None, ...]:
        """Return the input's shape."""
        return tuple(input_shape)

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        return {**super().get_config(), "mean": self.mean, "scale": self.scale, "low": self.low, "high": self.high}


@keras.saving.register_keras_serializable(package="gradalign")
class IsMissing(Encoder):
    """Value -> 1 where it is missing, else 0: int32 of the input's shape.

    Example:

    >>> IsMissing(raw="float32")(tf.constant([1.0, float("nan")])).numpy()
    array([0, 1], dtype=int32)
    """

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Return 1 or 0."""
        return tf.cast(self._missing(inputs), tf.int32)

    def compute_output_shape(self, input_shape: Any) -> tuple[int | None, ...]:
        """Return the input's shape."""
        return tuple(input_shape)


def _check_number(raw: str) -> None:
    if raw == "string":
        raise ValueError("`raw` must be a number's type, received 'string'.")
