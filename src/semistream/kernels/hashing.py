"""XXH64 over raw addresses: the code of a key, and the checksum of a page.

One function serves both because it must be XXH64 anyway: a key that does not fit an integer is coded as
Spark's `xxhash64` would, bit for bit, so that pages laid out by Spark and batches coded in process agree. The
chain is Spark's too: the hash of one column is the seed of the next and a null leaves the seed alone.

The column kernels all end in `validity, bit, codes, valid`: they fold their column into `codes`, clear
`valid` where the key can match nothing, and return how many rows that were. A `validity` of 0 means no nulls;
`bit` is the bit offset of the bitmap.
"""

from __future__ import annotations

import numpy as np

from semistream.kernels.compiled import njit
from semistream.kernels.raw import (
    get_bit,
    load_i8,
    load_i16,
    load_i32,
    load_i64,
    load_u8,
    load_u16,
    load_u32,
    load_u64,
)

# How an integer is hashed, chosen by the Spark type that carries it: byte to int and date; long and
# timestamp; decimals of more than 18 digits (which is how Spark reads an unsigned 64-bit integer).
AS_INT = 0
AS_LONG = 1
AS_BIG = 2

SPARK_SEED = 42

_P1 = np.uint64(0x9E3779B185EBCA87)
_P2 = np.uint64(0xC2B2AE3D27D4EB4F)
_P3 = np.uint64(0x165667B19E3779F9)
_P4 = np.uint64(0x85EBCA77C2B2AE63)
_P5 = np.uint64(0x27D4EB2F165667C5)

_LOW_32 = np.uint64(0xFFFFFFFF)
_BITS_64 = np.uint64(64)
_1, _4, _7, _8, _11, _12, _18 = (np.uint64(n) for n in (1, 4, 7, 8, 11, 12, 18))
_23, _27, _29, _31, _32, _33 = (np.uint64(n) for n in (23, 27, 29, 31, 32, 33))

_INFINITY_32 = np.int64(0x7F800000)
_NAN_32 = np.int64(0x7FC00000)
_MAGNITUDE_32 = np.int64(0x7FFFFFFF)
_MAGNITUDE_64 = np.int64(0x7FFFFFFFFFFFFFFF)
_INFINITY_64 = np.int64(0x7FF0000000000000)
_NAN_64 = np.int64(0x7FF8000000000000)


@njit(nogil=True, inline="always")
def _rotate(value, count):  # type: ignore[no-untyped-def]
    return (value << count) | (value >> (_BITS_64 - count))


@njit(nogil=True, inline="always")
def _avalanche(value):  # type: ignore[no-untyped-def]
    value = (value ^ (value >> _33)) * _P2
    value = (value ^ (value >> _29)) * _P3
    return value ^ (value >> _32)


@njit(nogil=True, inline="always")
def _round(lane, word):  # type: ignore[no-untyped-def]
    return _rotate(lane + word * _P2, _31) * _P1


@njit(nogil=True, inline="always")
def _merge(total, lane):  # type: ignore[no-untyped-def]
    return (total ^ _round(np.uint64(0), lane)) * _P1 + _P4


@njit("uint64(int64, int64, uint64)", cache=True, nogil=True)
def xxhash64_bytes(address, length, seed):  # type: ignore[no-untyped-def]
    """XXH64 of `length` bytes at `address`."""
    at = address
    end = address + length
    if length >= 32:
        # Four independent lanes keep the multipliers busy; this loop is the whole cost of a page checksum.
        a = seed + _P1 + _P2
        b = seed + _P2
        c = seed
        d = seed - _P1
        while at + 32 <= end:
            a = _round(a, load_u64(at))
            b = _round(b, load_u64(at + 8))
            c = _round(c, load_u64(at + 16))
            d = _round(d, load_u64(at + 24))
            at += 32
        value = _rotate(a, _1) + _rotate(b, _7) + _rotate(c, _12) + _rotate(d, _18)
        value = _merge(value, a)
        value = _merge(value, b)
        value = _merge(value, c)
        value = _merge(value, d)
    else:
        value = seed + _P5
    value += np.uint64(length)
    while at + 8 <= end:
        value = _rotate(value ^ _round(np.uint64(0), load_u64(at)), _27) * _P1 + _P4
        at += 8
    if at + 4 <= end:
        value = _rotate(value ^ (np.uint64(load_u32(at)) * _P1), _23) * _P2 + _P3
        at += 4
    while at < end:
        value = _rotate(value ^ (np.uint64(load_u8(at)) * _P5), _11) * _P1
        at += 1
    return _avalanche(value)


@njit("uint64(int64, uint64)", cache=True, nogil=True)
def xxhash64_int(value, seed):  # type: ignore[no-untyped-def]
    """XXH64 of the four low bytes of `value` (Spark's hashInt)."""
    word = (np.uint64(value) & _LOW_32) * _P1
    return _avalanche(_rotate((seed + _P5 + _4) ^ word, _23) * _P2 + _P3)


