"""What the thresholds come to."""

from __future__ import annotations

import math

import pytest

from semistream.errors import ConfigError
from semistream.planner.policy import Policy


def test_a_sample_takes_a_part_of_the_budget() -> None:
    policy = Policy()
    parts = [policy.sample_bytes(budget, 1024) for budget in (1_000, 100_000, 10_000_000, 10_000_000_000)]
    assert parts == [1024, 100_000 // 48, 10_000_000 // 128, 1 << 20]


def test_a_cache_warms_up_with_its_keys() -> None:
    policy = Policy(warm_tuples_per_key=8, last_check=1_000)
    assert policy.warm_up(100) == 800
    assert policy.warm_up(1e9) == 10_000


def test_a_stream_that_lasts_is_expected_to_last() -> None:
    """A known length is counted down; who outlives it has as much ahead as behind."""
    policy = Policy(horizon=1_000)
    assert [policy.ahead(seen) for seen in (0, 300, 999, 1_000, 5_000)] == [1_000, 700, 1, 1_000, 5_000]
    assert Policy(horizon=None).ahead(10) == math.inf


@pytest.mark.parametrize("horizon", [0, -5, math.nan])
def test_no_horizon_without_a_tuple(horizon: float) -> None:
    with pytest.raises(ConfigError, match="from 1, and None"):
        Policy(horizon=horizon)


def test_who_has_little_ahead_is_looked_at_for_less() -> None:
    policy = Policy(trial_share=0.05, window_s=0.25, stretch_s=0.5, most_warm_s=3.0)
    assert policy.within(math.inf) == policy
    looks = [policy.within(seconds) for seconds in (20.0, 4.0, 0.1)]
    assert [each.most_warm_s for each in looks] == [1.0, 0.2, 0.125]
    assert [each.window_s for each in looks] == [0.25, 0.2, 0.125]
    assert [each.stretch_s for each in looks] == [0.5, 0.4, 0.25]


def test_what_a_trial_may_gain() -> None:
    """The closer a candidate, and the less sure its formula, the more may be won by a look at it."""
    policy = Policy(rate_error=0.25)
    gains = [policy.gain(ratio) for ratio in (0.5, 0.8, 1.0, 1.25, 4.0)]
    assert gains == sorted(gains)
    assert 0.0 < gains[0] < 0.001
    assert 0.08 < gains[2] < 0.1
    # Four times as fast: three quarters of the time are saved, whatever the error.
    assert gains[4] == pytest.approx(0.75, abs=0.01)
    sure = Policy(rate_error=0.05)
    assert sure.gain(0.8) < policy.gain(0.8) / 100
