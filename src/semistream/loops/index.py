"""The main loop of the index operators: the queue says which partition of R is worth reading next.

    iteration:  admit tuples until H_S is full -> the oldest key picks a partition through the index
                -> load it -> probe H_S with it -> matched keys leave H_S and Q

At least the oldest tuple leaves in every iteration, so each tuple waits a bounded time, also one whose key R lacks.
HYBRIDJOIN, X-HYBRIDJOIN, its optimised form and the CACHEJOINs share this loop.

All master tuples of a key must be seen at once. They stand side by side in an indexed store, perhaps across pages: a
run that leaves the loaded pages is left alone unless it is the one that was asked for, which is always read to its end.

The last part of this file is the same loop as a formula.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.engine.chunk import Chunk
from semistream.engine.division import Division, arena_within
from semistream.engine.facts import MasterFacts, StreamFacts
from semistream.engine.front import CacheFront
from semistream.engine.loop import Loop
from semistream.engine.plan import Plan, SomeOptions
from semistream.engine.share import MovingShare, rebalanced
from semistream.engine.snapshot import Snapshot
from semistream.engine.workplace import Workplace
from semistream.errors import BudgetError
from semistream.master.base import PageBlock
from semistream.parts.arena import ArenaShape
from semistream.parts.cache import Cache
from semistream.parts.disk_buffer import DiskBuffer
from semistream.parts.pending import LinkedPending, LoadTimes
from semistream.predict.counts import Counts, Workload
from semistream.predict.keys import Floats
from semistream.predict.sharing import Shared, group_shares, needed_pages, oldest_first

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True)
class IndexPlan(Plan[SomeOptions]):
    """The arena that H_S and a cache live in, and the bytes of both."""

    arena: ArenaShape
    #: bytes of a waiting tuple's slot
    slot: int
    pending_bytes: int
    cache_bytes: int

    @property
    def load_times(self) -> int:
        """Bytes of the times at which groups of pages were read."""
        return LoadTimes.bytes_for(self.r.n_pages, self.division.pages)


@dataclass(frozen=True)
class IndexTables:
    """What the common parts and the load times leave: an arena, and bytes for the tables in it."""

    arena: ArenaShape
    slot: int
    spare: int

    def planned(self, base: Plan[SomeOptions], cache_bytes: int = 0) -> IndexPlan[SomeOptions]:
        """The plan in which a cache gets that many bytes, and H_S the rest."""
        return IndexPlan(
            base.r,
            base.s,
            base.budget,
            base.options,
            base.division,
            arena=self.arena,
            slot=self.slot,
            pending_bytes=self.spare - cache_bytes,
            cache_bytes=cache_bytes,
        )


def index_tables(r: MasterFacts, s: StreamFacts, budget: int, division: Division, reserved: int = 0) -> IndexTables:
    """The arena for waiting tuples and cached rows; `reserved` bytes are another part's."""
    slot = s.slot(LinkedPending.HEADER)
    left = division.tables - LoadTimes.bytes_for(r.n_pages, division.pages) - reserved
    arena = arena_within(budget, left, slot, r.row_slot)
    return IndexTables(arena, slot, left - arena.table_bytes)


class IndexFront(Protocol):
    """What stands before the disk phase: a cache, or nothing."""

    missed: int

    @property
    def cache(self) -> Cache | None:
        """The hot keys."""

    @property
    def share(self) -> MovingShare | None:
        """Moves bytes between the cache and H_S, where the algorithm lets it."""

    def answer(self, chunk: Chunk) -> Iterator[pa.RecordBatch]:
        """Finish what can be answered; `missed` others are listed in `scratch.misses`."""

    def matched(self, block: PageBlock, codes: Int64s, done: Int64s, count: int) -> None:
        """Keys (their newest slots) that are about to leave after a match; a cache looks at their frequency here."""

    def absent(self, done: Int64s, count: int) -> None:
        """Keys that are about to leave because R lacks them; a cache may remember that."""

    def settle(self) -> None:
        """Enter the front's bytes in the ledger."""


