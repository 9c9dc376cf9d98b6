"""Choosing the keys of the next shared cache among those of several caches, in two passes and without a list of them.

A key's worth is its count per byte. The first pass adds up bytes by class of worth; whoever builds the cache finds the
class at which the room ends; the second pass copies the keys above it, with their rows as they are packed.
"""

# mypy: disallow_untyped_defs=False
from __future__ import annotations

import numpy as np

from semistream.kernels.arena import A_BASE, A_SHIFT, take_slot, word
from semistream.kernels.cache import (
    C_KEYS,
    C_ROWS,
    COUNT_MASK,
    EMPTY,
    SOME,
    SWITCHING,
    cache_insert,
    find_key,
    free_rows,
)
from semistream.kernels.compiled import njit
from semistream.kernels.raw import address_of, copy_bytes, load_u32, store_i32
from semistream.kernels.rows import BLOCK_BYTES, NIL
from semistream.kernels.tuples import hash32

CLASSES = 1024
_STEPS = 8.0
_MIDDLE = 768
#: a cache that keys are copied to: entries, its state, those of arena, extents, rows and VAR blocks, keys at most
TARGET = "Tuple((int64[::1], int64[::1], int64[::1], int32[::1], int64[::1], int64[::1], int64))"


@njit(nogil=True, inline="always")
def _chain_rows(arena, reference):
    rows = 0
    while reference != NIL:
        rows += 1
        reference = load_u32(arena[A_BASE] + (reference << arena[A_SHIFT]))
    return rows


@njit(nogil=True, inline="always")
def _worth(count, doubt, scale, size):
    """Class of a key that was asked for `count` times and takes `size` bytes; 0 is no worth at all.

    `doubt` takes its own spread, so many times, off the count: a key that was met once may have been met by chance.
    """
    weight = (count - doubt * np.sqrt(count)) * scale
    if weight <= 0.0:
        return 0
    return min(max(int(_STEPS * np.log2(weight / size)) + _MIDDLE, 1), CLASSES - 1)


@njit(nogil=True, inline="always")
def _copy_chain(arena, link, their_arena, extents, blocks, their_link):
    """Copy the blocks whose first reference stands at address `link`; False when there is no room for all of them."""
    reference = load_u32(link)
    store_i32(their_link, NIL)
    while reference != NIL:
        block = arena[A_BASE] + (reference << arena[A_SHIFT])
        reference = load_u32(block)
        fresh = take_slot(their_arena, extents, blocks)
        if fresh < 0:
            return False
        copy_bytes(fresh, block, BLOCK_BYTES)
        store_i32(fresh, NIL)
        store_i32(their_link, (fresh - word(their_arena, A_BASE)) >> word(their_arena, A_SHIFT))
        their_link = fresh
    return True


@njit("void(int64[::1], int64[::1], float64, float64, float64, float64, float64[:,::1])", cache=True, nogil=True)
def weigh(entries, arena, doubt, scale, entry_bytes, row_bytes, histogram):
    """Count every complete key (row 0) and add its bytes (row 1) to its class of worth."""
    for at in range(entries.size >> 1):
        meta = entries[2 * at + 1]
        if meta == EMPTY or meta & SWITCHING != 0:
            continue
        size = entry_bytes + row_bytes * _chain_rows(arena, meta & NIL)
        worth = _worth((meta >> 32) & COUNT_MASK, doubt, scale, size)
        histogram[0, worth] += 1.0
        histogram[1, worth] += size


@njit("void(int64[::1], int64, int64, int64[::1])", cache=True, nogil=True)
def mask_counts(entries, shift, last_row, seen):
    """Clear the counts of directory entries, which change while a generation is used, so that the rest has a checksum.

    Adds to `seen` the number of keys, and that of entries no builder writes: with flags other than SOME, or with a row
    that begins behind `last_row` in the arena.
    """
    for at in range(entries.size >> 1):
        meta = entries[2 * at + 1]
        if meta == EMPTY:
            continue
        meta &= ~(COUNT_MASK << 32)
        entries[2 * at + 1] = meta
        seen[0] += 1
        reference = meta & NIL
        if meta & ~SOME != reference or (reference != NIL and reference << shift > last_row):
            seen[1] += 1


@njit(
    "void(int64[::1], int64[::1], int64[::1], int64, float64, float64, float64, float64, int64, int64, int64, float64,"
    f" {TARGET}, int64, int64)",
    cache=True,
    nogil=True,
)
def copy_keys(
    entries,
    arena,
    cursor,
    stop,
    doubt,
    scale,
    entry_bytes,
    row_bytes,
    lowest,
    chance,
    salt,
    rescale,
    target,
    slot_bytes,
    chain,
):
    """Copy keys of class `lowest` (each with `chance` in 2**32) and above, rows and all, into another cache.

    Takes the entries from `cursor[0]` on, to `stop`; `cursor[1]` is 1 when the other cache has no room for the next
    key. A key that is there already is passed over. Counts go on as `rescale` times what they were. The chance is drawn
    from the code and a `salt`, which must be another each time: those who were lucky once would always be.

    Directories are in the order of hashed codes whatever their size, and so are the rows of a cache that was filled in
    this way: both sides are walked from their beginning to their end.
    """
    others, state, their_arena, extents, pool, blocks, most_keys = target
    others_at, others_size = address_of(others), others.size >> 1
    arena_at, extents_at = address_of(their_arena), address_of(extents)
    pool_at, blocks_at = address_of(pool), address_of(blocks)
    base, shift = their_arena[A_BASE], their_arena[A_SHIFT]
    at = cursor[0]
    while at < stop:
        meta = entries[2 * at + 1]
        at += 1
        if meta == EMPTY or meta & SWITCHING != 0:
            continue
        code = entries[2 * at - 2]
        count = (meta >> 32) & COUNT_MASK
        reference = meta & NIL
        worth = _worth(count, doubt, scale, entry_bytes + row_bytes * _chain_rows(arena, reference))
        if worth < lowest or (worth == lowest and hash32(code ^ salt) >= chance):
            continue
        if find_key(others_at, others_size, code) >= 0:
            continue
        if state[C_KEYS] >= most_keys:
            cursor[1] = 1
            break
        rows = 0
        first = NIL
        while reference != NIL and cursor[1] == 0:
            row = arena[A_BASE] + (reference << arena[A_SHIFT])
            reference = load_u32(row)
            slot = take_slot(arena_at, extents_at, pool_at)
            if slot < 0:
                cursor[1] = 1
                break
            copy_bytes(slot, row, slot_bytes)
            store_i32(slot, first)
            first = (slot - base) >> shift
            rows += 1
            if chain > 0 and not _copy_chain(arena, row + chain, arena_at, extents_at, blocks_at, slot + chain):
                cursor[1] = 1
        if cursor[1] != 0:
            free_rows(first, arena_at, pool_at, blocks_at, chain)
            at -= 1
            break
        count = int(min(count * rescale, float(COUNT_MASK)))
        cache_insert(others_at, others_size, code, (meta & SOME) | (count << 32) | first)
        state[C_KEYS] += 1
        state[C_ROWS] += rows
    cursor[0] = at
