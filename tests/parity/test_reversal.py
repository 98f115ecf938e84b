"""Gradient reversal, orders 1 to 3: (-a)^n f^(n) by hand and in PyTorch."""

from __future__ import annotations

import math

import keras
import numpy as np
import pytest
import tensorflow as tf
import torch

import gradalign as ga

from . import oracle

FUNCTIONS = {  # f in both frameworks, and f', f'', f''' by hand
    "cubic": (lambda x: x**3 - 2.0 * x, lambda x: x**3 - 2.0 * x, lambda x: (3 * x**2 - 2, 6 * x, 6.0)),
    "exp": (tf.exp, torch.exp, lambda x: (math.exp(x),) * 3),
    "sin": (tf.sin, torch.sin, lambda x: (math.cos(x), -math.sin(x), -math.cos(x))),
}
POINT = 0.8


def three_orders(f, reverse, point):
    """f(R(x)) differentiated once, twice, three times."""
    x = tf.constant(point, tf.float64)
    with tf.GradientTape() as third:
        third.watch(x)
        with tf.GradientTape() as second:
            second.watch(x)
            with tf.GradientTape() as first:
                first.watch(x)
                value = f(reverse(x))
            one = first.gradient(value, x)
        two = second.gradient(one, x)
    three = third.gradient(two, x)
    return value, one, two, three


WAYS = {
    "function": lambda a: lambda x: ga.reverse_gradient(x, a),
    "function, by keyword": lambda a: lambda x: ga.reverse_gradient(x=x, strength=a),
    "layer": ga.GradientReversal,
}


def three_orders_in_torch(f, strength, point):
    x = torch.tensor(point, dtype=torch.float64, requires_grad=True)
    found = f(oracle.reverse(x, strength))
    values = [found.item()]
    for _ in range(3):
        (found,) = torch.autograd.grad(found, x, create_graph=True)
        values.append(found.item())
    return values


@pytest.mark.parametrize("mode", ["eager", "graph", "jit"])
@pytest.mark.parametrize("way", WAYS)
def test_orders_one_to_three(way, mode, floatx):
    """All functions and strengths in one traced function."""
    reversals = {strength: WAYS[way](strength) for strength in (1.0, 0.3, 0.0)}

    def run():
        return {
            (name, strength): three_orders(in_keras, reverse, POINT)
            for name, (in_keras, _, _) in FUNCTIONS.items()
            for strength, reverse in reversals.items()
        }

    found = (run if mode == "eager" else tf.function(run, jit_compile=mode == "jit"))()
    assert len(found) == 9
    for (name, strength), values in found.items():
        got = [float(v) for v in values]
        _, in_torch, by_hand = FUNCTIONS[name]
        wanted = three_orders_in_torch(in_torch, strength, POINT)
        np.testing.assert_allclose(got, wanted, rtol=1e-12, atol=1e-15, err_msg=f"{name}, {strength}")
        hand = [(-strength) ** n * derivative for n, derivative in enumerate(by_hand(POINT), start=1)]
        np.testing.assert_allclose(got[1:], hand, rtol=1e-12, atol=1e-15, err_msg=f"{name}, {strength}")


def test_a_change_of_strength_reaches_a_traced_function(floatx):
    reverse = ga.GradientReversal(1.0)
    traces = []

    @tf.function
    def slope(x):
        traces.append(1)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = reverse(x) ** 2
        return tape.gradient(y, x)

    x = tf.constant(3.0, tf.float64)
    found = []
    for strength in (1.0, 0.25, 0.0):
        reverse.strength.assign(strength)
        found.append(float(slope(x)))
    np.testing.assert_allclose(found, [-6.0, -1.5, 0.0], atol=1e-15)
    assert len(traces) == 1 and isinstance(reverse.strength, keras.Variable)
