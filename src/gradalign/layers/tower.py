"""The tower of one task: dense layers that end in one logit or one probability."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from gradalign.errors import UserError
from gradalign.gradients.factors import Note, noted_product
from gradalign.gradients.task_gradients import recording_tapes
from gradalign.layers.piecewise_linear import Part, logit_with_gradient

__all__ = ["Tower", "check_tower"]

Activation = str | Callable[[Any], Any]


@keras.saving.register_keras_serializable(package="gradalign")
class Tower(keras.layers.Layer):
    """Dense layers with an activation and dropout between them, and one number a row at the end.

    Where the activations are piecewise linear and a task's gradient is being recorded, the tower takes its fast path:
    logit and gradient come from one pass forward and one back, and differentiating the gradient costs four matrix
    products a layer instead of six. Both paths give the same numbers but for rounding; `general_because` says which
    one a tower takes.

    The default activation is GELU because the alignment reaches the shared representation through the second
    derivative of the tower: with ReLU the gradient's direction is piecewise constant in the tower's input, and under
    `normalize="l2"` nothing but the tower is moved.

    Args:
        units: width of each hidden layer; may be empty.
        activation: of the hidden layers: what `keras.layers.Dense` takes, or `"prelu"` for one trained slope a unit.
        dropout: share of a hidden layer's units dropped in training, in [0, 1).
        output_activation: `"sigmoid"` for a probability, `None` for a logit. Under mixed precision the last layer
            computes in float32.
        fast: `False` never takes the fast path; third derivatives need that.

    Raises:
        ValueError: a width that is not a positive whole number, a dropout outside [0, 1), a PReLU layer, or a `fast`
            that is neither True nor False.

    Shapes: (B, D), or a list of such tensors that count as joined, to (B, 1). The general path also takes higher ranks.

    Example:
        >>> x = keras.Input((8,))
        >>> clicks = Tower((64, 32), activation="relu", name="tower_click")(x)
        >>> clicks.shape
        (None, 1)
        >>> Tower((64, 32)).general_because
        'its activation "gelu" is not piecewise linear'
    """

    def __init__(
        self,
        units: Sequence[int] = (64, 32),
        activation: Activation = "gelu",
        dropout: float = 0.0,
        *,
        output_activation: Activation | None = "sigmoid",
        fast: bool = True,
        **kwargs: Any,
    ) -> None:
        check_tower(units, dropout)
        if not isinstance(fast, bool):
            raise UserError(f"fast of a tower is True or False; received {fast!r}.")
        super().__init__(**kwargs)
        self.units = [int(width) for width in units]
        self.dropout = float(dropout)
        self.fast = fast
        if isinstance(activation, keras.layers.PReLU):
            raise ValueError(
                'Each layer of a tower has slopes of its own: give activation="prelu" instead of a PReLU layer.'
            )
        prelu = activation == "prelu"
        self.activation = "prelu" if prelu else keras.activations.get(activation)
        self.output_activation = keras.activations.get(output_activation)
        of_layers = None if prelu else self.activation
        policy = self.dtype_policy
        self.hidden: list[keras.layers.Dense] = []
        self.slopes: list[keras.layers.PReLU] = []
        self.dropouts: list[keras.layers.Dropout] = []
        for i, width in enumerate(self.units):
            self.hidden.append(keras.layers.Dense(width, activation=of_layers, dtype=policy, name=f"hidden_{i}"))
            if prelu:
                self.slopes.append(keras.layers.PReLU(dtype=policy, name=f"slope_{i}"))
            if dropout:
                self.dropouts.append(keras.layers.Dropout(dropout, dtype=policy, name=f"dropout_{i}"))
        half = self.compute_dtype in ("float16", "bfloat16")
        self.last = keras.layers.Dense(1, dtype="float32" if half else policy, name="logit")

    def build(self, input_shape: Any) -> None:
        """Create the weights for inputs of one shape, or of a list of shapes."""
        shapes = input_shape if isinstance(input_shape[0], (list, tuple)) else [input_shape]
        shape = [*shapes[0][:-1], sum(part[-1] for part in shapes)]
        for i, layer in enumerate(self.hidden):
            layer.build(tuple(shape))
            shape[-1] = layer.units
            if self.slopes:
                self.slopes[i].build(tuple(shape))
        self.last.build(tuple(shape))
        self.built = True

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        """Return a probability, or a logit, for each row."""
        tensors = list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
        parts = None if self.general_because else _parts(tensors)
        logit = self._logit(tensors, training) if parts is None else self._fast_logit(parts, training)
        return self.output_activation(logit)

    def _logit(self, parts: list[Any], training: bool | None) -> Any:
        x: Any = None
        for i, layer in enumerate(self.hidden):
            if i == 0 and (note := self._note(parts)) is not None:
                x = layer.activation(_first_sums(parts, layer, note))
            else:
                x = layer(_joined(parts) if i == 0 else x)
            if self.slopes:
                x = self.slopes[i](x)
            if self.dropouts:
                x = self.dropouts[i](x, training=training)
        return self.last(x if self.hidden else _joined(parts))

    def _note(self, parts: list[Any]) -> Note | None:
        """Return what is told the factors of the gradient at the parts, where somebody asks and they are all of it."""
        tapes, first = recording_tapes(), self.hidden[0]
        if len(tapes) != 1 or tapes[0].note is None or first.quantization_mode or first.lora_enabled:
            return None
        if tapes[0].rows is not None:  # The gradient has all rows, and is sampled behind the tower.
            return None
        fits = all(part.shape.rank == 2 and part.dtype == first.kernel.dtype == self.compute_dtype for part in parts)
        return tapes[0].note if fits else None

    def _fast_logit(self, parts: list[Part], training: bool | None) -> tf.Tensor:
        layers, tape = [*self.hidden, self.last], recording_tapes()[-1]
        if self.slopes:
            slopes = [tf.convert_to_tensor(layer.alpha) for layer in self.slopes]
        else:
            slopes = [_slope_below_zero(self.activation)] * len(self.hidden)
        dropouts: list[Any] = [None] * len(self.hidden)
        if training and self.dropouts:
            dropouts = [lambda x, of=layer: of(x, training=True) for layer in self.dropouts]
        return logit_with_gradient(
            parts,
            [tf.convert_to_tensor(layer.kernel) for layer in layers],
            [tf.convert_to_tensor(layer.bias) for layer in layers],
            slopes,
            dropouts,
            rows=tape.rows,
            note=tape.note,
        )

    @property
    def general_because(self) -> str | None:
        """Why the tower takes the general path, as the rest of a sentence; `None` where it takes the fast one."""
        if not self.fast:
            return "it was made with fast=False"
        if not self.slopes and self.hidden and _slope_below_zero(self.activation) is None:
            return f'its activation "{_name_of(self.activation)}" is not piecewise linear'
        layers = [*self.hidden, self.last, *([self.activation] if isinstance(self.activation, keras.Layer) else [])]
        if len({layer.compute_dtype for layer in layers} | {self.variable_dtype}) > 1:
            return f"it computes in {self.compute_dtype}"
        if any(layer.quantization_mode or layer.lora_enabled for layer in [*self.hidden, self.last]):
            return "its layers are quantized or adapted"
        return None

    def compute_output_shape(self, input_shape: Any) -> tuple[int | None, ...]:
        """Return (..., 1)."""
        first = input_shape[0] if isinstance(input_shape[0], (list, tuple)) else input_shape
        return (*first[:-1], 1)

    def compute_output_spec(self, inputs: Any, training: bool | None = None) -> Any:
        """Return the symbolic output, which under mixed precision is float32."""
        shapes = tf.nest.map_structure(lambda part: tuple(part.shape), inputs)
        return keras.KerasTensor(self.compute_output_shape(shapes), dtype=self.last.compute_dtype)

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        return {
            **super().get_config(),
            "units": self.units,
            "activation": "prelu" if self.activation == "prelu" else keras.activations.serialize(self.activation),
            "dropout": self.dropout,
            "output_activation": keras.activations.serialize(self.output_activation),
            "fast": self.fast,
        }


def _joined(parts: list[Any]) -> Any:
    return parts[0] if len(parts) == 1 else keras.ops.concatenate(parts, axis=-1)


def _first_sums(parts: list[tf.Tensor], layer: keras.layers.Dense, note: Note) -> tf.Tensor:
    """Return what `layer`'s activation takes, with the factors told of the gradient at each part."""
    kernels = tf.split(tf.convert_to_tensor(layer.kernel), [part.shape[-1] for part in parts], axis=0)
    sums = [noted_product(part, kernel, note) for part, kernel in zip(parts, kernels, strict=True)]
    return tf.nn.bias_add(tf.add_n(sums), tf.convert_to_tensor(layer.bias))


