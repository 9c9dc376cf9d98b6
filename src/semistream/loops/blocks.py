"""The loop of the block joins: whole pages of R in memory, and tuples that wait, page by page, for the others.

    tuples -> which pages? (index) -> all in memory: answered there
                                   -> else: the list of their page, or group of pages, until that is read

SSIJ and the partition-based join share this loop and differ in what they read when, and in what they keep of it
(`BlockPolicy`).

The second half of this file is the same loop as a formula.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.engine.chunk import Chunk
from semistream.engine.division import Needs, arena_within, divide
from semistream.engine.facts import MasterFacts, StreamFacts
from semistream.engine.loop import Loop
from semistream.engine.options import CommonOptions, option
from semistream.engine.output import Tuples
from semistream.engine.plan import Plan, SomeOptions
from semistream.engine.snapshot import Snapshot
from semistream.engine.workplace import Workplace
from semistream.errors import BudgetError
from semistream.loops.pages import PageGroups
from semistream.master.base import PageBlock
from semistream.parts.arena import ArenaShape
from semistream.parts.page_cache import DIRECTORY_BYTES, UTILITY_BYTES, PageCache, frame_bytes
from semistream.parts.runs import PageRanges
from semistream.parts.units import EVERY, Asked, UnitList, UnitPairs
from semistream.parts.waiting import LIST_BYTES, WaitingArea
from semistream.predict.counts import Workload
from semistream.predict.keys import Floats, KeyClasses, rank_classes
from semistream.predict.sharing import group_shares

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

#: code, first and last page of a tuple that is collected from the lists
_TUPLE_PAGES_BYTES = 24
#: extents that the waiting area gets whatever the share of the cache, and bytes for their table
_LEAST_EXTENTS, _REST = 9, 1024
#: stream tuples per page after which their order is known as well as it will be
_REST_PER_PAGE = 24.0
_NO_PAGES = np.empty(0, dtype=np.int64)


@dataclass(frozen=True)
class BlockOptions(CommonOptions):
    """Options of all block joins."""

    cache_share: float = option(0.5, "the part of the memory for tables that pages in memory get", least=0, below=0.95)


SomeBlockOptions = TypeVar("SomeBlockOptions", bound=BlockOptions)


@dataclass(frozen=True)
class Lists:
    """How tuples wait: in one list per `pages` consecutive pages, and in the input buffer before, if there is one.

    `extra_bytes` is what an algorithm keeps per list besides the links and the utility.
    """

    pages: int = 1
    input_buffer: bool = False
    extra_bytes: int = 0

    def count(self, r: MasterFacts) -> int:
        """Lists of pages."""
        return -(-r.n_pages // self.pages)

    def bytes(self, r: MasterFacts) -> int:
        """Bytes of all lists, and of the directory of R's pages."""
        per_list = LIST_BYTES + UTILITY_BYTES + self.extra_bytes
        return (self.count(r) + self.input_buffer) * per_list + r.n_pages * DIRECTORY_BYTES


@dataclass(frozen=True)
class BlockPlan(Plan[SomeOptions]):
    """Frames for pages in memory, and an arena for the tuples that wait."""

    lists: Lists
    frames: int
    arena: ArenaShape
    #: bytes of a waiting tuple's slot
    slot: int

    @property
    def tuple_pages_bytes(self) -> int:
        """Bytes of the work arrays for collected tuples."""
        return _TUPLE_PAGES_BYTES * self.division.chunk_rows

    @property
    def cache_bytes(self) -> int:
        return self.frames * frame_bytes(self.r.page_bytes, self.r.columns)


