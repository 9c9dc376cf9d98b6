"""The cache H_R: a directory of keys, each with all of its master tuples or none at all; or with some of its versions.

Directory entry, 16 bytes, open addressing with linear probing: the key code, then
`flags | count (27 bits) | reference of the first row (32 bits)`. A key without rows is known to be absent from R.
The count is the frequency recorder: stream tuples that asked for the key. A SWITCHING entry collects rows and is
not seen by the stream before it is complete; a YOUNG one is on probation, and the count of a PARTIAL one does not cover
the whole eviction period (SSBJ). While it collects, the count of a PARTIAL entry is the number of rows that it may take
yet; one that meets more is YOUNG from then on, which is to say: given up. An entry with SOME versions belongs to an
as-of join (`kernels/versions.py`).

    row slot: | next u32 | payload |
"""

# mypy: disallow_untyped_defs=False
from __future__ import annotations

import numpy as np

from semistream.kernels.arena import A_BASE, A_SHIFT, POOL, free_chain, give_slot, take_slot, word
from semistream.kernels.compiled import njit
from semistream.kernels.raw import address_of, load_i64, load_u32, store_i32, store_i64
from semistream.kernels.rows import NIL
from semistream.kernels.tuples import hash32

ROW_HEADER = 4
ENTRY_BYTES = 16
EMPTY = -1
#: what a look-up finds where a key is not cached; no row has such a reference
MISSED = NIL - 1
PROBE_TILE = 64
SWITCHING = np.int64(1) << 62
COUNT_ONE = np.int64(1) << 32
YOUNG = np.int64(1) << 61
PARTIAL = np.int64(1) << 60
SOME = np.int64(1) << 59
COUNT_MASK = (np.int64(1) << 27) - 1
C_KEYS, C_ROWS, C_SWITCHING_ROWS, C_SWITCHING_KEYS = range(4)
#: how kernels that free rows are given a cache: entries, its state, those of arena, rows and VAR blocks, chain
CACHE = "Tuple((int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64))"


@njit(nogil=True, inline="always")
def find_key(entries, size, code):
    """Index of the entry of a code, or -1 (`entries`: their address, `size`: their number)."""
    at = (hash32(code) * size) >> 32
    while load_i64(entries + 16 * at + 8) != EMPTY and load_i64(entries + 16 * at) != code:
        at += 1
        if at == size:
            at = 0
    return at if load_i64(entries + 16 * at + 8) != EMPTY else -1


@njit(nogil=True, inline="always")
def cache_insert(entries, size, code, meta):
    """Put a new key into the directory (`entries`: their address, `size`: their number)."""
    at = (hash32(code) * size) >> 32
    while load_i64(entries + 16 * at + 8) != EMPTY:
        at += 1
        if at == size:
            at = 0
    store_i64(entries + 16 * at, code)
    store_i64(entries + 16 * at + 8, meta)


@njit(nogil=True, inline="always")
def cache_delete(entries, size, at):
    """Remove an entry and close the gap behind it."""
    gap = at
    probe = at
    while True:
        probe += 1
        if probe == size:
            probe = 0
        if load_i64(entries + 16 * probe + 8) == EMPTY:
            break
        home = (hash32(load_i64(entries + 16 * probe)) * size) >> 32
        if (probe - home) % size >= (probe - gap) % size:
            store_i64(entries + 16 * gap, load_i64(entries + 16 * probe))
            store_i64(entries + 16 * gap + 8, load_i64(entries + 16 * probe + 8))
            gap = probe
    store_i64(entries + 16 * gap + 8, EMPTY)


@njit(nogil=True, inline="always")
def free_rows(reference, arena, pool, blocks, chain):
    """Give back all rows of a key; returns their number."""
    rows = 0
    while reference != NIL:
        slot = word(arena, A_BASE) + (reference << word(arena, A_SHIFT))
        reference = load_u32(slot)
        if chain > 0:
            free_chain(arena, blocks, slot + chain)
        give_slot(arena, pool, slot)
        rows += 1
    return rows


@njit(nogil=True, inline="always")
def find_tile(codes, first, tile, entries, base, shift, places, rows):
    """Look `tile` codes from `first` on up: where their entries are, and the address of each key's first row.

    The row is 0 where the key is known to be absent, and -1 where the stream sees no entry of it. All entries of a tile
    are fetched before any is followed, so that their cache misses overlap.
    """
    size = entries.size >> 1
    for t in range(tile):
        places[t] = (hash32(codes[first + t]) * size) >> 32
    for t in range(tile):
        rows[t] = entries[2 * places[t] + 1]
    for t in range(tile):
        at = places[t]
        meta = rows[t]
        while meta != EMPTY and entries[2 * at] != codes[first + t]:
            at += 1
            if at == size:
                at = 0
            meta = entries[2 * at + 1]
        places[t] = at
        rows[t] = -1
        if meta != EMPTY and meta & SWITCHING == 0:
            reference = meta & NIL
            rows[t] = 0 if reference == NIL else base + (reference << shift)


