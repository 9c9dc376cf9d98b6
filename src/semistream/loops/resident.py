"""When the budget holds all of R: load it once and join in memory (theorem 3 of the SSBJ paper).

A key that is not in the cache is then not in R, so no tuple ever waits.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from semistream.engine.facts import MasterFacts
from semistream.engine.loop import Loop
from semistream.engine.workplace import Workplace
from semistream.parts.arena import Arena, ArenaShape
from semistream.parts.cache import MAX_LOAD, Cache
from semistream.parts.disk_buffer import DiskBuffer
from semistream.predict.counts import Counts

_LOAD = 0.7
#: room for extents that are not full, and for the arena's own needs
_EXTENTS, _REST = 1.01, 1 << 17


def resident_bytes(r: MasterFacts) -> int:
    """Bytes of all of R in the cache, with room to spare for the arena's extents."""
    return int(r.rows * (r.row_slot + Cache.entry_bytes(_LOAD) + r.block_bytes) * _EXTENTS) + _REST


def fits(r: MasterFacts, table_bytes: int) -> bool:
    """Whether a plan should hold all of R."""
    return r.rows > 0 and resident_bytes(r) <= table_bytes


def load_all(work: Workplace, arena: Arena, table_bytes: int) -> Cache | None:
    """A cache that holds every tuple of R, read in one pass; None, and a free arena, when they have no room.

    `resident_bytes` goes by the mean size of a row, which for Parquet in place is that of the first rows.
    """
    cache = Cache(arena, work.row_layout, table_bytes, resident_keys(work.reader.n_rows))
    if _fill(work, cache, work.disk):
        cache.complete = True
        return cache
    arena.clear()
    return None


def resident_keys(rows: int) -> int:
    """Keys for which a directory is made when all of R is to be held."""
    return int(rows / _LOAD * MAX_LOAD) + 8


def fill(loop: Loop, cache: Cache, check: Callable[[], None] = lambda: None) -> bool:
    """Put all of R into an empty cache, with the means of a running join; False when it has no room for all.

    `check` is called before each load; what it raises ends this.
    """
    return _fill(loop.work, cache, loop.borrow_disk(), check)


def _fill(work: Workplace, cache: Cache, disk: DiskBuffer, check: Callable[[], None] = lambda: None) -> bool:
    cache.counting = False
    slots, ids = (np.empty(work.scratch.size, dtype=np.int64) for _ in range(2))
    for page in range(0, work.reader.n_pages, disk.n_pages):
        check()
        block = disk.load(page, disk.n_pages)
        at = 0
        while at < block.n_rows:
            stop = min(block.n_rows, at + len(slots))
            if cache.fitting(block.row_ids(np.arange(at, stop)), block) < stop - at:
                return False
            filled = cache.load(disk.codes, at, block.n_rows, slots, ids)
            cache.pack(block, block.row_ids(ids[:filled]), filled, slots)
            at += filled
        work.stats.iterations += 1
    work.stats.r_cycles += 1
    work.stats.switched += work.reader.n_rows
    return True


def resident_counts(r: MasterFacts, arena: ArenaShape) -> Counts:
    """c = w·(c_S + c_H + c_O): every tuple is answered at once, a miss being a key that R lacks.

    Before the first tuple R is read once, and each of its tuples is put into the cache.
    """
    return Counts(
        {"cache_hits": 1.0, "cache_misses": 0.0},
        memory={"arena table": arena.table_bytes, "cache": resident_bytes(r) - _REST},
        symbols={"h_R": r.rows, "h_S": 0.0, "p_N": 1.0},
        start=load_counts(r),
    )


def load_counts(r: MasterFacts, rows: float | None = None) -> dict[str, float]:
    """What it takes to put the first `rows` tuples of R, or all of them, into the cache."""
    part = 1.0 if rows is None else min(rows / max(r.rows, 1), 1.0)
    return {"reads": 1.0, "bytes_read": part * r.n_pages * r.page_bytes, "switched": part * r.rows}
