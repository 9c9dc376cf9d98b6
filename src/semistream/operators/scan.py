"""The main loop of the scan operators: R goes round and round, every waiting tuple sees all of it once.

    step:  admit a chunk of w tuples -> load the next partition of R -> probe H_S with it -> expire the oldest chunk

A chunk admitted before step t has met partitions t, t+1, ... and leaves after k steps, so no index and no order of R is
needed. MESHJOIN, R-MESHJOIN, SSJ and SSBJ share this loop and differ in what they do around it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.errors import BudgetError, SemiStreamError
from semistream.kernels import tuples as tuple_kernel
from semistream.kernels.fifo import FIFO_HEADER
from semistream.master.base import PageBlock
from semistream.operators.base import SemiStreamJoin
from semistream.operators.chunk import Chunk
from semistream.operators.snapshot import FLAG_COLUMN, MOST, Snapshot, impossible, whole
from semistream.parts.arena import Arena
from semistream.parts.pending import FifoPending

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


class ScanJoin(SemiStreamJoin):
    """Cyclic scan with a FIFO pending table."""

    access = "scan"

    def _build(self) -> None:
        self.pages_per_step = self._pages_per_step()
        self.k = -(-self.reader.n_pages // self.pages_per_step)
        self.position = 0
        self.step_number = 0
        self.open_count = 0
        #: closed chunks, oldest first: [tuples, step after which they expire]
        self.chunks: deque[list[int]] = deque()
        layout = self._stream_layout(FIFO_HEADER)
        self._build_tables(self._make_arena(layout.slot_bytes, self._master_layout.slot_bytes))
        self._settle()

    def _pages_per_step(self) -> int:
        return self.buffer_pages

    def _build_tables(self, arena: Arena) -> None:
        """Divide the arena; without a cache all of it is the pending table's."""
        self.pending = FifoPending(arena, self._stream_layout(FIFO_HEADER), self.budget.spare)

    def _settle(self) -> None:
        self.budget.hold("pending table", self.pending.bytes_held)

    # ---------------------------------------------------------------------------------------- the loop

    @property
    def _tuples_per_cycle(self) -> float:
        """Tuples that H_S has room for."""
        return self.pending.limit_bytes / self.pending.tuple_bytes

    @property
    def chunk_target(self) -> int:
        """w: tuples that a step adds to H_S so that k chunks fill it; where w is no whole number, steps take turns."""
        w = self._tuples_per_cycle / self.k
        return max(1, int(w * (self.position + 1)) - int(w * self.position))

    def _consume(self, chunk: Chunk) -> Iterator[pa.RecordBatch]:
        if self.k == 0:
            self.stats.finished += chunk.n_rows
            yield from self._emit_unmatched(self._take_chunk(chunk), self.scratch.every, chunk.n_rows)
            return
        waiting = yield from self._cache_phase(chunk)
        ids = self.scratch.misses
        start = 0
        stalled = 0
        while start < waiting:
            wanted = min(waiting - start, max(self.chunk_target - self.open_count, 0))
            took = self.pending.append(chunk.codes, chunk.columns, ids, start, wanted, self.scratch.slots)
            start += took
            self.open_count += took
            self.stats.appended += took
            stalled = 0 if took else stalled + 1
            if stalled > 2 * self.k + 4:
                raise BudgetError(
                    f"not even one waiting tuple fits the budget of {self.budget.total} bytes: give more memory"
                )
            if took < wanted or self.open_count >= self.chunk_target:
                yield from self._step()

    def _cache_phase(self, chunk: Chunk) -> Generator[pa.RecordBatch, None, int]:
        """Without a cache every tuple waits. Returns the number of entries of `scratch.misses`."""
        self.scratch.misses[: chunk.n_rows] = self.scratch.every[: chunk.n_rows]
        self.stats.cache_misses += chunk.n_rows
        yield from ()
        return chunk.n_rows

    def _drain(self) -> Iterator[pa.RecordBatch]:
        while len(self.pending):
            yield from self._step()
        self._settle()

    def advance(self, steps: int) -> Iterator[pa.RecordBatch]:
        """That many turns of the main loop, or fewer if no tuple waits any more."""
        with self._turn:
            self._require_idle()
            return self._take_on("advance", self._advance(steps))

    def _advance(self, steps: int) -> Iterator[pa.RecordBatch]:
        for _ in range(steps):
            if len(self.pending) == 0:
                break
            yield from self._step()

    def close_chunk(self) -> None:
        """Tuples admitted since the last step form a chunk of their own; later ones do not join it."""
        if self.open_count:
            self.chunks.append([self.open_count, self.step_number + self.k])
            self.open_count = 0

    def skip_to(self, step: int) -> None:
        """Go on as if `step` steps had been made; only while no tuple waits."""
        if len(self.pending) == 0 and self.k:
            self.step_number = step
            self.position = step % self.k

    def wait(self, tuples: pa.Table) -> None:
        """Admit tuples as a chunk of their own, whatever the cache could say of them."""
        self._append_all(tuples)
        self.open_count += tuples.num_rows
        self.close_chunk()

    def _append_all(self, tuples: pa.Table, flags: pa.ChunkedArray | None = None) -> None:
        at = 0
        for part in self._parts(tuples):
            codes, arrays = self._encoded(part)
            slots = self.scratch.slots
            took = self.pending.append(codes, arrays, self.scratch.every, 0, part.num_rows, slots)
            if took < part.num_rows:
                raise BudgetError("the waiting tuples do not fit: give the join the memory it had before")
            if flags is not None and self.pending.layout.flag_at:
                matched = np.flatnonzero(flags.slice(at, part.num_rows).to_numpy(zero_copy_only=False))
                self._mark_slots(np.ascontiguousarray(slots[matched]), len(matched))
            at += part.num_rows

    def _step(self) -> Iterator[pa.RecordBatch]:
        """One turn of the main loop."""
        if self.position == 0:
            self._begin_cycle()
        self.close_chunk()
        self._settle()
        block = self.disk.load(self.position * self.pages_per_step, self.pages_per_step)
        yield from self._probe(block)
        self._after_probe(block)
        self.stats.iterations += 1
        self.stats.master_rows_probed += block.n_rows
        self._copy_read_counts()
        self.step_number += 1
        self.position += 1
        if self.position == self.k:
            self.position = 0
            self.stats.r_cycles += 1
        while self.chunks and self.chunks[0][1] <= self.step_number:
            yield from self._expire(self.chunks.popleft()[0])
        self._settle()

    def _begin_cycle(self) -> None:
        """A new R-cycle starts with the next partition."""
        self.pending.fit_directory()

    def _after_probe(self, block: PageBlock) -> None:
        """A partition was probed; `disk.codes` still holds its codes."""

    def _copy_read_counts(self) -> None:
        self.stats.reads = self.disk.reads
        self.stats.pages_read = self.disk.pages_read
        self.stats.bytes_read = self.disk.bytes_read

    def _probe(self, block: PageBlock) -> Iterator[pa.RecordBatch]:
        """Disk-probing phase: all pairs of the partition's rows and waiting tuples."""
        cursor = np.zeros(2, dtype=np.int64)
        right = self._take_block(block)
        scratch = self.scratch
        while cursor[0] < block.n_rows:
            count = self.pending.probe(self.disk.codes, block.n_rows, cursor, scratch.left, scratch.right)
            rows = block.row_ids(scratch.right[:count])
            yield from self._emit(self.pending.take, right, scratch.left, rows, count, self._mark_slots)

    def _mark_slots(self, slots: Int64s, count: int) -> Bools:
        first = np.empty(count, dtype=np.bool_)
        tuple_kernel.mark_slots(slots, count, self.pending.layout.flag_at, first)
        return first

    def _expire(self, count: int) -> Iterator[pa.RecordBatch]:
        """The oldest chunk has seen all of R."""
        self.stats.expired += count
        self.stats.finished += count
        while count:
            part = min(count, self.scratch.size)
            self._before_expiry(part)
            if self.spec.how != "inner":
                slots = self.scratch.slots
                self.pending.front(part, slots)
                lost = tuple_kernel.keep_unflagged(slots, part, self.pending.layout.flag_at)
                yield from self._emit_unmatched(self.pending.take, slots, lost)
            self.pending.expire(part)
            count -= part

    def _before_expiry(self, count: int) -> None:
        """The `count` oldest tuples have met all of R and are about to leave."""

    # ------------------------------------------------------------------------------------- the snapshot

    def _snapshot_state(self) -> dict[str, Any]:
        return {
            "k": self.k,
            "position": self.position,
            "step_number": self.step_number,
            "open_count": self.open_count,
            "chunks": [list(chunk) for chunk in self.chunks],
        }

    def _snapshot_tuples(self) -> pa.Table:
        slots = np.empty(len(self.pending), dtype=np.int64)
        self.pending.front(len(slots), slots)
        batches = []
        for start, columns in self._stream_columns(self.pending.take, slots, len(slots)):
            part = slots[start : start + len(columns[0])]
            flags = np.zeros(len(part), dtype=np.bool_)
            if self.pending.layout.flag_at:
                tuple_kernel.read_flags(part, len(part), self.pending.layout.flag_at, flags)
            batches.append(pa.RecordBatch.from_arrays([*columns, pa.array(flags)], schema=self._snapshot_schema()))
        return pa.Table.from_batches(batches, schema=self._snapshot_schema())

    def _snapshot_schema(self) -> pa.Schema:
        assert self._schema is not None
        return self._schema.append(pa.field(FLAG_COLUMN, pa.bool_()))

    def _restore(self, snapshot: Snapshot) -> None:
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
        self.position = snapshot.whole("position", 0, max(self.k - 1, 0))
        self.step_number, self.open_count, self.chunks = step, open_count, chunks
        self._append_all(tuples.drop_columns([FLAG_COLUMN]), tuples[FLAG_COLUMN])
