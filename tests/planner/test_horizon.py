"""What is still to come decides: learning must pay, and so must a trial."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.planner.conftest import ROWS

from semistream import Policy, open_join
from semistream.algorithms.registry import ALGORITHMS
from semistream.cost.profile import typical_profile
from semistream.cost.situation import Situation
from semistream.lab.workloads.relation import KEY, MASTER_ROW_BYTES, STREAM_SCHEMA, stream_batches
from semistream.master.open import open_master
from semistream.planner import auto
from semistream.planner.plan import Candidate, JoinPlan, make_plan
from semistream.planner.prospect import Experience, Prospect
from semistream.planner.stream import StreamStatistics
from semistream.planner.trial import Trial, worth_trying
from semistream.predict.keys import zipf
from semistream.spec import JoinSpec

PROFILE = typical_profile()
R_BYTES = ROWS * MASTER_ROW_BYTES


def at_real_size(horizon: float, **more: object) -> dict[str, Candidate]:
    """R of 1.2 GB and a tenth of it as memory; best first."""
    situation = Situation.sketch(10_000_000, 120_000_000, zipf(10_000_000, 1.0), **more)  # type: ignore[arg-type]
    found = [Candidate.of(name, situation, PROFILE, {}, horizon) for name in ALGORITHMS]
    return {each.algorithm: each for each in sorted(found, key=lambda each: -each.rate_per_s)}


def test_who_comes_to_rest_after_the_last_tuple_is_not_chosen() -> None:
    """SSBJ is as fast as any at rest, hundreds of millions of tuples away; of ten million it answers little."""
    at_rest, short = at_real_size(math.inf), at_real_size(10e6)
    assert at_rest["ssbj"].rate_per_s > 0.99 * next(iter(at_rest.values())).rate_per_s
    assert at_rest["ssbj"].prediction.rest_tuples > 100e6
    assert next(iter(short)) == "sweepjoin"
    assert short["ssbj"].hit_rate < 0.2 < 0.7 < at_rest["ssbj"].hit_rate
    assert short["sweepjoin"].hit_rate > 0.7
    assert short["sweepjoin"].rate_per_s > 1.5 * short["ssbj"].rate_per_s
    # A run counted 41 % over the second half.
    assert 0.3 < short["cachejoin"].hit_rate < 0.5


def test_the_order_past_the_page_cache() -> None:
    """As measured with batches of half a million tuples, each finished by itself, and direct reads."""
    found = at_real_size(math.inf, batch=500_000, drained=True, direct=True)
    order = [name for name in found if name in ("orderedjoin", "ssij", "cachejoin", "ssbj", "meshjoin", "inlj")]
    assert order == ["orderedjoin", "ssij", "cachejoin", "ssbj", "meshjoin", "inlj"]
    # Who loads beside the work is ahead of who waits for the disk.
    assert found["opcachejoin"].rate_per_s > 1.2 * found["cachejoin"].rate_per_s
    assert found["cachejoin"].rate_per_s > 1.3 * found["partitionjoin"].rate_per_s
    # The same in the page cache: what was read is no longer what counts.
    cached = at_real_size(math.inf, batch=500_000, drained=True)
    assert cached["inlj"].rate_per_s > 10 * found["inlj"].rate_per_s


def test_loading_all_of_r_must_pay() -> None:
    """R fits: worth it for a long stream, not for a thousand tuples."""
    situation = Situation.sketch(1_000_000, 200_000_000, zipf(1_000_000, 1.0), batch=1_000)
    rates = {
        horizon: [Candidate.of(name, situation, PROFILE, {}, horizon).rate_per_s for name in ("sweepjoin", "inlj")]
        for horizon in (1_000.0, 100e6)
    }
    assert rates[1_000][0] < rates[1_000][1]
    assert rates[100e6][0] > rates[100e6][1]


def planned(store: Path, horizon: float | None, **more: object) -> JoinPlan:
    master = open_master(store, (KEY,))
    try:
        stream = StreamStatistics.assumed(ROWS, 1.0)
        return make_plan(
            master,
            JoinSpec.make(KEY),
            STREAM_SCHEMA,
            R_BYTES // 10,
            stream,
            profile=PROFILE,
            sizes=False,
            policy=Policy(horizon=horizon),
            **more,  # type: ignore[arg-type]
        )
    finally:
        master.close()


def test_a_plan_is_for_its_horizon(store: Path) -> None:
    short, at_rest = planned(store, 50_000), planned(store, None)
    assert short.horizon == 50_000
    assert math.isinf(at_rest.horizon)
    for each in at_rest.candidates:
        assert each.rate_per_s == each.prediction.service_rate_per_s
        mine = short.of(each.algorithm)
        assert mine is not None
        assert mine.rate_per_s <= each.rate_per_s * 1.01, each.algorithm


def prospect(store: Path, ahead: float, seen: float, running: str | None = "sweepjoin") -> tuple[JoinPlan, Prospect]:
    plan = planned(store, ahead)
    chosen = plan.choice if running is None else plan.of(running)
    assert chosen is not None
    return plan, Prospect(Experience(), ahead, chosen.over(ahead, PROFILE), seen)


def test_the_operator_at_work_goes_on_with_what_it_knows(store: Path) -> None:
    plan, fresh = prospect(store, 1e5, 0.0)
    learnt = replace(fresh, seen=1e5)
    mine = fresh.running
    assert learnt.seconds(mine) < fresh.seconds(mine)
    assert learnt.learnt_s == pytest.approx(fresh.seconds(mine) - learnt.seconds(mine))
    other = plan.of("cachejoin")
    assert other is not None
    assert learnt.seconds(other) == fresh.seconds(other)
    learnt.experience.parts["sweepjoin"] = 0.5
    assert learnt.seconds(mine) == pytest.approx(2 * replace(learnt, experience=Experience()).seconds(mine))


def test_leaving_a_scan_takes_a_pass(store: Path) -> None:
    plan, on_scan = prospect(store, 1e6, 0.0, "meshjoin")
    other = plan.of("sweepjoin")
    assert other is not None
    alone = other.outlook.total_s(1e6)
    assert on_scan.leave_s > 0
    assert on_scan.seconds(other) == pytest.approx(alone + on_scan.leave_s)


def test_a_trial_must_pay(store: Path) -> None:
    """The more is to come, the more are tried; nobody twice, and nobody who is far behind."""
    policy = Policy()
    tried: dict[float, list[str]] = {}
    for ahead in (1e5, 1e8, 1e12):
        plan, view = prospect(store, ahead, 1e5, None)
        tried[ahead] = [each.algorithm for each in worth_trying(plan, view, policy, 10_000)]
    assert len(tried[1e5]) < len(tried[1e8]) <= len(tried[1e12]) <= policy.most_tried - 1
    assert worth_trying(plan, view, replace(policy, trial_share=0.0), 10_000) == []
    best = max(view.rate(each) for each in plan.candidates)
    for each in worth_trying(plan, view, policy, 10_000):
        assert view.rate(each) >= policy.close * best
        assert each.algorithm != view.running.algorithm
    first = tried[1e12][0]
    assert first not in [each.algorithm for each in worth_trying(plan, view, policy, 10_000, {first})]
    enough = [each.algorithm for each in plan.candidates][-policy.most_tried :]
    assert worth_trying(plan, view, policy, 10_000, enough) == []


def test_who_promises_much_more_is_tried_in_any_case(store: Path) -> None:
    plan, view = prospect(store, 1e5, 1e5)
    view.experience.parts["sweepjoin"] = 0.01
    view.experience.parts["inlj"] = 100.0
    assert worth_trying(plan, view, Policy(trial_share=0.0), 10_000)


def test_who_is_far_behind_leaves_at_once(store: Path) -> None:
    """It is judged by all that it did, from its first tuple on."""
    batches = list(stream_batches(20_000, ROWS, 1.0, seed=3, batch_rows=2_000))
    plan = planned(store, 1e6)
    mine = plan.of("inlj")
    assert mine is not None
    with open_join("inlj", master=store, on=KEY, memory=R_BYTES // 10) as join:
        seen = Trial(plan, Policy(glance=10_000))
        shown = []
        for batch in batches[:8]:
            list(join.push(batch))
            shown.append(seen.is_shown(join))
        assert not any(shown)
        # Had another one needed a millionth of the time, ten thousand tuples would have been enough.
        seen._best = 1e6 * join.stats.tuples_in / join.seconds
        assert seen.is_shown(join)
        expected = mine.outlook.seconds(join.stats.tuples_in)
        assert seen.achieved(mine, 2_000) == pytest.approx(expected / join.seconds, rel=1e-6)


def test_a_later_trial_tries_who_was_too_dear_before(store: Path) -> None:
    """A short horizon allows no trial. The stream goes on, so more is to come, and then one is worth it."""
    batches = list(stream_batches(200_000, ROWS, 1.0, seed=3, batch_rows=2_000))
    policy = Policy(
        horizon=20_000,
        first_check=10_000,
        last_check=20_000,
        hit_points=1e9,
        match_points=1e9,
        hot_points=1e9,
        rate_factor=1e9,
        window_s=0.0,
        most_warm_s=0.0,
        stretch_s=0.0,
        better=1e9,
        trial_share=1.0,
        plan_from_s=0.0,
    )
    with open_join("auto", master=store, on=KEY, memory=R_BYTES // 10, profile=PROFILE, policy=policy) as join:
        done = [sum(row.num_rows for row in join.push(batch)) for batch in batches]
        rows = sum(done) + sum(row.num_rows for row in join.drain())
        said = join.explain().revisions
    assert rows == 200_000
    assert any(why.startswith("a trial") for why in said), said


def test_a_plan_costs_time_too(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One is made of the first batch; who has little ahead goes on with it, whatever a check may say."""
    batches = list(stream_batches(60_000, ROWS, 1.0, seed=3, batch_rows=2_000))
    made = []

    def counted(*args: Any, **more: Any) -> JoinPlan:
        made.append(args)
        return make_plan(*args, **more)

    monkeypatch.setattr(auto, "make_plan", counted)
    # However slow this machine is, so much is ahead of a stream without an end only.
    hasty = Policy(first_check=4_000, rate_factor=1.0, window_s=0.0, most_warm_s=0.0, stretch_s=0.0, plan_from_s=1e6)
    plans = []
    for policy in (replace(hasty, horizon=60_000), replace(hasty, horizon=None)):
        made.clear()
        with open_join("auto", master=store, on=KEY, memory=R_BYTES // 10, profile=PROFILE, policy=policy) as join:
            assert sum(row.num_rows for row in join.run(batches)) == 60_000
            plans.append(len(made))
    assert plans[0] == 1
    assert plans[1] > 1


def test_explain_says_for_which_state_it_holds(store: Path) -> None:
    batch = next(iter(stream_batches(20_000, ROWS, 1.0, seed=3, batch_rows=20_000)))
    with open_join("sweepjoin", master=store, on=KEY, memory=R_BYTES // 10, sample=batch, profile=PROFILE) as join:
        text, values = str(join.explain()), join.explain().to_json()
        assert "predicted over the first 10,000,000 tuples" in text
        assert f"{values['predicted']['at_rest']['hit_rate']:.1%} found in the cache, after" in text
        assert values["predicted"]["tuples"] == 10_000_000
        list(join.push(batch))
        after = join.explain().to_json()
        assert "predicted over the first 20,000 tuples, while the cache is young, and measured" in str(join.explain())
    # Beside a run stands what was expected of as many tuples.
    assert after["predicted"]["tuples"] == after["measured"]["tuples"] == 20_000
    assert after["predicted"]["hit_rate"] < after["predicted"]["at_rest"]["hit_rate"] - 0.02
    assert after["predicted"]["hit_rate"] == pytest.approx(after["measured"]["hit_rate"], abs=0.1)
    at_rest = {"policy": Policy(horizon=None), "sample": batch, "profile": PROFILE}
    with open_join("sweepjoin", master=store, on=KEY, memory=R_BYTES // 10, **at_rest) as join:  # type: ignore[arg-type]
        assert "predicted at rest" in str(join.explain())
        assert join.explain().to_json()["setting"]["horizon"] is None


def test_a_short_stream_gets_the_plan_of_a_short_stream(store: Path) -> None:
    """R fits, but three batches are not worth loading it."""
    few = [pa.RecordBatch.from_pydict({KEY: [1, 2, 3]}, schema=pa.schema([(KEY, pa.int64())]))] * 3
    chosen = []
    for horizon in (9, None):
        with open_join(
            "auto", master=store, on=KEY, memory=3 * R_BYTES, profile=PROFILE, policy=Policy(horizon=horizon)
        ) as join:
            assert sum(row.num_rows for batch in few for row in [*join.push(batch), *join.drain()]) == 9
            chosen.append(join.explain().chosen)
    assert chosen[0].prediction.start_s < chosen[1].prediction.start_s


def test_a_look_must_be_likely_to_save_more_than_it_costs(store: Path) -> None:
    """A candidate whose formula says that it is slower is tried where formulas may be wrong, else not."""
    plan, view = prospect(store, 1e7, 0.0, None)
    behind = [each.algorithm for each in plan.candidates if 0.5 < view.rate(each) / view.rate(view.running) < 0.9]
    assert behind

    def tried(error: float) -> set[str]:
        policy = Policy(rate_error=error, trial_share=1.0, most_tried=20)
        return {each.algorithm for each in worth_trying(plan, view, policy, 10_000)}

    assert set(behind) & tried(1.0)
    assert not set(behind) & tried(0.01)


def test_the_closest_are_tried_twice(store: Path) -> None:
    """Who came close to the best has another turn, where there is time for it; both turns count."""
    plan, view = prospect(store, 1e12, 0.0, None)
    best, second, third = plan.candidates[:3]
    policy = Policy()
    for each, part in ((best, 1.0), (second, 0.9), (third, 0.1)):
        view.experience.parts[each.algorithm] = part * view.rate(best) / view.rate(each)
    ranked = sorted((best, second, third), key=view.rate, reverse=True)
    trial = Trial(plan, policy)
    trial.begin(plan, view, 10_000, [each.algorithm for each in plan.candidates])
    assert trial.next() is None
    trial.repeat(ranked, view)
    # The one at work has just shown what it can do: the other comes first.
    assert [trial.next(), trial.next(), trial.next()] == [second, best, None]
    trial.repeat(ranked, view)
    assert trial.next() is None
    short = Trial(plan, policy)
    short.repeat(ranked, replace(view, ahead=1e6))
    assert short.next() is None


def test_the_second_turn_counts_beside_the_first(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, view = prospect(store, 1e12, 0.0, None)
    trial, parts, mine = Trial(plan, Policy()), {"other": 1.0}, view.running
    monkeypatch.setattr(trial, "achieved", lambda *_: 0.4)
    trial.learn(mine, 1_000, parts)
    assert parts == {"other": 1.0, mine.algorithm: 0.4}
    twin = replace(mine, algorithm="twin")
    view.experience.parts |= {mine.algorithm: 1.0, "twin": 1.0}
    trial.repeat([mine, twin], view)
    monkeypatch.setattr(trial, "achieved", lambda *_: 0.9)
    trial.learn(mine, 1_000, parts)
    assert parts[mine.algorithm] == pytest.approx(0.6)
