"""A fixed piece of work, timed beside other work: what the machine is worth now.

A machine that others use changes its speed within seconds. Times in units of the yardstick do not.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from semistream import open_join
from semistream.lab.workloads.relation import KEY, STREAM_SCHEMA, SyntheticStream
from semistream.master.base import Master

Clock = Callable[[], float]

_TUPLES, _MEMORY, _REPEATS = 4096, 1_000_000, 15


class Yardstick:
    """Look-ups all over R, a few thousand at once, and their rows."""

    def __init__(self, master: Master) -> None:
        self._join = open_join(
            "inlj",
            master=master,
            on=KEY,
            how="inner",
            memory=_MEMORY,
            reads="mapped",
            stream_schema=STREAM_SCHEMA,
        )
        self._batch = SyntheticStream(master.n_rows, exponent=0.0).rows(0, _TUPLES)
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

    def seconds(self, now: Clock, times_done: int = 3) -> float:
        """Seconds of the work by this clock: the middle one of some times."""
        times = []
        for _ in range(times_done):
            start = now()
            for _output in self._join.push(self._batch):
                pass
            times.append(now() - start)
        return sorted(times)[times_done // 2]

    def close(self) -> None:
        self._join.close()
