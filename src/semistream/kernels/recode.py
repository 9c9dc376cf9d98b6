"""From the code of a key to the code under which its rows stand, where R has changed since its base was built.

Few of the stream's codes have changed, so a bitmap is asked first, which says "no" for nearly all others and is small
enough for the processor's own memory.
"""

# mypy: disallow_untyped_defs=False
from __future__ import annotations

import numpy as np

from semistream.kernels.compiled import njit

#: in the second word of an empty entry; every code that a key is given is larger
EMPTY = np.iinfo(np.int64).min


@njit(nogil=True, inline="always")
def _mix(code):
    """Codes that are neighbours are spread, so that no cluster forms."""
    x = np.uint64(code) * np.uint64(0x9E3779B97F4A7C15)
    return x ^ (x >> np.uint64(29))


@njit(nogil=True, inline="always")
def _first(x, entries):
    """Where the search for a mixed code begins: any number of entries will do, so no table is larger than it must."""
    return ((x >> np.uint64(32)) * entries) >> np.uint64(32)


@njit(nogil=True, inline="always")
def _next(at, entries):
    at += np.uint64(1)
    return at if at < entries else np.uint64(0)


@njit("void(int64[::1], int64[::1], int64[::1], uint64[::1])", cache=True, nogil=True)
def fill_recoding(codes, fresh, table, bitmap):
    """Enter pairs of distinct codes.

    `table` has EMPTY entries of two words, more than there are pairs and fewer than 2**32; `bitmap` a power of two of
    words that are 0.
    """
    entries = np.uint64(table.size // 2)
    bits = np.uint64(bitmap.size * 64 - 1)
    for i in range(codes.size):
        x = _mix(codes[i])
        bit = (x >> np.uint64(32)) & bits
        bitmap[bit >> np.uint64(6)] |= np.uint64(1) << (bit & np.uint64(63))
        at = _first(x, entries)
        while table[np.uint64(2) * at + np.uint64(1)] != EMPTY:
            at = _next(at, entries)
        table[np.uint64(2) * at] = codes[i]
        table[np.uint64(2) * at + np.uint64(1)] = fresh[i]


@njit("void(int64[::1], int64[::1], uint64[::1], int64)", cache=True, nogil=True)
def recode(codes, table, bitmap, absent):
    """Replace every code by what the table has for it; others from `absent` on become `absent`, the rest stays."""
    entries = np.uint64(table.size // 2)
    bits = np.uint64(bitmap.size * 64 - 1)
    for i in range(codes.size):
        code = codes[i]
        x = _mix(code)
        found = min(code, absent)
        bit = (x >> np.uint64(32)) & bits
        if (bitmap[bit >> np.uint64(6)] >> (bit & np.uint64(63))) & np.uint64(1):
            at = _first(x, entries)
            while table[np.uint64(2) * at + np.uint64(1)] != EMPTY:
                if table[np.uint64(2) * at] == code:
                    found = table[np.uint64(2) * at + np.uint64(1)]
                    break
                at = _next(at, entries)
        codes[i] = found
