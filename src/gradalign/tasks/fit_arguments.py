"""What the arguments of `fit` tell before the first batch: shapes, and how many steps there will be."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from gradalign.errors import UserError
from gradalign.tasks.labels import completed_weights, refuse_text_labels
from gradalign.tasks.specs import specs_of

__all__ = ["FitArguments", "read_data_arguments", "read_fit_arguments", "refuse_class_weight"]

KERAS_BATCH_SIZE = 32


class FitArguments:
    """Facts read off the arguments of `fit`.

    Attributes:
        given: the arguments by name, with a sample weight for every task where one has some.
        data_specs: `(x, y, sample_weight)` of `tf.TensorSpec`, or `None` where only the data itself can tell.
        total_steps: epochs to run × steps an epoch, or `None` where the data does not tell its length.
    """

    def __init__(self, given: dict[str, Any], data_specs: Any, total_steps: int | None) -> None:
        self.given = given
        self.data_specs = data_specs
        self.total_steps = total_steps


def read_fit_arguments(fit: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> FitArguments:
    """Return the facts that `fit(*args, **kwargs)` tells before it runs.

    Raises:
        UserError: for `class_weight`, which has no meaning for several tasks, and for labels that are text.
    """
    bound = inspect.signature(fit).bind(*args, **kwargs)
    bound.apply_defaults()
    given = dict(bound.arguments)
    refuse_class_weight(given["class_weight"])
    refuse_text_labels(given["y"])
    given["x"] = text_as_tensors(given["x"])
    given["sample_weight"] = completed_weights(given["y"], given["sample_weight"])
    validation = given["validation_data"]
    if isinstance(validation, (tuple, list)) and len(validation) in (2, 3):
        x, y, weights = (*validation, None)[:3]
        given["validation_data"] = (text_as_tensors(x), y, completed_weights(y, weights))
    steps = given["steps_per_epoch"] or _steps(given)
    epochs = given["epochs"] - given["initial_epoch"]
    return FitArguments(given, _data_specs(given), None if steps is None else max(steps * epochs, 1))


def refuse_class_weight(class_weight: Any) -> None:
    """Raise where a class weight is given."""
    if class_weight is not None:
        raise UserError(
            "class_weight does not say which task it is for; "
            "give sample_weight={task: weights} with a weight for each row."
        )


def text_as_tensors(x: Any) -> Any:
    """Return `x` with its NumPy columns of text as string tensors, since Keras refuses such arrays."""
    if not isinstance(x, Mapping):
        return x
    return {
        name: tf.constant(column) if isinstance(column, np.ndarray) and column.dtype.kind in "US" else column
        for name, column in x.items()
    }


def read_data_arguments(
    method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return `args, kwargs` of `evaluate` or `predict` as Keras takes them: text as tensors, weights for every task."""
    bound = inspect.signature(method).bind(*args, **kwargs)
    given = bound.arguments
    if "x" in given:
        given["x"] = text_as_tensors(given["x"])
    if given.get("sample_weight") is not None:
        given["sample_weight"] = completed_weights(given.get("y"), given["sample_weight"])
    return bound.args, bound.kwargs


def _data_specs(given: Mapping[str, Any]) -> Any:
    x = given["x"]
    if isinstance(x, tf.data.Dataset):
        element = x.element_spec
        element = element if isinstance(element, tuple) else (element,)
        return (
            tuple(specs_of(part) for part in (*element, None, None)[:3] if part is not None)
            if len(element) > 1
            else None
        )
    if isinstance(x, keras.utils.PyDataset):
        return tuple(specs_of(part) for part in x[0] if part is not None)
    leaves = tf.nest.flatten(x)
    if leaves and all(isinstance(leaf, (np.ndarray, tf.Tensor)) for leaf in leaves) and given["y"] is not None:
        labels = tf.nest.map_structure(np.asarray, given["y"]) if isinstance(given["y"], Mapping) else None
        return (specs_of(x), None if labels is None else specs_of(labels))
    return None


def _steps(given: Mapping[str, Any]) -> int | None:
    x = given["x"]
    if isinstance(x, tf.data.Dataset):
        cardinality = int(x.cardinality())
        return cardinality if cardinality >= 0 else None
    leaves = tf.nest.flatten(x)
    if leaves and all(hasattr(leaf, "shape") and len(leaf.shape) for leaf in leaves):
        rows = int(leaves[0].shape[0])
        if given["validation_split"] and given["validation_data"] is None:
            rows = math.floor(rows * (1.0 - given["validation_split"]))
        return math.ceil(rows / (given["batch_size"] or KERAS_BATCH_SIZE))
    if isinstance(x, keras.utils.PyDataset):
        return x.num_batches
    return len(x) if hasattr(x, "__len__") else None
