"""Recording of the shared tensor: a layer's output, taken as it passes by in the one forward pass of any Keras model.

The model is neither cut nor rebuilt, so functional, nested and subclassed models work alike: for the length of the
pass the layer's `call` hands its output through a function given by the caller.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf

from gradalign.errors import UserError, nearest
from gradalign.gradients._keras_compat import children, copy_mask

__all__ = ["find_layers", "layer_paths", "record_outputs", "recorded"]


def layer_paths(model: keras.Model) -> dict[str, Any]:
    """Return `{path: layer}` for everything inside `model`; a path is `"layer"` or `"outer/inner"`.

    Layers of equal path get `#2`, `#3` behind their name, in order. A layer that is used in two places has the path
    of the first.
    """
    paths: dict[str, Any] = {}
    seen: set[int] = {id(model)}

    def walk(parent: Any, prefix: str) -> None:
        inside = [child for child in children(parent) if id(child) not in seen]
        seen.update(id(child) for child in inside)
        for child in inside:
            path, number = f"{prefix}{child.name}", 1
            while path in paths:
                number += 1
                path = f"{prefix}{child.name}#{number}"
            paths[path] = child
        for path, child in list(paths.items()):
            if any(child is other for other in inside):
                walk(child, f"{path}/")

    walk(model, "")
    return paths


def find_layers(model: keras.Model, shared: Any) -> dict[str, Any]:
    """Return `{path: layer}` for the layers that `shared` names, in order.

    Args:
        model: any Keras model.
        shared: layer name, `"outer/inner"` path, layer object, or a list of these. A plain name finds a layer at any
            depth where it is the only one of that name; the outermost wins.

    Raises:
        UserError: for an unknown name (with the nearest ones), a name that fits several layers, a layer that is not
            in the model, and a layer named twice.

    Example:
        >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3, name="encoder"), keras.layers.Dense(1)])
        >>> list(find_layers(model, "encoder"))
        ['encoder']
    """
    wanted = list(shared) if isinstance(shared, (list, tuple)) else [shared]
    if not wanted:
        raise UserError("shared names no layer: give a layer name, a path, a layer, or a list of these.")
    paths = layer_paths(model)
    found: dict[str, Any] = {}
    for item in wanted:
        path = _find_name(model, item, paths) if isinstance(item, str) else _find_object(model, item, paths)
        if path in found:
            raise UserError(f'shared names the layer "{path}" twice; name each layer once.')
        found[path] = paths[path]
    return found


def _find_name(model: keras.Model, name: str, paths: dict[str, Any]) -> str:
    if name in paths:
        return name
    deeper = [path for path in paths if path.endswith(f"/{name}")]
    if len(deeper) == 1:
        return deeper[0]
    if deeper:
        raise UserError(
            f'The shared layer name "{name}" fits {len(deeper)} layers of model "{model.name}"; '
            f"give the path of one: {', '.join(deeper)}."
        )
    names = [*paths, *(path.rsplit("/", 1)[-1] for path in paths)]
    hint = nearest(name, dict.fromkeys(names)) or f" It has: {', '.join(list(paths)[:20])}."
    raise UserError(f'Model "{model.name}" has no layer "{name}" to take the shared tensor from.{hint}')


def _find_object(model: keras.Model, layer: Any, paths: dict[str, Any]) -> str:
    if not isinstance(layer, keras.Operation):
        raise UserError(f"shared is a layer name, a path, a layer, or a list of these; received {layer!r}.")
    for path, inside in paths.items():
        if inside is layer:
            return path
    raise UserError(f'The shared layer "{layer.name}" is not part of model "{model.name}"; pass one of its own layers.')


# Layers whose `call` is replaced at the moment, with the number of passes that need it. Replicas of a strategy run the
# same layer in several threads at a time, so each thread keeps its own recordings.
_hooked: dict[int, int] = {}
_lock = threading.Lock()
_threads = threading.local()


class _Recording:
    def __init__(self, layers: dict[str, Any], transform: Callable[[tf.Tensor], tf.Tensor]) -> None:
        self.layers = {id(layer): path for path, layer in layers.items()}
        self.transform = transform
        self.outputs: dict[str, list[tf.Tensor]] = {}

    def take(self, layer: Any, outputs: Any) -> Any:
        path = self.layers[id(layer)]
        if path in self.outputs:
            raise UserError(
                f'The shared layer "{path}" was called twice in one forward pass, so it has no one output; '
                "take a layer that is called once, such as the one that joins its outputs."
            )
        copies = []
        for leaf in tf.nest.flatten(outputs):
            if not isinstance(leaf, tf.Tensor):
                raise UserError(
                    f'The shared layer "{path}" gives a {type(leaf).__name__}; '
                    "take a layer whose output is a dense tensor."
                )
            if not leaf.dtype.is_floating:
                raise UserError(
                    f'The shared layer "{path}" gives {leaf.dtype.name} values, which have no gradient; '
                    "take the layer that looks up the embeddings."
                )
            copy = self.transform(leaf)
            copy_mask(leaf, copy)
            copies.append(copy)
        self.outputs[path] = copies
        return tf.nest.pack_sequence_as(outputs, copies)

    def finish(self) -> None:
        for path in self.layers.values():
            if path not in self.outputs:
                raise UserError(
                    f'The shared layer "{path}" was not called in the forward pass; '
                    "take a layer that the prediction goes through."
                )
            for tensor in self.outputs[path]:
                inside = (
                    not tf.executing_eagerly() and getattr(tensor, "graph", None) is tf.compat.v1.get_default_graph()
                )
                if not (inside or (tf.executing_eagerly() and hasattr(tensor, "numpy"))):
                    raise UserError(
                        f'The shared layer "{path}" runs inside a tf.function of its own, which hides its output; '
                        "take the decorator off the model's code (fit compiles the whole step anyway)."
                    )


def _recordings() -> list[_Recording]:
    if not hasattr(_threads, "recordings"):
        _threads.recordings = []
    found: list[_Recording] = _threads.recordings
    return found


def _hook(layer: Any) -> None:
    with _lock:
        _hooked[id(layer)] = _hooked.get(id(layer), 0) + 1
        if _hooked[id(layer)] > 1:
            return
        original = layer.call

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            return recorded(layer, original(*args, **kwargs))

        # Past Keras' own attribute tracking, which would take the function for part of the layer's state.
        call.replaced = vars(layer).get("call")  # type: ignore[attr-defined]
        object.__setattr__(layer, "call", call)


def _unhook(layer: Any) -> None:
    with _lock:
        _hooked[id(layer)] -= 1
        if _hooked[id(layer)]:
            return
        del _hooked[id(layer)]
        replaced = vars(layer)["call"].replaced
        if replaced is None:
            object.__delattr__(layer, "call")
        else:
            object.__setattr__(layer, "call", replaced)


def recorded(layer: Any, outputs: Any) -> Any:
    """Return `outputs` of `layer` as the pass that is recorded goes on with them; others as they are.

    For a layer that ran before the pass, whose outputs enter it.
    """
    for recording in reversed(_recordings()):
        if id(layer) in recording.layers:
            return recording.take(layer, outputs)
    return outputs


@contextmanager
def record_outputs(
    layers: dict[str, Any], transform: Callable[[tf.Tensor], tf.Tensor] = tf.identity
) -> Iterator[dict[str, list[tf.Tensor]]]:
    """Record the outputs of `layers` during one forward pass, each replaced by `transform` of itself.

    Args:
        layers: `{path: layer}`, as `find_layers` returns them.
        transform: what the rest of the pass sees of each output tensor, such as `TaskTape.watch`.

    Yields:
        `{path: [tensors]}`, filled while the pass runs; a layer with several outputs gives several tensors.

    Raises:
        UserError: at the end of the pass, where a layer was called twice or not at all, or hides its output in a
            `tf.function` of its own.

    Example:
        >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3, name="encoder"), keras.layers.Dense(1)])
        >>> with record_outputs(find_layers(model, "encoder")) as outputs:
        ...     prediction = model(tf.ones([4, 2]))
        >>> outputs["encoder"][0].shape
        TensorShape([4, 3])
    """
    recording = _Recording(layers, transform)
    for layer in layers.values():
        _hook(layer)
    _recordings().append(recording)
    try:
        yield recording.outputs
    finally:
        _recordings().remove(recording)
        for layer in layers.values():
            _unhook(layer)
    recording.finish()
