"""A trial: the closest candidates join a stretch of the stream each, and that corrects their formulas.

The counts of a prediction are right to a percent, its unit costs to a fifth, and good candidates differ by less than
that. An operator whose hit rate is steady shows its rate. Of one whose cache is still filling, what a stretch took
beside what its own counts should have taken says how far the unit costs are off here and now. The rows that come out
are those of the join: nothing is done twice.

A machine that others use changes its speed within seconds, so a stretch is counted in units of a fixed piece of work
that is timed beside it.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median

import numpy as np

from semistream.cost.clock import CostClock
from semistream.operators.base import SemiStreamJoin
from semistream.operators.chunk import JoinStats
from semistream.operators.registry import OPERATORS
from semistream.planner.plan import Candidate, Plan

#: operators that promise this part of the best rate take part, this many at most
_CLOSE, _MOST = 0.5, 6
#: seconds of work: windows in which the hit rate must have become steady, the most of this, and a stretch
_WINDOW_S, _MOST_WARM_S, _STRETCH_S = 0.25, 3.0, 0.5
#: by how much hits may differ from window to window: a cache that fills within minutes is not steady
_AT_REST = 0.004
#: to leave a scan takes an R-cycle: where that is longer, no trial is worth it
_LONGEST_CYCLE_S = 3.0
#: how often the fixed piece of work is timed
_PACE_S = 0.02


@dataclass
class _Stretch:
    """The work of one operator: when it was last looked at, and since when it counts."""

    join: SemiStreamJoin
    stats: JoinStats = field(default_factory=JoinStats)
    seconds: float = 0.0
    hits: float | None = None
    counts: bool = False
    at_rest: bool = False
    paces: list[float] = field(default_factory=list)


class Trial:
    """Which operators are still to be tried, and whose stretch is running. It begins with the operator that is open."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._waiting: list[Candidate] | None = None
        self._stretch: _Stretch | None = None
        self._pace = _Pace()
        self._usual: float | None = None

    @property
    def begun(self) -> bool:
        """Whether it is known which operators take part."""
        return self._waiting is not None

    def begin(self, plan: Plan, running: Candidate, expected: Callable[[Candidate], float]) -> None:
        """Choose by a newer plan which operators to try beside the running one; `expected` gives a candidate's rate."""
        self.plan = plan
        ranked = sorted((each for each in plan.candidates if _leaves_soon(each)), key=expected, reverse=True)
        close = [each for each in ranked if expected(each) >= _CLOSE * expected(ranked[0])]
        others = [each for each in close if each.algorithm != running.algorithm]
        self._waiting = others[: _MOST - 1] if _leaves_soon(running) else []

    def is_shown(self, join: SemiStreamJoin) -> bool:
        """Asked after every batch: whether the join has shown what it can do."""
        stretch = self._stretch
        if stretch is None or stretch.join is not join:
            self._stretch = stretch = _Stretch(join)
        spent = join.seconds - stretch.seconds
        if not stretch.counts:
            if spent >= _WINDOW_S:
                _look(stretch)
            return False
        if spent >= _PACE_S * (len(stretch.paces) + 1):
            stretch.paces.append(self._pace.seconds())
        return spent >= _STRETCH_S

    def achieved(self, running: Candidate, batch: int) -> float:
        """The part of its predicted speed that the candidate reached in the stretch that has ended."""
        stretch = self._stretch
        assert stretch is not None
        pace = median(stretch.paces) if stretch.paces else self._pace.seconds()
        if self._usual is None:
            self._usual = pace
        join, before = stretch.join, stretch.stats
        seconds = (join.seconds - stretch.seconds) * self._usual / pace
        finished = join.stats.finished - before.finished
        if stretch.at_rest and finished:
            return finished / seconds / running.rate_per_s
        return CostClock(self.plan.profile).since(join, before, batch=batch).seconds / seconds

    def next(self) -> Candidate | None:
        """The operator that is to be opened now."""
        return self._waiting.pop(0) if self._waiting else None


def _look(stretch: _Stretch) -> None:
    """The end of a window: if the hit rate is steady, what follows counts, and after a while it counts anyway."""
    now, before = stretch.join.stats, stretch.stats
    asked = now.cache_hits + now.cache_misses - before.cache_hits - before.cache_misses
    hits = (now.cache_hits - before.cache_hits) / asked if asked else 0.0
    stretch.at_rest = now.has_turned_over and stretch.hits is not None and abs(hits - stretch.hits) <= _AT_REST
    stretch.stats, stretch.seconds, stretch.hits = copy.copy(now), stretch.join.seconds, hits
    stretch.counts = stretch.at_rest or stretch.seconds >= _MOST_WARM_S


class _Pace:
    """Look-ups all over a small table: what every operator does most."""

    def __init__(self) -> None:
        self._table = np.arange(1 << 14)
        self._places = np.random.default_rng(1).integers(0, len(self._table), 1 << 13)

    def seconds(self) -> float:
        """Time of the work now: the shortest of three."""
        times = []
        for _ in range(3):
            started = time.perf_counter()
            for _ in range(8):
                self._table.take(self._places)
            times.append(time.perf_counter() - started)
        return min(times)


def _leaves_soon(candidate: Candidate) -> bool:
    if OPERATORS[candidate.algorithm].access != "scan" or not candidate.carried:
        return True
    found = candidate.prediction
    return found.symbols.get("k", 1.0) * found.c_loop <= _LONGEST_CYCLE_S
