"""Whole pages in memory and tuples that wait by page, as a formula; shared as `operators/blocks.py` is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from semistream.cost.division import Division, arena, divide
from semistream.cost.model import group_shares
from semistream.cost.probability import Floats
from semistream.cost.setting import Setting
from semistream.kernels.waiting import PAGED_HEADER
from semistream.parts.page_cache import DIRECTORY_BYTES
from semistream.parts.waiting import LIST_BYTES

CACHE_SHARE = 0.5
_UTILITY_BYTES = 4
_LINE = 64


@dataclass(frozen=True)
class Blocks:
    """The memory of a block join: frames for pages, and slots for tuples that wait."""

    division: Division
    frames: int
    h_S: float
    tuple_pages: int
    cache_bytes: int
    waiting_bytes: int
    arena_table: int

    @property
    def memory(self) -> dict[str, float]:
        """Bytes by component."""
        return {
            "arena table": self.arena_table,
            "tuple pages": self.tuple_pages,
            "cache": self.cache_bytes,
            "waiting area": self.waiting_bytes,
        }


def block_tables(s: Setting, lists: int, list_bytes: int = 0) -> Blocks:
    """As `BlockJoin._build`: half of the tables are frames, the other half is the waiting area."""
    per_list = LIST_BYTES + _UTILITY_BYTES + list_bytes
    division = divide(s, extra_fixed=lists * per_list + s.n_pages * DIRECTORY_BYTES)
    tuple_pages = 24 * division.chunk
    spare = division.tables - tuple_pages
    slot = PAGED_HEADER + s.v_S
    room = min(int(spare * s.options.get("cache_share", CACHE_SHARE)), spare - 9 * 4096 - 1024)
    frame = -(-int(s.v_P) // _LINE) * _LINE + 24 + 32 * s.columns
    frames = max(min(room // frame, s.n_pages), 0)
    shape = arena(spare - frames * frame, slot)
    h_S = float(shape.extents * shape.slots(slot))
    waiting = shape.extents * shape.extent
    return Blocks(division, frames, h_S, tuple_pages, frames * frame, waiting, shape.table)


def most_useful(s: Setting, groups: int, places: int) -> tuple[float, Floats]:
    """Share of the stream that the most useful groups of pages answer, and the shares of the others, summing to 1."""
    shares = np.sort(group_shares(s.keys, max(groups, 1), s.order == "frequency"))[::-1]
    hit = float(shares[:places].sum())
    left = shares[places:]
    total = float(left.sum())
    return hit, left / total if total > 0 else left
