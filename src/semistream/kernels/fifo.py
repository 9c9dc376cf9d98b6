"""The pending table of the scan operators: a multi-map that forgets in arrival order.

A tuple leaves when the scan has gone round once since it came, so slots are released first in, first out, and Q is the
order of the slots itself. Tuples with the same hash bucket form a circular list, oldest first; the bucket points at its
tail, whose successor is the head. The tuple that leaves next is the head of its list, whatever its key: append and
expire are O(1), compare nothing, and never touch a younger tuple with the same key. A bucket is four bytes.

    slot: | code i64 | next u32 | payload |

With `counter` > 0 the byte at slot + counter counts the master tuples that matched (SSBJ's s_count): a tuple meets all
of R before it leaves, so the count is then complete; 255 stands for that many or more, and the rest is counted while
the rows of such a key are collected.
"""

# mypy: disallow_untyped_defs=False
from __future__ import annotations

import numpy as np

from semistream.kernels.arena import (
    A_BASE,
    A_SHIFT,
    P_FRONT,
    P_FRONT_EXT,
    P_LIVE,
    P_SLOT,
    P_WARM,
    POOL,
    add_word,
    free_chain,
    next_slot,
    pop_front,
    push_back,
    word,
)
from semistream.kernels.cache import (
    C_KEYS,
    C_SWITCHING_KEYS,
    COUNT_MASK,
    PARTIAL,
    SWITCHING,
    YOUNG,
    cache_insert,
    find_key,
)
from semistream.kernels.chance import beyond_chance
from semistream.kernels.compiled import njit
from semistream.kernels.raw import address_of, load_i64, load_u8, load_u32, store_i32, store_i64, store_u8
from semistream.kernels.rows import NIL
from semistream.kernels.tuples import hash32

FIFO_HEADER = 12
TILE = 64
MOST_COUNTED = 255


@njit(nogil=True, inline="always")
def _link(buckets, size, base, shift, slot, code):
    """Put a slot at the tail of its bucket's list (`buckets`: their address, `size`: their number)."""
    at = buckets + 4 * ((hash32(code) * size) >> 32)
    reference = (slot - base) >> shift
    tail = load_u32(at)
    if tail == NIL:
        store_i32(slot + 8, reference)
    else:
        address = base + (tail << shift)
        store_i32(slot + 8, load_u32(address + 8))
        store_i32(address + 8, reference)
    store_i32(at, reference)


@njit(nogil=True, inline="always")
def _touch_tail(buckets, size, base, shift, code):
    """Fetch the tail of a code's list, for the cache misses of many to overlap; the value means nothing."""
    tail = load_u32(buckets + 4 * ((hash32(code) * size) >> 32))
    value = np.int64(0)
    if tail != NIL:
        value = load_u32(base + (tail << shift) + 8)
    return value


@njit(f"int64(int64[::1], int64[::1], int64, int64, uint32[::1], {POOL}, int64[::1])", cache=True, nogil=True)
def fifo_append(codes, ids, start, count, buckets, waiting, slots):
    """Append tuples `ids[start:start+count]`; slot addresses go to `slots`. Returns how many found room."""
    arena, extents, pool = waiting
    arena_at, extents_at, pool_at = address_of(arena), address_of(extents), address_of(pool)
    buckets_at, size, base, shift = address_of(buckets), buckets.size, arena[A_BASE], arena[A_SHIFT]
    for i in range(count):
        if i % TILE == 0:
            for t in range(i, min(i + TILE, count)):
                add_word(pool_at, P_WARM, _touch_tail(buckets_at, size, base, shift, codes[ids[start + t]]))
        slot = push_back(arena_at, extents_at, pool_at)
        if slot < 0:
            return i
        code = codes[ids[start + i]]
        store_i64(slot, code)
        _link(buckets_at, size, base, shift, slot, code)
        slots[i] = slot
    return count


