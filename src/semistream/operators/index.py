"""The main loop of the index operators: the queue says which partition of R is worth reading next.

    iteration:  admit tuples until H_S is full -> the oldest key picks a partition through the index
                -> load it -> probe H_S with it -> matched keys leave H_S and Q

At least the oldest tuple leaves in every iteration, so each tuple waits a bounded time, also one whose key R lacks.
HYBRIDJOIN, X-HYBRIDJOIN, its optimised form and the CACHEJOINs share this loop.

All master tuples of a key must be seen at once. They stand side by side in an indexed store, perhaps across pages: a
run that leaves the loaded pages is left alone unless it is the one that was asked for, which is always read to its end.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.errors import BudgetError
from semistream.kernels import linked as kernel
from semistream.kernels import tuples as tuple_kernel
from semistream.kernels.linked import LINKED_HEADER
from semistream.kernels.raw import peek_i64
from semistream.master.base import PageBlock
from semistream.operators.base import SemiStreamJoin
from semistream.operators.chunk import Chunk, Scratch
from semistream.operators.snapshot import Snapshot
from semistream.parts.arena import Arena
from semistream.parts.disk_buffer import DiskBuffer
from semistream.parts.pending import LinkedPending

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


class IndexJoin(SemiStreamJoin):
    """Partition loads picked by the queue, over a linked pending table."""

    access = "index"
    needs_index = True

    def _build(self) -> None:
        layout = self._stream_layout(LINKED_HEADER)
        groups = -(-self.reader.n_pages // self.buffer_pages)
        #: iteration in which each group of pages was last read whole
        self._loaded = np.full(max(groups, 1), -1, dtype=np.int64)
        self.budget.hold("load times", self._loaded.nbytes)
        self._iteration = 0
        self._build_tables(self._make_arena(layout.slot_bytes, self._master_layout.slot_bytes))
        self._settle()

    def _build_tables(self, arena: Arena) -> None:
        """Divide the arena; without a cache all of it is the pending table's."""
        self.pending = LinkedPending(arena, self._stream_layout(LINKED_HEADER), self.budget.spare)

    def _settle(self) -> None:
        self._settle_pending()

    def _settle_pending(self) -> None:
        self.budget.hold("pending table", self.pending.bytes_held)

    # ---------------------------------------------------------------------------------------- the loop

    def _consume(self, chunk: Chunk) -> Iterator[pa.RecordBatch]:
        if self.reader.n_pages == 0:
            self.stats.finished += chunk.n_rows
            yield from self._emit_unmatched(self._take_chunk(chunk), self.scratch.every, chunk.n_rows)
            return
        waiting = yield from self._cache_phase(chunk)
        start = 0
        while start < waiting:
            took = self._admit(chunk, self.scratch.misses, start, waiting - start, self.scratch.slots)
            start += took
            if start < waiting:
                if not len(self.pending):
                    raise self._too_small()
                yield from self._iterate()

    def _too_small(self) -> BudgetError:
        return BudgetError(
            f"not even one waiting tuple fits the budget of {self.budget.total} bytes: give the join more memory"
        )

    def _admit(self, chunk: Chunk, ids: Int64s, start: int, count: int, slots: Int64s) -> int:
        """Fill H_S and Q with as many tuples as fit."""
        took = self.pending.append(chunk.codes, chunk.columns, ids, start, count, slots, self._iteration)
        self.stats.appended += took
        return took

    def _cache_phase(self, chunk: Chunk) -> Generator[pa.RecordBatch, None, int]:
        """Without a cache every tuple waits. Returns the number of entries of `scratch.misses`."""
        self.scratch.misses[: chunk.n_rows] = self.scratch.every[: chunk.n_rows]
        self.stats.cache_misses += chunk.n_rows
        yield from ()
        return chunk.n_rows

    def _drain(self) -> Iterator[pa.RecordBatch]:
        while len(self.pending):
            yield from self._iterate()
        self._settle()

    def _iterate(self) -> Iterator[pa.RecordBatch]:
        """One disk-probing phase: the oldest key picks the load."""
        self._settle()
        yield from self._release_absent(self.scratch)
        if len(self.pending):
            code = self._code_at(self.pending.oldest)
            yield from self._serve(code, *self._pages_for(code), self.disk, self.scratch)
        self._copy_read_counts()

    @staticmethod
    def _code_at(slot: int) -> int:
        return int(peek_i64(slot))

    def _release_absent(self, scratch: Scratch) -> Iterator[pa.RecordBatch]:
        """Oldest tuples whose pages were read since they came, without a match: R lacks their key, no load needed."""
        if self.master.order != "key":
            yield from self._release_unlisted(scratch)
            return
        while len(self.pending):
            count = kernel.linked_absent(
                self.pending.directory,
                self.pending.arena.state,
                self.pending.queue,
                self.reader.fences,
                self.reader.continues,
                self.buffer_pages,
                self._loaded,
                scratch.done,
            )
            if count == 0:
                return
            done = np.unique(scratch.done[:count])
            self._absent(done, len(done))
            yield from self._finish(done, len(done), scratch, matched=False)

    def _release_unlisted(self, scratch: Scratch) -> Iterator[pa.RecordBatch]:
        """The second index lists every key of R: once the oldest is not in it, all that came with it are looked up."""
        while len(self.pending):
            oldest = np.array([self._code_at(self.pending.oldest)], dtype=np.int64)
            if self.reader.locate(oldest)[0][0] >= 0:
                return
            count = min(len(self.pending), scratch.size)
            codes = np.empty(count, dtype=np.int64)
            kernel.linked_oldest(self.pending.arena.state, self.pending.queue, codes)
            codes = np.unique(codes)
            codes = codes[self.reader.locate(codes)[0] < 0]
            kernel.linked_newest(self.pending.directory, self.pending.arena.state, codes, scratch.done)
            self._absent(scratch.done, len(codes))
            yield from self._finish(scratch.done, len(codes), scratch, matched=False)

    def _pages_for(self, code: int) -> tuple[int, int, int]:
        """First page to load, number of pages, and the last page of the key's own run (-1, 0, -1: not in R)."""
        first, last = self.reader.locate(np.array([code], dtype=np.int64))
        if first[0] < 0:
            return -1, 0, -1
        begin = int(first[0]) // self.buffer_pages * self.buffer_pages
        if int(last[0]) >= begin + self.buffer_pages:
            begin = int(first[0])
        return begin, min(self.buffer_pages, self.reader.n_pages - begin), int(last[0])

    def _serve(
        self,
        code: int,
        first: int,
        pages: int,
        last: int,
        disk: DiskBuffer,
        scratch: Scratch,
        block: PageBlock | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Load the picked pages (unless they are there), probe H_S, and let the picked key go, matched or not."""
        if pages:
            if last < first + pages:
                block = disk.load(first, pages) if block is None else block
                yield from self._probe(block, disk.codes, first, scratch)
                self._note_load(first, pages)
            else:
                yield from self._probe_long_run(code, first, last, disk, scratch)
        self.stats.iterations += 1
        newest = self.pending.chain_of(code)
        if newest:
            done = np.array([newest], dtype=np.int64)
            if last < first + pages:
                self._absent(done, 1)
            yield from self._finish(done, 1, scratch, matched=False)

    def _absent(self, done: Int64s, count: int) -> None:
        """Keys that are about to leave because R lacks them; a cache may remember that."""

    def _note_load(self, first: int, pages: int) -> None:
        """Remember when a page group was read whole; tuples that come from now on have not met it."""
        self._iteration += 1
        if first % self.buffer_pages == 0:
            self._loaded[first // self.buffer_pages] = self._iteration

    def _probe(self, block: PageBlock, codes: Int64s, first: int, scratch: Scratch) -> Iterator[pa.RecordBatch]:
        """All complete runs of the block against H_S; finished keys leave."""
        yield from self._probe_rows(block, codes, *self._complete_rows(block, codes, first), scratch)

    def _complete_rows(self, block: PageBlock, codes: Int64s, first: int) -> tuple[int, int]:
        """Rows of the block without the runs that begin before it or go on behind it."""
        start, stop = 0, block.n_rows
        if stop == 0:
            return 0, 0
        after = first + len(block.pages)
        if self.master.order == "key":
            begun = bool(self.reader.continues[first])
            goes_on = after < self.reader.n_pages and bool(self.reader.continues[after])
        else:
            ends = np.sort(codes[[0, stop - 1]])
            from_page, to_page = self.reader.locate(ends)
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

    def _probe_rows(
        self, block: PageBlock, codes: Int64s, start: int, stop: int, scratch: Scratch
    ) -> Iterator[pa.RecordBatch]:
        self.stats.master_rows_probed += stop - start
        cursor = np.array([start, 0, 0, 0, 0], dtype=np.int64)
        right = self._take_block(block)
        first_only = self._exact and not self.spec.carries_master
        pending = self.pending
        while cursor[0] < stop:
            count = kernel.linked_probe(
                codes,
                start,
                stop,
                pending.directory,
                pending.arena.state,
                cursor,
                scratch.left,
                scratch.right,
                scratch.done,
                int(first_only),
            )
            done = int(cursor[4])
            rows = block.row_ids(scratch.right[:count])
            yield from self._emit(pending.take, right, scratch.left, rows, count, self._mark_slots)
            self._matched(block, codes, scratch.done, done)
            yield from self._finish(scratch.done, done, scratch, matched=self._exact)

    def _matched(self, block: PageBlock, codes: Int64s, done: Int64s, count: int) -> None:
        """Keys that are about to leave after a match; a cache looks at their frequency here."""

    def _probe_long_run(
        self, code: int, first: int, last: int, disk: DiskBuffer, scratch: Scratch
    ) -> Iterator[pa.RecordBatch]:
        """A run longer than the disk buffer: piece after piece against its own key only."""
        newest = np.array([self.pending.chain_of(code)], dtype=np.int64)
        for page in range(first, last + 1, self.buffer_pages):
            block = disk.load(page, min(self.buffer_pages, last + 1 - page))
            rows = block.row_ids(np.flatnonzero(disk.codes[: block.n_rows] == code))
            right = self._take_block(block)
            cursor = np.zeros(2, dtype=np.int64)
            while cursor[0] == 0:
                width = max(1, scratch.size // max(len(rows), 1))
                slots = np.empty(width, dtype=np.int64)
                count = kernel.linked_chains(self.pending.arena.state, newest, 1, cursor, slots)
                for begin in range(0, len(rows), scratch.size):
                    part = rows[begin : begin + scratch.size]
                    left = np.repeat(slots[:count], len(part))
                    yield from self._emit(
                        self.pending.take, right, left, np.tile(part, count), len(left), self._mark_slots
                    )
        yield from self._finish(newest, 1, scratch, matched=False)

    def _finish(self, done: Int64s, count: int, scratch: Scratch, matched: bool) -> Iterator[pa.RecordBatch]:
        """Keys are complete: unmatched tuples among them are output where wanted, then all leave H_S and Q."""
        if count == 0:
            return
        if not matched and self.spec.how != "inner":
            cursor = np.zeros(2, dtype=np.int64)
            while cursor[0] < count:
                size = kernel.linked_chains(self.pending.arena.state, done, count, cursor, scratch.slots)
                lost = tuple_kernel.keep_unflagged(scratch.slots, size, self.pending.layout.flag_at)
                yield from self._emit_unmatched(self.pending.take, scratch.slots, lost)
        elif not matched and self._exact:
            keys, tuples = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64)
            kernel.linked_lengths(self.pending.arena.state, done, count, keys, tuples)
            self.stats.unmatched += int(tuples.sum())
        left = self.pending.release(done, count)
        self.stats.expired += left
        self.stats.finished += left

    def _mark_slots(self, slots: Int64s, count: int) -> Bools:
        first = np.empty(count, dtype=np.bool_)
        tuple_kernel.mark_slots(slots, count, self.pending.layout.flag_at, first)
        return first

    def _copy_read_counts(self) -> None:
        self.stats.reads = self.disk.reads
        self.stats.pages_read = self.disk.pages_read
        self.stats.bytes_read = self.disk.bytes_read

    # ------------------------------------------------------------------------------------- the snapshot

    def _snapshot_state(self) -> dict[str, Any]:
        return {}

    def _snapshot_tuples(self) -> pa.Table:
        assert self._schema is not None
        slots = np.empty(len(self.pending), dtype=np.int64)
        kernel.linked_queue(self.pending.arena.state, self.pending.queue, slots)
        batches = [
            pa.RecordBatch.from_arrays(columns, schema=self._schema)
            for _, columns in self._stream_columns(self.pending.take, slots, len(slots))
        ]
        return pa.Table.from_batches(batches, schema=self._schema)

    def _restore(self, snapshot: Snapshot) -> None:
        """No tuple of this family is half joined between two calls: they simply wait again."""
        assert snapshot.tuples is not None
        for batch in self._parts(snapshot.tuples):
            codes, columns = self._encoded(batch)
            chunk = Chunk(batch.num_rows, codes, columns, np.empty(0, dtype=np.bool_))
            if self._admit(chunk, self.scratch.every, 0, batch.num_rows, self.scratch.slots) < batch.num_rows:
                raise BudgetError("the waiting tuples of the snapshot do not fit: restore with the same memory")
