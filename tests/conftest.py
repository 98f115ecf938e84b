"""Fixtures that tests ask for by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    import tensorflow as tf


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests that share something costly on one worker; any other goes to the worker that is free first."""
    for item in items:
        fixtures = getattr(item, "_fixtureinfo", None)  # examples in docstrings have none
        definitions = {} if fixtures is None else fixtures.name2fixturedefs
        if "trained" in definitions:
            item.add_marker(pytest.mark.xdist_group("trained"))
        elif any(found[-1].scope == "module" for found in definitions.values()):
            item.add_marker(pytest.mark.xdist_group(item.path.name))


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
