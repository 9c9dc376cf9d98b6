"""algorithm="auto": exact whatever it chooses, and it changes its mind when the stream does."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.planner.conftest import ROWS

from semistream import open_join
from semistream.cost.outlook import Outlook
from semistream.cost.profile import paper_profile, typical_profile
from semistream.errors import BudgetError, ConfigError, SemiStreamError
from semistream.lab.workloads.relation import KEY, MASTER_ROW_BYTES, STREAM_SCHEMA, stream_batches
from semistream.planner import auto, trial
from semistream.planner.auto import AutoJoin
from semistream.planner.explain import Explanation
from semistream.planner.plan import JoinPlan, make_plan
from semistream.planner.policy import Policy
from semistream.planner.stream import StreamSample
from semistream.testing import assert_same_rows, reference_join

BUDGET = ROWS * MASTER_ROW_BYTES // 6
#: no trial, and no check by time
WITHOUT_CLOCK = Policy(first_check=20_000, rate_factor=1e9, stretch_s=1e9)
#: a trial that begins after ten batches and goes on to the next one every few batches; no check revises it
HASTY = Policy(
    first_check=20_000,
    hit_points=1e9,
    match_points=1e9,
    hot_points=1e9,
    rate_factor=1e9,
    window_s=0.0,
    most_warm_s=0.0,
    stretch_s=0.0,
)


def stream(rows: int, skew: float, seed: int = 3, keys: int = ROWS) -> list[pa.RecordBatch]:
    return list(stream_batches(rows, keys, skew, seed=seed, batch_rows=2_000))


def joined(join: AutoJoin, batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    rows = [row for batch in batches for row in join.push(batch)]
    return [*rows, *join.drain()]


@pytest.mark.parametrize("how", ["inner", "left", "semi", "anti"])
def test_exact(table: pa.Table, store: Path, how: str) -> None:
    batches = stream(20_000, 0.9, keys=int(ROWS * 1.3))
    with open_join("auto", master=store, on=KEY, how=how, memory=BUDGET) as join:
        rows = joined(join, batches)
        assert join.output_schema is not None
        result = pa.Table.from_batches(rows, join.output_schema)
        assert join.stats.tuples_in == 20_000
        assert join.memory.peak_bytes <= BUDGET
    assert_same_rows(result, reference_join(pa.Table.from_batches(batches), table, KEY, how))


def test_the_smallest_budget_of_an_operator_is_enough(table: pa.Table, store: Path) -> None:
    with pytest.raises(BudgetError) as refused:
        open_join("inlj", master=store, on=KEY, memory=1_000, stream_schema=STREAM_SCHEMA)
    least = int(re.findall(r"at least (\d+) bytes", str(refused.value))[0])
    batches = stream(20_000, 0.9)
    with open_join("auto", master=store, on=KEY, memory=least + 2_000) as join:
        rows = joined(join, batches)
        assert join.memory.peak_bytes <= least + 2_000
        result = pa.Table.from_batches(rows, join.output_schema)
    assert_same_rows(result, reference_join(pa.Table.from_batches(batches), table, KEY, "inner"))
    with pytest.raises(ConfigError, match="no operator can do this join"):
        open_join("auto", master=store, on=KEY, memory=least, stream_schema=STREAM_SCHEMA)


def test_the_plan_is_revised_when_the_skew_changes(table: pa.Table, store: Path) -> None:
    # This machine's clock has no say, for it differs from run to run.
    policy = replace(WITHOUT_CLOCK, sampled_batches=1, sample_says=2_000, better=1.1)
    calm, hot = stream(20_000, 0.0), stream(40_000, 1.4, seed=9)
    with open_join(
        "auto", master=store, on=KEY, how="left", memory=BUDGET // 2, profile=paper_profile(), policy=policy
    ) as join:
        rows = joined(join, calm)
        before = join.algorithm
        rows += joined(join, hot)
        after = join.algorithm
        said = join.explain()
        assert join.stats.tuples_in == join.stats.finished == 60_000
        assert join.memory.peak_bytes <= BUDGET // 2
        result = pa.Table.from_batches(rows, join.output_schema)
    assert before != after
    assert any(f"{after} instead of {before}" in why for why in said.revisions)
    assert "revised: the 64 hottest keys have" in str(said)
    assert_same_rows(result, reference_join(pa.Table.from_batches(calm + hot), table, KEY, "left"))


@pytest.mark.parametrize("how", ["inner", "left", "semi", "anti"])
def test_a_trial_loses_nothing(table: pa.Table, store: Path, how: str) -> None:
    batches = stream(60_000, 0.5, keys=int(ROWS * 1.3))
    with open_join(
        "auto", master=store, on=KEY, how=how, memory=BUDGET, profile=typical_profile(), policy=HASTY
    ) as join:
        assert join.on_trial
        rows = joined(join, batches)
        assert not join.on_trial
        said = next(why for why in join.explain().revisions if why.startswith("a trial"))
        assert said.endswith(f"; {join.algorithm} is the best")
        assert join.stats.finished == 60_000
        assert join.memory.peak_bytes <= BUDGET
        result = pa.Table.from_batches(rows, join.output_schema)
    assert_same_rows(result, reference_join(pa.Table.from_batches(batches), table, KEY, how))


def test_a_trial_is_decided_by_what_was_achieved(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever reaches ten times what its formula says is taken, be it third in the plan."""
    batches = stream(80_000, 0.5)
    profile, policy = typical_profile(), replace(HASTY, close=0.1)
    with open_join("auto", master=store, on=KEY, memory=BUDGET, profile=profile, policy=policy) as join:
        list(join.push(batches[0]))
        favourite = [each.algorithm for each in join.explain().plan.candidates][2]
        monkeypatch.setattr(trial.Trial, "achieved", lambda _, at, __: 10.0 if at.algorithm == favourite else 1.0)
        joined(join, batches[1:])
        assert join.algorithm == favourite


