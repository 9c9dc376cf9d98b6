"""What SSBJ does to the cache: keys are collected unseen, become visible together, and leave by the cache inequality.

The entries and their flags are those of `kernels/cache.py`.
"""

# mypy: disallow_untyped_defs=False
from __future__ import annotations

import numpy as np

from semistream.kernels.arena import A_BASE, A_SHIFT, POOL, take_slot
from semistream.kernels.cache import (
    C_KEYS,
    C_ROWS,
    C_SWITCHING_KEYS,
    C_SWITCHING_ROWS,
    CACHE,
    COUNT_MASK,
    COUNT_ONE,
    EMPTY,
    PARTIAL,
    SWITCHING,
    YOUNG,
    cache_delete,
    cache_insert,
    find_key,
    free_rows,
)
from semistream.kernels.compiled import njit
from semistream.kernels.raw import address_of, load_u32, store_i32
from semistream.kernels.rows import NIL
from semistream.kernels.tuples import hash32

#: whom an eviction judges
JUDGE_SETTLED, JUDGE_YOUNG, JUDGE_ALL = range(3)


@njit("int64(int64[::1], int64[::1], int64, int64[::1], int64[::1])", cache=True, nogil=True)
def mark_switching(codes, counts, stop, entries, state):
    """Open entries, with a first count, that collect rows unseen by the stream; returns how many are new."""
    entries_at, size = address_of(entries), entries.size >> 1
    opened = 0
    for i in range(stop):
        if find_key(entries_at, size, codes[i]) < 0:
            cache_insert(entries_at, size, codes[i], SWITCHING | (min(counts[i], COUNT_MASK) << 32) | NIL)
            state[C_KEYS] += 1
            state[C_SWITCHING_KEYS] += 1
            opened += 1
    return opened


@njit(
    f"int64(int64[::1], int64, int64[::1], int64[::1], {POOL}, int64[::1], int64[::1], int64[::1], int64)",
    cache=True,
    nogil=True,
)
def collect(codes, stop, entries, state, cached, cursor, out_slots, out_ids, max_rows):
    """Switching state: give every master row of a SWITCHING key a slot.

    `cursor`: row, status, keys given up. Stops when the buffers are full (status 0: call again), the arena is exhausted
    (1) or the block is done (2). Keys that have more rows than they may take are marked, for `drop_overgrown`:
    their rows cannot be freed here, since the payload of some is still to be packed.
    """
    arena, extents, pool = cached
    arena_at, extents_at, pool_at = address_of(arena), address_of(extents), address_of(pool)
    entries_at, size = address_of(entries), entries.size >> 1
    filled = 0
    row = cursor[0]
    cursor[1] = 2
    while row < stop:
        at = find_key(entries_at, size, codes[row])
        if at >= 0 and entries[2 * at + 1] & (SWITCHING | YOUNG) == SWITCHING:
            if entries[2 * at + 1] & PARTIAL != 0 and (entries[2 * at + 1] >> 32) & COUNT_MASK == 0:
                entries[2 * at + 1] |= YOUNG
                cursor[2] += 1
                row += 1
                continue
            if filled == min(out_slots.size, max_rows):
                cursor[1] = 0
                break
            slot = take_slot(arena_at, extents_at, pool_at)
            if slot < 0:
                cursor[1] = 1
                break
            meta = entries[2 * at + 1]
            store_i32(slot, meta & NIL)
            reference = (slot - arena[A_BASE]) >> arena[A_SHIFT]
            if meta & PARTIAL != 0:
                meta -= COUNT_ONE
            entries[2 * at + 1] = (meta & ~np.int64(NIL)) | reference
            state[C_ROWS] += 1
            state[C_SWITCHING_ROWS] += 1
            out_slots[filled] = slot
            out_ids[filled] = row
            filled += 1
        row += 1
    cursor[0] = row
    return filled


@njit("void(int64[::1], int64[::1])", cache=True, nogil=True)
def activate(entries, state):
    """Phase-out begins: all collected keys are complete and become visible to the stream."""
    for at in range(entries.size >> 1):
        if entries[2 * at + 1] != EMPTY and entries[2 * at + 1] & SWITCHING != 0:
            meta = entries[2 * at + 1] & ~SWITCHING
            entries[2 * at + 1] = ((meta & NIL) if meta & PARTIAL != 0 else meta) | YOUNG
    state[C_SWITCHING_KEYS] = 0
    state[C_SWITCHING_ROWS] = 0


