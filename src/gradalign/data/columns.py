"""A table's columns as the raw tensors that the preprocessing model takes.

A raw tensor has one of five types and cannot hold null: text has "" for it, whole numbers the least value of their
type, and floats NaN.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import tensorflow as tf

from gradalign.errors import UserError, nearest

RAW_TYPES = ("string", "int32", "int64", "float32", "float64")
MISSING: dict[str, Any] = {
    "string": "",
    "int32": int(np.iinfo("int32").min),
    "int64": int(np.iinfo("int64").min),
    "float32": float("nan"),
    "float64": float("nan"),
}
_ARROW = {
    "string": pa.large_string(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float32": pa.float32(),
    "float64": pa.float64(),
}


def raw_type(kind: pa.DataType) -> str | None:
    """Return the raw type of an Arrow type ("string", "int32", "int64", "float32", "float64"), None if it has none.

    Of a list it is that of the values.

    >>> raw_type(pa.uint8()), raw_type(pa.list_(pa.string())), raw_type(pa.timestamp("s"))
    ('int32', 'string', None)
    """
    if pa.types.is_dictionary(kind) or is_list(kind):
        return None if is_list(kind) and is_list(kind.value_type) else raw_type(kind.value_type)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return "string"
    if pa.types.is_boolean(kind):
        return "int32"
    if pa.types.is_integer(kind):
        return "int32" if kind.bit_width < 32 or kind == pa.int32() else "int64"
    if pa.types.is_float16(kind) or pa.types.is_float32(kind):
        return "float32"
    return "float64" if pa.types.is_float64(kind) or pa.types.is_decimal(kind) else None


def is_list(kind: pa.DataType) -> bool:
    """Whether an Arrow type is one of the list types.

    >>> is_list(pa.list_(pa.int64()))
    True
    """
    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)


def check_column(table: pa.Table, name: str, what: str, source: str = "the table") -> None:
    """Raise a UserError with the nearest names where `table` has no column `name`.

    Args:
        table: where to look.
        name: the column.
        what: who needs it, the start of the sentence.
        source: what to call the table.

    Example:

    >>> check_column(pa.table({"age": [1]}), "agee", "`features.numeric` names")
    Traceback (most recent call last):
    ...
    gradalign.errors.UserError: `features.numeric` names "agee", which is no column of the table. Did you mean "age"?
    """
    if name not in table.column_names:
        raise UserError(f'{what} "{name}", which is no column of {source}.{nearest(name, table.column_names)}')


def plain(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as one array, dictionaries resolved and every kind of text as one.

    >>> str(plain(pa.chunked_array([["a"], ["b"]])).type)
    'large_string'
    """
    kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.cast(kind.value_type)
        kind = column.type
    if pa.types.is_string(kind) or pa.types.is_string_view(kind):
        column = column.cast(pa.large_string())  # its offsets do not overflow when chunks are joined
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def flatten(column: pa.ChunkedArray) -> tuple[pa.ChunkedArray, np.ndarray]:
    """Return a list column's values one after the other, and the number of values of each row; null is empty.

    >>> flatten(pa.chunked_array([[[1, 2], None, [3]]]))[1]
    array([2, 0, 1])
    """
    lengths = pc.fill_null(pc.list_value_length(column), 0)
    return pc.list_flatten(column), lengths.to_numpy().astype("int64")


def typed(column: pa.ChunkedArray, raw: str, name: str, source: str = "the table") -> pa.Array:
    """Return a single-valued column as one Arrow array of type `raw`, null and NaN and "" as null.

    Numbers and text are converted where nothing is lost: a training table may hold what a CSV later writes otherwise.

    Args:
        column: (B,) of any single-valued type.
        raw: one of `RAW_TYPES`.
        name: of the column, for the message.
        source: what to call the table.

    Raises:
        UserError: a value that does not convert.

    Example:

    >>> typed(pa.chunked_array([["7", ""]]), "int32", "age").to_pylist()
    [7, None]
    """
    values = plain(column)
    kind = values.type
    try:
        if pa.types.is_large_string(kind):
            values = pc.if_else(pc.equal(values, ""), pa.scalar(None, kind), values)
        elif pa.types.is_floating(kind) and raw not in ("float32", "float64"):
            values = pc.if_else(pc.is_nan(values), pa.scalar(None, kind), values).cast(pa.int64())
        elif pa.types.is_boolean(kind):
            values = values.cast(pa.int32())
        elif pa.types.is_decimal(kind):
            values = values.cast(pa.float64())
        # Rounding to float32 is what the training table's type asks for; every other loss is an error.
        return pc.cast(values, options=pc.CastOptions(_ARROW[raw], allow_float_truncate=raw in ("float32", "float64")))
    except pa.ArrowException as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise UserError(
            f'Column "{name}" of {source} is of type {column.type} and cannot be read as {raw}, '
            f"its type in the training data ({reason})."
        ) from error


def raw_tensor(column: pa.ChunkedArray, raw: str, name: str, source: str = "the table") -> tf.Tensor:
    """Return a single-valued column as a tensor (B,) of type `raw`, with `MISSING` where it is null.

    >>> raw_tensor(pa.chunked_array([[1, None]]), "int32", "age").numpy().tolist()
    [1, -2147483648]
    """
    values = typed(column, raw, name, source)
    if raw != "string":
        return tf.constant(pc.fill_null(values, MISSING[raw]).to_numpy(zero_copy_only=False))
    # Each distinct text crosses into TensorFlow once: text is slow to convert.
    codes = pc.fill_null(values, "").dictionary_encode()
    words = tf.constant(codes.dictionary.to_pylist(), tf.string)
    return tf.gather(words, codes.indices.to_numpy()) if len(values) else words


def raw_lists(column: pa.ChunkedArray, raw: str, name: str, longest: int, source: str = "the table") -> tf.Tensor:
    """Return a list column as a tensor (B, L) padded with `MISSING`; L is the longest row's, in [1, `longest`].

    >>> raw_lists(pa.chunked_array([[["a", "b"], None]]), "string", "tags", 5).numpy().tolist()
    [[b'a', b'b'], [b'', b'']]
    """
    values, lengths = flatten(list_column(column, raw, name, source))
    ragged = tf.RaggedTensor.from_row_lengths(raw_tensor(values, raw, name, source), lengths)
    width = min(max(int(lengths.max(initial=0)), 1), longest)
    return ragged.to_tensor(default_value=MISSING[raw], shape=(None, width))


def list_column(column: pa.ChunkedArray, raw: str, name: str, source: str) -> pa.ChunkedArray:
    """Return a column of lists, or raise a UserError where it holds none; one without any value is one of null.

    >>> list_column(pa.chunked_array([pa.nulls(1)]), "int32", "tags", "the table").type
    ListType(list<item: int32>)
    """
    if pa.types.is_null(column.type):  # what Arrow makes of a column without one value
        column = column.cast(pa.list_(_ARROW[raw]))
    if not is_list(column.type):
        raise UserError(f'Column "{name}" of {source} is of type {column.type}, but held lists in the training data.')
    return column
