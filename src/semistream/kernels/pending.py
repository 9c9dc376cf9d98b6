"""The pending table H_S with its queue Q: a multi-map from key code to waiting stream tuples.

Both forms share one directory of 8-byte entries, `hash << 32 | reference`, open addressing with linear probing and
backward-shift deletion (the stored hash gives an entry's home, so nothing is dereferenced to move it).

*FIFO form* (scan operators). A tuple leaves when the scan has gone round once since it came, so slots are released
in arrival order and Q is the order of the slots itself. The tuples of one key form a circular list; the directory
points at its tail, whose successor is the oldest: append and expire are both O(1), and expiring a tuple never
touches a younger one with the same key.

    slot: | code i64 | next u32 | payload |

*Linked form* (index operators). All tuples of a key leave together when the key's pages were read. Q is a doubly
linked list, so that the oldest and the newest key are known after deletions anywhere.

    slot: | code i64 | next u32 | older u32 | younger u32 | payload |
"""

# mypy: disallow_untyped_defs=False
from __future__ import annotations

import numpy as np
from numba import njit, uint64

from semistream.kernels.arena import (
    A_BASE,
    A_SHIFT,
    P_FRONT,
    P_FRONT_EXT,
    P_LIVE,
    P_SLOT,
    free_chain,
    give_slot,
    next_slot,
    pop_front,
    push_back,
    take_slot,
)
from semistream.kernels.raw import load_i64, load_u8, load_u32, store_i32, store_i64, store_u8
from semistream.kernels.rows import NIL

FIFO_HEADER = 12
LINKED_HEADER = 20
EMPTY = -1
Q_OLDEST, Q_NEWEST, Q_KEYS = range(3)


@njit("int64(int64)", cache=True, nogil=True)
def hash32(code):
    """Upper half of a 64-bit finaliser (splitmix64): well mixed for dense and for hashed codes alike."""
    x = uint64(code)
    x = (x ^ (x >> uint64(30))) * uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> uint64(27))) * uint64(0x94D049BB133111EB)
    x = x ^ (x >> uint64(31))
    return np.int64(x >> uint64(32))


@njit(nogil=True, inline="always")
def _home(hashed, size):
    return (hashed * size) >> 32


@njit("int64(int64[::1], int64[::1], int64, int64)", cache=True, nogil=True)
def find(directory, arena, hashed, code):
    """Directory position of a code, or -1."""
    size = directory.size
    at = _home(hashed, size)
    while True:
        entry = directory[at]
        if entry == EMPTY:
            return -1
        if (entry >> 32) & 0xFFFFFFFF == hashed:
            if load_i64(arena[A_BASE] + ((entry & 0xFFFFFFFF) << arena[A_SHIFT])) == code:
                return at
        at += 1
        if at == size:
            at = 0


@njit(nogil=True, inline="always")
def _insert(directory, hashed, reference):
    size = directory.size
    at = _home(hashed, size)
    while directory[at] != EMPTY:
        at += 1
        if at == size:
            at = 0
    directory[at] = (hashed << 32) | reference
    return at


@njit(nogil=True, inline="always")
def _delete(directory, counts, at):
    """Remove an entry and close the gap; `counts` (same size, or empty) moves along."""
    size = directory.size
    gap = at
    probe = at
    while True:
        probe += 1
        if probe == size:
            probe = 0
        entry = directory[probe]
        if entry == EMPTY:
            break
        home = _home((entry >> 32) & 0xFFFFFFFF, size)
        if (probe - home) % size >= (probe - gap) % size:
            directory[gap] = entry
            if counts.size > 0:
                counts[gap] = counts[probe]
            gap = probe
    directory[gap] = EMPTY


# ---------------------------------------------------------------------------------------------- FIFO form