def test_an_operator_is_judged_by_what_it_does_at_its_age(store: Path) -> None:
    """A formula that promises ten times as much changes nothing; before the first tuple has come back it does."""
    batches = stream(60_000, 0.0)
    profile = typical_profile()
    with open_join("inlj", master=store, on=KEY, memory=BUDGET) as join:
        master, spec, schema = join.master, join.spec, batches[0].schema
        plan = make_plan(master, spec, schema, BUDGET, profile=profile, algorithms=["inlj"], sizes=False)
        honest = plan.choice
        rest = honest.outlook.rest
        boaster = replace(honest, outlook=Outlook(replace(rest, c_loop=rest.c_loop / 10)))
        assert boaster.rate_per_s == pytest.approx(10 * honest.rate_per_s)
        seen = trial.Trial(plan, replace(HASTY, pace_s=0.0))
        for batch in batches:
            list(join.push(batch))
            seen.is_shown(join)
        for turned_over, factor in ((True, 10), (False, 1)):
            if not turned_over:
                join.stats.appended = 2 * join.stats.tuples_in
            parts = [seen.achieved(each, 2_000) for each in (honest, boaster)]
            assert parts[0] == pytest.approx(factor * parts[1], rel=1e-6)


def test_a_stretch_in_which_tuples_came_to_wait_is_priced(store: Path) -> None:
    """An operator that gave tuples back before, and in its stretch none: what was not done is not to its credit."""
    batches, profile = stream(60_000, 0.0), typical_profile()
    with open_join("inlj", master=store, on=KEY, memory=BUDGET) as join:
        plan = make_plan(join.master, join.spec, batches[0].schema, BUDGET, profile=profile, algorithms=["inlj"])
        seen = trial.Trial(plan, replace(HASTY, pace_s=0.0))
        list(join.push(batches[0]))
        join.stats.appended = join.stats.expired = 1_000_000
        for batch in batches[1:]:
            seen.is_shown(join)
            list(join.push(batch))
        boaster = replace(plan.choice, outlook=Outlook(replace(plan.choice.prediction, c_loop=1e-9)))
        assert seen.achieved(boaster, 2_000) < 1e-3
        join.stats.appended += 2_000
        assert join.stats.has_turned_over
        assert seen.achieved(boaster, 2_000) == pytest.approx(seen.achieved(plan.choice, 2_000), rel=1e-6)


