"""The same problems as Keras models, their weights known by the oracle's names."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import keras
import numpy as np
import tensorflow as tf

import gradalign as ga

from .problems import ADVERSARY, FIELDS, PRIVATE_DIM, SHARED_DIM, TOWER, VOCABULARY, WIDTH, Case

ERROR = {"float64": 1e-9, "float32": 1e-4}


def exact_gelu(x: tf.Tensor) -> tf.Tensor:
    """x Phi(x). TensorFlow's and Keras' own rounds sqrt(1/2) to float32, which is off by 5e-9 in float64."""
    return 0.5 * x * tf.math.erfc(-x * tf.constant(math.sqrt(0.5), x.dtype))


ACTIVATIONS = {
    "gelu": exact_gelu,
    "gelu_root_half": "gelu",
    "gelu_root_two": "gelu",
}  # any other by the name that Keras knows


def base_model(case: Case, shared: str = "row") -> keras.Model:
    """ids (B, F) -> {task: logits (B, classes)}; layer "shared" gives s: (B, D), or (B, F, d) for shared="position"."""
    ids = keras.Input((FIELDS,), dtype="int32", name="ids")
    embedded = keras.layers.Embedding(VOCABULARY, SHARED_DIM, name="table")(ids)
    s = keras.layers.Reshape((WIDTH,) if shared == "row" else (FIELDS, SHARED_DIM), name="shared")(embedded)
    flat = keras.layers.Flatten(name="flat")(s)
    outputs = {}
    for task in case.names:
        x = flat
        if case.private:
            private = keras.layers.Embedding(VOCABULARY, PRIVATE_DIM, name=f"private_{task}")(ids)
            x = keras.layers.Concatenate(name=f"input_{task}")([flat, keras.layers.Flatten()(private)])
        for i, units in enumerate((*TOWER, case.classes)):
            activation = ACTIVATIONS.get(case.activation, case.activation)
            x = keras.layers.Dense(units, activation if i < len(TOWER) else None, name=f"tower_{task}_{i}")(x)
        outputs[task] = x
    return keras.Model({"ids": ids}, outputs, name="base")


def library_model(case: Case) -> keras.Model:
    """The same model as GradAlign's own architecture makes it: one categorical field a column, probabilities out."""
    size = VOCABULARY // FIELDS
    return ga.architectures.shared_private(
        {f"field_{i}": ga.layers.Categorical(size) for i in range(FIELDS)},
        case.names,
        shared_dim=SHARED_DIM,
        private_dim=PRIVATE_DIM if case.private else 0,
        towers=TOWER,
        activation=ACTIVATIONS.get(case.activation, case.activation),
    )


def discriminator_model(tasks: int, entries: tuple[int, ...] = (WIDTH,)) -> keras.Model:
    hidden = [keras.layers.Dense(units, "tanh") for units in ADVERSARY]
    return keras.Sequential([keras.Input(entries), *hidden, keras.layers.Dense(tasks)])


def named_variables(base: keras.Model, discriminator: keras.Model) -> dict[str, keras.Variable]:
    """Every variable of both, by the oracle's name; an unexpected one is a KeyError or a failed count."""
    found = {}
    for layer in base.layers:
        kind, _, rest = layer.name.partition("_")
        if layer.name in ("table", "shared_embedding"):
            (found["shared"],) = layer.trainable_variables
        elif kind == "private":
            (found[f"private/{rest.removeprefix('embedding_')}"],) = layer.trainable_variables
        elif isinstance(layer, ga.layers.Tower):
            for i, dense in enumerate([*layer.hidden, layer.last]):
                found |= {f"tower/{rest}/{i}/kernel": dense.kernel, f"tower/{rest}/{i}/bias": dense.bias}
        elif isinstance(layer, keras.layers.Dense):  # "tower_<task>_<i>", or "<task>" for the last of a tower
            task, _, i = rest.rpartition("_") if kind == "tower" else (layer.name, "", str(len(TOWER)))
            found |= {f"tower/{task}/{i}/kernel": layer.kernel, f"tower/{task}/{i}/bias": layer.bias}
    dense = [layer for layer in discriminator.layers if isinstance(layer, keras.layers.Dense)]
    for i, layer in enumerate(dense):
        found |= {f"discriminator/{i}/kernel": layer.kernel, f"discriminator/{i}/bias": layer.bias}
    assert len(found) == len(base.trainable_variables) + len(discriminator.trainable_variables)
    return found


def assign(variables: Mapping[str, keras.Variable], arrays: Mapping[str, np.ndarray]) -> None:
    assert variables.keys() == arrays.keys()
    for name, variable in variables.items():
        variable.assign(arrays[name])


def values(variables: Mapping[str, keras.Variable]) -> dict[str, np.ndarray]:
    return {name: variable.numpy() for name, variable in variables.items()}


def in_mode(function: Callable, mode: str) -> Callable:
    """`function` of no argument, in eager mode, as a graph, or compiled by XLA.

    "autograph" is "graph" as `tf.function` is by default; the others leave it out, because it costs seconds a trace.
    """
    if mode == "eager":
        return function
    return tf.function(function, jit_compile=mode == "jit", autograph=mode == "autograph")


def train_functions(model: keras.Model) -> list:
    """The `tf.function`s behind `fit`, outermost first; Keras keeps them in the closure of `model.train_function`."""
    found, todo, seen = [], [model.train_function], set()
    while todo:
        function = todo.pop(0)
        if isinstance(function, tf.types.experimental.PolymorphicFunction):
            found.append(function)
            function = function.python_function
        if id(function) not in seen:
            seen.add(id(function))
            todo += [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]
    return found


def compiled_matrix_products(concrete) -> int:
    """Matrix products inside functions that must be compiled by XLA; 0 says that nothing is compiled."""
    graph = concrete.graph.as_graph_def()
    library = {f.signature.name: f for f in graph.library.function}
    own = concrete.function_def
    calls = [node.attr["f"].func.name for node in graph.node if node.attr["_XlaMustCompile"].b]
    found, done = 0, set()
    todo = [f for f in [own, *library.values()] if f.attr["_XlaMustCompile"].b]
    todo += [library[name] for name in calls if name]
    while todo:
        function = todo.pop()
        if function.signature.name in done:
            continue
        done.add(function.signature.name)
        found += sum(node.op == "MatMul" for node in function.node_def)
        called = {attr.func.name for node in function.node_def for attr in node.attr.values() if attr.func.name}
        todo += [library[name] for name in called & library.keys()]
    return found


def assert_near(got: Mapping[str, np.ndarray], wanted: Mapping[str, np.ndarray], tolerance: float, *scales) -> None:
    """Each array within `tolerance` of the oracle's, relative to its largest entry (or that of one of `scales`)."""
    assert got.keys() == wanted.keys()
    for name, right in wanted.items():
        left = np.asarray(got[name])
        assert left.shape == right.shape, name
        scale = max(np.abs(other[name]).max() for other in (wanted, *scales))
        error = np.abs(left - right).max()
        assert error <= tolerance * scale, f"{name}: error {error:.3g}, scale {scale:.3g}, tolerance {tolerance:.0e}"
