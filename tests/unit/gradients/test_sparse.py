"""Rows of a table that a batch looks up several times are one row to the optimizer."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
import torch

from gradalign.gradients.sparse import sum_repeated_rows

IDS, PARTS = [3, 0, 3, 3, 1], [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [-2.0, 1.0], [0.5, 0.0]]


def repeated() -> tf.IndexedSlices:
    return tf.IndexedSlices(tf.constant(PARTS), tf.constant(IDS), tf.constant([5, 2]))


@pytest.mark.parametrize("jit_compile", [None, False, True])
def test_each_row_once_with_the_sum_of_its_parts(jit_compile):
    def dense() -> tf.Tensor:
        return tf.convert_to_tensor(sum_repeated_rows(repeated()))

    found = dense() if jit_compile is None else tf.function(dense, jit_compile=jit_compile)()
    np.testing.assert_array_equal(found, [[3, 4], [0.5, 0], [0, 0], [4, 9], [0, 0]])
    assert sorted(sum_repeated_rows(repeated()).indices.numpy().tolist()) == [0, 1, 3]


def test_others_pass_as_they_are():
    tensor = tf.constant([1.0])
    assert sum_repeated_rows(tensor) is tensor
    assert sum_repeated_rows(None) is None


def test_adam_then_moves_the_table_as_pytorch_does():
    table = keras.Variable(np.zeros((5, 2)), dtype="float64")
    optimizer = keras.optimizers.Adam(0.05, epsilon=1e-30)
    optimizer.build([table])
    oracle = torch.zeros(5, 2, dtype=torch.float64, requires_grad=True)
    adam = torch.optim.Adam([oracle], lr=0.05, eps=1e-30)
    for factor in (1.0, -3.0, 0.5):
        parts = tf.IndexedSlices(tf.constant(PARTS, tf.float64) * factor, tf.constant(IDS), tf.constant([5, 2]))
        optimizer.apply_gradients([(sum_repeated_rows(parts), table)])
        adam.zero_grad()
        (oracle[torch.tensor(IDS)] * torch.tensor(PARTS, dtype=torch.float64) * factor).sum().backward()
        adam.step()
    np.testing.assert_allclose(table.value.numpy(), oracle.detach().numpy(), atol=1e-4)