@njit(
    "int64(int64[::1], int64, uint32[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64)",
    cache=True,
    nogil=True,
)
def fifo_probe(codes, stop, buckets, arena, cursor, out_slots, out_rows, counter):
    """Pair the master rows of a block with all waiting tuples of their keys.

    Stops when the pair buffers are full; `cursor` (row, slot to go on with or 0) says where to resume. Tails and heads
    of the lists are fetched for a tile of rows at a time, so that the cache misses overlap.
    """
    filled = 0
    room = out_slots.size
    base = arena[A_BASE]
    shift = arena[A_SHIFT]
    tails = np.empty(TILE, np.int64)
    heads = np.empty(TILE, np.int64)
    codes_there = np.empty(TILE, np.int64)
    row = cursor[0]
    while row < stop:
        size = min(TILE, stop - row)
        for t in range(size):
            tails[t] = buckets[(hash32(codes[row + t]) * buckets.size) >> 32]
        for t in range(size):
            heads[t] = 0
            if tails[t] != NIL:
                tails[t] = base + (tails[t] << shift)
                heads[t] = base + (load_u32(tails[t] + 8) << shift)
            else:
                tails[t] = 0
        for t in range(size):
            if tails[t] != 0:
                codes_there[t] = load_i64(heads[t])
        for t in range(size):
            tail = tails[t]
            if tail == 0:
                cursor[1] = 0
                continue
            code = codes[row + t]
            slot = cursor[1]
            there = codes_there[t]
            if slot == 0:
                slot = heads[t]
            else:
                there = load_i64(slot)
            while True:
                if there == code:
                    if filled == room:
                        cursor[0] = row + t
                        cursor[1] = slot
                        return filled
                    out_slots[filled] = slot
                    out_rows[filled] = row + t
                    filled += 1
                    if counter > 0:
                        seen = load_u8(slot + counter)
                        if seen < MOST_COUNTED:
                            store_u8(slot + counter, seen + 1)
                if slot == tail:
                    break
                slot = base + (load_u32(slot + 8) << shift)
                there = load_i64(slot)
            cursor[1] = 0
        row += size
    cursor[0] = row
    return filled


@njit(nogil=True, inline="always")
def _waiting(buckets, size, base, shift, code, enough):
    """Number of waiting tuples of a key, counted up to `enough`."""
    tail = load_u32(buckets + 4 * ((hash32(code) * size) >> 32))
    count = 0
    if tail != NIL:
        reference = tail
        while count < enough:
            slot = base + (reference << shift)
            if load_i64(slot) == code:
                count += 1
            reference = load_u32(slot + 8)
            if reference == tail:
                break
    return count


@njit(
    "int64(int64[::1], int64, uint32[::1], int64[::1], int64, int64[::1], int64[::1], int64)",
    cache=True,
    nogil=True,
)
def fifo_frequent(codes, stop, buckets, arena, threshold, out_codes, out_counts, filled):
    """Codes of master rows with at least `threshold` waiting tuples, behind `out_codes[:filled]`; -> new filled."""
    buckets_at, size, base, shift = address_of(buckets), buckets.size, arena[A_BASE], arena[A_SHIFT]
    for row in range(stop):
        if filled == out_codes.size:
            return filled
        waiting = _waiting(buckets_at, size, base, shift, codes[row], 1 << 20)
        if waiting >= threshold:
            out_codes[filled] = codes[row]
            out_counts[filled] = waiting
            filled += 1
    return filled


@njit("int64(int64[::1], int64[::1], int64, int64[::1])", cache=True, nogil=True)
def fifo_front(arena, pool, count, out_slots):
    """Addresses of the `count` oldest slots."""
    arena_at = address_of(arena)
    slot = pool[P_FRONT]
    extent = pool[P_FRONT_EXT]
    count = min(count, pool[P_LIVE])
    for i in range(count):
        out_slots[i] = slot
        if i + 1 < count:
            slot, extent = next_slot(arena_at, slot, extent, pool[P_SLOT])
    return count


@njit(f"void(int64, uint32[::1], {POOL}, int64[::1], int64)", cache=True, nogil=True)
def fifo_expire(count, buckets, waiting, blocks, chain):
    """Remove the `count` oldest tuples, each the head of its bucket's list. `chain` 0: no VAR cells."""
    arena, extents, pool = waiting
    arena_at, extents_at, pool_at, blocks_at = (
        address_of(arena),
        address_of(extents),
        address_of(pool),
        address_of(blocks),
    )
    buckets_at, size, base, shift = address_of(buckets), buckets.size, arena[A_BASE], arena[A_SHIFT]
    slot_bytes = pool[P_SLOT]
    for i in range(count):
        slot = word(pool_at, P_FRONT)
        if i % TILE == 0:
            ahead = slot
            extent = word(pool_at, P_FRONT_EXT)
            for t in range(i, min(i + TILE, count)):
                add_word(pool_at, P_WARM, _touch_tail(buckets_at, size, base, shift, load_i64(ahead)))
                if t + 1 < count:
                    ahead, extent = next_slot(arena_at, ahead, extent, slot_bytes)
        at = buckets_at + 4 * ((hash32(load_i64(slot)) * size) >> 32)
        tail = base + (load_u32(at) << shift)
        if tail == slot:
            store_i32(at, NIL)
        else:
            store_i32(tail + 8, load_u32(slot + 8))
        if chain > 0:
            free_chain(arena_at, blocks_at, slot + chain)
        pop_front(arena_at, extents_at, pool_at)


