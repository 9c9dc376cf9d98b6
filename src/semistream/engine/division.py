"""The common half of every plan: index, work arrays and disk buffers; the rest is for the algorithm's tables.

budget = index + scratch + disk buffers + tables            tables: H_S, H_R, recorder, I_B ... by the algorithm
"""

from __future__ import annotations

from dataclasses import dataclass

from semistream.engine.chunk import SCRATCH_BYTES_PER_ROW
from semistream.engine.facts import MasterFacts
from semistream.engine.options import CommonOptions
from semistream.errors import BudgetError
from semistream.parts.arena import ArenaShape

MIN_CHUNK_ROWS, MAX_CHUNK_ROWS = 64, 16384
#: part of the budget for the work arrays of a chunk. A chunk begins and ends with work that does not depend on its
#: length, so where long ones are asked for they may take more: up to so many rows a quarter of a budget that has at
#: least so many bytes, and up to so many rows a sixty-fourth of it
_SCRATCH_SHARE = 1 / 16
_LONG_CHUNK_ROWS, _LONG_SCRATCH_SHARE, _LONG_FROM = 8192, 1 / 4, 1 << 20
_LONGEST_CHUNK_ROWS, _LONGEST_SCRATCH_SHARE = 65536, 1 / 64
_ASSUMED_STREAM_SLOT = 512
_LEAST_EXTENTS = 8


@dataclass(frozen=True)
class Division:
    """Bytes of the common parts. Each of `buffers` disk buffers has `pages` pages of `rows` tuples.

    A chunk has `chunk_rows` tuples. If it `reads_ahead`, threads fill the other buffers while one is joined.
    """

    index: int
    scratch: int
    buffer: int
    pages: int
    rows: int
    chunk_rows: int
    tables: int
    buffers: int = 1
    reads_ahead: bool = False


@dataclass(frozen=True)
class Needs:
    """What an algorithm asks of the common parts.

    `buffers` disk buffers share `buffer_share` of the budget, up to `most_buffer`, unless `buffer_bytes` is given;
    `charged` says how many of them are charged here where some are charged elsewhere. `fixed` bytes are needed
    whatever the stream looks like. With `long_chunks` a small budget gives up some of its tables for work arrays: what
    is done once per chunk would take longer than what is done per tuple. `reads_ahead`: threads fill the disk buffers.
    """

    buffers: int = 1
    charged: int | None = None
    scratches: int = 1
    buffer_share: float = 0.1
    most_buffer: int = 4 << 20
    buffer_bytes: int | None = None
    fixed: int = 0
    long_chunks: bool = False
    reads_ahead: bool = False


def divide(r: MasterFacts, budget: int, options: CommonOptions, needs: Needs | None = None) -> Division:
    """Index, work arrays and disk buffers; refuses a budget in which nothing would be left for tables."""
    needs = Needs() if needs is None else needs
    wanted = options.buffer_bytes if options.buffer_bytes is not None else needs.buffer_bytes
    charged = needs.buffers if needs.charged is None else needs.charged
    one_page = charged * r.buffer_bytes(1)
    least_arena = 16 * max(4096, 16 * max(r.row_slot, _ASSUMED_STREAM_SLOT))
    fixed = r.index_bytes + needs.fixed
    least = fixed + one_page + SCRATCH_BYTES_PER_ROW * MIN_CHUNK_ROWS * needs.scratches + least_arena
    if budget < least:
        hint = "" if r.has_index else "; a page store (build_pages) needs less than Parquet in place"
        raise BudgetError(
            f"a budget of {budget} bytes is too small on this master data; it needs at least {least} bytes{hint}",
            minimum_bytes=least,
        )
    room = budget - fixed - one_page - least_arena
    chunk = min(max(int(_SCRATCH_SHARE * budget / SCRATCH_BYTES_PER_ROW), MIN_CHUNK_ROWS), MAX_CHUNK_ROWS)
    if needs.long_chunks and budget >= _LONG_FROM:
        chunk = max(chunk, min(int(_LONG_SCRATCH_SHARE * budget / SCRATCH_BYTES_PER_ROW), _LONG_CHUNK_ROWS))
        chunk = max(chunk, min(int(_LONGEST_SCRATCH_SHARE * budget / SCRATCH_BYTES_PER_ROW), _LONGEST_CHUNK_ROWS))
    chunk = max(min(chunk, room // (SCRATCH_BYTES_PER_ROW * needs.scratches)), MIN_CHUNK_ROWS)
    scratch = SCRATCH_BYTES_PER_ROW * chunk * needs.scratches
    room -= scratch
    share = min(int(budget * needs.buffer_share), needs.most_buffer) if wanted is None else wanted
    share = max(min(share, room + one_page), one_page)
    pages = r.pages_within(share // needs.buffers)
    buffer = charged * r.buffer_bytes(pages)
    return Division(
        index=fixed,
        scratch=scratch,
        buffer=buffer,
        pages=pages,
        rows=min(pages * r.page_rows, max(r.rows, 1)),
        chunk_rows=chunk,
        tables=budget - fixed - scratch - buffer,
        buffers=needs.buffers,
        reads_ahead=needs.reads_ahead,
    )


def arena_within(budget: int, spare: int, *slots: int) -> ArenaShape:
    """An arena of all spare bytes for slots of these sizes; refuses what cannot hold a few tuples."""
    shape = ArenaShape.within(spare, *slots)
    if shape.extents < _LEAST_EXTENTS:
        extra = _LEAST_EXTENTS * shape.extent_bytes + 1024 - spare
        raise BudgetError(
            f"a budget of {budget} bytes leaves {spare} for tuples of up to {max(slots)} bytes; "
            f"it needs at least {budget + extra} bytes for this stream",
            minimum_bytes=budget + extra,
        )
    return shape