@pytest.mark.parametrize(("share", "plans"), [(1e9, 2), (1e-9, 1)])
def test_a_plan_for_a_trial_must_be_a_small_part_of_what_is_ahead(
    store: Path, monkeypatch: pytest.MonkeyPatch, share: float, plans: int
) -> None:
    made: list[JoinPlan] = []

    def counted(*given: Any, **more: Any) -> JoinPlan:
        made.append(make_plan(*given, **more))
        return made[-1]

    monkeypatch.setattr(auto, "make_plan", counted)
    policy = replace(HASTY, plan_from_s=0.0, trial_plan_share=share)
    with open_join("auto", master=store, on=KEY, memory=BUDGET, profile=typical_profile(), policy=policy) as join:
        joined(join, stream(30_000, 0.5))
    assert len(made) == plans


def test_who_drains_after_every_batch_is_in_micro_batches(table: pa.Table, store: Path) -> None:
    batches = stream(60_000, 1.0)
    with open_join("auto", master=store, on=KEY, memory=BUDGET, profile=typical_profile(), policy=HASTY) as join:
        rows = joined(join, batches[:1])
        assert join.explain().chosen.carried
        for batch in batches[1:]:
            rows += joined(join, [batch])
            assert not join.explain().chosen.carried
            assert sum(len(row) for row in rows) == join.stats.tuples_in
        result = pa.Table.from_batches(rows, join.output_schema)
    assert_same_rows(result, reference_join(pa.Table.from_batches(batches), table, KEY, "inner"))


def test_a_drain_that_was_not_finished_loses_nothing(store: Path) -> None:
    batches = stream(20_000, 0.5)
    with open_join("auto", master=store, on=KEY, memory=BUDGET, profile=paper_profile()) as join:
        list(join.push(batches[0]))
        assert list(islice(join.drain(), 1))
        with pytest.raises(SemiStreamError, match="were not consumed"):
            list(join.push(batches[1]))


def test_a_right_plan_stands(store: Path) -> None:
    profile = typical_profile()
    with open_join("auto", master=store, on=KEY, memory=BUDGET, profile=profile, policy=WITHOUT_CLOCK) as join:
        joined(join, stream(300_000, 1.0))
        revisions = join.explain().revisions
        assert all(why.endswith("stays the best") for why in revisions), revisions


def test_snapshot_and_restore(table: pa.Table, store: Path) -> None:
    batches = stream(20_000, 0.8)
    with open_join("auto", master=store, on=KEY, memory=BUDGET, profile=paper_profile()) as first:
        rows = [row for batch in batches[:5] for row in first.push(batch)]
        saved, chosen = first.snapshot(), first.algorithm
    with open_join("auto", master=store, on=KEY, memory=BUDGET, profile=typical_profile()) as second:
        second.restore(saved)
        assert second.algorithm == chosen
        rows += joined(second, batches[5:])
        result = pa.Table.from_batches(rows, second.output_schema)
    assert_same_rows(result, reference_join(pa.Table.from_batches(batches), table, KEY, "inner"))


def test_restored_before_it_began(store: Path) -> None:
    with open_join("auto", master=store, on=KEY, memory=BUDGET) as join:
        saved = join.snapshot()
    with open_join("auto", master=store, on=KEY, memory=BUDGET) as join:
        join.restore(saved)
        assert list(join.drain()) == []


def test_empty_stream(store: Path) -> None:
    with open_join("auto", master=store, on=KEY, memory=BUDGET, stream_schema=STREAM_SCHEMA) as join:
        assert list(join.push(pa.RecordBatch.from_pylist([], schema=STREAM_SCHEMA))) == []
        assert list(join.drain()) == []
        assert "nothing is known" in str(join.explain())


