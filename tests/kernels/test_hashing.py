"""XXH64 against published vectors and a plain transcription of its definition; the page checksum's base."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semistream.kernels.hashing import xxhash64_bytes, xxhash64_int, xxhash64_long
from semistream.kernels.tuples import hash32

MASK = (1 << 64) - 1
P1, P2, P3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
P4, P5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5

seeds = st.integers(0, MASK)
int64s = st.integers(-(1 << 63), (1 << 63) - 1)


def rotate(value: int, count: int) -> int:
    return ((value << count) | (value >> (64 - count))) & MASK


def plain_xxh64(data: bytes, seed: int) -> int:
    """XXH64 as its specification states it."""

    def step(lane: int, word: int) -> int:
        return rotate((lane + word * P2) & MASK, 31) * P1 & MASK

    def number(at: int, size: int) -> int:
        return int.from_bytes(data[at : at + size], "little")

    at = 0
    value = seed + P5
    if len(data) >= 32:
        lanes = [(seed + P1 + P2) & MASK, (seed + P2) & MASK, seed, (seed - P1) & MASK]
        while at + 32 <= len(data):
            lanes = [step(lane, number(at + 8 * i, 8)) for i, lane in enumerate(lanes)]
            at += 32
        value = sum(rotate(lane, turn) for lane, turn in zip(lanes, (1, 7, 12, 18), strict=True))
        for lane in lanes:
            value = ((value & MASK) ^ step(0, lane)) * P1 + P4
    value = (value + len(data)) & MASK
    while at + 8 <= len(data):
        value = (rotate(value ^ step(0, number(at, 8)), 27) * P1 + P4) & MASK
        at += 8
    if at + 4 <= len(data):
        value = (rotate(value ^ (number(at, 4) * P1 & MASK), 23) * P2 + P3) & MASK
        at += 4
    for byte in data[at:]:
        value = rotate(value ^ (byte * P5 & MASK), 11) * P1 & MASK
    value = (value ^ (value >> 33)) * P2 & MASK
    value = (value ^ (value >> 29)) * P3 & MASK
    return value ^ (value >> 32)


def hash_of(data: bytes, seed: int, shift: int = 0) -> int:
    held = np.frombuffer(bytes(shift) + data + b"\xff", dtype=np.uint8)
    return int(xxhash64_bytes(held.ctypes.data + shift, len(data), np.uint64(seed)))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"", 0xEF46DB3751D8E999),
        (b"a", 0xD24EC4F1A98C6E5B),
        (b"abc", 0x44BC2CF5AD770999),
        (b"Nobody inspects the spammish repetition", 0xFBCEA83C8A378BF1),
    ],
)
def test_published_vectors(text: bytes, expected: int) -> None:
    assert hash_of(text, 0) == expected


@pytest.mark.parametrize("length", range(101))
def test_every_short_length(length: int) -> None:
    data = bytes((7 * i + length) % 256 for i in range(length))
    assert hash_of(data, 42) == plain_xxh64(data, 42)


@given(data=st.binary(max_size=400), seed=seeds, shift=st.integers(0, 9))
def test_any_bytes_any_seed_any_alignment(data: bytes, seed: int, shift: int) -> None:
    assert hash_of(data, seed, shift) == plain_xxh64(data, seed)


@given(value=int64s, seed=seeds)
def test_numbers_hash_as_their_little_endian_bytes(value: int, seed: int) -> None:
    eight = value.to_bytes(8, "little", signed=True)
    assert int(xxhash64_long(value, np.uint64(seed))) == plain_xxh64(eight, seed)
    assert int(xxhash64_int(value, np.uint64(seed))) == plain_xxh64(eight[:4], seed)


@given(bit=st.integers(0, 8 * 4096 - 1))
def test_checksum_sees_any_flipped_bit(bit: int) -> None:
    page = bytearray((31 * i) % 256 for i in range(4096))
    before = hash_of(bytes(page), 0)
    page[bit >> 3] ^= 1 << (bit & 7)
    assert hash_of(bytes(page), 0) != before


@pytest.mark.parametrize("stride", [1, 2, 1 << 12, 1 << 32, -(1 << 20)])
def test_tables_spread_strided_keys_over_their_slots(stride: int) -> None:
    slots = np.array([hash32(stride * i) for i in range(1 << 14)])
    for taken in (slots & 255, slots >> 24):
        counts = np.bincount(taken, minlength=256)
        # 64 expected in each of 256 slots; five standard deviations.
        assert counts.min() > 24
        assert counts.max() < 104


def test_tables_hash_with_the_upper_half_of_splitmix64() -> None:
    # First output of the reference generator from state 0: its finaliser applied to the golden gamma.
    assert hash32(0x9E3779B97F4A7C15 - (1 << 64)) == 0xE220A8397B1DCDAF >> 32
