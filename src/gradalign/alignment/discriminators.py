"""Discriminators: which task does this gradient come from?"""

from __future__ import annotations

import keras

__all__ = ["mlp_discriminator"]

HIDDEN = (64, 64)


def mlp_discriminator(
    width: int, tasks: int, *, hidden: tuple[int, ...] = HIDDEN, dtype: str = "float32"
) -> keras.Model:
    """Return a multilayer perceptron, (rows, width) gradients to (rows, tasks) logits.

    ReLU between dense layers and no batch normalisation, which would mix the rows of all tasks. After ASTMT (Maninis
    et al., CVPR 2019), whose discriminator has two layers of the width of its input; ours has two hidden layers of 64,
    so that its cost does not grow with the square of the width.

    Args:
        width: entries of a gradient row.
        tasks: number of tasks, the width of the logits.
        hidden: widths of the hidden layers.
        dtype: dtype of weights and computation, `"float32"` or `"float64"`.

    Example:
        >>> mlp_discriminator(8, 3).compute_output_shape((None, 8))
        (None, 3)
    """
    return keras.Sequential(
        [
            keras.Input((width,), dtype=dtype),
            *(keras.layers.Dense(units, activation="relu", dtype=dtype) for units in hidden),
            keras.layers.Dense(tasks, dtype=dtype, name="logits"),
        ],
        name="discriminator",
    )
