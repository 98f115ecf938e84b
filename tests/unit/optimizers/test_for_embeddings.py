"""Tables and the rest under optimizers of their own, with and without an alignment."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import gradalign as ga
from gradalign.gradients.updates import needs_whole_gradients
from gradalign.layers import Categorical
from gradalign.optimizers import LazyAdam, for_embeddings
from tests.unit.small_models import discriminator

pytestmark = pytest.mark.usefixtures("no_first_batch_check")

FIELDS = {"user": Categorical(9), "item": Categorical(8)}


class Watching(LazyAdam):
    """Notes the type of what reaches the update."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.seen = []

    def update_step(self, gradient, variable, learning_rate):
        self.seen.append(type(gradient).__name__)
        super().update_step(gradient, variable, learning_rate)


def data():
    rng = np.random.default_rng(0)
    x = {"user": rng.integers(0, 5, 16), "item": rng.integers(0, 4, 16)}
    return x, {task: rng.integers(0, 2, (16, 1)).astype("float32") for task in ("click", "buy")}


def model(optimizer, alignment=True, **arguments):
    base = ga.architectures.shared_private(FIELDS, ["click", "buy"], shared_dim=3, private_dim=2, towers=(4,))
    own = discriminator(2 * 3)  # as wide as two fields
    adversarial = ga.AdversarialAlignment(0.5, schedule=1.0, discriminator=own) if alignment else None
    made = ga.MultiTaskModel(base, "shared_embedding", adversarial)
    made.compile(optimizer, loss="binary_crossentropy", **arguments)
    return made


@pytest.mark.parametrize(("alignment", "run_eagerly"), [(True, False), (False, True)])
def test_rows_outside_the_batch_never_change(alignment, run_eagerly):
    """In a graph and eagerly; the optimizers of tables themselves are tried in all modes in `test_row_wise.py`."""
    tables = Watching(0.1)
    made = model(for_embeddings(tables=tables, rest="adam"), alignment, run_eagerly=run_eagerly, jit_compile=False)
    paths = [v.path for v in made.base.trainable_variables if v.path.endswith("table")]
    before = {v.path: v.numpy() for v in made.base.trainable_variables}
    x, y = data()
    for _ in range(2):
        made.train_on_batch(x, y)
    after = {v.path: v.numpy() for v in made.base.trainable_variables}
    looked_up = np.zeros(17, bool)
    looked_up[np.unique(x["user"])] = looked_up[9 + np.unique(x["item"])] = True
    assert len(paths) == 3
    for path in before:
        changed = before[path] != after[path]
        if path in paths:
            assert changed[looked_up].all() and not changed[~looked_up].any(), path
        else:
            assert changed.any(), path
    assert set(tables.seen) == {"IndexedSlices"}


