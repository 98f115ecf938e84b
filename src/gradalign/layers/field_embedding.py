"""One embedding table for many fields, read once a batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from gradalign.errors import nearest
from gradalign.layers.fields import (
    Categorical,
    Field,
    MultiValued,
    Numeric,
    check_fields,
    field_from_config,
    field_to_config,
)


@keras.saving.register_keras_serializable(package="gradalign")
class FieldEmbedding(keras.layers.Layer):
    """Embeds every field into `dim` numbers and concatenates them in the order of `fields`.

    All categorical and multi-valued fields share one weight `table` of shape (sum of sizes, dim): field f owns the
    rows [offset_f, offset_f + size_f), so a batch costs one read of the table for all fields together, and the
    table's gradient holds each row once, its parts summed. Numeric fields own one row each of the weight `projection`,
    shape (numeric fields, dim).

    - categorical: `table[offset + id]`;
    - numeric: `value * projection[f]`;
    - multi-valued: mean of `table[offset + id]` over the ids that are not the padding; zeros where there is none.

    An id outside [0, size) never reads another field's row: on a CPU it is an error (of the form
    "indices[7] = -1 is not in [0, 12)"), on a GPU it reads zeros as Keras embeddings do, and under XLA, which can do
    neither, it reads row 0 of the table.

    Args:
        fields: field name -> `Categorical`, `Numeric` or `MultiValued`.
        dim: width of one field's embedding, at least 1.
        embeddings_initializer: for both weights.
        name: of the layer.

    Call arguments:
        inputs: field name -> tensor; integers (B,) or (B, 1), floats (B,) or (B, 1), padded integers (B, L) or ragged
            integers (B, None). Keys that are no field are an error.

    Returns:
        Tensor (B, len(fields) * dim) of the layer's compute type.

    Raises:
        ValueError: a bad argument, or `inputs` without a field's tensor.
        TypeError: `inputs` is no dict, or `fields` holds something that is not a field.

    Example:

    >>> layer = FieldEmbedding({"city": Categorical(5), "age": Numeric(), "tags": MultiValued(9)}, dim=4)
    >>> layer({"city": np.array([1, 4]), "age": np.array([0.5, -1.0]), "tags": np.array([[3, 0], [0, 0]])}).shape
    TensorShape([2, 12])
    """

    def __init__(
        self,
        fields: Mapping[str, Field],
        dim: int,
        *,
        embeddings_initializer: Any = "uniform",
        name: str | None = None,
        dtype: Any = None,
        trainable: bool = True,
    ) -> None:
        # Without autocast, because numbers are multiplied in the variables' type.
        super().__init__(name=name, dtype=dtype, trainable=trainable, autocast=False)
        if not isinstance(dim, int) or isinstance(dim, bool) or dim < 1:
            raise ValueError(f"`dim` must be a whole number of at least 1, received {dim!r}.")
        checked = check_fields(fields)
        self.dim = dim
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)
        # A tuple of pairs, because Keras wraps and sorts dictionaries that are set on a layer.
        self._fields = tuple(checked.items())
        self._single = tuple(n for n, f in self._fields if isinstance(f, Categorical))
        self._numeric = tuple(n for n, f in self._fields if isinstance(f, Numeric))
        self._multi = tuple(n for n, f in self._fields if isinstance(f, MultiValued))
        self._offsets: dict[str, int] = {}
        self._rows = 0
        for field_name, field in self._fields:
            if not isinstance(field, Numeric):
                self._offsets[field_name] = self._rows
                self._rows += field.size
        # Where each field's embedding lies once single-valued, numeric and multi-valued ones are put side by side.
        grouped = (*self._single, *self._numeric, *self._multi)
        self._places = tuple(grouped.index(n) for n, _ in self._fields)

    @property
    def fields(self) -> dict[str, Field]:
        """Field name -> field, in the order of the output."""
        return dict(self._fields)

    def build(self, input_shape: Any) -> None:
        """Create `table` where a field has ids and `projection` where a field is numeric."""
        self.table = self.projection = None
        if self._rows:
            self.table = self.add_weight(
                shape=(self._rows, self.dim),
                initializer=self.embeddings_initializer,
                name="table",
                autocast=False,  # Keras would cast the whole table; here only the result is cast
            )
        if self._numeric:
            self.projection = self.add_weight(
                shape=(len(self._numeric), self.dim),
                initializer=self.embeddings_initializer,
                name="projection",
                autocast=False,
            )
        self.built = True

    def call(self, inputs: Mapping[str, Any]) -> tf.Tensor:
        """Return the concatenated embeddings, shape (B, len(fields) * dim)."""
        self._check_names(inputs)
        rows = self._look_up(inputs)
        blocks = []  # each (B, some fields, dim)
        if self._single:
            blocks.append(rows.pop(0))
        if self._numeric:
            values = tf.stack([_flat(tf.cast(inputs[n], self.variable_dtype)) for n in self._numeric], axis=1)
            blocks.append(values[:, :, None] * _weight(self.projection).value[None])
        blocks.extend(
            self._mean(name, inputs[name], of_field)[:, None, :]
            for name, of_field in zip(self._multi, rows, strict=True)
        )
        flat = tf.reshape(_reorder(blocks, self._places), (-1, len(self._fields) * self.dim))
        return tf.cast(flat, self.compute_dtype)

    def _look_up(self, inputs: Mapping[str, Any]) -> list[tf.Tensor]:
        """Table rows of all single-valued fields, (B, fields, dim), then of each multi-valued one, (ids..., dim)."""
        wanted = []
        fields = self.fields
        if self._single:
            ids = tf.stack([_flat(tf.cast(inputs[n], tf.int64)) for n in self._single], axis=1)
            sizes = np.array([fields[n].size for n in self._single], "int64")  # type: ignore[union-attr]
            wanted.append(_own_rows(ids, sizes, np.array([self._offsets[n] for n in self._single], "int64")))
        for name in self._multi:
            size = fields[name].size  # type: ignore[union-attr]
            wanted.append(_own_rows(_ids(inputs[name]), size, self._offsets[name]))
        return _gather_once(_weight(self.table).value, wanted) if wanted else []

    def _mean(self, name: str, ids: Any, rows: tf.Tensor) -> tf.Tensor:
        """Mean of a multi-valued field's table rows over the ids that are not the padding, (B, dim)."""
        field = self.fields[name]
        assert isinstance(field, MultiValued)
        real = tf.cast(_ids(ids) != field.padding_id, self.variable_dtype)
        rows *= real[..., None]
        if isinstance(ids, tf.RaggedTensor):
            row_of, batch = ids.value_rowids(), ids.nrows()
            total = tf.math.unsorted_segment_sum(rows, row_of, batch)
            count = tf.math.unsorted_segment_sum(real, row_of, batch)
        else:
            total, count = tf.reduce_sum(rows, axis=1), tf.reduce_sum(real, axis=1)
        return total / tf.maximum(count, 1)[:, None]  # an empty row has total 0: its mean is 0

    def _check_names(self, inputs: Any) -> None:
        if not isinstance(inputs, Mapping):
            raise TypeError(f'Layer "{self.name}" takes a dict of field name -> tensor, received {type(inputs)}.')
        known = [n for n, _ in self._fields]
        for name in known:
            if name not in inputs:
                raise ValueError(f'Layer "{self.name}" needs field "{name}".{nearest(name, inputs)}')
        for name in inputs:
            if name not in known:
                raise ValueError(f'Layer "{self.name}" has no field "{name}".{nearest(name, known)}')

    def compute_output_shape(self, input_shape: Any) -> tuple[int | None, int]:
        """Return (batch, len(fields) * dim)."""
        first = next(iter(input_shape.values())) if isinstance(input_shape, Mapping) else (None,)
        return (first[0], len(self._fields) * self.dim)

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments; the fields as pairs, because dictionaries lose their order on disk."""
        return {
            **super().get_config(),
            "fields": [[name, field_to_config(field)] for name, field in self._fields],
            "dim": self.dim,
            "embeddings_initializer": keras.initializers.serialize(self.embeddings_initializer),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> FieldEmbedding:
        """Build the layer from what `get_config` returned."""
        config = dict(config)
        config["fields"] = {name: field_from_config(field) for name, field in config["fields"]}
        return cls(**config)


def _weight(weight: keras.Variable | None) -> keras.Variable:
    assert weight is not None  # build makes every weight that call asks for
    return weight


def _flat(x: tf.Tensor) -> tf.Tensor:
    """(B,) or (B, 1) -> (B,)."""
    if x.shape.rank == 2 and x.shape[1] == 1:
        return x[:, 0]
    if x.shape.rank != 1:
        raise ValueError(f"A single-valued field must have shape (B,) or (B, 1), received {x.shape}.")
    return x


def _ids(ids: Any) -> tf.Tensor:
    return tf.cast(ids.flat_values if isinstance(ids, tf.RaggedTensor) else ids, tf.int64)


def _gather_once(table: Any, wanted: list[tf.Tensor]) -> list[tf.Tensor]:
    """Rows of `table` for each tensor of row numbers; a row that is wanted several times is read once.

    So the table's gradient holds each row once, summed. Optimizers that square a gradient, as Adam does, would
    otherwise square the parts of a row's gradient one by one, and no other library's numbers could be met.
    """
    flat = [tf.reshape(rows, [-1]) for rows in wanted]
    unique, positions = tf.unique(tf.concat(flat, axis=0) if len(flat) > 1 else flat[0], out_idx=tf.int64)
    found = tf.gather(tf.gather(table, unique), positions)
    parts = tf.split(found, [tf.size(rows) for rows in flat]) if len(flat) > 1 else [found]
    return [
        tf.reshape(part, tf.concat([tf.shape(rows), table.shape[1:]], axis=0))
        for part, rows in zip(parts, wanted, strict=True)
    ]


def _own_rows(ids: tf.Tensor, size: Any, offset: Any) -> tf.Tensor:
    """Rows of the common table; -1, which no table has, for an id that would fall into another field's rows."""
    # int64, because TensorFlow keeps int32 arithmetic on the host when the model is on a GPU.
    inside = tf.logical_and(ids >= 0, ids < size)
    return tf.where(inside, ids + offset, tf.constant(-1, tf.int64))


def _reorder(blocks: list[tf.Tensor], places: tuple[int, ...]) -> tf.Tensor:
    """Concatenate `blocks` along axis 1 with entry i of the result taken from place `places[i]`."""
    whole = blocks[0] if len(blocks) == 1 else tf.concat(blocks, axis=1)
    if places == tuple(range(len(places))):
        return whole
    # Slices of consecutive runs: their gradient is a pad, where that of a gather would be a scatter.
    runs: list[list[int]] = []
    for place in places:
        if runs and place == runs[-1][1]:
            runs[-1][1] += 1
        else:
            runs.append([place, place + 1])
    return tf.concat([whole[:, start:stop] for start, stop in runs], axis=1)
