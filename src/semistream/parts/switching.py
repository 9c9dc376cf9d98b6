"""The switching buffer sB: master tuples on their way into the cache.

A key is cached with all of its master tuples or not at all. Where R has no order they come one by one during a full
R-cycle, so they are kept in the cache's own slots under an entry that the stream does not see yet; making them visible
moves no bytes.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from semistream.kernels import cache as kernel
from semistream.kernels import rows as row_kernel
from semistream.kernels import switching
from semistream.master.base import PageBlock
from semistream.parts.cache import Cache

Int64s = npt.NDArray[np.int64]


def collect_rows(cache: Cache, block: PageBlock, codes: Int64s, slots: Int64s, make_room: bool) -> int:
    """Take the rows of switching keys out of a block; returns how many.

    When no slot is left, the least frequent cached keys make room if `make_room`; else, and when that does not help,
    some of the keys being collected are given up, rows and all: half a key must not be cached. A key that has more rows
    than it was named with is given up as well.
    """
    if cache.state[kernel.C_SWITCHING_KEYS] == 0:
        return 0
    cursor = np.zeros(3, dtype=np.int64)
    ids = np.empty(len(slots), dtype=np.int64)
    longest = _longest_chain(cache, block) if cache.layout.has_var else 0
    taken = attempts = 0
    while True:
        filled = int(
            switching.collect(
                codes,
                block.n_rows,
                cache.entries,
                cache.state,
                cache.pool.view,
                cursor,
                slots,
                ids,
                _room(cache, longest, len(slots)),
            )
        )
        cache.pack(block, block.row_ids(ids[:filled]), filled, slots)
        taken += filled
        if cursor[2]:
            switching.drop_overgrown(cache.table)
            cursor[2] = 0
        if cursor[1] == 2:
            return taken
        if filled == 0 or cursor[1] == 1:
            evictable = cache.keys - int(cache.state[kernel.C_SWITCHING_KEYS])
            if make_room and evictable:
                cache.evict_least(max(evictable // 50, 64))
            else:
                attempts += 1
                if not _give_up_some(cache, attempts):
                    return taken


def _give_up_some(cache: Cache, attempt: int) -> bool:
    """Forget about an eighth of the keys being collected, all of them when they are few; False when none is left."""
    few = cache.state[kernel.C_SWITCHING_KEYS] <= 8
    salt = attempt * 0x9E3779B97F4A7C1 & (2**63 - 1)
    switching.drop_switching(cache.table, 2**32 if few else 2**29, salt)
    return bool(cache.state[kernel.C_SWITCHING_KEYS] > 0)


def _room(cache: Cache, longest: int, most: int) -> int:
    """Rows that surely fit when each takes up to `longest` VAR blocks."""
    if longest == 0:
        return min(cache.row_room, most)
    low, high = 0, most
    while low < high:
        rows = (low + high + 1) // 2
        extents = -(-max(rows - cache.pool.ready, 0) // cache.pool.slots_per_extent)
        extents += -(-max(rows * longest - cache.blocks.ready, 0) // cache.blocks.slots_per_extent)
        if extents <= cache.spare_extents:
            low = rows
        else:
            high = rows - 1
    return low


def _longest_chain(cache: Cache, block: PageBlock) -> int:
    """VAR blocks of the block's longest row."""
    ids = block.row_ids(np.arange(block.n_rows, dtype=np.int64))
    var_bytes = cache.layout.var_bytes(block, ids, 0, block.n_rows)
    return max(int(-(-var_bytes.max(initial=0) // row_kernel.BLOCK_ROOM)), 1)
