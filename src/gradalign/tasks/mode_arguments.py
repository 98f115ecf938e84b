"""What `compile` is asked for and a mode of running cannot give: refused, before Keras fails or goes on without."""

from __future__ import annotations

from typing import Any

import keras

from gradalign.errors import UserError
from gradalign.gradients.recording import layer_paths
from gradalign.gradients.updates import accumulates

__all__ = ["check_compiled", "check_optimizers", "layers_without_xla"]


def check_optimizers(optimizer: Any, discriminator_optimizer: Any, replicas: int) -> None:
    """Refuse optimizers that would train on wrong gradients.

    Args:
        optimizer: the model's, or `None`.
        discriminator_optimizer: the one given for the alignment's own weights, or `None`.
        replicas: number of replicas that train in step.

    Raises:
        UserError: for gradient accumulation under several replicas, which Keras gets wrong, and for a discriminator's
            optimizer that expects scaled gradients.
    """
    given = {"optimizer": optimizer, "discriminator_optimizer": discriminator_optimizer}
    for argument, each in given.items():
        if each is not None and replicas > 1 and accumulates(each):
            raise UserError(
                f"The {argument} accumulates gradients over several steps (gradient_accumulation_steps), which Keras "
                f"cannot do on {replicas} replicas: take larger batches there, or accumulate on one device."
            )
    if isinstance(discriminator_optimizer, keras.optimizers.LossScaleOptimizer) or getattr(
        discriminator_optimizer, "loss_scale_factor", None
    ):
        raise UserError(
            "discriminator_optimizer scales the loss, but the discriminator's gradients come to it unscaled, in "
            "float32: give the optimizer without a loss scale."
        )


def layers_without_xla(model: keras.Model) -> list[str]:
    """Return path and class of the layers inside `model` that XLA cannot compile, such as those that look up text.

    Example:
        >>> text = keras.Input((), dtype="string")
        >>> layers_without_xla(keras.Model(text, keras.layers.StringLookup(vocabulary=["a"], name="words")(text)))
        ['"words" (StringLookup)']
    """
    return [
        f'"{path}" ({type(layer).__name__})'
        for path, layer in layer_paths(model).items()
        if not getattr(layer, "supports_jit", True)
    ]


def check_compiled(jit_compile: Any, run_eagerly: bool, model: keras.Model) -> None:
    """Refuse `jit_compile=True` for a model that XLA does not compile: Keras would go on without, after a warning.

    Args:
        jit_compile: what `compile` was given; `"auto"` leaves XLA out where it does not fit.
        run_eagerly: what `compile` was given; with it Keras leaves XLA out and says so.
        model: the model.

    Raises:
        UserError: names the layers in the way.
    """
    layers = layers_without_xla(model) if jit_compile is True and not run_eagerly else []
    if layers:
        raise UserError(
            f"jit_compile=True cannot be had, since XLA does not compile {', '.join(layers)}: "
            "run such layers in the data pipeline, or leave jit_compile out."
        )