class StillFront(CacheFront):
    """A cache that stays as it is, or none: then every tuple waits."""

    def __init__(self, cache: Cache | None, work: Workplace) -> None:
        super().__init__(cache, work.output, work.scratch, work.stats)
        self._budget = work.budget

    def matched(self, block: PageBlock, codes: Int64s, done: Int64s, count: int) -> None:
        """Nothing to do."""

    def absent(self, done: Int64s, count: int) -> None:
        """Nothing to do."""

    def settle(self) -> None:
        if self.cache is not None:
            self._budget.hold("cache", self.cache.bytes_held)


@dataclass(frozen=True)
class PageRange:
    """The pages that a key asks for: where to load how many, and the last page of the key's own run."""

    first: int = -1
    count: int = 0
    last: int = -1

    @property
    def is_whole(self) -> bool:
        """Whether one load has all rows of the key."""
        return self.last < self.first + self.count


class DiskPhase:
    """H_S and Q, and the loads that empty them."""

    def __init__(self, work: Workplace, pending: LinkedPending, front: IndexFront) -> None:
        self.work, self.pending, self.front = work, pending, front
        self.times = LoadTimes(work.reader.n_pages, work.disk.n_pages)
        work.budget.hold("load times", self.times.loaded.nbytes)

    def admit(self, chunk: Chunk, ids: Int64s, start: int, count: int) -> int:
        """Fill H_S and Q with as many tuples as fit."""
        slots = self.work.scratch.slots
        took = self.pending.append(chunk.codes, chunk.columns, ids, start, count, slots, arrival=self.times.now)
        self.work.stats.appended += took
        return took

    def settle(self) -> None:
        self.work.budget.hold("pending table", self.pending.bytes_held)

    @property
    def disks(self) -> tuple[DiskBuffer, ...]:
        """The disk buffers that are loaded."""
        return (self.work.disk,)

    def borrow_disk(self) -> DiskBuffer:
        """The disk buffer, for loads of others; only while the join is idle."""
        return self.work.disk

    def close(self) -> None:
        """Give back what the phase has opened itself."""

    def iterate(self) -> Iterator[pa.RecordBatch]:
        """One disk-probing phase: the oldest key picks the load."""
        yield from self.release_absent()
        if len(self.pending):
            code = self.pending.code_at(self.pending.oldest)
            yield from self.serve(code, self.pages_for(code), self.work.disk)
        self.work.copy_read_counts()

    # ---------------------------------------------------------------------------------- keys that R lacks

    def release_absent(self) -> Iterator[pa.RecordBatch]:
        """Oldest tuples whose pages were read since they came, without a match: R lacks their key, no load needed."""
        if self.work.master.order != "key":
            yield from self._release_unlisted()
            return
        reader, done = self.work.reader, self.work.scratch.done
        while len(self.pending):
            count = self.pending.absent(self.times, reader.fences, reader.continues, done)
            if count == 0:
                return
            keys = np.unique(done[:count])
            self.front.absent(keys, len(keys))
            yield from self._finish(keys, len(keys), matched=False)

    def _release_unlisted(self) -> Iterator[pa.RecordBatch]:
        """The second index lists every key of R: once the oldest is not in it, all that came with it are looked up."""
        reader, scratch, pending = self.work.reader, self.work.scratch, self.pending
        while len(pending):
            oldest = np.array([pending.code_at(pending.oldest)], dtype=np.int64)
            if reader.locate(oldest)[0][0] >= 0:
                return
            codes = np.unique(pending.oldest_codes(min(len(pending), scratch.size)))
            codes = codes[reader.locate(codes)[0] < 0]
            pending.newest_of(codes, scratch.done)
            self.front.absent(scratch.done, len(codes))
            yield from self._finish(scratch.done, len(codes), matched=False)

    # ------------------------------------------------------------------------------------------ one load

    def pages_for(self, code: int) -> PageRange:
        """The pages to load for a key; none if the index knows that R lacks it."""
        reader, group = self.work.reader, self.work.disk.n_pages
        first, last = reader.locate(np.array([code], dtype=np.int64))
        if first[0] < 0:
            return PageRange()
        begin = int(first[0]) // group * group
        if int(last[0]) >= begin + group:
            begin = int(first[0])
        return PageRange(begin, min(group, reader.n_pages - begin), int(last[0]))

    def serve(
        self, code: int, pages: PageRange, disk: DiskBuffer, block: PageBlock | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Load the picked pages (unless they are there), probe H_S, and let the picked key go, matched or not."""
        if pages.count and pages.is_whole:
            block = disk.load(pages.first, pages.count) if block is None else block
            start, stop = self.complete_rows(block, disk.codes, pages.first)
            yield from self.probe(block, disk.codes, start, stop)
            self.times.note(pages.first)
        elif pages.count:
            yield from self._probe_long_run(code, pages, disk)
        self.work.stats.iterations += 1
        newest = self.pending.chain_of(code)
        if newest:
            done = np.array([newest], dtype=np.int64)
            if pages.is_whole:
                self.front.absent(done, 1)
            yield from self._finish(done, 1, matched=False)

    def complete_rows(self, block: PageBlock, codes: Int64s, first: int) -> tuple[int, int]:
        """Rows of the block without the runs that begin before it or go on behind it."""
        reader = self.work.reader
        start, stop = 0, block.n_rows
        if stop == 0:
            return 0, 0
        after = first + len(block.pages)
        if self.work.master.order == "key":
            begun = bool(reader.continues[first])
            goes_on = after < reader.n_pages and bool(reader.continues[after])
        else:
            ends = np.sort(codes[[0, stop - 1]])
            from_page, to_page = reader.locate(ends)
            at_start, at_end = np.searchsorted(ends, codes[0]), np.searchsorted(ends, codes[stop - 1])
            begun = bool(from_page[at_start] < first)
            goes_on = bool(to_page[at_end] >= after)
        if begun:
            differs = codes[:stop] != codes[0]
            start = int(np.argmax(differs)) if differs.any() else stop
        if goes_on and start < stop:
            differs = codes[start:stop] != codes[stop - 1]
            stop = start + len(differs) - int(np.argmax(differs[::-1])) if differs.any() else start
        return start, stop

    def probe(self, block: PageBlock, codes: Int64s, start: int, stop: int) -> Iterator[pa.RecordBatch]:
        """These rows of the block against H_S; finished keys leave."""
        work, scratch, output = self.work, self.work.scratch, self.work.output
        work.stats.master_rows_probed += stop - start
        rows = output.of_block(block)
        probe = self.pending.probing(codes, start, stop, scratch, output.first_only)
        while probe.unfinished:
            count = probe.step()
            done = probe.done
            ids = block.row_ids(scratch.right[:count])
            yield from output.pairs(self.pending, rows, scratch.left, ids, count)
            self.front.matched(block, codes, scratch.done, done)
            yield from self._finish(scratch.done, done, matched=output.exact)

    def _probe_long_run(self, code: int, pages: PageRange, disk: DiskBuffer) -> Iterator[pa.RecordBatch]:
        """A run longer than the disk buffer: piece after piece against its own key only."""
        pending, output, size = self.pending, self.work.output, self.work.scratch.size
        newest = np.array([pending.chain_of(code)], dtype=np.int64)
        for page in range(pages.first, pages.last + 1, disk.n_pages):
            block = disk.load(page, min(disk.n_pages, pages.last + 1 - page))
            found = block.row_ids(np.flatnonzero(disk.codes[: block.n_rows] == code))
            rows = output.of_block(block)
            cursor = np.zeros(2, dtype=np.int64)
            while cursor[0] == 0:
                slots = np.empty(max(1, size // max(len(found), 1)), dtype=np.int64)
                count = pending.chains(newest, 1, cursor, slots)
                for begin in range(0, len(found), size):
                    part = found[begin : begin + size]
                    left = np.repeat(slots[:count], len(part))
                    yield from output.pairs(pending, rows, left, np.tile(part, count), len(left))
        yield from self._finish(newest, 1, matched=False)

    def _finish(self, done: Int64s, count: int, matched: bool) -> Iterator[pa.RecordBatch]:
        """Keys are complete: unmatched tuples among them are output where wanted, then all leave H_S and Q."""
        if count == 0:
            return
        work, pending, slots = self.work, self.pending, self.work.scratch.slots
        if not matched and work.spec.how != "inner":
            cursor = np.zeros(2, dtype=np.int64)
            while cursor[0] < count:
                size = pending.chains(done, count, cursor, slots)
                lost = pending.keep_unmatched(slots, size)
                yield from work.output.unmatched(pending, slots, lost)
        elif not matched and work.output.exact:
            work.stats.unmatched += int(pending.lengths(done, count)[1].sum())
        left = pending.release(done, count)
        work.stats.expired += left
        work.stats.finished += left


class IndexLoop(Loop):
    """Stream phase and disk phase in turns: the queue is filled, then loads make room."""

    def __init__(self, phase: DiskPhase, front: IndexFront) -> None:
        self.phase, self.front, self.work = phase, front, phase.work
        self.settle()

    @property
    def pending(self) -> LinkedPending:
        return self.phase.pending

    @property
    def cache(self) -> Cache | None:
        return self.front.cache

    @property
    def waiting(self) -> int:
        return len(self.phase.pending)

    def settle(self) -> None:
        self.phase.settle()
        self.front.settle()

    def consume(self, chunk: Chunk) -> Iterator[pa.RecordBatch]:
        work = self.work
        if work.reader.n_pages == 0:
            yield from work.finish_all(chunk)
            return
        yield from self.front.answer(chunk)
        start, waiting = 0, self.front.missed
        while start < waiting:
            start += self.phase.admit(chunk, work.scratch.misses, start, waiting - start)
            if start < waiting:
                if not self.waiting:
                    raise work.too_small()
                yield from self.advance()

    def end_batch(self) -> Iterator[pa.RecordBatch]:
        return rebalanced(self, self.front.share)

    def advance(self) -> Iterator[pa.RecordBatch]:
        self.settle()
        return self.phase.iterate()

    def drain(self) -> Iterator[pa.RecordBatch]:
        while self.waiting:
            yield from self.advance()
        self.settle()

    # ------------------------------------------------------------------------------------- the snapshot

    def state(self) -> dict[str, Any]:
        return {} if self.front.share is None else self.front.share.state()

    def tuples(self) -> pa.Table:
        return waiting_table(self.work, self.pending)

    def restore(self, snapshot: Snapshot) -> None:
        """No tuple of this family is half joined between two calls: they simply wait again."""
        assert snapshot.tuples is not None
        if self.front.share is not None:
            self.front.share.restore(snapshot)
        for chunk in self.work.intake.waiting(snapshot.tuples):
            if self.phase.admit(chunk, self.work.scratch.every, 0, chunk.n_rows) < chunk.n_rows:
                raise BudgetError("the waiting tuples of the snapshot do not fit: restore with the same memory")


def waiting_table(work: Workplace, pending: LinkedPending) -> pa.Table:
    """All tuples of H_S, oldest first."""
    schema = work.intake.schema
    batches = [
        pa.RecordBatch.from_arrays(columns, schema=schema)
        for _, columns in work.output.stream_columns(pending, pending.in_order())
    ]
    return pa.Table.from_batches(batches, schema=schema)


# --------------------------------------------------------------------------------------- the loop as a formula


def disk_phase(plan: IndexPlan[Any], workload: Workload, h_S: float, cached: Floats) -> Shared:
    """Loads for what the cache leaves, per waiting tuple."""
    keys = workload.keys
    left = keys.without(cached)
    groups = LoadTimes.groups(plan.r.n_pages, plan.division.pages)
    if plan.r.order == "frequency":
        # The groups of R in order, less what is cached of each.
        whole = group_shares(keys, groups, True)
        rows = np.cumsum(keys.count * np.maximum(keys.m, 1e-9))
        per_class = np.minimum((rows / max(rows[-1], 1e-9) * groups).astype(np.int64), groups - 1)
        hit = np.bincount(per_class, keys.count * keys.p * cached, minlength=groups)
        shares = np.clip(whole - hit, 0.0, None)
        shares = shares / max(float(shares.sum()), 1e-12)
    else:
        shares = group_shares(left, groups, False)
    shared = oldest_first(shares, h_S, left.absent_share)
    missed = max(1.0 - keys.p_N(cached), 1e-12)
    if not workload.drained:
        waiting = min(h_S, workload.seen * missed)
        shared = replace(shared, left=needed_pages(shares, waiting))
        # Nothing is loaded before H_S is full for the first time.
        return shared if waiting >= h_S else replace(shared, loads=0.0)
    # Every batch is finished by itself: what fills H_S is worked off as ever, the rest group by group.
    waiting = workload.batch * missed
    rest = min(h_S, waiting)
    loads = (waiting - rest) * shared.loads + needed_pages(shares, rest)
    per_tuple = min(loads / max(waiting, 1e-12), 1.0)
    return Shared(per_tuple, min(shared.longest, waiting), 1.0 / per_tuple if per_tuple else math.inf, rest / 2)


def counts_of_loads(plan: IndexPlan[Any], loads: float) -> dict[str, float]:
    """Operations of that many loads of the disk buffer: c_I/O(d), d·c_H."""
    pages = min(plan.division.pages, plan.r.n_pages)
    return {
        "iterations": loads,
        "reads": loads,
        "pages_read": loads * pages,
        "bytes_read": loads * plan.r.read_bytes(pages),
        "master_rows_probed": loads * plan.division.rows,
    }


def index_counts(plan: IndexPlan[Any], shared: Shared, missed: float) -> dict[str, float]:
    """Operations per stream tuple: c_I/O(d), d·c_H, w_S·(c_A + c_E), one load for w_S that waited."""
    return {
        "cache_hits": 1.0 - missed,
        "cache_misses": missed,
        "appended": missed,
        "expired": missed,
        **counts_of_loads(plan, shared.loads * missed),
    }


def left_keys(plan: IndexPlan[Any], workload: Workload, shared: Shared, cached: Floats) -> float:
    """Keys that leave H_S per stream tuple, c_F's number: a key's tuples since the last load of its group are one."""
    keys = workload.keys
    groups = LoadTimes.groups(plan.r.n_pages, plan.division.pages)
    missed = float((keys.count * keys.p * (1 - cached)).sum())
    between = groups / max(shared.loads * missed, 1e-12)
    seen = -np.expm1(-keys.p * between)
    return float((keys.count * (1 - cached) * (keys.m > 0) * seen).sum()) / between


@dataclass(frozen=True)
class Settled:
    """What a prediction has found: how loads are shared, which part of each key is cached, and h_S, h_R.

    `rest` and `start` are those of `Counts`.
    """

    shared: Shared
    cached: Floats
    h_S: float
    h_R: float = 0.0
    rest: float = 0.0
    start: Mapping[str, float] = field(default_factory=dict)


def index_prediction(
    plan: IndexPlan[Any],
    workload: Workload,
    found: Settled,
    extra: dict[str, float] | None = None,
) -> Counts:
    """Counts from what is cached and how many may wait; `extra` ones are added."""
    shared = found.shared
    missed = max(1.0 - workload.keys.p_N(found.cached), 1e-12)
    w = shared.w_S / missed if missed else 0.0
    tables = {"load times": plan.load_times, "arena table": plan.arena.table_bytes, "pending table": plan.pending_bytes}
    if plan.cache_bytes:
        tables["cache"] = plan.cache_bytes
    return Counts(
        {**index_counts(plan, shared, missed), **(extra or {})},
        memory=tables,
        symbols={
            "h_S": found.h_S,
            "h_R": found.h_R,
            "w_S": shared.w_S,
            "w_N": w * (1 - missed),
            "p_N": 1 - missed,
        },
        delay=shared.waiting,
        longest_delay=shared.longest / missed,
        # A full H_S at least
        rest=found.rest if workload.drained else max(found.rest, found.h_S / missed),
        start=found.start,
        leave={} if workload.drained else counts_of_loads(plan, shared.left),
    )
