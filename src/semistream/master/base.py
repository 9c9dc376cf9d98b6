"""What an operator may ask of R, whatever R is made of.

A `Master` describes the data; a `PageReader` moves pages of it into memory; a `PageBlock` is how kernels see
the pages once they are there: addresses, not objects, so a kernel can gather from a mapped file, a read
buffer and a plain Arrow table alike.
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import mmap
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.columns.physical import PhysicalSchema
from semistream.columns.stream_keys import StreamCoder
from semistream.errors import ConfigError, IndexRequiredError, SchemaError
from semistream.master.format import Parts

if TYPE_CHECKING:
    from semistream.master.read_ahead import ReadAhead

Int64s = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]
Bools = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]

ALIGNMENT = 4096
#: memory that stands in one piece, where the system has it so
HUGE_PAGE = 2 << 20
#: a buffer of so many bytes is worth one
_HUGE_FROM = 1 << 16
DEFAULT_PAGE_ROWS = 256


@dataclass
class PageBlock:
    """Pages in memory. Row `r` of the block's page `p` has the row id `p * page_rows + r`.

    A page may have fewer than `page_rows` rows; the ids behind its last row are then not used.

    A column's buffers lie at `base[p]` plus the entry of row `kind[p]` of the layout tables. The last column
    of the tables is the int64 key code; the others are the columns the reader was opened with, in that order.
    `valid` is -1 where the page has no null in the column, `offs` is -1 unless the column is VAR, and `bit`
    is added to the position in a bitmap (validity, and the data of BOOL columns).
    """

    n_rows: int
    page_rows: int
    base: Int64s
    rows: Int32s
    kind: Int32s
    data: Int64s
    valid: Int64s
    offs: Int64s
    bit: Int64s
    pages: Int64s
    keep: object = field(repr=False)
    #: where short pages leave gaps between row ids: the number of rows up to and with each short page that is not
    #: the block's last, and what to add to the row numbers from there on (one entry more: the first adds nothing)
    gaps: tuple[Int64s, Int64s] | None = field(default=None, repr=False)

    def row_ids(self, rows: Int64s) -> Int64s:
        """Ids of the block's rows when these are numbered side by side, as in `DiskBuffer.codes`."""
        if self.gaps is None:
            return rows
        until, shift = self.gaps
        ids: Int64s = rows + shift[np.searchsorted(until, rows, side="right")]
        return ids

    def ordinals(self, pages: Int64s) -> Int64s:
        """Where pages that the block has stand in it; its own are sorted."""
        return np.searchsorted(self.pages, pages)


def gaps_between(rows: Int32s, page_rows: int) -> tuple[Int64s, Int64s] | None:
    """`PageBlock.gaps` of pages with these numbers of rows."""
    short = np.flatnonzero(rows[:-1] < page_rows)
    if not len(short):
        return None
    missing = np.cumsum(page_rows - rows[short], dtype=np.int64)
    until = (short + 1) * page_rows - missing
    return until, np.append(0, missing)


@dataclass(frozen=True)
class RunRead:
    """What one call of `read_runs` got: as many of the asked pages as fitted the buffer."""

    block: PageBlock
    pages: int
    reads: int
    bytes: int