@njit("void(uint32[::1], int64[::1], int64[::1])", cache=True, nogil=True)
def fifo_rebuild(buckets, arena, pool):
    """Fill fresh buckets from the slots alone, oldest first."""
    buckets[:] = NIL
    arena_at, buckets_at = address_of(arena), address_of(buckets)
    slot = pool[P_FRONT]
    extent = pool[P_FRONT_EXT]
    for i in range(pool[P_LIVE]):
        _link(buckets_at, buckets.size, arena[A_BASE], arena[A_SHIFT], slot, load_i64(slot))
        if i + 1 < pool[P_LIVE]:
            slot, extent = next_slot(arena_at, slot, extent, pool[P_SLOT])


@njit(
    "int64(int64, uint32[::1], int64[::1], int64[::1], int64, int64[::1], int64[::1], float64, float64,"
    " float64, float64, float64, int64, int64)",
    cache=True,
    nogil=True,
)
def fifo_name_keys(
    count,
    buckets,
    arena,
    pool,
    counter,
    entries,
    state,
    tuple_bytes,
    entry_bytes,
    row_bytes,
    factor,
    spreads,
    max_keys,
    most_bytes,
):
    """Cache inequality for the `count` tuples about to leave: (n - c * sqrt(n)) * v_S > factor * (entry + m * v_R).

    m is the tuple's own count of matches, complete now; n the waiting tuples of its key, an R-cycle's worth, less what
    may be chance (c is `spreads`). A key that satisfies it gets a SWITCHING entry to collect its rows: m of them, or as
    many as n pays for where m is too large for its counter. One that R lacks is cached as absent at once. Stops naming
    when the rows wanted pass `most_bytes`. Returns the bytes wanted.
    """
    arena_at, entries_at, keys_room = address_of(arena), address_of(entries), entries.size >> 1
    buckets_at, size, base, shift = address_of(buckets), buckets.size, arena[A_BASE], arena[A_SHIFT]
    wanted = np.int64(0)
    slot = pool[P_FRONT]
    extent = pool[P_FRONT_EXT]
    for i in range(min(count, pool[P_LIVE])):
        code = load_i64(slot)
        matches = load_u8(slot + counter)
        if state[C_KEYS] < max_keys and find_key(entries_at, keys_room, code) < 0:
            border = beyond_chance(factor * (entry_bytes + matches * row_bytes) / tuple_bytes, spreads)
            waiting = _waiting(buckets_at, size, base, shift, code, np.int64(border) + 2)
            if waiting > border:
                if matches == 0:
                    cache_insert(entries_at, keys_room, code, YOUNG | NIL)
                    state[C_KEYS] += 1
                else:
                    rows = np.int64(matches)
                    if matches == MOST_COUNTED:
                        n = np.float64(_waiting(buckets_at, size, base, shift, code, pool[P_LIVE]))
                        paid = ((n - spreads * np.sqrt(n)) * tuple_bytes / factor - entry_bytes) / row_bytes
                        rows = np.int64(min(paid, (most_bytes - wanted) / row_bytes, np.float64(COUNT_MASK)))
                    if rows >= matches and wanted + rows * row_bytes <= most_bytes:
                        cache_insert(entries_at, keys_room, code, SWITCHING | PARTIAL | (rows << 32) | NIL)
                        state[C_KEYS] += 1
                        state[C_SWITCHING_KEYS] += 1
                        wanted += np.int64(rows * row_bytes)
        if i + 1 < min(count, pool[P_LIVE]):
            slot, extent = next_slot(arena_at, slot, extent, pool[P_SLOT])
    return wanted