@njit(f"void({CACHE}, int64, int64)", cache=True, nogil=True)
def drop_switching(table, chance, salt):
    """Give up on keys that are being collected, each with `chance` in 2**32, rows and all."""
    entries, state, arena, pool, blocks, chain = table
    arena_at, pool_at, blocks_at = address_of(arena), address_of(pool), address_of(blocks)
    entries_at, size = address_of(entries), entries.size >> 1
    at = 0
    while at < entries.size >> 1:
        meta = entries[2 * at + 1]
        if meta != EMPTY and meta & SWITCHING != 0 and hash32(entries[2 * at] ^ salt) < chance:
            rows = free_rows(meta & NIL, arena_at, pool_at, blocks_at, chain)
            state[C_ROWS] -= rows
            state[C_SWITCHING_ROWS] -= rows
            state[C_KEYS] -= 1
            state[C_SWITCHING_KEYS] -= 1
            cache_delete(entries_at, size, at)
        else:
            at += 1


@njit(f"void({CACHE})", cache=True, nogil=True)
def drop_overgrown(table):
    """Give up on the keys that `collect` has marked, rows and all."""
    entries, state, arena, pool, blocks, chain = table
    arena_at, pool_at, blocks_at = address_of(arena), address_of(pool), address_of(blocks)
    entries_at, size = address_of(entries), entries.size >> 1
    at = 0
    while at < entries.size >> 1:
        meta = entries[2 * at + 1]
        if meta != EMPTY and meta & (SWITCHING | YOUNG) == SWITCHING | YOUNG:
            rows = free_rows(meta & NIL, arena_at, pool_at, blocks_at, chain)
            state[C_ROWS] -= rows
            state[C_SWITCHING_ROWS] -= rows
            state[C_KEYS] -= 1
            state[C_SWITCHING_KEYS] -= 1
            cache_delete(entries_at, size, at)
        else:
            at += 1


@njit(f"int64({CACHE}, float64, float64, float64, float64, int64)", cache=True, nogil=True)
def evict_unbalanced(table, per_count_bytes, entry_bytes, row_bytes, factor, whom):
    """SSBJ's eviction: keys that would take no more bytes in the pending table leave; all counts restart at 0.

    `per_count_bytes` is v_S divided by the R-cycles over which the counts ran. `whom` is JUDGE_YOUNG: only YOUNG keys
    are judged, and those that stay are PARTIAL from then on; JUDGE_SETTLED: those that are neither; JUDGE_ALL.
    """
    entries, state, arena, pool, blocks, chain = table
    arena_at, pool_at, blocks_at = address_of(arena), address_of(pool), address_of(blocks)
    entries_at, size = address_of(entries), entries.size >> 1
    evicted = 0
    at = 0
    while at < entries.size >> 1:
        meta = entries[2 * at + 1]
        if whom == JUDGE_YOUNG:
            judged = meta & YOUNG != 0
        else:
            judged = whom == JUDGE_ALL or meta & (YOUNG | PARTIAL) == 0
        if meta == EMPTY or meta & SWITCHING != 0 or not judged:
            at += 1
            continue
        rows = 0
        reference = meta & NIL
        while reference != NIL:
            rows += 1
            reference = load_u32(arena[A_BASE] + (reference << arena[A_SHIFT]))
        waiting_bytes = ((meta >> 32) & COUNT_MASK) * per_count_bytes
        if entry_bytes + rows * row_bytes >= factor * waiting_bytes:
            free_rows(meta & NIL, arena_at, pool_at, blocks_at, chain)
            state[C_ROWS] -= rows
            state[C_KEYS] -= 1
            cache_delete(entries_at, size, at)
            evicted += 1
        else:
            at += 1
    for at in range(entries.size >> 1):
        meta = entries[2 * at + 1]
        if meta == EMPTY or meta & SWITCHING != 0:
            continue
        if whom == JUDGE_SETTLED:
            entries[2 * at + 1] = meta & (YOUNG | NIL)
        elif whom == JUDGE_ALL:
            entries[2 * at + 1] = meta & NIL
        elif meta & YOUNG != 0:
            entries[2 * at + 1] = (meta & NIL) | PARTIAL
    return evicted
