"""Optimizers' own modes: accumulation, clipping, averages and overflow, on one device and on two replicas."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import gradalign as ga

from .small_models import TASKS, WIDTH, aligned, all_state, assert_same, data, functional, restart

pytestmark = pytest.mark.usefixtures("no_first_batch_check")

SGD, LossScale = keras.optimizers.SGD, keras.optimizers.LossScaleOptimizer
ROWS, IDS = 7, 4


def with_table():
    """A base whose batches look up some rows of a table many times."""
    ids, x = keras.Input((), name="ids", dtype="int32"), keras.Input((WIDTH,), name="x")
    parts = [keras.layers.Embedding(ROWS, 3, name="table")(ids), keras.layers.Dense(2, "tanh", name="dense")(x)]
    s = keras.layers.Concatenate(name="encoder")(parts)
    heads = {t: keras.layers.Dense(1, "sigmoid", name=t, dtype="float32") for t in TASKS}
    return keras.Model({"ids": ids, "x": x}, {t: head(s) for t, head in heads.items()}, name="base")


def rows(count, **settings):
    x, y = data(count, **settings)
    x["ids"] = np.random.default_rng(0).integers(0, IDS, count).astype("int32")
    return x, y


def start(optimizer, *, base=with_table, normalize="l2", policy="float32", strategy=None, **mode):
    restart()
    keras.config.set_dtype_policy(policy)
    with strategy.scope() if strategy else tf.distribute.get_strategy().scope():
        model = aligned(base(), normalize=normalize, discriminator=keras.layers.Dense(2))
        model.compile(
            optimizer() if callable(optimizer) else optimizer,
            loss="binary_crossentropy",
            **{"run_eagerly": True, **mode},
        )
    return model


def weights_of(model):
    variables = [*model.base.trainable_variables, *model.alignment.trainable_variables]
    return {f"{v.path}/{i}": v.numpy() for i, v in enumerate(variables)}


def dense_gradients(model, x, y):
    """The gradients of one batch at base and discriminator, as dense arrays."""
    with tf.GradientTape() as tape:
        forward = model.forward((x, y), training=True, aligned=True)
        total = model.weighted_losses(forward) + model.alignment(model.task_gradients_of(forward), forward.masks)
    sides = model.base.trainable_variables, model.alignment.trainable_variables
    return sides, [[tf.convert_to_tensor(g).numpy() for g in of_side] for of_side in tape.gradient(total, sides)]


# --- gradient accumulation ------------------------------------------------------------------------------------------


def test_accumulated_small_batches_are_one_large_one():
    # Where every row has all labels, so that the mean of the batches' means is the mean over all rows, and each row is
    # normalised by itself. The discriminator's optimizer accumulates as well, since it has the same settings.
    x, y = rows(24)
    found = []
    for size, steps in ((12, None), (6, 2)):
        model = start(SGD(0.1, momentum=0.5, gradient_accumulation_steps=steps), run_eagerly=steps is None)
        model.fit(x, y, batch_size=size, shuffle=False, verbose=0)
        assert int(model.optimizer.iterations) == int(model.discriminator_optimizer.iterations) == 2
        found.append(weights_of(model))
    assert_same(*found, rtol=1e-5, atol=1e-6)


def test_accumulation_takes_the_mean_of_the_batches_gradients():
    # Labels missing unevenly and "batch" normalisation: then it is not the large batch, but by hand the same.
    x, y = rows(12, missing=0.4)
    batches = [({k: v[s] for k, v in x.items()}, {k: v[s] for k, v in y.items()}) for s in (slice(6), slice(6, 12))]
    by_hand = start(SGD(0.1), normalize="batch")
    parts = [dense_gradients(by_hand, *batch)[1] for batch in batches]
    sides, _ = dense_gradients(by_hand, *batches[0])
    for rate, variables, first, second in zip((0.1, 1.0), sides, *parts, strict=True):
        for variable, a, b in zip(variables, first, second, strict=True):
            variable.assign_sub(rate * (a + b) / 2)
    model = start(SGD(0.1, gradient_accumulation_steps=2), normalize="batch")
    model.fit(x, y, batch_size=6, shuffle=False, verbose=0)
    assert_same(weights_of(by_hand), weights_of(model), rtol=1e-5, atol=1e-6)


def test_what_an_optimizer_cannot_do_is_refused(mirrored_strategy):
    accumulating = SGD(gradient_accumulation_steps=2)
    for given in ({"optimizer": accumulating}, {"optimizer": "sgd", "discriminator_optimizer": accumulating}):
        with pytest.raises(ga.UserError, match=f"{[*given][-1]} accumulates gradients .* cannot do on 2 replicas"):
            start(strategy=mirrored_strategy, **given)
    for scaled in (LossScale(SGD()), SGD(loss_scale_factor=8.0)):
        with pytest.raises(ga.UserError, match="discriminator_optimizer scales the loss"):
            start("sgd", discriminator_optimizer=scaled)


# --- clipping -------------------------------------------------------------------------------------------------------


def clipped(gradients, clipnorm=None, global_clipnorm=None, clipvalue=None):
    if clipvalue:
        return [np.clip(g, -clipvalue, clipvalue) for g in gradients]
    norms = [np.linalg.norm(g) for g in gradients]
    if global_clipnorm:
        norms = [np.linalg.norm(norms)] * len(gradients)
    bound = clipnorm or global_clipnorm
    return [g * min(1.0, bound / norm) for g, norm in zip(gradients, norms, strict=True)]


def test_clipping_counts_a_row_of_a_table_once():
    x, y = rows(12)
    by_hand = start(SGD(0.5))
    sides, gradients = dense_gradients(by_hand, x, y)
    before = [[v.numpy() for v in of_side] for of_side in sides]
    for bound in ({"clipnorm": 0.05}, {"global_clipnorm": 0.1}, {"clipvalue": 0.02}):
        for rate, variables, values, of_side in zip((0.5, 5.0), sides, before, gradients, strict=True):
            for variable, value, g in zip(variables, values, clipped(of_side, **bound), strict=True):
                variable.assign(value - rate * g)
        model = start(SGD(0.5, **bound))
        model.fit(x, y, batch_size=12, shuffle=False, verbose=0)
        assert_same(weights_of(by_hand), weights_of(model), rtol=1e-5, atol=1e-6)


# --- two replicas ---------------------------------------------------------------------------------------------------

# The second one is traced: what its optimizers do within a step depends on values.
WHOLE = {
    # Adagrad squares the gradient of a table's row that both replicas look up; clipping is of the whole gradient.
    "adagrad, clipped": (
        "float32",
        lambda: keras.optimizers.Adagrad(0.05, global_clipnorm=0.2, use_ema=True, ema_momentum=0.5),
    ),
    "scaled": ("mixed_float16", lambda: LossScale(SGD(0.1, momentum=0.9), initial_scale=2.0**10)),
}


@pytest.mark.parametrize("name", WHOLE)
def test_replicas_update_by_the_whole_gradient(mirrored_strategy, name):
    policy, make = WHOLE[name]
    x, y = rows(24, missing=0.3)
    states = []
    for strategy in (None, mirrored_strategy):
        model = start(make, strategy=strategy, policy=policy, run_eagerly=strategy is None or name != "scaled")
        model.fit(x, y, batch_size=8, shuffle=False, verbose=0)
        states.append(all_state(model))
    assert_same(*states, rtol=1e-5, atol=1e-6 if policy == "float32" else 2e-4)
    if policy == "mixed_float16":
        # What overflows on one replica is left out on both, by both optimizers.
        with mirrored_strategy.scope():
            model.optimizer.dynamic_scale.assign(2.0**80)
        before = weights_of(model)
        model.fit(x, y, batch_size=8, verbose=0)
        assert_same(before, weights_of(model), rtol=0, atol=0)
        assert model.optimizer.iterations.numpy() == model.discriminator_optimizer.iterations.numpy() == 3


# --- averages and overflow ------------------------------------------------------------------------------------------


def test_averages_of_both_optimizers_are_saved(tmp_path):
    x, y = rows(12)
    model = start(SGD(0.1, use_ema=True, ema_momentum=0.5))
    seen = []

    class Watch(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            seen.append(weights_of(model))

    model.fit(x, y, batch_size=4, shuffle=False, verbose=0, callbacks=[Watch()])
    # The average of the three steps, the first of them being its start, takes the weights' place at the end.
    average = seen[0]
    for step in seen[1:]:
        average = {name: 0.5 * average[name] + 0.5 * step[name] for name in step}
    assert_same(average, weights_of(model), rtol=1e-5, atol=1e-6)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    for each in (model, loaded):
        each.fit(x, y, batch_size=12, shuffle=False, verbose=0)
    for left, right in zip(all_state(model).values(), all_state(loaded).values(), strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-6, atol=1e-7)
    # No epoch, no average in the weights' place: of a new model it is zero.
    fresh = start(SGD(0.1, use_ema=True))
    before = weights_of(fresh)
    fresh.fit(x, y, epochs=0, verbose=0)
    assert_same(before, weights_of(fresh), rtol=0, atol=0)


def test_an_overflow_leaves_momentum_and_steps_of_both_optimizers():
    x, y = rows(8)
    model = start(LossScale(SGD(0.1, momentum=0.9)), policy="mixed_float16")
    model.fit(x, y, verbose=0)
    model.optimizer.dynamic_scale.assign(2.0**120)
    before = {k: v for k, v in all_state(model).items() if "scale" not in k and "step" not in k and "total" not in k}
    model.fit(x, y, verbose=0)
    after = all_state(model)
    assert float(model.optimizer.dynamic_scale) == 2.0**119
    for name, value in before.items():
        np.testing.assert_array_equal(value, after[name], err_msg=name)


def test_a_fixed_loss_scale_does_not_matter():
    # Without a table: Keras' optimizers cannot divide its sparse gradient by the factor.
    x, y = data(8)
    found = []
    for factor, own in ((None, None), (1024.0, None), (1024.0, SGD(1.0))):
        model = start(SGD(0.1, loss_scale_factor=factor), base=functional, discriminator_optimizer=own)
        model.fit(x, y, verbose=0)
        found.append(weights_of(model))
    for other in found[1:]:
        assert_same(found[0], other, rtol=1e-4, atol=1e-6)
