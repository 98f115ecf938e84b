"""The layers of Keras that a tower, encoder or expert may use: what `docs/second-order-support.md` is measured on.

Each case is a function of a symbolic input, with the shape of one row; shapes are tiny, since each is differentiated
twice in six modes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf
from keras import layers

from gradalign.layers import normalization, recurrent

__all__ = ["CASES", "NEVER_REFUSED", "Case"]


@dataclass(frozen=True)
class Case:
    """One row of the page.

    Attributes:
        group: heading that the row stands under.
        name: what the row says.
        build: takes a symbolic input (B, *shape), returns the output.
        shape: shape of one row of the input.
        ids: vocabulary size where the input is ids; the layer then makes the shared tensor, and the derivatives are
            those by its table.
        weights: whether derivatives by the layer's weights are compared too; not where a call overwrites them.
        cudnn: refused by its configuration, on any device.
        alone: measured by itself, since it raises in some mode and would take its group with it.
    """

    group: str
    name: str
    build: Callable[[Any], Any]
    shape: tuple[int, ...] = (4,)
    ids: int = 0
    weights: bool = True
    alone: bool = False
    cudnn: bool = False


ROW, STEPS, IMAGE = (4,), (3, 4), (4, 4, 2)
# What a case's group or name holds where no mode may be refused.
NEVER_REFUSED = ("Dense", "Embedding", "Dropout", "Convolution", "Attention", "GradAlign", "use_cudnn=False")

_ACTIVATIONS = [
    "celu",
    "elu",
    "exponential",
    "gelu",
    "glu",
    "hard_shrink",
    "hard_sigmoid",
    "hard_silu",
    "hard_tanh",
    "leaky_relu",
    "linear",
    "log_sigmoid",
    "log_softmax",
    "mish",
    "relu",
    "relu6",
    "selu",
    "sigmoid",
    "silu",
    "soft_shrink",
    "softmax",
    "softplus",
    "softsign",
    "sparse_plus",
    "sparsemax",
    "squareplus",
    "tanh",
    "tanh_shrink",
]


def _new(kind: Callable[..., Any], *args: Any, **kwargs: Any) -> Callable[[Any], Any]:
    """Return a function that makes the layer when it is called, under the dtype policy of that moment."""

    def build(x: Any) -> Any:
        return kind(*args, **kwargs)(x)

    return build


def _shift(x: Any) -> Any:
    return tf.sin(x) * x


def _spectral(x: Any) -> Any:
    return layers.SpectralNormalization(layers.Dense(3))(x)


def _both_ways(x: Any) -> Any:
    return layers.Bidirectional(layers.SimpleRNN(2))(x)


def _each_step(x: Any) -> Any:
    return layers.TimeDistributed(layers.Dense(2))(x)


def _pooled(ids: Any) -> Any:
    return layers.GlobalAveragePooling1D()(layers.Embedding(5, 3, mask_zero=True)(ids))


def _masked(x: Any) -> Any:
    """Give `x` a mask that leaves the last step out."""
    last = layers.Lambda(lambda x: x * tf.constant([[1.0], [1.0], [0.0]], x.dtype), output_shape=STEPS)
    return layers.Masking()(last(x))


def _masked_batch(x: Any) -> Any:
    return normalization.BatchNormalization()(x, mask=keras.ops.convert_to_tensor([True, True, False]))


def _table() -> list[Case]:
    dense = layers.Dense
    cases = [
        Case("Dense", "Dense", _new(dense, 3, "tanh")),
        Case("Dense", "EinsumDense", _new(layers.EinsumDense, "abc,cd->abd", (None, 2), bias_axes="d"), STEPS),
        Case("Dense", "TimeDistributed(Dense)", _each_step, STEPS),
        Case("Embedding", "Embedding", lambda ids: layers.Flatten()(layers.Embedding(5, 3)(ids)), (3,), 5),
        Case("Embedding", "Embedding(mask_zero=True), GlobalAveragePooling1D", _pooled, (3,), 5),
        Case("Dropout", "Dropout", _new(layers.Dropout, 0.4, seed=1)),
        Case("Dropout", "AlphaDropout", _new(layers.AlphaDropout, 0.4, seed=1)),
        Case("Dropout", "GaussianDropout", _new(layers.GaussianDropout, 0.4, seed=1)),
        Case("Dropout", "GaussianNoise", _new(layers.GaussianNoise, 0.4, seed=1)),
        Case("Dropout", "SpatialDropout1D", _new(layers.SpatialDropout1D, 0.4, seed=1), STEPS),
        Case("Dropout", "SpatialDropout2D", _new(layers.SpatialDropout2D, 0.4, seed=1), IMAGE),
        Case("Convolution", "Conv1D", _new(layers.Conv1D, 2, 2, activation="tanh"), STEPS),
        Case("Convolution", "Conv2D", _new(layers.Conv2D, 2, 2, activation="tanh"), IMAGE),
        Case("Convolution", "Conv2D(strides=2)", _new(layers.Conv2D, 2, 2, 2, "same"), IMAGE),
        Case("Convolution", "Conv1DTranspose", _new(layers.Conv1DTranspose, 2, 2), STEPS),
        Case("Convolution", "Conv2DTranspose", _new(layers.Conv2DTranspose, 2, 2), IMAGE),
        Case("Convolution", "DepthwiseConv1D", _new(layers.DepthwiseConv1D, 2), STEPS),
        Case("Convolution", "DepthwiseConv2D", _new(layers.DepthwiseConv2D, 2), IMAGE),
        Case("Convolution", "SeparableConv1D", _new(layers.SeparableConv1D, 2, 2), STEPS),
        Case("Convolution", "SeparableConv2D", _new(layers.SeparableConv2D, 2, 2), IMAGE),
        Case("Attention", "MultiHeadAttention", lambda x: layers.MultiHeadAttention(2, 2)(x, x), STEPS),
        Case(
            "Attention",
            "MultiHeadAttention(use_causal_mask=True)",
            lambda x: layers.MultiHeadAttention(2, 2)(x, x, use_causal_mask=True),
            STEPS,
        ),
        Case("Attention", "GroupQueryAttention", lambda x: layers.GroupQueryAttention(2, 2, 1)(x, x), STEPS),
        Case("Attention", "Attention", lambda x: layers.Attention(use_scale=True)([x, x]), STEPS),
        Case("Attention", "AdditiveAttention", lambda x: layers.AdditiveAttention()([x, x]), STEPS),
        Case(
            "Normalisation: GradAlign",
            "gradalign.layers.LayerNormalization",
            _new(normalization.LayerNormalization),
        ),
        Case(
            "Normalisation: GradAlign",
            "gradalign.layers.BatchNormalization",
            _new(normalization.BatchNormalization),
        ),
        Case(
            "Normalisation: GradAlign",
            "gradalign.layers.BatchNormalization, rank 4",
            _new(normalization.BatchNormalization),
            IMAGE,
        ),
        Case("Normalisation: GradAlign", "gradalign.layers.BatchNormalization, with a mask", _masked_batch),
        Case(
            "Normalisation: GradAlign",
            "gradalign.layers.GroupNormalization",
            _new(normalization.GroupNormalization, 2),
        ),
        Case("Normalisation: Keras", "RMSNormalization", _new(layers.RMSNormalization)),
        Case("Normalisation: Keras", "UnitNormalization", _new(layers.UnitNormalization)),
        Case(
            "Normalisation: Keras",
            "SpectralNormalization(Dense)",
            _spectral,
            weights=False,
        ),
        Case("Normalisation: Keras", "LayerNormalization", _new(layers.LayerNormalization)),
        Case("Normalisation: Keras", "BatchNormalization", _new(layers.BatchNormalization)),
        Case("Normalisation: Keras", "BatchNormalization, rank 4", _new(layers.BatchNormalization), IMAGE),
        Case("Normalisation: Keras", "GroupNormalization", _new(layers.GroupNormalization, 2)),
        Case("Recurrent", "SimpleRNN", _new(layers.SimpleRNN, 2), STEPS),
        Case("Recurrent", "LSTM(use_cudnn=False)", _new(layers.LSTM, 2, use_cudnn=False), STEPS),
        Case("Recurrent", "GRU(use_cudnn=False)", _new(layers.GRU, 2, use_cudnn=False), STEPS),
        Case("Recurrent", "gradalign.layers.LSTM, with a mask", lambda x: recurrent.LSTM(2)(_masked(x)), STEPS),
        Case("Recurrent", "gradalign.layers.GRU", _new(recurrent.GRU, 2), STEPS),
        Case("Recurrent", "Bidirectional(SimpleRNN)", _both_ways, STEPS),
        Case("Recurrent", "LSTM", _new(layers.LSTM, 2), STEPS, cudnn=True),
        Case("Recurrent", "GRU", _new(layers.GRU, 2), STEPS, cudnn=True),
        Case("Pooling", "AveragePooling1D", _new(layers.AveragePooling1D, 2), STEPS),
        Case("Pooling", "AveragePooling2D", _new(layers.AveragePooling2D, 2), IMAGE),
        Case("Pooling", "MaxPooling1D", _new(layers.MaxPooling1D, 2), STEPS, alone=True),
        Case("Pooling", "MaxPooling2D", _new(layers.MaxPooling2D, 2), IMAGE, alone=True),
        Case("Pooling", "GlobalAveragePooling1D", _new(layers.GlobalAveragePooling1D), STEPS),
        Case("Pooling", "GlobalAveragePooling2D", _new(layers.GlobalAveragePooling2D), IMAGE),
        Case("Pooling", "GlobalMaxPooling1D", _new(layers.GlobalMaxPooling1D), STEPS),
        Case("Pooling", "GlobalMaxPooling2D", _new(layers.GlobalMaxPooling2D), IMAGE),
        Case("Merging", "Add", lambda x: layers.Add()([x, dense(4, "tanh")(x)])),
        Case("Merging", "Subtract", lambda x: layers.Subtract()([x, dense(4, "tanh")(x)])),
        Case("Merging", "Multiply", lambda x: layers.Multiply()([x, dense(4, "tanh")(x)])),
        Case("Merging", "Average", lambda x: layers.Average()([x, dense(4, "tanh")(x)])),
        Case("Merging", "Maximum", lambda x: layers.Maximum()([x, dense(4, "tanh")(x)])),
        Case("Merging", "Minimum", lambda x: layers.Minimum()([x, dense(4, "tanh")(x)])),
        Case("Merging", "Concatenate", lambda x: layers.Concatenate()([x, dense(4, "tanh")(x)])),
        Case("Merging", "Dot", lambda x: layers.Dot(axes=1)([x, dense(4, "tanh")(x)])),
        Case("Others", "Lambda", _new(layers.Lambda, _shift, output_shape=ROW)),
        Case("Others", "ActivityRegularization", _new(layers.ActivityRegularization, 0.1)),
        Case("Others", "Flatten, Reshape, Permute", lambda x: layers.Permute((2, 1))(layers.Reshape((2, 2))(x))),
        Case("Others", "RepeatVector, Cropping1D", lambda x: layers.Cropping1D(1)(layers.RepeatVector(3)(x))),
        Case(
            "Others", "UpSampling1D, ZeroPadding1D", lambda x: layers.ZeroPadding1D(1)(layers.UpSampling1D()(x)), STEPS
        ),
        Case("Others", "UpSampling2D", _new(layers.UpSampling2D), IMAGE),
        Case("Activations", "PReLU", _new(layers.PReLU, "ones")),
    ]
    cases += [
        Case("Activations", f'"{name}"', _new(layers.Activation, name), alone=name == "softsign")
        for name in _ACTIVATIONS
    ]
    return sorted(cases, key=lambda case: _GROUPS.index(case.group))


_GROUPS = [
    "Dense",
    "Activations",
    "Embedding",
    "Dropout",
    "Normalisation: GradAlign",
    "Normalisation: Keras",
    "Convolution",
    "Pooling",
    "Attention",
    "Recurrent",
    "Merging",
    "Others",
]
CASES = _table()
