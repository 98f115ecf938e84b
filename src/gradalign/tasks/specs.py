"""Shapes and dtypes of a batch, from which all weights are made before the first step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

__all__ = ["specs_from_config", "specs_of", "specs_of_symbols", "specs_to_config"]


def specs_of(tensors: Any) -> Any:
    """Return the `tf.TensorSpec` of every tensor of a batch, its first axis free."""

    def spec(tensor: Any) -> Any:
        if isinstance(tensor, (tf.TensorSpec, tf.RaggedTensorSpec)):
            return type(tensor)(shape=[None, *tensor.shape[1:]], dtype=tensor.dtype)
        if isinstance(tensor, tf.RaggedTensor):
            return tf.RaggedTensorSpec(shape=[None, *tensor.shape[1:]], dtype=tensor.dtype)
        dtype = tf.as_dtype(tensor.dtype)
        if isinstance(tensor, np.ndarray) and dtype.is_floating:
            # Keras casts arrays of numbers to floatx before a step sees them.
            dtype = tf.as_dtype(keras.config.floatx())
        return tf.TensorSpec([None, *tensor.shape[1:]], dtype)

    return tf.nest.map_structure(spec, tensors)


def specs_of_symbols(symbols: Any) -> Any:
    """Return the specs of a functional model's symbolic inputs."""

    def spec(symbol: Any) -> Any:
        kind = tf.RaggedTensorSpec if getattr(symbol, "ragged", False) else tf.TensorSpec
        return kind([None, *symbol.shape[1:]], symbol.dtype)

    return keras.tree.map_structure(spec, symbols)


def specs_to_config(specs: Any) -> Any:
    """Return `specs` as plain dicts and lists, for a saved model."""

    def plain(spec: Any) -> dict[str, Any]:
        return {
            "shape": spec.shape.as_list(),
            "dtype": spec.dtype.name,
            "ragged": isinstance(spec, tf.RaggedTensorSpec),
        }

    return tf.nest.map_structure(plain, specs)


def specs_from_config(config: Any) -> Any:
    """Return the specs that `specs_to_config` wrote."""
    # A model may have inputs of just these names; those are dicts again.
    if isinstance(config, Mapping) and isinstance(config.get("dtype"), str):
        kind = tf.RaggedTensorSpec if config["ragged"] else tf.TensorSpec
        return kind(shape=config["shape"], dtype=config["dtype"])
    if isinstance(config, Mapping):
        return {name: specs_from_config(of_name) for name, of_name in config.items()}
    return [specs_from_config(part) for part in config]
