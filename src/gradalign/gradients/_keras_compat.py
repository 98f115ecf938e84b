"""The one file that reaches into private Keras modules: for each, what it is for and which versions it was tried on.

Everything else in GradAlign uses public Keras and TensorFlow names only, so a new Keras version is met here.

Each was tried on Keras 3.15; beside it, why the public API does not do.

- `Layer._flatten_layers`: `Model.layers` misses layers kept in attributes of plain layers.
- `Layer._seed_generators`: Keras saves a model without the state of its random numbers.
- `backend.get_keras_mask`, `set_keras_mask`: a copied tensor has to keep its mask.
- `Functional`, its `_inputs_struct`, `_outputs_struct`: names and order of inputs and outputs; `Model.input` fails once
  a model is used twice.
- `compile_utils.get_loss`, `get_metric`: how `compile` reads `"accuracy"`, `"ce"`, functions and objects.
"""

from __future__ import annotations

from typing import Any

import keras
from keras.src.backend import get_keras_mask, set_keras_mask
from keras.src.models.functional import Functional
from keras.src.trainers import compile_utils

__all__ = [
    "children",
    "copy_mask",
    "functional_inputs",
    "functional_outputs",
    "has_mask",
    "loss_from",
    "metric_from",
    "seed_states",
]


def children(layer: Any) -> list[Any]:
    """Return the layers and operations directly inside `layer`, in order, each once."""
    inside = list(layer._flatten_layers(include_self=False, recursive=False)) if isinstance(layer, keras.Layer) else []
    # A functional model also runs plain operations, such as `keras.ops.concatenate`, which `layers` leaves out.
    inside += list(getattr(layer, "operations", []))
    return list({id(child): child for child in inside}.values())


def copy_mask(source: Any, target: Any) -> None:
    """Give `target` the Keras mask that `source` carries, if it carries one."""
    mask = get_keras_mask(source)
    if mask is not None:
        set_keras_mask(target, mask)


def has_mask(tensor: Any) -> bool:
    """Tell whether `tensor` carries a Keras mask."""
    return get_keras_mask(tensor) is not None


def loss_from(identifier: Any, y_true: Any, y_pred: Any) -> Any:
    """Return the `keras.losses.Loss` that `compile` would make of `identifier` (name, function or object)."""
    return compile_utils.get_loss(identifier, y_true, y_pred)


def metric_from(identifier: Any, y_true: Any, y_pred: Any) -> Any:
    """Return the `keras.metrics.Metric` that `compile` would make of `identifier`, under the name Keras gives it."""
    return compile_utils.get_metric(identifier, y_true, y_pred)


def functional_inputs(model: Any) -> Any:
    """Return the structure of symbolic inputs of a functional or sequential model; `None` for any other."""
    if isinstance(model, keras.Sequential):
        model = model._functional
    return model._inputs_struct if isinstance(model, Functional) else None


def functional_outputs(model: Any) -> Any:
    """Return the structure of symbolic outputs of a functional model; `None` for any other."""
    return model._outputs_struct if isinstance(model, Functional) else None


def seed_states(layer: Any) -> list[Any]:
    """Return the state variables of all random number generators inside `layer`, in order, each once."""
    states = [generator.state for inner in layer._flatten_layers() for generator in inner._seed_generators]
    return list({id(state): state for state in states}.values())
