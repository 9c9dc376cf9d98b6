"""The planner's choices, in settings where the answer is known, and what it learns from a sample."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.planner.conftest import ROWS

from semistream import open_join
from semistream.algorithms.registry import ALGORITHMS
from semistream.cost.profile import paper_profile, typical_profile
from semistream.errors import ConfigError
from semistream.lab.workloads.relation import KEY, MASTER_ROW_BYTES, STREAM_SCHEMA, stream_batches
from semistream.master.open import open_master
from semistream.planner.plan import JoinPlan, make_plan
from semistream.planner.policy import Policy
from semistream.planner.stream import StreamSample, StreamStatistics
from semistream.spec import JoinSpec

R_BYTES = ROWS * MASTER_ROW_BYTES


def planned(master: Path, memory: int, skew: float = 1.0, **more: object) -> JoinPlan:
    opened = open_master(master, (KEY,))
    try:
        facts = StreamStatistics.assumed(ROWS, skew)
        return make_plan(opened, JoinSpec.make(KEY), STREAM_SCHEMA, memory, facts, **more)  # type: ignore[arg-type]
    finally:
        opened.close()


def test_r_that_fits_is_joined_in_memory(store: Path) -> None:
    plan = planned(store, 3 * R_BYTES, profile=typical_profile())
    assert plan.choice.prediction.hit_rate > 0.999
    assert plan.choice.prediction.reads_per_tuple < 1e-6


def test_without_an_index_only_scans_are_weighed(parquet: Path) -> None:
    plan = planned(parquet, R_BYTES)
    assert {ALGORITHMS[each.algorithm].access for each in plan.candidates} == {"scan"}
    assert set(plan.refused) == {name for name, operator in ALGORITHMS.items() if operator.needs_index}
    assert "build a page store" in plan.refused["sweepjoin"]


def test_a_slow_disk_wants_shared_reads_and_a_fast_one_look_ups(store: Path) -> None:
    slow = planned(store, R_BYTES // 10, profile=paper_profile(), direct=True)
    assert slow.choice.rate_per_s > 20 * slow.of("inlj").rate_per_s  # type: ignore[union-attr]
    assert slow.choice.rate_per_s > slow.of("sweepjoin").rate_per_s  # type: ignore[union-attr]
    fast = planned(store, R_BYTES // 10, profile=typical_profile(), micro_batches=True, batch=1_000)
    scan = fast.of("meshjoin")
    assert scan is not None
    assert not scan.carried
    assert fast.choice.rate_per_s > 2 * scan.rate_per_s


def test_skew_decides_whether_a_cache_pays(store: Path) -> None:
    even = planned(store, R_BYTES // 10, skew=0.0, profile=paper_profile())
    skewed = planned(store, R_BYTES // 10, skew=1.2, profile=paper_profile())
    for plan, better, worse in ((even, "meshjoin", "ssj"), (skewed, "ssj", "meshjoin")):
        assert plan.of(better).rate_per_s > plan.of(worse).rate_per_s  # type: ignore[union-attr]


def test_a_short_last_batch_is_finished_by_itself_too(store: Path) -> None:
    """Five units in batches of two are three batches; a stream that flows, or has no end, is cut by nobody."""
    ways = {"batch": 20_000, "profile": typical_profile(), "algorithms": ["ssij"]}
    for drained, horizon, batch in ((True, 50_000, 16_667), (False, 50_000, 20_000), (True, np.inf, 20_000)):
        plan = planned(store, R_BYTES // 10, micro_batches=drained, horizon=horizon, **ways)
        assert plan.choice.situation.workload.batch == batch


def test_who_waits_too_long_is_refused(store: Path) -> None:
    free = planned(store, R_BYTES // 10, profile=paper_profile())
    limit = free.of("meshjoin").prediction.longest_delay_s / 2  # type: ignore[union-attr]
    plan = planned(store, R_BYTES // 10, profile=paper_profile(), max_delay_s=limit)
    assert "waiting" in plan.refused["meshjoin"]
    assert all(each.prediction.longest_delay_s <= limit for each in plan.candidates)


def test_carrying_over_pays_for_scans_where_the_delay_allows(store: Path) -> None:
    only = ["meshjoin", "ssbj"]
    within = {"profile": paper_profile(), "micro_batches": True, "batch": 1_000, "algorithms": only}
    batch_by_batch = planned(store, R_BYTES // 10, **within)
    carried = planned(store, R_BYTES // 10, max_delay_s=1e6, **within)
    assert carried.choice.carried
    assert carried.choice.rate_per_s > 2 * batch_by_batch.choice.rate_per_s


def test_no_operator_fits(store: Path) -> None:
    with pytest.raises(ConfigError, match=r"no operator can do this join\. .*too small"):
        planned(store, 1_000)


def test_options_of_the_user_are_kept(store: Path) -> None:
    plan = planned(store, R_BYTES // 10, algorithms=["cachejoin"], options={"cache_share": 0.5})
    assert plan.choice.options["cache_share"] == 0.5


@pytest.mark.parametrize("skew", [0.0, 0.7, 1.0, 1.3])
def test_a_sample_tells_the_skew(store: Path, skew: float) -> None:
    opened = open_master(store, (KEY,))
    sample = StreamSample(opened, JoinSpec.make(KEY), STREAM_SCHEMA)
    for batch in stream_batches(100_000, ROWS, skew, seed=4, batch_rows=50_000):
        sample.add(batch)
    facts = sample.statistics()
    assert facts.seen == 2 * 50_000
    assert abs(facts.exponent - skew) < 0.15
    known = StreamStatistics.assumed(ROWS, skew).keys
    for share in (0.01, 0.1):
        expected = known.p_N(known.most_frequent(share * ROWS))
        assert abs(facts.keys.p_N(facts.keys.most_frequent(share * ROWS)) - expected) < 0.03


def test_a_probe_tells_what_matches(tmp_path: Path) -> None:
    keys = np.repeat(np.arange(3_000), 2)
    opened = open_master(pa.table({"k": keys, "v": keys}), ("k",))
    stream = pa.record_batch({"k": np.arange(4_000) % 4_000, "s": np.arange(4_000)})
    sample = StreamSample(opened, JoinSpec.make("k"), stream.schema)
    sample.add(stream)
    sample.probe(stream, 4_000_000)
    facts = sample.statistics()
    assert abs(facts.absent - 0.25) < 0.05
    assert facts.rows_per_key == 2.0
    assert abs(facts.keys.absent_share - 0.25) < 0.05
    assert abs(facts.keys.rows_per_tuple - 1.5) < 0.1


def test_what_predicts_nothing_is_left_out(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs when it is named, and nobody stumbles over it."""
    silent = replace(ALGORITHMS["ssbj"], name="mine", aliases=(), predict=None, pricing=None)
    monkeypatch.setitem(ALGORITHMS, "mine", silent)
    plan = planned(store, R_BYTES // 10, profile=typical_profile())
    assert plan.of("mine") is None
    assert "no prediction" in plan.refused["mine"]
    batch = next(iter(stream_batches(1_000, ROWS, 1.0, seed=4, batch_rows=1_000)))
    with open_join("mine", master=store, on=KEY, memory=R_BYTES // 10) as join:
        assert sum(rows.num_rows for rows in join.run([batch])) == 1_000
        with pytest.raises(ConfigError, match="no prediction for mine"):
            join.explain()
    with open_join(master=store, on=KEY, memory=R_BYTES // 10) as auto:
        assert sum(rows.num_rows for rows in auto.run([batch])) == 1_000
        assert "not mine: has no prediction" in str(auto.explain())


def test_sizes_do_not_outgrow_the_delay(store: Path) -> None:
    """Tuned tables are larger and keep a tuple longer: what was in time stays so."""
    memory, within = R_BYTES // 10 + 100_000, {"profile": typical_profile(), "algorithms": ["partitionjoin"]}
    limit = planned(store, memory, sizes=False, **within).choice.prediction.longest_delay_s
    tuned = planned(store, memory, **within).choice
    assert tuned.options
    assert tuned.prediction.longest_delay_s > 1.1 * limit
    kept = planned(store, memory, max_delay_s=limit, **within).choice
    assert kept.prediction.longest_delay_s <= limit


def test_who_is_at_work_keeps_its_sizes_unless_others_are_worth_a_change(store: Path) -> None:
    """Else a trial that finds it to be the best would open it anew, with the usual sizes and an empty cache."""
    policy = Policy()
    plan = planned(store, R_BYTES // 10, profile=typical_profile(), sizes=0, for_trial=True)
    usual = plan.of("cachejoin")
    assert usual is not None
    for share, is_kept in ((0.2, True), (0.9, False)):
        running = replace(usual, options={"cache_share": share})
        kept = plan.keeping(running, policy).of("cachejoin")
        assert kept is not None
        assert (dict(kept.options) == {"cache_share": share}) is is_kept
    assert plan.keeping(usual, policy) is plan