@njit("uint64(int64, uint64)", cache=True, nogil=True)
def xxhash64_long(value, seed):  # type: ignore[no-untyped-def]
    """XXH64 of the eight bytes of `value` (Spark's hashLong)."""
    word = _round(np.uint64(0), np.uint64(value))
    return _avalanche(_rotate((seed + _P5 + _8) ^ word, _27) * _P1 + _P4)


@njit("uint64(int64, int64, boolean, uint8[::1], uint64)", cache=True, nogil=True)
def _xxhash64_big(address, width, signed, scratch, seed):  # type: ignore[no-untyped-def]
    """XXH64 of Java's BigInteger.toByteArray() of the little-endian integer at `address`.

    That is big-endian two's complement without redundant leading bytes; `scratch` holds width + 1 bytes, the
    extra one for the sign byte of an unsigned number whose top bit is set.
    """
    sign = 0
    if signed and load_i8(address + width - 1) < 0:
        sign = 0xFF
    top = width
    while top > 0 and load_u8(address + top - 1) == sign:
        top -= 1
    # The byte above the last redundant one must still show the sign.
    needs_sign = top == 0 or (load_u8(address + top - 1) ^ sign) >= 0x80
    length = 0
    if needs_sign:
        scratch[0] = sign
        length = 1
    for i in range(top):
        scratch[length + i] = load_u8(address + top - 1 - i)
    return xxhash64_bytes(scratch.ctypes.data, length + top, seed)


@njit(nogil=True, inline="always")
def _is_null(validity, bit, row):  # type: ignore[no-untyped-def]
    return validity != 0 and get_bit(validity, bit + row) == 0


@njit("int64(int64, int64, boolean)", cache=True, nogil=True)
def _load_int(address, width, signed):  # type: ignore[no-untyped-def]
    """An integer of 1, 2, 4 or 8 bytes, widened; an unsigned 64-bit one keeps its bits."""
    if width == 8:
        return load_i64(address)
    if width == 4:
        return load_i32(address) if signed else load_u32(address)
    if width == 2:
        return load_i16(address) if signed else load_u16(address)
    return load_i8(address) if signed else load_u8(address)


@njit("int64(int64, int64)", cache=True, nogil=True)
def _load_float(address, width):  # type: ignore[no-untyped-def]
    """The bits of a float of 4 or 8 bytes, with one zero and one NaN: equal floats have equal bits."""
    if width == 4:
        bits = load_u32(address)
        magnitude = bits & _MAGNITUDE_32
        if magnitude > _INFINITY_32:
            return _NAN_32
        if magnitude == 0:
            return np.int64(0)
        # Signed, as a kernel of 4-byte values would widen it: the low word is what gets hashed.
        return load_i32(address)
    bits = load_i64(address)
    magnitude = bits & _MAGNITUDE_64
    if magnitude > _INFINITY_64:
        return _NAN_64
    if magnitude == 0:
        return np.int64(0)
    return bits


@njit(
    "int64(int64, int64, boolean, int64, int64, int64[::1], boolean[::1])",
    cache=True,
    nogil=True,
)
def code_ints(address, width, signed, validity, bit, codes, valid):  # type: ignore[no-untyped-def]
    """Exact codes of an integer-like column: the value itself, 0 where null."""
    dropped = 0
    for i in range(codes.shape[0]):
        if _is_null(validity, bit, i):
            codes[i] = 0
            valid[i] = False
            dropped += 1
        else:
            codes[i] = _load_int(address + i * width, width, signed)
    return dropped


@njit("int64(int64, int64, int64, int64, int64[::1], boolean[::1])", cache=True, nogil=True)
def code_floats(address, width, validity, bit, codes, valid):  # type: ignore[no-untyped-def]
    """Exact codes of a float column: canonical bits, 0 where null."""
    dropped = 0
    for i in range(codes.shape[0]):
        if _is_null(validity, bit, i):
            codes[i] = 0
            valid[i] = False
            dropped += 1
        else:
            codes[i] = _load_float(address + i * width, width)
    return dropped


@njit("int64(int64, int64, int64, int64[::1], boolean[::1])", cache=True, nogil=True)
def code_bools(address, validity, bit, codes, valid):  # type: ignore[no-untyped-def]
    """Exact codes of a bitmap column: 0 or 1, 0 where null."""
    dropped = 0
    for i in range(codes.shape[0]):
        if _is_null(validity, bit, i):
            codes[i] = 0
            valid[i] = False
            dropped += 1
        else:
            codes[i] = get_bit(address, bit + i)
    return dropped


