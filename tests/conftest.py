"""Fixtures that tests ask for by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import tensorflow as tf


@pytest.fixture(scope="session")
def mirrored_strategy() -> tf.distribute.Strategy:
    """A MirroredStrategy with two replicas, on the two logical CPU devices that the suite's start sets up.

    One for all tests: a second strategy in a process counts its sums over replicas anew, and TensorFlow takes them for
    those of the first.
    """
    import tensorflow as tf

    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
