"""The recipe that circulates, made to work: persistent tapes, and one gradient call for each part of the update.

As it is passed on, it raises or trains nothing (one tape gives one gradient; an outer tape that watches no variable has
no gradient for any). Mended with as few changes as possible, and with reversal and normalisation, it has our update.
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from gradalign.benchmarks.graph_flops import graph_flops
from gradalign.benchmarks.keras_rows import named_weights
from gradalign.benchmarks.problem import STRENGTH, Problem, optimizers
from gradalign.benchmarks.row import Row

__all__ = ["recipe"]


def recipe(problem: Problem, *, graph: bool) -> Row:
    """Return the row of the recipe, run eagerly or as a graph."""
    base, discriminator = problem.base(), problem.discriminator()
    of_base, of_discriminator = optimizers(problem)
    of_base.build(base.trainable_variables)
    of_discriminator.build(discriminator.trainable_variables)
    shared = base.get_layer(problem.shared).output
    encoder, towers = keras.Model(base.inputs, shared), keras.Model([shared, *base.inputs], base.outputs)
    names = [symbol.name for symbol in base.inputs]
    cross_entropy = keras.losses.BinaryCrossentropy()
    name_the_task = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def step(batch: Any) -> Any:
        x, y = batch
        inputs = [x[name] for name in names]
        with tf.GradientTape(persistent=True) as outer:
            share = encoder(inputs, training=True)
            with tf.GradientTape(persistent=True) as inner:
                inner.watch(share)
                predictions = towers([share, *inputs], training=True)
                losses = [cross_entropy(y[task], p) for task, p in zip(problem.tasks, predictions, strict=True)]
            gradients = [inner.gradient(loss, share) for loss in losses]
            rows = tf.concat([_normalised(g) for g in gradients], axis=0)
            own_task = tf.repeat(tf.range(len(gradients)), tf.shape(share)[0])
            discriminator_loss = name_the_task(own_task, discriminator(rows, training=True))
            total = tf.add_n(losses)
        towards_tasks = outer.gradient(total, base.trainable_variables)
        towards_adversary = outer.gradient(discriminator_loss, base.trainable_variables)
        own = outer.gradient(discriminator_loss, discriminator.trainable_variables)
        reversed_ = [_minus(a, b) for a, b in zip(towards_tasks, towards_adversary, strict=True)]
        of_base.apply_gradients(list(zip(reversed_, base.trainable_variables, strict=True)))
        of_discriminator.apply_gradients(list(zip(own, discriminator.trainable_variables, strict=True)))
        return total

    batches = iter(problem.dataset())
    run = tf.function(step, autograph=False) if graph else step
    return Row(
        step=lambda: run(next(batches)),
        flops=lambda: graph_flops(step, problem.dataset().element_spec),
        weights=lambda: named_weights(base, discriminator),
    )


def _normalised(g: tf.Tensor) -> tf.Tensor:
    return g * tf.math.rsqrt(tf.reduce_mean(tf.reduce_sum(tf.square(g), axis=1)))


def _minus(towards_tasks: Any, towards_adversary: Any) -> Any:
    """Return the descent on the tasks less the reversed part, of tables as rows."""
    if towards_adversary is None:
        return towards_tasks
    if not isinstance(towards_tasks, tf.IndexedSlices):
        return towards_tasks - STRENGTH * towards_adversary
    return tf.IndexedSlices(
        tf.concat([towards_tasks.values, -STRENGTH * towards_adversary.values], axis=0),
        tf.concat([towards_tasks.indices, towards_adversary.indices], axis=0),
        towards_tasks.dense_shape,
    )
