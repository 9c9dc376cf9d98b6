"""Micro-runs of the real kernels and parts: how many seconds a number of operations takes.

Each function prepares what it needs and gives a call to be timed, for a small and a large number of operations. What an
operation costs is the slope between the two; what a call costs besides is not counted here, it is part of a turn.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.columns.rows import INT32_MAX, BatchColumns
from semistream.kernels import fifo as fifo_kernel
from semistream.kernels import linked as linked_kernel
from semistream.kernels import lookup as lookup_kernel
from semistream.master.base import Master
from semistream.operators.base import SemiStreamJoin
from semistream.operators.cache_join import CacheJoin
from semistream.operators.chunk import Chunk
from semistream.operators.registry import open_join
from semistream.operators.ssj import SSJ
from semistream.operators.sweep_join import SweepJoin

Int64s = npt.NDArray[np.int64]

KEY = "k"
MASTER_COLUMNS = 14
SMALL, LARGE = 1024, 8192
_SEED = 7

MASTER_SCHEMA = pa.schema([pa.field(KEY, pa.int64())] + [pa.field(f"m{i}", pa.int64()) for i in range(MASTER_COLUMNS)])
STREAM_SCHEMA = pa.schema(
    [
        pa.field(KEY, pa.int64(), nullable=False),
        pa.field("seq", pa.int64(), nullable=False),
        pa.field("qty", pa.int32(), nullable=False),
    ]
)


@dataclass(frozen=True)
class Task:
    """`prepare(n)` makes ready what is then timed: a call that says how many operations it did."""

    symbol: str
    prepare: Callable[[int], Callable[[], int]]


def master_table(rows: int) -> pa.Table:
    """Master tuples of 120 bytes that do not compress, keys 0 .. rows - 1."""
    random = np.random.default_rng(_SEED)
    columns = [np.arange(rows, dtype=np.int64)]
    columns += [random.integers(-(2**62), 2**62, rows) for _ in range(MASTER_COLUMNS)]
    return pa.table([pa.array(column) for column in columns], schema=MASTER_SCHEMA)


@lru_cache(maxsize=16)
def zipf_codes(rows: int, count: int, exponent: float, seed: int = _SEED) -> Int64s:
    """Keys by Zipf's law, the hot ones scattered; exponent 0 is uniform."""
    random = np.random.default_rng(seed)
    upto = np.cumsum(np.arange(1, rows + 1, dtype=np.float64) ** -exponent)
    rank = np.searchsorted(upto, random.random(count) * upto[-1], side="right").clip(0, rows - 1)
    return np.asarray(np.random.default_rng(_SEED).permutation(rows)[rank], dtype=np.int64)


def zipf_weights(rows: int) -> npt.NDArray[np.float64]:
    """How wanted each key is in `zipf_codes`, whatever the exponent."""
    weights = np.empty(rows, dtype=np.float64)
    weights[np.random.default_rng(_SEED).permutation(rows)] = np.arange(rows, 0, -1)
    return weights


def stream_batch(codes: Int64s) -> pa.RecordBatch:
    """Stream tuples of 20 bytes with these keys."""
    numbers = np.arange(len(codes), dtype=np.int64)
    columns = [pa.array(codes), pa.array(numbers), pa.array((numbers % 100).astype(np.int32))]
    return pa.record_batch(columns, schema=STREAM_SCHEMA)


def flow(join: SemiStreamJoin, codes: Int64s, batch: int, drained: bool = False) -> None:
    """Push all codes, each batch to its end if `drained`; the output is built and dropped."""
    tuples = stream_batch(codes)
    for start in range(0, len(codes), batch):
        for _ in join.push(tuples.slice(start, batch)):
            pass
        if drained:
            for _ in join.drain():
                pass


