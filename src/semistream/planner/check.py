"""Is a plan still right? What a join did is compared with what was said of it; where they differ, in words how."""

from __future__ import annotations

from semistream.algorithms.registry import ALGORITHMS
from semistream.engine.chunk import JoinStats
from semistream.planner.plan import Candidate, JoinPlan
from semistream.planner.policy import Policy
from semistream.planner.stream import StreamSample


def warm_up(candidate: Candidate, policy: Policy) -> float:
    """Tuples until a cache is what the prediction takes it for."""
    found = candidate.prediction
    scans = ALGORITHMS[candidate.algorithm].access == "scan"
    return policy.warm_up(found.symbols.get("h_R", 0.0), found.symbols.get("k", 1.0) * found.w if scans else 0.0)


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


def other_counts(candidate: Candidate, window: JoinStats, policy: Policy, counts_unmatched: bool) -> str | None:
    """Whether hits, or tuples without a match where these are counted, are other than predicted."""
    predicted = candidate.prediction.hit_rate
    if window.cache_hits + window.cache_misses and abs(window.hit_rate - predicted) > policy.hit_points:
        return f"hit rate {window.hit_rate:.0%} instead of {predicted:.0%}"
    absent = candidate.situation.workload.keys.absent_share
    unmatched = window.unmatched / window.finished if window.finished else absent
    if counts_unmatched and abs(unmatched - absent) > policy.match_points:
        return f"{unmatched:.0%} without a match instead of {absent:.0%}"
    return None


def other_rate(window: JoinStats, seconds: float, rate: float, policy: Policy) -> str | None:
    """Whether the service rate is far from the expected one."""
    if seconds <= 0:
        return None
    ratio = window.tuples_in / seconds / rate
    if 1 / policy.rate_factor <= ratio <= policy.rate_factor:
        return None
    return f"{ratio:.2g} times the expected service rate"
