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

from semistream.algorithms.registry import ALGORITHMS
from semistream.cost.clock import CostClock
from semistream.engine.chunk import JoinStats
from semistream.engine.join import SemiStreamJoin
from semistream.planner.plan import Candidate, JoinPlan
from semistream.planner.policy import Policy


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

    def __init__(self, plan: JoinPlan, policy: Policy | None = None) -> None:
        self.plan = plan
        self._policy = Policy() if policy is None else policy
        self._waiting: list[Candidate] | None = None
        self._stretch: _Stretch | None = None
        self._pace = _Pace()
        self._usual: float | None = None

    @property
    def begun(self) -> bool:
        """Whether it is known which operators take part."""
        return self._waiting is not None

    def begin(self, plan: JoinPlan, running: Candidate, expected: Callable[[Candidate], float]) -> None:
        """Choose by a newer plan who takes part beside the one that runs; `expected` gives a candidate's rate."""
        self.plan, policy = plan, self._policy
        ranked = sorted((each for each in plan.candidates if self._leaves_soon(each)), key=expected, reverse=True)
        close = [each for each in ranked if expected(each) >= policy.close * expected(ranked[0])]
        others = [each for each in close if each.algorithm != running.algorithm]
        self._waiting = others[: policy.most_tried - 1] if self._leaves_soon(running) else []

    def is_shown(self, join: SemiStreamJoin) -> bool:
        """Asked after every batch: whether the join has shown what it can do."""
        stretch = self._stretch
        if stretch is None or stretch.join is not join:
            self._stretch = stretch = _Stretch(join)
        spent = join.seconds - stretch.seconds
        if not stretch.counts:
            if spent >= self._policy.window_s:
                self._look(stretch)
            return False
        if spent >= self._policy.pace_s * (len(stretch.paces) + 1):
            stretch.paces.append(self._pace.seconds())
        return spent >= self._policy.stretch_s

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

    def _look(self, stretch: _Stretch) -> None:
        """The end of a window: if hits have come to rest what follows counts, and after a while it counts anyway."""
        now, before = stretch.join.stats, stretch.stats
        asked = now.cache_hits + now.cache_misses - before.cache_hits - before.cache_misses
        hits = (now.cache_hits - before.cache_hits) / asked if asked else 0.0
        stretch.at_rest = (
            now.has_turned_over and stretch.hits is not None and abs(hits - stretch.hits) <= self._policy.at_rest
        )
        stretch.stats, stretch.seconds, stretch.hits = copy.copy(now), stretch.join.seconds, hits
        stretch.counts = stretch.at_rest or stretch.seconds >= self._policy.most_warm_s

    def _leaves_soon(self, candidate: Candidate) -> bool:
        if ALGORITHMS[candidate.algorithm].access != "scan" or not candidate.carried:
            return True
        found = candidate.prediction
        return found.symbols.get("k", 1.0) * found.c_loop <= self._policy.longest_cycle_s


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