@njit(
    "int64(int64[::1], int64[::1], int64, int64, int64[::1], int16[::1], int64[::1], int32[::1], int64[::1], int64[::1],"
    " int64[::1])",
    cache=True,
    nogil=True,
)
def fifo_append(codes, ids, start, count, directory, counts, arena, extents, pool, queue, slots):
    """Append tuples `ids[start:start+count]`; slot addresses go to `slots`. Returns how many found room."""
    for i in range(count):
        slot = push_back(arena, extents, pool)
        if slot < 0:
            return i
        code = codes[ids[start + i]]
        reference = (slot - arena[A_BASE]) >> arena[A_SHIFT]
        store_i64(slot, code)
        hashed = hash32(code)
        at = find(directory, arena, hashed, code)
        if at < 0:
            store_i32(slot + 8, reference)
            at = _insert(directory, hashed, reference)
            queue[Q_KEYS] += 1
            if counts.size > 0:
                counts[at] = -1
        else:
            tail = arena[A_BASE] + ((directory[at] & 0xFFFFFFFF) << arena[A_SHIFT])
            store_i32(slot + 8, load_u32(tail + 8))
            store_i32(tail + 8, reference)
            directory[at] = (hashed << 32) | reference
        slots[i] = slot
    return count


@njit(
    "int64(int64[::1], int64, int64[::1], int64[::1], int64[::1], int64[::1], int64[::1])",
    cache=True,
    nogil=True,
)
def fifo_probe(codes, stop, directory, arena, cursor, out_slots, out_rows):
    """Pair the master rows of a block with all waiting tuples of their keys.

    Stops when the pair buffers are full; `cursor` (row, slot to go on with or 0) says where to resume.
    """
    filled = 0
    room = out_slots.size
    row = cursor[0]
    while row < stop:
        code = codes[row]
        at = find(directory, arena, hash32(code), code)
        if at >= 0:
            tail = arena[A_BASE] + ((directory[at] & 0xFFFFFFFF) << arena[A_SHIFT])
            slot = cursor[1]
            if slot == 0:
                slot = arena[A_BASE] + (load_u32(tail + 8) << arena[A_SHIFT])
            while True:
                if filled == room:
                    cursor[0] = row
                    cursor[1] = slot
                    return filled
                out_slots[filled] = slot
                out_rows[filled] = row
                filled += 1
                if slot == tail:
                    break
                slot = arena[A_BASE] + (load_u32(slot + 8) << arena[A_SHIFT])
        cursor[1] = 0
        row += 1
    cursor[0] = row
    return filled


@njit("void(int64[::1], int64, int64, int64[::1], int16[::1], int64[::1])", cache=True, nogil=True)
def fifo_count_master(codes, start, stop, directory, counts, arena):
    """Incrementing state: count the master tuples of every waiting key that was there when the cycle began."""
    for row in range(start, stop):
        code = codes[row]
        at = find(directory, arena, hash32(code), code)
        if at >= 0 and counts[at] >= 0 and counts[at] < 32767:
            counts[at] += 1


@njit("int64(int64[::1], int64[::1], int64, int64[::1])", cache=True, nogil=True)
def fifo_front(arena, pool, count, out_slots):
    """Addresses of the `count` oldest slots."""
    slot = pool[P_FRONT]
    extent = pool[P_FRONT_EXT]
    count = min(count, pool[P_LIVE])
    for i in range(count):
        out_slots[i] = slot
        if i + 1 < count:
            slot, extent = next_slot(arena, slot, extent, pool[P_SLOT])
    return count


@njit(
    "void(int64, int64[::1], int16[::1], int64[::1], int32[::1], int64[::1], int64[::1], int64[::1], int64)",
    cache=True,
    nogil=True,
)
def fifo_expire(count, directory, counts, arena, extents, pool, queue, blocks, chain):
    """Remove the `count` oldest tuples: each is the head of its key's circular list. `chain` 0: no VAR cells."""
    for _ in range(count):
        slot = pool[P_FRONT]
        code = load_i64(slot)
        at = find(directory, arena, hash32(code), code)
        tail = arena[A_BASE] + ((directory[at] & 0xFFFFFFFF) << arena[A_SHIFT])
        if tail == slot:
            _delete(directory, counts, at)
            queue[Q_KEYS] -= 1
        else:
            store_i32(tail + 8, load_u32(slot + 8))
        if chain > 0:
            free_chain(arena, blocks, slot + chain)
        pop_front(arena, extents, pool)


