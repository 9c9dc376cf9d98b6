"""Slots from a byte arena: one anonymous mapping cut into extents that pools take and return.

Memory moves between the pending table and the cache by the extent, so one byte budget serves both and either may
grow while the other shrinks. A slot is named by a 32-bit *reference*, its distance from the arena's base shifted
right by `shift`, which halves every pointer; kernels work on addresses.

Arena state (int64[5]): base address, shift, extent bytes, free extents on the stack, extents in all.
Pool state (int64[12]): see the constants below. A free-list pool reuses single slots; a FIFO pool appends at the back,
releases at the front and hands drained extents back to the arena.

Helpers that kernels call for every tuple take the states' addresses (see `raw.address_of`).
"""

# mypy: disallow_untyped_defs=False
from __future__ import annotations

import numpy as np

from semistream.kernels.compiled import njit
from semistream.kernels.raw import (
    address_of,
    copy_bytes,
    get_bit,
    load_i32,
    load_i64,
    load_u32,
    store_i32,
    store_i64,
)
from semistream.kernels.rows import BLOCK_ROOM, NIL, PAGES

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
#: how kernels are given a pool from which they take slots: the states of arena, free extents and pool
POOL = "Tuple((int64[::1], int32[::1], int64[::1]))"


@njit(nogil=True, inline="always")
def word(state, index):
    """A word of an arena's or pool's state, given the state's address."""
    return load_i64(state + 8 * index)


@njit(nogil=True, inline="always")
def add_word(state, index, amount):
    store_i64(state + 8 * index, load_i64(state + 8 * index) + amount)


@njit(nogil=True, inline="always")
def set_word(state, index, value):
    store_i64(state + 8 * index, value)


@njit(nogil=True, inline="always")
def _take_extent(arena, extents, pool):
    """Address of a fresh extent, or -1."""
    extent = np.int64(-1)
    free = word(arena, A_FREE)
    if free > 0:
        set_word(arena, A_FREE, free - 1)
        add_word(pool, P_EXTENTS, 1)
        extent = word(arena, A_BASE) + load_i32(extents + 4 * (free - 1)) * word(arena, A_EXTENT)
    return extent


