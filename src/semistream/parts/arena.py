"""The bytes behind pending table and cache: one anonymous mapping, handed out by the extent."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
from pathlib import Path

import numpy as np
import numpy.typing as npt

from semistream.errors import BudgetError
from semistream.kernels import arena as kernel
from semistream.kernels.rows import BLOCK_BYTES, NIL

Int64s = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

_HUGE_PAGE_FROM = 4 << 20
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


class Arena:
    """`size` bytes cut into extents large enough for at least eight of the largest slots.

    The bytes are the arena's own, unless a mapped file is given as `memory`.
    """

    def __init__(self, size: int, largest_slot: int, memory: Bytes | None = None) -> None:
        extent = 4096
        while extent < 8 * largest_slot + kernel.EXTENT_HEADER:
            extent *= 2
        self.extent_bytes = extent
        self.extents_total = max(size // extent, 0)
        length = max(self.extents_total * extent, extent)
        self._bytes = _anonymous(length) if memory is None else memory
        shift = 0
        while length >> shift > NIL:
            shift += 1
        self.shift = shift
        self.state = np.array(
            [self._bytes.ctypes.data, shift, extent, self.extents_total, self.extents_total], dtype=np.int64
        )
        self.stack = np.arange(self.extents_total, dtype=np.int32)[::-1].copy()

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
        """Take all extents back; the pools that had them must not be used any more."""
        self.stack[:] = np.arange(self.extents_total, dtype=np.int32)[::-1]
        self.state[kernel.A_FREE] = self.extents_total


class Pool:
    """Slots of one size, taken from an arena."""

    def __init__(self, arena: Arena, slot_bytes: int, fifo: bool = False) -> None:
        self.arena = arena
        self.slot_bytes = -(-slot_bytes // arena.slot_align) * arena.slot_align
        self.state = np.zeros(kernel.POOL_WORDS, dtype=np.int64)
        self.state[kernel.P_SLOT] = self.slot_bytes
        self.state[kernel.P_FREE] = NIL
        self.state[kernel.P_FRONT_EXT] = self.state[kernel.P_BACK_EXT] = -1
        header = kernel.EXTENT_HEADER if fifo else 0
        self.slots_per_extent = (arena.extent_bytes - header) // self.slot_bytes

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


def block_pool(arena: Arena) -> Pool:
    """The pool that holds the bytes of VAR cells."""
    return Pool(arena, BLOCK_BYTES)
