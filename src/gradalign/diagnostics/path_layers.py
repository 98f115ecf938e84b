"""Layers between the shared tensor and a loss whose second derivative is wrong or missing, found without running one.

The base is traced once in training mode; in that graph a stop-gradient that lies on a way from a shared tensor to a
prediction spoils the second derivative, wherever it comes from. One that lies elsewhere, such as on the vectors of
`SpectralNormalization`, does not. LSTM and GRU layers are judged by their configuration, so that a machine without GPU
foresees what one with a GPU does.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from gradalign.diagnostics.graph_paths import Graph, functions_of, graph_of
from gradalign.errors import UserError
from gradalign.gradients.recording import find_layers, layer_paths, record_outputs
from gradalign.layers.recurrent import admits_cudnn
from gradalign.tasks import predictions_by_task, specs_from_config

__all__ = ["PathLayer", "has_kinks", "layers_on_the_path", "layers_without_second_order", "path_sentences"]

_STOCK = (keras.layers.LayerNormalization, keras.layers.BatchNormalization, keras.layers.GroupNormalization)
_SWAP = "or let ga.make_twice_differentiable(base) swap it before you wrap the base"
_MARK = "gradalign_layer_"
_MAX_POOLING = ("MaxPool", "MaxPoolV2", "MaxPool3D")
_LOOPS = ("While", "StatelessWhile")


# Operations whose derivative jumps.
_KINKED = frozenset(["Abs", "LeakyRelu", "Max", "MaxPool", "MaxPool3D", "Maximum", "Min", "Minimum", "Relu", "Relu6"])


@dataclass(frozen=True)
class PathLayer:
    """A layer on the way from the shared tensor to a loss that is wrong at second order.

    Attributes:
        path: the layer's path in the base, or the base's name where the base itself is meant.
        class_name: its class.
        reason: what is wrong with it, the rest of a sentence that starts with the layer.
        mend: what to do, an imperative.
        raises: whether a step with it cannot even be computed.
    """

    path: str
    class_name: str
    reason: str
    mend: str
    raises: bool = False


def layers_without_second_order(
    base: keras.Model, shared: Any, inputs: Any, tasks: list[str] | None = None, *, compiled: bool = False
) -> list[PathLayer]:
    """Return the layers between `shared` and the predictions that are wrong at second order, in order of their paths.

    Args:
        base: a Keras model with weights, which returns `{task: prediction}`.
        shared: the layers of the shared tensor, as `MultiTaskModel` takes them.
        inputs: `tf.TensorSpec`s of `base`'s inputs.
        tasks: tasks whose losses count; all by default.
        compiled: whether the steps are compiled by XLA.

    Raises:
        UserError: for a `shared` that is not in the model, or a base that does not return a dict.

    Example:
        >>> x = keras.Input((4,))
        >>> s = keras.layers.LayerNormalization()(keras.layers.Dense(4, name="encoder")(x))
        >>> base = keras.Model(x, {"click": keras.layers.Dense(1, name="click")(s)})
        >>> [found] = layers_without_second_order(base, "encoder", tf.TensorSpec((None, 4)))
        >>> found.path, found.class_name
        ('layer_normalization', 'LayerNormalization')
        >>> layers_without_second_order(base, "layer_normalization", tf.TensorSpec((None, 4)))
        []
    """
    paths = layer_paths(base)
    found: list[PathLayer] = []

    def read(graph: Graph, way: set[str], functions: dict[str, Graph]) -> None:
        found.extend(_findings(base, paths, way, list(_stops(graph, way, functions))))
        found.extend(_without_kernel(base, paths, {name: graph.nodes[name].kind for name in way}, compiled))

    _on_the_way(base, shared, inputs, tasks, read)
    return found


def _on_the_way(
    base: keras.Model,
    shared: Any,
    inputs: Any,
    tasks: list[str] | None,
    read: Callable[[Graph, set[str], dict[str, Graph]], None],
) -> None:
    """Trace `base` in training and call `read` with its graph, the operations on the way, and its functions."""
    of_shared = find_layers(base, shared)

    def forward(x: Any) -> None:
        with _marked(list(layer_paths(base).values())), record_outputs(of_shared) as recorded:
            predictions = predictions_by_task(base, base(x, training=True))
        graph = graph_of(next(iter(predictions.values())).graph)
        way = graph.between(
            {tensor.op.name for of_layer in recorded.values() for tensor in of_layer},
            {tensor.op.name for task, tensor in predictions.items() if tasks is None or task in tasks},
        )
        read(graph, way, functions_of(predictions))

    # Traced and thrown away: nothing runs, so neither random numbers nor moving statistics move.
    with tf.init_scope():
        tf.function(tf.autograph.experimental.do_not_convert(forward), autograph=False).get_concrete_function(inputs)


def has_kinks(model: Any) -> bool:
    """Tell whether a task's gradient jumps somewhere, because the way to its prediction has a ReLU or the like.

    Args:
        model: a compiled `MultiTaskModel` that has met a batch.
    """
    kinds: set[str] = set()

    def read(graph: Graph, way: set[str], functions: dict[str, Graph]) -> None:
        kinds.update(graph.nodes[name].kind for name in way)
        kinds.update(node.kind for function in functions.values() for node in function.nodes.values())

    inputs = specs_from_config(model.get_build_config()["inputs"])
    _on_the_way(model.base, model.shared, inputs, list(model.alignment.aligned_tasks), read)
    return not kinds.isdisjoint(_KINKED)


def layers_on_the_path(model: Any) -> list[PathLayer]:
    """Return what `layers_without_second_order` finds for the aligned tasks of a compiled `MultiTaskModel`.

    Raises:
        UserError: in one sentence, where a step cannot even be computed with the layers found.
    """
    inputs = specs_from_config(model.get_build_config()["inputs"])
    found = layers_without_second_order(
        model.base, model.shared, inputs, list(model.alignment.aligned_tasks), compiled=model.uses_xla
    )
    if stopping := [layer for layer in found if layer.raises]:
        raise UserError(" ".join(path_sentences(stopping)))
    return found


def path_sentences(found: list[PathLayer]) -> list[str]:
    """Return one sentence for each kind of fault, naming its layers and their classes, and how to mend it.

    Example:
        >>> path_sentences([PathLayer("ln", "LayerNormalization", "is wrong", "swap it")])
        ['Between the shared tensor and a loss, layer "ln" (LayerNormalization) is wrong; swap it.']
    """
    kinds: dict[tuple[str, str], list[str]] = defaultdict(list)
    for layer in found:
        kinds[layer.reason, layer.mend].append(f'"{layer.path}" ({layer.class_name})')
    return [
        f"Between the shared tensor and a loss, {'each of the layers' if len(names) > 1 else 'layer'} "
        f"{', '.join(names)} {reason}; {mend}."
        for (reason, mend), names in kinds.items()
    ]


def _findings(base: Any, paths: dict[str, Any], way: set[str], stops: list[str]) -> list[PathLayer]:
    names = list(paths)
    stopping = {_innermost(stop) for stop in stops}
    passed = {int(number) for name in way for number in re.findall(rf"{_MARK}(\d+)", name)}
    found = [_stopping(base.name, type(base).__name__, base)] if None in stopping else []
    for number, path in enumerate(names):
        layer = paths[path]
        if number in stopping:
            found.append(_stopping(path, type(layer).__name__, layer))
        elif number in passed and admits_cudnn(layer):
            kind = "GRU" if isinstance(layer, keras.layers.GRU) else "LSTM"
            reason = "may run with cuDNN on a GPU, which has no second derivative"
            mend = f"take gradalign.layers.{kind}, give it use_cudnn=False, {_SWAP}"
            found.append(PathLayer(path, type(layer).__name__, reason, mend))
    return found


def _without_kernel(base: Any, paths: dict[str, Any], kinds: dict[str, str], compiled: bool) -> list[PathLayer]:
    """Return the layers with an operation whose second derivative TensorFlow, or XLA, does not have or keep."""
    layers = list(paths.items())
    found: dict[PathLayer, None] = {}
    for name, kind in sorted(kinds.items()):
        number = _innermost(name)
        path, layer = (base.name, base) if number is None else layers[number]
        raises = True
        if kind == "Softsign":
            reason, mend = "has no second derivative in TensorFlow (softsign)", "take another activation, such as tanh"
        elif kind in _MAX_POOLING and compiled:
            reason = "has no second derivative that XLA can compile (max pooling)"
            mend = "give compile jit_compile=False, or take average or global max pooling"
        elif kind in _LOOPS and compiled:
            raises, reason = False, "is a loop, whose second derivative XLA compiles anew in every step"
            mend = "give compile jit_compile=False"
            if isinstance(layer, (keras.layers.RNN, keras.layers.Bidirectional)):
                mend += ", or the layer unroll=True"
        else:
            continue
        found[PathLayer(path, type(layer).__name__, reason, mend, raises=raises)] = None
    return list(found)


def _stopping(path: str, class_name: str, layer: Any) -> PathLayer:
    for stock in _STOCK:
        if isinstance(layer, stock):
            reason = "counts its mean as a constant, which makes the second-order gradient wrong"
            return PathLayer(path, class_name, reason, f"take gradalign.layers.{stock.__name__}, {_SWAP}")
    reason = "stops gradients, which leaves what goes through it out of the second-order gradient"
    return PathLayer(path, class_name, reason, "take the stop-gradient out, or take the shared tensor from behind it")


def _innermost(name: str) -> int | None:
    """Return the number of the layer that made the operation `name`; `None` for the base itself."""
    numbers = re.findall(rf"{_MARK}(\d+)", name)
    return int(numbers[-1]) if numbers else None


def _stops(graph: Graph, way: set[str], functions: dict[str, Graph], outer: str = "") -> Iterator[str]:
    """Yield the names of stop-gradients on the way, inside loops, branches and inner functions too."""
    for name in sorted(way):
        node = graph.nodes[name]
        if node.kind in ("StopGradient", "PreventGradient") and not graph.is_shift(name):
            yield f"{outer}{name}"
        for function in node.functions:
            inner = functions[function]
            yield from _stops(inner, inner.between(inner.sources, inner.sinks), functions, f"{outer}{name}/")


@contextmanager
def _marked(layers: list[Any]) -> Iterator[None]:
    """Let each operation of a layer carry the layer's number in its name, while the context lasts."""
    with ExitStack() as undo:
        for number, layer in enumerate(layers):
            undo.enter_context(_marks(layer, f"{_MARK}{number}"))
        yield


@contextmanager
def _marks(layer: Any, mark: str) -> Iterator[None]:
    original, was_own = layer.call, "call" in vars(layer)

    def call(*args: Any, **kwargs: Any) -> Any:
        with tf.name_scope(mark):
            return original(*args, **kwargs)

    # Past Keras' own attribute tracking, as `record_outputs` does, which may have the same layer in hand.
    object.__setattr__(layer, "call", call)
    try:
        yield
    finally:
        if was_own:
            object.__setattr__(layer, "call", original)
        else:
            object.__delattr__(layer, "call")
