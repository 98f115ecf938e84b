"""The fresh probe: at chance where gradients are equal by construction, far above it where towers differ."""

from __future__ import annotations

import json

import keras
import numpy as np
import pytest

import gradalign as ga
from gradalign.diagnostics.gradient_rows import gradient_rows
from gradalign.diagnostics.probe_classifier import label_aware_chance, named_tasks, resampled_accuracy
from tests.unit.small_models import WIDTH

TASKS = ("click", "buy")


def model(heads, *, alignment=None, loss="binary_crossentropy", shared="encoder", width=5):
    """`heads` maps a task to the layers behind the encoder; equal layers are equal towers."""
    x = keras.Input((WIDTH,), name="x")
    s = keras.layers.Dense(width, activation="tanh", name="encoder")(x)
    outputs = {}
    for task, layers in heads.items():
        h = s
        for layer in layers:
            h = layer(h)
        outputs[task] = keras.layers.Identity(name=task)(h)
    made = ga.MultiTaskModel(keras.Model({"x": x}, outputs), shared, alignment)
    made.compile("sgd", loss=loss)
    return made


def tower():
    return [keras.layers.Dense(8, activation="gelu"), keras.layers.Dense(1, activation="sigmoid")]


def rows(count=800, *, positives=(0.5, 0.5), seed=0):
    draw = np.random.default_rng(seed)
    y = {task: (draw.random(count) < share).astype("float32") for task, share in zip(TASKS, positives, strict=True)}
    return {"x": draw.normal(size=(count, WIDTH)).astype("float32")}, y


@pytest.mark.parametrize("normalize", ["batch", "l2", "none"])
def test_one_tower_and_one_label_give_chance(normalize):
    one = tower()
    x, y = rows(300)
    report = ga.probe(model(dict.fromkeys(TASKS, one)), (x, dict.fromkeys(TASKS, y["click"])), normalize=normalize)
    assert report.accuracy == report.chance == report.label_aware_chance == 0.5 and report.interval == (0.5, 0.5)
    [distance] = report.distances
    assert distance.squared_mmd == pytest.approx(0, abs=1e-9) and distance.sliced_wasserstein == 0.0
    assert "cannot tell" in report.verdict


def test_one_tower_and_labels_drawn_alike_give_chance():
    report = ga.probe(model(dict.fromkeys(TASKS, tower())), rows(1500, seed=1), resamples=300)
    assert report.interval[0] < 0.5 < report.interval[1] and report.interval[1] - report.interval[0] < 0.15
    assert report.distances[0].sliced_wasserstein < 2 * report.distances[0].shuffled_sliced_wasserstein


def test_one_tower_and_other_base_rates_give_what_the_labels_give():
    """What the sign of the label gives away counts as chance, not as a finding (Trap 2): l2 leaves little else."""
    positives = (0.9, 0.3)
    data = rows(1500, positives=positives)
    report = ga.probe(model(dict.fromkeys(TASKS, tower())), data, normalize="l2", resamples=300)
    assert report.label_aware_chance == pytest.approx(0.8, abs=0.04)
    assert report.interval[0] > 0.6 and report.interval[0] <= report.label_aware_chance
    assert "no better than the labels" in report.verdict
    free = ga.probe(model(dict.fromkeys(TASKS, tower())), data, normalize="l2", sign_free=True, resamples=300)
    assert free.label_aware_chance == 0.5 and free.interval == (0.5, 0.5), "one way for both gradients of a row"


def test_towers_that_differ_are_told_apart():
    x, y = rows(800)
    unlike = model({task: tower() for task in TASKS})
    before = [v.numpy() for v in unlike.base.variables]
    report = ga.probe(unlike, (x, y))
    assert 0.85 < report.interval[0] <= report.accuracy <= report.interval[1]
    assert report.distances[0].sliced_wasserstein > 3 * report.distances[0].shuffled_sliced_wasserstein
    assert report.distances[0].squared_mmd > 0.01 and "beyond what the labels give away" in report.verdict
    assert all(np.array_equal(v.numpy(), b) for v, b in zip(unlike.base.variables, before, strict=True))
    written = json.dumps(report.to_json())
    assert json.dumps(ga.probe(unlike, (x, y)).to_json()) == written, "one seed, one result"
    assert json.loads(written)["distances"][0]["tasks"] == list(TASKS)