def test_parquet_in_place(table: pa.Table, parquet: Path) -> None:
    batches = stream(10_000, 1.0)
    with open_join("auto", master=parquet, on=KEY, memory="20MB") as join:
        rows = joined(join, batches)
        result = pa.Table.from_batches(rows, join.output_schema)
    narrow = table.select([KEY, "m01", "m02", "m03"])
    assert_same_rows(result, reference_join(pa.Table.from_batches(batches), narrow, KEY, "inner"))


def test_explain_of_a_named_algorithm(store: Path) -> None:
    batches = stream(40_000, 1.0)
    options = {"memory": BUDGET, "sample": batches[0], "profile": typical_profile(), "cache_share": 0.3}
    with open_join("cachejoin", master=store, on=KEY, **options) as join:  # type: ignore[arg-type]
        before: Explanation = join.explain()
        assert before.chosen.algorithm == "cachejoin"
        assert before.chosen.options == {"cache_share": 0.3}
        assert before.measured is None
        for batch in batches:
            list(join.push(batch))
        after = join.explain().to_json()
    assert after["measured"]["tuples"] == 40_000
    assert after["measured"]["memory_bytes"] <= BUDGET
    assert abs(after["predicted"]["memory_bytes"] / after["measured"]["memory_bytes"] - 1) < 0.1
    assert after["runner_up"]["algorithm"] != "cachejoin"
    assert after["stream"]["seen"] == batches[0].num_rows


def test_what_is_refused(store: Path) -> None:
    with pytest.raises(ConfigError, match="'auto' has no option 'cache_share'"):
        open_join("auto", master=store, on=KEY, cache_share=0.5)  # type: ignore[call-overload]
    with (
        open_join("auto", master=store, on=KEY, memory=BUDGET) as join,
        pytest.raises(SemiStreamError, match="nothing is planned yet"),
    ):
        join.explain()
    with (
        open_join("ssbj", master=store, on=KEY, memory=BUDGET) as named,
        pytest.raises(ConfigError, match="schema is not known"),
    ):
        named.explain()


def test_nothing_is_lost_in_any_phase(table: pa.Table, store: Path) -> None:
    """Before the plan, while operators are tried, and after: a push that was dropped is refused, then resumed."""
    batches = stream(60_000, 0.5, keys=int(ROWS * 1.3))
    rows: list[pa.RecordBatch] = []
    phases = set()
    with open_join(
        "auto", master=store, on=KEY, how="left", memory=BUDGET, profile=typical_profile(), policy=HASTY
    ) as join:
        for batch in batches:
            phases.add((join.algorithm, join.on_trial))
            join.push(batch)
            for call in (lambda: join.push(batches[0]), join.drain, join.snapshot):
                with pytest.raises(SemiStreamError, match="were not consumed"):
                    call()
            rows += islice(join.resume(), 1)
            rows += join.resume()
        rows += join.drain()
        assert join.stats.tuples_in == 60_000
        result = pa.Table.from_batches(rows, join.output_schema)
    assert {on_trial for _, on_trial in phases} == {True, False}
    assert len(phases) > 3
    assert_same_rows(result, reference_join(pa.Table.from_batches(batches), table, KEY, "left"))


@pytest.mark.parametrize("memory", [1, 1_000, 1_023, 40_000])
def test_a_budget_that_is_too_small_names_one_that_is_not(table: pa.Table, store: Path, memory: int) -> None:
    with pytest.raises(BudgetError) as refused:
        open_join("auto", master=store, on=KEY, memory=memory, stream_schema=STREAM_SCHEMA)
    least = refused.value.minimum_bytes
    assert least is not None
    assert f"with {memory} bytes; it needs at least {least} bytes" in str(refused.value)
    batches = stream(4_000, 0.9)
    with open_join("auto", master=store, on=KEY, memory=least) as join:
        result = pa.Table.from_batches(joined(join, batches), join.output_schema)
        assert join.memory.peak_bytes <= least
    assert_same_rows(result, reference_join(pa.Table.from_batches(batches), table, KEY, "inner"))
    with pytest.raises(BudgetError):
        open_join("auto", master=store, on=KEY, memory=int(least * 0.9), stream_schema=STREAM_SCHEMA)


