"""The pending table of the index operators: a multi-map whose keys leave as a whole.

All tuples of a key leave when the key's pages were read. Q is a doubly linked list through the slots, so that the
oldest and the newest key are known after deletions anywhere.

    slot: | code i64 | next of key u32 | older u32 | younger u32 | arrival u32 | payload |

The directory has 8-byte entries, `hash << 32 | reference`, open addressing with linear probing and backward-shift
deletion: the stored hash gives an entry's home, so nothing is dereferenced to move it. `arrival` is the number of
the iteration in which the tuple came: a key whose pages were read after that and that still waits is not in R.
"""

# mypy: disallow_untyped_defs=False
from __future__ import annotations

import numpy as np

from semistream.kernels.arena import A_BASE, A_SHIFT, POOL, free_chain, give_slot, take_slot
from semistream.kernels.compiled import njit
from semistream.kernels.pages import locate_in_fences
from semistream.kernels.raw import address_of, load_i64, load_u32, store_i32, store_i64
from semistream.kernels.rows import NIL
from semistream.kernels.tuples import hash32

LINKED_HEADER = 24
EMPTY = -1
Q_OLDEST, Q_NEWEST, Q_KEYS = range(3)


@njit(nogil=True, inline="always")
def _find(directory, size, base, shift, hashed, code):
    """Directory position of a code, or -1 (`directory`: its address, `size`: its entries)."""
    at = (hashed * size) >> 32
    found = np.int64(-1)
    entry = load_i64(directory + 8 * at)
    while entry != EMPTY:
        same = (entry >> 32) & 0xFFFFFFFF == hashed
        if same and load_i64(base + ((entry & 0xFFFFFFFF) << shift)) == code:
            found = at
            break
        at += 1
        if at == size:
            at = 0
        entry = load_i64(directory + 8 * at)
    return found


@njit("int64(int64[::1], int64[::1], int64, int64)", cache=True, nogil=True)
def find(directory, arena, hashed, code):
    """Directory position of a code, or -1, for Python code."""
    return _find(address_of(directory), directory.size, arena[A_BASE], arena[A_SHIFT], hashed, code)


@njit(nogil=True, inline="always")
def _insert(directory, size, hashed, reference):
    at = (hashed * size) >> 32
    while load_i64(directory + 8 * at) != EMPTY:
        at += 1
        if at == size:
            at = 0
    store_i64(directory + 8 * at, (hashed << 32) | reference)


@njit(nogil=True, inline="always")
def _delete(directory, size, at):
    """Remove an entry and close the gap behind it."""
    gap = at
    probe = at
    while True:
        probe += 1
        if probe == size:
            probe = 0
        entry = load_i64(directory + 8 * probe)
        if entry == EMPTY:
            break
        home = (((entry >> 32) & 0xFFFFFFFF) * size) >> 32
        if (probe - home) % size >= (probe - gap) % size:
            store_i64(directory + 8 * gap, entry)
            gap = probe
    store_i64(directory + 8 * gap, EMPTY)


