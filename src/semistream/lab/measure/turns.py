"""Timed turns: how many stream tuples per second something joins, and how that compares with something else.

What is compared takes turns, so that a machine that changes its speed touches both sides. Batches are made outside of
the timed part; all rows of the output are built and let go of as they come.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa

Join = Callable[[pa.RecordBatch], Iterator[pa.RecordBatch]]


class Performance:
    """Somebody who joins batches, and how much was joined so far."""

    def __init__(self, join: Join, batches: Iterator[pa.RecordBatch]) -> None:
        self._join = join
        #: may be exchanged between two turns
        self.batches = batches
        self.tuples_in = 0
        self.rows_out = 0
        #: tuples per second of each turn that `take_turns` gave
        self.rates: list[float] = []

    def batch(self) -> float:
        """Join one batch; its seconds."""
        batch = next(self.batches)
        started = time.perf_counter()
        for output in self._join(batch):
            self.rows_out += output.num_rows
        seconds = time.perf_counter() - started
        self.tuples_in += batch.num_rows
        return seconds

    def turn(self, least_seconds: float) -> tuple[int, float]:
        """Tuples and seconds of one turn: whole batches, as many as fill the time, at least one."""
        before, spent = self.tuples_in, self.batch()
        while spent < least_seconds:
            spent += self.batch()
        return self.tuples_in - before, spent

    def rate(self, least_seconds: float) -> float:
        """Tuples per second of one turn."""
        tuples, seconds = self.turn(least_seconds)
        return tuples / seconds

    @property
    def median(self) -> float:
        """The middle one of the rates."""
        return statistics.median(self.rates)


def take_turns(performances: Sequence[Performance], turns: int, seconds: float) -> None:
    """One turn each, again and again, the order reversed every time."""
    for number in range(turns):
        for performance in performances if number % 2 == 0 else performances[::-1]:
            performance.rates.append(performance.rate(seconds))


def ratios(one: Sequence[float], other: Sequence[float]) -> list[float]:
    """One over the other, turn by turn."""
    return [a / b for a, b in zip(one, other, strict=True)]