def test_gradients_are_those_of_the_row_losses_and_missing_labels_are_left_out():
    x, y = rows(20)
    y["buy"][3:9] = np.nan
    linear = [keras.layers.Dense(1, activation="sigmoid")]
    made = model({"click": linear, "buy": tower()})
    found = gradient_rows(made, (x, y, {"click": np.r_[0.0, np.full(19, 2.0)]}), list(TASKS), "row", batch_size=7)
    p = keras.ops.convert_to_numpy(made.base(x)["click"])[:, 0]
    wanted = 2 * (p - y["click"])[:, None] * linear[0].kernel.numpy()[:, 0]  # (p - y) dz/ds, twice for the weight
    np.testing.assert_allclose(found.gradients["click"][1:, 0], wanted[1:], rtol=1e-4, atol=1e-6)
    assert found.kept["click"].tolist() == [False] + [True] * 19
    assert found.kept["buy"].tolist() == [True] * 3 + [False] * 6 + [True] * 11
    np.testing.assert_array_equal(found.codes["click"][1:], y["click"][1:])

    l2 = found.normalized("l2", sign_free=True)["click"]
    ways = linear[0].kernel.numpy()[:, 0] / np.linalg.norm(linear[0].kernel.numpy())
    np.testing.assert_allclose(l2, np.r_[np.zeros((1, 5)), np.tile(ways, (19, 1))], atol=1e-6)
    scale = np.sqrt(np.mean(np.sum(wanted[1:] ** 2, 1)))
    batch = found.normalized("batch")["click"]
    np.testing.assert_allclose(batch[1:], wanted[1:] / scale, rtol=1e-4, atol=1e-6)


def test_classes_are_the_code_of_tasks_with_several_logits():
    draw = np.random.default_rng(0)
    y = {"click": draw.integers(0, 2, 30).astype("float32"), "buy": draw.integers(0, 3, 30)}
    heads = {"click": tower(), "buy": [keras.layers.Dense(3)]}
    losses = {"click": "binary_crossentropy", "buy": keras.losses.SparseCategoricalCrossentropy(from_logits=True)}
    made = model(heads, loss=losses)
    found = gradient_rows(made, ({"x": draw.normal(size=(30, WIDTH))}, y, None), list(TASKS), "row", 30)
    np.testing.assert_array_equal(found.codes["buy"], y["buy"])
    assert found.outputs == {"click": 1, "buy": 3}
    with pytest.raises(ga.UserError, match='sign_free is for tasks with one output; "buy" has 3'):
        ga.probe(made, ({"x": draw.normal(size=(30, WIDTH))}, y), sign_free=True)


def test_an_alignment_says_what_the_probe_looks_at():
    """Its normalisation, its tasks, and each row's own task where rows have one."""
    heads = {task: tower() for task in (*TASKS, "like")}
    alignment = ga.AdversarialAlignment(normalize="l2", tasks=list(TASKS), row_task="which")
    made = model(heads, alignment=alignment)
    x, y = rows(400)
    which = np.tile([0, 1], 200)
    report = ga.probe(made, ({**x, "which": which}, {**y, "like": y["buy"]}))
    assert report.normalize == "l2" and list(report.gradients) == list(TASKS)
    assert sum(report.gradients.values()) == report.rows["test"] and sum(report.rows.values()) == 400


def test_label_aware_chance_by_hand():
    codes = np.array([[1, 1, 0, 0], [1, 0, 0, 0], [1, 1, 1, 0]])
    kept = np.array([[True] * 4, [True] * 4, [False, True, True, True]])
    # Shares of 1: 1/2, 1/4, 2/3. Of 0: 1/2, 3/4, 1/3. The best rule is right in (2/3 + 3/4) / 3.
    assert label_aware_chance(codes, kept) == pytest.approx((2 / 3 + 3 / 4) / 3)
    classes = np.array([[0, 1, 2, 2], [0, 0, 1, 1]])
    # Shares of classes 0, 1, 2: 1/4, 1/4, 1/2 and 1/2, 1/2, 0.
    assert label_aware_chance(classes, np.ones((2, 4), bool)) == pytest.approx((1 / 2 + 1 / 2 + 1 / 2) / 2)


def test_the_interval_is_that_of_whole_rows():
    """Where a row's two gradients are right together, the spread is that of rows: sd sqrt(p (1 - p) / N)."""
    draw = np.random.RandomState(0)
    row = draw.random_sample(400) < 0.7
    low, high = resampled_accuracy(np.stack([row, row]), np.ones((2, 400), bool), 0.95, 2000, draw)
    sd = np.sqrt(row.mean() * (1 - row.mean()) / 400)
    assert (low, high) == pytest.approx((row.mean() - 1.96 * sd, row.mean() + 1.96 * sd), abs=0.01)


