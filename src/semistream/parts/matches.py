"""Which tuples of a chunk have matched."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from semistream.kernels.tuples import mark_ids

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


def mark_tuples(matched: Bools, ids: Int64s, count: int) -> Bools:
    """Mark `ids[:count]`; True for those that were not marked before."""
    first = np.empty(count, dtype=np.bool_)
    mark_ids(ids, count, matched, first)
    return first
