"""Filters of R's keys: what one does not know is certainly not in R."""

# mypy: disallow_untyped_defs=False
from __future__ import annotations

import numpy as np
from numpy import uint64

from semistream.kernels.compiled import njit


@njit(nogil=True, inline="always")
def _mix(code):
    x = uint64(code) + uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> uint64(30))) * uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> uint64(27))) * uint64(0x94D049BB133111EB)
    return x ^ (x >> uint64(31))


@njit(nogil=True, inline="always")
def _bit_of(code, first, bits):
    """The place of a code in a bitmap that begins with `first`; -1 if it has none."""
    at = uint64(code) - uint64(first)
    return np.int64(at) if code >= first and at < uint64(bits) else np.int64(-1)


@njit("void(int64[::1], int64, uint8[::1], int64, int64, int64[::1])", cache=True, nogil=True)
def filter_add(codes, count, table, hashes, first, ends):
    """Add codes: to a Bloom filter or, without hashes, to a bitmap; widen `ends` to the least and the largest code."""
    bits = table.size * 8
    for i in range(count):
        code = codes[i]
        ends[0] = min(ends[0], code)
        ends[1] = max(ends[1], code)
        if hashes == 0:
            at = _bit_of(code, first, bits)
            if at >= 0:
                table[at >> 3] |= np.uint8(1 << (at & 7))
            continue
        x = _mix(code)
        step = (x >> uint64(32)) | uint64(1)
        for _ in range(hashes):
            at = np.int64(((x & uint64(0xFFFFFFFF)) * uint64(bits)) >> uint64(32))
            table[at >> 3] |= np.uint8(1 << (at & 7))
            x += step


@njit("int64(int64[::1], int64[::1], int64, uint8[::1], int64, int64, int64[::1], int64[::1])", cache=True, nogil=True)
def filter_split(codes, ids, count, table, hashes, first, ends, out_absent):
    """Keep, in `ids`, tuples whose key may be in R; the others go to `out_absent`. Returns how many were kept.

    Of codes between the `ends` that a bitmap has no place for it says that they may be in R.
    """
    bits = table.size * 8
    kept = 0
    absent = 0
    for i in range(count):
        code = codes[ids[i]]
        known = ends[0] <= code <= ends[1]
        if known and hashes == 0:
            at = _bit_of(code, first, bits)
            known = at < 0 or (table[at >> 3] >> (at & 7)) & 1 != 0
        elif known:
            x = _mix(code)
            step = (x >> uint64(32)) | uint64(1)
            for _ in range(hashes):
                at = np.int64(((x & uint64(0xFFFFFFFF)) * uint64(bits)) >> uint64(32))
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
