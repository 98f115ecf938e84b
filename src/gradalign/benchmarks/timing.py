"""Turns and rounds: how rows are timed so that they can be compared, and what is made of the times."""

from __future__ import annotations

import dataclasses
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence

__all__ = ["Spread", "Timings", "paired_ratio", "spread"]


@dataclasses.dataclass(frozen=True)
class Spread:
    """Median and quartiles of `count` values."""

    median: float
    lower: float
    upper: float
    count: int


def spread(values: Sequence[float]) -> Spread | None:
    """Return median and quartiles; `None` where there is no value.

    >>> spread([4.0, 1.0, 2.0, 3.0, 5.0])
    Spread(median=3.0, lower=2.0, upper=4.0, count=5)
    """
    if not values:
        return None
    if len(values) == 1:
        return Spread(values[0], values[0], values[0], 1)
    lower, median, upper = statistics.quantiles(values, n=4, method="inclusive")
    return Spread(median, lower, upper, len(values))


def paired_ratio(of: Sequence[float], over: Sequence[float]) -> Spread | None:
    """Return the spread of `of[i] / over[i]`, of the rounds that both have.

    The median of ratios, not the ratio of medians: a round in which the machine was slow counts as any other.

    >>> paired_ratio([2.0, 30.0, 4.0], [1.0, 10.0, 1.0]).median
    3.0
    """
    return spread([a / b for a, b in zip(of, over, strict=False)])


class Timings:
    """Seconds a step of every row, one number for each round that was finished.

    Args:
        steps: steps of a turn that are timed together.
        untimed: steps at the start of a turn that are not: threads and caches are still those of the row before.
        clock: seconds.
        wait: returns when all work that was begun is done, as on a GPU.
        seed: of the orders.
    """

    def __init__(
        self,
        steps: int,
        untimed: int,
        *,
        clock: Callable[[], float] = time.perf_counter,
        wait: Callable[[], object] = lambda: None,
        seed: int = 0,
    ) -> None:
        self.steps, self.untimed = steps, untimed
        self.seconds: dict[str, list[float]] = {}
        self._clock, self._wait, self._random = clock, wait, random.Random(seed)

    def run(
        self,
        rows: Mapping[str, Callable[[], object]],
        rounds: int,
        told: Callable[[], object],
        seldom: Mapping[str, tuple[Callable[[], object], int]] | None = None,
    ) -> None:
        """Time every row once in each round.

        Interrupted, it leaves the rounds that were finished before.

        Args:
            rows: name -> one step.
            rounds: how often.
            told: called after each round.
            seldom: name -> what a row does on top of its steps, and every how many; it is timed once a turn, and each
                step gets its share.
        """
        self.seconds.update({name: [] for name in rows if name not in self.seconds})
        for _ in range(rounds):
            order = list(rows)
            self._random.shuffle(order)
            of_round = {name: self._turn(rows[name], (seldom or {}).get(name)) for name in order}
            for name, seconds in of_round.items():
                self.seconds[name].append(seconds)
            told()

    def _turn(self, step: Callable[[], object], seldom: tuple[Callable[[], object], int] | None) -> float:
        for _ in range(self.untimed):
            step()
        seconds = self._time(step, self.steps) / self.steps
        return seconds if seldom is None else seconds + self._time(seldom[0], 1) / seldom[1]

    def _time(self, work: Callable[[], object], times: int) -> float:
        self._wait()
        started = self._clock()
        for _ in range(times):
            work()
        self._wait()
        return self._clock() - started
