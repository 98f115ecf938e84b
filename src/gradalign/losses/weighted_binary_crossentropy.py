"""Binary cross-entropy with a weight for positive rows and, for focal loss, a factor that fades easy rows out.

Lin et al., "Focal Loss for Dense Object Detection", ICCV 2017, equation 4. With label y and the positive's
probability p,

    l = -[w y (1 - p)^gamma log p + (1 - y) p^gamma log(1 - p)]

Deviation from Keras' `BinaryFocalCrossentropy`: the factor is taken for each of the two classes and computed from
logarithms. For labels 0 and 1 that is the same number, but its second derivative exists for saturated predictions too,
where Keras' is NaN for gamma below 2; smoothed labels mix the two terms.
"""

from __future__ import annotations

import numbers
from typing import Any

import keras

from gradalign.errors import UserError

__all__ = ["WeightedBinaryCrossentropy"]


@keras.saving.register_keras_serializable(package="gradalign")
class WeightedBinaryCrossentropy(keras.losses.Loss):  # type: ignore[misc]  # Keras ships no types
    """Binary cross-entropy in which a positive row counts `pos_weight` times; with `gamma`, focal loss.

    With `pos_weight=1` and `gamma=0` it is `keras.losses.BinaryCrossentropy`; from logits and with `gamma=0` it is
    PyTorch's `BCEWithLogitsLoss(pos_weight=...)`. A weight other than 1 shifts the predicted probabilities away from
    the true rates.

    Args:
        pos_weight: weight of positive rows, above 0; negatives / positives balances the two.
        from_logits: whether predictions are logits, else probabilities. Probabilities that come straight from a sigmoid
            are as exact as logits; others are cut off at 1e-7 from 0 and 1, as in Keras.
        label_smoothing: s in [0, 1): labels become `y (1 - s) + s / 2`.
        gamma: 0 or more; rows that are predicted well count less, the less the larger.
        reduction: as in Keras; a task's loss does not use it.
        name: of the loss.
        dtype: that it computes in.

    Raises:
        UserError: for a value out of range.

    Shapes: labels and predictions (B, 1) or (B, K); one value for each row, (B,), the mean over K.

    Example:
        >>> import numpy as np
        >>> loss = WeightedBinaryCrossentropy(pos_weight=5.0, from_logits=True, reduction=None)
        >>> loss(np.array([[1.0], [0.0]]), np.array([[0.0], [0.0]])).numpy().round(4).tolist()
        [3.4657, 0.6931]
    """

    def __init__(
        self,
        pos_weight: float = 1.0,
        *,
        from_logits: bool = False,
        label_smoothing: float = 0.0,
        gamma: float = 0.0,
        reduction: str | None = "sum_over_batch_size",
        name: str = "weighted_binary_crossentropy",
        dtype: Any = None,
    ) -> None:
        super().__init__(name=name, reduction=reduction, dtype=dtype)
        self.pos_weight = _number("pos_weight", pos_weight, "above 0", lambda v: v > 0)
        self.from_logits = bool(from_logits)
        self.label_smoothing = _number("label_smoothing", label_smoothing, "from 0 up to 1", lambda v: 0 <= v < 1)
        self.gamma = _number("gamma", gamma, "of 0 or more", lambda v: v >= 0)

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """Return the loss of each row."""
        y_pred = keras.ops.convert_to_tensor(y_pred)
        y_true = keras.ops.cast(y_true, y_pred.dtype)
        if self.label_smoothing:
            y_true = y_true * (1.0 - self.label_smoothing) + 0.5 * self.label_smoothing
        # -log p and -log(1 - p), from whatever Keras takes, such as the logits behind a sigmoid.
        of_positive = keras.ops.binary_crossentropy(keras.ops.ones_like(y_pred), y_pred, self.from_logits)
        of_negative = keras.ops.binary_crossentropy(keras.ops.zeros_like(y_pred), y_pred, self.from_logits)
        positive, negative = self.pos_weight * y_true * of_positive, (1.0 - y_true) * of_negative
        if self.gamma:
            positive = positive * keras.ops.exp(-self.gamma * of_negative)
            negative = negative * keras.ops.exp(-self.gamma * of_positive)
        return keras.ops.mean(positive + negative, axis=-1)

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        return {
            **super().get_config(),
            "pos_weight": self.pos_weight,
            "from_logits": self.from_logits,
            "label_smoothing": self.label_smoothing,
            "gamma": self.gamma,
        }


def _number(name: str, value: Any, wanted: str, fits: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not fits(value) or value == float("inf"):
        raise UserError(f"{name} is a number {wanted}; received {value!r}.")
    return float(value)
