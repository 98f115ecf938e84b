"""`make_twice_differentiable`: swaps layers whose second derivative is wrong or missing; the weights stay."""

from __future__ import annotations

import warnings
from typing import Any

import keras

from gradalign.errors import GradAlignWarning, UserError
from gradalign.gradients._keras_compat import build_sharing, rebuild, replace_child
from gradalign.gradients.recording import layer_paths
from gradalign.layers.normalization import BatchNormalization, GroupNormalization, LayerNormalization
from gradalign.layers.recurrent import GRU, LSTM, admits_cudnn

__all__ = ["make_twice_differentiable"]

_NORMALIZATIONS = {
    keras.layers.BatchNormalization: BatchNormalization,
    keras.layers.GroupNormalization: GroupNormalization,
    keras.layers.LayerNormalization: LayerNormalization,
}
_RECURRENT = {keras.layers.GRU: GRU, keras.layers.LSTM: LSTM}
_OWN = (*_NORMALIZATIONS.values(), *_RECURRENT.values())


def make_twice_differentiable(model: keras.Model) -> keras.Model:
    """Return `model` with layers whose gradient can be differentiated again, on the same variables.

    Stock batch, layer and group normalisation become those of `gradalign.layers`, and so do LSTM and GRU layers that
    may run with cuDNN on a GPU. Weights, names, seeds and trainable flags stay; so do predictions, to rounding.

    Args:
        model: a Keras model, with its weights created: call it on a batch first if it makes them late.

    Returns:
        For a functional or sequential model a new one, not compiled, that shares every other layer with the old;
        `model` itself where there is nothing to swap. A subclassed model is changed in place and returned: layers in
        its attributes, in lists, tuples and dicts there, and in its layers' attributes, to any depth. Layers that hold
        layers, such as `Bidirectional` or a block of your own, are changed in place in any model.

    Raises:
        UserError: for anything but a Keras model, or a functional or sequential model without weights yet.

    Warns:
        GradAlignWarning: names each layer that stays as it is, since it is a class derived from a stock layer, has
            `renorm=True`, or stands in the graph of a functional model of a class of its own.

    Example:
        >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.LayerNormalization()])
        >>> new = make_twice_differentiable(model)
        >>> type(new.layers[1]).__module__
        'gradalign.layers.normalization'
        >>> new.layers[1].gamma is model.layers[1].gamma
        True
    """
    if not isinstance(model, keras.Model):
        raise UserError(f"make_twice_differentiable takes a Keras model; received {type(model).__name__}.")
    if isinstance(getattr(model, "base", None), keras.Model) and hasattr(model, "alignment"):
        raise UserError(
            f"make_twice_differentiable takes the model inside a {type(model).__name__}: "
            "MultiTaskModel(make_twice_differentiable(model.base), model.shared, model.alignment)."
        )
    if isinstance(model, keras.Sequential) and not model.built:
        raise UserError(
            f'Model "{model.name}" has no weights to share yet; give it an Input, or call it on a batch first.'
        )
    new = _Swap().of(model)
    left = [
        f'"{path}" ({type(layer).__name__})' for path, layer in layer_paths(new).items() if _is_wrong_or_missing(layer)
    ]
    if left:
        warnings.warn(
            f"make_twice_differentiable cannot swap {', '.join(left)}: a layer is swapped where it is of Keras' own "
            "class, without renorm, and in an attribute or in a plain functional or sequential model; put the layer of "
            "gradalign.layers there yourself, or derive yours from it.",
            GradAlignWarning,
            stacklevel=2,
        )
    return new


def _is_wrong_or_missing(layer: Any) -> bool:
    """Tell whether a stock layer, or one derived from it, has no right second derivative."""
    return not isinstance(layer, _OWN) and (isinstance(layer, tuple(_NORMALIZATIONS)) or admits_cudnn(layer))


def _is_swapped(layer: Any) -> bool:
    """Tell whether `layer` is of a class that has a twin here, and in a mode that the twin knows."""
    of_keras = type(layer) in _NORMALIZATIONS or type(layer) in _RECURRENT
    return of_keras and _is_wrong_or_missing(layer) and not getattr(layer, "renorm", False)


class _Swap:
    """One walk over a model; a layer that stands in two places is swapped once."""

    def __init__(self) -> None:
        # The layer itself is kept beside what takes its place: the id of one that is gone could be given out again.
        self._done: dict[int, tuple[Any, Any]] = {}

    def of(self, layer: Any) -> Any:
        """Return what takes the place of `layer`, itself where nothing has to."""
        if id(layer) not in self._done:
            self._done[id(layer)] = (layer, layer)  # For a layer that holds itself.
            self._done[id(layer)] = (layer, self._swapped(layer))
        return self._done[id(layer)][1]

    def _swapped(self, layer: Any) -> Any:
        if _is_swapped(layer):
            return _twin(layer)
        if not isinstance(layer, keras.Layer):
            return layer
        inner = layer_paths(layer).values()
        if not any(_is_swapped(child) for child in inner):
            return layer
        rebuilt = rebuild(layer, self.of)
        if rebuilt is not None:
            return rebuilt
        if not hasattr(layer, "operations"):  # A functional model of its own class: its graph cannot be swapped.
            self._swap_inside(layer)
        return layer

    def _swap_inside(self, parent: Any) -> None:
        for name, value in list(vars(parent).items()):
            # Keras' and TensorFlow's own books: `replace_child` keeps the first, the second name what is saved.
            if name != "_layers" and not name.startswith("_self_"):
                new = self._swap_value(parent, value)
                if new is not value:
                    replace_child(parent, name, new)
        for function in ("train_function", "test_function", "predict_function"):
            if getattr(parent, function, None) is not None:
                setattr(parent, function, None)  # Compiled with the old layers.

    def _swap_value(self, parent: Any, value: Any) -> Any:
        if isinstance(value, keras.Layer):
            new = self.of(value)
            if new is not value:
                replace_child(parent, None, new, old=value)
            return new
        value_itself = getattr(value, "__wrapped__", value)  # TensorFlow wraps some containers of an attribute.
        # Items are set past the methods of Keras' lists and dicts, which refuse a new layer once the parent is built.
        if isinstance(value_itself, list):
            for position, item in enumerate(value_itself):
                new = self._swap_value(parent, item)
                if new is not item:
                    list.__setitem__(value_itself, position, new)
        elif isinstance(value_itself, dict):
            for key, item in list(value_itself.items()):
                new = self._swap_value(parent, item)
                if new is not item:
                    dict.__setitem__(value_itself, key, new)
        elif isinstance(value_itself, tuple):
            items = [self._swap_value(parent, item) for item in value_itself]
            if any(new is not old for new, old in zip(items, value_itself, strict=True)):
                kind = type(value_itself)
                return kind(*items) if hasattr(kind, "_fields") else kind(items)
        return value


def _twin(layer: Any) -> Any:
    """Return the layer of ours that takes the place of `layer`, with its config and its very variables."""
    kind: Any = _NORMALIZATIONS.get(type(layer)) or _RECURRENT[type(layer)]
    twin = kind.from_config(layer.get_config())
    if layer.built:
        build_sharing(layer, twin)
    return twin