def test_the_classifier_sees_what_no_plane_separates_and_rare_tasks_weigh_the_same():
    draw = np.random.default_rng(0)
    signs = draw.choice([-1.0, 1.0], size=(2, 900, 1))
    gradients = signs * np.array([[[2.0, 2.0]], [[2.0, -2.0]]]) + draw.normal(size=(2, 900, 2), scale=0.5)
    kept = np.ones((2, 900), bool)
    kept[1, 100:600] = False
    parts = {"test": np.arange(600, 900), "stop": np.arange(80, 200), "fit": np.r_[:80, 200:600]}
    kept[1, 80:100] = True
    named = named_tasks(gradients, kept, parts, seed=0)
    assert [(named[t] == t).mean() > 0.95 for t in range(2)] == [True, True]


def test_the_picture_is_the_same_for_the_same_report(tmp_path):
    report = ga.probe(model({task: tower() for task in TASKS}), rows(120), resamples=10)
    assert report.points["click"].shape == (report.gradients["click"], 2)
    for name in ("a.svg", "b.svg", "c.png"):
        report.draw(tmp_path / name)
    svg = (tmp_path / "a.svg").read_text("utf-8")
    assert svg == (tmp_path / "b.svg").read_text("utf-8")
    assert "click" in svg and "buy" in svg and "first principal component" in svg
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")


def test_gradients_before_training_are_those_of_the_same_rows_in_the_same_coordinates(tmp_path):
    """With a shared tensor of width 2 the picture only turns the gradients, so lengths stay what they are."""
    x, y = rows(150)
    y["buy"][:40] = np.nan
    made, initial = (model({task: tower() for task in TASKS}, width=2) for _ in range(2))
    report = ga.probe(made, (x, y), normalize="none", resamples=10, initial=initial)
    now, then = (gradient_rows(m, (x, y, None), list(TASKS), "row", 150).gradients for m in (made, initial))
    for task in TASKS:
        moved = np.linalg.norm(report.points[task] - report.initial_points[task], axis=1)
        wanted = np.linalg.norm(now[task] - then[task], axis=2)[:, 0]
        assert len(moved) == report.gradients[task]
        assert np.abs(moved[:, None] - wanted[None]).min(1).max() < 1e-6 < wanted.std(), "each is of one of the rows"
    alone = ga.probe(made, (x, y), normalize="none", resamples=10)
    assert alone.initial_points is None
    assert {**alone.to_json(), "variances": 0} == {**report.to_json(), "variances": 0}
    header, *lines = report.points_csv().splitlines()
    assert header == "moment,task,first,second" and len(lines) == 2 * sum(report.gradients.values())
    report.draw(tmp_path / "both.svg")
    assert all(moment in (tmp_path / "both.svg").read_text("utf-8") for moment in ("before training", "after training"))
    with pytest.raises(ga.UserError, match='gradients of "click" have 2 entries in the model and 5 in initial'):
        ga.probe(made, (x, y), resamples=10, initial=model({task: tower() for task in TASKS}))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"normalize": "l1"}, "normalize is one of 'l2', 'batch', 'none'; received 'l1'"),
        ({"tasks": ["click"]}, "two or more; received click"),
        ({"tasks": ["click", "bye"]}, 'Did you mean "buy"'),
        ({"rows": 5}, "rows is a whole number, 30 or more"),
        ({"test_share": 1.0}, "test_share is a share of the rows"),
        ({}, 'Task "buy" has 0 gradients in these rows'),
    ],
)
def test_what_cannot_be_probed_is_said(arguments, said):
    x, y = rows(150)
    y["buy"][:] = np.nan
    with pytest.raises(ga.UserError, match=said):
        ga.probe(model({task: tower() for task in TASKS}), (x, y), **arguments)


def test_a_model_that_cannot_be_probed_is_said():
    x, y = rows(60)
    with pytest.raises(ga.UserError, match="where the shared tensor is"):
        ga.probe(model({task: tower() for task in TASKS}, shared=None), (x, y))
    with pytest.raises(ga.UserError, match="The data has no labels"):
        ga.probe(model({task: tower() for task in TASKS}), (x,))
