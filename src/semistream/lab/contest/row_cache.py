"""A least-recently-used cache of rows that works on whole batches of keys: the strongest form of what many write.

It is as recent as a batch: all keys of a batch were used at the same time, and leave at the same time.
"""

from __future__ import annotations

import numpy as np

#: what a row takes besides its values: its key, its slot, when it was used
_ENTRY_BYTES = 24


class RowCache:
    """Rows of int64 values by key; all rows of a key or none."""

    def __init__(self, memory: int, width: int) -> None:
        self.capacity = max(memory // (8 * width + _ENTRY_BYTES), 1)
        self._values = np.empty((self.capacity, width), dtype=np.int64)
        self._free = np.arange(self.capacity)
        # One entry per row, in the order of keys.
        self._keys = np.empty(0, dtype=np.int64)
        self._slots = np.empty(0, dtype=np.int64)
        self._used = np.empty(0, dtype=np.int64)
        self._now = 0

    def __len__(self) -> int:
        return len(self._keys)

    def touch(self, keys: np.ndarray) -> np.ndarray:
        """Which of these keys are here; they are the most recently used now."""
        self._now += 1
        first, last = self._range(keys)
        self._used[_runs(first, last - first)] = self._now
        return np.asarray(last > first)

    def rows(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """For each row of each of these keys, which of the keys it belongs to, and its values."""
        first, last = self._range(keys)
        at = np.repeat(np.arange(len(keys)), last - first)
        return at, self._values[self._slots[_runs(first, last - first)]]

    def put(self, keys: np.ndarray, rows: np.ndarray) -> None:
        """Keep these rows, sorted by key and not here yet, in the place of the least recently used."""
        if len(keys) > self.capacity:
            # As many whole keys as there is room for.
            cut = int(np.searchsorted(keys, keys[self.capacity]))
            keys, rows = keys[:cut], rows[:cut]
        short = len(keys) - len(self._free)
        if short > 0:
            last_to_go = np.partition(self._used, short - 1)[short - 1]
            stays = self._used > last_to_go
            self._free = np.concatenate((self._free, self._slots[~stays]))
            self._keys, self._slots, self._used = self._keys[stays], self._slots[stays], self._used[stays]
        slots, self._free = self._free[: len(keys)], self._free[len(keys) :]
        self._values[slots] = rows
        before = np.searchsorted(self._keys, keys)
        self._keys = np.insert(self._keys, before, keys)
        self._slots = np.insert(self._slots, before, slots)
        self._used = np.insert(self._used, before, self._now)

    def _range(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.searchsorted(self._keys, keys, side="left"), np.searchsorted(self._keys, keys, side="right")


def _runs(first: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The numbers first .. first + count - 1 of each run, one run behind the other."""
    ends = np.cumsum(counts)
    return np.repeat(first - ends + counts, counts) + np.arange(int(ends[-1]) if len(ends) else 0)
