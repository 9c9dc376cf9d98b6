"""What the thresholds come to."""

from __future__ import annotations

from semistream.planner.policy import Policy


def test_a_sample_takes_a_part_of_the_budget() -> None:
    policy = Policy()
    parts = [policy.sample_bytes(budget, 1024) for budget in (1_000, 100_000, 10_000_000, 10_000_000_000)]
    assert parts == [1024, 100_000 // 8, 10_000_000 // 32, 4 << 20]


def test_a_cache_warms_up_with_its_keys_and_a_scan_with_its_cycles() -> None:
    policy = Policy(warm_tuples_per_key=8, warm_cycles=6, last_check=1_000)
    assert policy.warm_up(100) == 800
    assert policy.warm_up(100, 200) == 1_200
    assert policy.warm_up(1e9) == 10_000
