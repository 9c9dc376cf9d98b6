"""Whether a page store pays: by the length of the stream, the memory, and what a build costs."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from semistream.cost.situation import master_facts
from semistream.engine.facts import MasterFacts
from semistream.lab.workloads.relation import KEY, SyntheticMaster, SyntheticStream
from semistream.master.build import build_pages
from semistream.master.parquet import ParquetMaster
from semistream.planner.policy import Policy
from semistream.planner.store import StoreWorth, worth_of_store
from semistream.spec import JoinRequest

ROWS = 200_000
Weigh = Callable[..., StoreWorth]


@pytest.fixture(scope="module")
def relations(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """R in small row groups, and in one: a decoder holds as much of one as it can."""
    folder = tmp_path_factory.mktemp("relations")
    table = SyntheticMaster(ROWS, seed=1).table()
    pq.write_table(table, folder / "fine.parquet", row_group_size=4096)
    pq.write_table(table, folder / "coarse.parquet")
    return folder


@pytest.fixture
def weigh(relations: Path) -> Weigh:
    sample = SyntheticStream(ROWS, seed=2).table(0, 20_000).to_batches()[0]

    def weighed(memory: str, horizon: float, relation: str = "fine") -> StoreWorth:
        spec = JoinRequest.make(on=KEY, memory=memory)
        with closing(ParquetMaster(relations / f"{relation}.parquet", [KEY])) as master:
            policy = Policy(horizon=horizon)
            return worth_of_store(master, spec.spec, sample, spec.memory_bytes, policy=policy)

    return weighed


def test_a_store_pays_for_a_long_stream_and_not_for_a_short_one(weigh: Weigh) -> None:
    long, short = weigh("20MB", 1e6), weigh("20MB", 1e4)
    assert long.pays
    assert not short.pays
    assert long.build_s == short.build_s > 0
    assert long.indexed_s < long.in_place_s


def test_no_store_is_built_for_an_r_that_fits_into_memory(weigh: Weigh) -> None:
    assert not weigh("200MB", 1e7).pays


def test_where_memory_is_too_small_to_scan_a_store_is_needed(weigh: Weigh) -> None:
    found = weigh("8MB", 1e4, "coarse")
    assert found.in_place is None
    assert math.isinf(found.in_place_s)
    assert found.pays


def test_with_too_little_memory_for_either_nothing_is_built(weigh: Weigh) -> None:
    found = weigh("10kB", 1e9)
    assert found.indexed is found.in_place is None
    assert not found.pays


def test_the_facts_of_a_store_nobody_has_built_are_those_of_one_that_is(relations: Path, tmp_path: Path) -> None:
    """Sizes decide what fits into a budget; a number that is its own key code is stored once, and guessed twice."""
    relation = relations / "fine.parquet"
    spec = JoinRequest.make(on=KEY, memory="12MB").spec
    with closing(ParquetMaster(relation, [KEY])) as master:
        guessed = MasterFacts.stored(master_facts(master, spec))
    with closing(build_pages(relation, tmp_path / "store", on=KEY)) as built:
        found = master_facts(built, spec)
    assert (guessed.rows, guessed.page_rows, guessed.n_pages) == (found.rows, found.page_rows, found.n_pages)
    assert (guessed.has_index, guessed.order) == (found.has_index, found.order)
    assert guessed.page_bytes == pytest.approx(found.page_bytes, rel=0.1)
    assert guessed.index_bytes == pytest.approx(found.index_bytes, rel=0.05)
    assert guessed.row_slot == pytest.approx(found.row_slot, abs=8)
    assert guessed.buffer_bytes(10) == pytest.approx(found.buffer_bytes(10), rel=0.1)
