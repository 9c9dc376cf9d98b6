"""When the budget holds all of R: load it once and join in memory (Theorem 3 of the SSBJ paper).

A key that is not in the cache is then not in R, so no tuple ever waits.
"""

from __future__ import annotations

import numpy as np

from semistream.kernels import cache as cache_kernel
from semistream.kernels.rows import BLOCK_BYTES, BLOCK_ROOM
from semistream.operators.base import SemiStreamJoin
from semistream.parts.arena import Arena
from semistream.parts.cache import MAX_LOAD, Cache

_LOAD = 0.7


def resident_bytes(join: SemiStreamJoin) -> int:
    """Bytes of all of R in the cache, with room to spare for the arena's extents."""
    layout = join._master_layout
    rows = join.reader.n_rows
    entry = cache_kernel.ENTRY_BYTES / _LOAD
    var = 0.0
    if layout.has_var:
        var = (join.master.row_bytes / BLOCK_ROOM + len(layout.var_columns)) * BLOCK_BYTES
    return int(rows * (layout.slot_bytes + entry + var) * 1.01) + (1 << 17)


def load_all(join: SemiStreamJoin, arena: Arena) -> Cache | None:
    """A cache that holds every tuple of R, read in one pass; None, and a free arena, when they have no room."""
    cache = Cache(arena, join._master_layout, join.budget.spare, resident_keys(join))
    if fill(join, cache):
        return cache
    arena.clear()
    return None


def resident_keys(join: SemiStreamJoin) -> int:
    """Keys for which a directory is made when all of R is to be held."""
    return int(join.reader.n_rows / _LOAD * MAX_LOAD) + 8


def fill(join: SemiStreamJoin, cache: Cache) -> bool:
    """Put all of R into an empty cache; False when it has no room for all.

    `resident_bytes` goes by the mean size of a row, which for Parquet in place is that of the first rows.
    """
    arena, disk = cache.arena, join.borrow_disk()
    cache.counting = False
    slots = np.empty(join.scratch.size, dtype=np.int64)
    ids = np.empty(join.scratch.size, dtype=np.int64)
    for page in range(0, join.reader.n_pages, join.buffer_pages):
        block = disk.load(page, join.buffer_pages)
        at = 0
        while at < block.n_rows:
            stop = min(block.n_rows, at + len(slots))
            if cache.fitting(block.row_ids(np.arange(at, stop)), block) < stop - at:
                return False
            filled = int(
                cache_kernel.cache_load(
                    disk.codes,
                    at,
                    cache.entries,
                    arena.state,
                    arena.stack,
                    cache.pool.state,
                    cache.state,
                    slots,
                    ids,
                    block.n_rows,
                )
            )
            cache.pack(block, block.row_ids(ids[:filled]), filled, slots)
            at += filled
        join.stats.iterations += 1
    join.stats.r_cycles += 1
    join.stats.switched += join.reader.n_rows
    return True
