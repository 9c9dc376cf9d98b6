"""How the planner decides: every threshold in one place, handed in by whoever opens a join."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from semistream.errors import ConfigError


@dataclass(frozen=True)
class Policy:
    """When a plan is looked at again, how far off it may be, and how candidates are tried."""

    #: stream tuples that are expected, what learning and loading must pay for in; None: only what holds at rest counts
    horizon: float | None = 10_000_000
    #: the caller drains after every batch; else that is noticed when it was done once
    micro_batches: bool = False

    #: joins that share the cost of a page store which is built for one of them and kept
    store_uses: float = 2.0

    #: what a sample takes of the budget beside an operator, to see that the stream changes: a part in this many; of a
    #: small budget up to another part. An operator feels every byte that it lacks
    sample_part: int = 128
    largest_sample_part: int = 48
    small_sample_bytes: int = 1 << 16
    most_sample_bytes: int = 1 << 20
    #: tuples of the first batch that are counted if the whole budget has room for them, for no operator is open then
    first_sample: int = 1 << 15
    #: one batch in this many is sampled once the plan stands, and no more often than after as many tuples per key that
    #: the sample has room for: to count them takes a sort of all its keys
    sampled_batches: int = 8
    sampled_tuples_per_key: int = 16
    #: stream tuples that are looked up in R to learn how many match; each may cost a seek
    probed_tuples: int = 256
    #: tuples that a sample needs to say something about the skew, and the keys whose share is compared
    sample_says: int = 10_000
    hottest_keys: int = 64

    #: seconds of work that must be ahead for a plan to be made again; and the part of them that this may take, by what
    #: the last plan took: for a trial, and where the plan has turned out to be off
    plan_from_s: float = 2.0
    trial_plan_share: float = 0.01
    new_plan_share: float = 0.05
    #: sizes other than the usual ones are taken where the prediction says they are worth this factor, and looked for,
    #: which takes some tenths of a second each, where this many seconds of work are ahead: for the best candidate; if
    #: the operator at work has sizes of its own; and for all that are tried
    sizes_worth: float = 1.1
    sizes_from_s: float = 5.0
    sizes_again_from_s: float = 20.0
    all_sizes_from_s: float = 100.0

    #: tuples before the trial and the first check, and how much further off each next check is, at most
    first_check: int = 200_000
    check_growth: int = 2
    last_check: int = 12_800_000
    #: how far off a plan may be: points of hit rate, of matches, of the hottest keys' share; factor of the service rate
    hit_points: float = 0.05
    match_points: float = 0.1
    hot_points: float = 0.15
    rate_factor: float = 2.0
    #: what another algorithm must promise to be worth a change: that costs a drain and an empty cache
    better: float = 1.25
    #: tuples that a cached key needs until the cache has learnt what it will
    warm_tuples_per_key: float = 8.0

    #: who promises this part of the best rate is tried, this many at most, and fewer on Spark: a look takes some tasks
    close: float = 0.5
    most_tried: int = 6
    most_tried_on_spark: int = 3
    #: part of the time still to come that a trial may cost, by what is known before it
    trial_share: float = 0.05
    #: how far two predicted rates may be off beside each other, as a standard deviation of the logarithm: what a trial
    #: may gain
    rate_error: float = 0.25
    #: part of its speed that an operator lacks while it is tried: its tables and its pages are not yet near the CPU
    cold: float = 0.25
    #: who came so close to the best of a trial is tried again beside it
    even: float = 0.8
    #: tuples after which an operator on trial leaves at once if it took this many times what the best needs for them
    glance: int = 100_000
    far_behind: float = 3.0
    #: seconds of work: windows in which hits must have come to rest, the most of this, and a stretch
    window_s: float = 0.25
    most_warm_s: float = 3.0
    stretch_s: float = 0.5
    #: by how much hits may differ from window to window: a cache that fills within minutes is not at rest
    at_rest: float = 0.004
    #: to leave a scan takes a pass over R: where that is longer, no trial is worth it
    longest_cycle_s: float = 3.0
    #: how often the fixed piece of work is timed that shows the machine's pace
    pace_s: float = 0.02

    def __post_init__(self) -> None:
        if self.horizon is not None and not self.horizon >= 1:
            raise ConfigError(f"horizon={self.horizon} is out of range; allowed are numbers of tuples from 1, and None")

    def ahead(self, seen: float = 0.0) -> float:
        """Tuples that are still to come after `seen`: a stream that outlives its horizon will last as long again."""
        if self.horizon is None:
            return math.inf
        return self.horizon - seen if seen < self.horizon else seen

    def within(self, seconds: float) -> Policy:
        """The same with `seconds` of work ahead: where that is little, looks are shorter, by half at most."""
        share = self.trial_share * seconds
        window = max(min(self.window_s, share), self.window_s / 2)
        stretch = max(min(self.stretch_s, 2.0 * share), self.stretch_s / 2)
        return replace(self, window_s=window, stretch_s=stretch, most_warm_s=min(self.most_warm_s, max(share, window)))

    def gain(self, ratio: float) -> float:
        """Part of the time still to come that trying a candidate is likely to save.

        It promises `ratio` times the rate of the operator at work. That may be off either way; it saves something where
        it turns out to be faster, and nothing else is lost but the trial.
        """
        mean, error = math.log(max(ratio, 1e-9)), self.rate_error
        saved = _normal(mean / error) - math.exp(error * error / 2 - mean) * _normal(mean / error - error)
        return max(saved, 1e-9)

    def warm_up(self, cached_keys: float) -> float:
        """Tuples until a cache is what the prediction at rest takes it for."""
        return min(self.warm_tuples_per_key * cached_keys, 10.0 * self.last_check)

    def sample_bytes(self, budget: int, least: int) -> int:
        """What a sample may take of a budget, at least `least`."""
        small = max(min(self.small_sample_bytes, budget // self.largest_sample_part), least)
        return min(max(budget // self.sample_part, small), self.most_sample_bytes)


def _normal(z: float) -> float:
    """Standard normal distribution function."""
    return math.erfc(-z / math.sqrt(2.0)) / 2
