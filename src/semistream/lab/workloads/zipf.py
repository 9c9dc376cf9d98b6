"""Keys of a stream by Zipf's law, any exponent, with the hot keys scattered over the key domain.

The k-th most frequent of n keys has a probability proportional to 1 / k^exponent: 0 is uniform, 1 is what the
papers take for sales data. If rank were key, all hot master tuples would lie on the first pages of an ordered
store and any block cache would look clever; so a seeded bijection sends each rank to its key.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import uint64

from semistream.kernels.compiled import njit
from semistream.lab.workloads.counter import scatter, scatter_one, splitmix64, stream_seed

# A draw takes 1.1 attempts on average; each row owns this many words, so the words of
# two rows do not meet.
_WORDS_PER_ROW = 64


def _integral(x: Any, exponent: Any) -> Any:
    # Of t^-exponent from 1 to x, in a form that keeps its digits around exponent 1, where it is log(x).
    log_x = math.log(x)
    y = (1.0 - exponent) * log_x
    if abs(y) < 1e-8:
        return log_x * (1.0 + y * (0.5 + y / 6.0))
    return math.expm1(y) / (1.0 - exponent)


def _integral_inverse(u: Any, exponent: Any) -> Any:
    y = u * (1.0 - exponent)
    if abs(y) < 1e-8:
        return math.exp(u * (1.0 - y * (0.5 - y / 3.0)))
    return math.exp(math.log1p(max(y, -1.0)) / (1.0 - exponent))


_h_integral = njit("float64(float64, float64)", cache=True, nogil=True)(_integral)
_h_inverse = njit("float64(float64, float64)", cache=True, nogil=True)(_integral_inverse)


def _zipf_into(n: Any, exponent: Any, draw_seed: Any, scatter_seed: Any, start: Any, out: Any) -> None:
    # Rejection-inversion after Hörmann and Derflinger (1996): invert the integral of the hat, round to the
    # rank, reject the sliver that belongs to no rank. Exact for every n, with no table to build.
    top = _h_integral(1.5, exponent) - 1.0
    bottom = _h_integral(n + 0.5, exponent)
    accept = 2.0 - _h_inverse(_h_integral(2.5, exponent) - math.exp(-exponent * math.log(2.0)), exponent)
    domain = uint64(n)
    for i in range(out.shape[0]):
        position = uint64(start + i) * uint64(_WORDS_PER_ROW)
        attempt = uint64(0)
        while True:
            word = splitmix64(draw_seed, position + attempt) >> uint64(11)
            attempt += uint64(1)
            u = bottom + (float(word) + 0.5) * 2.0**-53 * (top - bottom)
            x = _h_inverse(u, exponent)
            rank = int(x + 0.5)
            rank = min(max(rank, 1), n)
            if rank - x <= accept or u >= _h_integral(rank + 0.5, exponent) - math.exp(
                -exponent * math.log(float(rank))
            ):
                break
        out[i] = scatter_one(uint64(rank - 1), domain, scatter_seed)


_zipf = njit("void(int64, float64, uint64, uint64, int64, int64[::1])", cache=True, nogil=True)(_zipf_into)


def zipf_keys(
    n_keys: int, exponent: float, seed: int, start: int, count: int, *, hot_seed: int | None = None
) -> np.ndarray:
    """Keys of the stream's rows start .. start + count - 1, int64 in [0, n_keys).

    `hot_seed` (default: `seed`) decides which keys are hot: another one in mid-stream changes them all.

    >>> whole = zipf_keys(1000, 1.0, seed=7, start=0, count=10)
    >>> (zipf_keys(1000, 1.0, seed=7, start=6, count=4) == whole[6:]).all()
    np.True_
    """
    if n_keys < 1 or exponent < 0 or start < 0 or count < 0:
        raise ValueError(f"no Zipf stream of {n_keys} keys, exponent {exponent}, rows {start} + {count}")
    out = np.empty(count, dtype=np.int64)
    scatter_seed = stream_seed(seed if hot_seed is None else hot_seed, "scatter")
    _zipf(n_keys, float(exponent), np.uint64(stream_seed(seed, "zipf")), np.uint64(scatter_seed), start, out)
    return out


def zipf_probabilities(n_keys: int, exponent: float) -> np.ndarray:
    """Probability of each rank, the most frequent first."""
    weights = np.arange(1, n_keys + 1, dtype=np.float64) ** -float(exponent)
    return np.asarray(weights / weights.sum())


def key_probabilities(n_keys: int, exponent: float, hot_seed: int) -> np.ndarray:
    """Probability of each key of [0, n_keys) in the stream that `zipf_keys` makes with that seed."""
    by_key = np.empty(n_keys, dtype=np.float64)
    by_key[scatter(np.arange(n_keys, dtype=np.int64), n_keys, hot_seed)] = zipf_probabilities(n_keys, exponent)
    return by_key
