"""Slots from a byte arena: one anonymous mapping cut into extents that pools take and return.

Memory moves between the pending table and the cache by the extent, so one byte budget serves both and either may
grow while the other shrinks. A slot is named by a 32-bit *reference*, its distance from the arena's base shifted
right by `shift`, which halves every pointer; kernels work on addresses.

Arena state (int64[5]): base address, shift, extent bytes, free extents on the stack, extents in all.
Pool state (int64[12]): see the constants below. A free-list pool reuses single slots; a FIFO pool appends at the back,
releases at the front and hands drained extents back to the arena.

What kernels call for every tuple is inlined: a call with arrays would count references to them, atomically, each time.
"""

# mypy: disallow_untyped_defs=False
from __future__ import annotations

from numba import njit

from semistream.kernels.raw import copy_bytes, get_bit, load_i32, load_u32, store_i32
from semistream.kernels.rows import BLOCK_ROOM, NIL

A_BASE, A_SHIFT, A_EXTENT, A_FREE, A_TOTAL = range(5)
(
    P_SLOT,
    P_FREE,
    P_FREE_COUNT,
    P_BUMP,
    P_END,
    P_EXTENTS,
    P_LIVE,
    P_FRONT,
    P_FRONT_END,
    P_FRONT_EXT,
    P_BACK_EXT,
    P_WARM,
) = range(12)
POOL_WORDS = 12
EXTENT_HEADER = 8


@njit(nogil=True, inline="always")
def _take_extent(arena, extents, pool):
    """Address of a fresh extent, or -1."""
    if arena[A_FREE] == 0:
        return -1
    arena[A_FREE] -= 1
    pool[P_EXTENTS] += 1
    return arena[A_BASE] + extents[arena[A_FREE]] * arena[A_EXTENT]


@njit(nogil=True, inline="always")
def take_slot(arena, extents, pool):
    """Address of a free slot of a free-list pool, or -1 when the arena is exhausted."""
    if pool[P_FREE] != NIL:
        slot = arena[A_BASE] + (pool[P_FREE] << arena[A_SHIFT])
        pool[P_FREE] = load_u32(slot)
        pool[P_FREE_COUNT] -= 1
        pool[P_LIVE] += 1
        return slot
    if pool[P_BUMP] + pool[P_SLOT] > pool[P_END]:
        extent = _take_extent(arena, extents, pool)
        if extent < 0:
            return -1
        pool[P_BUMP] = extent
        pool[P_END] = extent + arena[A_EXTENT]
    slot = pool[P_BUMP]
    pool[P_BUMP] += pool[P_SLOT]
    pool[P_LIVE] += 1
    return slot


@njit(nogil=True, inline="always")
def give_slot(arena, pool, slot):
    """Put a slot on its pool's free list."""
    store_i32(slot, pool[P_FREE])
    pool[P_FREE] = (slot - arena[A_BASE]) >> arena[A_SHIFT]
    pool[P_FREE_COUNT] += 1
    pool[P_LIVE] -= 1


