"""TensorFlow's rewriting of graphs, which the suite switches off where nothing is said of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import tensorflow as tf


@contextmanager
def grappler() -> Iterator[None]:
    """Let TensorFlow rewrite graphs as it does for users, to the last bit of what they compute."""
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})
    try:
        yield
    finally:
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
