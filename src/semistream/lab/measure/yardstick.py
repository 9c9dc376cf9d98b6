"""A fixed piece of work, timed beside other work: what the machine is worth now.

A machine that others use changes its speed within seconds. Times in units of the yardstick do not.

The work is done in arrays of its own, some times before it is timed, and builds nothing: so it takes the same time
whatever was done before it. A join would not do. It takes a third longer when another one has run, for that leaves the
CPU's caches and the allocator in another state, and times in units of it would say less of the machine than of that.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np

Clock = Callable[[], float]

#: a table that the CPU's own cache does not hold, and the places that are read there and then put in order
_TABLE, _PLACES = 1 << 20, 1 << 16
#: how often it is done before it is timed, is timed then, and is timed for what is usual
_BEFORE, _TIMES, _REPEATS = 24, 5, 15
_SEED = 3


class Yardstick:
    """Reads at random, and a sort."""

    def __init__(self) -> None:
        random = np.random.default_rng(_SEED)
        self._table = random.permutation(_TABLE).astype(np.int64)
        self._places = random.integers(0, _TABLE, _PLACES)
        self._found = np.empty(_PLACES, dtype=np.int64)
        self._usual: dict[Clock, float] = {}
        self.seconds(time.perf_counter)

    def usual(self, now: Clock) -> float:
        """Seconds of the work when it was first asked for: the middle one of many times."""
        if now not in self._usual:
            self._usual[now] = statistics.median(self.seconds(now) for _ in range(_REPEATS))
        return self._usual[now]

    def pace(self, now: Clock) -> float:
        """How much slower the machine is now than it was then."""
        return self.seconds(now) / self.usual(now)

    def seconds(self, now: Clock) -> float:
        """Seconds of the work by this clock: the middle one of some times."""
        for _ in range(_BEFORE):
            self._work()
        times = []
        for _ in range(_TIMES):
            start = now()
            self._work()
            times.append(now() - start)
        return statistics.median(times)

    def _work(self) -> None:
        np.take(self._table, self._places, out=self._found, mode="clip")
        self._found.sort()