@njit(nogil=True, inline="always")
def push_back(arena, extents, pool):
    """Address of the next slot of a FIFO pool, or -1."""
    if pool[P_BUMP] + pool[P_SLOT] > pool[P_END]:
        extent = _take_extent(arena, extents, pool)
        if extent < 0:
            return -1
        store_i32(extent, -1)
        if pool[P_BACK_EXT] >= 0:
            store_i32(pool[P_BACK_EXT], (extent - arena[A_BASE]) // arena[A_EXTENT])
        else:
            pool[P_FRONT] = extent + EXTENT_HEADER
            pool[P_FRONT_END] = extent + arena[A_EXTENT]
            pool[P_FRONT_EXT] = extent
        pool[P_BACK_EXT] = extent
        pool[P_BUMP] = extent + EXTENT_HEADER
        pool[P_END] = extent + arena[A_EXTENT]
    slot = pool[P_BUMP]
    pool[P_BUMP] += pool[P_SLOT]
    pool[P_LIVE] += 1
    return slot


@njit(nogil=True, inline="always")
def next_slot(arena, slot, extent, slot_bytes):
    """The FIFO slot after `slot`, which lies in `extent`; returns (slot, extent)."""
    slot += slot_bytes
    if slot + slot_bytes > extent + arena[A_EXTENT]:
        extent = arena[A_BASE] + load_i32(extent) * arena[A_EXTENT]
        slot = extent + EXTENT_HEADER
    return slot, extent


@njit(nogil=True, inline="always")
def pop_front(arena, extents, pool):
    """Release the oldest slot of a FIFO pool; a drained extent goes back to the arena."""
    pool[P_LIVE] -= 1
    pool[P_FRONT] += pool[P_SLOT]
    emptied = pool[P_LIVE] == 0
    if emptied or pool[P_FRONT] + pool[P_SLOT] > pool[P_FRONT_END]:
        extent = pool[P_FRONT_EXT]
        following = load_i32(extent)
        extents[arena[A_FREE]] = (extent - arena[A_BASE]) // arena[A_EXTENT]
        arena[A_FREE] += 1
        pool[P_EXTENTS] -= 1
        if emptied:
            pool[P_FRONT_EXT] = -1
            pool[P_BACK_EXT] = -1
            pool[P_BUMP] = 0
            pool[P_END] = 0
            pool[P_FRONT] = 0
            pool[P_FRONT_END] = 0
        else:
            extent = arena[A_BASE] + following * arena[A_EXTENT]
            pool[P_FRONT_EXT] = extent
            pool[P_FRONT] = extent + EXTENT_HEADER
            pool[P_FRONT_END] = extent + arena[A_EXTENT]


@njit("int64(int64[::1], int64, int64, int64, int64, int64, int64)", cache=True, nogil=True)
def fit_prefix(var_bytes, count, slots_ready, slots_an_extent, blocks_ready, blocks_an_extent, spare_extents):
    """How many of the first `count` rows fit, given slots and blocks at hand and extents to spare."""
    blocks = 0
    for i in range(count):
        blocks += (var_bytes[i] + BLOCK_ROOM - 1) // BLOCK_ROOM
        extents = 0
        if i + 1 > slots_ready:
            extents += (i + 1 - slots_ready + slots_an_extent - 1) // slots_an_extent
        if blocks > blocks_ready:
            extents += (blocks - blocks_ready + blocks_an_extent - 1) // blocks_an_extent
        if extents > spare_extents:
            return i
    return count


@njit(
    "void(int64[::1], int64, int64, int64[::1], int64, int64, int64, int64[::1], int32[::1], int64[:,::1],"
    " int64[:,::1],"
    " int64[:,::1], int64[:,::1], int64[::1], int64[::1], int64[::1], int32[::1], int64[::1])",
    cache=True,
    nogil=True,
)
def pack_var(
    ids,
    start,
    count,
    slots,
    payload,
    head,
    page_rows,
    base,
    kind,
    data,
    valid,
    offs,
    bit,
    var_columns,
    var_cells,
    arena,
    extents,
    blocks,
):
    """Write the VAR cells of paged rows into block chains (room was checked), lengths and chain head into the rows."""
    shift = arena[A_SHIFT]
    for i in range(count):
        row = ids[start + i]
        page = 0 if base.size == 1 else row // page_rows
        row -= page * page_rows
        layout = kind[page]
        slot = slots[i] + payload
        store_i32(slot + head, NIL)
        block = 0
        room = 0
        for position in range(var_columns.size):
            c = var_columns[position]
            length = 0
            source = 0
            live = True
            if valid[layout, c] >= 0:
                live = get_bit(base[page] + valid[layout, c], row + bit[layout, c]) == 1
            if live:
                at = base[page] + offs[layout, c] + 4 * row
                begin = load_i32(at)
                length = load_i32(at + 4) - begin
                source = base[page] + data[layout, c] + begin
            store_i32(slot + var_cells[position], length)
            while length > 0:
                if room == 0:
                    fresh = take_slot(arena, extents, blocks)
                    store_i32(fresh, NIL)
                    link = slot + head if block == 0 else block
                    store_i32(link, (fresh - arena[A_BASE]) >> shift)
                    block = fresh
                    room = BLOCK_ROOM
                part = min(length, room)
                copy_bytes(block + 4 + BLOCK_ROOM - room, source, part)
                source += part
                length -= part
                room -= part


@njit(nogil=True, inline="always")
def free_chain(arena, blocks, link):
    """Give back the block chain whose head reference stands at address `link`."""
    reference = load_u32(link)
    while reference != NIL:
        block = arena[A_BASE] + (reference << arena[A_SHIFT])
        reference = load_u32(block)
        give_slot(arena, blocks, block)
