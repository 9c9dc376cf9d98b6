"""Lists of waiting stream tuples, and answers for them in the order in which they came.

Where an operator knows a tuple's pages when it comes, no hash table is needed to find it again: tuples wait
in a list for each page, or group of pages, that will be read for them.

    slot: | code i64 | next u32 | payload |                                    one list, in arrival order
    slot: | code i64 | next u32 | first page u32 | last page u32 | payload |   a list for each group of pages
"""

# mypy: disallow_untyped_defs=False
from __future__ import annotations

import numpy as np

from semistream.kernels.arena import A_BASE, A_SHIFT, POOL, free_chain, give_slot, take_slot
from semistream.kernels.cache import count_request, find_key
from semistream.kernels.compiled import njit
from semistream.kernels.raw import address_of, load_i64, load_u8, load_u32, store_i32, store_i64, store_u8
from semistream.kernels.rows import NIL

QUEUE_HEADER = 12
PAGED_HEADER = 20
NULL_KEY = 2
#: how kernels are given the lists: references of their first and last slots, numbers of tuples, last pages needed
LISTS = "Tuple((uint32[::1], uint32[::1], int32[::1], int32[::1]))"
#: what `answer_pairs` lists for a tuple as it is without a match, and when it does
NO_ROW = -1
ONLY_IF_ALONE, ALWAYS_LAST = 1, 2


@njit(nogil=True, inline="always")
def _link(slot, at, heads, tails, counts, arena):
    """Put a slot at the end of a list."""
    reference = (slot - arena[A_BASE]) >> arena[A_SHIFT]
    store_i32(slot + 8, NIL)
    if counts[at] == 0:
        heads[at] = reference
    else:
        store_i32(arena[A_BASE] + (np.int64(tails[at]) << arena[A_SHIFT]) + 8, reference)
    tails[at] = reference
    counts[at] += 1


@njit(
    f"int64(int64[::1], int64[::1], int64, int64, int64[::1], int64[::1], int64[::1], int64, {LISTS}, {POOL},"
    " int64[::1])",
    cache=True,
    nogil=True,
)
def lists_append(codes, ids, start, count, lists, first, last, paged, ends, waiting, slots):
    """Append tuples `ids[start:start+count]` to the lists `lists[id]` (of length 0: to list 0).

    `first` and `last` are the tuples' pages, kept where `paged`. Returns how many found room.
    """
    heads, tails, counts, reach = ends
    arena, extents, pool = waiting
    arena_at, extents_at, pool_at = address_of(arena), address_of(extents), address_of(pool)
    for i in range(count):
        slot = take_slot(arena_at, extents_at, pool_at)
        if slot < 0:
            return i
        tuple_ = ids[start + i]
        at = lists[tuple_] if lists.size > 0 else np.int64(0)
        store_i64(slot, codes[tuple_])
        if paged:
            store_i32(slot + 12, first[tuple_])
            store_i32(slot + 16, last[tuple_])
            reach[at] = max(np.int64(reach[at]), last[tuple_])
        _link(slot, at, heads, tails, counts, arena)
        slots[i] = slot
    return count


@njit(f"void(int64[::1], int64[::1], int64[::1], int64[::1], {LISTS}, int64[::1])", cache=True, nogil=True)
def lists_move(slots, lists, first, last, ends, arena):
    """Put tuples that have left their list in others, now that their pages are known."""
    heads, tails, counts, reach = ends
    for i in range(slots.size):
        store_i32(slots[i] + 12, first[i])
        store_i32(slots[i] + 16, last[i])
        reach[lists[i]] = max(np.int64(reach[lists[i]]), last[i])
        _link(slots[i], lists[i], heads, tails, counts, arena)


@njit(
    "int64(int64[::1], int64, uint32[::1], int32[::1], int64[::1], int64[::1], int64, int64[::1], int64[::1],"
    " int64[::1], int64[::1])",
    cache=True,
    nogil=True,
)
def lists_collect(lists, stop, heads, counts, arena, cursor, paged, out_slots, out_codes, out_first, out_last):
    """Tuples of the lists `lists[cursor[0]:stop]`, oldest of each first, until the buffers are full.

    `cursor`: position in `lists`, slot to go on with or 0. Collected slots may be freed before the next call.
    """
    filled = 0
    at = cursor[0]
    slot = cursor[1]
    while at < stop:
        if slot == 0 and counts[lists[at]] > 0:
            slot = arena[A_BASE] + (np.int64(heads[lists[at]]) << arena[A_SHIFT])
        while slot != 0:
            if filled == out_slots.size:
                cursor[0] = at
                cursor[1] = slot
                return filled
            out_slots[filled] = slot
            out_codes[filled] = load_i64(slot)
            if paged:
                out_first[filled] = load_u32(slot + 12)
                out_last[filled] = load_u32(slot + 16)
            filled += 1
            following = load_u32(slot + 8)
            slot = 0 if following == NIL else arena[A_BASE] + (following << arena[A_SHIFT])
        at += 1
    cursor[0] = at
    cursor[1] = 0
    return filled


