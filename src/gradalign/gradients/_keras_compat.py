"""The one file that reaches into private Keras modules: for each, what it is for and which versions it was tried on.

Everything else in GradAlign uses public Keras and TensorFlow names only, so a new Keras version is met here.

Each was tried on Keras 3.10 and 3.15; beside it, why the public API does not do.

- `Layer._flatten_layers`: `Model.layers` misses layers kept in attributes of plain layers.
- `Layer._seed_generators`: Keras saves a model without the state of its random numbers.
- `backend.get_keras_mask`, `set_keras_mask`: a copied tensor has to keep its mask.
- `Functional._nodes_by_depth`, `operation_fn`: the calls of a functional model, to run a part of them; a model of
  intermediate tensors (`keras.Model`) leaves a second call at every layer, after which `layer.output` fails.
- `Functional`, its `_inputs_struct`, `_outputs_struct`: names and order of inputs and outputs; `Model.input` fails once
  a model is used twice.
- `Functional._run_through_graph`: a functional model again, with other layers, from the same inputs; `clone_model`
  makes inputs anew and loses that they are sparse, ragged or optional.
- `Layer._tracker`: a layer that is built refuses another in an attribute's place.
- `Layer._trainable_variables`, `_non_trainable_variables`: what `build` made, whatever is frozen now.
- `model_supports_jit`: under deterministic operations, which TensorFlow tells nobody of, Keras leaves XLA out.
- `PerReplicaSpec._value_specs`: the shapes of one replica's part of a distributed batch.
- `compile_utils.get_loss`, `get_metric`: how `compile` reads `"accuracy"`, `"ce"`, functions and objects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend import get_keras_mask, set_keras_mask
from keras.src.models.functional import Functional, operation_fn
from keras.src.trainers import compile_utils
from keras.src.trainers.trainer import model_supports_jit

__all__ = [
    "build_sharing",
    "children",
    "copy_mask",
    "first_replica_spec",
    "functional_inputs",
    "functional_outputs",
    "graph_nodes",
    "has_mask",
    "is_plain_functional",
    "loss_from",
    "mask_of",
    "metric_from",
    "rebuild",
    "replace_child",
    "run_nodes",
    "runs_xla",
    "seed_states",
    "set_mask",
]


def children(layer: Any) -> list[Any]:
    """Return the layers and operations directly inside `layer`, in order, each once."""
    inside = list(layer._flatten_layers(include_self=False, recursive=False)) if isinstance(layer, keras.Layer) else []
    # A functional model also runs plain operations, such as `keras.ops.concatenate`, which `layers` leaves out.
    inside += list(getattr(layer, "operations", []))
    return list({id(child): child for child in inside}.values())


def copy_mask(source: Any, target: Any) -> None:
    """Give `target` the Keras mask that `source` carries, if it carries one."""
    set_mask(target, mask_of(source))


def has_mask(tensor: Any) -> bool:
    """Tell whether `tensor` carries a Keras mask."""
    return mask_of(tensor) is not None


def mask_of(tensor: Any) -> Any:
    """Return the Keras mask that `tensor` carries, or `None`."""
    return get_keras_mask(tensor)


def set_mask(tensor: Any, mask: Any) -> None:
    """Give `tensor` the Keras mask `mask`; `None` leaves it as it is."""
    if mask is not None:
        set_keras_mask(tensor, mask)


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


def is_plain_functional(model: Any) -> bool:
    """Tell whether the call of `model` is that of Keras' functional models: its nodes are all that it does."""
    return isinstance(model, Functional) and type(model).call is Functional.call


def graph_nodes(model: Any) -> list[Any]:
    """Return the calls of layers and operations in a functional model, in the order in which it makes them.

    Each has `operation`, and the symbolic `input_tensors` and `outputs`.
    """
    depths = sorted(model._nodes_by_depth, reverse=True)
    return [node for depth in depths for node in model._nodes_by_depth[depth] if node.operation and not node.is_input]


