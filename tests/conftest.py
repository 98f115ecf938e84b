"""Fixtures that tests ask for by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import tensorflow as tf


@pytest.fixture
def mirrored_strategy() -> tf.distribute.Strategy:
    """A MirroredStrategy with two replicas, on the two logical CPU devices that the suite's start sets up."""
    import tensorflow as tf

    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