@njit("void(int64[::1], int64, int64[::1], int64[::1], int64[::1], int64)", cache=True, nogil=True)
def free_slots(slots, count, arena, pool, blocks, chain):
    """Give back the slots of tuples that leave, with their VAR chains (`chain` 0: none)."""
    arena_at, pool_at, blocks_at = address_of(arena), address_of(pool), address_of(blocks)
    for i in range(count):
        if chain > 0:
            free_chain(arena_at, blocks_at, slots[i] + chain)
        give_slot(arena_at, pool_at, slots[i])


@njit("void(int64[::1], int64, boolean[::1], int64)", cache=True, nogil=True)
def mark_null_keys(slots, count, null, flag):
    """Tuples with a null in their key match nothing, but keep their place in the queue."""
    for i in range(count):
        if null[i]:
            store_u8(slots[i] + flag, load_u8(slots[i] + flag) | NULL_KEY)


@njit("void(int64[::1], int64, int64, boolean[::1])", cache=True, nogil=True)
def read_null_keys(slots, count, flag, out):
    """Which tuples have a null in their key."""
    for i in range(count):
        out[i] = load_u8(slots[i] + flag) & NULL_KEY != 0


# ------------------------------------------------------------------------------- answers in arrival order


@njit("int64(int64[::1], boolean[::1], int64, int64[::1])", cache=True, nogil=True)
def answered_prefix(codes, null, stop, entries):
    """How many of the first tuples the cache answers; `null` (of length 0: none) have no key."""
    entries_at, size = address_of(entries), entries.size >> 1
    for i in range(stop):
        if (null.size == 0 or not null[i]) and find_key(entries_at, size, codes[i]) < 0:
            return i
    return stop


@njit(
    "int64(int64, int64[::1], int64[::1], int64, int64, int64[::1], int64[::1])",
    cache=True,
    nogil=True,
)
def uncached_codes(slot, arena, entries, flag, most, out_codes, result):
    """Walk a list from `slot` on and collect the codes that the cache lacks, `most` of them at the most.

    `flag` 0: no tuple has a null key. `result[0]`: tuples walked over. Returns the number of codes.
    """
    entries_at, size = address_of(entries), entries.size >> 1
    found = 0
    walked = 0
    while slot != 0:
        if flag == 0 or load_u8(slot + flag) & NULL_KEY == 0:
            code = load_i64(slot)
            if find_key(entries_at, size, code) < 0:
                if found == most:
                    break
                out_codes[found] = code
                found += 1
        walked += 1
        following = load_u32(slot + 8)
        slot = 0 if following == NIL else arena[A_BASE] + (following << arena[A_SHIFT])
    result[0] = walked
    return found


@njit(
    "int64(int64[::1], int64[::1], boolean[::1], int64, int64[::1], int64[::1], int64, int64, int64[::1],"
    " int64[::1], int64[::1])",
    cache=True,
    nogil=True,
)
def answer_pairs(refs, codes, null, stop, entries, arena, most_rows, last, cursor, out_refs, out_rows):
    """Tuples with their cached rows, strictly in order, up to the first tuple that the cache cannot answer.

    A tuple is listed with `most_rows` rows at the most. `last` says when it is also listed with NO_ROW: never
    (0), if it has no row, or always, behind its rows. `cursor`: tuple, row to go on with (0: the first, -1:
    only NO_ROW is left), 1 where it stopped for want of an answer. Stops also when the pair buffers are full.
    """
    entries_at, size = address_of(entries), entries.size >> 1
    filled = 0
    room = out_refs.size
    i = cursor[0]
    row = cursor[1]
    cursor[2] = 0
    while i < stop:
        has_rows = row > 0
        if row == 0:
            reference = np.int64(NIL)
            if null.size == 0 or not null[i]:
                at = find_key(entries_at, size, codes[i])
                if at < 0:
                    cursor[2] = 1
                    break
                reference = entries[2 * at + 1] & NIL
                count_request(entries, at)
            if reference != NIL:
                has_rows = True
                row = arena[A_BASE] + (reference << arena[A_SHIFT])
        listed = 0
        while row > 0 and listed < most_rows:
            if filled == room:
                cursor[0] = i
                cursor[1] = row
                return filled
            out_refs[filled] = refs[i]
            out_rows[filled] = row
            filled += 1
            listed += 1
            reference = load_u32(row)
            row = 0 if reference == NIL else arena[A_BASE] + (reference << arena[A_SHIFT])
        if last == ALWAYS_LAST or (last == ONLY_IF_ALONE and not has_rows):
            if filled == room:
                cursor[0] = i
                cursor[1] = -1
                return filled
            out_refs[filled] = refs[i]
            out_rows[filled] = NO_ROW
            filled += 1
        row = 0
        i += 1
    cursor[0] = i
    cursor[1] = 0
    return filled
