"""Absence without an entry a key: a Bloom filter of R's keys, filled while R is scanned for the first time.

The optimum of the cache inequality counts a key that R lacks as free (m = 0). A directory entry for each is not, and
the rare ones never pay for theirs. A few bits a key of R answer nearly all of them.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from semistream.kernels import keyfilter as kernel

Int64s = npt.NDArray[np.int64]

_MOST_BITS = 6.0
_LEAST_BITS = 0.75


class KeyFilter:
    """Knows every key it was given; `ready` once it was given all of R."""

    def __init__(self, size: int, rows: int) -> None:
        self.table = np.zeros(size, dtype=np.uint8)
        self.hashes = min(max(round(0.69 * size * 8 / max(rows, 1)), 1), 4)
        self.ready = False
        self.asked = 0
        self.absent = 0

    @staticmethod
    def size_for(rows: int, most_bytes: int) -> int:
        """Bytes worth spending; 0 when so few bits a row would tell nothing."""
        size = min(int(rows * _MOST_BITS / 8), most_bytes)
        return size if size * 8 >= rows * _LEAST_BITS else 0

    @property
    def bytes_held(self) -> int:
        return self.table.nbytes

    def add(self, codes: Int64s, count: int) -> None:
        kernel.filter_add(codes, count, self.table, self.hashes)

    def split(self, codes: Int64s, ids: Int64s, count: int, absent: Int64s) -> int:
        """Keep in `ids[:count]` the tuples R may answer, the rest in `absent`; returns how many are kept."""
        kept = int(kernel.filter_split(codes, ids, count, self.table, self.hashes, absent))
        self.asked += count
        self.absent += count - kept
        return kept