@njit(nogil=True, inline="always")
def count_request(entries, at):
    """One stream tuple more has asked for the key of this entry."""
    meta = entries[2 * at + 1]
    if (meta >> 32) & COUNT_MASK < COUNT_MASK:
        entries[2 * at + 1] = meta + COUNT_ONE


@njit("int64(int64[::1], int64, int64[::1], uint32[::1], int64[::1], boolean)", cache=True, nogil=True)
def cache_find(codes, stop, entries, references, misses, counting):
    """Stream-probing phase, first half: the reference of the first cached row of each stream tuple's key.

    It is NIL where the key is cached as absent, and MISSED where it is not cached; these tuples are listed in `misses`.
    Returns how many they are.
    """
    missed = 0
    places = np.empty(PROBE_TILE, np.int64)
    rows = np.empty(PROBE_TILE, np.int64)
    for i in range(0, stop, PROBE_TILE):
        tile = min(PROBE_TILE, stop - i)
        # References from 1 on, for 0 says that the key is absent.
        find_tile(codes, i, tile, entries, 1, 0, places, rows)
        for t in range(tile):
            if rows[t] < 0:
                references[i + t] = MISSED
                misses[missed] = i + t
                missed += 1
                continue
            references[i + t] = rows[t] - 1 if rows[t] > 0 else NIL
            if counting:
                count_request(entries, places[t])
    return missed


@njit(
    "int64(uint32[::1], int64, int64[::1], int64[::1], int64[::1], int64[::1], boolean)",
    cache=True,
    nogil=True,
)
def cache_follow(references, stop, arena, cursor, out_ids, out_rows, first_only):
    """Second half: pair stream tuples with the cached rows of their key, found before and there since then.

    `cursor`: tuple, row to go on with. Stops when the pair buffers are full. As entries are, so are the first rows of a
    tile fetched before any is followed.
    """
    filled = 0
    room = out_ids.size
    base = arena[A_BASE]
    shift = arena[A_SHIFT]
    i = cursor[0]
    row = cursor[1]
    following = np.empty(PROBE_TILE, np.int64)
    while row != 0:
        if filled == room:
            cursor[1] = row
            return filled
        out_ids[filled] = i
        out_rows[filled] = row
        filled += 1
        reference = load_u32(row)
        row = 0 if reference == NIL else base + (reference << shift)
        if row == 0:
            i += 1
    while i < stop:
        tile = min(PROBE_TILE, stop - i)
        for t in range(tile):
            following[t] = NIL
            if references[i + t] < MISSED and not first_only:
                following[t] = load_u32(base + (np.int64(references[i + t]) << shift))
        for t in range(tile):
            if references[i + t] >= MISSED:
                continue
            if filled == room:
                cursor[0] = i + t
                cursor[1] = 0
                return filled
            out_ids[filled] = i + t
            out_rows[filled] = base + (np.int64(references[i + t]) << shift)
            filled += 1
            reference = following[t]
            while reference != NIL:
                row = base + (reference << shift)
                if filled == room:
                    cursor[0] = i + t
                    cursor[1] = row
                    return filled
                out_ids[filled] = i + t
                out_rows[filled] = row
                filled += 1
                reference = load_u32(row)
        i += tile
    cursor[0] = i
    cursor[1] = 0
    return filled


@njit(
    f"int64(int64[::1], int64[::1], int64[::1], int64[::1], int64, int64[::1], int64[::1], {POOL}, int64[::1],"
    " int64[::1])",
    cache=True,
    nogil=True,
)
def cache_admit(codes, starts, ends, counts, stop, entries, state, cached, out_slots, out_ids):
    """Admit keys: run r has code `codes[r]` and the block rows `starts[r]..ends[r]` (an empty run: known absent).

    Room for entries and rows was checked by the caller, also that `out_slots` can take all rows. Keys that are
    cached already are passed over. Returns the number of rows whose payload is now to be packed.
    """
    arena, extents, pool = cached
    arena_at, extents_at, pool_at = address_of(arena), address_of(extents), address_of(pool)
    entries_at, size = address_of(entries), entries.size >> 1
    filled = 0
    for r in range(stop):
        if find_key(entries_at, size, codes[r]) >= 0:
            continue
        reference = NIL
        for row in range(starts[r], ends[r]):
            slot = take_slot(arena_at, extents_at, pool_at)
            store_i32(slot, reference)
            reference = (slot - arena[A_BASE]) >> arena[A_SHIFT]
            out_slots[filled] = slot
            out_ids[filled] = row
            filled += 1
        cache_insert(entries_at, size, codes[r], (min(counts[r], COUNT_MASK) << 32) | reference)
        state[C_KEYS] += 1
        state[C_ROWS] += ends[r] - starts[r]
    return filled


