"""The logit of a product of probabilities, such as click × conversion, without ever forming the probabilities.

Ma et al., "Entire Space Multi-Task Model", SIGIR 2018, equation 2: p(click and buy) = p(click) × p(buy | click), so
that the conversion is learnt from all rows, not from the clicked ones alone. With logits a and b,

    1 / (σ(a) σ(b)) - 1 = e^-a + e^-b + e^-(a+b)    hence    logit(σ(a) σ(b)) = -logsumexp(-a, -b, -a-b)

Deviation from the official code, which multiplies the two probabilities: there a positive whose product is under the
1e-7 at which Keras cuts probabilities off gets no gradient at all.
"""

from __future__ import annotations

from typing import Any

import keras

from gradalign.errors import UserError

__all__ = ["ChainedLogit"]


@keras.saving.register_keras_serializable(package="gradalign")
class ChainedLogit(keras.layers.Layer):
    """Logits of two or more probabilities to the logit of their product.

    Right at first and second order wherever the logits are finite: a positive row at logits of -12 gets a gradient of
    -1 at each of them. Computes in float32 at least, under mixed precision too.

    Args:
        name: of the layer.

    Raises:
        UserError: when called on anything but a list of two or more tensors.

    Shapes: a list of logits, each (B, 1) or any shape that broadcasts with the others', to that shape.

    Example:
        ESMM's click and click-and-buy heads, whose second factor is the conversion of a click. Both are labelled on all
        rows.

        >>> x = keras.Input((4,), name="x")
        >>> s = keras.layers.Dense(8, "gelu", name="encoder")(x)
        >>> click = keras.layers.Dense(1, name="click")(s)
        >>> conversion = keras.layers.Dense(1, name="conversion")(s)
        >>> base = keras.Model(x, {"click": click, "buy": ChainedLogit(name="buy")([click, conversion])})
        >>> from gradalign import AdversarialAlignment, MultiTaskModel
        >>> model = MultiTaskModel(base, "encoder", AdversarialAlignment(0.1))
        >>> model.compile("adam", loss=keras.losses.BinaryCrossentropy(from_logits=True))

        >>> even = keras.ops.zeros((1, 1))
        >>> keras.ops.sigmoid(ChainedLogit()([even, even])).numpy().tolist()
        [[0.25]]
    """

    def __init__(self, name: str | None = None, **kwargs: Any) -> None:
        # Half floats hold neither rare rates nor what lies between two of them.
        super().__init__(name=name, autocast=False, **kwargs)

    def call(self, inputs: Any) -> Any:
        """Return the logit of the product of the inputs' probabilities."""
        if not isinstance(inputs, (list, tuple)) or len(inputs) < 2:
            count = len(inputs) if isinstance(inputs, (list, tuple)) else 1
            raise UserError(f'Layer "{self.name}" takes a list of two or more logits; received {count}.')
        dtype = keras.backend.result_type("float32", *(keras.backend.standardize_dtype(x.dtype) for x in inputs))
        chained, *others = [keras.ops.cast(x, dtype) for x in inputs]
        for factor in others:
            # Each of the full shape, where the two broadcast.
            a = -(chained + keras.ops.zeros_like(factor))
            b = -(factor + keras.ops.zeros_like(chained))
            chained = -keras.ops.logsumexp(keras.ops.stack([a, b, a + b], axis=-1), axis=-1)
        return chained
