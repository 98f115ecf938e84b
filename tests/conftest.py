"""Fixtures that tests ask for by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    import tensorflow as tf


@pytest.fixture(scope="session")
def mirrored_strategy() -> tf.distribute.Strategy:
    """A MirroredStrategy with two replicas, on the two logical CPU devices that the suite's start sets up.

    One for all tests: a second strategy in a process counts its sums over replicas anew, and TensorFlow takes them for
    those of the first.
    """
    import tensorflow as tf

    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


@pytest.fixture(name="grappler")
def with_grappler() -> Iterator[None]:
    """TensorFlow's rewriting of graphs, as users have it; `conftest.py` of the whole suite says why it is off."""
    from tests.grappler import grappler

    with grappler():
        yield


@pytest.fixture
def no_first_batch_check(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out what `fit` checks on its first batch, for files that look at other things: it costs more than the step.

    A test marked `first_batch_check` has it all the same.
    """
    if request.node.get_closest_marker("first_batch_check") is None:
        monkeypatch.setattr("gradalign.diagnostics.first_batch._sentences", lambda model, batch: [])
