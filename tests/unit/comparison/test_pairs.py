"""Methods are paired: one seed gives all of them the same initial weights, to the bit, and the same batches."""

from __future__ import annotations

import numpy as np
import pytest

from gradalign.comparison.job import run_job
from gradalign.comparison.measures import _groups
from gradalign.comparison.methods import methods_named
from gradalign.comparison.plan import Plan
from gradalign.data import Part
from gradalign.data.made import MadeTable
from gradalign.errors import UserError
from gradalign.training.batches import shuffled_batches
from gradalign.training.build import initial_model
from gradalign.training.encoding import encode_all, learn
from gradalign.training.rows import read_tables
from tests.unit.comparison.fakes import small_config


def _begun(config):
    """What a run of a config begins with: its model, and its first batch."""
    tables = read_tables(config.data)
    prepared = encode_all(learn(config, tables), tables)
    model = initial_model(config, prepared.preprocessing, total_steps=10)
    batches = shuffled_batches(prepared.train, 64, config.training.seed, 0, 1)
    return model, next(iter(batches)), prepared


def test_a_seed_has_the_same_weights_and_batches_for_all_methods(tmp_path):
    config = small_config(
        "model.dropout=0.2", "model.towers=[4]", "data.cache=false", "data.synthetic.users=9", "data.group=user"
    )
    methods = methods_named("single,adversarial", config)
    plan = Plan(config, tuple(methods), 2)
    runs = {}
    for method in methods:
        job = run_job(plan, tmp_path, method, method.config(config), 1)
        runs.update({(method.name, folder.name): _begun(of_run) for folder, of_run in job.runs.items()})
    assert list(runs) == [("none", "seed-1"), ("single", "sparse"), ("single", "dense"), ("adversarial", "seed-1")]
    plain, (x, y), prepared = runs["none", "seed-1"]
    assert prepared.config.features.drop == ["user"]
    for (name, task), (model, (of_x, of_y), _) in runs.items():
        layers = [layer for layer in model.base.layers if layer.variables]
        assert len(layers) == (3 if name == "single" else 5)  # embeddings and towers
        for layer in layers:
            for one, other in zip(layer.variables, plain.base.get_layer(layer.name).variables, strict=True):
                np.testing.assert_array_equal(one.numpy(), other.numpy())
        assert list(of_y) == ([task] if name == "single" else ["sparse", "dense"])
        assert list(of_x) == list(x) == [f"field_{i}" for i in range(3)]  # no label, no group
        for key in of_x:
            np.testing.assert_array_equal(of_x[key], x[key])
        for key in of_y:
            np.testing.assert_array_equal(of_y[key], y[key])
    other_seed = run_job(plan, tmp_path, methods[0], methods[0].config(config), 0)
    model, (of_x, _), _ = _begun(next(iter(other_seed.runs.values())))
    assert not np.array_equal(model.base.trainable_variables[0].numpy(), plain.base.trainable_variables[0].numpy())
    assert not np.array_equal(of_x["field_0"], x["field_0"])


def test_a_group_that_is_no_column_is_named():
    config = small_config("data.cache=false", "data.group=usr", "data.synthetic.users=9")
    with pytest.raises(UserError, match=r'`data\.group` names "usr", which is no column.*Did you mean "user"'):
        learn(config, read_tables(config.data))


def test_a_group_that_is_named_a_feature_stays_one():
    config = small_config(
        "data.cache=false", "data.group=user", "data.synthetic.users=9", "features.categorical=[user]"
    )
    assert "user" in learn(config, read_tables(config.data)).preprocessing.fields


def test_rows_are_grouped_by_value_and_those_without_one_by_none():
    import pyarrow as pa

    table = pa.table({"user": pa.chunked_array([["b", None], ["a", "b"]]), "list": [[1], [2], [1], [2]]})
    part = Part(MadeTable("four rows", lambda: table))
    assert _groups(part, "user", "the test part").tolist() == [0, -1, 1, 0]
    assert _groups(part, None, "the test part") is None
    with pytest.raises(UserError, match='"list" of the test part, which holds lists'):
        _groups(part, "list", "the test part")