@njit(
    f"int64(int64[::1], int64[::1], int64, int64, int64, int64[::1], int64[::1], {POOL}, int64[::1])",
    cache=True,
    nogil=True,
)
def linked_append(codes, ids, start, count, arrival, directory, queue, waiting, slots):
    """Append tuples to the multi-map and to the young end of Q. Returns how many found room."""
    arena, extents, pool = waiting
    arena_at, extents_at, pool_at = address_of(arena), address_of(extents), address_of(pool)
    directory_at, size, base, shift = address_of(directory), directory.size, arena[A_BASE], arena[A_SHIFT]
    for i in range(count):
        slot = take_slot(arena_at, extents_at, pool_at)
        if slot < 0:
            return i
        code = codes[ids[start + i]]
        reference = (slot - base) >> shift
        store_i64(slot, code)
        hashed = hash32(code)
        at = _find(directory_at, size, base, shift, hashed, code)
        if at < 0:
            store_i32(slot + 8, NIL)
            _insert(directory_at, size, hashed, reference)
            queue[Q_KEYS] += 1
        else:
            store_i32(slot + 8, directory[at] & 0xFFFFFFFF)
            directory[at] = (hashed << 32) | reference
        store_i32(slot + 12, queue[Q_NEWEST])
        store_i32(slot + 16, NIL)
        store_i32(slot + 20, arrival)
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
    directory_at, size, base, shift = address_of(directory), directory.size, arena[A_BASE], arena[A_SHIFT]
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
            at = _find(directory_at, size, base, shift, hash32(code), code)
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
        at = _find(directory_at, size, base, shift, hash32(code), code)
        done[finished] = arena[A_BASE] + ((directory[at] & 0xFFFFFFFF) << arena[A_SHIFT])
        finished += 1
        row = end
    cursor[0] = row
    cursor[1] = end
    cursor[2] = 0
    cursor[3] = 0
    cursor[4] = finished
    return filled


@njit("int64(int64[::1], int64[::1], int64, int64[::1], int64[::1])", cache=True, nogil=True)
def linked_chains(arena, newest, keys, cursor, out_slots):
    """Slots of keys given by their newest ones, key by key, until `out_slots` is full; returns how many.

    cursor: the key to go on with (`keys` when all are done), and the slot to go on with there (0: its newest).
    """
    base, shift = arena[A_BASE], arena[A_SHIFT]
    count = 0
    key, slot = cursor[0], cursor[1]
    while key < keys and count < out_slots.size:
        if slot == 0:
            slot = newest[key]
        out_slots[count] = slot
        count += 1
        following = load_u32(slot + 8)
        if following == NIL:
            key += 1
            slot = 0
        else:
            slot = base + (following << shift)
    cursor[0] = key
    cursor[1] = slot
    return count


@njit(nogil=True, inline="always")
def _length(base, shift, newest):
    """Number of tuples waiting with one key."""
    count = 1
    following = load_u32(newest + 8)
    while following != NIL:
        count += 1
        following = load_u32(base + (following << shift) + 8)
    return count


@njit(
    "int64(int64[::1], int64, int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64)",
    cache=True,
    nogil=True,
)
def linked_release(done, count, directory, arena, pool, queue, blocks, chain):
    """Remove all tuples of the finished keys from H_S and Q; returns how many tuples left."""
    arena_at, pool_at, blocks_at = address_of(arena), address_of(pool), address_of(blocks)
    directory_at, size, base, shift = address_of(directory), directory.size, arena[A_BASE], arena[A_SHIFT]
    released = 0
    for i in range(count):
        slot = done[i]
        code = load_i64(slot)
        at = _find(directory_at, size, base, shift, hash32(code), code)
        _delete(directory_at, size, at)
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
                free_chain(arena_at, blocks_at, slot + chain)
            give_slot(arena_at, pool_at, slot)
            released += 1
            if following == NIL:
                break
            slot = base + (following << shift)
    return released


@njit("void(int64[::1], int64[::1], int64[::1])", cache=True, nogil=True)
def linked_queue(arena, queue, out_slots):
    """All waiting tuples, oldest first."""
    reference = queue[Q_OLDEST]
    for i in range(out_slots.size):
        slot = arena[A_BASE] + (reference << arena[A_SHIFT])
        out_slots[i] = slot
        reference = load_u32(slot + 16)


