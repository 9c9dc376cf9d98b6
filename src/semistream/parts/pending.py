"""The pending table H_S and its queue Q: stream tuples that wait for the disk phase."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.columns.rows import INT32_MAX, Paged, RowLayout, take_rows
from semistream.kernels import arena as arena_kernel
from semistream.kernels import fifo, linked
from semistream.kernels import rows as row_kernel
from semistream.kernels.rows import NIL
from semistream.kernels.tuples import hash32
from semistream.parts.arena import Arena, Pool, block_pool

Int64s = npt.NDArray[np.int64]

MAX_LOAD = 0.8
BUCKET_BYTES = 4
TUPLES_PER_BUCKET = 2.0


class _Pending:
    """What both forms share: slots with a payload, VAR blocks, a directory and a byte limit."""

    def __init__(self, arena: Arena, layout: RowLayout, limit_bytes: int, fifo: bool, blocks: Pool | None) -> None:
        self.arena = arena
        self.layout = layout
        self.limit_bytes = limit_bytes
        self.pool = Pool(arena, layout.slot_bytes, fifo)
        self.shares_blocks = blocks is not None
        self.blocks = blocks if blocks is not None else block_pool(arena)
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
    def spare_extents(self) -> int:
        within = (self.limit_bytes - self.directory_bytes) // self.arena.extent_bytes - self.extents
        return max(min(self.arena.free_extents, within), 0)

    def _fitting(self, source: Paged, ids: Int64s, start: int, count: int) -> int:
        if count <= 0:
            return 0
        if not self.layout.has_var:
            return min(count, self.pool.ready + self.spare_extents * self.pool.slots_per_extent)
        var_bytes = np.empty(count, dtype=np.int64)
        row_kernel.var_blocks_needed(
            ids,
            start,
            count,
            source.page_rows,
            source.base,
            source.kind,
            source.valid,
            source.offs,
            source.bit,
            self.layout.var_columns,
            var_bytes,
        )
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
            arena_kernel.pack_var(
                ids,
                start,
                count,
                slots,
                self.layout.header,
                self.layout.head,
                source.page_rows,
                source.base,
                source.kind,
                source.data,
                source.valid,
                source.offs,
                source.bit,
                self.layout.var_columns,
                self.layout.var_cells,
                self.arena.state,
                self.arena.stack,
                self.blocks.state,
            )
        if self.layout.flag_at:
            row_kernel.clear_bytes(slots, count, self.layout.flag_at)
        if self.layout.counter_at:
            row_kernel.clear_bytes(slots, count, self.layout.counter_at)

    def take(self, slots: Int64s, start: int, count: int, limit: int = INT32_MAX) -> list[pa.Array] | int:
        """Physical stream columns of waiting tuples."""
        return take_rows(self.layout, slots, start, count, self.arena.state, self.nulls_seen, limit)


class FifoPending(_Pending):
    """H_S of the scan operators: tuples leave in arrival order, one R-cycle after they came."""

    def __init__(self, arena: Arena, layout: RowLayout, limit_bytes: int, blocks: Pool | None = None) -> None:
        super().__init__(arena, layout, limit_bytes, True, blocks)
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
        count = int(
            fifo.fifo_append(
                codes,
                ids,
                start,
                count,
                self.buckets,
                self.arena.state,
                self.arena.stack,
                self.pool.state,
                slots,
            )
        )
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

    def front(self, count: int, slots: Int64s) -> int:
        """Slots of the oldest tuples."""
        return int(fifo.fifo_front(self.arena.state, self.pool.state, count, slots))

    def expire(self, count: int) -> None:
        """Drop the oldest tuples; younger ones with the same key stay."""
        fifo.fifo_expire(
            count,
            self.buckets,
            self.arena.state,
            self.arena.stack,
            self.pool.state,
            self.blocks.state,
            self.layout.chain_at,
        )


class LinkedPending(_Pending):
    """H_S of the index operators: all tuples of a key leave together; Q knows its oldest and newest key."""

    def __init__(self, arena: Arena, layout: RowLayout, limit_bytes: int) -> None:
        super().__init__(arena, layout, limit_bytes, False, None)
        tuples = limit_bytes / (self.pool.slot_bytes + 8 / MAX_LOAD)
        self.directory = np.full(max(int(tuples / MAX_LOAD) - 1, 16), linked.EMPTY, dtype=np.int64)
        self.queue = np.array([NIL, NIL, 0], dtype=np.int64)

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
                self.arena.state,
                self.arena.stack,
                self.pool.state,
                self.queue,
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
