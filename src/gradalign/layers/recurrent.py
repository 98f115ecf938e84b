"""LSTM and GRU that never take the cuDNN kernels of a GPU, which have no second derivative.

`keras.layers.LSTM(use_cudnn=False)` avoids them too, but Keras does not save that argument: a loaded model is back at
`"auto"`. Decided from the layer's configuration, so that a machine without GPU says the same.
"""

from __future__ import annotations

from typing import Any

import keras

from gradalign.errors import UserError

__all__ = ["GRU", "LSTM", "admits_cudnn"]


class _WithoutCuDNN:
    """`use_cudnn` is always False; Keras' constructor sets its default, `"auto"`, which may be read so."""

    name: str

    @property
    def use_cudnn(self) -> bool:
        """Always False."""
        return False

    @use_cudnn.setter
    def use_cudnn(self, value: Any) -> None:
        if value not in ("auto", False):
            raise UserError(
                f'{type(self).__name__} "{self.name}" was given use_cudnn={value!r}, but it is there to be '
                "differentiated twice, which cuDNN cannot; leave the argument out, or use the layer of Keras."
            )


@keras.saving.register_keras_serializable(package="gradalign")
class LSTM(_WithoutCuDNN, keras.layers.LSTM):
    """`keras.layers.LSTM` whose gradient can be differentiated again on a GPU too; same arguments and weights.

    Takes (B, steps, features) and returns (B, units), or (B, steps, units) with `return_sequences=True`.

    Raises:
        UserError: for `use_cudnn=True`.

    Example:
        >>> layer = LSTM(3)
        >>> layer.use_cudnn, LSTM.from_config(layer.get_config()).use_cudnn
        (False, False)
    """


@keras.saving.register_keras_serializable(package="gradalign")
class GRU(_WithoutCuDNN, keras.layers.GRU):
    """`keras.layers.GRU` whose gradient can be differentiated again on a GPU too; same arguments and weights.

    Takes (B, steps, features) and returns (B, units), or (B, steps, units) with `return_sequences=True`.

    Raises:
        UserError: for `use_cudnn=True`.

    Example:
        >>> GRU(3, return_sequences=True).compute_output_shape((None, 5, 2))
        (None, 5, 3)
    """


def admits_cudnn(layer: Any) -> bool:
    """Tell whether `layer` is an LSTM or GRU that Keras may run with cuDNN on a GPU, on whatever device it is now.

    Example:
        >>> admits_cudnn(keras.layers.LSTM(3)), admits_cudnn(keras.layers.LSTM(3, use_cudnn=False))
        (True, False)
        >>> admits_cudnn(keras.layers.GRU(3, reset_after=False)), admits_cudnn(keras.layers.LSTM(3, "relu"))
        (False, False)
    """
    if not isinstance(layer, (keras.layers.LSTM, keras.layers.GRU)) or layer.use_cudnn not in ("auto", True):
        return False
    return bool(
        layer.activation is keras.activations.tanh
        and layer.recurrent_activation is keras.activations.sigmoid
        and layer.use_bias
        and not layer.unroll
        and not layer.recurrent_dropout
        and (not isinstance(layer, keras.layers.GRU) or layer.reset_after)
    )
