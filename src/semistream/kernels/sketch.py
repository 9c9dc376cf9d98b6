"""A count-min sketch of key codes: two rows of saturating bytes, conservative update, halved to age."""

# mypy: disallow_untyped_defs=False
from __future__ import annotations

from numpy import uint64

from semistream.kernels.compiled import njit


@njit(nogil=True, inline="always")
def _places(code, size):
    x = uint64(code)
    x = (x ^ (x >> uint64(30))) * uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> uint64(27))) * uint64(0x94D049BB133111EB)
    x = x ^ (x >> uint64(31))
    first = ((x & uint64(0xFFFFFFFF)) * uint64(size)) >> uint64(32)
    second = ((x >> uint64(32)) * uint64(size)) >> uint64(32)
    return first, second


@njit("void(int64[::1], int64[::1], uint8[:,::1], int64[::1])", cache=True, nogil=True)
def sketch_add(codes, times, table, out):
    """Count each code `times` times more; its new estimate goes to `out`."""
    size = table.shape[1]
    for i in range(codes.size):
        first, second = _places(codes[i], size)
        estimate = min(min(table[0, first], table[1, second]) + times[i], 255)
        if table[0, first] < estimate:
            table[0, first] = estimate
        if table[1, second] < estimate:
            table[1, second] = estimate
        out[i] = estimate


@njit("void(uint8[:,::1])", cache=True, nogil=True)
def sketch_halve(table):
    """Age: the past counts half."""
    for row in range(table.shape[0]):
        for i in range(table.shape[1]):
            table[row, i] >>= 1