@njit("void(int64[::1], int64[::1], int64[::1])", cache=True, nogil=True)
def fifo_rebuild(directory, arena, pool):
    """Fill an empty directory of another size from the slots alone, oldest first."""
    directory[:] = EMPTY
    slot = pool[P_FRONT]
    extent = pool[P_FRONT_EXT]
    for i in range(pool[P_LIVE]):
        code = load_i64(slot)
        reference = (slot - arena[A_BASE]) >> arena[A_SHIFT]
        hashed = hash32(code)
        at = find(directory, arena, hashed, code)
        if at < 0:
            store_i32(slot + 8, reference)
            _insert(directory, hashed, reference)
        else:
            tail = arena[A_BASE] + ((directory[at] & 0xFFFFFFFF) << arena[A_SHIFT])
            store_i32(slot + 8, load_u32(tail + 8))
            store_i32(tail + 8, reference)
            directory[at] = (hashed << 32) | reference
        if i + 1 < pool[P_LIVE]:
            slot, extent = next_slot(arena, slot, extent, pool[P_SLOT])


@njit(nogil=True, inline="always")
def _switch_score(directory, counts, arena, at, tuple_bytes, entry_bytes, row_bytes):
    """Bytes the waiting tuples of a key take, and what its master tuples would take in the cache."""
    tail = directory[at] & 0xFFFFFFFF
    reference = tail
    waiting = 0
    while True:
        reference = load_u32(arena[A_BASE] + (reference << arena[A_SHIFT]) + 8)
        waiting += 1
        if reference == tail:
            break
    return waiting * tuple_bytes, entry_bytes + counts[at] * row_bytes


@njit("void(int64[::1], int16[::1], int64[::1], float64, float64, float64, int64[::1])", cache=True, nogil=True)
def fifo_switch_histogram(directory, counts, arena, tuple_bytes, entry_bytes, row_bytes, histogram):
    """Cache bytes wanted by waiting keys, by how far they satisfy the cache inequality (ratio in eighths)."""
    histogram[:] = 0
    for at in range(directory.size):
        if directory[at] == EMPTY or counts[at] < 0 or counts[at] == 32767:
            continue
        gain, cost = _switch_score(directory, counts, arena, at, tuple_bytes, entry_bytes, row_bytes)
        histogram[min(np.int64(8.0 * gain / cost), histogram.size - 1)] += np.int64(cost)


@njit(
    "int64(int64, int64[::1], int16[::1], int64[::1], float64, float64, float64, float64, int64[::1])",
    cache=True,
    nogil=True,
)
def fifo_switchable(at, directory, counts, arena, tuple_bytes, entry_bytes, row_bytes, ratio, out_codes):
    """Collect keys with n * v_S > ratio * (entry + m * v_R), from directory position `at` until the buffer is full.

    Returns the position to go on from; out_codes[0] holds the number of codes that follow it.
    """
    found = 0
    while at < directory.size and found + 1 < out_codes.size:
        if directory[at] != EMPTY and counts[at] >= 0 and counts[at] < 32767:
            gain, cost = _switch_score(directory, counts, arena, at, tuple_bytes, entry_bytes, row_bytes)
            if gain > ratio * cost:
                found += 1
                out_codes[found] = load_i64(
                    arena[A_BASE] + ((directory[at] & 0xFFFFFFFF) << arena[A_SHIFT])
                )
        at += 1
    out_codes[0] = found
    return at


# -------------------------------------------------------------------------------------------- linked form


