"""The cheap part of the second-order check, run by `fit` on the very first batch."""

from __future__ import annotations

import functools
import itertools
import warnings
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from gradalign.diagnostics.second_order import norms_at_shared
from gradalign.errors import GradAlignWarning
from gradalign.gradients._keras_compat import first_replica_spec

__all__ = ["checked_on_first_batch"]


def checked_on_first_batch(model: Any, train_function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return `train_function`, which first makes the weights and checks that the alignment reaches the shared tensor.

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
        first = _of_first_replica(model, batches[0])
        x, y, _ = keras.utils.unpack_x_y_sample_weight(first)
        model.prepare(x, y)
        if model.alignment is not None and (sentences := _sentences(model, first)):
            warnings.warn(" ".join(sentences), GradAlignWarning, stacklevel=2)
        return train_function(_iterator_again(model.distribute_strategy, iterator, batches))

    return checked


def _sentences(model: Any, batch: Any) -> list[str]:
    return norms_at_shared(model, batch).sentences()


def _iterator_again(strategy: Any, iterator: Any, batches: list[Any]) -> Any:
    """Return an iterator over `batches` of the type of `iterator`, so that the step is traced no second time for it."""
    if isinstance(iterator, tf.data.Iterator):
        return iter(_dataset(batches, iterator.element_spec))
    if not isinstance(iterator, tf.distribute.DistributedIterator):
        return iter(batches)
    # A function that makes a pipeline is asked for one a machine, whose elements go to the replicas in turn.
    parts = [part for batch in batches for part in _of_replicas(strategy, batch)]
    dataset = _dataset(parts, first_replica_spec(iterator.element_spec))
    return iter(strategy.distribute_datasets_from_function(lambda _: dataset))


def _of_replicas(strategy: Any, batch: Any) -> list[Any]:
    flat = [strategy.experimental_local_results(part) for part in tf.nest.flatten(batch)]
    return [tf.nest.pack_sequence_as(batch, part) for part in zip(*flat, strict=True)]


def _dataset(batches: list[Any], specs: Any) -> tf.data.Dataset:
    """Return a dataset of `batches`, with the axes free that `specs` leave free."""

    @tf.autograph.experimental.do_not_convert
    def as_specified(*parts: Any) -> Any:
        return tf.nest.map_structure(_with_free_axes, parts, specs)

    # Not `from_generator`: that makes the whole process hand memory back to the system at once, which slows every step.
    datasets = [tf.data.Dataset.from_tensors(batch).map(as_specified) for batch in batches]
    joined: Any = functools.reduce(lambda first, then: first.concatenate(then), datasets)
    return joined


def _with_free_axes(value: Any, spec: Any) -> Any:
    """Return `value` with the axes free that `spec` leaves free."""
    if isinstance(spec, tf.TensorSpec):
        return tf.compat.v1.placeholder_with_default(value, spec.shape)
    if isinstance(spec, tf.RaggedTensorSpec):
        flat = tf.compat.v1.placeholder_with_default(value.flat_values, [None, *value.flat_values.shape[1:]])
        splits = [tf.compat.v1.placeholder_with_default(s, [None]) for s in value.nested_row_splits]
        return tf.RaggedTensor.from_nested_row_splits(flat, splits, validate=False)
    return value


def _of_first_replica(model: Any, batch: Any) -> Any:
    def local(part: Any) -> Any:
        part = model.distribute_strategy.experimental_local_results(part)[0]
        # Data without sample weights can reach the loop as an empty optional.
        return None if isinstance(part, tf.experimental.Optional) else part

    return tf.nest.map_structure(local, batch)
