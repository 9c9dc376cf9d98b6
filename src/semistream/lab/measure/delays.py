"""How long tuples stay: in the join (processing time), and in front of it (waiting time).

A tuple is loaded when its batch is pushed, and done when its output row appears; in between the clock goes on, be it
the wall's or a cost clock that reads the operator's counts. In front of the join tuples wait in the stream buffer: they
arrive at equal distances, and the join takes what has arrived as soon as it is free.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping
from functools import partial
from typing import Any, Protocol

import numpy as np

from semistream.cost.clock import CostClock, counted
from semistream.cost.profile import CostProfile
from semistream.engine.join import SemiStreamJoin
from semistream.lab.figure import Way
from semistream.lab.measure.pace import Pace, Watch
from semistream.lab.measure.runs import Estimate
from semistream.lab.measure.steady import Warmed, push, push_next, warm
from semistream.lab.measure.together import Together
from semistream.lab.workloads.relation import SyntheticStream
from semistream.lab.workloads.workload import Reading

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
#: the stream buffer hands over no fewer tuples at once: at the rates of interest they arrive in microseconds
_LEAST_TAKEN = 16
_SEGMENTS = 5
#: arrival rates, as parts of what the slowest algorithm can serve
LOADS = (0.2, 0.4, 0.6, 0.8)
#: tuples of a rate: enough for some turns of the main loop, which are what a tuple waits for
_TURNS_PER_LOAD, _LEAST_TUPLES, _MOST_TUPLES = 10, 12_000, 200_000
#: a shorter wait is none, but what is left of a difference of two moments
_LEAST_WAIT_S = 1e-9


class Clock(Protocol):
    """Time of a join's work, in seconds."""

    def now(self) -> float: ...

    def pushing(self, tuples: int) -> None:
        """So many tuples are about to be pushed: chunks are not among a join's own counts."""

    def idle_until(self, moment: float) -> None: ...


class WallClock:
    """Real time."""

    def __init__(self) -> None:
        self._start = time.perf_counter()

    def now(self) -> float:
        return time.perf_counter() - self._start

    def pushing(self, tuples: int) -> None:
        pass

    def idle_until(self, moment: float) -> None:
        # A sleep ends late by more than the distance of two tuples, so the last part is waited out.
        if moment - self.now() > 0.002:
            time.sleep(moment - self.now() - 0.001)
        while self.now() < moment:
            pass


