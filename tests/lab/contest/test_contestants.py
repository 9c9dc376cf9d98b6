"""The contestants join what they are said to join, in this process and in their own; caches forget what they must."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from semistream.cost.profile import paper_profile
from semistream.errors import SemiStreamError
from semistream.lab.contest.contest import Task, compete
from semistream.lab.contest.contestants import (
    CONTESTANTS,
    OUTPUT_SCHEMA,
    DuckDbMemory,
    DuckDbParquet,
    PolarsMemory,
    missing_library,
)
from semistream.lab.contest.row_cache import RowCache
from semistream.lab.figure import Point
from semistream.lab.figures import peers
from semistream.lab.laboratory import Lab, Scale
from semistream.lab.sources import Synthetic
from semistream.lab.workloads.relation import KEY, SyntheticMaster, SyntheticStream
from semistream.testing import assert_same_rows, reference_join

ROWS = 3_000
MEMORY = 400_000


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with Lab(tmp_path_factory.mktemp("lab"), scale=Scale("tiny", ROWS), profile=paper_profile()) as made:
        yield made


#: those that hold R in memory take part in benchmarks only
EVERY = {**CONTESTANTS, "duckdb in memory": DuckDbMemory, "polars in memory": PolarsMemory}


@pytest.mark.parametrize("name", EVERY)
def test_rows_are_those_of_the_reference_join(name: str, lab: Lab) -> None:
    """Keys drawn with repetition: some absent, some with several rows; a cache of a tenth of R has to evict."""
    source = Synthetic(ROWS, repeated=True)
    stream = SyntheticStream(ROWS, seed=source.seed)
    batches = [stream.rows(start, start + 1_000) for start in range(0, 4_000, 1_000)]
    contestant = EVERY[name](lab.path(source, EVERY[name].form), MEMORY, 2)
    try:
        parts = [part for batch in batches for part in contestant.join(batch)]
        parts += contestant.finish()
    finally:
        contestant.close()
    found = pa.Table.from_batches(part.cast(OUTPUT_SCHEMA) for part in parts)
    master = SyntheticMaster(ROWS, source.seed, repeat=True).table()
    assert_same_rows(found, reference_join(batches, master, on=KEY, how="inner"))


def test_a_contest_is_timed_and_weighed(lab: Lab) -> None:
    source = lab.synthetic()
    path = str(lab.path(source, "parquet"))
    held = compete(Task("duckdb parquet", path, ROWS, MEMORY, 2, batches=(100, 500), turns=2, turn_seconds=0.0))
    assert [turn["batch"] for turn in held["turns"]] == [100, 100, 500, 500]
    assert held["tuples_in"] == held["rows_out"] == 3 * 100 + 3 * 500
    assert 0 < held["grown_bytes"]["100"] <= held["grown_bytes"]["500"] < 2_000_000_000
    assert held["samples"][0] == (0.0, 0)
    assert held["ended"]["100"] < held["ended"]["500"]


def test_a_child_that_fails_says_why(lab: Lab) -> None:
    task = Task("duckdb parquet", str(lab.data / "nowhere"), ROWS, MEMORY, 2, batches=(100,))
    with pytest.raises(SemiStreamError, match=r"(?s)duckdb parquet ended without a result.*nowhere"):
        compete(task)


def test_every_contestant_names_its_settings(lab: Lab) -> None:
    said = {name: kind.described(MEMORY, 2) for name, kind in EVERY.items()}
    assert all({"R", "threads", "memory"} <= set(settings) for settings in said.values())
    assert said["sweepjoin"] == {"R": "page store", "threads": 1, "memory": "0.4 MB", "reads": "mapped"}
    assert said["polars scan"]["engine"] == "streaming"
    assert said["duckdb parquet"]["threads"] == 2
    path = lab.path(lab.synthetic(), "pages")
    ours = CONTESTANTS["sweepjoin"](path, MEMORY, 2)
    assert ours.settings["a tuple is finished"] == "with its batch"
    ours.close()


def test_a_missing_library_is_told_in_the_results(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DuckDbParquet, "library", "no_such_library")
    assert missing_library("duckdb table") == "no_such_library"
    monkeypatch.setattr(peers, "CONTESTANTS", {"duckdb parquet": DuckDbParquet})
    (point,) = peers.FIGURES[0].run(lab)
    assert "no_such_library is not installed" in point.settings["note"]
    assert np.isnan(point.y)


def _rates(**rates: float) -> list[Point]:
    names = {name.replace(" ", "_").replace("-", "_"): name for name in CONTESTANTS}
    return [
        Point(peers.BATCH, "wall", names[name], x, rate, rate, rate, 3)
        for name, rate in rates.items()
        for x in (10.0, 100.0, 500.0)
    ]


def test_the_judge_counts_every_peer() -> None:
    judge = peers.FIGURES[0].judge
    assert judge(_rates(sweepjoin=10.0, polars_scan=5.0, duckdb_table=2.0)).outcome == "held"
    behind = judge(_rates(sweepjoin=10.0, polars_scan=11.0, duckdb_table=2.0))
    assert behind.outcome == "partly"
    assert "polars scan" in behind.why
    assert judge(_rates(sweepjoin=1.0, polars_scan=11.0)).outcome == "not"
    absent = [replace(p, y=float("nan")) for p in _rates(polars_scan=1.0)]
    assert judge([*_rates(sweepjoin=10.0, duckdb_table=2.0), *absent]).outcome == "held"


def test_the_row_cache_forgets_what_was_used_longest_ago() -> None:
    cache = RowCache(memory=4 * (8 + 24), width=1)
    assert cache.capacity == 4

    def ask(*keys: int) -> list[bool]:
        return cache.touch(np.array(keys)).tolist()

    def put(*keys: int) -> None:
        cache.put(np.array(keys), 10 * np.array(keys)[:, None])

    assert ask(1, 2) == [False, False]
    put(1, 2, 2)
    assert ask(2) == [True]
    put(5)
    assert ask(1, 7) == [True, False]
    # Three batches ago: both rows of 2 go together, and with them 5, of the same batch.
    put(7)
    assert ask(1, 2, 5, 7) == [True, False, False, True]
    at, rows = cache.rows(np.array([7, 1, 3]))
    assert (at.tolist(), rows.ravel().tolist()) == ([0, 1], [70, 10])


def test_the_row_cache_never_keeps_a_part_of_a_key() -> None:
    cache = RowCache(memory=4 * (8 + 24), width=1)
    cache.put(np.array([1, 1, 1, 2, 2]), np.arange(5)[:, None])
    assert cache.touch(np.array([1, 2])).tolist() == [True, False]
    assert len(cache) == 3