@njit(
    "int64(int64[::1], int64[::1], int64, int64, int64[::1], int64[::1], int32[::1], int64[::1], int64[::1], int64[::1])",
    cache=True,
    nogil=True,
)
def linked_append(codes, ids, start, count, directory, arena, extents, pool, queue, slots):
    """Append tuples to the multi-map and to the young end of Q. Returns how many found room."""
    base = arena[A_BASE]
    shift = arena[A_SHIFT]
    for i in range(count):
        slot = take_slot(arena, extents, pool)
        if slot < 0:
            return i
        code = codes[ids[start + i]]
        reference = (slot - base) >> shift
        store_i64(slot, code)
        hashed = hash32(code)
        at = find(directory, arena, hashed, code)
        if at < 0:
            store_i32(slot + 8, NIL)
            _insert(directory, hashed, reference)
            queue[Q_KEYS] += 1
        else:
            store_i32(slot + 8, directory[at] & 0xFFFFFFFF)
            directory[at] = (hashed << 32) | reference
        store_i32(slot + 12, queue[Q_NEWEST])
        store_i32(slot + 16, NIL)
        if queue[Q_NEWEST] != NIL:
            store_i32(base + (queue[Q_NEWEST] << shift) + 16, reference)
        else:
            queue[Q_OLDEST] = reference
        queue[Q_NEWEST] = reference
        slots[i] = slot
    return count


@njit(
    "int64(int64[::1], int64, int64, int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64)",
    cache=True,
    nogil=True,
)
def linked_probe(codes, start, stop, directory, arena, cursor, out_slots, out_rows, done, first_only):
    """Pair runs of equal codes among master rows `start..stop` with the waiting tuples of that key.

    `cursor`: run start, run end, slot, row to go on with, finished keys. A finished key's newest slot goes to `done`;
    its tuples stay until `linked_release`, since the output is still to be built from them.
    Stops when a buffer is full.
    """
    filled = 0
    room = out_slots.size
    row = cursor[0]
    end = cursor[1]
    slot = cursor[2]
    inner = cursor[3]
    finished = 0
    while True:
        if slot == 0:
            if row >= stop:
                break
            end = row + 1
            code = codes[row]
            while end < stop and codes[end] == code:
                end += 1
            at = find(directory, arena, hash32(code), code)
            if at < 0:
                row = end
                continue
            if finished == done.size:
                break
            slot = arena[A_BASE] + ((directory[at] & 0xFFFFFFFF) << arena[A_SHIFT])
            inner = row
        while slot != 0:
            last = row + 1 if first_only else end
            while inner < last and filled < room:
                out_slots[filled] = slot
                out_rows[filled] = inner
                filled += 1
                inner += 1
            if inner < last:
                cursor[0] = row
                cursor[1] = end
                cursor[2] = slot
                cursor[3] = inner
                cursor[4] = finished
                return filled
            following = load_u32(slot + 8)
            if following == NIL:
                slot = 0
            else:
                slot = arena[A_BASE] + (following << arena[A_SHIFT])
                inner = row
        code = codes[row]
        at = find(directory, arena, hash32(code), code)
        done[finished] = arena[A_BASE] + ((directory[at] & 0xFFFFFFFF) << arena[A_SHIFT])
        finished += 1
        row = end
    cursor[0] = row
    cursor[1] = end
    cursor[2] = 0
    cursor[3] = 0
    cursor[4] = finished
    return filled


@njit("int64(int64[::1], int64, int64[::1], int64[::1])", cache=True, nogil=True)
def linked_chain(arena, newest, position, out_slots):
    """Slots of one key, newest first, from `position[0]` (0: the start) until `out_slots` is full; -> count."""
    count = 0
    slot = position[0] if position[0] != 0 else newest
    while slot != 0 and count < out_slots.size:
        out_slots[count] = slot
        count += 1
        following = load_u32(slot + 8)
        slot = 0 if following == NIL else arena[A_BASE] + (following << arena[A_SHIFT])
    position[0] = slot
    return count


@njit("int64(int64[::1], int64)", cache=True, nogil=True)
def linked_length(arena, newest):
    """Number of tuples waiting with one key."""
    count = 1
    following = load_u32(newest + 8)
    while following != NIL:
        count += 1
        following = load_u32(arena[A_BASE] + (following << arena[A_SHIFT]) + 8)
    return count


