"""Choosing the keys of the next shared cache among those of several caches, in two passes and without a list of them.

A key's worth is its count per byte. The first pass adds up bytes by class of worth; whoever builds the cache finds the
class at which the room ends; the second pass lists the keys above it, a group of rows at a time.
"""

# mypy: disallow_untyped_defs=False
from __future__ import annotations

import numpy as np

from semistream.kernels.arena import A_BASE, A_SHIFT
from semistream.kernels.cache import COUNT_MASK, EMPTY, SWITCHING
from semistream.kernels.compiled import njit
from semistream.kernels.raw import load_u32
from semistream.kernels.rows import NIL
from semistream.kernels.tuples import hash32

CLASSES = 1024
_STEPS = 8.0
_MIDDLE = 768
_SALT = np.int64(0x5DEECE66D1CE4E5)


@njit(nogil=True, inline="always")
def _chain_rows(arena, reference):
    rows = 0
    while reference != NIL:
        rows += 1
        reference = load_u32(arena[A_BASE] + (reference << arena[A_SHIFT]))
    return rows


@njit(nogil=True, inline="always")
def _worth(count, discount, scale, size):
    """Class of a key that was asked for `count` times and takes `size` bytes; 0 is no worth at all."""
    weight = (count - discount) * scale
    if weight <= 0.0:
        return 0
    return min(max(int(_STEPS * np.log2(weight / size)) + _MIDDLE, 1), CLASSES - 1)


@njit("void(int64[::1], int64[::1], float64, float64, float64, float64, float64[:,::1])", cache=True, nogil=True)
def weigh(entries, arena, discount, scale, entry_bytes, row_bytes, histogram):
    """Count every complete key (row 0) and add its bytes (row 1) to its class of worth."""
    for at in range(entries.size >> 1):
        meta = entries[2 * at + 1]
        if meta == EMPTY or meta & SWITCHING != 0:
            continue
        size = entry_bytes + row_bytes * _chain_rows(arena, meta & NIL)
        worth = _worth((meta >> 32) & COUNT_MASK, discount, scale, size)
        histogram[0, worth] += 1.0
        histogram[1, worth] += size


@njit("void(int64[::1], int64, int64, int64[::1])", cache=True, nogil=True)
def mask_counts(entries, shift, last_row, seen):
    """Clear the counts of directory entries, which change while a generation is used, so that the rest has a checksum.

    Adds to `seen` the number of keys, and that of entries no builder writes: with flags, or with a row that begins
    behind `last_row` in the arena.
    """
    for at in range(entries.size >> 1):
        meta = entries[2 * at + 1]
        if meta == EMPTY:
            continue
        meta &= ~(COUNT_MASK << 32)
        entries[2 * at + 1] = meta
        seen[0] += 1
        reference = meta & NIL
        if meta != reference or (reference != NIL and reference << shift > last_row):
            seen[1] += 1


@njit(
    "int64(int64[::1], int64[::1], int64[::1], float64, float64, float64, float64, int64, int64, float64,"
    " int64[::1], int64[::1], int64[::1], int64[::1], int64[::1])",
    cache=True,
    nogil=True,
)
def pick(
    entries,
    arena,
    cursor,
    discount,
    scale,
    entry_bytes,
    row_bytes,
    lowest,
    chance,
    rescale,
    codes,
    counts,
    starts,
    ends,
    rows,
):
    """List keys of class `lowest` (each with `chance` in 2**32) and above, from entry `cursor[0]` on.

    Key i has the row slots `rows[starts[i]:ends[i]]`; its count goes on as `rescale` times what it was. Stops when a
    list is full; a key with more rows than `rows` holds is passed over. Returns the number of keys; `cursor[1]`: rows.
    """
    filled = 0
    keys = 0
    at = cursor[0]
    while at < entries.size >> 1 and keys < codes.size:
        meta = entries[2 * at + 1]
        if meta == EMPTY or meta & SWITCHING != 0:
            at += 1
            continue
        count = (meta >> 32) & COUNT_MASK
        length = _chain_rows(arena, meta & NIL)
        worth = _worth(count, discount, scale, entry_bytes + row_bytes * length)
        if worth < lowest or (worth == lowest and hash32(entries[2 * at] ^ _SALT) >= chance) or length > rows.size:
            at += 1
            continue
        if filled + length > rows.size:
            break
        codes[keys] = entries[2 * at]
        counts[keys] = int(min(count * rescale, float(COUNT_MASK)))
        starts[keys] = filled
        reference = meta & NIL
        while reference != NIL:
            rows[filled] = arena[A_BASE] + (reference << arena[A_SHIFT])
            reference = load_u32(rows[filled])
            filled += 1
        ends[keys] = filled
        keys += 1
        at += 1
    cursor[0] = at
    cursor[1] = filled
    return keys
