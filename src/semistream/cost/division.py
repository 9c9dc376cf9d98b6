"""How the operators divide M, as a formula: the steps of `SemiStreamJoin._plan_fixed` and the parts, without a join.

M = index + scratch + disk buffers + tables           tables: H_S, H_R, recorder, I_B ... by the algorithm
"""

from __future__ import annotations

from dataclasses import dataclass

from semistream.cost.setting import Setting
from semistream.errors import BudgetError
from semistream.kernels.arena import EXTENT_HEADER
from semistream.kernels.cache import ENTRY_BYTES
from semistream.kernels.fifo import FIFO_HEADER
from semistream.kernels.linked import LINKED_HEADER
from semistream.operators.base import MAX_CHUNK_ROWS, MIN_CHUNK_ROWS
from semistream.operators.chunk import SCRATCH_BYTES_PER_ROW
from semistream.parts.cache import MAX_LOAD as CACHE_LOAD
from semistream.parts.pending import BUCKET_BYTES, TUPLES_PER_BUCKET
from semistream.parts.pending import MAX_LOAD as PENDING_LOAD

_ASSUMED_STREAM_SLOT = 512
_MOST_BUFFER = 4 << 20
_EXTENT = 4096
#: part of the spare bytes that the arena takes, and what it leaves for its own table
_ARENA_SHARE, _ARENA_REST = 0.998, 512


@dataclass(frozen=True)
class Division:
    """The common parts, in bytes; `d` tuples fit a disk buffer of `pages` pages."""

    index: int
    scratch: int
    buffer: int
    pages: int
    chunk: int
    tables: int
    d: int


def divide(
    s: Setting,
    *,
    buffers: int = 1,
    scratches: int = 1,
    share: float = 0.1,
    extra_fixed: int = 0,
    wanted_buffer: int | None = None,
    halves: int | None = None,
) -> Division:
    """Index, work arrays and disk buffers; what is left is for tables.

    `share` is the part of M that the disk buffers get if nothing else is asked for, up to 4 MiB per buffer; `halves`
    how many times a buffer's bytes are charged where that is not the number of buffers.
    """
    times = buffers if halves is None else halves
    total = s.M
    if "buffer_bytes" in s.options:
        wanted_buffer = int(s.options["buffer_bytes"])
    one_page = times * s.buffer_bytes(1)
    least_arena = 16 * max(_EXTENT, 16 * max(int(s.v_R), _ASSUMED_STREAM_SLOT))
    fixed = s.index_bytes + extra_fixed
    least = fixed + one_page + SCRATCH_BYTES_PER_ROW * MIN_CHUNK_ROWS * scratches + least_arena
    if total < least:
        raise BudgetError(
            f"a budget of {total} bytes is too small for this master data; it needs at least {least} bytes",
            minimum_bytes=least,
        )
    room = total - fixed - one_page - least_arena
    chunk = min(max(total // 1024, MIN_CHUNK_ROWS), MAX_CHUNK_ROWS)
    chunk = max(min(chunk, room // (SCRATCH_BYTES_PER_ROW * scratches)), MIN_CHUNK_ROWS)
    scratch = SCRATCH_BYTES_PER_ROW * chunk * scratches
    room -= scratch
    wanted = min(int(total * share), _MOST_BUFFER) if wanted_buffer is None else wanted_buffer
    wanted = max(min(wanted, room + one_page), one_page)
    pages = _pages_within(s, wanted // buffers)
    buffer = times * s.buffer_bytes(pages)
    return Division(
        index=fixed,
        scratch=scratch,
        buffer=buffer,
        pages=pages,
        chunk=chunk,
        tables=total - fixed - scratch - buffer,
        d=min(pages * s.page_rows, max(s.R_t, 1)),
    )


def _pages_within(s: Setting, size: int) -> int:
    low, high = 1, max(s.n_pages, 1)
    while low < high:
        middle = (low + high + 1) // 2
        if s.buffer_bytes(middle) <= size:
            low = middle
        else:
            high = middle - 1
    return low


@dataclass(frozen=True)
class ArenaShape:
    """An arena that takes what is spare: its extents, and the bytes left in the ledger for the tables in it."""

    extent: int
    extents: int
    table: int
    spare: int

    def slots(self, size: float, header: int = 0) -> int:
        """Slots of a size in one extent."""
        return max(int((self.extent - header) / size), 1)


def arena(spare: int, *slots: float) -> ArenaShape:
    """As `SemiStreamJoin._make_arena`: all that is left, in extents of at least eight of the largest slots."""
    extent = _EXTENT
    while extent < 8 * max(slots) + EXTENT_HEADER:
        extent *= 2
    extents = max((int(spare * _ARENA_SHARE) - _ARENA_REST) // extent, 0)
    if extents < 8:
        raise BudgetError(
            f"{spare} bytes for tables are too few for tuples of {max(slots):.0f} bytes: give more memory"
        )
    return ArenaShape(extent, extents, 4 * extents, spare - 4 * extents)


def fifo_slot(s: Setting, counter: bool = False) -> float:
    """Bytes of a waiting tuple's slot in the scan operators' H_S."""
    return FIFO_HEADER + s.v_S + counter


def linked_slot(s: Setting) -> float:
    """Bytes of a waiting tuple's slot in the index operators' H_S; Q runs through the slots."""
    return LINKED_HEADER + s.v_S


def fifo_tuple_bytes(shape: ArenaShape, slot: float) -> float:
    """v_S with all it needs: its part of an extent and of the buckets."""
    return shape.extent / shape.slots(slot, EXTENT_HEADER) + BUCKET_BYTES / TUPLES_PER_BUCKET


def fifo_capacity(shape: ArenaShape, slot: float, limit: float) -> float:
    """h_S: tuples that a FIFO pending table of `limit` bytes holds."""
    limit = min(limit, shape.extents * shape.extent + limit * 0.1)
    return max(limit / fifo_tuple_bytes(shape, slot), 1.0)


def linked_capacity(shape: ArenaShape, slot: float, limit: float) -> float:
    """h_S: tuples that a linked pending table of `limit` bytes holds, its directory being sized for as many keys."""
    directory = 8 * max(int(limit / (slot + 8 / PENDING_LOAD) / PENDING_LOAD) - 1, 16)
    extents = min(int((limit - directory) // shape.extent), shape.extents)
    return float(max(extents * shape.slots(slot), 1))


def key_bytes(s: Setting) -> float:
    """A cached key with one master tuple, directory entry included."""
    return s.v_R + ENTRY_BYTES / CACHE_LOAD


def cache_capacity(s: Setting, shape: ArenaShape, share: float) -> float:
    """h_R: keys of one master tuple that a cache of `share` bytes holds."""
    keys = max(int(share / key_bytes(s)), 8)
    directory = ENTRY_BYTES * (int(keys / CACHE_LOAD) + 2)
    rows = int((share - directory) // shape.extent) * shape.slots(s.v_R)
    return float(max(min(keys, rows), 1))
