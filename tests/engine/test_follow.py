"""A join goes on with the next version of R: exact, and with all that its cache knows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import semistream
from semistream.algorithms.registry import resolve
from semistream.engine.join import SemiStreamJoin
from semistream.errors import StoreError
from semistream.master.page_reader import PageStoreReader
from semistream.master.pages import PageMaster
from semistream.spec import JoinSpec
from semistream.testing import assert_same_rows, reference_join

N_KEYS = 4000
MEMORY = 1 << 20


def _relation() -> pa.Table:
    keys = np.concatenate([np.arange(N_KEYS), np.arange(0, N_KEYS, 5)])
    return pa.table({"k": keys, "v": np.arange(len(keys)), "s": [f"{key}-" + "x" * (key % 90) for key in keys]})


def _stream(rows: int, seed: int) -> pa.Table:
    keys = np.random.default_rng(seed).zipf(1.2, rows) * 7919 % (N_KEYS + 300)
    return pa.table({"k": keys, "seq": np.arange(rows)})


def _open(master: PageMaster, algorithm: str, reads: str = "mapped", memory: int = MEMORY) -> SemiStreamJoin:
    spec, record = JoinSpec.make("k", "left"), resolve(algorithm)
    return SemiStreamJoin(record, master, spec, memory, direct=reads == "direct", follows=True)


def _joined(join: SemiStreamJoin, stream: pa.Table) -> pa.Table:
    batches = [*join.push(stream.combine_chunks().to_batches()[0]), *join.drain()]
    return pa.Table.from_batches(batches, join.output_schema)


def _changed(relation: pa.Table, turn: int) -> tuple[pa.Table, pa.Table, pa.Table]:
    """R after some changes, the new rows, and the keys that go: hot keys too, and some that were never there."""
    rng = np.random.default_rng(turn)
    touched = np.unique(np.append(rng.integers(0, N_KEYS + 200, 60), 7919 % (N_KEYS + 300)))
    goes, comes = touched[::4], np.setdiff1d(touched, touched[::4])
    comes = np.repeat(comes, rng.integers(1, 4, len(comes)))
    rows = pa.table({"k": comes, "v": rng.integers(0, 10**9, len(comes)), "s": [f"new {turn}"] * len(comes)})
    stays = ~np.isin(relation["k"].to_numpy(), touched)
    return pa.concat_tables([relation.filter(pa.array(stays)), rows]), rows, pa.table({"k": goes})


def _checked_pages(reader: PageStoreReader) -> int:
    assert reader._mapped is not None
    return int(np.unpackbits(reader._mapped.seen).sum())


@pytest.mark.parametrize("reads", ["mapped", "direct"])
@pytest.mark.parametrize("algorithm", ["sweepjoin", "inlj"])
def test_the_next_versions_are_joined_exactly(algorithm: str, reads: str, tmp_path: Path) -> None:
    relation = _relation()
    master = semistream.build_pages(relation, tmp_path / "r", on="k", page_rows=32)
    with _open(master, algorithm, reads, memory=300 << 10) as join:
        for turn in range(6):
            stream = _stream(3000, turn)
            assert_same_rows(_joined(join, stream), reference_join(stream, relation, "k", "left"))
            relation, rows, gone = _changed(relation, turn)
            after = semistream.refresh_pages(tmp_path / "r", rows, deletes=gone, compact="never")
            assert join.follow(after, 400 << 10)
            assert join.master is after
            assert join.memory.bytes_now <= join.memory.budget_bytes <= 400 << 10
        stream = _stream(3000, 99)
        assert_same_rows(_joined(join, stream), reference_join(stream, relation, "k", "left"))


def test_the_cache_stays_warm_and_pages_checked(tmp_path: Path) -> None:
    master = semistream.build_pages(_relation(), tmp_path / "r", on="k", page_rows=32)
    with _open(master, "sweepjoin", memory=300 << 10) as join:
        for turn in range(6):
            _joined(join, _stream(4000, turn))
        hits, misses = join.stats.cache_hits, join.stats.cache_misses
        _joined(join, _stream(4000, 50))
        before = (join.stats.cache_hits - hits) / 4000
        reader, cached = join.reader, join.loop.cache
        assert isinstance(reader, PageStoreReader)
        seen = _checked_pages(reader)
        assert join.follow(semistream.refresh_pages(tmp_path / "r", _changed(_relation(), 1)[1]), 400 << 10)
        assert join.reader is reader
        assert join.loop.cache is cached
        assert _checked_pages(reader) == seen
        hits, misses = join.stats.cache_hits, join.stats.cache_misses
        _joined(join, _stream(4000, 51))
        after = (join.stats.cache_hits - hits) / 4000
        assert join.stats.cache_misses > misses
        assert after >= 0.9 * before


def test_what_cannot_be_followed_changes_nothing(tmp_path: Path) -> None:
    store, relation = tmp_path / "r", _relation()
    first = semistream.build_pages(relation, store, on="k", page_rows=32, keep_versions=9)
    rows = _changed(relation, 1)[1]
    second = semistream.refresh_pages(store, rows, keep_versions=9)
    stream = _stream(2000, 3)
    with _open(second, "sweepjoin", memory=300 << 10) as join:
        expected = _joined(join, stream)
        assert not join.follow(first, MEMORY), "a version before"
        compacted = semistream.compact_pages(store, keep_versions=9)
        assert not join.follow(compacted, MEMORY), "another base"
        more = semistream.refresh_pages(store, _changed(relation, 2)[1], keep_versions=9)
        assert not join.follow(more, MEMORY), "of another base"
        assert join.master is second
        assert_same_rows(_joined(join, stream), expected)
    with _open(compacted, "sweepjoin", memory=300 << 10) as join:
        _joined(join, stream)
        assert not join.follow(more, join.memory.budget_bytes), "no room for a larger index"
        nulls = pa.table({"k": [1], "v": pa.array([None], pa.int64()), "s": ["x"]})
        with_null = semistream.refresh_pages(store, nulls, keep_versions=9)
        assert not join.follow(with_null, MEMORY), "rows of the cache have no room for a null"
        assert join.follow(more, MEMORY)
    with _open(compacted, "sweepjoin", memory=8 << 20) as join:
        _joined(join, stream)
        assert not join.follow(more, 9 << 20), "all of R is in the cache: it would not look for a new key"
    with _open(compacted, "hybridjoin") as join:
        _joined(join, stream)
        assert not join.follow(more, 2 * MEMORY), "tables by page"


def test_a_failure_leaves_the_join_as_it_was(tmp_path: Path) -> None:
    store, relation = tmp_path / "r", _relation()
    master = semistream.build_pages(relation, store, on="k", page_rows=32)
    stream = _stream(2000, 3)
    with _open(master, "sweepjoin", memory=300 << 10) as join:
        expected = _joined(join, stream)
        after = semistream.refresh_pages(store, _changed(relation, 1)[1])
        after.page_files[-1].path.unlink()
        with pytest.raises(StoreError, match="pages-"):
            join.follow(after, MEMORY)
        assert join.master is master
        assert_same_rows(_joined(join, stream), expected)
