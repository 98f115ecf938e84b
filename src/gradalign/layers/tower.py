"""The tower of one task: dense layers that end in one probability or one logit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras

Activation = str | Callable[[Any], Any]


def tower(
    units: Sequence[int] = (64, 32),
    activation: Activation = "gelu",
    dropout: float = 0.0,
    name: str = "tower",
    *,
    output_name: str | None = None,
    output_activation: Activation | None = "sigmoid",
) -> list[keras.layers.Layer]:
    """Return the layers of one tower, to be applied in order.

    The hidden layers are named `<name>_<i>` (and `<name>_<i>_dropout`), the last one `output_name`.

    The default activation is GELU because the alignment reaches the shared representation through the second
    derivative of the tower: with ReLU the gradient's direction is piecewise constant in the tower's input, and under
    `normalize="l2"` nothing but the tower is moved.

    Args:
        units: width of each hidden layer; may be empty.
        activation: of the hidden layers.
        dropout: share of a hidden layer's units dropped in training, in [0, 1).
        name: prefix of the hidden layers' names.
        output_name: name of the last layer, `<name>_output` if None.
        output_activation: "sigmoid" for a probability, None for a logit. Under mixed precision the last layer computes
            in float32.

    Returns:
        Keras layers that take (B, any) to (B, 1).

    Raises:
        ValueError: a width that is not a positive whole number, or a dropout outside [0, 1).

    Example:

    >>> [layer.name for layer in tower((64, 32), name="tower_click", output_name="click")]
    ['tower_click_0', 'tower_click_1', 'click']
    """
    check_tower(units, dropout)
    layers: list[keras.layers.Layer] = []
    for i, width in enumerate(units):
        layers.append(keras.layers.Dense(width, activation=activation, name=f"{name}_{i}"))
        if dropout:
            layers.append(keras.layers.Dropout(dropout, name=f"{name}_{i}_dropout"))
    half = keras.config.dtype_policy().compute_dtype in ("float16", "bfloat16")
    layers.append(
        keras.layers.Dense(
            1,
            activation=output_activation,
            name=output_name or f"{name}_output",
            dtype="float32" if half else None,
        )
    )
    return layers


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
        or any(not isinstance(u, int) or isinstance(u, bool) or u < 1 for u in units)
    ):
        raise ValueError(f"The widths of a tower must be whole numbers of at least 1, received {units!r}.")
    if isinstance(dropout, bool) or not isinstance(dropout, (int, float)) or not 0 <= dropout < 1:
        raise ValueError(f"`dropout` must be a number in [0, 1), received {dropout!r}.")