def test_the_parts_are_those_optimizers(tmp_path):
    """The tables as under LazyAdam alone, the rest as under SGD alone, and one more step after loading the same."""
    x, y = data()
    together = model(for_embeddings(tables=LazyAdam(0.1), rest=keras.optimizers.SGD(0.2)), run_eagerly=True)
    for_tables, for_rest = (model(o, run_eagerly=True) for o in (LazyAdam(0.1), keras.optimizers.SGD(0.2)))
    state = [v.numpy() for v in together.variables]
    for each in (for_tables, for_rest):
        for variable, value in zip(each.variables, state, strict=True):
            variable.assign(value)
    for each in (together, for_tables, for_rest):
        each.discriminator_optimizer = keras.optimizers.SGD(0.3)
        each.discriminator_optimizer.build(each.alignment.trainable_variables)
        each.train_on_batch(x, y)
    for variable, a, b in zip(*(m.base.trainable_variables for m in (together, for_tables, for_rest)), strict=True):
        wanted = a if variable.path.endswith("table") else b
        np.testing.assert_allclose(variable, wanted, rtol=1e-6)
    together.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    for each in (together, again):
        each.train_on_batch(x, y)
    for a, b in zip(together.base.variables, again.base.variables, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


def test_the_learning_rate_is_one_knob():
    optimizer = for_embeddings(tables=LazyAdam(0.02), rest=keras.optimizers.Adam(0.01))
    optimizer.learning_rate = 0.005
    assert float(optimizer.rest.learning_rate) == pytest.approx(0.005)
    assert float(optimizer.tables.learning_rate) == pytest.approx(0.01)
    for rate in (0.0, 0.5):  # a warm-up from nothing
        optimizer.learning_rate = rate
    assert float(optimizer.tables.learning_rate) == pytest.approx(1.0)


def test_limits_inside_are_seen_from_outside():
    plain = for_embeddings(tables=LazyAdam(), rest="adam")
    assert not needs_whole_gradients(plain)
    assert needs_whole_gradients(for_embeddings(tables=LazyAdam(clipnorm=1.0), rest="adam"))
    assert needs_whole_gradients(for_embeddings(tables=LazyAdam(), rest=keras.optimizers.Adam(clipvalue=1.0)))


def test_the_discriminator_follows_the_rest():
    made = model(for_embeddings(tables=LazyAdam(0.02), rest=keras.optimizers.SGD(0.01)))
    assert type(made.discriminator_optimizer).__name__ == "SGD"
    assert float(made.discriminator_optimizer.learning_rate) == pytest.approx(0.1)


def test_what_is_refused():
    dense = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, name="head")])
    with pytest.raises(ga.UserError, match=r"None of the 2 variables is an embedding table.*head/kernel"):
        for_embeddings(tables=LazyAdam(), rest="adam").build(dense.trainable_variables)
    with pytest.raises(ga.UserError, match="tables is a plain optimizer"):
        for_embeddings(tables=keras.optimizers.LossScaleOptimizer(LazyAdam()), rest="adam")
    with pytest.raises(ga.UserError, match="rest has a loss_scale_factor"):
        for_embeddings(tables=LazyAdam(), rest=keras.optimizers.SGD(loss_scale_factor=128.0))
    with pytest.raises(ga.UserError, match="rest accumulates gradients"):
        for_embeddings(tables=LazyAdam(), rest=keras.optimizers.Adam(gradient_accumulation_steps=2))
    with pytest.raises(ga.UserError, match=r"rest is an optimizer.*received None"):
        for_embeddings(tables=LazyAdam(), rest=None)
    both = LazyAdam()
    with pytest.raises(ga.UserError, match="tables and rest are one optimizer"):
        for_embeddings(tables=both, rest=both)
    for names in ("table", [], [1]):
        with pytest.raises(ga.UserError, match="names is a list of names of weights"):
            for_embeddings(tables=LazyAdam(), rest="adam", names=names)


def test_a_warm_up_from_zero_keeps_the_ratio_of_the_rates_when_saved():
    optimizer = for_embeddings(tables=LazyAdam(0.01), rest=keras.optimizers.Adam(0.001))
    optimizer.learning_rate = 0.0
    again = type(optimizer).from_config(optimizer.get_config())
    again.learning_rate = 0.001
    assert float(again.tables.learning_rate) == pytest.approx(0.01)


def test_variables_left_out_of_weight_decay():
    kept, decayed = (keras.Variable(np.ones(2, "float32"), name=name) for name in ("bias", "kernel"))
    table = keras.Variable(np.ones((2, 2), "float32"), name="table")
    optimizer = for_embeddings(tables=LazyAdam(0.1), rest=keras.optimizers.SGD(0.1, weight_decay=0.5))
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    optimizer.apply([tf.zeros([2, 2]), tf.zeros(2), tf.zeros(2)], [table, kept, decayed])
    np.testing.assert_allclose(kept, [1.0, 1.0])
    np.testing.assert_allclose(decayed, [0.95, 0.95], rtol=1e-6)


def test_a_table_of_another_name():
    table = keras.Variable(np.ones((3, 2), "float32"), name="lookup")
    rest = keras.Variable(np.ones(2, "float32"), name="bias")
    optimizer = for_embeddings(tables=LazyAdam(0.1), rest=keras.optimizers.SGD(0.1), names=["lookup"])
    optimizer.apply([tf.IndexedSlices(tf.ones([1, 2]), tf.constant([2])), tf.ones([2])], [table, rest])
    np.testing.assert_allclose(table, [[1, 1], [1, 1], [0.9, 0.9]], rtol=1e-5)
    np.testing.assert_allclose(rest, [0.9, 0.9], rtol=1e-6)
