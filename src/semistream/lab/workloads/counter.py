"""Randomness by counting: every draw is a hash of (seed, position), so no draw depends on another.

A generator with a state gives row 5,000,000 only to those who drew the rows before it. Here a row is a
function of the seed and its own number: parts of a table made in other processes, in another order or in
other batch sizes fit together bit for bit.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numba import uint64

from semistream.kernels.compiled import njit

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def stream_seed(seed: int, purpose: str) -> int:
    """A seed of its own for each purpose: keys and columns of one table must not share their draws."""
    digest = hashlib.blake2b(f"{seed}/{purpose}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def _splitmix64(seed: Any, position: Any) -> Any:
    # The position-th output of the SplitMix64 generator started at `seed`: it can be entered anywhere.
    x = uint64(seed) + (uint64(position) + uint64(1)) * _GOLDEN
    x = (x ^ (x >> uint64(30))) * _MIX_1
    x = (x ^ (x >> uint64(27))) * _MIX_2
    return x ^ (x >> uint64(31))


splitmix64 = njit("uint64(uint64, uint64)", cache=True, nogil=True, inline="always")(_splitmix64)


def _bits_below(n: Any) -> Any:
    # The fewest bits with 2^bits >= n.
    bits = uint64(0)
    while (uint64(1) << bits) < n:
        bits += uint64(1)
    return bits


bits_below = njit("uint64(uint64)", cache=True, nogil=True, inline="always")(_bits_below)


def _feistel(value: Any, n: Any, seed: Any) -> Any:
    # An alternating Feistel network permutes the smallest 2^bits >= n values; walking on until the value is
    # below n restricts the permutation to [0, n). Fewer than two steps on average, for 2^bits < 2n.
    bits = bits_below(n)
    low_bits = bits >> uint64(1)
    low_mask = (uint64(1) << low_bits) - uint64(1)
    high_mask = (uint64(1) << (bits - low_bits)) - uint64(1)
    x = uint64(value)
    while True:
        low = x & low_mask
        high = x >> low_bits
        for r in range(3):
            high ^= splitmix64(seed + uint64(2 * r), low) & high_mask
            low ^= splitmix64(seed + uint64(2 * r + 1), high) & low_mask
        x = (high << low_bits) | low
        if x < n:
            return x


scatter_one = njit("uint64(uint64, uint64, uint64)", cache=True, nogil=True)(_feistel)


def _feistel_back(value: Any, n: Any, seed: Any) -> Any:
    # The same rounds in the opposite order; the walk passes the same values in the other direction.
    bits = bits_below(n)
    low_bits = bits >> uint64(1)
    low_mask = (uint64(1) << low_bits) - uint64(1)
    high_mask = (uint64(1) << (bits - low_bits)) - uint64(1)
    x = uint64(value)
    while True:
        low = x & low_mask
        high = x >> low_bits
        for r in range(2, -1, -1):
            low ^= splitmix64(seed + uint64(2 * r + 1), high) & low_mask
            high ^= splitmix64(seed + uint64(2 * r), low) & high_mask
        x = (high << low_bits) | low
        if x < n:
            return x


_gather_one = njit("uint64(uint64, uint64, uint64)", cache=True, nogil=True)(_feistel_back)


def _scatter_into(values: Any, n: Any, seed: Any, out: Any) -> None:
    for i in range(values.shape[0]):
        out[i] = scatter_one(uint64(values[i]), n, seed)


def _gather_into(values: Any, n: Any, seed: Any, out: Any) -> None:
    for i in range(values.shape[0]):
        out[i] = _gather_one(uint64(values[i]), n, seed)


_scatter = njit("void(int64[::1], uint64, uint64, int64[::1])", cache=True, nogil=True)(_scatter_into)
_gather = njit("void(int64[::1], uint64, uint64, int64[::1])", cache=True, nogil=True)(_gather_into)


def _plain(values: np.ndarray) -> np.ndarray:
    """As the kernels want them; what comes from Arrow is read-only and has to be copied."""
    return np.require(values, dtype=np.int64, requirements=["C", "W"])


def _moved(kernel: Any, values: np.ndarray, n: int, seed: int) -> np.ndarray:
    source = _plain(values)
    if source.size and (int(source.min()) < 0 or int(source.max()) >= n):
        raise ValueError(f"values must be in [0, {n})")
    out = np.empty(source.shape[0], dtype=np.int64)
    kernel(source, np.uint64(n), np.uint64(stream_seed(seed, "scatter")), out)
    return out


def scatter(values: np.ndarray, n: int, seed: int) -> np.ndarray:
    """Move values of [0, n) to other places of [0, n), no two to the same one.

    >>> sorted(scatter(np.arange(7), 7, seed=1).tolist())
    [0, 1, 2, 3, 4, 5, 6]
    """
    return _moved(_scatter, values, n, seed)


def gather(values: np.ndarray, n: int, seed: int) -> np.ndarray:
    """Where `scatter` with the same n and seed took the values from: the rank of a key.

    >>> gather(scatter(np.arange(7), 7, seed=1), 7, seed=1).tolist()
    [0, 1, 2, 3, 4, 5, 6]
    """
    return _moved(_gather, values, n, seed)


def _words_into(seed: Any, start: Any, out: Any) -> None:
    for i in range(out.shape[0]):
        out[i] = splitmix64(seed, uint64(start + i))


_words = njit("void(uint64, int64, uint64[::1])", cache=True, nogil=True)(_words_into)


def words(seed: int, start: int, count: int) -> np.ndarray:
    """uint64 draws number start .. start + count - 1 of the sequence that `seed` names."""
    out = np.empty(count, dtype=np.uint64)
    _words(np.uint64(seed), start, out)
    return out


def _words_at_into(seed: Any, positions: Any, out: Any) -> None:
    for i in range(out.shape[0]):
        out[i] = splitmix64(seed, uint64(positions[i]))


_words_at = njit("void(uint64, int64[::1], uint64[::1])", cache=True, nogil=True)(_words_at_into)


def words_at(seed: int, positions: np.ndarray) -> np.ndarray:
    """The uint64 draws at these positions: what belongs to a thing (a product's price) and not to a row."""
    out = np.empty(len(positions), dtype=np.uint64)
    _words_at(np.uint64(seed), _plain(positions), out)
    return out


def unit(draws: np.ndarray) -> np.ndarray:
    """uint64 draws as float64, uniform in (0, 1]: never 0, so that a logarithm can be taken."""
    return ((draws >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53


def scaled(draws: np.ndarray, n: int) -> np.ndarray:
    """uint64 draws as int64, uniform in [0, n).

    The high 53 bits scaled by n: the bias is below n / 2^53, invisible for any table that fits on a disk.
    """
    return ((draws >> np.uint64(11)) * (n * 2.0**-53)).astype(np.int64)


def below(n: int, seed: int, start: int, count: int) -> np.ndarray:
    """int64 draws, uniform in [0, n), from the sequence that `seed` names."""
    return scaled(words(seed, start, count), n)
