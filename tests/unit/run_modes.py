"""The three ways in which TensorFlow runs a function."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

MODES = ("eager", "graph", "jit")


def in_mode(function: Callable, mode: str) -> Callable:
    """`function` as it is, as a graph, or compiled by XLA."""
    if mode == "eager":
        return function
    return tf.function(function, jit_compile=mode == "jit", autograph=False)
