"""Where a base is cut at its tables: what runs before XLA, and the rest that XLA compiles."""

from __future__ import annotations

from typing import Any

import keras

from gradalign.gradients._keras_compat import (
    functional_outputs,
    graph_nodes,
    is_plain_functional,
    run_nodes,
    set_mask,
)
from gradalign.gradients.recording import layer_paths, recorded
from gradalign.layers.field_embedding import FieldEmbedding
from gradalign.tasks import layers_without_xla

__all__ = ["Rest", "adds_a_loss", "dense_obstacle", "is_table", "loops_over_steps"]


def loops_over_steps(base: keras.Model) -> bool:
    """Tell whether a recurrent layer in `base` is a loop, whose second derivative XLA compiles anew in every step.

    Example:
        >>> x = keras.Input((5, 3))
        >>> [loops_over_steps(keras.Model(x, keras.layers.GRU(2, unroll=unroll)(x))) for unroll in (False, True)]
        [True, False]
    """
    return any(isinstance(layer, keras.layers.RNN) and not layer.unroll for layer in layer_paths(base).values())


def dense_obstacle(base: keras.Model, *, run_eagerly: bool = False, replicas: int = 1) -> str | None:
    """Return what keeps the dense part of a step from being compiled, with the mend; `None` if nothing does.

    Args:
        base: the model.
        run_eagerly: what `compile` was given.
        replicas: number of replicas that train in step.

    Example:
        >>> ids = keras.Input((), dtype="int32")
        >>> dense_obstacle(keras.Model(ids, keras.layers.Embedding(9, 2)(ids))) is None
        True
    """
    if run_eagerly:
        return "run_eagerly=True compiles nothing: leave one of the two out"
    if replicas > 1:
        return f"the step runs on {replicas} replicas, which XLA does not join: take jit_compile=False"
    if not is_plain_functional(base):
        return (
            f'model "{base.name}" is not a functional model, which alone can be cut at its tables: make it with '
            "keras.Model(inputs, outputs), or take jit_compile=False"
        )
    nodes = graph_nodes(base)
    tables, below = _front(nodes)
    for node in nodes:
        inside = [path for path, layer in layer_paths(node.operation).items() if is_table(layer)]
        if inside and node not in tables:
            return (
                f'the table "{inside[0]}" is inside "{node.operation.name}", which runs as a whole: '
                f'call its layers in model "{base.name}" itself, or take jit_compile=False'
            )
    if not tables:
        return f'model "{base.name}" has no table to be cut at: take jit_compile=True'
    for node in below:
        if getattr(node.operation, "trainable_variables", []):
            return f'"{node.operation.name}", whose output is looked up in a table, is trained: take jit_compile=False'
    for node in tables:
        if node.operation.activity_regularizer is not None:
            return adds_a_loss(node.operation.name)
    for symbol, _ in _boundary(base, nodes):
        if symbol.dtype == "string" or symbol.sparse or getattr(symbol, "ragged", False):
            return f'"{symbol.name}", which is not looked up, is text, sparse or ragged: take jit_compile=False'
    if layers := layers_without_xla(Rest(base)):
        return (
            f"XLA does not compile {', '.join(layers)}: run such layers in the data pipeline, or take jit_compile=False"
        )
    return None


def adds_a_loss(name: str) -> str:
    """Return the obstacle that a loss of the lookups is, whose gradient would be lost."""
    return f'the table "{name}" adds a loss of its outputs: regularize another layer, or take jit_compile=False'


def is_table(layer: Any) -> bool:
    """Tell whether `layer` looks up rows of a table."""
    return isinstance(layer, keras.layers.Embedding) or (isinstance(layer, FieldEmbedding) and layer.table is not None)


def _front(nodes: list[Any]) -> tuple[list[Any], list[Any]]:
    """Return the calls of tables, and the calls that these need the outputs of."""
    tables = [node for node in nodes if is_table(node.operation)]
    needed = {id(tensor) for node in tables for tensor in node.input_tensors}
    below = []
    for node in reversed(nodes):
        if any(id(tensor) in needed for tensor in node.outputs):
            below.append(node)
            needed.update(id(tensor) for tensor in node.input_tensors)
    return tables, below


def _rest(nodes: list[Any]) -> list[Any]:
    tables, below = _front(nodes)
    return [node for node in nodes if node not in tables and node not in below]


def _boundary(base: keras.Model, nodes: list[Any]) -> list[tuple[Any, Any]]:
    """Return the symbolic tensors that the rest starts from, each with the layer that makes it or `None`."""
    rest = _rest(nodes)
    made = {id(tensor): node.operation for node in nodes for tensor in node.outputs}
    used = [tensor for node in rest for tensor in node.input_tensors] + keras.tree.flatten(functional_outputs(base))
    within = {id(tensor) for node in rest for tensor in node.outputs}
    symbols = {id(tensor): tensor for tensor in used if id(tensor) not in within}
    return [(symbol, made.get(key)) for key, symbol in symbols.items()]


class Rest(keras.layers.Layer):  # type: ignore[misc]  # Keras ships no types
    """What the base computes from the lookups, and from the inputs that are not looked up, to its outputs."""

    def __init__(self, base: keras.Model) -> None:
        super().__init__(name=base.name, dtype=base.dtype_policy, autocast=False)
        nodes = graph_nodes(base)
        self.boundary = tuple(_boundary(base, nodes))
        self.nodes = tuple(_rest(nodes))
        self.outputs = functional_outputs(base)
        # In the books, so that the losses that these layers add are cleared before each pass, as under the base.
        self.inside = [node.operation for node in self.nodes if isinstance(node.operation, keras.layers.Layer)]
        self.built = True

    def call(self, tensors: list[Any], masks: Any = None, training: bool | None = None) -> Any:
        """Return the base's outputs from the tensors at the boundary and the masks that these carried."""
        known = {}
        for (symbol, made_by), tensor, mask in zip(self.boundary, tensors, masks, strict=True):
            set_mask(tensor, mask)
            known[id(symbol)] = recorded(made_by, tensor)
        run_nodes(self.nodes, known, training)
        return keras.tree.map_structure(lambda symbol: known[id(symbol)], self.outputs)
