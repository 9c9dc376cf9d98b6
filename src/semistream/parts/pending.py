"""The pending table H_S and its queue Q: stream tuples that wait for the disk phase."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.columns.rows import Paged, RowLayout, take_rows
from semistream.kernels import arena as arena_kernel
from semistream.kernels import pending as kernel
from semistream.kernels import rows as row_kernel
from semistream.kernels.rows import NIL
from semistream.parts.arena import Arena, Pool, block_pool

Int64s = npt.NDArray[np.int64]

MAX_LOAD = 0.8
_NO_COUNTS = np.empty(0, dtype=np.int16)


class _Pending:
    """What both forms share: slots with a payload, VAR blocks, a directory and a byte limit."""

    def __init__(self, arena: Arena, layout: RowLayout, limit_bytes: int, fifo: bool, blocks: Pool | None) -> None:
        self.arena = arena
        self.layout = layout
        self.limit_bytes = limit_bytes
        self.pool = Pool(arena, layout.slot_bytes, fifo)
        self.shares_blocks = blocks is not None
        self.blocks = blocks if blocks is not None else block_pool(arena)
        self.directory = np.full(64, kernel.EMPTY, dtype=np.int64)
        self.counts = _NO_COUNTS
        self.queue = np.array([NIL, NIL, 0], dtype=np.int64)
        self.nulls_seen = np.zeros(len(layout.physical), dtype=np.bool_)

    def __len__(self) -> int:
        return self.pool.live

    @property
    def keys(self) -> int:
        return int(self.queue[kernel.Q_KEYS])

    @property
    def directory_bytes(self) -> int:
        return self.directory.nbytes + self.counts.nbytes

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
        count = min(count, int(MAX_LOAD * len(self.directory)) - self.keys)
        if count <= 0:
            return 0
        if not self.layout.has_var:
            return min(count, self.pool.ready + self.spare_extents * self.pool.slots_an_extent)
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
                self.pool.slots_an_extent,
                self.blocks.ready,
                self.blocks.slots_an_extent,
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
            row_kernel.clear_flags(slots, count, self.layout.flag_at)

    def take(self, slots: Int64s, start: int, count: int) -> list[pa.Array] | None:
        """Physical stream columns of waiting tuples."""
        return take_rows(self.layout, slots, start, count, self.arena.state, self.nulls_seen)


class FifoPending(_Pending):
    """H_S of the scan operators: tuples leave in arrival order, one R-cycle after they came.

    With `counting`, every key has room for SSBJ's s_count.
    """

    def __init__(
        self,
        arena: Arena,
        layout: RowLayout,
        limit_bytes: int,
        counting: bool = False,
        blocks: Pool | None = None,
    ) -> None:
        super().__init__(arena, layout, limit_bytes, True, blocks)
        self.counting = counting
        if counting:
            self.counts = np.full(len(self.directory), -1, dtype=np.int16)

    def append(self, codes: Int64s, source: Paged, ids: Int64s, start: int, count: int, slots: Int64s) -> int:
        """Take as many of the tuples as fit; returns how many."""
        if self.keys + count > MAX_LOAD * len(self.directory):
            self._grow(count)
        count = self._fitting(source, ids, start, count)
        if count == 0:
            return 0
        count = int(
            kernel.fifo_append(
                codes,
                ids,
                start,
                count,
                self.directory,
                self.counts,
                self.arena.state,
                self.arena.stack,
                self.pool.state,
                self.queue,
                slots,
            )
        )
        self._pack(source, ids, start, count, slots)
        return count

    def _grow(self, count: int) -> None:
        """A larger directory, if the limit has room for one; the old one is dropped first, slots can refill any."""
        per_entry = 10 if self.counting else 8
        room = self.limit_bytes - self.bytes_held
        wanted = max(int((self.keys + count) / MAX_LOAD) + 1, len(self.directory) * 5 // 4)
        size = min(wanted, len(self.directory) + max(room, 0) * 3 // 4 // per_entry)
        if size > len(self.directory) * 21 // 20:
            self.resize(size)

    def resize(self, size: int) -> None:
        """A directory of `size` entries. Pending s_counts are forgotten: their keys start anew."""
        self.directory = self.counts = np.empty(0, dtype=np.int64)  # type: ignore[assignment]
        self.directory = np.empty(size, dtype=np.int64)
        self.counts = np.full(size, -1, dtype=np.int16) if self.counting else _NO_COUNTS
        kernel.fifo_rebuild(self.directory, self.arena.state, self.pool.state)

    def fit_directory(self) -> None:
        """Shrink a directory that is far too large for the keys it holds."""
        size = max(int(self.keys / 0.7) + 64, 64)
        if size < len(self.directory) * 4 // 5:
            self.resize(size)

    def probe(self, codes: Int64s, stop: int, cursor: Int64s, slots: Int64s, rows: Int64s) -> int:
        """Pairs of waiting tuples and master rows until the buffers are full (see the kernel)."""
        return int(kernel.fifo_probe(codes, stop, self.directory, self.arena.state, cursor, slots, rows))

    def front(self, count: int, slots: Int64s) -> int:
        """Slots of the oldest tuples."""
        return int(kernel.fifo_front(self.arena.state, self.pool.state, count, slots))

    def expire(self, count: int) -> None:
        """Drop the oldest tuples; younger ones with the same key stay."""
        kernel.fifo_expire(
            count,
            self.directory,
            self.counts,
            self.arena.state,
            self.arena.stack,
            self.pool.state,
            self.queue,
            self.blocks.state,
            self.layout.chain_at,
        )


class LinkedPending(_Pending):
    """H_S of the index operators: all tuples of a key leave together; Q knows its oldest and newest key."""

    def __init__(self, arena: Arena, layout: RowLayout, limit_bytes: int) -> None:
        super().__init__(arena, layout, limit_bytes, False, None)
        tuples = limit_bytes / (self.pool.slot_bytes + 8 / MAX_LOAD)
        self.directory = np.full(max(int(tuples / MAX_LOAD) - 1, 16), kernel.EMPTY, dtype=np.int64)

    def append(self, codes: Int64s, source: Paged, ids: Int64s, start: int, count: int, slots: Int64s) -> int:
        """Take as many of the tuples as fit; returns how many."""
        count = self._fitting(source, ids, start, count)
        if count == 0:
            return 0
        count = int(
            kernel.linked_append(
                codes,
                ids,
                start,
                count,
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
        return self._slot(int(self.queue[kernel.Q_OLDEST]))

    @property
    def newest(self) -> int:
        """Slot of the tuple that came last, or 0."""
        return self._slot(int(self.queue[kernel.Q_NEWEST]))

    def _slot(self, reference: int) -> int:
        if reference == NIL:
            return 0
        return int(self.arena.state[0]) + (reference << self.arena.shift)

    def chain_of(self, code: int) -> int:
        """Newest slot of a key's chain, or 0."""
        at = kernel.find(self.directory, self.arena.state, kernel.hash32(code), code)
        return 0 if at < 0 else self._slot(int(self.directory[at]) & 0xFFFFFFFF)

    def release(self, done: Int64s, count: int) -> int:
        """Remove all tuples of the keys whose newest slots are given; returns how many tuples left."""
        return int(
            kernel.linked_release(
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