@njit(
    "int64(int64[::1], int64, int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64)",
    cache=True,
    nogil=True,
)
def linked_release(done, count, directory, arena, pool, queue, blocks, chain):
    """Remove all tuples of the finished keys from H_S and Q; returns how many tuples left."""
    base = arena[A_BASE]
    shift = arena[A_SHIFT]
    released = 0
    none = np.empty(0, np.int16)
    for i in range(count):
        slot = done[i]
        code = load_i64(slot)
        at = find(directory, arena, hash32(code), code)
        _delete(directory, none, at)
        queue[Q_KEYS] -= 1
        while True:
            following = load_u32(slot + 8)
            older = load_u32(slot + 12)
            younger = load_u32(slot + 16)
            if older != NIL:
                store_i32(base + (older << shift) + 16, younger)
            else:
                queue[Q_OLDEST] = younger
            if younger != NIL:
                store_i32(base + (younger << shift) + 12, older)
            else:
                queue[Q_NEWEST] = older
            if chain > 0:
                free_chain(arena, blocks, slot + chain)
            give_slot(arena, pool, slot)
            released += 1
            if following == NIL:
                break
            slot = base + (following << shift)
    return released


@njit("void(int64[::1], int64, int64, boolean[::1])", cache=True, nogil=True)
def mark_slots(slots, count, flag, first):
    """Mark tuples as matched (bit 0 of the byte at slot + flag); `first[i]` says it was not so before."""
    for i in range(count):
        at = slots[i] + flag
        first[i] = load_u8(at) & 1 == 0
        store_u8(at, load_u8(at) | 1)


@njit("void(int64[::1], int64, boolean[::1], boolean[::1])", cache=True, nogil=True)
def mark_ids(ids, count, matched, first):
    """Mark tuples of a chunk as matched; `first[i]` says the tuple was not so before."""
    for i in range(count):
        first[i] = not matched[ids[i]]
        matched[ids[i]] = True


@njit("int64(int64[::1], int64, int64)", cache=True, nogil=True)
def keep_unflagged(slots, count, flag):
    """Keep, in place and in order, the slots whose tuples found no match; returns their number."""
    kept = 0
    for i in range(count):
        if load_u8(slots[i] + flag) & 1 == 0:
            slots[kept] = slots[i]
            kept += 1
    return kept


@njit("void(int64[::1], int64, int64, boolean[::1])", cache=True, nogil=True)
def read_flags(slots, count, flag, out):
    """Which tuples were matched."""
    for i in range(count):
        out[i] = load_u8(slots[i] + flag) & 1 == 1


@njit("void(int64[::1], int64[::1], int64[::1])", cache=True, nogil=True)
def linked_queue(arena, queue, out_slots):
    """All waiting tuples, oldest first."""
    reference = queue[Q_OLDEST]
    for i in range(out_slots.size):
        slot = arena[A_BASE] + (reference << arena[A_SHIFT])
        out_slots[i] = slot
        reference = load_u32(slot + 16)


@njit("int64(int64[::1], int64, int64[::1], int64[::1], int64, int64[::1], int64)", cache=True, nogil=True)
def fifo_frequent(codes, stop, directory, arena, threshold, out, filled):
    """Codes of master rows with at least `threshold` waiting tuples, behind `out[:filled]`; -> new filled."""
    for row in range(stop):
        if filled == out.size:
            return filled
        code = codes[row]
        at = find(directory, arena, hash32(code), code)
        if at < 0:
            continue
        tail = directory[at] & 0xFFFFFFFF
        reference = tail
        length = 0
        while length < threshold:
            reference = load_u32(arena[A_BASE] + (reference << arena[A_SHIFT]) + 8)
            length += 1
            if reference == tail:
                break
        if length >= threshold:
            out[filled] = code
            filled += 1
    return filled
