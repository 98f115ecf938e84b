"""One column through its encoder, whole columns at a time; each distinct text crosses into TensorFlow once."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import tensorflow as tf

from gradalign.data.columns import flatten, list_column, raw_tensor, typed
from gradalign.data.encoders import MISSING_ID, Encoder, VocabularyIds


def encode_values(layer: Encoder, column: pa.ChunkedArray, name: str, source: str) -> np.ndarray:
    """Return what `layer` makes of a single-valued column, (B,).

    >>> encode_values(VocabularyIds(["a"], raw="string"), pa.chunked_array([["a", None, "b"]]), "c", "the table")
    array([2, 0, 1], dtype=int32)
    """
    if layer.raw != "string":
        return _apply(layer, raw_tensor(column, layer.raw, name, source))
    codes = pc.fill_null(typed(column, layer.raw, name, source), "").dictionary_encode()
    of_words = _apply(layer, tf.constant(codes.dictionary.to_pylist(), tf.string))
    return of_words[codes.indices.to_numpy()]


def _apply(layer: Encoder, raw: tf.Tensor) -> np.ndarray:
    return (layer.ids(raw) if isinstance(layer, VocabularyIds) else layer(raw)).numpy()


def encode_lists(
    layer: VocabularyIds, column: pa.ChunkedArray, name: str, longest: int, width: int | None, source: str
) -> np.ndarray:
    """Return the ids of a list column, (B, L), padded.

    Args:
        layer: the encoder.
        column: of B lists.
        name: of the column, for a message.
        longest: so many values of a row are kept.
        width: L; by default the longest row's, in [1, `longest`].
        source: what to call the table in a message.

    >>> layer = VocabularyIds(["a", "b"], raw="string", max_length=5)
    >>> encode_lists(layer, pa.chunked_array([[["b", "a"], None]]), "tags", 5, None, "the table").tolist()
    [[3, 2], [0, 0]]
    """
    values, lengths = flatten(list_column(column, layer.raw, name, source))
    ids = encode_values(layer, values, name, source)
    if width is None:
        width = min(max(int(lengths.max(initial=0)), 1), longest)
    firsts = np.cumsum(lengths) - lengths
    place = np.arange(width)
    is_there = place < lengths[:, None]
    result = np.full((len(lengths), width), MISSING_ID, np.int32)
    result[is_there] = ids[(firsts[:, None] + place)[is_there]]
    return result
