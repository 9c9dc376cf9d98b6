"""Joins with whole pages of R in memory and tuples that wait, page by page, for the others.

    tuples -> which pages? (index) -> all in memory: answered there
                                   -> else: the list of their page, or group of pages, until that is read

SSIJ and the partition-based join share this and differ in what they read when, and in what they keep of it.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.errors import BudgetError, ConfigError
from semistream.kernels import tuples as tuple_kernel
from semistream.kernels import units as kernel
from semistream.kernels.waiting import PAGED_HEADER
from semistream.master.base import Master, PageBlock
from semistream.operators.chunk import Chunk
from semistream.operators.lookup import LookupJoin
from semistream.operators.output import Mark, Take
from semistream.operators.snapshot import Snapshot
from semistream.parts.arena import Arena
from semistream.parts.page_cache import DIRECTORY_BYTES, PageCache
from semistream.parts.waiting import LIST_BYTES, WaitingArea
from semistream.spec import JoinSpec

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_EVERY = np.empty(0, dtype=np.bool_)
_UTILITY_BYTES = 4
_ANY_PAGE = np.iinfo(np.int64).max
#: stream tuples per page after which utilities are halved
_WINDOW_PER_PAGE = 8


class BlockJoin(LookupJoin):
    """Page cache with utility counters, and a waiting area in lists by page."""

    #: lists besides those of the page groups, and bytes a list takes besides links and utility
    extra_lists = 0
    extra_list_bytes = 0

    def __init__(
        self, master: Master, spec: JoinSpec, budget_bytes: int, *, cache_share: float = 0.5, **common: Any
    ) -> None:
        if not 0.0 <= cache_share < 0.95:
            raise ConfigError(f"cache_share={cache_share} is out of range; allowed are shares from 0 to 0.95")
        self._cache_share = cache_share
        super().__init__(master, spec, budget_bytes, **common)

    def _pages_per_list(self) -> int:
        """Consecutive pages whose tuples wait in one list."""
        return 1

    def _extra_fixed_bytes(self, total: int) -> int:
        self.list_pages = self._pages_per_list()
        self.n_lists = -(-self.reader.n_pages // self.list_pages)
        lists = self.n_lists + self.extra_lists
        per_list = LIST_BYTES + _UTILITY_BYTES + self.extra_list_bytes
        return lists * per_list + self.reader.n_pages * DIRECTORY_BYTES

    def _build(self) -> None:
        layout = self._stream_layout(PAGED_HEADER)
        size = self.scratch.size
        self._codes, self._first, self._last = (np.empty(size, dtype=np.int64) for _ in range(3))
        self.budget.hold("tuple pages", 24 * size)
        spare = self.budget.spare
        least = 9 * Arena(0, layout.slot_bytes).extent_bytes + 1024
        room = min(int(spare * self._cache_share), spare - least)
        self.cache = PageCache(self.reader, room, self.reader.page_rows * self.master.row_bytes)
        self.budget.hold("cache", self.cache.bytes_held)
        self.utility = np.zeros(self.n_lists, dtype=np.float32)
        arena = self._make_arena(layout.slot_bytes)
        self.waiting = WaitingArea(arena, layout, self.n_lists + self.extra_lists)
        self._asked = 0
        self._settle()

    def _settle(self) -> None:
        self.budget.hold("waiting area", self.waiting.bytes_held)

    @property
    def capacity(self) -> int:
        """Tuples that the waiting area holds, long values apart."""
        return self.waiting.arena.extents_total * self.waiting.pool.slots_per_extent

    # --------------------------------------------------------------------------------- pages in memory

    def _page_ranges(self, codes: Int64s) -> tuple[Int64s, Int64s]:
        """Pages of each code. A second index on disk is asked in order: its own pages are read once then."""
        if self.master.order == "key":
            return self.reader.locate(codes)
        order = np.argsort(codes, kind="stable")
        first, last = np.empty_like(codes), np.empty_like(codes)
        first[order], last[order] = self.reader.locate(codes[order])
        return first, last

    def _join_resident(
        self, refs: Int64s, codes: Int64s, first: Int64s, last: Int64s, count: int, take: Take, mark: Mark
    ) -> Generator[pa.RecordBatch, None, Bools]:
        """Join tuples whose pages are all in memory; the value of `yield from` says which those are."""
        resident = np.empty(count, dtype=np.bool_)
        found = int(
            kernel.find_resident(first, last, count, self.list_pages, self.cache.directory, self.utility, resident)
        )
        self.stats.cache_hits += found
        self.stats.cache_misses += count - found
        self._maybe_age(count)
        yield from self._join_units(
            refs, codes, first, last, resident, count, 0, _ANY_PAGE, self.cache, None, take, mark
        )
        return resident

    def _join_units(
        self,
        refs: Int64s,
        codes: Int64s,
        first: Int64s,
        last: Int64s,
        wanted: Bools,
        count: int,
        low: int,
        high: int,
        block: PageBlock | PageCache,
        pages: Int64s | None,
        take: Take,
        mark: Mark,
    ) -> Iterator[pa.RecordBatch]:
        """Pairs of tuples and rows on pages `low..high` of a block (`pages` None: of the cache)."""
        scratch = self.scratch
        unit_tuples, unit_pages = scratch.misses, scratch.done
        right = self._take_block(block)
        first_only = self._exact and not self.spec.carries_master
        at = np.array([0, -1], dtype=np.int64)
        while at[0] < count:
            units = int(
                kernel.page_units(first, last, wanted, count, low, high, at, scratch.size, unit_tuples, unit_pages)
            )
            asked = unit_pages[:units]
            if pages is None:
                ordinals = self.cache.directory[asked].astype(np.int64)
            else:
                ordinals = np.searchsorted(pages, asked)
            self.stats.master_rows_probed += units
            cursor = np.array([0, -1, -1], dtype=np.int64)
            while cursor[0] < units:
                filled = kernel.pair_units(
                    refs,
                    codes,
                    unit_tuples,
                    ordinals,
                    units,
                    block.page_rows,
                    block.rows,
                    block.base,
                    block.kind,
                    block.data,
                    self.master.order == "key",
                    first_only,
                    cursor,
                    scratch.left,
                    scratch.right,
                )
                yield from self._emit(take, right, scratch.left, scratch.right, filled, mark)

    def _maybe_age(self, asked: int) -> None:
        self._asked += asked
        if self._asked >= _WINDOW_PER_PAGE * self.reader.n_pages:
            self._asked = 0
            self.utility *= np.float32(0.5)

    # -------------------------------------------------------------------------------- the waiting tuples

    def _online(self, chunk: Chunk) -> Iterator[pa.RecordBatch]:
        """Answer what pages in memory answer; the other tuples wait."""
        first, last = self._page_ranges(chunk.codes)
        take, mark = self._take_chunk(chunk), self._mark_chunk(chunk)
        resident = yield from self._join_resident(
            self.scratch.every, chunk.codes, first, last, chunk.n_rows, take, mark
        )
        yield from self._finish_chunk(chunk, np.flatnonzero(resident))
        yield from self._wait(chunk, np.flatnonzero(~resident), first // self.list_pages, first, last)

    def _wait(self, chunk: Chunk, ids: Int64s, lists: Int64s, first: Int64s, last: Int64s) -> Iterator[pa.RecordBatch]:
        """Put tuples in their lists, and make room by reading for those that wait already."""
        start = 0
        while start < len(ids):
            took = self.waiting.append(
                chunk.codes,
                chunk.columns,
                ids,
                start,
                len(ids) - start,
                self.scratch.slots,
                lists,
                first,
                last,
            )
            self.stats.appended += took
            self._arrived(lists[ids[start : start + took]])
            start += took
            if start < len(ids):
                if not len(self.waiting):
                    raise BudgetError(
                        f"not even one waiting tuple fits the budget of {self.budget.total} bytes: "
                        "give the join more memory"
                    )
                yield from self._make_room()

    def _arrived(self, lists: Int64s) -> None:
        """Tuples were put in these lists."""

    def _make_room(self) -> Iterator[pa.RecordBatch]:
        """The waiting area is full: read, so that at least one tuple leaves."""
        raise AssertionError("every block join says what it reads first")

    def _join_lists(
        self, lists: Int64s, block: PageBlock, low: int, high: int, leave: bool
    ) -> Iterator[pa.RecordBatch]:
        """Join the tuples of some lists with pages `low..high` of a block; with `leave` they are done."""
        waiting, slots = self.waiting, self.scratch.slots
        cursor = np.zeros(2, dtype=np.int64)
        while cursor[0] < len(lists):
            count = waiting.collect(lists, cursor, slots, self._codes, self._first, self._last)
            yield from self._join_units(
                slots,
                self._codes,
                self._first,
                self._last,
                _EVERY,
                count,
                low,
                high,
                block,
                block.pages,
                waiting.take,
                self._mark_slots,
            )
            if leave:
                yield from self._leave(slots, count)
        if leave:
            waiting.clear(lists)

    def _leave(self, slots: Int64s, count: int) -> Iterator[pa.RecordBatch]:
        """Tuples are done: unmatched ones are output where wanted, then their slots are free."""
        if self.spec.how != "inner":
            lost = slots[:count].copy()
            unmatched = tuple_kernel.keep_unflagged(lost, count, self.waiting.layout.flag_at)
            yield from self._emit_unmatched(self.waiting.take, lost, unmatched)
        self.waiting.free(slots, count)
        self.stats.expired += count
        self.stats.finished += count

    def _mark_slots(self, slots: Int64s, count: int) -> Bools:
        first = np.empty(count, dtype=np.bool_)
        tuple_kernel.mark_slots(slots, count, self.waiting.layout.flag_at, first)
        return first

    # ------------------------------------------------------------------------------------- the snapshot

    def _snapshot_tuples(self) -> pa.Table:
        assert self._schema is not None
        lists = np.flatnonzero(self.waiting.counts)
        cursor = np.zeros(2, dtype=np.int64)
        batches = []
        while cursor[0] < len(lists):
            count = self.waiting.collect(lists, cursor, self.scratch.slots, self._codes)
            for _, columns in self._stream_columns(self.waiting.take, self.scratch.slots, count):
                batches.append(pa.RecordBatch.from_arrays(columns, schema=self._schema))
        return pa.Table.from_batches(batches, schema=self._schema)

    def _restore(self, snapshot: Snapshot) -> None:
        assert snapshot.tuples is not None
        for batch in self._parts(snapshot.tuples):
            codes, columns = self._encoded(batch)
            self._put_back(Chunk(batch.num_rows, codes, columns, np.empty(0, dtype=np.bool_)))

    def _put_back(self, chunk: Chunk) -> None:
        """Waiting tuples of a snapshot wait again."""
        first, last = self._page_ranges(chunk.codes)
        self._refill(chunk, first // self.list_pages, first, last)

    def _refill(self, chunk: Chunk, lists: Int64s, first: Int64s, last: Int64s) -> None:
        took = self.waiting.append(
            chunk.codes,
            chunk.columns,
            self.scratch.every,
            0,
            chunk.n_rows,
            self.scratch.slots,
            lists,
            first,
            last,
        )
        if took < chunk.n_rows:
            raise BudgetError("the waiting tuples of the snapshot do not fit: restore with the same memory")
