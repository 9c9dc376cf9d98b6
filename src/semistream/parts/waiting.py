"""The waiting area: stream tuples in one queue, or in a list for each group of pages they wait for."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from semistream.columns.rows import Paged, RowLayout
from semistream.kernels import arena as arena_kernel
from semistream.kernels import waiting as kernel
from semistream.kernels.rows import NIL
from semistream.parts.arena import Arena
from semistream.parts.pending import _Pending

Int64s = npt.NDArray[np.int64]

LIST_BYTES = 16
_NONE = np.empty(0, dtype=np.int64)


class WaitingArea(_Pending):
    """Linked lists of tuples over an arena of their own; `layout` says whether tuples know their pages."""

    PAGED_HEADER = kernel.PAGED_HEADER

    def __init__(self, arena: Arena, layout: RowLayout, lists: int = 1) -> None:
        super().__init__(arena, layout, arena.extents_total * arena.extent_bytes, False, None)
        self.paged = layout.header == kernel.PAGED_HEADER
        self.heads = np.full(lists, NIL, dtype=np.uint32)
        self.tails = np.full(lists, NIL, dtype=np.uint32)
        self.counts = np.zeros(lists, dtype=np.int32)
        #: last page that any tuple of a list needs
        self.reach = np.full(lists, -1, dtype=np.int32)
        #: all of these, in the order of `kernels.waiting.LISTS`
        self._ends = (self.heads, self.tails, self.counts, self.reach)

    @property
    def capacity(self) -> int:
        """Tuples that fit, long values apart."""
        return self.arena.extents_total * self.pool.slots_per_extent

    def append(
        self,
        codes: Int64s,
        source: Paged,
        ids: Int64s,
        start: int,
        count: int,
        slots: Int64s,
        lists: Int64s = _NONE,
        first: Int64s = _NONE,
        last: Int64s = _NONE,
    ) -> int:
        """Take as many of the tuples as fit; returns how many. `lists`, `first` and `last` go by tuple id."""
        if self.pool.live == 0:
            self._reset()
        count = self._fitting(source, ids, start, count)
        if count == 0:
            return 0
        kernel.lists_append(
            codes,
            ids,
            start,
            count,
            lists,
            first,
            last,
            int(self.paged and len(first) > 0),
            self._ends,
            self.pool.view,
            slots,
        )
        self._pack(source, ids, start, count, slots)
        return count

    def _reset(self) -> None:
        """Give all extents back: what took slots before may now have to take VAR bytes."""
        arena = self.arena
        arena.state[arena_kernel.A_FREE] = arena.extents_total
        arena.stack[:] = np.arange(arena.extents_total, dtype=np.int32)[::-1]
        for pool in (self.pool, self.blocks):
            pool.state[arena_kernel.P_FREE] = NIL
            for word in (
                arena_kernel.P_FREE_COUNT,
                arena_kernel.P_BUMP,
                arena_kernel.P_END,
                arena_kernel.P_EXTENTS,
            ):
                pool.state[word] = 0

    def collect(
        self,
        lists: Int64s,
        cursor: Int64s,
        slots: Int64s,
        codes: Int64s,
        first: Int64s = _NONE,
        last: Int64s = _NONE,
    ) -> int:
        """Tuples of some lists from `cursor` on until the buffers are full (see the kernel)."""
        return int(
            kernel.lists_collect(
                lists,
                len(lists),
                self.heads,
                self.counts,
                self.arena.state,
                cursor,
                int(self.paged and len(first) > 0),
                slots,
                codes,
                first,
                last,
            )
        )

    def move(self, slots: Int64s, lists: Int64s, first: Int64s, last: Int64s) -> None:
        """Put tuples collected from one list in others; the caller clears the old one."""
        kernel.lists_move(slots, lists, first, last, self._ends, self.arena.state)

    def free(self, slots: Int64s, count: int) -> None:
        """Tuples leave; the lists they stood in must be cleared or cut by the caller."""
        kernel.free_slots(slots, count, self.arena.state, self.pool.state, self.blocks.state, self.layout.chain_at)

    def clear(self, lists: Int64s) -> None:
        """Forget lists whose tuples have left."""
        self.heads[lists] = self.tails[lists] = NIL
        self.counts[lists] = 0
        self.reach[lists] = -1

    def head(self, at: int = 0) -> int:
        """Slot of the oldest tuple of a list, or 0."""
        if self.counts[at] == 0:
            return 0
        return int(self.arena.state[arena_kernel.A_BASE]) + (int(self.heads[at]) << self.arena.shift)

    def cut(self, slot: int, left: int, at: int = 0) -> None:
        """The first `left` tuples of a list are gone; it goes on with `slot` (0: it is empty)."""
        if slot == 0:
            self.clear(np.array([at], dtype=np.int64))
            return
        self.heads[at] = (slot - int(self.arena.state[arena_kernel.A_BASE])) >> self.arena.shift
        self.counts[at] -= left
