"""Every kind of base: its first update is the one computed by hand with `ga.task_gradients` from (B,) losses."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import gradalign as ga

from .first_update import WEIGHT, assert_first_update, compiled, fit_once, towers_of, update_by_hand
from .small_models import (
    TASKS,
    WIDTH,
    Subclassed,
    aligned,
    all_state,
    assert_same,
    data,
    functional,
    restart,
    warnings_of,
)

pytestmark = pytest.mark.usefixtures("no_first_batch_check")


@pytest.mark.parametrize(
    ("tasks", "normalize"),
    [(TASKS, "batch"), (("zeta", "mid", "alpha"), "l2")],
    ids=["two tasks", "reverse alphabetical"],
)
def test_functional(tasks, normalize):
    base = functional(tasks)
    model = compiled(aligned(base, weight=WEIGHT, normalize=normalize))
    assert model.tasks == list(tasks)
    x, y = data(16, tasks=tasks, missing=0.3)
    assert_first_update(model, lambda x: base.get_layer("encoder")(x["x"]), towers_of(base, tasks), x, y)


def test_the_encoder_takes_part_in_the_alignment():
    x, y = data(16)
    encoders = []
    for weight in (0.0, 1.0):
        restart()
        model = compiled(aligned(functional(), weight=weight))
        fit_once(model, x, y)
        encoders.append(model.base.get_layer("encoder").kernel.numpy())
    assert np.max(np.abs(encoders[0] - encoders[1])) > 1e-4


def test_nested_functional():
    inside = keras.Input((WIDTH,))
    hidden = keras.layers.Dense(5, "tanh", name="hidden")(inside)
    inner = keras.Model(inside, keras.layers.Dense(4, "tanh", name="behind")(hidden), name="inner")
    x = keras.Input((WIDTH,), name="x")
    s = inner(x)
    base = keras.Model({"x": x}, {task: keras.layers.Dense(1, "sigmoid", name=task)(s) for task in TASKS}, name="outer")

    def heads(shared):
        behind = inner.get_layer("behind")(shared)
        return {task: base.get_layer(task)(behind) for task in TASKS}

    model = compiled(aligned(base, shared="inner/hidden", weight=WEIGHT))
    assert model.shared == ["inner/hidden"]
    x, y = data(16, missing=0.3)
    assert_first_update(model, lambda x: inner.get_layer("hidden")(x["x"]), heads, x, y)


def test_the_whole_inner_model_is_shared():
    inside = keras.Input((WIDTH,))
    inner = keras.Model(inside, keras.layers.Dense(5, "gelu")(keras.layers.Dense(5, "tanh")(inside)), name="inner")
    x = keras.Input((WIDTH,), name="x")
    s = inner(x)
    towers = {task: keras.layers.Dense(1, "sigmoid") for task in TASKS}
    base = keras.Model(x, {task: tower(s) for task, tower in towers.items()})
    x, y = data(16)
    model = compiled(aligned(base, shared=inner, weight=WEIGHT))
    assert_first_update(model, inner, lambda s: {task: tower(s) for task, tower in towers.items()}, x["x"], y)


def test_subclassed_with_a_dict_of_inputs():
    base = Subclassed()
    model = compiled(aligned(base, weight=WEIGHT))
    x, y = data(16, missing=0.3)
    model.base(x)
    model.prepare({"x": tf.constant(x["x"])})

    def heads(s):
        normal = base.norm(s, training=True)
        return {t: head(tower(normal)) for t, tower, head in zip(TASKS, base.towers, base.heads, strict=True)}

    start = [v.numpy() for v in base.non_trainable_variables]
    expected = update_by_hand(model, lambda x: base.encoder(x["x"]), heads, x, y)
    for variable, value in zip(base.non_trainable_variables, start, strict=True):
        variable.assign(value)
    fit_once(model, x, y)
    for variable, value in zip(
        [*base.trainable_variables, *model.alignment.trainable_variables], expected, strict=True
    ):
        np.testing.assert_allclose(variable.value, value, rtol=1e-5, atol=1e-6, err_msg=variable.path)


def test_several_shared_layers_of_different_shape():
    ids, x = keras.Input((2,), name="ids", dtype="int32"), keras.Input((WIDTH,), name="x")
    looked_up = keras.layers.Embedding(7, 3, name="table")(ids)
    dense = keras.layers.Dense(4, "tanh", name="encoder")(x)
    s = keras.layers.Concatenate(name="join")([keras.layers.Flatten(name="flat")(looked_up), dense])
    outputs = {}
    for task in TASKS:
        outputs[task] = keras.layers.Dense(1, "sigmoid", name=task)(
            keras.layers.Dense(4, "gelu", name=f"tower_{task}")(s)
        )
    base = keras.Model({"ids": ids, "x": x}, outputs)
    model = compiled(aligned(base, shared=["table", "encoder"], weight=WEIGHT))
    x, y = data(16)
    x["ids"] = np.random.default_rng(0).integers(0, 7, size=(16, 2)).astype("int32")
    towers = towers_of(base, TASKS)
    assert_first_update(
        model,
        lambda x: [base.get_layer("table")(x["ids"]), base.get_layer("encoder")(x["x"])],
        lambda s: towers(tf.concat([tf.reshape(s[0], [-1, 6]), s[1]], axis=-1)),
        x,
        y,
    )


def test_sequential_with_heads():
    class Heads(keras.layers.Layer):
        def __init__(self):
            super().__init__(name="heads")
            self.heads = {task: keras.layers.Dense(1, "sigmoid", name=task) for task in TASKS}

        def build(self, shape):
            for head in self.heads.values():
                head.build(shape)

        def call(self, s):
            return {task: head(s) for task, head in self.heads.items()}

    heads = Heads()
    base = keras.Sequential(
        [
            keras.Input((WIDTH,)),
            keras.layers.Dense(5, "tanh", name="encoder"),
            keras.layers.Dense(5, "gelu", name="mid"),
            heads,
        ]
    )
    x, y = data(16)
    model = compiled(aligned(base, weight=WEIGHT))
    encoder, mid = base.layers[:2]
    assert_first_update(model, encoder, lambda s: heads(mid(s)), x["x"], y)


# --- one forward pass -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["functional", "subclassed"])
def test_alignment_of_weight_zero_changes_nothing_in_the_base(kind):
    # The same dropout masks and moving statistics to the last bit: one forward pass a step, with alignment or without.
    results = []
    x, y = data(16, missing=0.2)
    # What `reach` leaves out lies above the shared tensor, in whatever kind of base.
    for alignment in (
        None,
        ga.AdversarialAlignment(0.0, schedule=1.0, reach="all" if kind == "functional" else "shared"),
    ):
        restart()
        base = functional(normalize=True, dropout=0.4) if kind == "functional" else Subclassed(dropout=0.4)
        model = ga.MultiTaskModel(base, "encoder", alignment)
        model.compile(keras.optimizers.SGD(0.1), loss="binary_crossentropy", run_eagerly=True)
        model.fit(x, y, batch_size=8, shuffle=False, verbose=0)
        results.append({f"{v.path} {i}": keras.ops.convert_to_numpy(v) for i, v in enumerate(base.variables)})
    assert_same(*results, rtol=0, atol=0)


def test_the_base_is_called_once_a_step():
    calls = []

    @keras.saving.register_keras_serializable(package="gradalign_tests")
    class Counting(keras.layers.Layer):
        def call(self, x):
            calls.append(x.shape)
            return x

    x = keras.Input((WIDTH,), name="x")
    s = keras.layers.Dense(5, "tanh", name="encoder")(Counting()(x))
    base = keras.Model(
        {"x": x}, {t: keras.layers.Dense(1, "sigmoid", name=t)(keras.layers.Dense(4, "gelu")(s)) for t in TASKS}
    )
    model = compiled(aligned(base))
    x, y = data(16)
    model.fit(x, y, batch_size=16, verbose=0)
    calls.clear()
    model.fit(x, y, batch_size=8, verbose=0)
    assert calls == [(8, WIDTH)] * 2


def test_a_warm_start_keeps_the_outputs():
    x, y = data(24)
    base = functional(normalize=True, dropout=0.3)
    base.compile("sgd", loss=dict.fromkeys(TASKS, "binary_crossentropy"), run_eagerly=True)
    base.fit(x, y, epochs=2, verbose=0)
    expected = {task: p.numpy() for task, p in base(x).items()}
    state = [keras.ops.convert_to_numpy(v) for v in base.variables]
    model = compiled(aligned(base))
    for left, right in zip(state, base.variables, strict=True):
        np.testing.assert_array_equal(left, right.value)
    for task, found in model.predict(x, verbose=0).items():
        np.testing.assert_allclose(found, expected[task], rtol=1e-6)
    model.fit(x, y, verbose=0)
    assert np.max(np.abs(model(x)["buy"] - expected["buy"])) > 1e-4


def test_wrapping_twice_and_again():
    x, y = data(16)
    base = functional()
    inner = compiled(aligned(base))
    inner.fit(x, y, verbose=0)
    outer = compiled(aligned(inner))
    assert outer.base is base and outer.alignment is not inner.alignment
    outer.fit(x, y, verbose=0)
    plain = compiled(ga.MultiTaskModel(base))
    plain.fit(x, y, verbose=0)
    inner.fit(x, y, verbose=0)
    np.testing.assert_allclose(inner.predict(x, verbose=0)["buy"], base(x)["buy"], rtol=1e-5)


def test_compiling_again_starts_new_optimizers():
    x, y = data(16)
    model = aligned(functional())
    for rate in (0.1, 0.01):
        model.compile(keras.optimizers.SGD(rate), loss="binary_crossentropy", run_eagerly=True)
        model.fit(x, y, verbose=0)
        assert int(model.optimizer.iterations) == 1
        assert float(model.discriminator_optimizer.learning_rate) == pytest.approx(10 * rate)


def test_frozen_layers_stay():
    x, y = data(16)
    base = functional(normalize=True)
    base.get_layer("encoder").trainable = False
    base.get_layer("norm").trainable = False
    model = compiled(aligned(base))
    before = [v.numpy() for name in ("encoder", "norm") for v in base.get_layer(name).variables]
    tower = base.get_layer("tower_buy").kernel.numpy()
    model.fit(x, y, verbose=0)
    after = [v.numpy() for name in ("encoder", "norm") for v in base.get_layer(name).variables]
    for left, right in zip(before, after, strict=True):
        np.testing.assert_array_equal(left, right)
    assert np.max(np.abs(base.get_layer("tower_buy").kernel.numpy() - tower)) > 0


def test_a_task_beside_the_shared_tensor_can_be_left_out():
    x = keras.Input((WIDTH,), name="x")
    s = keras.layers.Dense(5, "tanh", name="encoder")(x)
    outputs = {
        t: keras.layers.Dense(1, "sigmoid", name=t)(keras.layers.Dense(4, "gelu", name=f"tower_{t}")(s)) for t in TASKS
    }
    outputs["aside"] = keras.layers.Dense(1, "sigmoid", name="aside")(x)
    base = keras.Model({"x": x}, outputs)
    x, y = data(16, tasks=(*TASKS, "aside"))
    model = compiled(aligned(base))
    with pytest.raises(ga.UserError, match='loss of task "aside" does not depend on the shared tensor'):
        model.fit(x, y, verbose=0)
    model = compiled(aligned(base, tasks=["buy", "click"]))
    model.fit(x, y, verbose=0)
    # In the model's order, whatever the order of `tasks`.
    assert model.alignment.aligned_tasks == ["click", "buy"]
    assert model.alignment.discriminator.output_shape == (None, 2)


@pytest.mark.first_batch_check
@pytest.mark.parametrize("how", ["one output", "a subset of one"])
def test_one_task_is_aligned_with_nothing(how):
    tasks = ("click",) if how == "one output" else TASKS
    x, y = data(16, tasks=tasks)
    states = []
    for alignment in (None, ga.AdversarialAlignment(5.0, schedule=1.0, tasks=["click"])):
        restart()
        model = compiled(ga.MultiTaskModel(functional(tasks), "encoder", alignment))
        if alignment is None:
            model.fit(x, y, epochs=2, verbose=0)
        else:
            [message] = warnings_of(lambda model=model: model.fit(x, y, epochs=2, verbose=0))
            assert 'one task, "click"' in message
            assert model.history.history["alignment_loss"] == [0.0, 0.0]
        states.append([v.numpy() for v in model.base.trainable_variables])
    for left, right in zip(*states, strict=True):
        np.testing.assert_array_equal(left, right)


# --- what is refused, and state ------------------------------------------------------------------------------------


def test_the_alignment_names_only_tasks_of_the_base():
    with pytest.raises(ga.UserError, match='names a task "clik"'):
        aligned(functional(), tasks=["clik", "buy"])


def test_each_model_needs_an_alignment_of_its_own():
    alignment = ga.AdversarialAlignment()
    ga.MultiTaskModel(functional(), "encoder", alignment)
    with pytest.raises(ga.UserError, match="was built for the tasks"):
        ga.MultiTaskModel(functional(("like", "share")), "encoder", alignment)


def test_state_is_complete_before_the_first_step():
    # What a training step would create would be saved without its values.
    model = compiled(aligned(functional()))
    before = set(all_state(model))
    x, y = data(8)
    model.fit(x, y, verbose=0)
    assert set(all_state(model)) == before


class Lazy(keras.Model):
    """Makes its layers in build()."""

    def build(self, shape):
        self.encoder = keras.layers.Dense(5, "tanh", name="encoder")
        self.heads = {task: keras.layers.Dense(1, "sigmoid", name=task) for task in TASKS}

    def call(self, inputs):
        shared = self.encoder(inputs["x"])
        return {task: head(shared) for task, head in self.heads.items()}


def test_layers_that_are_made_in_build():
    x, y = data(8)
    base = Lazy()
    with pytest.raises(ga.UserError, match=r"not built yet: .* call it on a batch before you wrap it"):
        aligned(base)
    base({"x": tf.constant(x["x"])})
    history = fit_once(compiled(aligned(base)), x, y).history
    assert np.isfinite(history["loss"]).all()


@pytest.mark.first_batch_check
def test_a_frozen_base_trains_the_discriminator_only():
    x, y = data(16)
    base = functional()
    base.trainable = False
    model = compiled(aligned(base))
    before, start = [v.numpy() for v in base.variables], model.alignment.trainable_variables[0].numpy()
    [message] = warnings_of(lambda: model.fit(x, y, verbose=0))
    assert 'Model "base" has no trainable weights' in message
    for left, right in zip(before, base.variables, strict=True):
        np.testing.assert_array_equal(left, right)
    assert np.max(np.abs(model.alignment.trainable_variables[0].numpy() - start)) > 0
