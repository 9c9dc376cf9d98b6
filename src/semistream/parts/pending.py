"""The pending table H_S and its queue Q: stream tuples that wait for the disk phase."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.columns.rows import INT32_MAX, Paged, RowLayout, take_rows
from semistream.kernels import arena as arena_kernel
from semistream.kernels import fifo, linked, tuples
from semistream.kernels import rows as row_kernel
from semistream.kernels.raw import peek_i64
from semistream.kernels.rows import NIL
from semistream.kernels.tuples import hash32
from semistream.parts.arena import Arena, ArenaShape, BlockPool, Pool
from semistream.parts.cache import Balance, Cache

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

MAX_LOAD = 0.8
BUCKET_BYTES = 4
TUPLES_PER_BUCKET = 2.0


def fifo_capacity(shape: ArenaShape, slot_bytes: float, limit_bytes: float) -> float:
    """h_S: tuples that a FIFO pending table of that many bytes holds."""
    limit = min(limit_bytes, shape.size + limit_bytes * 0.1)
    return max(limit / fifo_tuple_bytes(shape, slot_bytes), 1.0)


def fifo_tuple_bytes(shape: ArenaShape, slot_bytes: float) -> float:
    """v_S with all it needs: its part of an extent and of the buckets."""
    return shape.extent_bytes / shape.slots(slot_bytes, fifo=True) + BUCKET_BYTES / TUPLES_PER_BUCKET


def linked_capacity(shape: ArenaShape, slot_bytes: float, limit_bytes: float) -> float:
    """h_S: tuples that a linked pending table of that many bytes holds, its directory being sized for as many keys."""
    directory = 8 * linked_directory(limit_bytes, slot_bytes)
    extents = min(int((limit_bytes - directory) // shape.extent_bytes), shape.extents)
    return float(max(extents * shape.slots(slot_bytes), 1))


def linked_directory(limit_bytes: float, slot_bytes: float) -> int:
    """Entries of the directory of a linked pending table."""
    return max(int(limit_bytes / (slot_bytes + 8 / MAX_LOAD) / MAX_LOAD) - 1, 16)


class _Pending:
    """What both forms share: slots with a payload, VAR blocks, a directory and a byte limit."""

    def __init__(self, arena: Arena, layout: RowLayout, limit_bytes: int, fifo: bool, blocks: BlockPool | None) -> None:
        self.arena = arena
        self.layout = layout
        self.limit_bytes = limit_bytes
        self.pool = Pool(arena, layout.slot_bytes, fifo)
        self.shares_blocks = blocks is not None
        self.blocks = blocks if blocks is not None else BlockPool(arena)
        self.nulls_seen = np.zeros(len(layout.physical), dtype=np.bool_)

    def __len__(self) -> int:
        return self.pool.live

    @property
    def directory_bytes(self) -> int:
        """Bytes of the hash directory."""
        return 0

    @property
    def extents(self) -> int:
        return self.pool.extents + (0 if self.shares_blocks else self.blocks.extents)

    @property
    def bytes_held(self) -> int:
        return self.directory_bytes + self.extents * self.arena.extent_bytes

    @property
    def mean_bytes(self) -> float:
        """What a tuple takes of the arena: its slot, and its VAR bytes as they are now."""
        blocks = self.blocks.live / len(self) if self.layout.has_var and len(self) else 0.0
        return self.pool.slot_bytes + row_kernel.BLOCK_BYTES * blocks

    def restart(self, limit_bytes: int) -> None:
        """Go on with another limit; nobody waits, and the arena has taken back all extents."""
        self.limit_bytes = limit_bytes
        self.pool.reset()
        self.blocks.reset()

    @property
    def spare_extents(self) -> int:
        within = (self.limit_bytes - self.directory_bytes) // self.arena.extent_bytes - self.extents
        return max(min(self.arena.free_extents, within), 0)

    def _fitting(self, source: Paged, ids: Int64s, start: int, count: int) -> int:
        if count <= 0:
            return 0
        if not self.layout.has_var:
            return min(count, self.pool.ready + self.spare_extents * self.pool.slots_per_extent)
        var_bytes = self.layout.var_bytes(source, ids, start, count)
        return int(
            arena_kernel.fit_prefix(
                var_bytes,
                count,
                self.pool.ready,
                self.pool.slots_per_extent,
                self.blocks.ready,
                self.blocks.slots_per_extent,
                self.spare_extents,
            )
        )

    def _pack(self, source: Paged, ids: Int64s, start: int, count: int, slots: Int64s) -> None:
        self.layout.pack(source, ids, start, count, slots)
        self.nulls_seen |= (source.valid[:, : len(self.nulls_seen)] >= 0).any(axis=0)
        if self.layout.has_var:
            self.blocks.pack(self.layout, source, ids, start, count, slots)
        if self.layout.flag_at:
            row_kernel.clear_bytes(slots, count, self.layout.flag_at)
        if self.layout.counter_at:
            row_kernel.clear_bytes(slots, count, self.layout.counter_at)

    @property
    def form(self) -> RowLayout:
        """How the tuples stand in memory."""
        return self.layout

    def take(self, slots: Int64s, start: int, count: int, limit: int = INT32_MAX) -> list[pa.Array] | int:
        """Physical stream columns of waiting tuples."""
        return take_rows(self.layout, slots, start, count, self.arena.state, nulls=self.nulls_seen, limit=limit)

    def mark(self, slots: Int64s, count: int) -> Bools:
        """Note that tuples have matched; True for those that have for the first time."""
        first = np.empty(count, dtype=np.bool_)
        tuples.mark_slots(slots, count, self.layout.flag_at, first)
        return first

    def keep_unmatched(self, slots: Int64s, count: int) -> int:
        """Bring those of the slots to the front that never matched; returns how many."""
        return int(tuples.keep_unflagged(slots, count, self.layout.flag_at))

    def matched(self, slots: Int64s) -> Bools:
        """Which tuples have matched, as far as that is noted."""
        flags = np.zeros(len(slots), dtype=np.bool_)
        if self.layout.flag_at:
            tuples.read_flags(slots, len(slots), self.layout.flag_at, flags)
        return flags


class NamedKeys:
    """Frequent keys that a scan has found, each with the tuples that wait for it."""

    def __init__(self, size: int) -> None:
        self.codes, self.waiting = (np.empty(size, dtype=np.int64) for _ in range(2))
        self.count = 0

    @staticmethod
    def bytes_for(size: int) -> int:
        return 16 * size

    def keep_most_frequent(self, keep: int) -> int:
        """Forget all but the most frequent; returns how many tuples the rarest of these has."""
        kept = np.argpartition(-self.waiting[: self.count], keep - 1)[:keep]
        self.codes[:keep], self.waiting[:keep] = self.codes[kept], self.waiting[kept]
        self.count = keep
        return int(self.waiting[:keep].min())

    def by_frequency(self) -> tuple[Int64s, Int64s]:
        """The keys, the most frequent first, each once, with their tuples."""
        order = np.argsort(-self.waiting[: self.count], kind="stable")
        codes, first = np.unique(self.codes[: self.count][order], return_index=True)
        counts = self.waiting[: self.count][order][first]
        by_count = np.argsort(-counts, kind="stable")
        return codes[by_count], counts[by_count]


class FifoPending(_Pending):
    """H_S of the scan operators: tuples leave in arrival order, one R-cycle after they came."""

    HEADER = fifo.FIFO_HEADER

    def __init__(self, arena: Arena, layout: RowLayout, limit_bytes: int, blocks: BlockPool | None = None) -> None:
        super().__init__(arena, layout, limit_bytes, True, blocks)
        self.buckets = np.full(64, NIL, dtype=np.uint32)

    def restart(self, limit_bytes: int) -> None:
        super().restart(limit_bytes)
        self.buckets = np.full(64, NIL, dtype=np.uint32)

    @property
    def directory_bytes(self) -> int:
        return self.buckets.nbytes

    @property
    def tuple_bytes(self) -> float:
        """What a waiting tuple takes: its slot, its share of a bucket, and its VAR bytes as they were so far."""
        size = self.pool.slot_bytes + BUCKET_BYTES / TUPLES_PER_BUCKET
        if self.layout.has_var:
            per_tuple = self.blocks.live / len(self) if len(self) else 2.0 * len(self.layout.var_columns)
            size += 32 * per_tuple
        return size

    def append(self, codes: Int64s, source: Paged, ids: Int64s, start: int, count: int, slots: Int64s) -> int:
        """Take as many of the tuples as fit; returns how many."""
        if len(self) + count > 1.25 * TUPLES_PER_BUCKET * len(self.buckets):
            self._grow(count)
        count = self._fitting(source, ids, start, count)
        if count == 0:
            return 0
        count = int(fifo.fifo_append(codes, ids, start, count, self.buckets, self.pool.view, slots))
        self._pack(source, ids, start, count, slots)
        return count

    def _grow(self, count: int) -> None:
        """More buckets, if the limit has room for them."""
        room = max(self.limit_bytes - self.bytes_held, 0) // BUCKET_BYTES
        wanted = max(int((len(self) + count) / TUPLES_PER_BUCKET), len(self.buckets) * 5 // 4)
        self.resize(min(wanted, len(self.buckets) + room))

    def resize(self, size: int) -> None:
        """Other buckets: the old ones are dropped first, the slots refill any number of them."""
        if size != len(self.buckets):
            self.buckets = np.empty(0, dtype=np.uint32)
            self.buckets = np.empty(size, dtype=np.uint32)
            fifo.fifo_rebuild(self.buckets, self.arena.state, self.pool.state)

    def fit_directory(self) -> None:
        """Give back buckets that are far too many for the tuples that wait."""
        size = max(int(len(self) / TUPLES_PER_BUCKET), 64)
        if size < len(self.buckets) * 4 // 5:
            self.resize(size)

    def probe(self, codes: Int64s, stop: int, cursor: Int64s, slots: Int64s, rows: Int64s) -> int:
        """Pairs of waiting tuples and master rows until the buffers are full (see the kernel)."""
        return int(
            fifo.fifo_probe(codes, stop, self.buckets, self.arena.state, cursor, slots, rows, self.layout.counter_at)
        )

    def frequent(self, codes: Int64s, n_rows: int, least: int, named: NamedKeys) -> None:
        """Add the keys of these master rows to `named` that at least `least` tuples wait for."""
        named.count = int(
            fifo.fifo_frequent(
                codes, n_rows, self.buckets, self.arena.state, least, named.codes, named.waiting, named.count
            )
        )

    def name_balanced(self, count: int, cache: Cache, balance: Balance, most_bytes: int) -> int:
        """Name keys of the `count` oldest tuples for the cache that take fewer bytes there; returns the bytes."""
        return int(
            fifo.fifo_name_keys(
                count,
                self.buckets,
                self.arena.state,
                self.pool.state,
                self.layout.counter_at,
                cache.entries,
                cache.state,
                self.tuple_bytes,
                balance.entry_bytes,
                balance.row_bytes,
                balance.factor,
                balance.spreads,
                cache.max_keys,
                most_bytes,
            )
        )

    def front(self, count: int, slots: Int64s) -> int:
        """Slots of the oldest tuples."""
        return int(fifo.fifo_front(self.arena.state, self.pool.state, count, slots))

    def expire(self, count: int) -> None:
        """Drop the oldest tuples; younger ones with the same key stay."""
        fifo.fifo_expire(count, self.buckets, self.pool.view, self.blocks.state, self.layout.chain_at)


class PairArrays(Protocol):
    """Work arrays of a probe: pairs, and keys that are done."""

    left: Int64s
    right: Int64s
    done: Int64s


class LinkedProbe:
    """Pairs of waiting tuples and master rows; each `step` fills `work.left` and `work.right` once."""

    def __init__(
        self, pending: LinkedPending, codes: Int64s, start: int, stop: int, work: PairArrays, first_only: bool
    ) -> None:
        self._stop = stop
        self._cursor = np.array([start, 0, 0, 0, 0], dtype=np.int64)
        self._arguments = (
            codes,
            start,
            stop,
            pending.directory,
            pending.arena.state,
            self._cursor,
            work.left,
            work.right,
            work.done,
            int(first_only),
        )

    @property
    def unfinished(self) -> bool:
        return bool(self._cursor[0] < self._stop)

    @property
    def done(self) -> int:
        """Keys that the last step has finished: their newest slots are in `work.done`."""
        return int(self._cursor[4])

    def step(self) -> int:
        """The next pairs; returns how many."""
        return int(linked.linked_probe(*self._arguments))


class LoadTimes:
    """When each group of pages was last read whole, counted in iterations."""

    def __init__(self, n_pages: int, group_pages: int) -> None:
        self.group_pages = group_pages
        self.loaded = np.full(self.groups(n_pages, group_pages), -1, dtype=np.int64)
        self.now = 0

    @staticmethod
    def groups(n_pages: int, group_pages: int) -> int:
        return max(-(-n_pages // group_pages), 1)

    @staticmethod
    def bytes_for(n_pages: int, group_pages: int) -> int:
        return 8 * LoadTimes.groups(n_pages, group_pages)

    def note(self, first_page: int) -> None:
        """A load; tuples that come from now on have not met it."""
        self.now += 1
        if first_page % self.group_pages == 0:
            self.loaded[first_page // self.group_pages] = self.now

    def note_first(self, groups: int) -> None:
        """The first groups were met, all at once."""
        self.now += 1
        self.loaded[:groups] = self.now


def runs_of(codes: Int64s, n_rows: int, keys: Int64s) -> tuple[Int64s, Int64s]:
    """Where the rows of each key begin and end among the sorted codes of a block."""
    starts, ends = np.empty(len(keys), dtype=np.int64), np.empty(len(keys), dtype=np.int64)
    linked.runs_of(codes, n_rows, keys, starts, ends)
    return starts, ends


class LinkedPending(_Pending):
    """H_S of the index operators: all tuples of a key leave together; Q knows its oldest and newest key."""

    HEADER = linked.LINKED_HEADER

    def __init__(self, arena: Arena, layout: RowLayout, limit_bytes: int) -> None:
        super().__init__(arena, layout, limit_bytes, False, None)
        self.directory = np.empty(0, dtype=np.int64)
        self.queue = np.array([NIL, NIL, 0], dtype=np.int64)
        self.restart(limit_bytes)

    def restart(self, limit_bytes: int) -> None:
        super().restart(limit_bytes)
        self.directory = np.empty(0, dtype=np.int64)
        self.directory = np.full(linked_directory(limit_bytes, self.pool.slot_bytes), linked.EMPTY, dtype=np.int64)
        self.queue[:] = NIL, NIL, 0

    @property
    def keys(self) -> int:
        return int(self.queue[linked.Q_KEYS])

    @property
    def directory_bytes(self) -> int:
        return self.directory.nbytes

    def append(
        self,
        codes: Int64s,
        source: Paged,
        ids: Int64s,
        start: int,
        count: int,
        slots: Int64s,
        arrival: int = 0,
    ) -> int:
        """Take as many of the tuples as fit; returns how many. `arrival` is the number of the current iteration."""
        count = min(count, int(MAX_LOAD * len(self.directory)) - self.keys)
        count = self._fitting(source, ids, start, count)
        if count == 0:
            return 0
        count = int(
            linked.linked_append(
                codes,
                ids,
                start,
                count,
                arrival,
                self.directory,
                self.queue,
                self.pool.view,
                slots,
            )
        )
        self._pack(source, ids, start, count, slots)
        return count

    @property
    def oldest(self) -> int:
        """Slot of the tuple that waits longest, or 0."""
        return self._slot(int(self.queue[linked.Q_OLDEST]))

    @property
    def newest(self) -> int:
        """Slot of the tuple that came last, or 0."""
        return self._slot(int(self.queue[linked.Q_NEWEST]))

    def _slot(self, reference: int) -> int:
        if reference == NIL:
            return 0
        return int(self.arena.state[0]) + (reference << self.arena.shift)

    def chain_of(self, code: int) -> int:
        """Newest slot of a key's chain, or 0."""
        at = linked.find(self.directory, self.arena.state, hash32(code), code)
        return 0 if at < 0 else self._slot(int(self.directory[at]) & 0xFFFFFFFF)

    def code_at(self, slot: int) -> int:
        """The key code of a waiting tuple."""
        return int(peek_i64(slot))

    def probing(self, codes: Int64s, start: int, stop: int, work: PairArrays, first_only: bool) -> LinkedProbe:
        """A look-up of master rows `start .. stop - 1`, to be made step by step."""
        return LinkedProbe(self, codes, start, stop, work, first_only)

    def absent(self, times: LoadTimes, fences: Int64s, continues: Bools, done: Int64s) -> int:
        """Newest slots of the oldest keys whose pages were read since they came: R lacks them; returns how many."""
        return int(
            linked.linked_absent(
                self.directory,
                self.arena.state,
                self.queue,
                fences,
                continues,
                times.group_pages,
                times.loaded,
                done,
            )
        )

    def front_code(self, times: LoadTimes, fences: Int64s, continues: Bools, most: int) -> int:
        """Of the keys of the `most` newest tuples the one whose pages were not read for longest."""
        return int(
            linked.linked_front(self.arena.state, self.queue, fences, continues, times.group_pages, times.loaded, most)
        )

    def oldest_codes(self, count: int) -> Int64s:
        """Keys of the oldest tuples."""
        codes = np.empty(count, dtype=np.int64)
        linked.linked_oldest(self.arena.state, self.queue, codes)
        return codes

    def newest_of(self, codes: Int64s, slots: Int64s) -> None:
        """Newest slots of these keys, all of which wait."""
        linked.linked_newest(self.directory, self.arena.state, codes, slots)

    def chains(self, newest: Int64s, count: int, cursor: Int64s, slots: Int64s) -> int:
        """Slots of all tuples of some keys until the buffer is full; `cursor[0] == count` when all were given."""
        return int(linked.linked_chains(self.arena.state, newest, count, cursor, slots))

    def lengths(self, newest: Int64s, count: int) -> tuple[Int64s, Int64s]:
        """Codes and numbers of tuples of keys whose newest slots are given."""
        keys, numbers = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64)
        linked.linked_lengths(self.arena.state, newest, count, keys, numbers)
        return keys, numbers

    def in_order(self) -> Int64s:
        """Slots of all tuples, oldest first."""
        slots = np.empty(len(self), dtype=np.int64)
        linked.linked_queue(self.arena.state, self.queue, slots)
        return slots

    def release(self, done: Int64s, count: int) -> int:
        """Remove all tuples of the keys whose newest slots are given; returns how many tuples left."""
        return int(
            linked.linked_release(
                done,
                count,
                self.directory,
                self.arena.state,
                self.pool.state,
                self.queue,
                self.blocks.state,
                self.layout.chain_at,
            )
        )
