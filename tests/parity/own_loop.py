"""One training step in a loop of one's own: `task_gradients` and an alignment, without `MultiTaskModel`."""

from __future__ import annotations

from collections.abc import Mapping

import keras
import numpy as np
import tensorflow as tf

import gradalign as ga

from .oracle import Batch
from .problems import Case


def towers(case: Case, base: keras.Model, shared: tf.Tensor, ids: tf.Tensor) -> dict[str, tf.Tensor]:
    """The part of `base` above the shared tensor, called layer by layer."""
    predictions = {}
    flat = base.get_layer("flat")(shared)
    for task in case.names:
        x = flat
        if case.private:
            private = tf.reshape(base.get_layer(f"private_{task}")(ids), (ids.shape[0], -1))
            x = tf.concat([flat, private], axis=1)
        for layer in sorted((la for la in base.layers if la.name.startswith(f"tower_{task}_")), key=lambda la: la.name):
            x = layer(x)
        predictions[task] = x
    return predictions


def row_loss(prediction: tf.Tensor, label: tf.Tensor) -> tf.Tensor:
    if prediction.shape[1] == 1:
        return tf.nn.sigmoid_cross_entropy_with_logits(label, prediction[:, 0])
    return tf.nn.sparse_softmax_cross_entropy_with_logits(tf.cast(label, tf.int32), prediction)


class OwnLoop:
    """`step()` returns {"total", "alignment", "loss/<task>", "row/<task>", "J/<variable>"}, `step(apart=True)` also
    the gradient of the alignment loss alone, "A/<variable>".
    """

    def __init__(
        self,
        case: Case,
        base: keras.Model,
        alignment: ga.AdversarialAlignment,
        variables: Mapping[str, keras.Variable],
        batch: Batch,
        loss_weights: Mapping[str, float],
    ) -> None:
        self.case, self.base, self.alignment, self.variables = case, base, alignment, variables
        self.loss_weights, self.ids = loss_weights, tf.constant(batch.ids, tf.int32)
        dtype = base.compute_dtype
        self.masks, self.labels, self.weights = {}, {}, {}
        for task in case.names:
            label = batch.labels[task]
            weight = batch.weights.get(task, np.ones(len(label)))
            mask = ~np.isnan(label) & (weight != 0)
            self.masks[task] = tf.constant(mask)
            self.labels[task] = tf.constant(np.where(mask, label, 0.0), dtype)
            self.weights[task] = tf.constant(np.where(mask, weight, 0.0), dtype)
        self.row_task = None if batch.row_task is None else tf.constant(batch.row_task, tf.int32)

    def step(self, apart: bool = False) -> dict[str, tf.Tensor]:
        watched = [variable.value for variable in self.variables.values()]
        with tf.GradientTape(persistent=apart) as tape:
            shared = self.base.get_layer("shared")(self.base.get_layer("table")(self.ids))

            def row_losses(s):
                predictions = towers(self.case, self.base, s, self.ids)
                return {t: self.weights[t] * row_loss(p, self.labels[t]) for t, p in predictions.items()}

            rows, grads = ga.task_gradients(row_losses, shared)
            sums = {t: (tf.reduce_sum(loss), tf.reduce_sum(self.weights[t])) for t, loss in rows.items()}
            losses = {t: tf.math.divide_no_nan(*of_task) for t, of_task in sums.items()}
            alignment = self.alignment(grads, masks=self.masks, row_task=self.row_task)
            total = alignment + sum(self.loss_weights.get(t, 1.0) * loss for t, loss in losses.items())
        out = {"total": total, "alignment": alignment}
        out |= {f"loss/{task}": loss for task, loss in losses.items()}
        out |= {f"row/{task}": gradient for task, gradient in grads.items()}
        for letter, scalar in {"J": total, "A": alignment}.items() if apart else {"J": total}.items():
            found = tape.gradient(scalar, watched, unconnected_gradients=tf.UnconnectedGradients.ZERO)
            out |= {f"{letter}/{n}": tf.convert_to_tensor(g) for n, g in zip(self.variables, found, strict=True)}
        return out
