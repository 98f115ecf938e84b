"""The cases' models in Keras."""

from __future__ import annotations

import keras

from gradalign.architectures import shared_private
from gradalign.benchmarks.cases import Network
from gradalign.layers import Categorical, FieldEmbedding, Tower

__all__ = ["base_model", "separate_tables", "shared_layer"]


def base_model(network: Network, names: list[str]) -> keras.Model:
    """Return the model: `{field: ids (B,)}` to `{task: probability (B, 1)}`.

    Args:
        network: what it looks like.
        names: of the fields.
    """
    if not network.encoder and not network.experts:
        return shared_private(
            {name: Categorical(size) for name, size in zip(names, network.sizes, strict=True)},
            network.task_names,
            shared_dim=network.dim,
            private_dim=network.private_dim,
            towers=network.towers,
            activation=network.activation,
        )
    inputs = _inputs(names)
    fields = {name: Categorical(size) for name, size in zip(names, network.sizes, strict=True)}
    x = FieldEmbedding(fields, network.dim, name="shared_embedding")(inputs)
    return keras.Model(inputs, _above(network, x), name="base")


def separate_tables(network: Network, names: list[str], *, of_keras: bool) -> keras.Model:
    """Return a model of the same kind with a table a field: a `FieldEmbedding`, or a `keras.layers.Embedding`."""
    inputs = _inputs(names)
    embedded = []
    for name, size in zip(names, network.sizes, strict=True):
        if of_keras:
            embedded.append(keras.layers.Embedding(size, network.dim, name=f"embedding_{name}")(inputs[name]))
        else:
            field = {name: Categorical(size)}
            embedded.append(FieldEmbedding(field, network.dim, name=f"embedding_{name}")({name: inputs[name]}))
    x = keras.layers.Concatenate(name="shared_embedding")(embedded)
    return keras.Model(inputs, _above(network, x), name="base")


def shared_layer(network: Network) -> str:
    """Return the name of the layer whose output is the shared tensor.

    >>> shared_layer(Network((5,), encoder=(8, 4)))
    'encoder_1'
    """
    return f"encoder_{len(network.encoder) - 1}" if network.encoder else "shared_embedding"


def _inputs(names: list[str]) -> dict[str, keras.KerasTensor]:
    return {name: keras.Input((), name=name, dtype="int32") for name in names}


def _above(network: Network, x: keras.KerasTensor) -> dict[str, keras.KerasTensor]:
    """Everything above the embeddings."""
    for number, units in enumerate(network.encoder):
        x = keras.layers.Dense(units, network.activation, name=f"encoder_{number}")(x)
    experts = [_expert(network, number, x) for number in range(network.experts)]
    outputs = {}
    for task in network.task_names:
        of_task = x
        if experts:
            shares = keras.layers.Dense(network.experts, "softmax", name=f"gate_{task}")(x)
            of_task = sum(shares[:, n : n + 1] * expert for n, expert in enumerate(experts))
        outputs[task] = Tower(network.towers, network.activation, name=f"tower_{task}")(of_task)
    return outputs


def _expert(network: Network, number: int, x: keras.KerasTensor) -> keras.KerasTensor:
    for depth, units in enumerate(network.expert_units):
        x = keras.layers.Dense(units, network.activation, name=f"expert_{number}_{depth}")(x)
    return x
