"""All misses of a batch in one sweep: what is read, what is held, and that nothing waits after it."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from semistream import build_pages, open_join
from semistream.engine.join import SemiStreamJoin
from semistream.errors import ChecksumError, StoreError
from semistream.lab.workloads.relation import KEY, master_table
from semistream.loops.gathered import GatheringLoop
from semistream.testing import assert_same_rows, reference_join, run_join, split

ROWS, PAGE_ROWS = 40_000, 64
MEMORY = 4_000_000
MASTER = master_table(ROWS, 1)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gathered") / "r"
    build_pages(MASTER, path, on=KEY, page_rows=PAGE_ROWS)
    return path


def page_file(store: Path) -> Path:
    return max((path for path in store.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)


def readers() -> list[str]:
    """Threads that read ahead."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("semistream reader")]


def opened(store: Path, memory: int = MEMORY, **arguments: Any) -> SemiStreamJoin:
    join = open_join("sweepjoin", **{"master": store, "on": KEY, "reads": "direct", "memory": memory, **arguments})
    assert isinstance(join, SemiStreamJoin)
    return join


def batch_of(keys: np.ndarray) -> pa.RecordBatch:
    return pa.record_batch({KEY: keys, "n": np.arange(len(keys))})


# ------------------------------------------------------------------------------------------- what is read


def test_a_batch_reads_r_no_more_than_once(store: Path) -> None:
    """Three chunks, each of which needs nearly every page."""
    rng, size = np.random.default_rng(1), page_file(store).stat().st_size
    with opened(store) as join:
        for _ in range(4):
            before, pages = join.stats.bytes_read, join.stats.pages_read
            assert sum(rows.num_rows for rows in join.push(batch_of(rng.integers(0, ROWS, 9_000)))) == 9_000
            assert join.plan.division.chunk_rows < 9_000 / 2
            assert join.stats.bytes_read - before <= 1.05 * size
            assert join.stats.pages_read - pages <= join.master.n_pages


def test_few_pages_are_few_reads(store: Path) -> None:
    """Keys of every twentieth page, asked for by every chunk."""
    keys = np.arange(0, ROWS, 20 * PAGE_ROWS)
    with opened(store) as join:
        rows = sum(rows.num_rows for rows in join.push(batch_of(np.tile(keys, 280))))
        assert rows == 280 * len(keys) > 2 * join.plan.division.chunk_rows
        assert join.stats.pages_read == join.stats.reads == len(keys)
        assert join.stats.bytes_read < 0.1 * page_file(store).stat().st_size


def test_a_key_is_read_once_however_often_it_is_missed(store: Path) -> None:
    """More tuples of one key than a part of a sweep takes: R is read again where a page is cut, and that is all."""
    with opened(store) as join:
        rows = sum(rows.num_rows for rows in join.push(batch_of(np.full(9_000, 17))))
        assert rows == 9_000
        assert join.stats.cache_misses == 9_000
        assert join.stats.pages_read < 20
        assert sum(rows.num_rows for rows in join.push(batch_of(np.full(100, 17)))) == 100
        assert join.stats.cache_hits == 100


# ------------------------------------------------------------------------------------ what comes out, and when


WIDE_KEYS = np.arange(60_000) * 2
WIDE_MASTER = pa.table({"k": WIDE_KEYS, "name": [f"name {i} " * (1 + i % 7) for i in range(60_000)]})
WIDE_MEMORY = 1_500_000


def wide_stream(count: int, seed: int = 3) -> pa.Table:
    """Null keys, absent keys, keys again and again; long strings, dictionaries, lists and nulls."""
    rng = np.random.default_rng(seed)
    keys = pa.array(rng.integers(0, 132_000, count), mask=rng.random(count) < 0.05)
    lengths = np.where(rng.random(count) < 0.01, 3_000, rng.integers(0, 9, count))
    return pa.table(
        {
            "k": keys,
            "text": [None if size == 5 else "x" * int(size) for size in lengths],
            "kind": pa.array(rng.choice(["red", "green", "blue"], count)).dictionary_encode(),
            "list": [[int(i)] * (i % 3) for i in range(count)],
            "flag": pa.array(rng.random(count) < 0.5, mask=rng.random(count) < 0.2),
        }
    )


