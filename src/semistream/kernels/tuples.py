"""Small kernels about single tuples: hashing a code, and the flag that says a tuple was matched."""

# mypy: disallow_untyped_defs=False
from __future__ import annotations

import numpy as np
from numpy import uint64

from semistream.kernels.compiled import njit
from semistream.kernels.raw import load_u8, store_u8


@njit("int64(int64)", cache=True, nogil=True)
def hash32(code):
    """Upper half of a 64-bit finaliser (splitmix64): well mixed for dense and for hashed codes alike."""
    x = uint64(code)
    x = (x ^ (x >> uint64(30))) * uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> uint64(27))) * uint64(0x94D049BB133111EB)
    x = x ^ (x >> uint64(31))
    return np.int64(x >> uint64(32))


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


#: of rows that are put side by side: enough that few of a chunk share one, and few enough for a processor's own cache
BUCKETS = 1 << 15


@njit("boolean(int64[::1], int64[::1], int64, int64[::1], int64[::1])", cache=True, nogil=True)
def pairs_by_row(left, right, count, out_left, out_right):
    """Pairs with equal `right` close together: in the order of buckets of neighbours, within one as they came.

    Nothing is written, and False returned, where they are in order already. A full sort takes several times as long,
    and those who read the rows gain little more.
    """
    low = high = right[0]
    ordered = True
    for i in range(1, count):
        ordered &= right[i] >= right[i - 1]
        low = min(low, right[i])
        high = max(high, right[i])
    if ordered:
        return False
    shift = 0
    while (high - low) >> shift >= BUCKETS:
        shift += 1
    places = np.zeros(BUCKETS + 1, np.int32)
    for i in range(count):
        places[((right[i] - low) >> shift) + 1] += 1
    for bucket in range(BUCKETS):
        places[bucket + 1] += places[bucket]
    for i in range(count):
        bucket = (right[i] - low) >> shift
        place = places[bucket]
        places[bucket] = place + 1
        out_left[place] = left[i]
        out_right[place] = right[i]
    return True
