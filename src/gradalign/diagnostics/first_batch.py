"""The cheap part of the second-order check, run by `fit` on the very first batch."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from gradalign.diagnostics.second_order import norms_at_shared
from gradalign.errors import GradAlignWarning

__all__ = ["checked_on_first_batch"]


def checked_on_first_batch(model: Any, train_function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return `train_function`, which on its first call also checks that the alignment reaches the shared tensor.

    The batches of that call are taken from the iterator once and trained on as always, so the data is read no more
    often than without the check.
    """
    is_checked = False

    def checked(iterator: Any) -> Any:
        nonlocal is_checked
        if is_checked:
            return train_function(iterator)
        is_checked = True
        batches = list(itertools.islice(iterator, model.steps_per_execution))
        if not batches:
            raise StopIteration
        sentences = norms_at_shared(model, _of_first_replica(model, batches[0])).sentences()
        if sentences:
            warnings.warn(" ".join(sentences), GradAlignWarning, stacklevel=2)
        return train_function(_iterator_again(iterator, batches))

    return checked


def _iterator_again(iterator: Any, batches: list[Any]) -> Any:
    """Return an iterator over `batches` of the type of `iterator`, so that the step is traced no second time for it."""
    if not isinstance(iterator, tf.data.Iterator):
        return iter(batches)
    return iter(tf.data.Dataset.from_generator(lambda: iter(batches), output_signature=iterator.element_spec))


def _of_first_replica(model: Any, batch: Any) -> Any:
    def local(part: Any) -> Any:
        part = model.distribute_strategy.experimental_local_results(part)[0]
        # Data without sample weights can reach the loop as an empty optional.
        return None if isinstance(part, tf.experimental.Optional) else part

    return tf.nest.map_structure(local, batch)
