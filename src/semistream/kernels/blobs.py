"""Interleave columns into rows and take them apart again, for the nested-column codec.

The codec describes a row as a fixed sequence of runs, each run a contiguous slice of one column buffer. All
that is left for compiled code is to move run r of a buffer to or from a per-row cursor, and to pack flags so
that each row's bits start on a byte of their own.

`bounds` is always an int64 array one longer than the number of rows: run r is [bounds[r], bounds[r + 1]).
"""

from __future__ import annotations

from semistream.kernels.compiled import njit
from semistream.kernels.raw import copy_bytes


@njit("void(int64, int64[::1], int64, int64[::1])", cache=True, nogil=True)
def scatter_runs(target, cursor, source, bounds):  # type: ignore[no-untyped-def]
    """Append run r of `source` to row r of `target` and advance the row's cursor."""
    for row in range(cursor.size):
        count = bounds[row + 1] - bounds[row]
        copy_bytes(target + cursor[row], source + bounds[row], count)
        cursor[row] += count


@njit("void(int64, int64[::1], int64, int64[::1])", cache=True, nogil=True)
def gather_runs(target, bounds, source, cursor):  # type: ignore[no-untyped-def]
    """Inverse of `scatter_runs`; the caller has checked that each row still holds its run."""
    for row in range(cursor.size):
        count = bounds[row + 1] - bounds[row]
        copy_bytes(target + bounds[row], source + cursor[row], count)
        cursor[row] += count


@njit("void(uint8[::1], int64[::1], uint8[::1], int64[::1])", cache=True, nogil=True)
def pack_runs(packed, packed_bounds, flags, bounds):  # type: ignore[no-untyped-def]
    """One bit per flag, least significant first; `packed` must come zeroed."""
    for row in range(bounds.size - 1):
        at = packed_bounds[row]
        for position in range(bounds[row + 1] - bounds[row]):
            packed[at + (position >> 3)] |= flags[bounds[row] + position] << (position & 7)


@njit("void(uint8[::1], int64[::1], uint8[::1], int64[::1])", cache=True, nogil=True)
def unpack_runs(flags, bounds, packed, packed_bounds):  # type: ignore[no-untyped-def]
    """Inverse of `pack_runs`."""
    for row in range(bounds.size - 1):
        at = packed_bounds[row]
        for position in range(bounds[row + 1] - bounds[row]):
            flags[bounds[row] + position] = (packed[at + (position >> 3)] >> (position & 7)) & 1