def aligned_buffer(size: int) -> Bytes:
    """Memory that O_DIRECT accepts: it starts on a multiple of 4096.

    All but a small one is cut out of huge pages: a disk is told of every piece of memory that it is to write to, and
    some virtual disks take longer over that than over the bytes. What the last huge page has in excess is given back.
    """
    if size < _HUGE_FROM:
        raw = np.empty(size + ALIGNMENT, dtype=np.uint8)
        start = -raw.ctypes.data % ALIGNMENT
        return raw[start : start + size]
    try:
        mapping = mmap.mmap(-1, size + 2 * HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as error:
        if isinstance(error, OSError) and error.errno != errno.ENOMEM:
            raise
        raise MemoryError(f"the system refuses {size} bytes in one piece") from error
    whole = np.frombuffer(mapping, dtype=np.uint8)
    start = -whole.ctypes.data % HUGE_PAGE
    end = start + -(-size // HUGE_PAGE) * HUGE_PAGE
    # A system without huge pages refuses, and then they are small.
    with contextlib.suppress(OSError):
        mapping.madvise(mmap.MADV_HUGEPAGE, start, end - start)
    used = start + -(-size // ALIGNMENT) * ALIGNMENT
    if used < end:
        # A huge page comes as a whole, when it is first written to; what is left of it then stays in one piece.
        whole[end - HUGE_PAGE] = 0
        mapping.madvise(mmap.MADV_DONTNEED, used, end - used)
    return whole[start : start + size]


class PageReader(ABC):
    """R opened for some of its columns. Not safe for two threads at once: open one each."""

    def __init__(self, schema: pa.Schema, n_rows: int, page_rows: int, n_pages: int | None = None) -> None:
        """`n_pages` is to be given where other pages than the last one may be short."""
        self.physical = PhysicalSchema(schema)
        self.n_rows = n_rows
        self.page_rows = page_rows
        self.n_pages = -(-n_rows // page_rows) if n_pages is None else n_pages

    has_index: bool = False
    #: first code of every page and whether its first run began on an earlier page; empty unless order is
    #: "key"
    fences: Int64s = np.empty(0, dtype=np.int64)
    continues: Bools = np.empty(0, dtype=np.bool_)

    @property
    def index_bytes(self) -> int:
        """Bytes held for finding and checking pages, however many are in memory."""
        return 0

    @property
    def longest_page(self) -> int:
        """Bytes of the largest page on disk; 0 where R is not in pages of its own."""
        return 0

    def held_bytes(self, n_pages: int) -> int:
        """Bytes the reader and a block of `n_pages` pages hold besides the caller's buffer."""
        columns = len(self.physical) + 1
        return n_pages * (32 + 32 * columns)

    @abstractmethod
    def buffer_bytes(self, n_pages: int) -> int:
        """Size of the buffer with which `read` can take any run of `n_pages` pages (0: it needs none)."""

    @abstractmethod
    def read(self, first_page: int, n_pages: int, buffer: Bytes) -> PageBlock:
        """Consecutive pages (fewer at the end of R), valid until the buffer is used again."""

    def read_bytes(self, block: PageBlock) -> int:
        """Bytes that `read` moved for a block; readers without a buffer say how large its fixed-width columns are."""
        return self.buffer_bytes(len(block.pages)) or int(block.n_rows * (8 + sum(self.physical.widths)))

    def read_runs(self, pages: Int64s, buffer: Bytes, gap_bytes: int) -> RunRead:
        """As many of the sorted distinct `pages` as fit, in one sweep.

        Neighbours less than `gap_bytes` apart come in one read: reading the gap is cheaper than a seek. Several threads
        may do this at once, each into a buffer of its own.
        """
        raise _no_index("read_runs")

    def read_ahead(self, buffers: Sequence[Bytes], n_pages: int, gap_bytes: int, readers: int) -> ReadAhead:
        """Threads that do what `read_runs` does, for up to `n_pages` pages at once, into buffers of equal size.

        So many read, and one more checks what they have read. Close it before the reader.
        """
        raise _no_index("read_ahead")

    def fitting(self, pages: Int64s, size: int, gap_bytes: int) -> int:
        """How many of the sorted distinct `pages` `read_runs` takes with a buffer of that size; nothing is read."""
        return len(pages)

    def map(self, pages: Int64s) -> PageBlock:
        """Sorted distinct pages in place, without a copy."""
        raise _no_index("map")

    def locate(self, codes: Int64s) -> tuple[Int64s, Int64s]:
        """First and last page of the run of every code (sorted codes are fastest).

        With order "key" an absent code gets the page where it would be; with order "frequency" it gets -1,
        -1. A store without pages answers -1, -1 for every code.
        """
        raise _no_index("locate")

    @abstractmethod
    def close(self) -> None:
        """Give back file handles; blocks that are still in use stay valid where they are mapped."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, first_page: int, n_pages: int) -> Int64s:
        if not 0 <= first_page <= self.n_pages or n_pages < 0:
            raise ConfigError(
                f"pages {first_page} to {first_page + n_pages - 1} were asked for; R has {self.n_pages} pages"
            )
        return np.arange(first_page, min(first_page + n_pages, self.n_pages), dtype=np.int64)

    def _chosen(self, pages: Int64s) -> Int64s:
        """Kernels trust page numbers, so they are checked here (sorted: the ends tell for all)."""
        pages = np.ascontiguousarray(pages, dtype=np.int64)
        if len(pages) and not 0 <= pages[0] <= pages[-1] < self.n_pages:
            raise ConfigError(f"pages {pages[0]} to {pages[-1]} were asked for; R has {self.n_pages} pages")
        return pages


def _no_index(what: str) -> IndexRequiredError:
    return IndexRequiredError(
        f"{what} needs master data with an index, Parquet in place has none: build a page store (build_pages)"
    )


@dataclass(frozen=True)
class PageFile:
    """A file with pages of R."""

    path: Path
    size: int


class Master(ABC):
    """R, described: what it holds, how it is ordered, and how to open it."""

    schema: pa.Schema
    on: tuple[str, ...]
    n_rows: int
    page_rows: int
    #: "key": by key code; "frequency": most frequent key first, with a second index; "none": as it comes
    order: str
    has_index: bool
    #: codes keys of the stream as R's rows are found by; `coder.rows` is how the rows themselves were coded
    coder: StreamCoder
    version: int
    #: a name for exactly these bytes of R: what was made of them is found under it, and under nothing less
    identity: str
    #: a name for the master data through all its versions
    lineage: str
    #: mean bytes of a row (all columns) once it is in memory
    row_bytes: float

    @property
    def n_pages(self) -> int:
        """Pages that R takes."""
        return -(-self.n_rows // self.page_rows)

    @property
    def parts(self) -> Parts:
        """What the version is made of; `shares_codes` compares two."""
        return Parts(self.identity)

    @property
    def reserved_from(self) -> int | None:
        """Codes from here on are for changes to come, and no row has one; None where R cannot change so."""
        return None

    @property
    def page_files(self) -> Sequence[PageFile] | None:
        """The files that `open` reads past the page cache if told to; None where there is no such way."""
        return None

    @property
    def code_range(self) -> tuple[int, int] | None:
        """About the least and the largest key code, where R need not be read for that."""
        return None

    @abstractmethod
    def open(self, columns: Sequence[str], direct: bool = False, page_rows: int | None = None) -> PageReader:
        """A reader of these columns, in this order.

        `direct` reads past the page cache (O_DIRECT). `page_rows` cuts R into other pages than the default
        where the form of R allows it; a page store keeps the pages it was built with.
        """

    def close(self) -> None:  # noqa: B027
        """Give back what the description itself holds; readers that are open go on."""

    def may_be_null(self, column: str) -> bool:
        """Whether a column may hold nulls; False only where that is certain."""
        return bool(self.schema.field(column).nullable)

    def columns_schema(self, columns: Sequence[str]) -> pa.Schema:
        """The logical schema of some columns; a clear error names the missing ones."""
        require_columns(self.schema, columns, "master data")
        return pa.schema([self.schema.field(name) for name in columns])


def require_columns(schema: pa.Schema, columns: Iterable[str], where: str) -> None:
    """Refuse names that the schema lacks (or has twice), and name the near ones."""
    for name in columns:
        count = schema.names.count(name)
        if count == 1:
            continue
        if count > 1:
            raise SchemaError(f"{where} has {count} columns named {name!r}: rename all but one")
        near = difflib.get_close_matches(name, schema.names, n=3)
        hint = f"did you mean {', '.join(map(repr, near))}?" if near else f"it has {', '.join(schema.names)}"
        raise SchemaError(f"{where} has no column {name!r}; {hint}")


def check_page_rows(page_rows: int) -> int:
    """Rows per page must be a positive number that fits the tables."""
    if not 1 <= page_rows <= 1 << 20:
        raise ConfigError(f"page_rows={page_rows} is out of range; allowed are 1 to {1 << 20}, 256 is a good start")
    return page_rows