@njit(
    "int64(int64, int64, boolean, int64, int64, int64, int64, int64, int64, int64, int64[::1], boolean[::1])",
    cache=True,
    nogil=True,
    error_model="numpy",
)
def hash_ints(  # type: ignore[no-untyped-def]
    address, width, signed, low, high, times, per, form, validity, bit, codes, valid
):
    """Folds an integer-like column in: the value times `times` divided by `per`, hashed in the given form.

    The factors bring a unit of time to the one Spark holds. `low` and `high` bound what the type on the other
    side of the join can hold: a value outside has no partner there. Unsigned 64-bit columns are seen as
    signed bits here, so their bounds are either those of int64 (anything goes) or start at 0.
    """
    dropped = 0
    word = np.zeros(1, dtype=np.int64)
    scratch = np.empty(9, dtype=np.uint8)
    for i in range(codes.shape[0]):
        if _is_null(validity, bit, i):
            valid[i] = False
            dropped += 1
            continue
        value = _load_int(address + i * width, width, signed)
        if value < low or value > high:
            valid[i] = False
            dropped += 1
            continue
        value *= times
        if per != 1:
            value //= per
        seed = np.uint64(codes[i])
        if form == AS_INT:
            codes[i] = np.int64(xxhash64_int(value, seed))
        elif form == AS_LONG:
            codes[i] = np.int64(xxhash64_long(value, seed))
        else:
            word[0] = value
            codes[i] = np.int64(_xxhash64_big(word.ctypes.data, 8, False, scratch, seed))
    return dropped


@njit("int64(int64, int64, int64, int64, int64[::1], boolean[::1])", cache=True, nogil=True)
def hash_floats(address, width, validity, bit, codes, valid):  # type: ignore[no-untyped-def]
    """Folds a float column in, by its canonical bits."""
    dropped = 0
    for i in range(codes.shape[0]):
        if _is_null(validity, bit, i):
            valid[i] = False
            dropped += 1
            continue
        value = _load_float(address + i * width, width)
        if width == 4:
            codes[i] = np.int64(xxhash64_int(value, np.uint64(codes[i])))
        else:
            codes[i] = np.int64(xxhash64_long(value, np.uint64(codes[i])))
    return dropped


@njit("int64(int64, int64, int64, int64[::1], boolean[::1])", cache=True, nogil=True)
def hash_bools(address, validity, bit, codes, valid):  # type: ignore[no-untyped-def]
    """Folds a bitmap column in, as the integers 0 and 1."""
    dropped = 0
    for i in range(codes.shape[0]):
        if _is_null(validity, bit, i):
            valid[i] = False
            dropped += 1
            continue
        codes[i] = np.int64(xxhash64_int(get_bit(address, bit + i), np.uint64(codes[i])))
    return dropped


@njit("int64(int64, int64, int64, int64, int64[::1], boolean[::1])", cache=True, nogil=True)
def hash_runs(offsets, address, validity, bit, codes, valid):  # type: ignore[no-untyped-def]
    """Folds a string or binary column in; `offsets` is the address of its int32 offsets."""
    dropped = 0
    for i in range(codes.shape[0]):
        if _is_null(validity, bit, i):
            valid[i] = False
            dropped += 1
            continue
        start = load_i32(offsets + 4 * i)
        length = load_i32(offsets + 4 * i + 4) - start
        codes[i] = np.int64(xxhash64_bytes(address + start, length, np.uint64(codes[i])))
    return dropped


@njit("int64(int64, int64, int64, int64, int64[::1], boolean[::1])", cache=True, nogil=True)
def hash_blocks(address, width, validity, bit, codes, valid):  # type: ignore[no-untyped-def]
    """Folds a column of fixed-size byte blocks in."""
    dropped = 0
    for i in range(codes.shape[0]):
        if _is_null(validity, bit, i):
            valid[i] = False
            dropped += 1
            continue
        codes[i] = np.int64(xxhash64_bytes(address + i * width, width, np.uint64(codes[i])))
    return dropped


@njit("int64(int64, int64, int64, int64, int64, int64[::1], boolean[::1])", cache=True, nogil=True)
def hash_decimals(address, width, form, validity, bit, codes, valid):  # type: ignore[no-untyped-def]
    """Folds a decimal column in, by its unscaled little-endian integers of `width` bytes.

    Up to 18 digits (AS_LONG) the number fits its lowest eight bytes, or all four of them.
    """
    dropped = 0
    scratch = np.empty(width + 1, dtype=np.uint8)
    for i in range(codes.shape[0]):
        if _is_null(validity, bit, i):
            valid[i] = False
            dropped += 1
            continue
        at = address + i * width
        seed = np.uint64(codes[i])
        if form == AS_LONG:
            value = load_i32(at) if width == 4 else load_i64(at)
            codes[i] = np.int64(xxhash64_long(value, seed))
        else:
            codes[i] = np.int64(_xxhash64_big(at, width, True, scratch, seed))
    return dropped