@pytest.mark.parametrize("how", ["inner", "left", "semi", "anti"])
@pytest.mark.parametrize("order", ["key", "frequency"])
def test_rounds_give_the_same_rows(tmp_path: Path, how: str, order: str) -> None:
    """A batch that takes many rounds, of tuples of every kind; nothing waits behind it."""
    frequency = {"frequency": (WIDE_KEYS, WIDE_KEYS[::-1])} if order == "frequency" else {}
    build_pages(WIDE_MASTER, tmp_path / "r", on="k", page_rows=32, order=order, **frequency)
    stream, rows = wide_stream(6_000), []
    with opened(tmp_path / "r", WIDE_MEMORY, on="k", how=how) as join:
        for batch in split(stream, 3_000):
            rows += list(join.push(batch))
            assert isinstance(join.loop, GatheringLoop)
            assert join.waiting == 0
            assert join.stats.finished == join.stats.tuples_in
            assert join.memory.peak_bytes <= WIDE_MEMORY
        assert list(join.drain()) == []
        assert join.snapshot().tuples.num_rows == 0
    assert_same_rows(pa.Table.from_batches(rows, join.output_schema), reference_join(stream, WIDE_MASTER, "k", how))


def test_rows_wait_for_the_end_of_the_batch_only(store: Path) -> None:
    """Hits of what is read part by part come at once, and misses are seen to wait until they are swept."""
    with opened(store) as join:
        list(join.push(batch_of(np.arange(100))))
        outputs = join.push_parts([batch_of(np.append(np.arange(100), np.arange(20_000, 29_000)))])
        assert next(outputs).num_rows == 100
        assert join.waiting == 0
        next(outputs)
        assert join.waiting == 9_000
        assert 100 + sum(rows.num_rows for rows in outputs) < 9_100
        assert join.waiting == 0


def test_kept_tuples_stay_within_their_bytes(tmp_path: Path) -> None:
    """Long strings end a round sooner: what Arrow has allocated stays below the budget all the time."""
    build_pages(WIDE_MASTER, tmp_path / "r", on="k", page_rows=32)
    rng, memory = np.random.default_rng(5), WIDE_MEMORY
    stream = pa.record_batch({"k": rng.integers(0, 120_000, 4_000), "text": ["y" * 2_000] * 4_000})
    before, most, rows = pa.total_allocated_bytes(), 0, 0
    with opened(tmp_path / "r", memory, on="k", how="inner") as join:
        for joined in join.push(stream):
            rows += joined.num_rows
            most = max(most, pa.total_allocated_bytes() - before)
        held = join.memory.now["gathered misses"]
    assert rows == int(np.isin(stream["k"].to_numpy(), WIDE_MASTER["k"].to_numpy()).sum())
    # Beside what is kept: pieces of rows on their way out.
    assert most <= held + 3 * memory // 8


def test_a_tuple_too_long_to_be_kept(tmp_path: Path) -> None:
    build_pages(WIDE_MASTER, tmp_path / "r", on="k", page_rows=32)
    stream = pa.table({"k": np.arange(20), "text": ["z" * 800_000] * 20})
    with opened(tmp_path / "r", WIDE_MEMORY, on="k", how="left") as join:
        assert join.plan.gathering.size < 800_000
        actual = run_join(join, split(stream, 20))
    assert_same_rows(actual, reference_join(stream, WIDE_MASTER, "k", "left"))


def test_small_mapped_caches_do_without(store: Path) -> None:
    """Where pages are at hand and memory is short, a sweep per chunk costs less than what gathering takes."""
    with opened(store, reads="mapped") as join:
        list(join.push(batch_of(np.arange(100))))
        assert not isinstance(join.loop, GatheringLoop)
    with opened(store) as join:
        list(join.push(batch_of(np.arange(100))))
        assert isinstance(join.loop, GatheringLoop)


