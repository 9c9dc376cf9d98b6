"""Loads, stores and copies at a raw address, for kernels that walk Arrow buffers and arenas.

The names stand for the intrinsics of `intrinsics`, which only a compilation needs.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from semistream.kernels.compiled import Intrinsic, njit

_intrinsic: Any = partial(Intrinsic, "semistream.kernels.intrinsics")

load_u8 = _intrinsic("load_u8")
load_i8 = _intrinsic("load_i8")
load_u16 = _intrinsic("load_u16")
load_i16 = _intrinsic("load_i16")
load_u32 = _intrinsic("load_u32")
load_i32 = _intrinsic("load_i32")
load_i64 = _intrinsic("load_i64")
load_u64 = _intrinsic("load_u64")
store_u8 = _intrinsic("store_u8")
store_i16 = _intrinsic("store_i16")
store_i32 = _intrinsic("store_i32")
store_i64 = _intrinsic("store_i64")
prefetch = _intrinsic("prefetch")
native_pread = _intrinsic("native_pread")
native_read = _intrinsic("native_read")
native_write = _intrinsic("native_write")
native_madvise = _intrinsic("native_madvise")
native_mincore = _intrinsic("native_mincore")


@njit("void(int64, int64, int64)", cache=True, nogil=True)
def copy_bytes(target, source, count):  # type: ignore[no-untyped-def]
    """memcpy of a short run: words first, then the odd bytes."""
    at = 0
    while at + 8 <= count:
        store_i64(target + at, load_i64(source + at))
        at += 8
    if at + 4 <= count:
        store_i32(target + at, load_i32(source + at))
        at += 4
    while at < count:
        store_u8(target + at, load_u8(source + at))
        at += 1


@njit(nogil=True, inline="always")
def address_of(array):  # type: ignore[no-untyped-def]
    """Address of an array's first element.

    Helpers that are called for every tuple take addresses: an array argument would be reference-counted, atomically,
    at every call, which costs more than the work itself.
    """
    return np.int64(array.ctypes.data)


@njit(nogil=True, inline="always")
def get_bit(address, position):  # type: ignore[no-untyped-def]
    """Bit of an Arrow bitmap."""
    return (load_u8(address + (position >> 3)) >> (position & 7)) & 1


@njit("int64(int64)", cache=True, nogil=True)
def peek_i64(address):  # type: ignore[no-untyped-def]
    """One value at an address, for Python code."""
    return load_i64(address)