def chunk_of(join: SemiStreamJoin, batch: pa.RecordBatch) -> Chunk:
    """As `SemiStreamJoin._push` makes it."""
    codes, _ = join._coder.codes([batch.column(i) for i in join._key_at])
    columns = BatchColumns(join._stream, join._stream.encode(batch.columns), batch.num_rows)
    return Chunk(batch.num_rows, codes, columns, np.zeros(0, dtype=np.bool_))


def tasks(master: Master, budget: int) -> Iterator[Task]:
    """All unit costs of single operations, on joins that are warm: tables full, caches filled."""
    rows = master.n_rows
    hot = zipf_codes(rows, 3 * rows, 1.0)
    turn = itertools.count()

    def next_codes(n: int) -> Int64s:
        """Other codes every time: the same ones again would be found in the CPU's caches."""
        start = LARGE * next(turn) % (len(hot) - n)
        return hot[start : start + n]

    with (
        _open("cachejoin", master, budget) as cached,
        _open("ssj", master, budget) as scan,
        _open("sweepjoin", master, budget) as lookup,
    ):
        assert isinstance(cached, CacheJoin)
        assert isinstance(scan, SSJ)
        assert isinstance(lookup, SweepJoin)
        for join in (cached, scan):
            flow(join, hot, 16384)
        yield Task("c_S", lambda n: _read_stream(cached, hot, n))
        yield Task("c_H", lambda n: _probe_cache(cached, next_codes(n)))
        yield Task("c_H_S", lambda n: _probe_pending(scan, cached, n, next(turn)))
        yield Task("c_A", lambda n: _append(cached, scan, next_codes(n)))
        yield Task("c_E", lambda n: _remove(cached, scan, next_codes(2 * n)))
        yield Task("c_F", lambda n: _compare(scan, n))
        yield Task("c_B", lambda n: _switch(cached, n))
        yield Task("c_AI", lambda n: _hand_over(cached, hot, n))
        yield Task("c_L", lambda n: _look_up(lookup, n))


def _open(algorithm: str, master: Master, budget: int) -> SemiStreamJoin:
    return open_join(algorithm, master=master, on=KEY, memory=budget, stream_schema=STREAM_SCHEMA)


def _read_stream(join: CacheJoin, hot: Int64s, n: int) -> Callable[[], int]:
    batch = stream_batch(hot[:n])

    def run() -> int:
        chunk_of(join, batch.slice(0, n))
        return n

    return run


def _probe_cache(join: CacheJoin, codes: Int64s) -> Callable[[], int]:
    n = len(codes)
    left, right, misses = (np.empty(n, dtype=np.int64) for _ in range(3))
    found = np.zeros(n, dtype=np.bool_)

    def run() -> int:
        join.cache.probe(codes, n, np.zeros(3, dtype=np.int64), left, right, found, misses, False)
        return n

    return run


def _probe_pending(scan: SSJ, index: CacheJoin, n: int, turn: int) -> Callable[[], int]:
    """Half of the rows through the FIFO table, half through the linked one; they find nothing, as most rows do."""
    codes = np.arange(n, dtype=np.int64) + scan.reader.n_rows + LARGE * turn
    left, right, done = (np.empty(4 * n, dtype=np.int64) for _ in range(3))
    pending = index.pending

    def run() -> int:
        half = n // 2
        scan.pending.probe(codes, half, np.zeros(2, dtype=np.int64), left, right)
        cursor = np.zeros(5, dtype=np.int64)
        linked_kernel.linked_probe(codes, 0, half, pending.directory, pending.arena.state, cursor, left, right, done, 0)
        return 2 * half

    return run


def _append(cached: CacheJoin, scan: SSJ, codes: Int64s) -> Callable[[], int]:
    """Into both kinds of H_S, emptied by as much before."""
    half = len(codes) // 2
    chunk = chunk_of(cached, stream_batch(codes[:half]))
    ids, slots = np.arange(half, dtype=np.int64), np.empty(half, dtype=np.int64)
    _make_room(cached, scan, half)

    def run() -> int:
        took = scan.pending.append(chunk.codes, chunk.columns, ids, 0, half, slots)
        return took + cached.pending.append(chunk.codes, chunk.columns, ids, 0, half, slots, 0)

    return run


