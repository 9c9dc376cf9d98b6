"""How many bytes a cache may have: it must answer at least the part of the stream that it has of the tables.

A cache with the share s of the table bytes leaves room for 1 − s of the tuples that could wait without it. If it
answers the part p of the stream, an R-cycle (or a load) finishes (1 − s) / (1 − p) times as many tuples. That is a gain
while p > s: the cache inequality, summed over all keys that are cached.

The plan's share is the most a cache gets, and what it begins with. A cache with p < s falls back to the smallest share.
From there it doubles while p is not below the larger s, which needs no hope for further hits: so what it costs has a
bound, the smallest share, and sizes do not swing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from semistream.parts.arena import Arena
from semistream.parts.cache import Cache
from semistream.parts.pending import FifoPending, LinkedPending

#: the smallest share of a cache, as a part of the planned one: enough to see whether hits come back
_LEAST_PART = 1 / 32
_LEAST_EXTENTS, _LEAST_KEYS = 1, 32
#: hits that grow fast enough to be as many as the share asks for after so many reviews are still rising
_HORIZON = 8
#: reviews in a row that must find too few hits
_TOO_FEW = 2


@dataclass(frozen=True)
class Range:
    """The least and the most bytes of a cache, and the bytes that it shares with H_S."""

    least: int
    most: int
    total: int

    @staticmethod
    def of(cache_bytes: int, pending_bytes: int, extent_bytes: int) -> Range:
        """The range of a plan's cache."""
        least = max(int(cache_bytes * _LEAST_PART), _LEAST_EXTENTS * extent_bytes + Cache.directory_bytes(_LEAST_KEYS))
        return Range(min(least, cache_bytes), cache_bytes, cache_bytes + pending_bytes)

    def fitting(self, size: int, answered: float) -> int:
        """Bytes for a cache of `size` that answers this part of the stream."""
        if answered < size / self.total:
            return self.least
        while size < self.most and answered >= min(2 * size, self.most) / self.total:
            size = min(2 * size, self.most)
        return size

    def at_rest(self, answered: Callable[[int], float]) -> int:
        """Bytes of the cache when nothing changes any more; `answered` says what a cache of that size would answer."""
        if answered(self.most) >= self.most / self.total:
            return self.most
        size = self.least
        while (larger := self.fitting(size, answered(size))) > size:
            size = larger
        return size


class ShareReview:
    """Looks at the hits from time to time. `patience` reviews are passed over while a fresh cache fills."""

    def __init__(self, sizes: Range, patience: int) -> None:
        self.range = sizes
        self.size = sizes.most
        self._patience = self._left = patience
        self._before = 0.0
        self._too_few = 0

    def wanted(self, hits: int, asked: int) -> int:
        """Bytes that the cache should have, after so many hits since the last review."""
        answered = hits / max(asked, 1)
        rising = _HORIZON * (answered - self._before) > self.size / self.range.total - answered
        self._before = answered
        if self._left:
            self._left -= 1
            return self.size
        fitting = self.range.fitting(self.size, answered)
        self._too_few = self._too_few + 1 if fitting < self.size and not rising else 0
        if fitting < self.size and self._too_few < _TOO_FEW:
            return self.size
        return fitting

    def resized(self, size: int) -> None:
        """The cache starts anew with that many bytes."""
        self.size = size
        self._left, self._before, self._too_few = self._patience, 0.0, 0


def divide_anew(
    arena: Arena, cache: Cache, pending: FifoPending | LinkedPending, cache_bytes: int, total: int, keys: int
) -> None:
    """Give an empty cache of `keys` keys that many bytes, and H_S the rest; only while nobody waits."""
    arena.clear()
    cache.restart(cache_bytes, keys)
    pending.restart(total - cache_bytes)