class VirtualClock:
    """The cost clock of a join that works, and stands while it has nothing to do."""

    def __init__(self, join: SemiStreamJoin, profile: CostProfile) -> None:
        self._join = join
        self._clock = CostClock(profile)
        self._before = copy.copy(join.stats)
        self._chunks = 0
        self._idle = 0.0

    def now(self) -> float:
        counts = {**counted(self._join, self._before), "chunks": float(self._chunks)}
        worked = self._clock.price_of(self._join, counts)
        return worked.seconds + self._idle

    def pushing(self, tuples: int) -> None:
        self._chunks += -(-tuples // self._join.plan.division.chunk_rows)

    def idle_until(self, moment: float) -> None:
        self._idle += max(moment - self.now(), 0.0)


def clock_of(way: Way, join: SemiStreamJoin, profiles: dict[str, CostProfile]) -> Clock:
    return WallClock() if way == "wall" else VirtualClock(join, profiles[way])


def distribution(values: np.ndarray) -> dict[str, Any]:
    """Mean with its interval from means of consecutive segments, and the quantiles, in seconds."""
    parts = [float(part.mean()) for part in np.array_split(values, _SEGMENTS) if len(part)]
    mean = Estimate.of(parts)
    return {
        "mean": mean.mean,
        "low": mean.low,
        "high": mean.high,
        "n": mean.n,
        "quantiles": [float(value) for value in np.quantile(values, QUANTILES)],
    }


def run_delays(
    join: SemiStreamJoin,
    stream: SyntheticStream,
    batch: int,
    profiles: dict[str, CostProfile],
    ways: tuple[Way, ...],
    rates_per_s: Mapping[str, list[float]] | None,
    together: Together | None = None,
    pace: Pace | None = None,
) -> dict[str, Any]:
    """Warm up; processing times at full speed by all clocks at once; then waiting times at each rate, clock by clock.

    Without rates they are parts of what this join serves at full speed.
    """
    reading, others = Reading(stream), together or Together()
    warmed = warm(join, partial(push_next, join, reading.batches(batch), others))
    with others.alone():
        watch = (pace or Pace()).watch(join)
        found = _times(join, stream, reading.position, warmed, batch, profiles, ways, rates_per_s, watch)
        return {**found, "taken": watch.taken()}


def _times(
    join: SemiStreamJoin,
    stream: SyntheticStream,
    position: int,
    warmed: Warmed,
    batch: int,
    profiles: dict[str, CostProfile],
    ways: tuple[Way, ...],
    rates_per_s: Mapping[str, list[float]] | None,
    watch: Watch,
) -> dict[str, Any]:
    turns = 2 * -(-max(warmed.block_tuples, 4 * batch) // batch)
    processing, capacity = _at_full_speed(join, stream, position, turns, batch, profiles, ways)
    watch.look()
    position += turns * batch
    tuples = int(min(max(_TURNS_PER_LOAD * warmed.loop_tuples, _LEAST_TUPLES), _MOST_TUPLES))
    waiting: dict[str, list[dict[str, Any]]] = {}
    chosen: Mapping[str, list[float]] = rates_per_s or {way: [load * capacity[way] for load in LOADS] for way in ways}
    for way in ways:
        waiting[way] = []
        for rate in chosen[way]:
            found = _at_rate(join, stream, position, tuples, rate, clock_of(way, join, profiles))
            position += tuples
            waiting[way].append({"rate_per_s": rate, **distribution(found)})
            if way == "wall":
                watch.look()
    return {"processing": processing, "waiting": waiting, "capacity": capacity, "steady": warmed.steady}


def _at_full_speed(
    join: SemiStreamJoin,
    stream: SyntheticStream,
    first: int,
    count: int,
    batch: int,
    profiles: dict[str, CostProfile],
    ways: tuple[Way, ...],
) -> tuple[dict[str, Any], dict[str, float]]:
    """Time from push to output row in `count` batches; of their first half, for those of the second may still wait."""
    clocks = {way: clock_of(way, join, profiles) for way in ways}
    loaded = {way: np.empty(count) for way in ways}
    stays: dict[str, list[np.ndarray]] = {way: [] for way in ways}
    ready = [stream.rows(first + turn * batch, first + (turn + 1) * batch) for turn in range(count)]
    for turn, made in enumerate(ready):
        for way in ways:
            loaded[way][turn] = clocks[way].now()
            clocks[way].pushing(made.num_rows)
        for output in join.push(made):
            turns = (output.column("seq").to_numpy() - first) // batch
            known = turns[(turns >= 0) & (turns < count // 2)]
            for way in ways:
                stays[way].append(clocks[way].now() - loaded[way][known])
    ended = {way: clocks[way].now() for way in ways}
    found: dict[str, Any] = {way: distribution(np.concatenate(stays[way])) for way in ways}
    return found, {way: count * batch / ended[way] for way in ways}


def _at_rate(
    join: SemiStreamJoin, stream: SyntheticStream, first: int, tuples: int, rate: float, clock: Clock
) -> np.ndarray:
    """Seconds that each of `tuples` tuples spent in the stream buffer, at `rate` arrivals per second."""
    waits = []
    taken = 0
    while taken < tuples:
        wanted = min(taken + _LEAST_TAKEN, tuples)
        clock.idle_until(wanted / rate)
        begun = clock.now()
        arrived = min(max(int(begun * rate), wanted), tuples)
        waits.append(begun - np.arange(taken + 1, arrived + 1) / rate)
        clock.pushing(arrived - taken)
        push(join, stream.rows(first + taken, first + arrived))
        taken = arrived
    waited = np.concatenate(waits)
    return np.where(waited < _LEAST_WAIT_S, 0.0, waited)
