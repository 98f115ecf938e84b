"""Totals, losses and masks of one forward pass."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from gradalign.errors import UserError
from gradalign.tasks import Forward

NAN = float("nan")
PREDICTIONS = {"a": tf.constant([[1.0], [2.0], [4.0]]), "b": tf.constant([1.0, 1.0, 1.0])}
LABELS = {"a": tf.constant([0.0, 0.0, NAN]), "b": tf.constant([[3.0], [NAN], [NAN]])}


def filled(y=None, weight=None, losses=None, known=("a", "b")):
    forward = Forward()
    forward.add_losses(losses or {"a": "mse", "b": "mse"}, PREDICTIONS, LABELS if y is None else y, weight, list(known))
    return forward


def test_means_over_labelled_rows():
    """a: (1 + 4) / 2; b: 4 / 1."""
    forward = filled()
    assert {t: float(v) for t, v in forward.totals.items()} == {"a": 5.0, "b": 4.0}
    assert {t: float(v) for t, v in forward.losses.items()} == {"a": 2.5, "b": 4.0}
    assert {t: m.numpy().tolist() for t, m in forward.masks.items()} == {
        "a": [True, True, False],
        "b": [True, False, False],
    }
    assert float(forward.batch_rows) == float(forward.global_rows) == 3.0


def test_weighted_means():
    """a: (3·1 + 1·4) / 4; b has no weights of its own."""
    forward = filled(weight={"a": tf.constant([3.0, 1.0, 5.0])})
    assert {t: float(v) for t, v in forward.totals.items()} == {"a": 7.0, "b": 4.0}
    assert {t: float(v) for t, v in forward.losses.items()} == {"a": 1.75, "b": 4.0}


def test_no_label_at_all_gives_zero():
    forward = filled(y={"a": tf.fill([3], NAN), "b": tf.fill([3, 1], NAN)})
    assert [float(v) for v in (*forward.totals.values(), *forward.losses.values())] == [0.0] * 4


def test_predictions_of_unlabelled_rows_do_not_matter():
    """Not even where their loss is NaN."""
    p = tf.constant([[1.0], [NAN], [float("inf")]])
    with tf.GradientTape() as tape:
        tape.watch(p)
        forward = Forward()
        forward.add_losses({"a": "mse"}, {"a": p}, {"a": tf.constant([0.0, NAN, NAN])}, None, ["a"])
        loss = forward.losses["a"]
    assert float(loss) == 1.0
    assert tape.gradient(loss, p).numpy()[0].tolist() == [2.0]


def test_labels_of_tasks_without_a_loss_are_passed_over():
    forward = filled(losses={"b": "mse"})
    assert list(forward.totals) == list(forward.predictions) == list(forward.rows) == ["b"]


@pytest.mark.parametrize("extra", [{"c": tf.zeros([3])}, {"c": np.zeros(3)}])
def test_labels_of_unknown_tasks_are_an_error(extra):
    with pytest.raises(UserError, match='unknown task "c"'):
        filled(y={**LABELS, **extra})
