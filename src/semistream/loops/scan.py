"""The main loop of the scan operators: R goes round and round, every waiting tuple sees all of it once.

    step:  admit a chunk of w tuples -> load the next partition of R -> probe H_S with it -> expire the oldest chunk

A chunk admitted before step t has met partitions t, t+1, ... and leaves after k steps, so no index and no order of R is
needed. A partition is what the disk buffer holds, or one of some equal pieces of that (R-MESHJOIN). MESHJOIN,
R-MESHJOIN, SSJ and SSBJ share this loop and differ in what stands in front of it (`ScanFront`).

The second half of this file is the same loop as a formula.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from semistream.engine.chunk import Chunk
from semistream.engine.division import arena_within
from semistream.engine.facts import MasterFacts, StreamFacts
from semistream.engine.front import CacheFront
from semistream.engine.loop import Loop
from semistream.engine.plan import Plan, SomeOptions
from semistream.engine.share import MovingShare, rebalanced
from semistream.engine.snapshot import FLAG_COLUMN, MOST, Snapshot, impossible, whole
from semistream.engine.workplace import Workplace
from semistream.errors import BudgetError, SemiStreamError
from semistream.master.base import PageBlock
from semistream.parts.arena import ArenaShape
from semistream.parts.cache import Cache
from semistream.parts.disk_buffer import DiskBuffer
from semistream.parts.pending import FifoPending
from semistream.predict.counts import Counts, Workload


@dataclass(frozen=True)
class ScanPlan(Plan[SomeOptions]):
    """The arena that H_S and whatever else an algorithm keeps live in, and R's pages per step."""

    pages_per_step: int
    arena: ArenaShape
    #: bytes of a waiting tuple's slot
    slot: int
    #: steps that work off one load
    pieces: int = field(default=1, kw_only=True)

    @property
    def tables(self) -> int:
        """Bytes for tables, the arena's own apart."""
        return self.division.tables - self.arena.table_bytes

    @property
    def loads(self) -> int:
        """Loads per R-cycle."""
        return -(-self.r.n_pages // self.pages_per_step)

    @property
    def k(self) -> int:
        """Steps per R-cycle."""
        return self.loads * self.pieces


def scan_arena(
    r: MasterFacts, s: StreamFacts, budget: int, tables: int, *, counter: bool = False
) -> tuple[ArenaShape, int]:
    """The arena for waiting tuples and cached rows, and the slot of a waiting tuple."""
    slot = s.slot(FifoPending.HEADER, counter=counter)
    return arena_within(budget, tables, slot, r.row_slot), slot


class ScanFront(Protocol):
    """What stands before the scan: a cache, or nothing. The loop says what happens, the front does the rest."""

    missed: int

    @property
    def cache(self) -> Cache | None:
        """The hot keys."""

    @property
    def share(self) -> MovingShare | None:
        """Moves bytes between the cache and H_S, where the algorithm lets it."""

    def answer(self, chunk: Chunk) -> Iterator[pa.RecordBatch]:
        """Finish what can be answered; `missed` others are listed in `scratch.misses`."""

    def begin_cycle(self) -> None:
        """A new R-cycle starts with the next partition."""

    def after_probe(self, block: PageBlock) -> None:
        """A partition was probed; `disk.codes` still holds its codes."""

    def before_expiry(self, count: int) -> None:
        """The `count` oldest tuples have met all of R and are about to leave."""

    def restored(self, count: int) -> None:
        """The `count` tuples that wait were put back from a snapshot: they have met part of R before."""

    @property
    def tuples_per_cycle(self) -> float:
        """Tuples that H_S has room for."""

    def settle(self) -> None:
        """Enter the front's bytes in the ledger."""


class PlainFront(CacheFront):
    """A cache that stays as it is, or none: then every tuple waits."""

    def __init__(self, cache: Cache | None, work: Workplace, pending: FifoPending) -> None:
        super().__init__(cache, work.output, work.scratch, work.stats)
        self._work, self._pending = work, pending

    @property
    def tuples_per_cycle(self) -> float:
        return self._pending.limit_bytes / self._pending.tuple_bytes

    def settle(self) -> None:
        if self.cache is not None:
            self._work.budget.hold("cache", self.cache.bytes_held)

    def begin_cycle(self) -> None:
        """Nothing to do."""

    def after_probe(self, block: PageBlock) -> None:
        """Nothing to do."""

    def before_expiry(self, count: int) -> None:
        """Nothing to do."""

    def restored(self, count: int) -> None:
        """Nothing to do."""


@dataclass
class Round:
    """Where the scan is: the next of k partitions."""

    k: int
    position: int = 0


class ScanLoop(Loop):
    """Cyclic scan with a FIFO pending table."""

    def __init__(
        self,
        plan: ScanPlan[Any],
        work: Workplace,
        pending: FifoPending,
        front: ScanFront,
        scan: Round | None = None,
    ) -> None:
        self.work, self.pending, self.front = work, pending, front
        self.pages_per_load, self.pieces = plan.pages_per_step, plan.pieces
        #: what the disk buffer holds, while there are pieces of it to be probed
        self._block: PageBlock | None = None
        self.scan = Round(plan.k) if scan is None else scan
        self.k = plan.k
        self.step_number = 0
        self.open_count = 0
        #: closed chunks, oldest first: [tuples, step after which they expire]
        self.chunks: deque[list[int]] = deque()
        self.settle()

    def settle(self) -> None:
        self.work.budget.hold("pending table", self.pending.bytes_held)
        self.front.settle()

    @property
    def cache(self) -> Cache | None:
        return self.front.cache

    @property
    def waiting(self) -> int:
        return len(self.pending)

    # ---------------------------------------------------------------------------------------- the loop

    @property
    def chunk_target(self) -> int:
        """w: tuples a step may add to H_S so that k chunks fill it; where w is no whole number, steps take turns."""
        w = self.front.tuples_per_cycle / self.k
        return max(1, int(w * (self.scan.position + 1)) - int(w * self.scan.position))

    def consume(self, chunk: Chunk) -> Iterator[pa.RecordBatch]:
        work = self.work
        if self.k == 0:
            yield from work.finish_all(chunk)
            return
        yield from self.front.answer(chunk)
        waiting, ids = self.front.missed, work.scratch.misses
        start = stalled = 0
        while start < waiting:
            wanted = min(waiting - start, max(self.chunk_target - self.open_count, 0))
            took = self.pending.append(chunk.codes, chunk.columns, ids, start, wanted, work.scratch.slots)
            start += took
            self.open_count += took
            work.stats.appended += took
            stalled = 0 if took else stalled + 1
            if stalled > 2 * self.k + 4:
                raise work.too_small()
            if took < wanted or self.open_count >= self.chunk_target:
                yield from self.advance()

    def end_batch(self) -> Iterator[pa.RecordBatch]:
        return rebalanced(self, self.front.share)

    def drain(self) -> Iterator[pa.RecordBatch]:
        while len(self.pending):
            yield from self.advance()
        self.settle()

    def advance(self) -> Iterator[pa.RecordBatch]:
        """One step of the scan."""
        work = self.work
        if self.scan.position == 0:
            self.pending.fit_directory()
            self.front.begin_cycle()
        self.close_chunk()
        self.settle()
        block, start, stop = self._next_piece()
        yield from self._probe(block, start, stop)
        self.front.after_probe(block)
        work.stats.iterations += 1
        work.stats.master_rows_probed += stop - start
        work.copy_read_counts()
        self.step_number += 1
        self.scan.position += 1
        if self.scan.position == self.k:
            self.scan.position = 0
            work.stats.r_cycles += 1
        while self.chunks and self.chunks[0][1] <= self.step_number:
            yield from self._expire(self.chunks.popleft()[0])
        self.settle()

    def _next_piece(self) -> tuple[PageBlock, int, int]:
        """The rows of the next step, loaded unless they are a further piece of the last load."""
        load, piece = divmod(self.scan.position, self.pieces)
        if piece == 0 or self._block is None:
            self._block = self.work.disk.load(load * self.pages_per_load, self.pages_per_load)
        rows = self._block.n_rows
        return self._block, rows * piece // self.pieces, rows * (piece + 1) // self.pieces

    def _probe(self, block: PageBlock, start: int, stop: int) -> Iterator[pa.RecordBatch]:
        """Disk-probing phase: all pairs of the partition's rows and waiting tuples."""
        work, pending, scratch = self.work, self.pending, self.work.scratch
        cursor = np.array([start, 0], dtype=np.int64)
        rows = work.output.of_block(block)
        while cursor[0] < stop:
            count = pending.probe(work.disk.codes, stop, cursor, scratch.left, scratch.right)
            ids = block.row_ids(scratch.right[:count])
            yield from work.output.pairs(pending, rows, scratch.left, ids, count)

    def _expire(self, count: int) -> Iterator[pa.RecordBatch]:
        """The oldest chunk has seen all of R."""
        work, slots = self.work, self.work.scratch.slots
        work.stats.expired += count
        work.stats.finished += count
        while count:
            part = min(count, work.scratch.size)
            self.front.before_expiry(part)
            if work.spec.how != "inner":
                self.pending.front(part, slots)
                lost = self.pending.keep_unmatched(slots, part)
                yield from work.output.unmatched(self.pending, slots, lost)
            self.pending.expire(part)
            count -= part

    # ------------------------------------------------------------------ step by step, by a caller's clock

    def close_chunk(self) -> None:
        """Tuples admitted since the last step form a chunk of their own; later ones do not join it."""
        if self.open_count:
            self.chunks.append([self.open_count, self.step_number + self.k])
            self.open_count = 0

    def skip_to(self, step: int) -> None:
        """Go on as if that many steps had been made; only while nobody waits."""
        if len(self.pending) == 0 and self.k:
            self.step_number = step
            self.scan.position = step % self.k
            self._block = None

    def borrow_disk(self) -> DiskBuffer:
        self._block = None
        return super().borrow_disk()

    def wait(self, tuples: pa.Table) -> None:
        """Admit tuples as a chunk of their own, whatever the cache could say of them."""
        self._append_all(tuples)
        self.open_count += tuples.num_rows
        self.close_chunk()

    def _append_all(self, tuples: pa.Table, flags: pa.ChunkedArray | None = None) -> None:
        at, scratch, pending = 0, self.work.scratch, self.pending
        for chunk in self.work.intake.waiting(tuples):
            took = pending.append(chunk.codes, chunk.columns, scratch.every, 0, chunk.n_rows, scratch.slots)
            if took < chunk.n_rows:
                raise BudgetError("the waiting tuples do not fit: give the join the memory it had before")
            if flags is not None and pending.layout.flag_at:
                matched = np.flatnonzero(flags.slice(at, chunk.n_rows).to_numpy(zero_copy_only=False))
                pending.mark(np.ascontiguousarray(scratch.slots[matched]), len(matched))
            at += chunk.n_rows

    # ------------------------------------------------------------------------------------- the snapshot

    def state(self) -> dict[str, Any]:
        return {
            "k": self.k,
            "position": self.scan.position,
            "step_number": self.step_number,
            "open_count": self.open_count,
            "chunks": [list(chunk) for chunk in self.chunks],
            **({} if self.front.share is None else self.front.share.state()),
        }

    def tuples(self) -> pa.Table:
        slots = np.empty(len(self.pending), dtype=np.int64)
        self.pending.front(len(slots), slots)
        schema = self.work.intake.schema.append(pa.field(FLAG_COLUMN, pa.bool_()))
        batches = []
        for start, columns in self.work.output.stream_columns(self.pending, slots):
            flags = self.pending.matched(slots[start : start + len(columns[0])])
            batches.append(pa.RecordBatch.from_arrays([*columns, pa.array(flags)], schema=schema))
        return pa.Table.from_batches(batches, schema=schema)

    def restore(self, snapshot: Snapshot) -> None:
        k = snapshot.state.get("k")
        if k != self.k:
            raise SemiStreamError(
                f"the snapshot divides R into {k!r} partitions, this join into {self.k}: "
                "open it with the memory, page size and options it had then"
            )
        tuples = snapshot.tuples
        assert tuples is not None
        if FLAG_COLUMN not in tuples.schema.names or tuples.schema.field(FLAG_COLUMN).type != pa.bool_():
            raise impossible("columns", tuples.schema.names, f"the stream's and {FLAG_COLUMN}, which is true or false,")
        step = snapshot.whole("step_number", 0, MOST)
        chunks: deque[list[int]] = deque()
        waiting, due = 0, step + 1
        for count, expiry in snapshot.pairs("chunks"):
            due = whole(expiry, due, step + self.k, "expiry")
            chunks.append([whole(count, 1, tuples.num_rows - waiting, "tuples in a chunk"), due])
            waiting += count
        open_count = snapshot.whole("open_count", tuples.num_rows - waiting, tuples.num_rows - waiting)
        self.scan.position = snapshot.whole("position", 0, max(self.k - 1, 0))
        self.step_number, self.open_count, self.chunks = step, open_count, chunks
        if self.front.share is not None:
            self.front.share.restore(snapshot)
        self._append_all(tuples.drop_columns([FLAG_COLUMN]), tuples[FLAG_COLUMN])
        self.front.restored(len(self.pending))


# --------------------------------------------------------------------------------------- the loop as a formula


@dataclass(frozen=True)
class ScanCycle:
    """One R-cycle: k steps, each probing b tuples and taking in w_S that wait, of w stream tuples.

    `loads` of them load what they probe, the others a further piece of it.
    """

    k: int
    b: float
    w_S: float
    w: float
    pages: float
    bytes: float
    loads: int

    @property
    def tuples(self) -> float:
        """Stream tuples an R-cycle finishes."""
        return self.k * self.w


def cycle(plan: ScanPlan[Any], workload: Workload, h_S: float, missed: float) -> ScanCycle:
    """The R-cycle of a pending table of h_S tuples, when this share of the stream waits.

    Drained after every batch, R goes round once more for it: k steps that take nothing in.
    """
    r, step = plan.r, plan.pages_per_step
    k = max(plan.k, 1)
    w_S = max(h_S / k, 1.0)
    w = w_S / missed if missed > 0 else math.inf
    if workload.drained and missed > 0:
        w = 1.0 / (1.0 / w + k / workload.batch)
        w_S = w * missed
    loads = max(plan.loads, 1)
    last = r.n_pages - (loads - 1) * step
    size = ((loads - 1) * r.read_bytes(step) + r.read_bytes(last)) / k
    return ScanCycle(k, r.rows / k, w_S, w, r.n_pages / k, size, loads)


def scan_counts(turn: ScanCycle, missed: float) -> dict[str, float]:
    """Operations per stream tuple: c_I/O(b), b·c_H, w_S·(c_A + c_E), one step for w tuples."""
    steps = 1.0 / turn.w if math.isfinite(turn.w) else 0.0
    return {
        "cache_hits": 1.0 - missed,
        "cache_misses": missed,
        "appended": missed,
        "expired": missed,
        "iterations": steps,
        "r_cycles": steps / turn.k,
        "reads": steps * turn.loads / turn.k,
        "pages_read": steps * turn.pages,
        "bytes_read": steps * turn.bytes,
        "master_rows_probed": steps * turn.b,
    }


def scan_symbols(turn: ScanCycle, h_S: float, missed: float, h_R: float = 0.0) -> dict[str, float]:
    """b, k, w_S, w_N, h_S, h_R of a turn."""
    w_N = turn.w - turn.w_S if math.isfinite(turn.w) else math.inf
    return {"b": turn.b, "k": turn.k, "h_S": h_S, "h_R": h_R, "w_S": turn.w_S, "w_N": w_N, "p_N": 1.0 - missed}


def scan_without_cache(plan: ScanPlan[Any], workload: Workload, h_S: float) -> Counts:
    """All tables are H_S, and every tuple waits for all of R."""
    turn = cycle(plan, workload, h_S, missed=1.0)
    return Counts(
        scan_counts(turn, missed=1.0),
        memory={"arena table": plan.arena.table_bytes, "pending table": plan.tables},
        symbols=scan_symbols(turn, h_S, missed=1.0),
        delay=turn.tuples,
        longest_delay=turn.tuples,
    )
