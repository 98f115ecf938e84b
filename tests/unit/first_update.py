"""The first update of an aligned model, computed by hand with `ga.task_gradients` from (B,) losses."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

import gradalign as ga

RATE, ADVERSARY_RATE, WEIGHT = 0.25, 0.5, 0.7


def compiled(model, **arguments):
    arguments = {"loss": "binary_crossentropy", "run_eagerly": True, **arguments}
    if model.alignment is not None:
        arguments.setdefault("discriminator_optimizer", keras.optimizers.SGD(ADVERSARY_RATE))
    model.compile(keras.optimizers.SGD(RATE), **arguments)
    return model


def fit_once(model, x, y, **arguments):
    return model.fit(tf.data.Dataset.from_tensors((x, y)), verbose=0, **arguments)


def update_by_hand(model, encode, heads, x, y, row_task=None):
    """The weights of base and discriminator after one step: encode(x) -> shared, heads(shared) -> predictions."""
    masks = {task: ~np.isnan(np.ravel(label)) for task, label in y.items()}

    def row_losses(shared):
        losses = {}
        for task, prediction in heads(shared).items():
            p, label = prediction[:, 0], np.nan_to_num(np.ravel(y[task]))
            losses[task] = tf.where(masks[task], -(label * tf.math.log(p) + (1 - label) * tf.math.log(1 - p)), 0.0)
        return losses

    with tf.GradientTape() as tape:
        losses, gradients = ga.task_gradients(row_losses, encode(x))
        total = sum(tf.reduce_sum(loss) / np.sum(masks[task]) for task, loss in losses.items())
        arguments = () if row_task is None else (row_task,)
        total += model.alignment({task: gradients[task] for task in model.tasks}, masks, *arguments)
    variables = model.base.trainable_variables, model.alignment.trainable_variables
    found = tape.gradient(total, [*variables[0], *variables[1]])
    rates = [RATE] * len(variables[0]) + [ADVERSARY_RATE] * len(variables[1])
    return [
        v.numpy() - rate * tf.convert_to_tensor(g)
        for v, g, rate in zip([*variables[0], *variables[1]], found, rates, strict=True)
    ]


def assert_first_update(model, encode, heads, x, y, fed=None, row_task=None):
    expected = update_by_hand(model, encode, heads, x, y, row_task)
    fit_once(model, x if fed is None else fed, y)
    variables = [*model.base.trainable_variables, *model.alignment.trainable_variables]
    for variable, value in zip(variables, expected, strict=True):
        np.testing.assert_allclose(variable.value, value, rtol=1e-5, atol=1e-6, err_msg=variable.path)
    # The alignment takes part: without it the encoder moves otherwise.
    assert model.alignment.trainable_variables


def towers_of(base, tasks):
    layers = [(task, base.get_layer(f"tower_{task}"), base.get_layer(task)) for task in tasks]
    return lambda s: {task: head(tower(s)) for task, tower, head in layers}
