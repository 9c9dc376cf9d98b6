"""Which tuples of a chunk have matched, and with which rows."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from semistream.kernels.tuples import mark_ids, pairs_by_row

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


def mark_tuples(matched: Bools, ids: Int64s, count: int) -> Bools:
    """Mark `ids[:count]`; True for those that were not marked before."""
    first = np.empty(count, dtype=np.bool_)
    mark_ids(ids, count, matched, first)
    return first


def side_by_side(left: Int64s, right: Int64s, count: int) -> tuple[Int64s, Int64s]:
    """The first pairs of a tuple `left[i]` and a row `right[i]`, those of one row close together."""
    lefts, rights = np.empty((2, count), dtype=np.int64)
    if count and pairs_by_row(left, right, count, lefts, rights):
        return lefts, rights
    return left, right
