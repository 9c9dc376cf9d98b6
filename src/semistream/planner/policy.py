"""How the planner decides: every threshold in one place, handed in by whoever opens a join."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Policy:
    """When a plan is looked at again, how far off it may be, and how candidates are tried."""

    #: what a sample of the stream takes of the budget: a part in so many; of a small budget up to another part
    sample_part: int = 32
    largest_sample_part: int = 8
    small_sample_bytes: int = 1 << 16
    most_sample_bytes: int = 4 << 20
    #: one batch in so many is sampled once the plan stands
    sampled_batches: int = 8
    #: stream tuples that are looked up in R to learn how many match; each may cost a seek
    probed_tuples: int = 1024
    #: tuples that a sample needs to say something about the skew, and the keys whose share is compared
    sample_says: int = 10_000
    hottest_keys: int = 64

    #: sizes other than the usual ones are taken where the prediction says they are worth this factor
    sizes_worth: float = 1.1

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
    #: tuples that a cached key needs until the cache has learnt what it will, and R-cycles of a scan
    warm_tuples_per_key: float = 8.0
    warm_cycles: float = 6.0

    #: who promises this part of the best rate is tried, so many at most
    close: float = 0.5
    most_tried: int = 6
    #: seconds of work: windows in which hits must have come to rest, the most of this, and a stretch
    window_s: float = 0.25
    most_warm_s: float = 3.0
    stretch_s: float = 0.5
    #: by how much hits may differ from window to window: a cache that fills within minutes is not at rest
    at_rest: float = 0.004
    #: to leave a scan takes an R-cycle: where that is longer, no trial is worth it
    longest_cycle_s: float = 3.0
    #: how often the fixed piece of work is timed that shows the machine's pace
    pace_s: float = 0.02

    def warm_up(self, cached_keys: float, cycle_tuples: float = 0.0) -> float:
        """Tuples until a cache is what the prediction takes it for; `cycle_tuples` are those of an R-cycle."""
        warm = max(self.warm_tuples_per_key * cached_keys, self.warm_cycles * cycle_tuples)
        return min(warm, 10.0 * self.last_check)

    def sample_bytes(self, budget: int, least: int) -> int:
        """What a sample may take of a budget, at least `least`."""
        small = max(min(self.small_sample_bytes, budget // self.largest_sample_part), least)
        return min(max(budget // self.sample_part, small), self.most_sample_bytes)