def plan_blocks(
    r: MasterFacts, s: StreamFacts, budget: int, options: SomeBlockOptions, lists: Lists
) -> BlockPlan[SomeBlockOptions]:
    """`cache_share` of the tables are frames for pages, but a few tuples must be able to wait; they get the rest."""
    division = divide(r, budget, options, Needs(fixed=lists.bytes(r)))
    spare = division.tables - _TUPLE_PAGES_BYTES * division.chunk_rows
    slot = s.slot(WaitingArea.PAGED_HEADER)
    least = _LEAST_EXTENTS * ArenaShape.of(0, slot).extent_bytes + _REST
    room = min(int(spare * options.cache_share), spare - least)
    frame = frame_bytes(r.page_bytes, r.columns)
    frames = max(min(room // frame, r.n_pages), 0)
    arena = arena_within(budget, spare - frames * frame, slot)
    return BlockPlan(r, s, budget, options, division, lists=lists, frames=frames, arena=arena, slot=slot)


@dataclass(frozen=True)
class BlockTables:
    """The pages in memory, and the tuples that wait for others."""

    cache: PageCache
    area: WaitingArea
    #: lists of pages; the list of the input buffer stands behind them
    n_lists: int

    @staticmethod
    def make(plan: BlockPlan[Any], work: Workplace) -> BlockTables:
        """The tables of a plan, entered in the ledger."""
        lists = plan.lists
        work.budget.hold("tuple pages", plan.tuple_pages_bytes)
        cache = PageCache(work.reader, plan.frames, plan.r.page_bytes, lists.pages)
        work.budget.hold("cache", cache.bytes_held)
        layout = work.intake.layout(WaitingArea.PAGED_HEADER)
        n_lists = lists.count(plan.r)
        area = WaitingArea(work.arena(plan.arena), layout, n_lists + lists.input_buffer)
        return BlockTables(cache, area, n_lists)

    @property
    def has_input_buffer(self) -> bool:
        return len(self.area.counts) > self.n_lists

    @property
    def gathered(self) -> int:
        """Tuples in the input buffer; none where there is no such list."""
        return int(self.area.counts[self.n_lists]) if self.has_input_buffer else 0

    @property
    def occupied(self) -> Int64s:
        """Lists of pages for which tuples wait."""
        return np.flatnonzero(self.area.counts[: self.n_lists])


@dataclass(frozen=True)
class Places:
    """Where the tuples of a chunk wait: the list of each, and its pages (not known yet in the input buffer)."""

    lists: Int64s
    first: Int64s
    last: Int64s


class BlockPolicy(Protocol):
    """What is read first, and what of it is kept. The loop says what happens, the policy answers with lists."""

    #: tuples that gather before they are looked up; 1: none do, and there is no input buffer
    input_tuples: int

    def arriving(self, count: int) -> None:
        """`count` stream tuples come."""

    def waits(self, lists: Int64s) -> None:
        """Tuples were put in these lists, one entry per tuple."""

    def due(self) -> Int64s:
        """Lists to read for after a chunk, empty for none; asked again until there are none."""

    def fullest(self) -> Int64s:
        """Lists to read for when the waiting area is full; at least one tuple must wait in them, if any waits."""

    def oldest(self) -> Int64s:
        """Lists to read for when no tuple comes, that of the oldest tuple among them."""

    def in_turn(self, lists: Int64s) -> Iterator[Int64s]:
        """All of these lists, in the order and in the parts in which they are to be read for."""

    def before_read(self, lists: Int64s) -> None:
        """The pages of these lists are about to be read; their tuples still wait."""

    def keep(self, block: PageBlock, whole: bool) -> None:
        """Put pages just read into the cache, or do not. `whole` is False for a piece of too long a run of pages."""

    def after_read(self, lists: Int64s) -> None:
        """All pages of these lists were read, and their tuples have left."""

    def state(self) -> dict[str, Any]:
        """What a restart needs besides the tuples, as JSON values."""

    def restore(self, snapshot: Snapshot) -> None:
        """The tuples of a snapshot wait again; take over what `state` said then."""


class BlockLoop(Loop):
    """A cache of pages with utilities, and a waiting area in lists by page."""

    def __init__(self, plan: BlockPlan[Any], work: Workplace, tables: BlockTables, policy: BlockPolicy) -> None:
        self.work, self.policy = work, policy
        self.tables, self.pages, self.area = tables, tables.cache, tables.area
        self.list_pages = plan.lists.pages
        self._input = tables.n_lists
        self._groups = PageGroups(work, plan.r.direct)
        self._listed = np.empty(self._groups.capacity, dtype=np.int64)
        self._by_key = plan.r.order == "key"
        self._codes, self._first, self._last = (np.empty(work.scratch.size, dtype=np.int64) for _ in range(3))
        self.settle()

    def settle(self) -> None:
        self.work.budget.hold("waiting area", self.area.bytes_held)

    @property
    def waiting(self) -> int:
        return len(self.area)

    # ---------------------------------------------------------------------------------------- the loop

    def consume(self, chunk: Chunk) -> Iterator[pa.RecordBatch]:
        policy, every = self.policy, self.work.scratch.every[: chunk.n_rows]
        if self.work.reader.n_pages == 0:
            yield from self.work.finish(chunk, every)
            return
        policy.arriving(chunk.n_rows)
        if chunk.n_rows >= policy.input_tuples and not self.tables.gathered:
            yield from self._look_up(chunk)
        else:
            yield from self._wait(chunk, every, self._in_input(chunk.n_rows))
            if self.tables.gathered >= policy.input_tuples:
                yield from self._look_up_gathered()
        while len(lists := policy.due()):
            yield from self._read(lists)

    def advance(self) -> Iterator[pa.RecordBatch]:
        """Read for the tuple that waits longest."""
        yield from self._look_up_gathered()
        yield from self._read(self.policy.oldest())

    def drain(self) -> Iterator[pa.RecordBatch]:
        yield from self._look_up_gathered()
        for lists in self.policy.in_turn(self.tables.occupied):
            yield from self._read(lists)
        self.settle()

    def _make_room(self) -> Iterator[pa.RecordBatch]:
        """The waiting area is full: at least one tuple leaves."""
        yield from self._look_up_gathered()
        yield from self._read(self.policy.fullest())

    # --------------------------------------------------------------------------------- pages in memory

    def _look_up(self, chunk: Chunk) -> Iterator[pa.RecordBatch]:
        """Answer what pages in memory answer; the other tuples wait."""
        first, last = self._page_ranges(chunk.codes)
        asked = Asked(self.work.scratch.every, chunk.codes, first, last, chunk.n_rows)
        resident = self._resident(asked)
        yield from self._pairs(asked, UnitList(asked, resident), self.work.output.of_chunk(chunk), self.pages)
        yield from self.work.finish(chunk, np.flatnonzero(resident))
        yield from self._wait(chunk, np.flatnonzero(~resident), Places(first // self.list_pages, first, last))

    def _look_up_gathered(self) -> Iterator[pa.RecordBatch]:
        """The same for the tuples of the input buffer, if any."""
        if not self.tables.gathered:
            return
        area, slots, codes = self.area, self.work.scratch.slots, self._codes
        only, cursor = np.array([self._input], dtype=np.int64), np.zeros(2, dtype=np.int64)
        while cursor[0] < 1:
            count = area.collect(only, cursor, slots, codes)
            first, last = self._page_ranges(codes[:count])
            asked = Asked(slots, codes, first, last, count)
            resident = self._resident(asked)
            yield from self._pairs(asked, UnitList(asked, resident), area, self.pages)
            missed = ~resident
            first, last = first[missed], last[missed]
            lists = first // self.list_pages
            area.move(slots[:count][missed], lists, first, last)
            self.policy.waits(lists)
            answered = slots[:count][resident]
            yield from self._leave(answered, len(answered))
        area.clear(only)

    def _page_ranges(self, codes: Int64s) -> tuple[Int64s, Int64s]:
        """Pages of each code. A second index on disk is asked in order: its own pages are read once then."""
        locate = self.work.reader.locate
        if self._by_key:
            return locate(codes)
        order = np.argsort(codes, kind="stable")
        first, last = np.empty_like(codes), np.empty_like(codes)
        first[order], last[order] = locate(codes[order])
        return first, last

    def _resident(self, asked: Asked) -> Bools:
        """Which tuples have all their pages in memory."""
        resident, found = self.pages.answers(asked)
        self.work.stats.cache_hits += found
        self.work.stats.cache_misses += asked.count - found
        return resident

    def _pairs(
        self, asked: Asked, units: UnitList, tuples: Tuples, block: PageBlock | PageCache
    ) -> Iterator[pa.RecordBatch]:
        """Pairs of tuples and rows on pages of a block, or of the cache, that has all pages of these units."""
        work, scratch = self.work, self.work.scratch
        rows, first_only = work.output.of_block(block), work.output.first_only
        while units.unfinished:
            count = units.step(scratch.size, scratch.misses, scratch.done)
            work.stats.master_rows_probed += count
            ordinals = block.ordinals(scratch.done[:count])
            pairs = UnitPairs(asked, scratch.misses, ordinals, block, ordered=self._by_key, first_only=first_only)
            while pairs.unfinished:
                filled = pairs.step(scratch.left, scratch.right)
                yield from work.output.pairs(tuples, rows, scratch.left, scratch.right, filled)

    # -------------------------------------------------------------------------------- the waiting tuples

    def _in_input(self, count: int) -> Places:
        return Places(np.full(count, self._input, dtype=np.int64), _NO_PAGES, _NO_PAGES)

    def _append(self, chunk: Chunk, ids: Int64s, start: int, places: Places) -> int:
        """As many of the tuples from `start` on as there is room for; returns how many."""
        slots, count = self.work.scratch.slots, len(ids) - start
        lists, first, last = places.lists, places.first, places.last
        return self.area.append(
            chunk.codes, chunk.columns, ids, start, count, slots, lists=lists, first=first, last=last
        )

    def _wait(self, chunk: Chunk, ids: Int64s, places: Places) -> Iterator[pa.RecordBatch]:
        """Put tuples in their lists, and make room by reading for those that wait already."""
        start = 0
        while start < len(ids):
            took = self._append(chunk, ids, start, places)
            self.work.stats.appended += took
            self.policy.waits(places.lists[ids[start : start + took]])
            start += took
            if start < len(ids):
                if not len(self.area):
                    raise self.work.too_small()
                yield from self._make_room()

    def _read(self, lists: Int64s) -> Iterator[pa.RecordBatch]:
        """Read the pages that the tuples of some lists need, in disk order; these tuples leave."""
        self.settle()
        self.policy.before_read(lists)
        if len(lists) == 1:
            yield from self._read_list(lists)
        else:
            yield from self._read_groups(lists)
        self.policy.after_read(lists)

    def _read_groups(self, lists: Int64s) -> Iterator[pa.RecordBatch]:
        """At a time as many lists as have all their pages in memory together."""
        first = lists * self.list_pages
        end = np.minimum(first + self.list_pages, self.work.reader.n_pages)
        last = np.maximum(end - 1, self.area.reach[lists])
        ranges, listed = PageRanges(first, last), self._listed
        at = 0
        while at < len(lists):
            count, stop = ranges.pages_from(at, listed)
            if stop > at:
                block = self._groups.load(listed[:count])
                if len(block.pages) < count:
                    stop = ranges.within(at, stop, int(block.pages[-1]))
            if stop > at:
                yield from self._join_lists(lists[at:stop], block, leave=True)
                self.policy.keep(block, whole=True)
                self.work.stats.iterations += 1
            else:
                stop = at + 1
                yield from self._read_list(lists[at:stop])
            at = stop

    def _read_list(self, only: Int64s) -> Iterator[pa.RecordBatch]:
        """One list: if its pages do not fit at once, its tuples meet them piece after piece."""
        number = int(only[0])
        first = page = number * self.list_pages
        end = min(first + self.list_pages, self.work.reader.n_pages)
        last = max(end - 1, int(self.area.reach[number]))
        while page <= last:
            stop = min(page + self._groups.capacity, last + 1)
            block = self._groups.load(np.arange(page, stop, dtype=np.int64))
            high = int(block.pages[-1])
            yield from self._join_lists(only, block, leave=high == last)
            self.policy.keep(block, whole=page == first and high == last)
            page = high + 1
        self.work.stats.iterations += 1

    def _join_lists(self, lists: Int64s, block: PageBlock, leave: bool) -> Iterator[pa.RecordBatch]:
        """Join the tuples of some lists with the pages of a block; with `leave` they are done.

        A block has all pages between its ends that these tuples need.
        """
        area, slots = self.area, self.work.scratch.slots
        low, high = int(block.pages[0]), int(block.pages[-1])
        cursor = np.zeros(2, dtype=np.int64)
        while cursor[0] < len(lists):
            count = area.collect(lists, cursor, slots, self._codes, self._first, self._last)
            asked = Asked(slots, self._codes, self._first, self._last, count)
            yield from self._pairs(asked, UnitList(asked, EVERY, low, high), area, block)
            if leave:
                yield from self._leave(slots, count)
        if leave:
            area.clear(lists)

    def _leave(self, slots: Int64s, count: int) -> Iterator[pa.RecordBatch]:
        """Tuples are done: unmatched ones are output where wanted, then their slots are free."""
        work = self.work
        if work.spec.how != "inner":
            lost = slots[:count].copy()
            unmatched = self.area.keep_unmatched(lost, count)
            yield from work.output.unmatched(self.area, lost, unmatched)
        self.area.free(slots, count)
        work.stats.expired += count
        work.stats.finished += count

    # ------------------------------------------------------------------------------------- the snapshot

    def state(self) -> dict[str, Any]:
        return self.policy.state()

    def tuples(self) -> pa.Table:
        schema, slots = self.work.intake.schema, self.work.scratch.slots
        lists, cursor = np.flatnonzero(self.area.counts), np.zeros(2, dtype=np.int64)
        batches = []
        while cursor[0] < len(lists):
            count = self.area.collect(lists, cursor, slots, self._codes)
            for _, columns in self.work.output.stream_columns(self.area, slots[:count]):
                batches.append(pa.RecordBatch.from_arrays(columns, schema=schema))
        return pa.Table.from_batches(batches, schema=schema)

    def restore(self, snapshot: Snapshot) -> None:
        """Tuples wait again: in the input buffer if there is one, for what is in memory has changed."""
        assert snapshot.tuples is not None
        for chunk in self.work.intake.waiting(snapshot.tuples):
            if self.tables.has_input_buffer:
                places = self._in_input(chunk.n_rows)
            else:
                first, last = self._page_ranges(chunk.codes)
                places = Places(first // self.list_pages, first, last)
            took = self._append(chunk, self.work.scratch.every[: chunk.n_rows], 0, places)
            if took < chunk.n_rows:
                raise BudgetError("the waiting tuples of the snapshot do not fit: restore with the same memory")
        self.policy.restore(snapshot)


# --------------------------------------------------------------------------------------- the loop as a formula


def waiting_capacity(plan: BlockPlan[Any]) -> float:
    """h_S: tuples that the waiting area holds."""
    return float(plan.arena.extents * plan.arena.slots(plan.slot + plan.s.var_bytes))


def block_memory(plan: BlockPlan[Any]) -> dict[str, float]:
    """Bytes by component."""
    return {
        "arena table": plan.arena.table_bytes,
        "tuple pages": plan.tuple_pages_bytes,
        "cache": plan.cache_bytes,
        "waiting area": plan.arena.size,
    }


def list_shares(plan: BlockPlan[Any], workload: Workload) -> Floats:
    """Shares of the stream that ask for the pages of each list, the largest first."""
    groups = max(plan.lists.count(plan.r), 1)
    return np.sort(group_shares(workload.keys, groups, plan.r.order == "frequency"))[::-1]


def known_lists(shares: Floats, places: int, seen: float) -> Floats:
    """Part of each list, the largest share first, whose pages are in memory by what `seen` tuples asked for."""
    begin, end = rank_classes(1, len(shares))
    width = (end - begin).astype(np.float64)
    p = np.diff(np.append(0.0, np.cumsum(shares))[np.append(begin[:1], end)]) / width
    lists = KeyClasses(width, p / float((width * p).sum()), np.ones_like(p))
    return np.repeat(lists.recorded(places, math.inf, seen=seen), end - begin)


def tuples_to_rest(plan: BlockPlan[Any]) -> float:
    """Stream tuples until it is known which pages are asked for most."""
    return _REST_PER_PAGE * max(plan.r.n_pages, 1)
