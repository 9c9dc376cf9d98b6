"""Absence without an entry per key: a filter of R's keys, filled while R is scanned for the first time.

The optimum of the cache inequality counts a key that R lacks as free (m = 0). A directory entry for each is not, and
the rare ones never pay for theirs. Where R's keys are numbers close together, as surrogate keys are, a bit for
each number between the first and the last answers all of them; elsewhere a Bloom filter answers nearly all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from semistream.kernels import keyfilter as kernel

Int64s = npt.NDArray[np.int64]

_MOST_BITS = 6.0
_LEAST_BITS = 0.75
#: the most either form may take of the bytes for tables; one that answers too little for that is dropped
_BLOOM_SHARE, _BITMAP_SHARE = 0.06, 0.15
_INT64 = np.iinfo(np.int64)


@dataclass(frozen=True)
class FilterPlan:
    """The filter worth having: a Bloom filter with that many hashes, or, with none, bits from the code `first` on."""

    bytes: int
    hashes: int = 0
    first: int = 0
    #: chance that a key which R lacks is not found out
    misses: float = 0.0

    @staticmethod
    def make(rows: int, table_bytes: float, codes: tuple[int, int] | None) -> FilterPlan | None:
        """For R of `rows` tuples, with codes in this range if known; None: too few bits per tuple for any use."""
        if codes is not None:
            size = (codes[1] - codes[0]) // 8 + 1
            if size <= min(_BITMAP_SHARE * table_bytes, rows * _MOST_BITS / 8):
                return FilterPlan(size, first=codes[0])
        size = min(int(rows * _MOST_BITS / 8), int(_BLOOM_SHARE * table_bytes))
        if size == 0 or size * 8 < rows * _LEAST_BITS:
            return None
        bits = size * 8 / rows
        hashes = min(max(round(0.69 * bits), 1), 4)
        return FilterPlan(size, hashes, misses=(1.0 - math.exp(-hashes / bits)) ** hashes)


class KeyFilter:
    """Knows every key it was given; `ready` once it was given all of R."""

    def __init__(self, plan: FilterPlan) -> None:
        self.plan = plan
        self.table = np.zeros(plan.bytes, dtype=np.uint8)
        self.ends = np.array([_INT64.max, _INT64.min], dtype=np.int64)
        self.ready = False
        self.asked = 0
        self.absent = 0

    @property
    def bytes_held(self) -> int:
        return self.table.nbytes

    def add(self, codes: Int64s, count: int) -> None:
        kernel.filter_add(codes, count, self.table, self.plan.hashes, self.plan.first, self.ends)

    def split(self, codes: Int64s, ids: Int64s, count: int, absent: Int64s) -> int:
        """Keep in `ids[:count]` the tuples R may answer, the rest in `absent`; returns how many are kept."""
        plan = self.plan
        kept = int(kernel.filter_split(codes, ids, count, self.table, plan.hashes, plan.first, self.ends, absent))
        self.asked += count
        self.absent += count - kept
        return kept