def run_nodes(nodes: Iterable[Any], tensors: dict[int, Any], training: bool | None) -> None:
    """Make the calls `nodes` as their functional model does.

    Args:
        nodes: in order, some of those that `graph_nodes` returns.
        tensors: `{id of a symbolic tensor: tensor}`, which the outputs are added to.
        training: for the layers that take it.
    """
    for node in nodes:
        args, kwargs = node.arguments.fill_in(tensors)
        outputs = operation_fn(node.operation, training=training)(*args, **kwargs)
        tensors.update(zip(map(id, node.outputs), keras.tree.flatten(outputs), strict=True))


def runs_xla() -> bool:
    """Tell whether Keras would choose XLA here, for layers that XLA compiles."""
    return bool(model_supports_jit(keras.Sequential(name="none")))


def first_replica_spec(spec: Any) -> Any:
    """Return what a distributed iterator's `element_spec`, in any structure, says of the first replica's part."""
    return tf.nest.map_structure(lambda part: getattr(part, "_value_specs", (part,))[0], spec)


def seed_states(layer: Any) -> list[Any]:
    """Return the state variables of all random number generators inside `layer`, in order, each once."""
    states = [generator.state for inner in layer._flatten_layers() for generator in inner._seed_generators]
    return list({id(state): state for state in states}.values())


def rebuild(model: Any, replaced: Callable[[Any], Any]) -> Any:
    """Return a new model like `model`, from the same inputs, of what `replaced` gives for each of its layers.

    `None` for anything but a model of Keras' own functional or sequential class.
    """
    if type(model) is keras.Sequential:
        inputs = [] if model._functional is None else model._functional.inputs
        new = keras.Sequential([*inputs, *(replaced(layer) for layer in model.layers)], name=model.name)
    elif type(model) is Functional:
        new = keras.Model(
            model._inputs_struct,
            model._run_through_graph(model._inputs_struct, operation_fn=replaced),
            name=model.name,
        )
    else:
        return None
    if not model.trainable:
        new.trainable = False
    return new


def replace_child(parent: Any, name: str | None, new: Any, *, old: Any = None) -> None:
    """Put `new` in the place of `old` in the books of `parent`, and in its attribute `name`, built or not.

    Args:
        parent: the layer.
        name: attribute to set; `None` for none.
        new: a layer, or a container of layers that all stand in the books.
        old: the layer to strike out, where it has a place in the books.
    """
    tracker = parent._tracker
    if old is not None and tracker.is_in_store("layers", old):
        if tracker.is_in_store("layers", new):
            tracker.untrack(old)
        else:
            tracker.replace_tracked_value("layers", old, new)
    if name is None:
        return
    locked = tracker.locked
    tracker.unlock()
    try:
        setattr(parent, name, new)
    finally:
        tracker.locked = locked


def build_sharing(source: Any, target: Any) -> None:
    """Build `target` on the variables and random numbers of `source`, a built layer of the same config."""
    pairs = [(source, target), *([(source.cell, target.cell)] if hasattr(source, "cell") else [])]
    flags = [(variable, variable.trainable) for variable in source.weights]
    for old, new in pairs:
        variables = {variable.name: variable for variable in [*old._trainable_variables, *old._non_trainable_variables]}
        for variable in old._trainable_variables:
            variable.trainable = True  # A frozen one would be booked as never trainable.

        def add_weight(*_: Any, name: str, _variables: Any = variables, **__: Any) -> Any:
            return _variables[name]

        # Past Keras' attribute tracking; `build` assigns each to its attribute, which puts it in the books.
        object.__setattr__(new, "add_weight", add_weight)
        for generator in old._seed_generators:
            (name,) = (key for key, value in vars(old).items() if value is generator)
            new._tracker.replace_tracked_value("seed_generators", getattr(new, name), generator)
            setattr(new, name, generator)
    target.build_from_config(source.get_build_config())
    for old, new in pairs:
        object.__delattr__(new, "add_weight")
        new.trainable = old.trainable
    for variable, trainable in flags:
        variable.trainable = trainable
