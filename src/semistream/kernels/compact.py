"""Giving back extents of a cache that has become sparse.

Eviction frees slots here and there, so no extent empties by itself. The fullest extents that can hold all live rows are
kept; rows elsewhere move into their gaps, and the other extents return to the arena.
"""

# mypy: disallow_untyped_defs=False
from __future__ import annotations

from semistream.kernels.arena import (
    A_BASE,
    A_EXTENT,
    A_FREE,
    A_SHIFT,
    P_BUMP,
    P_END,
    P_EXTENTS,
    P_FREE,
    P_FREE_COUNT,
    P_SLOT,
)
from semistream.kernels.cache import EMPTY
from semistream.kernels.compiled import njit
from semistream.kernels.raw import copy_bytes, load_u32, store_i32
from semistream.kernels.rows import NIL


@njit("void(int64[::1], int64[::1], int64[::1], int32[::1])", cache=True, nogil=True)
def live_rows(entries, arena, pool, live):
    """Count live rows per extent into `live`; extents the pool owns without any get 0, others -1."""
    live[:] = -1
    reference = pool[P_FREE]
    while reference != NIL:
        address = reference << arena[A_SHIFT]
        live[address // arena[A_EXTENT]] = 0
        reference = load_u32(arena[A_BASE] + address)
    if pool[P_END] > 0:
        live[(pool[P_END] - 1 - arena[A_BASE]) // arena[A_EXTENT]] = 0
    for at in range(entries.size >> 1):
        if entries[2 * at + 1] == EMPTY:
            continue
        reference = entries[2 * at + 1] & NIL
        while reference != NIL:
            address = reference << arena[A_SHIFT]
            extent = address // arena[A_EXTENT]
            live[extent] = max(live[extent], 0) + 1
            reference = load_u32(arena[A_BASE] + address)


@njit(nogil=True, inline="always")
def _place(reference, arena, slot_bytes, kept):
    """(kept extent's number or -1, slot within it) of a reference."""
    address = reference << arena[A_SHIFT]
    extent = address // arena[A_EXTENT]
    return kept[extent], (address - extent * arena[A_EXTENT]) // slot_bytes


@njit(
    "int64(int64[::1], int64[::1], int32[::1], int64[::1], int32[::1], int32[::1], boolean[:,::1])",
    cache=True,
    nogil=True,
)
def vacate(entries, arena, extents, pool, kept, kept_extents, used):
    """Move rows off the extents that are not kept and return those; `kept[e]` is e's place
    in `kept_extents`, -2 for an extent to return, -1 for one of other owners.

    `used` is a scratch table (kept extents x slots). SWITCHING and active keys move alike. Returns extents returned.
    """
    base = arena[A_BASE]
    shift = arena[A_SHIFT]
    size = pool[P_SLOT]
    for at in range(entries.size >> 1):
        if entries[2 * at + 1] == EMPTY:
            continue
        reference = entries[2 * at + 1] & NIL
        while reference != NIL:
            place, slot = _place(reference, arena, size, kept)
            if place >= 0:
                used[place, slot] = True
            reference = load_u32(base + (reference << shift))
    gap_extent = 0
    gap_slot = 0
    for at in range(entries.size >> 1):
        if entries[2 * at + 1] == EMPTY:
            continue
        before = 0
        reference = entries[2 * at + 1] & NIL
        while reference != NIL:
            place, slot = _place(reference, arena, size, kept)
            if place < 0:
                while used[gap_extent, gap_slot]:
                    gap_slot += 1
                    if gap_slot == used.shape[1]:
                        gap_slot = 0
                        gap_extent += 1
                used[gap_extent, gap_slot] = True
                target = base + kept_extents[gap_extent] * arena[A_EXTENT] + gap_slot * size
                copy_bytes(target, base + (reference << shift), size)
                reference = (target - base) >> shift
                if before == 0:
                    entries[2 * at + 1] = (entries[2 * at + 1] & ~NIL) | reference
                else:
                    store_i32(before, reference)
            before = base + (reference << shift)
            reference = load_u32(before)
    pool[P_FREE] = NIL
    pool[P_FREE_COUNT] = 0
    pool[P_BUMP] = 0
    pool[P_END] = 0
    for place in range(used.shape[0]):
        for slot in range(used.shape[1]):
            if not used[place, slot]:
                address = base + kept_extents[place] * arena[A_EXTENT] + slot * size
                store_i32(address, pool[P_FREE])
                pool[P_FREE] = (address - base) >> shift
                pool[P_FREE_COUNT] += 1
    returned = 0
    for extent in range(kept.size):
        if kept[extent] == -2:
            extents[arena[A_FREE]] = extent
            arena[A_FREE] += 1
            pool[P_EXTENTS] -= 1
            returned += 1
    return returned