def test_mapped_pages_are_gathered_for_once_the_cache_is_full(tmp_path: Path) -> None:
    """Until then each chunk brings keys that the next one finds in the cache."""
    keys = 1_600_000
    build_pages(pa.table({KEY: np.arange(keys), "v": np.arange(keys)}), tmp_path / "r", on=KEY)
    with opened(tmp_path / "r", 50_000_000, reads="mapped") as join:
        again = np.tile(np.arange(0, keys, 1_000), 40)
        assert sum(rows.num_rows for rows in join.push(batch_of(again))) == len(again)
        assert isinstance(join.loop, GatheringLoop)
        # The first chunk reads them all.
        assert join.stats.cache_misses == join.plan.division.chunk_rows < len(again) / 2
        for start in range(0, keys, 100_000):
            run_join(join, batch_of(np.arange(start, start + 100_000)))
        assert join.stats.evicted > 0
        before = join.stats.pages_read
        wanted = np.random.default_rng(4).integers(0, keys, 50_000)
        joined = pa.Table.from_batches(join.push(batch_of(wanted)))
        assert joined["n"].num_chunks > 1
        assert np.array_equal(np.sort(joined["v"].to_numpy()), np.sort(wanted))
        assert join.stats.pages_read - before <= join.master.n_pages


# ------------------------------------------------------------------------------------------------ the threads


def test_an_abandoned_push_goes_on(store: Path) -> None:
    with opened(store) as join:
        outputs = join.push(batch_of(np.arange(9_000)))
        first = next(outputs).num_rows
        assert readers()
        del outputs
        assert first + sum(rows.num_rows for rows in join.resume()) == 9_000
        assert not readers()


def test_closing_ends_the_threads(store: Path) -> None:
    join = opened(store)
    outputs = join.push(batch_of(np.arange(9_000)))
    next(outputs)
    assert readers()
    join.close()
    assert not readers()
    assert join.waiting == 0


def test_nothing_to_read_no_thread(store: Path) -> None:
    with opened(store) as join:
        list(join.push(batch_of(np.arange(100))))
        for _ in join.push(batch_of(np.arange(100))):
            assert not readers()


@pytest.mark.parametrize("algorithm", ["sweepjoin", "orderedjoin"])
def test_damage_that_is_read_ahead(tmp_path: Path, algorithm: str) -> None:
    """A page in the middle of R: the caller gets the error, the threads are gone, the join says that it failed."""
    build_pages(MASTER, tmp_path / "r", on=KEY, page_rows=PAGE_ROWS)
    path = page_file(tmp_path / "r")
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        byte = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte[0] ^ 1]))
    with open_join(algorithm, master=tmp_path / "r", on=KEY, reads="direct", memory=MEMORY) as join:
        with pytest.raises(ChecksumError, match=r"page \d+"):
            run_join(join, batch_of(np.arange(0, ROWS, 5)))
        assert not readers()
        assert join.stats.pages_read > 0


@pytest.mark.parametrize("algorithm", ["sweepjoin", "orderedjoin"])
def test_a_file_that_is_cut_while_it_is_read_ahead(tmp_path: Path, algorithm: str) -> None:
    build_pages(MASTER, tmp_path / "r", on=KEY, page_rows=PAGE_ROWS)
    path = page_file(tmp_path / "r")
    with open_join(algorithm, master=tmp_path / "r", on=KEY, reads="direct", memory=MEMORY) as join:
        with path.open("r+b") as file:
            file.truncate(path.stat().st_size // 2)
        with pytest.raises(StoreError, match=path.name):
            run_join(join, batch_of(np.arange(0, ROWS, 5)))
        assert not readers()


@pytest.mark.parametrize("algorithm", ["sweepjoin", "orderedjoin"])
def test_counts_are_the_same_every_time(store: Path, algorithm: str) -> None:
    """Threads read; what was read is counted in order."""
    found = []
    for _ in range(2):
        rng = np.random.default_rng(2)
        with open_join(algorithm, master=store, on=KEY, reads="direct", memory=MEMORY) as join:
            for _ in range(3):
                run_join(join, batch_of(rng.integers(0, ROWS, 6_000)))
            found.append(join.stats.as_dict())
    assert found[0] == found[1]