@njit(
    "int64(int64[::1], int64[::1], int64[::1], int64[::1], boolean[::1], int64, int64[::1], int64[::1])",
    cache=True,
    nogil=True,
)
def linked_absent(directory, arena, queue, fences, continues, group, loaded, done):
    """Oldest keys that R cannot have: their page group was read whole after they came, and they still wait.

    `loaded[g]` is the iteration in which page group g was read. Newest slots of such keys go to `done`, as long as
    the oldest tuple is of that kind; returns how many (a key may come twice).
    """
    directory_at, size, base, shift = address_of(directory), directory.size, arena[A_BASE], arena[A_SHIFT]
    code = np.empty(1, np.int64)
    first = np.empty(1, np.int64)
    last = np.empty(1, np.int64)
    reference = queue[Q_OLDEST]
    count = 0
    while reference != NIL and count < done.size:
        slot = arena[A_BASE] + (reference << arena[A_SHIFT])
        code[0] = load_i64(slot)
        locate_in_fences(fences, continues, code, first, last)
        part = first[0] // group
        if part != last[0] // group or loaded[part] <= load_u32(slot + 20):
            break
        at = _find(directory_at, size, base, shift, hash32(code[0]), code[0])
        done[count] = arena[A_BASE] + ((directory[at] & 0xFFFFFFFF) << arena[A_SHIFT])
        count += 1
        reference = load_u32(slot + 16)
    return count


@njit("void(int64[::1], int64[::1], int64, int64[::1], int64[::1])", cache=True, nogil=True)
def linked_lengths(arena, done, count, out_codes, out_counts):
    """Codes and numbers of waiting tuples of keys given by their newest slots."""
    base, shift = arena[A_BASE], arena[A_SHIFT]
    for i in range(count):
        out_codes[i] = load_i64(done[i])
        out_counts[i] = _length(base, shift, done[i])


@njit("void(int64[::1], int64, int64[::1], int64[::1], int64[::1])", cache=True, nogil=True)
def runs_of(codes, stop, keys, out_starts, out_ends):
    """Block rows of keys that were met in block order: one pass over both."""
    row = 0
    for i in range(keys.size):
        while row < stop and codes[row] != keys[i]:
            row += 1
        out_starts[i] = row
        while row < stop and codes[row] == keys[i]:
            row += 1
        out_ends[i] = row


@njit("void(int64[::1], int64[::1], int64[::1])", cache=True, nogil=True)
def linked_oldest(arena, queue, out_codes):
    """Codes of the oldest waiting tuples, as many as `out_codes` has room for."""
    reference = queue[Q_OLDEST]
    for i in range(out_codes.size):
        slot = arena[A_BASE] + (reference << arena[A_SHIFT])
        out_codes[i] = load_i64(slot)
        reference = load_u32(slot + 16)


@njit("void(int64[::1], int64[::1], int64[::1], int64[::1])", cache=True, nogil=True)
def linked_newest(directory, arena, codes, out_slots):
    """Newest slots of keys that wait."""
    directory_at, size, base, shift = address_of(directory), directory.size, arena[A_BASE], arena[A_SHIFT]
    for i in range(codes.size):
        at = _find(directory_at, size, base, shift, hash32(codes[i]), codes[i])
        out_slots[i] = arena[A_BASE] + ((directory[at] & 0xFFFFFFFF) << arena[A_SHIFT])


@njit(
    "int64(int64[::1], int64[::1], int64[::1], boolean[::1], int64, int64[::1], int64)",
    cache=True,
    nogil=True,
)
def linked_front(arena, queue, fences, continues, group, loaded, most):
    """Among the `most` newest tuples, the code whose page group was read longest ago."""
    code = np.empty(1, np.int64)
    first = np.empty(1, np.int64)
    last = np.empty(1, np.int64)
    reference = queue[Q_NEWEST]
    best = np.int64(0)
    oldest = np.int64(-2)
    for _ in range(most):
        if reference == NIL:
            break
        slot = arena[A_BASE] + (reference << arena[A_SHIFT])
        code[0] = load_i64(slot)
        locate_in_fences(fences, continues, code, first, last)
        read_at = loaded[first[0] // group]
        if oldest == -2 or read_at < oldest:
            oldest = read_at
            best = code[0]
        reference = load_u32(slot + 12)
    return best
