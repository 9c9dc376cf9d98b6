"""Micro-runs of the real parts of a join: how many seconds a number of operations takes.

Each function prepares what it needs and gives a call to be timed, for a small and a large number of operations. What an
operation costs is the slope between the two; what a call costs besides is not counted here, it is part of a turn.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.engine.chunk import Chunk, Scratch
from semistream.engine.intake import Encoded
from semistream.engine.join import SemiStreamJoin
from semistream.engine.workplace import Workplace
from semistream.lab.measure.opening import open_named
from semistream.lab.workloads.relation import KEY, STREAM_SCHEMA, SyntheticStream
from semistream.loops.index import IndexLoop
from semistream.loops.scan import ScanLoop
from semistream.master.base import Master
from semistream.parts.cache import Cache
from semistream.parts.disk_buffer import DiskBuffer
from semistream.parts.pending import FifoPending, LinkedPending, NamedKeys
from semistream.parts.runs import CodeRuns, TupleRuns

Int64s = npt.NDArray[np.int64]

SMALL, LARGE = 1024, 8192
#: of all data of a calibration
SEED = 7


@dataclass(frozen=True)
class Task:
    """`prepare(n)` makes ready what is then timed: a call that says how many operations it did."""

    symbol: str
    prepare: Callable[[int], Callable[[], int]]


def flow(join: SemiStreamJoin, tuples: pa.RecordBatch, batch: int, drained: bool = False) -> None:
    """Push all tuples, each batch to its end if `drained`; the output is built and dropped."""
    for start in range(0, tuples.num_rows, batch):
        for _ in join.push(tuples.slice(start, batch)):
            pass
        if drained:
            for _ in join.drain():
                pass


def open_on(algorithm: str, master: Master, budget: int) -> SemiStreamJoin:
    """A join that knows its stream."""
    return open_named(algorithm, master=master, on=KEY, memory=budget, reads="mapped", stream_schema=STREAM_SCHEMA)


def tasks(master: Master, budget: int) -> Iterator[Task]:
    """All unit costs of single operations, on joins that are warm: tables full, caches filled."""
    rows = master.n_rows
    hot = SyntheticStream(rows, 1.0, SEED).rows(0, 3 * rows)
    turn = itertools.count()

    def some(n: int) -> pa.RecordBatch:
        """Other tuples every time: the same ones again would be found in the CPU's caches."""
        return hot.slice(LARGE * next(turn) % (hot.num_rows - n), n)

    with (
        open_on("cachejoin", master, budget) as index_join,
        open_on("ssj", master, budget) as scan_join,
        open_on("sweepjoin", master, budget) as lookup_join,
    ):
        for join in (index_join, scan_join):
            flow(join, hot, 16384)
        index, scan = index_join.loop, scan_join.loop
        assert isinstance(index, IndexLoop)
        assert isinstance(scan, ScanLoop)
        assert index.cache is not None
        work, cache, waiting = index.work, index.cache, _Waiting(scan.pending, index.pending)
        yield Task("c_S", lambda n: _read_stream(work, hot.slice(0, n)))
        yield Task("c_H", lambda n: _probe_cache(cache, _chunk(work, some(n)).codes))
        yield Task("c_H_S", lambda n: _probe_waiting(waiting, np.arange(n) + rows + LARGE * next(turn)))
        yield Task("c_A", lambda n: _append(waiting, _chunk(work, some(n // 2))))
        yield Task("c_E", lambda n: _remove(waiting, _chunk(work, some(n)), n // 2))
        yield Task("c_F", lambda n: _compare(waiting.fifo, np.arange(n) + rows))
        yield Task("c_B", lambda n: _switch(cache, index_join.borrow_disk(), n))
        yield Task("c_AI", lambda n: _hand_over(work, _chunk(work, hot.slice(0, n))))
        yield Task("c_L", lambda n: _look_up(lookup_join, n))


@dataclass(frozen=True)
class _Waiting:
    """Both kinds of H_S."""

    fifo: FifoPending
    linked: LinkedPending

    def make_room(self, n: int) -> None:
        """Let n tuples leave each of them, the oldest ones."""
        self.fifo.expire(min(n, len(self.fifo)))
        freed, linked = 0, self.linked
        while freed < n and len(linked):
            newest = linked.chain_of(linked.code_at(linked.oldest))
            freed += linked.release(np.array([newest], dtype=np.int64), 1)


def _chunk(work: Workplace, tuples: pa.RecordBatch) -> Chunk:
    """As a join makes it of a part of a batch."""
    return work.intake.chunk(work.intake.encoded(tuples))


def _read_stream(work: Workplace, tuples: pa.RecordBatch) -> Callable[[], int]:
    def run() -> int:
        return _chunk(work, tuples).n_rows

    return run


def _probe_cache(cache: Cache, codes: Int64s) -> Callable[[], int]:
    scratch = Scratch(len(codes))

    def run() -> int:
        cache.find(codes, scratch.references, scratch.misses)
        rows = cache.following(scratch.references, scratch, False)
        while rows.unfinished:
            rows.step()
        return len(codes)

    return run


def _probe_waiting(waiting: _Waiting, codes: Int64s) -> Callable[[], int]:
    """Half of the rows through the FIFO table, half through the linked one; they find nothing, as most rows do."""
    half, scratch = len(codes) // 2, Scratch(len(codes))

    def run() -> int:
        waiting.fifo.probe(codes, half, np.zeros(2, dtype=np.int64), scratch.left, scratch.right)
        waiting.linked.probing(codes, 0, half, scratch, False).step()
        return 2 * half

    return run


def _append(waiting: _Waiting, chunk: Chunk) -> Callable[[], int]:
    """Into both kinds of H_S, emptied by as much before."""
    n = chunk.n_rows
    ids, slots = np.arange(n, dtype=np.int64), np.empty(n, dtype=np.int64)
    waiting.make_room(n)

    def run() -> int:
        took = waiting.fifo.append(chunk.codes, chunk.columns, ids, 0, n, slots)
        return took + waiting.linked.append(chunk.codes, chunk.columns, ids, 0, n, slots)

    return run


def _remove(waiting: _Waiting, filling: Chunk, n: int) -> Callable[[], int]:
    """Out of both kinds of H_S, filled again before."""
    fifo, linked = waiting.fifo, waiting.linked
    _append(waiting, filling)()
    codes = np.unique(linked.oldest_codes(min(n, len(linked))))
    done = np.empty(len(codes), dtype=np.int64)
    linked.newest_of(codes, done)

    def run() -> int:
        out = min(n, len(fifo))
        fifo.expire(out)
        return out + linked.release(done, len(done))

    return run


def _compare(fifo: FifoPending, codes: Int64s) -> Callable[[], int]:
    named = NamedKeys(len(codes))

    def run() -> int:
        fifo.frequent(codes, len(codes), 2**30, named)
        return len(codes)

    return run


def _switch(cache: Cache, disk: DiskBuffer, n: int) -> Callable[[], int]:
    """Room is made before; keys that are in the cache already are left out."""
    cache.evict_least(cache.keys)
    block = disk.load(0, disk.n_pages)
    count = min(n, block.n_rows, cache.max_keys)
    starts = np.arange(count, dtype=np.int64)
    codes, ones = disk.codes[:count].copy(), np.ones(count, dtype=np.int64)

    def run() -> int:
        return cache.admit(codes, starts, starts + 1, ones, block)

    return run


def _hand_over(work: Workplace, chunk: Chunk) -> Callable[[], int]:
    tuples, ids = work.output.of_chunk(chunk), np.arange(chunk.n_rows, dtype=np.int64)

    def run() -> int:
        arrays = tuples.take(ids, 0, len(ids))
        assert not isinstance(arrays, int)
        return work.intake.chunk(Encoded(chunk.codes[ids], arrays)).n_rows

    return run


def _look_up(join: SemiStreamJoin, n: int) -> Callable[[], int]:
    """Sort, find pages, find rows: as a sweep does for distinct codes."""
    reader = join.reader
    codes = np.random.default_rng(SEED).permutation(reader.n_rows)[:n].astype(np.int64)
    ids, pages = np.arange(n, dtype=np.int64), np.empty(reader.n_pages, dtype=np.int64)

    def run() -> int:
        asking = TupleRuns.of(codes, ids)
        runs = CodeRuns(asking.codes, *reader.locate(asking.codes))
        count, stop = runs.pages_from(0, pages)
        runs.find(0, stop, reader.map(pages[:count]), reader.fences, True)
        return stop

    return run
