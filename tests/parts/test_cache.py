"""The cache keeps whole keys, evicts the rarest, and returns extents it no longer needs."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from semistream.columns.physical import PhysicalSchema
from semistream.columns.rows import BatchColumns, RowLayout
from semistream.engine.chunk import Scratch
from semistream.kernels.cache import ROW_HEADER
from semistream.parts.arena import Arena
from semistream.parts.cache import Cache

KEYS = 4000


def filled(rows_per_key: int = 2) -> tuple[Cache, pa.Table]:
    """A cache of KEYS keys whose rows carry the key and a text, and the table they came from."""
    keys = np.repeat(np.arange(KEYS, dtype=np.int64), rows_per_key)
    table = pa.table({"key": keys, "text": [None if k % 7 == 0 else "x" * (k % 90) for k in keys.tolist()]})
    physical = PhysicalSchema(table.schema)
    layout = RowLayout(physical, ROW_HEADER)
    cache = Cache(Arena(4 << 20, layout.slot_bytes), layout, 6 << 20, KEYS)
    arrays = [column.combine_chunks() for column in table.columns]
    block = BatchColumns(physical, arrays, table.num_rows)
    starts = np.arange(0, KEYS * rows_per_key, rows_per_key, dtype=np.int64)
    counts = np.arange(KEYS, dtype=np.int64) % 50
    codes = np.arange(KEYS, dtype=np.int64)
    assert cache.admit(codes, starts, starts + rows_per_key, counts, block) == KEYS
    return cache, table


def cached_rows(cache: Cache) -> pa.Table:
    """Everything the cache answers when asked for all keys."""
    codes = np.arange(KEYS, dtype=np.int64)
    work = Scratch(4 * KEYS)
    cache.find(codes, work.references, work.misses)
    count = cache.following(work.references[:KEYS], work, False).step()
    arrays = cache.take(work.right, 0, count)
    assert arrays is not None
    return pa.table(arrays, names=["key", "text"])


def test_what_goes_in_comes_out() -> None:
    cache, table = filled()
    order = [("key", "ascending"), ("text", "ascending")]
    assert cached_rows(cache).sort_by(order).equals(table.sort_by(order))


def test_the_rarest_keys_leave_first() -> None:
    cache, _ = filled()
    level = cache.evict_least(KEYS // 2)
    left = set(cached_rows(cache)["key"].to_pylist())
    assert level == pytest.approx(24, abs=1)
    assert {k for k in range(KEYS) if k % 50 > level} <= left
    assert not {k for k in range(KEYS) if k % 50 < level} & left


def test_keys_that_another_cache_has_are_given_up() -> None:
    cache, table = filled()
    other, _ = filled()
    other.evict_least(KEYS // 2)
    others = set(cached_rows(other)["key"].to_pylist())
    assert cache.drop_known(other) == len(others)
    order = [("key", "ascending"), ("text", "ascending")]
    kept = table.filter(pa.array([key not in others for key in table["key"].to_pylist()]))
    assert cached_rows(cache).sort_by(order).equals(kept.sort_by(order))
    assert cache.rows == kept.num_rows == cache.pool.live
    assert cache.evictions == 0


def test_requests_of_the_coldest_keys() -> None:
    cache, _ = filled()
    # 80 keys of each count from 0 to 49
    assert cache.coldest(0) == 0
    assert cache.coldest(80) == 0
    assert cache.coldest(200) == 80 * 1 + 40 * 2
    assert cache.coldest(10**9) == sum(range(50)) * 80


def test_how_full_it_is() -> None:
    cache, _ = filled()
    assert cache.is_nearly_full
    cache.evict_least(KEYS // 3)
    assert not cache.is_nearly_full
    assert not cache.is_mostly_empty
    cache.evict_least(KEYS // 2)
    assert cache.is_mostly_empty


def test_compaction_returns_extents_and_moves_every_row() -> None:
    cache, _ = filled(rows_per_key=3)
    cache.evict_least(KEYS * 9 // 10)
    before, held, free = cached_rows(cache), cache.pool.extents, cache.arena.free_extents
    returned = cache.compact()
    order = [("key", "ascending"), ("text", "ascending")]
    assert returned > held // 2
    assert cache.pool.extents == held - returned
    assert cache.arena.free_extents == free + returned
    assert cached_rows(cache).sort_by(order).equals(before.sort_by(order))
    assert cache.compact() == 0


def test_slots_freed_by_compaction_are_used_again() -> None:
    cache, table = filled()
    cache.evict_least(KEYS * 9 // 10)
    cache.compact()
    gone = sorted(set(range(KEYS)) - set(cached_rows(cache)["key"].to_pylist()))
    arrays = [column.combine_chunks() for column in table.columns]
    block = BatchColumns(cache.layout.physical, arrays, table.num_rows)
    codes = np.array(gone, dtype=np.int64)
    assert cache.admit(codes, codes * 2, codes * 2 + 2, np.ones(len(codes), dtype=np.int64), block) == len(codes)
    order = [("key", "ascending"), ("text", "ascending")]
    assert cached_rows(cache).sort_by(order).equals(table.sort_by(order))