@njit("void(int64[::1], int64[::1])", cache=True, nogil=True)
def cache_count_histogram(entries, histogram):
    """Keys of each count; the last class takes all larger counts. Rows are not visited: one sequential pass.

    Nothing is branched on: whether a place is empty cannot be foreseen.
    """
    histogram[:] = 0
    last = histogram.size - 1
    unseen = np.int64(0)
    for at in range(entries.size >> 1):
        meta = entries[2 * at + 1]
        # An empty place has all bits set, this one too.
        hidden = (meta >> 62) & 1
        unseen += hidden
        histogram[min(((meta >> 32) & COUNT_MASK) | (-hidden & COUNT_MASK), last)] += 1
    histogram[last] -= unseen


@njit(f"int64({CACHE}, int64, int64, int64)", cache=True, nogil=True)
def cache_evict(table, below, chance, salt):
    """Evict every key with a count under `below`, and keys with that count with `chance` in 2**32.

    The chance is drawn from the code and a salt, so the gaps spread evenly over the directory: evicting from one end
    would pack the other end ever denser. Returns the number of keys evicted.
    """
    entries, state, arena, pool, blocks, chain = table
    arena_at, pool_at, blocks_at = address_of(arena), address_of(pool), address_of(blocks)
    entries_at, size = address_of(entries), entries.size >> 1
    evicted = 0
    at = 0
    while at < entries.size >> 1:
        meta = entries[2 * at + 1]
        count = (meta >> 32) & COUNT_MASK
        # True of most, of empty places too: whether a place is empty cannot be foreseen.
        if count > below:
            at += 1
            continue
        if meta & SWITCHING == 0 and (count < below or hash32(entries[2 * at] ^ salt) < chance):
            state[C_ROWS] -= free_rows(meta & NIL, arena_at, pool_at, blocks_at, chain)
            state[C_KEYS] -= 1
            cache_delete(entries_at, size, at)
            evicted += 1
        else:
            at += 1
    return evicted


@njit(f"int64({CACHE}, int64[::1])", cache=True, nogil=True)
def cache_drop_known(table, known):
    """Give up every key that another directory, `known`, has as well; returns how many."""
    entries, state, arena, pool, blocks, chain = table
    arena_at, pool_at, blocks_at = address_of(arena), address_of(pool), address_of(blocks)
    entries_at, size = address_of(entries), entries.size >> 1
    known_at, known_size = address_of(known), known.size >> 1
    dropped = 0
    at = 0
    while at < entries.size >> 1:
        meta = entries[2 * at + 1]
        if meta == EMPTY or meta & SWITCHING != 0 or find_key(known_at, known_size, entries[2 * at]) < 0:
            at += 1
            continue
        state[C_ROWS] -= free_rows(meta & NIL, arena_at, pool_at, blocks_at, chain)
        state[C_KEYS] -= 1
        cache_delete(entries_at, size, at)
        dropped += 1
    return dropped


@njit("void(int64[::1])", cache=True, nogil=True)
def cache_age(entries):
    """Halve all counts."""
    for at in range(entries.size >> 1):
        meta = entries[2 * at + 1]
        if meta != EMPTY:
            count = ((meta >> 32) & COUNT_MASK) >> 1
            entries[2 * at + 1] = (meta & (SWITCHING | YOUNG | PARTIAL | SOME | NIL)) | (count << 32)


@njit("void(int64[::1], int64[::1])", cache=True, nogil=True)
def cache_rehash(old, fresh):
    """Move all entries to a directory of another size."""
    fresh_at, size = address_of(fresh), fresh.size >> 1
    for at in range(old.size >> 1):
        if old[2 * at + 1] != EMPTY:
            cache_insert(fresh_at, size, old[2 * at], old[2 * at + 1])


@njit(
    f"int64(int64[::1], int64, int64, int64[::1], int64[::1], {POOL}, int64[::1], int64[::1])", cache=True, nogil=True
)
def cache_load(codes, start, stop, entries, state, cached, out_slots, out_ids):
    """Put rows `start..stop` of a block in the cache, key or no key before: for a cache that takes all of R.

    Room for all of R was checked. Stops when the buffers are full; returns how many rows have slots now.
    """
    arena, extents, pool = cached
    arena_at, extents_at, pool_at = address_of(arena), address_of(extents), address_of(pool)
    entries_at, size = address_of(entries), entries.size >> 1
    filled = 0
    for row in range(start, min(stop, start + out_slots.size)):
        slot = take_slot(arena_at, extents_at, pool_at)
        reference = (slot - arena[A_BASE]) >> arena[A_SHIFT]
        at = find_key(entries_at, size, codes[row])
        if at < 0:
            store_i32(slot, NIL)
            cache_insert(entries_at, size, codes[row], reference)
            state[C_KEYS] += 1
        else:
            meta = entries[2 * at + 1]
            store_i32(slot, meta & NIL)
            entries[2 * at + 1] = (meta & ~np.int64(NIL)) | reference
        state[C_ROWS] += 1
        out_slots[filled] = slot
        out_ids[filled] = row
        filled += 1
    return filled
