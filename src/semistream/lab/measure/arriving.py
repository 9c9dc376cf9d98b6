"""A join whose tuples arrive by a clock: what it takes at once, and what it holds, then follow from the arrival rate.

    turn:  take what has arrived -> one turn of the disk phase, if somebody waits -> again

This is the main loop of the papers: a chunk is as large as the stream made it while the last turn went on (ssbj2019,
section 3), and the disk phase goes on when the stream buffer is empty (sscj2013, section 4.1; oxhybridjoin2012,
algorithm 1). A saturated stream, as in `steady.py`, fills all memory there is whatever it is; here memory is what the
rate needs. The clock is one of `delays.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.engine.join import SemiStreamJoin
from semistream.lab.measure.delays import Clock
from semistream.lab.workloads.arrivals import SECOND, BurstyArrivals
from semistream.lab.workloads.relation import SyntheticStream

Floats = npt.NDArray[np.float64]

#: a pause ends when so many have arrived: one by one would only count calls
_LEAST_TAKEN = 16
#: a bursty run is so many steps of its quickest source long; the slowest changes every 32 of them
_STEPS = 512
#: what follows the arrival rate; disk buffer, index and scratch are there whatever arrives
FOLLOWING = ("pending table", "cache", "key filter", "var blocks")


class Schedule(Protocol):
    """When tuples arrive, in seconds from the beginning."""

    def arrived(self, seconds: float) -> int:
        """How many have arrived by then."""

    def moment(self, number: int) -> float:
        """When as many as `number` have arrived."""

    def moments(self, numbers: npt.NDArray[np.int64]) -> Floats:
        """When the tuples of these numbers, the first being 0, arrived."""


@dataclass(frozen=True)
class Even:
    """Equal distances."""

    rate_per_s: float

    def arrived(self, seconds: float) -> int:
        # A moment that was waited for must have come: one part in a thousand million is the clock's rounding.
        return int(seconds * self.rate_per_s * (1 + 1e-9))

    def moment(self, number: int) -> float:
        return number / self.rate_per_s

    def moments(self, numbers: npt.NDArray[np.int64]) -> Floats:
        return (numbers + 1) / self.rate_per_s


@dataclass(frozen=True)
class Listed:
    """Given moments, rising; behind the last one nobody comes."""

    seconds: Floats

    def arrived(self, seconds: float) -> int:
        return int(np.searchsorted(self.seconds, seconds * (1 + 1e-9), side="right"))

    def moment(self, number: int) -> float:
        return float(self.seconds[min(number, len(self.seconds)) - 1])

    def moments(self, numbers: npt.NDArray[np.int64]) -> Floats:
        return np.asarray(self.seconds[numbers])


def even(rate_per_s: float, tuples: int, seed: int) -> Listed:
    """So many tuples at equal distances: the counterpart of `bursty`, in which the seed decides nothing."""
    return Listed(Even(rate_per_s).moments(np.arange(tuples)))


def bursty(rate_per_s: float, tuples: int, seed: int) -> Listed:
    """So many tuples in bursts of every length, at this rate over the whole of them.

    The mean rate of heavy tails is reached slowly; so that bursts are compared with an even stream of the same rate,
    time is stretched until the last tuple comes when it should.
    """
    whole = tuples / rate_per_s
    step = min(max(whole / _STEPS, 1e-6), 3600.0)
    times = BurstyArrivals(rate_per_s, seed, step_s=step).times(0, tuples) / SECOND
    return Listed(times * (whole / times[-1]))


@dataclass(frozen=True)
class Sample:
    """What a join held after a turn."""

    seconds: float
    #: of the parts that follow the rate, and of all
    bytes: int
    all_bytes: int
    waiting: int
    r_cycles: int
    #: stream tuples that had arrived and were not taken yet
    behind: int


class Arriving:
    """A join that takes its stream as it arrives."""

    def __init__(self, join: SemiStreamJoin, stream: SyntheticStream, first: int = 0) -> None:
        self._join, self._stream = join, stream
        #: number of the next stream tuple
        self.position = first

    def turns(self, schedule: Schedule, clock: Clock, stays: list[Floats] | None = None) -> Iterator[Sample]:
        """Go on without end, turn by turn. `stays` gets the seconds from each tuple's arrival to its row."""
        join, first, taken = self._join, self.position, 0
        while True:
            begun = clock.now()
            arrived = schedule.arrived(begun)
            if arrived == taken and not join.waiting:
                clock.idle_until(schedule.moment(taken + _LEAST_TAKEN))
                arrived = schedule.arrived(clock.now())
            behind = arrived - taken
            if behind:
                clock.pushing(behind)
                made = join.push(self._stream.rows(first + taken, first + arrived))
                _note(made, schedule, clock, first, stays)
                taken = arrived
                self.position = first + taken
            if join.waiting:
                _note(join.advance(), schedule, clock, first, stays)
            held = join.memory.now
            yield Sample(
                clock.now(),
                sum(held.get(name, 0) for name in FOLLOWING),
                sum(held.values()),
                join.waiting,
                join.stats.r_cycles,
                behind,
            )
            if not behind and not join.waiting and schedule.arrived(schedule.moment(taken + 1)) <= taken:
                return


def _note(
    made: Iterator[pa.RecordBatch], schedule: Schedule, clock: Clock, first: int, stays: list[Floats] | None
) -> None:
    """Let go of the rows; of tuples of this schedule the time they took is kept."""
    for output in made:
        if stays is not None:
            numbers = output.column("seq").to_numpy() - first
            stays.append(clock.now() - schedule.moments(numbers[numbers >= 0]))


def at_rest(values: Sequence[float], part: float = 1 / 3, change: float = 0.05) -> tuple[float, bool]:
    """The mean of the last part of the values, and whether the part before it had about the same."""
    count = max(int(len(values) * part), 1)
    last, before = values[-count:], values[-2 * count : -count]
    mean = float(np.mean(last))
    if not before:
        return mean, False
    return mean, abs(float(np.mean(before)) - mean) <= change * max(mean, 1e-12)
