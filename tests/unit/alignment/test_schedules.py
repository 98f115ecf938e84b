"""Schedules by their formulas."""

from __future__ import annotations

import math

import numpy as np
import pytest
import tensorflow as tf

from gradalign.alignment.schedules import needs_total_steps, schedule_value, validated_schedule
from gradalign.errors import UserError

PROGRESS = [0.0, 0.1, 0.5, 1.0]


def along(schedule):
    return [float(schedule_value(validated_schedule(schedule), tf.constant(p, tf.float64))) for p in PROGRESS]


def test_ganin():
    assert along("ganin") == pytest.approx([2 / (1 + math.exp(-10 * p)) - 1 for p in PROGRESS], abs=1e-15)
    assert along("ganin")[0] == 0.0


def test_linear():
    assert along("linear") == PROGRESS


@pytest.mark.parametrize("number", [0, 0.5, 2, np.float64(0.25)])
def test_a_number_is_constant(number):
    assert along(number) == [float(number)] * 4
    assert not needs_total_steps(validated_schedule(number))


def test_a_function_of_progress():
    assert along(lambda p: 1.0 - p) == [1.0 - p for p in PROGRESS]
    assert along(lambda p: 0.5) == [0.5] * 4
    assert needs_total_steps(validated_schedule(lambda p: 0.5))


def test_values_are_float64():
    for schedule in ("ganin", 0.5, lambda p: tf.cast(p, tf.float32)):
        assert schedule_value(validated_schedule(schedule), tf.constant(0.5, tf.float64)).dtype == tf.float64


@pytest.mark.parametrize("schedule", ["gannin", "", -0.5, float("inf"), None, True, [1.0], {}])
def test_bad_schedules_are_quoted(schedule):
    with pytest.raises(UserError, match="schedule") as caught:
        validated_schedule(schedule)
    assert repr(schedule) in str(caught.value)


def test_the_nearest_name_is_offered():
    with pytest.raises(UserError, match='Did you mean "linear"'):
        validated_schedule("liner")