def test_the_least_budget_in_every_form(parquet: Path) -> None:
    """A wide stream needs room for its tuples, too; the first batch says so if nobody did before."""
    wide = pa.schema([(KEY, STREAM_SCHEMA.field(KEY).type), *((f"c{i}", pa.float64()) for i in range(200))])
    batch = pa.RecordBatch.from_pylist([dict.fromkeys(wide.names, 1)], schema=wide)
    with open_join("auto", master=parquet, on=KEY, memory="20kB") as join:
        with pytest.raises(BudgetError) as refused:
            join.push(batch)
        # Nothing was taken; it says so again.
        with pytest.raises(BudgetError):
            join.push(batch)
    assert refused.value.minimum_bytes is not None
    with open_join("auto", master=parquet, on=KEY, how="left", memory=refused.value.minimum_bytes) as join:
        assert sum(row.num_rows for row in joined(join, [batch])) == 1


def test_too_slow_is_not_too_small(parquet: Path) -> None:
    with pytest.raises(ConfigError, match="keeps a tuple waiting") as refused:
        open_join("auto", master=parquet, on=KEY, memory="1MB", max_delay=1e-9, stream_schema=STREAM_SCHEMA)
    assert not isinstance(refused.value, BudgetError)


def test_who_says_that_it_drains_gets_a_plan_for_it_at_once(store: Path) -> None:
    batches = stream(10_000, 1.0)
    policy = replace(WITHOUT_CLOCK, micro_batches=True)
    with open_join("auto", master=store, on=KEY, memory=BUDGET, profile=typical_profile(), policy=policy) as join:
        for batch in batches:
            list(join.push(batch))
            assert not join.explain().chosen.carried
            list(join.drain())
            assert join.waiting == 0
    with open_join("auto", master=store, on=KEY, memory=BUDGET, profile=typical_profile()) as join:
        list(join.push(batches[0]))
        assert join.explain().chosen.carried


def test_a_sample_is_taken_again_when_it_is_worth_its_sort(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small batches are sampled more rarely: what a sample costs depends on its keys, not on the batch.

    Nor is a stream sampled again whose plan would not be made anew.
    """
    taken = []
    add = StreamSample.add

    def counted(self: StreamSample, batch: pa.RecordBatch) -> None:
        taken.append(batch)
        add(self, batch)

    monkeypatch.setattr(StreamSample, "add", counted)
    batches = stream(64_000, 1.0)
    numbers = []
    for tuples_per_key, horizon in ((0, Policy.horizon), (100, Policy.horizon), (0, 64_000)):
        taken.clear()
        policy = replace(WITHOUT_CLOCK, sampled_batches=2, sampled_tuples_per_key=tuples_per_key, horizon=horizon)
        with open_join("auto", master=store, on=KEY, memory=BUDGET, profile=typical_profile(), policy=policy) as join:
            joined(join, batches)
            keys = policy.sample_bytes(BUDGET, 0) // 64
        numbers.append(len(taken))
    assert numbers[0] == 1 + len(batches) // 2
    assert numbers[1] == 1 + 64_000 // (2_000 * (-(-100 * keys // 4_000) * 2))
    assert numbers[2] == 1


def test_a_small_budget_sees_the_skew_of_the_first_batch(store: Path) -> None:
    """While no operator is open the whole budget has room for the sample; beside one it keeps to its part."""
    policy = replace(WITHOUT_CLOCK, first_sample=4_000)
    batch = next(iter(stream_batches(50_000, ROWS, 1.2, seed=3, batch_rows=50_000)))
    with open_join("auto", master=store, on=KEY, memory=BUDGET, profile=typical_profile(), policy=policy) as join:
        joined(join, [batch])
        said = str(join.explain())
        assert join.memory.peak_bytes <= BUDGET
    assert policy.sample_bytes(BUDGET, 0) // 64 < 4_000
    assert "a sample of 4,000 tuples" in said
