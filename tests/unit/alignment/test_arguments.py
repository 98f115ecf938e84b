import pytest
import tensorflow as tf

import gradalign as ga

ROWS = tf.ones([4, 3])


@pytest.mark.parametrize(
    ("grads", "words"),
    [
        ({"a": None, "b": ROWS}, 'The gradient of task "a" is None'),
        ({"a": ROWS, "b": tf.ones([4, 2])}, r'"a" has \(4, 3\) and "b" \(4, 2\)'),
        ({"a": ROWS, "b": tf.ones([5, 3])}, r'"a" has \(4, 3\) and "b" \(5, 3\)'),
        ({"a": [ROWS, ROWS], "b": [ROWS]}, "their shapes are equal"),
        ([ROWS, ROWS], "takes {task: gradient}; received list"),
        ({}, "takes {task: gradient}; received dict"),
    ],
    ids=["none", "width", "rows", "number of tensors", "list", "empty"],
)
def test_gradients_that_do_not_go_together(grads, words):
    with pytest.raises(ga.UserError, match=words):
        ga.AdversarialAlignment(schedule=1.0)(grads)


def test_a_mask_of_another_batch():
    with pytest.raises(ga.UserError, match='mask of task "b" has 3 rows and its gradient 4'):
        ga.AdversarialAlignment(schedule=1.0)({"a": ROWS, "b": ROWS}, masks={"b": tf.ones([3])})
