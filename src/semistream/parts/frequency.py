"""Which keys deserve a place in the cache: a threshold that finds its own level, and a sketch that remembers misses."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from semistream.errors import ConfigError
from semistream.kernels import sketch as kernel
from semistream.kernels.chance import beyond_chance

__all__ = ["AdaptiveThreshold", "FrequencySketch", "beyond_chance"]

Int64s = npt.NDArray[np.int64]

_LEAST_COUNTERS = 64


class AdaptiveThreshold:
    """The match frequency a master tuple must reach to enter the cache (SSJ, CACHEJOIN).

    It falls while the cache has room and rises when evictions come too often: more than `churn` of the cache
    between two adjustments.
    """

    def __init__(self, start: int = 2, churn: float = 0.05) -> None:
        if start < 1:
            raise ConfigError(f"threshold={start} is out of range; allowed are whole numbers from 1")
        self.value = start
        self._churn = churn

    def adjust(self, has_room: bool, evicted: int, capacity: int) -> None:
        if has_room:
            self.value = max(1, self.value - 1)
        elif evicted > self._churn * capacity:
            self.value += 1
        elif evicted == 0 and self.value > 1:
            self.value -= 1


class FrequencySketch:
    """How often a key was asked for lately, cached or not, in two bytes per counter pair.

    Its owner halves all counts after every `window` stream tuples, so the sketch follows the stream.
    """

    def __init__(self, counters: int, window: int) -> None:
        self.table = np.zeros((2, self.bytes_for(counters) // 2), dtype=np.uint8)
        self.window = max(window, 1)

    @staticmethod
    def bytes_for(counters: int) -> int:
        """Bytes of a sketch with that many counter pairs."""
        return 2 * max(counters, _LEAST_COUNTERS)

    @property
    def bytes_held(self) -> int:
        return self.table.nbytes

    def add(self, codes: Int64s, times: Int64s) -> Int64s:
        """Count each code `times` times more, and return the new estimate of each."""
        estimates = np.empty(len(codes), dtype=np.int64)
        kernel.sketch_add(codes, times, self.table, estimates)
        return estimates

    def age(self) -> None:
        """The past counts half."""
        kernel.sketch_halve(self.table)