def _name_of(activation: Any) -> str:
    return str(getattr(activation, "__name__", None) or type(activation).__name__)


def _parts(tensors: list[tf.Tensor]) -> list[Part] | None:
    """Return the tower's input as the recording tape sees it; `None` where the fast path has nothing to offer."""
    tapes = recording_tapes()
    # Tapes in tapes ask for more than two orders.
    if len(tapes) != 1 or any(tensor.shape.rank != 2 for tensor in tensors):
        return None
    if tapes[0].rows is None:
        parts = [Part(tensor, followed=tapes[0].reaches(tensor)) for tensor in tensors]
    else:
        # Sampled rows are those of a shared tensor, not of what was made of it.
        watched = [tapes[0].watched(tensor) for tensor in tensors]
        if any(w is None and tapes[0].reaches(tensor) for w, tensor in zip(watched, tensors, strict=True)):
            return None
        parts = [
            Part(tensor, followed=False) if w is None else Part(w.source, leaf=w.leaf)
            for w, tensor in zip(watched, tensors, strict=True)
        ]
    return parts if any(part.followed for part in parts) else None


def _slope_below_zero(activation: Any) -> float | None:
    """Return the slope of a piecewise-linear activation for negative inputs; `None` for any other activation."""
    if activation is keras.activations.relu:
        return 0.0
    if activation is keras.activations.linear:
        return 1.0
    # TensorFlow's operation holds its slope in float32, whatever it computes in.
    if activation is keras.activations.leaky_relu:
        return float(np.float32(0.2))
    if type(activation) is keras.layers.LeakyReLU:
        return float(np.float32(activation.negative_slope))
    return None


def check_tower(units: Any, dropout: Any) -> None:
    """Raise a ValueError that quotes what is wrong with a tower's widths or dropout.

    Example:

    >>> check_tower((64, 0), 0.0)
    Traceback (most recent call last):
    ...
    ValueError: The widths of a tower must be whole numbers of at least 1, received (64, 0).
    """
    if (
        isinstance(units, str)
        or not isinstance(units, Sequence)
        or any(not isinstance(u, numbers.Integral) or isinstance(u, bool) or u < 1 for u in units)
    ):
        raise ValueError(f"The widths of a tower must be whole numbers of at least 1, received {units!r}.")
    if isinstance(dropout, bool) or not isinstance(dropout, numbers.Real) or not 0 <= float(dropout) < 1:
        raise ValueError(f"`dropout` must be a number in [0, 1), received {dropout!r}.")
