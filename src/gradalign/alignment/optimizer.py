"""The discriminator's own optimizer: by default the model's kind at ten times its learning rate, as in ASTMT."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras

__all__ = ["RATE_FACTOR", "ScaledSchedule", "discriminator_optimizer_like"]

RATE_FACTOR = 10.0


@keras.saving.register_keras_serializable(package="gradalign")
class ScaledSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """A learning-rate schedule times a factor.

    Example:
        >>> float(ScaledSchedule(keras.optimizers.schedules.ExponentialDecay(0.5, 1, 0.5), 10.0)(1))
        2.5
    """

    def __init__(self, schedule: Any, factor: float) -> None:
        self.schedule = schedule
        self.factor = factor

    def __call__(self, step: Any) -> Any:
        """Return the scaled learning rate at `step`."""
        return self.schedule(step) * self.factor

    def get_config(self) -> dict[str, Any]:
        """Return the inner schedule, serialised, and the factor."""
        return {"schedule": keras.saving.serialize_keras_object(self.schedule), "factor": self.factor}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> ScaledSchedule:
        """Make a schedule of what `get_config` returned."""
        return cls(keras.saving.deserialize_keras_object(config["schedule"]), config["factor"])


def discriminator_optimizer_like(optimizer: Any) -> Any:
    """Return a new optimizer of the kind and settings of `optimizer`, with ten times its learning rate.

    Example:
        >>> made = discriminator_optimizer_like(keras.optimizers.SGD(0.5, momentum=0.9))
        >>> type(made).__name__, float(made.learning_rate), made.momentum
        ('SGD', 5.0, 0.9)
    """
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        # The discriminator runs in float32, its gradients are unscaled before they are applied.
        optimizer = optimizer.inner_optimizer
    # Of an optimizer that keeps tables apart, the one for everything else: a discriminator has no tables.
    optimizer = getattr(optimizer, "rest", optimizer)
    config = optimizer.get_config()
    rate = config["learning_rate"]
    if isinstance(rate, Mapping):
        config["learning_rate"] = ScaledSchedule(keras.saving.deserialize_keras_object(rate), RATE_FACTOR)
    else:
        config["learning_rate"] = float(rate) * RATE_FACTOR
    if config.get("loss_scale_factor") is not None:
        config["loss_scale_factor"] = None
    config["name"] = "discriminator_optimizer"
    return type(optimizer).from_config(config)
