"""The bytes behind pending table and cache: one anonymous mapping, handed out by the extent."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from semistream.columns.rows import Paged, RowLayout, page_view
from semistream.errors import BudgetError
from semistream.kernels import arena as kernel
from semistream.kernels.rows import BLOCK_BYTES, BLOCK_ROOM, NIL

Int64s = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

_HUGE_PAGE_FROM = 4 << 20
_SMALLEST_EXTENT = 4096
#: part of the spare bytes that an arena takes, and what it leaves for its table
_SHARE, _REST = 0.998, 512
#: what every machine has: no need to ask
_FEW_BYTES = 64 << 20
_CONTAINER_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def machine_bytes() -> int:
    """Memory of this machine, or of the container that we are in if that has less."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for path in _CONTAINER_LIMITS:
        with contextlib.suppress(OSError, ValueError):
            limits.append(int(path.read_text()))
    return min(limits)


def beyond_machine(budget_bytes: int, why: str) -> BudgetError:
    """A budget that the machine cannot give is a wrong budget."""
    return BudgetError(
        f"a budget of {budget_bytes} bytes cannot be had: {why}; this machine has {machine_bytes()} bytes of memory: "
        "give the join less"
    )


def within_machine(budget_bytes: int) -> int:
    """Refuse a budget at once that would end the process once it is used up."""
    if budget_bytes > _FEW_BYTES and budget_bytes > machine_bytes():
        raise beyond_machine(budget_bytes, "it is more than all memory")
    return budget_bytes


def _anonymous(length: int) -> Bytes:
    try:
        mapping = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as error:
        if isinstance(error, OSError) and error.errno != errno.ENOMEM:
            raise
        raise MemoryError(f"the system refuses {length} bytes in one piece") from error
    if length >= _HUGE_PAGE_FROM:
        mapping.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(mapping, dtype=np.uint8)


@dataclass(frozen=True)
class ArenaShape:
    """An arena before it is made: extents large enough for at least eight of the largest slots."""

    largest_slot: int
    extent_bytes: int
    extents: int

    @staticmethod
    def of(size: int, largest_slot: int) -> ArenaShape:
        """As many extents as `size` bytes are."""
        extent = _SMALLEST_EXTENT
        while extent < 8 * largest_slot + kernel.EXTENT_HEADER:
            extent *= 2
        return ArenaShape(largest_slot, extent, max(size // extent, 0))

    @staticmethod
    def within(spare: int, *slots: int) -> ArenaShape:
        """All of the spare bytes, less the arena's own table, for slots of these sizes."""
        return ArenaShape.of(int(spare * _SHARE) - _REST, max(slots))

    @property
    def size(self) -> int:
        return self.extents * self.extent_bytes

    @property
    def table_bytes(self) -> int:
        """Bytes of the list of free extents."""
        return 4 * self.extents

    def slots(self, slot_bytes: float, fifo: bool = False) -> int:
        """Slots of a size in one extent."""
        return max(int((self.extent_bytes - (kernel.EXTENT_HEADER if fifo else 0)) / slot_bytes), 1)


class Arena:
    """`size` bytes cut into extents large enough for at least eight of the largest slots.

    The bytes are the arena's own, unless a mapped file is given as `memory`.
    """

    def __init__(self, size: int, largest_slot: int, memory: Bytes | None = None) -> None:
        shape = ArenaShape.of(size, largest_slot)
        self.extent_bytes = extent = shape.extent_bytes
        self.extents_total = shape.extents
        length = max(self.extents_total * extent, extent)
        self._bytes = _anonymous(length) if memory is None else memory
        shift = 0
        # No slot has one of the two largest references: these say that there is no row, or that nobody knows.
        while length >> shift >= NIL:
            shift += 1
        self.shift = shift
        self.state = np.array(
            [self._bytes.ctypes.data, shift, extent, self.extents_total, self.extents_total], dtype=np.int64
        )
        self.stack = np.arange(self.extents_total, dtype=np.int32)[::-1].copy()

    @staticmethod
    def shaped(shape: ArenaShape) -> Arena:
        """The arena of a plan."""
        return Arena(shape.size, shape.largest_slot)

    @property
    def slot_align(self) -> int:
        """Slot sizes must be a multiple of this for references to be exact."""
        return 1 << self.shift

    @property
    def free_extents(self) -> int:
        return int(self.state[kernel.A_FREE])

    @property
    def table_bytes(self) -> int:
        return self.stack.nbytes

    def clear(self) -> None:
        """Take all extents back; the pools that had them must be reset before they are used again."""
        self.stack[:] = np.arange(self.extents_total, dtype=np.int32)[::-1]
        self.state[kernel.A_FREE] = self.extents_total


class Pool:
    """Slots of one size, taken from an arena."""

    def __init__(self, arena: Arena, slot_bytes: int, fifo: bool = False) -> None:
        self.arena = arena
        self.slot_bytes = -(-slot_bytes // arena.slot_align) * arena.slot_align
        self.state = np.zeros(kernel.POOL_WORDS, dtype=np.int64)
        self.reset()
        #: what kernels that take slots want, in the order of `kernels.arena.POOL`
        self.view = (arena.state, arena.stack, self.state)
        header = kernel.EXTENT_HEADER if fifo else 0
        self.slots_per_extent = (arena.extent_bytes - header) // self.slot_bytes

    def reset(self) -> None:
        """Forget all slots: the arena has taken back the extents (`Arena.clear`)."""
        self.state[:] = 0
        self.state[kernel.P_SLOT] = self.slot_bytes
        self.state[kernel.P_FREE] = NIL
        self.state[kernel.P_FRONT_EXT] = self.state[kernel.P_BACK_EXT] = -1

    @property
    def live(self) -> int:
        return int(self.state[kernel.P_LIVE])

    @property
    def extents(self) -> int:
        return int(self.state[kernel.P_EXTENTS])

    @property
    def ready(self) -> int:
        """Slots at hand without another extent."""
        state = self.state
        bump = (state[kernel.P_END] - state[kernel.P_BUMP]) // state[kernel.P_SLOT]
        return int(state[kernel.P_FREE_COUNT] + bump)


class BlockPool(Pool):
    """The pool that holds the bytes of VAR cells."""

    def __init__(self, arena: Arena) -> None:
        super().__init__(arena, BLOCK_BYTES)

    def pack(self, layout: RowLayout, source: Paged, ids: Int64s, start: int, count: int, slots: Int64s) -> None:
        """Write the VAR values of rows `ids[start:start+count]`, which have their slots, into chains of blocks."""
        kernel.pack_var(
            ids,
            start,
            count,
            slots,
            page_view(source),
            layout.header,
            layout.head,
            layout.var_columns,
            layout.var_cells,
            self.view,
        )


def blocks_for(row_bytes: float, var_columns: int) -> float:
    """Bytes of the blocks for the VAR values of a row, each of which begins one of its own."""
    return (row_bytes / BLOCK_ROOM + var_columns) * BLOCK_BYTES
