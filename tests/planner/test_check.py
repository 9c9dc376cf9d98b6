"""What a check compares: an operator with what was expected of it at its age."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.planner.conftest import ROWS

from semistream import Policy, open_join
from semistream.cost.profile import typical_profile
from semistream.cost.situation import Situation
from semistream.engine.chunk import JoinStats
from semistream.lab.workloads.relation import KEY, MASTER_ROW_BYTES, stream_batches
from semistream.planner.check import Watch, Window, other_counts, other_rate
from semistream.planner.plan import Candidate
from semistream.planner.prospect import Experience
from semistream.predict.keys import zipf

POLICY = Policy(rate_factor=2.0, hit_points=0.05)


@pytest.fixture(scope="module")
def candidate() -> Candidate:
    situation = Situation.sketch(1_000_000, 12_000_000, zipf(1_000_000, 1.0))
    return Candidate.of("cachejoin", situation, typical_profile(), {}, 2e6)


def window(tuples: int, before: int, seconds: float, hits: float, waiting: bool = False) -> Window:
    appended = int(tuples * (1 - hits))
    done = JoinStats(
        tuples_in=tuples,
        finished=tuples,
        cache_hits=tuples - appended,
        cache_misses=appended,
        appended=appended,
        expired=0 if waiting else appended,
    )
    return Window(done, seconds, before)


def test_a_young_operator_is_slow_and_that_is_no_surprise() -> None:
    """The same time for the same tuples is right for one that learns and far too long for one that has learnt."""
    tuples, situation = 100_000, Situation.sketch(1_000_000, 12_000_000, zipf(1_000_000, 1.0))
    candidate = Candidate.of("sweepjoin", situation, typical_profile(), {}, 2e6)
    young, grown = candidate.outlook.at(0), candidate.outlook.at(1.9e6)
    assert grown.service_rate_per_s > 1.5 * young.service_rate_per_s
    seconds = 1.5 * candidate.outlook.seconds(tuples)
    assert other_rate(window(tuples, 0, seconds, 0.0), candidate, Experience(), POLICY) is None
    said = other_rate(window(tuples, 1_900_000, seconds, 0.6), candidate, Experience(), POLICY)
    assert said is not None
    assert "times the expected service rate" in said


def test_who_was_measured_is_held_against_that(candidate: Candidate) -> None:
    seen = window(100_000, 1_900_000, 4 * candidate.outlook.seconds(100_000, 1_900_000), 0.2)
    experience = Experience()
    assert other_rate(seen, candidate, experience, POLICY) is not None
    experience.learn(candidate, seen.done, seen.before, seen.seconds)
    assert experience.part(candidate) == pytest.approx(0.25)
    assert other_rate(seen, candidate, experience, POLICY) is None
    expected = candidate.outlook.hit_rate(100_000, 1_900_000)
    assert other_counts(candidate, seen.done, expected, POLICY, False) is not None
    assert other_counts(candidate, seen.done, expected + experience.hits["cachejoin"], POLICY, False) is None


def test_a_table_that_fills_shows_no_speed(candidate: Candidate) -> None:
    """Tuples come and none leaves: ten times the speed is neither a surprise nor an achievement."""
    fast = window(100_000, 0, candidate.outlook.seconds(100_000) / 10, 0.0, waiting=True)
    experience = Experience()
    assert other_rate(fast, candidate, experience, POLICY) is None
    experience.learn(candidate, fast.done, fast.before, fast.seconds)
    assert experience.parts == {}


def test_looks_are_ever_further_apart(store: Path) -> None:
    watch = Watch(Policy(first_check=4_000, check_growth=2, last_check=16_000))
    looked = []
    with open_join("sweepjoin", master=store, on=KEY, memory=ROWS * MASTER_ROW_BYTES // 10) as join:
        for batch in stream_batches(60_000, ROWS, 1.0, seed=3, batch_rows=2_000):
            list(join.push(batch))
            if watch.is_due(join):
                seen = watch.look(join)
                looked.append((seen.before, seen.done.tuples_in))
        assert looked == [(0, 4_000), (4_000, 8_000), (12_000, 16_000), (28_000, 16_000), (44_000, 16_000)]
        watch.hurry(join)
        assert not watch.is_due(join)
        list(join.push(batch))
        list(join.push(batch))
        assert watch.is_due(join)
