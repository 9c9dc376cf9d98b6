"""Every algorithm becomes steady by what its run shows, one that nobody has thought of too."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pytest

from semistream import build_pages, open_join
from semistream.algorithms.registry import ALGORITHMS
from semistream.engine.join import SemiStreamJoin
from semistream.engine.share import MovingShare
from semistream.lab.measure.opening import open_named
from semistream.lab.measure.steady import (
    Round,
    Warmed,
    at_rest,
    batch_rows,
    cached_rows,
    restarts,
    run_steady,
    stays,
    warm,
    warm_up_of,
)
from semistream.lab.workloads.relation import KEY, STREAM_SCHEMA, SyntheticMaster, SyntheticStream
from semistream.lab.workloads.workload import Reading
from semistream.master.memory import MemoryMaster
from semistream.spec import JoinSpec

ROWS, MEMORY = 20_000, 300_000
BATCH = batch_rows(MEMORY)


def _stream() -> Iterator[pa.RecordBatch]:
    return Reading(SyntheticStream(ROWS)).batches(BATCH)


def _warmed(join: SemiStreamJoin, most_seconds: float = 60.0) -> Warmed:
    stream = _stream()

    def step() -> None:
        for _ in join.push(next(stream)):
            pass

    return warm(join, step, most_seconds)


@pytest.fixture(scope="module")
def master() -> pa.Table:
    return SyntheticMaster(ROWS).table()


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_is_warmed_up_within_its_limits(name: str, master: pa.Table) -> None:
    with open_join(name, master=master, on=KEY, memory=MEMORY, stream_schema=STREAM_SCHEMA) as join:
        found, rule = _warmed(join), warm_up_of(join)
        assert found.steady or len(found.hits) == rule.most_rounds
        assert found.block_tuples >= ROWS // 32
        assert join.stats.finished > 0
        # Rounds are told apart by what happened in them, so hits of a cache that fills must have grown; one with the
        # front of an R in no order of frequency has given its bytes back.
        assert found.hits[-1] > 0.1 or cached_rows(join) < 50


def test_a_steady_run_says_what_the_join_looked_like(master: pa.Table) -> None:
    with open_join("ssbj", master=master, on=KEY, memory=MEMORY, stream_schema=STREAM_SCHEMA) as join:
        found = run_steady(join, _stream(), BATCH, turns=2)
        assert found["steady"]
        assert [turn["counts"]["tuples_in"] > 0 for turn in found["turns"]] == [True, True]
        symbols = found["symbols"]
        assert symbols["h_R"] == cached_rows(join) > 0
        assert symbols["h_S"] == join.waiting > 0
        assert symbols["k"] == join.plan.k > 1
        assert symbols["d"] * (symbols["k"] - 1) < ROWS <= symbols["d"] * symbols["k"]


@pytest.mark.parametrize(
    ("rows", "reads", "parts"),
    [
        (2 * ROWS, "direct", {"work_s", "read_s_per_byte"}),
        # Of so few bytes no read is timed.
        (ROWS, "direct", {"work_s"}),
        (2 * ROWS, "mapped", {"work_s"}),
    ],
)
def test_a_run_says_when_it_was_and_how_fast_the_machine_was(
    rows: int, reads: Literal["direct", "mapped"], parts: set[str], tmp_path: Path
) -> None:
    store = tmp_path / "r"
    build_pages(SyntheticMaster(rows).reader(), store, on=KEY)
    with open_named("meshjoin", master=store, on=KEY, memory=MEMORY, reads=reads, stream_schema=STREAM_SCHEMA) as join:
        taken = run_steady(join, _stream(), BATCH, turns=2)["taken"]
    # Before the first turn, and after each.
    assert [set(pace) for pace in taken["pace"]] == [parts] * 3
    assert all(seconds > 0 for pace in taken["pace"] for seconds in pace.values())
    assert timedelta(0) <= datetime.now(UTC) - datetime.fromisoformat(taken["at"]) < timedelta(hours=1)


def test_a_new_algorithm_is_warmed_up_by_how_it_reads_r(master: pa.Table) -> None:
    """No table knows its name: a scan without a cache is steady when it is full, all others must show it."""
    rounds = {}
    for known in ("meshjoin", "ssbj", "cachejoin"):
        algorithm = replace(ALGORITHMS[known], name="sixteenth")
        with SemiStreamJoin(algorithm, MemoryMaster(master, (KEY,)), JoinSpec.make(KEY), MEMORY) as join:
            join.start(STREAM_SCHEMA)
            rounds[known] = len(_warmed(join).hits)
            assert warm_up_of(join).least_rounds <= rounds[known] <= warm_up_of(join).most_rounds
    assert rounds["meshjoin"] == 1
    assert rounds["ssbj"] >= 3
    assert rounds["cachejoin"] >= 4


def test_a_limit_of_time_ends_the_warm_up(master: pa.Table) -> None:
    with open_join("cachejoin", master=master, on=KEY, memory=MEMORY, stream_schema=STREAM_SCHEMA) as join:
        found = _warmed(join, most_seconds=0.0)
        assert not found.steady
        assert len(found.hits) == 1


def test_a_cache_that_learns_ever_more_slowly_is_not_at_rest() -> None:
    """From one round to the next its hits change by less than a point, and still there are ten to come."""
    hits = [0.70, 0.709, 0.717, 0.724]
    rounds = [Round(hit, 1000, 500, 10_000) for hit in hits]
    assert not at_rest(rounds[:2], rounds[2:])
    assert at_rest([Round(0.70, 1000, 500, 10_000)] * 2, [Round(0.705, 1010, 510, 10_000)] * 2)


def test_a_cache_that_was_given_other_bytes_is_not_at_rest() -> None:
    quiet, divided = Round(0.0, 1000, 500, 10_000), Round(0.0, 1000, 500, 10_000, restarts=1)
    assert at_rest([quiet] * 2, [quiet] * 2)
    assert not at_rest([divided, quiet], [quiet] * 2)
    assert not at_rest([quiet] * 2, [quiet, divided])


@pytest.mark.parametrize("name", ["cachejoin", "pcachejoin", "ssj"])
def test_a_cache_that_is_about_to_give_bytes_back_is_not_at_rest(name: str, master: pa.Table) -> None:
    """On a uniform stream its hits are at rest long before two reviews have found them too few."""
    given = {"master": master, "on": KEY, "memory": MEMORY, "stream_schema": STREAM_SCHEMA}
    stream = Reading(SyntheticStream(ROWS, exponent=0.0)).batches(BATCH)
    with open_join(name, **given) as join:
        assert stays(join, 0.0), "while nobody waits H_S has no use for the bytes"
        assert run_steady(join, stream, BATCH, turns=1)["steady"]
        assert restarts(join) == 1
        assert stays(join, 0.0), "it has its least size"
        assert not stays(join, 0.9)


@pytest.mark.parametrize("times", [1, 1_000_000])
def test_turns_in_which_the_tables_were_divided_anew_do_not_count(
    times: int, master: pa.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who waits is finished with loads of his own then: the turns say nothing of any other time."""
    given = {"master": master, "on": KEY, "memory": MEMORY, "stream_schema": STREAM_SCHEMA}
    with open_join("cachejoin", **given) as join:
        warmed = _warmed(join)
        until_rest = join.stats.tuples_in // BATCH
        assert warmed.steady
    left = iter(range(times))
    with open_join("cachejoin", **given) as join:

        def is_due(share: MovingShare) -> bool:
            """Once in the first turns, or in all of them; sizes are changed to and fro."""
            sizes, turns = share._review.range, join.stats.tuples_in // BATCH - until_rest
            if turns <= 0 or turns % 2 or next(left, None) is None:
                return False
            share._wanted = sizes.least if share.size == sizes.most else sizes.most
            return True

        monkeypatch.setattr(MovingShare, "is_due", is_due)
        monkeypatch.setattr(MovingShare, "stays", lambda share, answered: True)
        found = run_steady(join, _stream(), BATCH, turns=3)
        again = join.stats.tuples_in // BATCH > 2 * until_rest
        assert restarts(join) == 1 or times > 1
    assert again
    assert found["steady"] == (times == 1)


def test_few_turns_of_the_loop_may_differ_by_chance() -> None:
    few, more = Round(0.7, 1000, 20, 10_000), Round(0.7, 1000, 24, 10_000)
    assert at_rest([few] * 2, [more] * 2)
    assert not at_rest([Round(0.7, 1000, 20_000, 10_000)] * 2, [Round(0.7, 1000, 24_000, 10_000)] * 2)


def test_a_run_says_how_many_cpus_and_cpu_seconds_it_took(master: pa.Table) -> None:
    with open_join("meshjoin", master=master, on=KEY, memory=MEMORY, stream_schema=STREAM_SCHEMA) as join:
        found = run_steady(join, _stream(), BATCH, turns=2)
    assert found["cpus"] >= 1
    assert all(turn["cpu_seconds"] > 0 for turn in found["turns"])
