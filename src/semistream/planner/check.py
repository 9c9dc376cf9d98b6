"""Is a plan still right? What a join did is compared with what was said of it; where they differ, in words how."""

from __future__ import annotations

import copy
from dataclasses import dataclass

from semistream.engine.chunk import JoinStats
from semistream.engine.join import SemiStreamJoin
from semistream.planner.plan import Candidate, JoinPlan
from semistream.planner.policy import Policy
from semistream.planner.prospect import Experience
from semistream.planner.stream import StreamSample


@dataclass(frozen=True)
class Window:
    """What an operator did between two checks; it had had `before` tuples when it began."""

    done: JoinStats
    seconds: float
    before: int


class Watch:
    """When the operator at work is looked at next, ever more rarely, and what it did since the last time."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._gap = self._at = policy.first_check
        self.begin()

    def begin(self) -> None:
        """Another operator: nothing of it was looked at yet."""
        self._stats, self._seconds = JoinStats(), 0.0

    def is_due(self, join: SemiStreamJoin) -> bool:
        """Whether it is time to look."""
        return join.stats.tuples_in >= self._at

    def look(self, join: SemiStreamJoin) -> Window:
        """What was done since the last time; the next one is further off."""
        now = copy.copy(join.stats)
        done = now - self._stats
        window = Window(done, join.seconds - self._seconds, now.tuples_in - done.tuples_in)
        self._stats, self._seconds = now, join.seconds
        self._gap = min(self._gap * self._policy.check_growth, self._policy.last_check)
        self.wait(join)
        return window

    def wait(self, join: SemiStreamJoin) -> None:
        """Not before as much has come as between the last two looks."""
        self._at = join.stats.tuples_in + self._gap

    def hurry(self, join: SemiStreamJoin) -> None:
        """Look soon, and then ever more rarely again."""
        self._gap = self._policy.first_check
        self.wait(join)


def other_stream(
    window: Window,
    chosen: Candidate,
    plan: JoinPlan,
    sample: StreamSample,
    experience: Experience,
    policy: Policy,
    *,
    counts_unmatched: bool,
) -> str | None:
    """Whether the stream is another than planned for: by its sample, or by what a cache that is at rest makes of it."""
    changed = other_skew(sample, plan, policy)
    if changed is not None or window.before < chosen.prediction.rest_tuples:
        return changed
    # Once measured, an operator is held against what it achieved.
    hits = chosen.prediction.hit_rate + experience.hits.get(chosen.algorithm, 0.0)
    return other_counts(chosen, window.done, hits, policy, counts_unmatched)


def other_skew(sample: StreamSample, plan: JoinPlan, policy: Policy) -> str | None:
    """Whether the stream is more or less skewed than the plan has it."""
    keys = plan.stream.keys
    if sample.seen < policy.sample_says:
        return None
    was = keys.p_N(keys.most_frequent(policy.hottest_keys, absent_free=False))
    now = sample.top_share(policy.hottest_keys)
    if abs(now - was) <= policy.hot_points:
        return None
    return f"the {policy.hottest_keys} hottest keys have {now:.0%} of the stream instead of {was:.0%}"


def other_counts(
    candidate: Candidate, done: JoinStats, hits: float, policy: Policy, counts_unmatched: bool
) -> str | None:
    """Whether hits, or tuples without a match where these are counted, are other than expected."""
    if done.cache_hits + done.cache_misses and abs(done.hit_rate - hits) > policy.hit_points:
        return f"hit rate {done.hit_rate:.0%} instead of {hits:.0%}"
    absent = candidate.situation.workload.keys.absent_share
    unmatched = done.unmatched / done.finished if done.finished else absent
    if counts_unmatched and abs(unmatched - absent) > policy.match_points:
        return f"{unmatched:.0%} without a match instead of {absent:.0%}"
    return None


def other_rate(window: Window, chosen: Candidate, experience: Experience, policy: Policy) -> str | None:
    """Whether a window took far more or less time than expected of an operator of that age.

    While H_S fills tuples come and none leaves: that says nothing.
    """
    if window.seconds <= 0 or not window.done.tuples_in or not window.done.has_turned_over:
        return None
    expected = chosen.outlook.seconds(window.done.tuples_in, window.before) / experience.part(chosen)
    ratio = expected / window.seconds
    if 1 / policy.rate_factor <= ratio <= policy.rate_factor:
        return None
    return f"{ratio:.2g} times the expected service rate"
