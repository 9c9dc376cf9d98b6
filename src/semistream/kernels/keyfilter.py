"""Filters of R's keys: what one does not know is certainly not in R."""

# mypy: disallow_untyped_defs=False
from __future__ import annotations

import numpy as np
from numba import njit, uint64


@njit(nogil=True, inline="always")
def _mix(code):
    x = uint64(code) + uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> uint64(30))) * uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> uint64(27))) * uint64(0x94D049BB133111EB)
    return x ^ (x >> uint64(31))


@njit("void(int64[::1], int64, uint8[::1], int64)", cache=True, nogil=True)
def filter_add(codes, count, table, hashes):
    """Add codes."""
    bits = uint64(table.size * 8)
    for i in range(count):
        x = _mix(codes[i])
        step = (x >> uint64(32)) | uint64(1)
        for _ in range(hashes):
            at = np.int64(((x & uint64(0xFFFFFFFF)) * bits) >> uint64(32))
            table[at >> 3] |= np.uint8(1 << (at & 7))
            x += step


@njit("int64(int64[::1], int64[::1], int64, uint8[::1], int64, int64[::1])", cache=True, nogil=True)
def filter_split(codes, ids, count, table, hashes, out_absent):
    """Keep, in `ids`, tuples whose key may be in R; the others go to `out_absent`. Returns how many were kept."""
    bits = uint64(table.size * 8)
    kept = 0
    absent = 0
    for i in range(count):
        x = _mix(codes[ids[i]])
        step = (x >> uint64(32)) | uint64(1)
        known = True
        for _ in range(hashes):
            at = np.int64(((x & uint64(0xFFFFFFFF)) * bits) >> uint64(32))
            if (table[at >> 3] >> (at & 7)) & 1 == 0:
                known = False
                break
            x += step
        if known:
            ids[kept] = ids[i]
            kept += 1
        else:
            out_absent[absent] = ids[i]
            absent += 1
    return kept


@njit("void(int64[::1], int64, uint8[::1], int64, int64[::1])", cache=True, nogil=True)
def bitmap_add(codes, count, table, first, ends):
    """Set the bits of codes, the first bit being that of `first`, and widen `ends` to the least and largest code."""
    bits = uint64(table.size * 8)
    for i in range(count):
        code = codes[i]
        ends[0] = min(ends[0], code)
        ends[1] = max(ends[1], code)
        at = uint64(code) - uint64(first)
        if code >= first and at < bits:
            table[at >> uint64(3)] |= np.uint8(1 << np.int64(at & uint64(7)))


@njit("int64(int64[::1], int64[::1], int64, uint8[::1], int64, int64[::1], int64[::1])", cache=True, nogil=True)
def bitmap_split(codes, ids, count, table, first, ends, out_absent):
    """As `filter_split`. Of codes between the `ends` that have no bit it says that they may be in R."""
    bits = uint64(table.size * 8)
    kept = 0
    absent = 0
    for i in range(count):
        code = codes[ids[i]]
        known = ends[0] <= code <= ends[1]
        at = uint64(code) - uint64(first)
        if known and code >= first and at < bits:
            known = (table[at >> uint64(3)] >> np.int64(at & uint64(7))) & 1 != 0
        if known:
            ids[kept] = ids[i]
            kept += 1
        else:
            out_absent[absent] = ids[i]
            absent += 1
    return kept
