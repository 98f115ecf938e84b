"""Turns, rounds and what is made of them, on a clock that the test moves."""

from __future__ import annotations

import pytest

from gradalign.benchmarks.timing import Spread, Timings, paired_ratio, spread


class Clock:
    """Time that passes only in steps; `slow[i]` is how slow the machine is in round i."""

    def __init__(self, slow):
        self.now, self.slow, self.round, self.turns = 0.0, slow, 0, []

    def step(self, name, seconds):
        def run():
            self.turns.append(name)
            self.now += seconds * self.slow[self.round]

        return run

    def next_round(self):
        self.round += 1


def test_ratios_are_medians_of_pairs():
    clock = Clock(slow=[1.0, 10.0, 1.0, 3.0, 1.0])
    timings = Timings(steps=2, untimed=1, clock=lambda: clock.now)
    rows = {"plain": clock.step("plain", 1.0), "aligned": clock.step("aligned", 1.5)}
    timings.run(rows, 5, clock.next_round)
    assert timings.seconds["plain"] == pytest.approx([1.0, 10.0, 1.0, 3.0, 1.0]), "seconds of one step"
    ratio = paired_ratio(timings.seconds["aligned"], timings.seconds["plain"])
    assert (ratio.median, ratio.lower, ratio.upper, ratio.count) == pytest.approx((1.5, 1.5, 1.5, 5))


def test_what_comes_seldom_is_spread_over_the_steps():
    clock = Clock(slow=[1.0, 2.0])
    timings = Timings(steps=4, untimed=1, clock=lambda: clock.now)
    rows = {"plain": clock.step("plain", 1.0), "monitored": clock.step("monitored", 1.5)}
    timings.run(rows, 2, clock.next_round, {"monitored": (clock.step("look", 5.0), 100)})
    assert timings.seconds == {"plain": pytest.approx([1.0, 2.0]), "monitored": pytest.approx([1.55, 3.1])}
    assert clock.turns.count("look") == 2


def test_a_ratio_is_not_that_of_the_medians():
    # Medians 2 and 3; pairs 3, 1, 2, 1/2, 4.
    assert paired_ratio([3.0, 1.0, 4.0, 2.0, 20.0], [1.0, 1.0, 2.0, 4.0, 5.0]) == Spread(2.0, 1.0, 3.0, 5)
    assert spread([]) is None
    assert spread([7.0]) == Spread(7.0, 7.0, 7.0, 1)


def test_rows_take_turns_in_changing_orders():
    clock = Clock(slow=[1.0] * 9)
    rows = {name: clock.step(name, 1.0) for name in "abc"}
    Timings(steps=2, untimed=1, clock=lambda: clock.now).run(rows, 8, clock.next_round)
    turns = ["".join(clock.turns[start : start + 9]) for start in range(0, 72, 9)]
    for turn in turns:
        assert sorted({turn[:3], turn[3:6], turn[6:]}) == ["aaa", "bbb", "ccc"]
    assert len(set(turns)) > 2


def test_the_device_is_waited_for_on_both_sides_of_a_turn():
    seen = []
    timings = Timings(3, 1, clock=lambda: 0.0, wait=lambda: seen.append("wait"))
    timings.run({"a": lambda: seen.append("step")}, 1, lambda: seen.append("told"))
    assert seen == ["step", "wait", "step", "step", "step", "wait", "told"]


def test_an_interrupted_round_does_not_count():
    calls = []

    def step():
        calls.append(1)
        if len(calls) == 6:
            raise KeyboardInterrupt

    timings = Timings(1, 0)
    with pytest.raises(KeyboardInterrupt):
        timings.run({"a": step, "b": step}, 9, lambda: None)
    assert [len(seconds) for seconds in timings.seconds.values()] == [2, 2]