@njit(nogil=True, inline="always")
def _give_extent(arena, extents, pool, extent):
    free = word(arena, A_FREE)
    store_i32(extents + 4 * free, (extent - word(arena, A_BASE)) // word(arena, A_EXTENT))
    set_word(arena, A_FREE, free + 1)
    add_word(pool, P_EXTENTS, -1)


@njit(nogil=True, inline="always")
def take_slot(arena, extents, pool):
    """Address of a free slot of a free-list pool, or -1 when the arena is exhausted."""
    slot = np.int64(-1)
    reference = word(pool, P_FREE)
    size = word(pool, P_SLOT)
    if reference != NIL:
        slot = word(arena, A_BASE) + (reference << word(arena, A_SHIFT))
        set_word(pool, P_FREE, load_u32(slot))
        add_word(pool, P_FREE_COUNT, -1)
    else:
        if word(pool, P_BUMP) + size > word(pool, P_END):
            extent = _take_extent(arena, extents, pool)
            if extent >= 0:
                set_word(pool, P_BUMP, extent)
                set_word(pool, P_END, extent + word(arena, A_EXTENT))
        if word(pool, P_BUMP) + size <= word(pool, P_END):
            slot = word(pool, P_BUMP)
            set_word(pool, P_BUMP, slot + size)
    if slot >= 0:
        add_word(pool, P_LIVE, 1)
    return slot


@njit(nogil=True, inline="always")
def give_slot(arena, pool, slot):
    """Put a slot on its pool's free list."""
    store_i32(slot, word(pool, P_FREE))
    set_word(pool, P_FREE, (slot - word(arena, A_BASE)) >> word(arena, A_SHIFT))
    add_word(pool, P_FREE_COUNT, 1)
    add_word(pool, P_LIVE, -1)


@njit(nogil=True, inline="always")
def push_back(arena, extents, pool):
    """Address of the next slot of a FIFO pool, or -1."""
    slot = np.int64(-1)
    size = word(pool, P_SLOT)
    if word(pool, P_BUMP) + size > word(pool, P_END):
        extent = _take_extent(arena, extents, pool)
        if extent >= 0:
            end = extent + word(arena, A_EXTENT)
            store_i32(extent, -1)
            back = word(pool, P_BACK_EXT)
            if back >= 0:
                store_i32(back, (extent - word(arena, A_BASE)) // word(arena, A_EXTENT))
            else:
                set_word(pool, P_FRONT, extent + EXTENT_HEADER)
                set_word(pool, P_FRONT_END, end)
                set_word(pool, P_FRONT_EXT, extent)
            set_word(pool, P_BACK_EXT, extent)
            set_word(pool, P_BUMP, extent + EXTENT_HEADER)
            set_word(pool, P_END, end)
    if word(pool, P_BUMP) + size <= word(pool, P_END):
        slot = word(pool, P_BUMP)
        set_word(pool, P_BUMP, slot + size)
        add_word(pool, P_LIVE, 1)
    return slot


@njit(nogil=True, inline="always")
def next_slot(arena, slot, extent, slot_bytes):
    """The FIFO slot after `slot`, which lies in `extent`; returns (slot, extent)."""
    slot += slot_bytes
    if slot + slot_bytes > extent + word(arena, A_EXTENT):
        extent = word(arena, A_BASE) + load_i32(extent) * word(arena, A_EXTENT)
        slot = extent + EXTENT_HEADER
    return slot, extent


@njit(nogil=True, inline="always")
def pop_front(arena, extents, pool):
    """Release the oldest slot of a FIFO pool; a drained extent goes back to the arena."""
    add_word(pool, P_LIVE, -1)
    front = word(pool, P_FRONT) + word(pool, P_SLOT)
    set_word(pool, P_FRONT, front)
    emptied = word(pool, P_LIVE) == 0
    if emptied or front + word(pool, P_SLOT) > word(pool, P_FRONT_END):
        extent = word(pool, P_FRONT_EXT)
        following = load_i32(extent)
        _give_extent(arena, extents, pool, extent)
        if emptied:
            set_word(pool, P_FRONT_EXT, -1)
            set_word(pool, P_BACK_EXT, -1)
            set_word(pool, P_BUMP, 0)
            set_word(pool, P_END, 0)
            set_word(pool, P_FRONT, 0)
            set_word(pool, P_FRONT_END, 0)
        else:
            extent = word(arena, A_BASE) + following * word(arena, A_EXTENT)
            set_word(pool, P_FRONT_EXT, extent)
            set_word(pool, P_FRONT, extent + EXTENT_HEADER)
            set_word(pool, P_FRONT_END, extent + word(arena, A_EXTENT))


@njit("int64(int64[::1], int64, int64, int64, int64, int64, int64)", cache=True, nogil=True)
def fit_prefix(var_bytes, count, slots_ready, slots_per_extent, blocks_ready, blocks_per_extent, spare_extents):
    """How many of the first `count` rows fit, given slots and blocks at hand and extents to spare."""
    blocks = 0
    for i in range(count):
        blocks += (var_bytes[i] + BLOCK_ROOM - 1) // BLOCK_ROOM
        extents = 0
        if i + 1 > slots_ready:
            extents += (i + 1 - slots_ready + slots_per_extent - 1) // slots_per_extent
        if blocks > blocks_ready:
            extents += (blocks - blocks_ready + blocks_per_extent - 1) // blocks_per_extent
        if extents > spare_extents:
            return i
    return count


@njit(
    f"void(int64[::1], int64, int64, int64[::1], {PAGES}, int64, int64, int64[::1], int64[::1], {POOL})",
    cache=True,
    nogil=True,
)
def pack_var(ids, start, count, slots, pages, payload, head, var_columns, var_cells, pool):
    """Write the VAR cells of paged rows into block chains (room was checked), lengths and chain head into the rows."""
    page_rows, base, kind, data, valid, offs, bit = pages
    arena, extents, blocks = pool
    shift = arena[A_SHIFT]
    arena_at, extents_at, blocks_at = address_of(arena), address_of(extents), address_of(blocks)
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
                    fresh = take_slot(arena_at, extents_at, blocks_at)
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
        block = word(arena, A_BASE) + (reference << word(arena, A_SHIFT))
        reference = load_u32(block)
        give_slot(arena, blocks, block)
