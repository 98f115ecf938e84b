"""Discriminators: which task does this gradient come from?"""

from __future__ import annotations

from typing import Any

import keras

from gradalign.alignment.spectral import SpectralDense
from gradalign.errors import UserError
from gradalign.gradients.recording import layer_paths

__all__ = ["in_full_precision", "mlp_discriminator"]

HIDDEN = (64, 64)


def mlp_discriminator(
    width: int,
    tasks: int,
    *,
    hidden: tuple[int, ...] = HIDDEN,
    dtype: str = "float32",
    spectral_norm: bool = False,
) -> keras.Model:
    """Return a multilayer perceptron, (rows, width) gradients to (rows, tasks) logits.

    Hyperbolic tangent between dense layers, and no batch normalisation, which would mix the rows of all tasks. After
    ASTMT (Maninis et al., CVPR 2019), whose discriminator has two ReLU layers of the width of its input. Ours has two
    hidden layers of 64, so that its cost does not grow with the square of the width, and bounded units: a model can
    make the cross-entropy of a ReLU discriminator as large as it likes by making a few rows long, and with
    `normalize="batch"` it does (seen on Census-Income: the alignment loss rose from 0.5 to 4.7 within an epoch and the
    AUC of income fell by 0.01).

    Args:
        width: entries of a gradient row.
        tasks: number of tasks, the width of the logits.
        hidden: widths of the hidden layers.
        dtype: dtype of weights and computation, `"float32"` or `"float64"`.
        spectral_norm: divide each kernel by its largest singular value; with tanh the whole is then 1-Lipschitz.

    Example:
        >>> mlp_discriminator(8, 3).compute_output_shape((None, 8))
        (None, 3)
    """
    dense = SpectralDense if spectral_norm else keras.layers.Dense
    discriminator = keras.Sequential(
        [
            keras.Input((width,), dtype=dtype),
            *(dense(units, activation="tanh", dtype=dtype) for units in hidden),
            dense(tasks, dtype=dtype, name="logits"),
        ],
        name="discriminator",
    )
    # The layers' dtype alone would not do: under a mixed policy the model itself would round its input to float16.
    discriminator.dtype_policy = keras.DTypePolicy(dtype)
    return discriminator


def in_full_precision(discriminator: Any) -> Any:
    """Return `discriminator` with each of its layers computing in the dtype of its weights, float32 or float64.

    A discriminator that was made under a mixed policy would round gradients, which are small numbers, to half
    precision.

    Raises:
        UserError: for a layer whose weights are of half precision themselves.

    Example:
        >>> dense = in_full_precision(keras.layers.Dense(2, dtype="mixed_float16"))
        >>> dense.compute_dtype
        'float32'
    """
    for path, layer in {discriminator.name: discriminator, **layer_paths(discriminator)}.items():
        if not isinstance(layer, keras.Layer) or layer.compute_dtype not in ("float16", "bfloat16"):
            continue
        if layer.variable_dtype == layer.compute_dtype:
            raise UserError(
                f'The discriminator\'s layer "{path}" has weights in {layer.variable_dtype}, too coarse for gradients; '
                'make it with dtype="float32".'
            )
        layer.dtype_policy = keras.DTypePolicy(layer.variable_dtype)
    return discriminator
