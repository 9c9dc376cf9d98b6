"""A trial: the closest candidates join a stretch of the stream each, and that corrects their formulas.

The counts of a prediction are right to some percent, its unit costs to a fifth, and good candidates differ by less than
that. What a stretch took beside what was predicted for an operator of that age corrects the prediction for all that is
still to come. Of one that took more tuples in than it gave back, only what it did can be priced: that says how far the
unit costs are off. The rows that come out are those of the join: nothing is done twice.

A trial costs time: a slower operator works for a while, it loads and leaves, and what the first one has learnt is
lost. Only what is a small part of the time still to come is spent on it; as a stream goes on more is worth trying.

A machine that others use changes its speed within seconds, so a stretch is counted in units of a fixed piece of work
that is timed beside it.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from semistream.cost.clock import CostClock
from semistream.engine.chunk import JoinStats
from semistream.engine.join import SemiStreamJoin
from semistream.planner.plan import Candidate, JoinPlan
from semistream.planner.policy import Policy
from semistream.planner.prospect import Prospect, same


@dataclass(frozen=True)
class Shown:
    """What an operator did in a stretch: plain numbers, which can be kept and held against any plan."""

    #: tuples that it had had when the stretch began
    before: int
    tuples: int
    seconds: float
    #: what the fixed piece of work took meanwhile
    pace: float

    @property
    def rate_per_s(self) -> float:
        return self.tuples / max(self.seconds, 1e-9)

    def part(self, candidate: Candidate, usual_pace: float, learners: float = 1.0) -> float:
        """The part of the speed predicted for its age that the candidate reached.

        `learners` joins have learnt together, each as many tuples as this one.
        """
        seconds = max(self.seconds * usual_pace / self.pace, 1e-9)
        return candidate.outlook.seconds(self.tuples, self.before * learners) / seconds


class Stretch:
    """The work of one operator on trial: first its hits come to rest, then it counts for a while."""

    def __init__(self, join: SemiStreamJoin, policy: Policy, pace: Pace) -> None:
        self.join = join
        #: what it had done before that which counts, and how long that took
        self.stats = JoinStats()
        self._seconds = 0.0
        #: far behind the best: nobody waits for it to come to rest
        self.is_hopeless = False
        self._policy, self._pace = policy, pace
        self._hits: float | None = None
        self._counts = False
        self._paces: list[float] = []

    def is_shown(self, best: float) -> bool:
        """Asked after every batch: whether the join has shown what it can do; the `best` had so many tuples/s."""
        join, policy = self.join, self._policy
        done = join.stats.tuples_in
        if done >= policy.glance and join.seconds * best > policy.far_behind * done:
            self.stats, self._seconds, self.is_hopeless = JoinStats(), 0.0, True
            return True
        spent = join.seconds - self._seconds
        if not self._counts:
            if spent >= policy.window_s:
                self._look()
            return False
        if spent >= policy.pace_s * (len(self._paces) + 1):
            self._paces.append(self._pace.seconds())
        return spent >= policy.stretch_s

    def shown(self) -> Shown:
        """What it did in the time that counts."""
        done = self.join.stats - self.stats
        tuples = done.tuples_in if self.is_hopeless else done.finished
        pace = median(self._paces) if self._paces else self._pace.seconds()
        return Shown(int(self.stats.tuples_in), int(tuples), float(self.join.seconds - self._seconds), pace)

    def _look(self) -> None:
        """The end of a window: if hits have come to rest what follows counts, and after a while it counts anyway."""
        now, before, policy = self.join.stats, self.stats, self._policy
        asked = now.cache_hits + now.cache_misses - before.cache_hits - before.cache_misses
        hits = (now.cache_hits - before.cache_hits) / asked if asked else 0.0
        at_rest = now.has_turned_over and self._hits is not None and abs(hits - self._hits) <= policy.at_rest
        self.stats, self._seconds, self._hits = copy.copy(now), self.join.seconds, hits
        self._counts = at_rest or self._seconds >= policy.most_warm_s


def worth_trying(
    plan: JoinPlan, prospect: Prospect, policy: Policy, batch: int, tried: Collection[str] = ()
) -> list[Candidate]:
    """Who is close to the best, not tried yet, and cheap to try beside what is still to come; the best first.

    A trial must be likely to save more than it costs. Who promises much more than the operator at work may cost more.
    """
    running = prospect.running
    policy = policy.within(prospect.seconds_left)
    ranked = sorted((each for each in plan.candidates if _leaves_soon(each, policy)), key=prospect.rate, reverse=True)
    if not ranked or not _leaves_soon(running, policy):
        return []
    best = max(prospect.rate(ranked[0]), prospect.rate(running))
    left = policy.trial_share * prospect.ahead / best - prospect.learnt_s - prospect.leave_s
    found: list[Candidate] = []
    for each in ranked:
        if each.algorithm == running.algorithm or each.algorithm in tried or prospect.rate(each) < policy.close * best:
            continue
        rate = each.outlook.at(0.0).service_rate_per_s * prospect.experience.part(each)
        # A window and a stretch end with a batch.
        seconds = max(policy.window_s, batch / rate) + max(policy.stretch_s, batch / rate)
        speed = (1.0 - policy.cold) * min(rate / best, 1.0)
        leave_s = each.outlook.at(seconds * rate).leave_s
        lost = each.prediction.start_s + leave_s + seconds * (1.0 - speed)
        ratio = prospect.rate(each) / prospect.rate(running)
        is_worth_it = lost < policy.gain(ratio) * max(prospect.seconds_left - seconds, 0.0)
        is_affordable = lost <= left or ratio >= policy.better
        if is_worth_it and is_affordable and len(found) < policy.most_tried - max(len(tried), 1):
            left -= lost
            found.append(each)
    return found


def _leaves_soon(candidate: Candidate, policy: Policy) -> bool:
    return candidate.prediction.leave_s <= policy.longest_cycle_s


def second_turn(ranked: Sequence[Candidate], prospect: Prospect, policy: Policy) -> list[Candidate]:
    """Those of the `ranked`, all of whom were tried, that came close to the best: they deserve another turn.

    Within a stretch a disk or a neighbour may have favoured one of them. None, where there is no time for that.
    """
    best = prospect.rate(ranked[0])
    close = [each for each in ranked if prospect.rate(each) >= policy.even * best]
    seconds = len(close) * (policy.most_warm_s + policy.stretch_s)
    if len(close) < 2 or seconds > policy.trial_share * prospect.seconds_left:
        return []
    # Who is at work had its turn just now.
    return sorted(close, key=lambda each: same(each, prospect.running))


class Trial:
    """Which operators are still to be tried, and whose stretch is running. It begins with the operator that is open."""

    def __init__(self, plan: JoinPlan, policy: Policy, seconds_left: float = math.inf) -> None:
        self.plan = plan
        self._policy = policy.within(seconds_left)
        self._waiting: list[Candidate] | None = None
        self._stretch: Stretch | None = None
        self._pace = Pace()
        self._usual: float | None = None
        #: tuples per second of the fastest so far
        self._best = 0.0
        #: the closest are tried a second time
        self._is_again = False

    @property
    def begun(self) -> bool:
        """Whether it is known which operators take part."""
        return self._waiting is not None

    def begin(self, plan: JoinPlan, prospect: Prospect, batch: int, tried: Collection[str]) -> None:
        """Choose by a newer plan who takes part beside the one that runs."""
        self.plan = plan
        self._waiting = worth_trying(plan, prospect, self._policy, batch, tried)

    def is_shown(self, join: SemiStreamJoin) -> bool:
        """Asked after every batch: whether the join has shown what it can do."""
        if self._stretch is None or self._stretch.join is not join:
            self._stretch = Stretch(join, self._policy, self._pace)
        return self._stretch.is_shown(self._best)

    def learn(self, running: Candidate, batch: int, parts: dict[str, float]) -> None:
        """Take over what the candidate reached in the stretch that has ended, beside what it did the first time."""
        part, before = self.achieved(running, batch), parts.get(running.algorithm)
        parts[running.algorithm] = part if before is None or not self._is_again else math.sqrt(part * before)

    def achieved(self, running: Candidate, batch: int) -> float:
        """The part of the speed predicted for its age that the candidate reached in the stretch that has ended."""
        stretch = self._stretch
        assert stretch is not None
        shown, join = stretch.shown(), stretch.join
        if self._usual is None:
            self._usual = shown.pace
        seconds = max(shown.seconds * self._usual / shown.pace, 1e-9)
        done = join.stats - stretch.stats
        if shown.tuples and (done.has_turned_over or stretch.is_hopeless):
            part, rate = shown.part(running, self._usual), done.finished / seconds
        else:
            # Tuples came to wait and nothing was read for them yet, so they seem to cost little.
            part = CostClock(self.plan.profile).since(join, stretch.stats, batch=batch).seconds / seconds
            rate = part * running.outlook.at(shown.before).service_rate_per_s
        self._best = max(self._best, rate)
        return part

    def next(self) -> Candidate | None:
        """The operator that is to be opened now."""
        return self._waiting.pop(0) if self._waiting else None

    def repeat(self, ranked: Sequence[Candidate], prospect: Prospect) -> None:
        """Let those who came close to the best of the `ranked`, all of whom were tried, have another turn, once."""
        close = [] if self._is_again else second_turn(ranked, prospect, self._policy)
        if close:
            self._is_again, self._waiting = True, close


class Pace:
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