def _make_room(cached: CacheJoin, scan: SSJ, n: int) -> None:
    scan.pending.expire(min(n, len(scan.pending)))
    freed = 0
    while freed < n and len(cached.pending):
        freed += cached.pending.release(np.array([_newest(cached)], dtype=np.int64), 1)


def _newest(join: CacheJoin) -> int:
    return join.pending.chain_of(join._code_at(join.pending.oldest))


def _remove(cached: CacheJoin, scan: SSJ, filling: Int64s) -> Callable[[], int]:
    """Out of both kinds of H_S, filled again before."""
    half = len(filling) // 4
    _append(cached, scan, filling)()
    codes = np.empty(min(half, len(cached.pending)), dtype=np.int64)
    linked_kernel.linked_oldest(cached.pending.arena.state, cached.pending.queue, codes)
    codes = np.unique(codes)
    done = np.empty(len(codes), dtype=np.int64)
    linked_kernel.linked_newest(cached.pending.directory, cached.pending.arena.state, codes, done)

    def run() -> int:
        out = min(half, len(scan.pending))
        scan.pending.expire(out)
        return out + cached.pending.release(done, len(done))

    return run


def _compare(scan: SSJ, n: int) -> Callable[[], int]:
    codes = np.arange(n, dtype=np.int64) + scan.reader.n_rows
    names, waiting = np.empty(n, dtype=np.int64), np.empty(n, dtype=np.int64)

    def run() -> int:
        fifo_kernel.fifo_frequent(codes, n, scan.pending.buckets, scan.pending.arena.state, 2**30, names, waiting, 0)
        return n

    return run


def _switch(join: CacheJoin, n: int) -> Callable[[], int]:
    """Room is made before; keys that are in the cache already are left out."""
    join.cache.evict_least(join.cache.keys)
    block = join.disk.load(0, join.buffer_pages)
    count = min(n, block.n_rows, join.cache.max_keys)
    starts = np.arange(count, dtype=np.int64)
    codes, ones = join.disk.codes[:count].copy(), np.ones(count, dtype=np.int64)

    def run() -> int:
        return join.cache.admit(codes, starts, starts + 1, ones, block)

    return run


def _hand_over(join: CacheJoin, hot: Int64s, n: int) -> Callable[[], int]:
    chunk = chunk_of(join, stream_batch(hot[:n]))
    ids = np.arange(n, dtype=np.int64)

    def run() -> int:
        arrays = join._take_chunk(chunk)(ids, 0, n, INT32_MAX)
        assert not isinstance(arrays, int)
        BatchColumns(join._stream, arrays, n)
        _ = chunk.codes[ids]
        return n

    return run


def _look_up(join: SweepJoin, n: int) -> Callable[[], int]:
    """Sort, find pages, find rows: as a sweep does for distinct codes."""
    some = np.random.default_rng(_SEED).permutation(join.reader.n_rows)[:n].astype(np.int64)
    starts, ends = np.empty(len(some), dtype=np.int64), np.empty(len(some), dtype=np.int64)
    distinct, offsets = np.empty(len(some), dtype=np.int64), np.empty(len(some) + 1, dtype=np.int64)
    pages, result = np.empty(join.reader.n_pages, dtype=np.int64), np.empty(1, dtype=np.int64)

    def run() -> int:
        order = np.argsort(some, kind="stable")
        count = int(lookup_kernel.distinct_runs(some[order], distinct, offsets))
        first, last = join.reader.locate(distinct[:count])
        n_pages = int(lookup_kernel.group_pages(first, last, 0, count, pages, result))
        block = join.reader.map(pages[:n_pages])
        join.find_runs(distinct, first, last, 0, count, block, starts, ends)
        return count

    return run
