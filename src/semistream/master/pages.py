"""R as a page store: reading what `build_pages` or a Spark job wrote.

Pages are Arrow record batches of equal length, numbered through all shards of the store. A shard is a file; only
its last page may be short, and no key stands in two shards. The reader moves bytes and hands out addresses; pyarrow is
not involved once the store is open.

    file 0  |head|p0|p1|p2|foot|   file 1  |head|p3|p4|foot|      starts:  p0 p1 p2 p3 p4 end
                                                                  as if the pages were one sequence of bytes;
                                                                  less the shift of a file: where they are in it
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.columns.keys import KeyCoder
from semistream.columns.physical import PhysicalSchema
from semistream.errors import ChecksumError, ConfigError, StoreError
from semistream.kernels.hashing import xxhash64_bytes
from semistream.kernels.pages import (
    CHECKSUM_SEED,
    fitting_pages,
    layout_pages,
    locate_in_fences,
    mark_seen,
    populate_pages,
    read_pages,
    unseen_pages,
    verify_pages,
)
from semistream.kernels.units import read_each
from semistream.master import format as store_format
from semistream.master.base import (
    ALIGNMENT,
    Bools,
    Bytes,
    Int64s,
    Master,
    PageBlock,
    PageFile,
    PageReader,
    RunRead,
    aligned_buffer,
    gaps_between,
)
from semistream.master.files import failed_read, open_file
from semistream.master.format import DAMAGED, KEYS
from semistream.master.frequency import SecondIndex, table_fences
from semistream.master.leases import hold

# Buffered reads need no alignment; this one keeps buffers of a page on their own cache lines.
_CACHE_LINE = 64


@dataclass(frozen=True)
class PageIndex:
    """What is held in memory of every page, and of every file: its pages are borders[f] to borders[f + 1] - 1."""

    starts: Int64s
    fences: Int64s
    continues: Bools
    sums: npt.NDArray[np.uint64]
    borders: Int64s
    shifts: Int64s

    @property
    def nbytes(self) -> int:
        pages = self.starts.nbytes + self.fences.nbytes + self.continues.nbytes + self.sums.nbytes
        return int(pages + self.borders.nbytes + self.shifts.nbytes)


def first_buffers(columns: Sequence[pa.Field]) -> Int64s:
    """Number of each column's first buffer in a record batch message; -1 for null columns: they have none."""
    first = np.empty(len(columns), dtype=np.int64)
    count = 0
    for i, column in enumerate(columns):
        first[i] = -1 if pa.types.is_null(column.type) else count
        var = pa.types.is_string(column.type) or pa.types.is_binary(column.type)
        count += 0 if pa.types.is_null(column.type) else 3 if var else 2
    return first


@dataclass
class MappedPages:
    """The files of a store in memory, what takes a page's start to its address there, and a bit per checked page."""

    files: list[Bytes]
    shifts: Int64s
    seen: npt.NDArray[np.uint8]


@dataclass
class Shared:
    """What readers of one opened store leave to each other: each page is checked once, whoever asked first for it.

    An operator that takes over from another finds the pages in memory where that one had them.
    """

    mapped: MappedPages | None = None


class PageMaster(Master):
    """A page store, in the version in force when it was opened (or the one asked for)."""

    def __init__(self, path: str | Path, version: int | None = None) -> None:
        self.path = Path(path)
        self._lease = hold(self.path, version)
        self.folder = self._lease.folder
        self.manifest = store_format.load_manifest(self.folder)
        manifest = self.manifest
        self.schema = manifest.logical
        self.on = tuple(manifest.on)
        self.n_rows = manifest.rows
        self.page_rows = manifest.page_rows
        self.order = manifest.order
        self.has_index = True
        self.coder = KeyCoder.from_json(manifest.coder)
        self.version = manifest.version
        self.identity = str(manifest.identity)
        self.lineage = manifest.uuid
        self.row_bytes = manifest.row_bytes
        self.null_key_rows = manifest.null_key_rows
        self.shared = Shared()

    def close(self) -> None:
        self.shared.mapped = None
        self._lease.close()

    @property
    def n_pages(self) -> int:
        return self.manifest.pages

    @cached_property
    def index(self) -> PageIndex:
        """Offsets, fences and checksums; read once and shared by all readers."""
        shards, count = self.manifest.shards, self.n_pages
        starts = np.zeros(count + 1, dtype=np.int64)
        fences, sums = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.uint64)
        continues = np.empty(count, dtype=np.bool_)
        borders = np.cumsum([0, *(shard["pages"] for shard in shards)], dtype=np.int64)
        shifts = np.empty(len(shards), dtype=np.int64)
        for i, shard in enumerate(shards):
            low, high = int(borders[i]), int(borders[i + 1])
            table = self._index_table(shard)
            offsets, lengths, fences[low:high], continues[low:high], sums[low:high] = (
                column.to_numpy() for column in table.columns
            )
            shifts[i] = starts[low] - offsets[0]
            starts[low + 1 : high + 1] = starts[low] + np.cumsum(lengths)
        by_key = self.order == "key"
        return PageIndex(
            starts, fences if by_key else fences[:0], continues if by_key else continues[:0], sums, borders, shifts
        )

    def _index_table(self, shard: dict[str, Any]) -> pa.Table:
        path = self.folder / shard["index_file"]
        try:
            content = np.fromfile(path, dtype=np.uint8)
        except OSError as error:
            raise StoreError(f"{path} cannot be read ({error.strerror}); {DAMAGED}") from error
        expected = self.manifest.files[path.name].get("xxhash64")
        found = f"{int(xxhash64_bytes(content.ctypes.data, len(content), CHECKSUM_SEED)):016x}"
        if found != expected:
            raise ChecksumError(f"{path} has the checksum {found}, {expected} was written: {DAMAGED}")
        table = pa.ipc.open_file(pa.py_buffer(content)).read_all()
        offsets, lengths = table["offset"].to_numpy(), table["length"].to_numpy()
        size = self.manifest.files[shard["pages_file"]]["bytes"]
        end_to_end = (lengths > 0).all() and (offsets[1:] == (offsets + lengths)[:-1]).all()
        if len(table) != shard["pages"] or offsets[0] < 0 or offsets[-1] + lengths[-1] > size or not end_to_end:
            raise StoreError(f"{path} does not fit the manifest beside it: {DAMAGED}")
        return table

    @cached_property
    def second_index(self) -> Int64s:
        """First code of every block of the second index (order "frequency")."""
        return table_fences(self.folder / KEYS, self.manifest.files[KEYS]["blocks"])

    @property
    def code_range(self) -> tuple[int, int] | None:
        """From the first code of every page, or of every block of the second index; the last one is as wide as most."""
        firsts = self.index.fences if self.order == "key" else self.second_index
        if not len(firsts):
            return None
        low, high = int(firsts[0]), int(firsts[-1])
        return low, high + (high - low) // max(len(firsts) - 1, 1)

    @property
    def page_files(self) -> list[PageFile]:
        names = [shard["pages_file"] for shard in self.manifest.shards]
        return [PageFile(self.folder / name, int(self.manifest.files[name]["bytes"])) for name in names]

    def may_be_null(self, column: str) -> bool:
        return self.manifest.null_counts.get(column, 1) > 0

    def open(self, columns: Sequence[str], direct: bool = False, page_rows: int | None = None) -> PageStoreReader:
        return PageStoreReader(self, columns, direct)


class PageStoreReader(PageReader):
    """Reads, maps and locates pages of a store for some of its columns.

    Pages are mapped for operators that look a few rows up on many pages: a copy of them would cost more than the rows
    do. Each is read in and checked when it is first wanted, so a file that was cut or a disk that fails is a
    StoreError. One case remains: the system may drop a page that was checked and have to read it again, and if the disk
    fails just then, the process gets SIGBUS. `read` and `read_runs` copy pages and have no such case.
    """

    has_index = True

    def __init__(self, master: PageMaster, columns: Sequence[str], direct: bool) -> None:
        super().__init__(master.columns_schema(columns), master.n_rows, master.page_rows, master.n_pages)
        manifest = master.manifest
        self._lease = master._lease.again()
        self._paths = [master.folder / shard["pages_file"] for shard in manifest.shards]
        self._sizes = [int(manifest.files[path.name]["bytes"]) for path in self._paths]
        self._index = master.index
        self.fences, self.continues = self._index.fences, self._index.continues
        self._last_pages = self._index.borders[1:] - 1
        self._last_rows = np.array(
            [shard["rows"] - (shard["pages"] - 1) * self.page_rows for shard in manifest.shards], dtype=np.int32
        )
        self._direct = direct
        self._align = ALIGNMENT if direct else _CACHE_LINE
        names = [*columns, manifest.code_column]
        stored = _stored_fields(master)
        numbers = first_buffers([stored[name] for name in manifest.physical])
        self._buffers = np.array([numbers[manifest.physical.index(name)] for name in names], dtype=np.int64)
        self._kinds = np.append(self.physical.kinds, 0)
        self._is_fixed = set(names) <= set(manifest.fixed_layout)
        #: where the columns lie on a full page, once one was seen, if that is the same on all of them
        self._full_layout: tuple[Int64s, Int64s, Int64s] | None = None
        self._shared = master.shared
        self._mapped: MappedPages | None = None
        #: longest run of that many pages in the files, for every number that was asked for
        self._spans: dict[int, int] = {}
        self._fds = np.full(len(self._paths), -1, dtype=np.int64)
        self._closed = False
        self._table: SecondIndex | None = None
        try:
            for i, path in enumerate(self._paths):
                self._fds[i] = open_file(path, direct)
            if master.order == "frequency":
                self._table = SecondIndex(master.folder / KEYS, master.second_index, direct)
            if direct and self.n_pages:
                # Some file systems refuse O_DIRECT only when it comes to reading.
                self._fetch(np.zeros(1, dtype=np.int64), aligned_buffer(self.buffer_bytes(1)), 0)
        except BaseException:
            self.close()
            raise

    @property
    def index_bytes(self) -> int:
        second = 0 if self._table is None else self._table.nbytes
        return int(self._index.nbytes) + (self.n_pages + 7) // 8 + second

    @property
    def index_reads(self) -> int:
        """Reads of the second index so far."""
        return 0 if self._table is None else self._table.reads

    def held_bytes(self, n_pages: int) -> int:
        tables = 0 if self._is_fixed else 32 * len(self._buffers)
        return n_pages * (32 + tables)

    def buffer_bytes(self, n_pages: int) -> int:
        n = max(min(n_pages, self.n_pages), 0)
        if n not in self._spans:
            starts, inner = self._index.starts, self._index.borders[1:-1]
            # Every file on the way is a read of its own, which begins and ends on a multiple of the alignment.
            crossed = np.searchsorted(inner, inner + n - 1, side="left") - np.arange(len(inner)) if n else inner[:0]
            size = int((starts[n:] - starts[: len(starts) - n]).max())
            self._spans[n] = size + 2 * ALIGNMENT * int(crossed.max(initial=0))
        return -(-self._spans[n] // ALIGNMENT) * ALIGNMENT + 2 * ALIGNMENT

    def page_offset(self, page: int) -> int:
        """Where a page begins in its file."""
        file = int(np.searchsorted(self._last_pages, page))
        return int(self._index.starts[page] - self._index.shifts[file])

    @property
    def page_bytes(self) -> float:
        """Mean length of a page on disk."""
        return float(self._index.starts[-1]) / max(self.n_pages, 1)

    @property
    def longest_page(self) -> int:
        """Length of the longest page on disk."""
        return int(np.diff(self._index.starts).max(initial=1))

    @property
    def page_starts(self) -> Int64s:
        """Page p has page_starts[p + 1] - page_starts[p] bytes."""
        return self._index.starts

    def read(self, first_page: int, n_pages: int, buffer: Bytes) -> PageBlock:
        pages = self._run(first_page, n_pages)
        base, result = self._fetch(pages, buffer, 0)
        if result[0] < len(pages):
            raise ConfigError(
                f"a buffer of {buffer.nbytes} bytes is too small for {len(pages)} pages; buffer_bytes says "
                f"{self.buffer_bytes(len(pages))}"
            )
        return self._block(base, pages, buffer)

    def read_runs(self, pages: Int64s, buffer: Bytes, gap_bytes: int) -> RunRead:
        pages = self._chosen(pages)
        base, result = self._fetch(pages, buffer, gap_bytes)
        done = int(result[0])
        if not done and len(pages):
            raise ConfigError(
                f"a buffer of {buffer.nbytes} bytes is too small for one page; buffer_bytes says {self.buffer_bytes(1)}"
            )
        block = self._block(base[:done], pages[:done].copy(), buffer)
        return RunRead(block, done, int(result[1]), int(result[2]))

    def fitting(self, pages: Int64s, size: int, gap_bytes: int) -> int:
        index = self._index
        pages = self._chosen(pages)
        return int(fitting_pages(index.borders, index.shifts, pages, index.starts, size, gap_bytes, self._align))

    def read_each(self, tuples: Int64s, pages: Int64s, buffer: Bytes) -> RunRead:
        """The pages of as many units (tuple, page) as fit, in any order and as often as they are asked for."""
        self._require_ready(buffer)
        base, result = np.empty(len(pages), dtype=np.int64), np.zeros(5, dtype=np.int64)
        index = self._index
        read_each(
            self._fds,
            index.borders,
            index.shifts,
            tuples,
            pages,
            len(pages),
            index.starts,
            buffer.ctypes.data,
            buffer.nbytes,
            self._align,
            base,
            result,
        )
        done = self._checked(pages, base, result)
        block = self._block(base[:done], pages[:done].copy(), buffer)
        return RunRead(block, done, int(result[1]), int(result[2]))

    def map(self, pages: Int64s) -> PageBlock:
        if self._direct:
            raise ConfigError(
                "mapped pages go through the page cache, which direct=True forbids: use read or read_runs"
            )
        self._require_open()
        if self._mapped is None:
            self._mapped = self._map_files()
        pages = self._chosen(pages)
        mapped = self._mapped
        shifts = mapped.shifts
        base = self._index.starts[pages]
        base += shifts[self._files_of(pages)] if len(shifts) > 1 else shifts
        fresh = np.empty(len(pages), dtype=np.int64)
        count = unseen_pages(pages, mapped.seen, fresh)
        if count:
            self._touch(base[fresh[:count]], pages[fresh[:count]], mapped.seen)
        return self._block(base, pages, mapped.files)

    def _map_files(self) -> MappedPages:
        """As an earlier reader of the same master left them, or for the first time."""
        mapped = self._shared.mapped
        if mapped is None:
            files = [self._map_file(i) for i in range(len(self._paths))]
            addresses = np.array([file.ctypes.data for file in files], dtype=np.int64)
            mapped = MappedPages(
                files, addresses - self._index.shifts, np.zeros((self.n_pages + 7) // 8, dtype=np.uint8)
            )
            self._shared.mapped = mapped
        return mapped

    def _map_file(self, number: int) -> Bytes:
        """A file of pages in memory, if it still has the length that the manifest says."""
        try:
            # Python refuses a length beyond the end of the file.
            mapped = mmap.mmap(int(self._fds[number]), self._sizes[number], access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise StoreError(f"{self._paths[number]} cannot be mapped ({error}): {DAMAGED}") from error
        return np.frombuffer(mapped, dtype=np.uint8)

    def _touch(self, base: Int64s, pages: Int64s, seen: npt.NDArray[np.uint8]) -> None:
        """Read and check mapped pages the first time they are wanted; a failure is an error and not a signal."""
        if populate_pages(base, pages, self._index.starts) >= 0:
            # The kernel is older than Linux 5.14, or the pages cannot be read: reading them in tells.
            buffer = aligned_buffer(self.buffer_bytes(1))
            for page in pages:
                self._fetch(np.array([page]), buffer, 0)
        bad = verify_pages(base, pages, self._index.starts, self._index.sums)
        if bad >= 0:
            raise self._wrong_sum(int(pages[bad]), int(base[bad]))
        mark_seen(pages, seen)

    def locate(self, codes: Int64s) -> tuple[Int64s, Int64s]:
        codes = np.ascontiguousarray(codes)
        if self._table is not None:
            return self._table.locate(codes, self.page_rows)
        first, last = np.empty_like(codes), np.empty_like(codes)
        locate_in_fences(self.fences, self.continues, codes, first, last)
        return first, last

    def close(self) -> None:
        self._closed = True
        for fd in self._fds[self._fds >= 0].tolist():
            os.close(fd)
        self._fds[:] = -1
        if self._table is not None:
            self._table.close()
        self._mapped = None
        self._lease.close()

    def __del__(self) -> None:
        # A reader that was forgotten must not keep its files open; one that failed to open has none.
        if getattr(self, "_closed", True) is False:
            self.close()

    def _fetch(self, pages: Int64s, buffer: Bytes, gap_bytes: int) -> tuple[Int64s, Int64s]:
        """Read and verify; result holds the pages done, the reads and the bytes."""
        self._require_ready(buffer)
        base, result = np.empty(len(pages), dtype=np.int64), np.zeros(5, dtype=np.int64)
        index = self._index
        read_pages(
            self._fds,
            index.borders,
            index.shifts,
            pages,
            index.starts,
            buffer.ctypes.data,
            buffer.nbytes,
            gap_bytes,
            self._align,
            base,
            result,
        )
        self._checked(pages, base, result)
        return base, result

    def _require_open(self) -> None:
        if self._closed:
            raise StoreError(f"the reader of {self._lease.folder} was closed")

    def _require_ready(self, buffer: Bytes) -> None:
        self._require_open()
        if self._direct and buffer.ctypes.data % ALIGNMENT:
            raise ConfigError(
                f"direct reads need a buffer that starts on a multiple of {ALIGNMENT}: use aligned_buffer"
            )

    def _checked(self, pages: Int64s, base: Int64s, result: Int64s) -> int:
        """How many pages were read, and are what was written."""
        if result[3] >= 0:
            file = int(result[4])
            raise failed_read(self._paths[file], int(self._fds[file]), int(result[3]), self._direct)
        done = int(result[0])
        bad = verify_pages(base[:done], pages[:done], self._index.starts, self._index.sums)
        if bad >= 0:
            raise self._wrong_sum(int(pages[bad]), int(base[bad]))
        return done

    def _wrong_sum(self, page: int, address: int) -> ChecksumError:
        size = int(self._index.starts[page + 1] - self._index.starts[page])
        found, begin = int(xxhash64_bytes(address, size, CHECKSUM_SEED)), self.page_offset(page)
        return ChecksumError(
            f"page {page} of {self._paths[int(np.searchsorted(self._last_pages, page))]} (bytes {begin} to "
            f"{begin + size}) has the checksum {found:016x}, {int(self._index.sums[page]):016x} was written: {DAMAGED}"
        )

    def _files_of(self, pages: Int64s) -> npt.NDArray[np.intp]:
        if len(self._last_pages) == 1:
            return np.zeros(len(pages), dtype=np.intp)
        return np.searchsorted(self._last_pages, pages)

    def _layout(self, base: Int64s) -> tuple[Int64s, Int64s, Int64s]:
        """Where the columns lie on pages in memory: data, valid, offs."""
        data, valid, offs = (np.empty((len(base), len(self._buffers)), dtype=np.int64) for _ in range(3))
        layout_pages(base, self._buffers, self._kinds, data, valid, offs)
        return data, valid, offs

    def _block(self, base: Int64s, pages: Int64s, keep: object) -> PageBlock:
        file = self._files_of(pages)
        ends = np.flatnonzero(self._last_pages[file] == pages)
        rows = np.full(len(pages), self.page_rows, dtype=np.int32)
        rows[ends] = self._last_rows[file[ends]]
        if self._is_fixed:
            # One row of the tables does for all full pages; the last pages of files have their own.
            kind = np.zeros(len(pages), dtype=np.int32)
            kind[ends] = np.arange(1, len(ends) + 1)
            if self._full_layout is None and len(ends) < len(pages):
                self._full_layout = self._layout(base[kind == 0][:1])
            tables = self._full_layout or self._layout(base[:1])
            if len(ends):
                parts = zip(tables, self._layout(base[ends]), strict=True)
                tables = tuple(np.concatenate(pair) for pair in parts)  # type: ignore[assignment]
        else:
            kind = np.arange(len(pages), dtype=np.int32)
            tables = self._layout(base)
        data, valid, offs = tables
        return PageBlock(
            n_rows=int(rows.sum()),
            page_rows=self.page_rows,
            base=base,
            rows=rows,
            kind=kind,
            data=data,
            valid=valid,
            offs=offs,
            bit=np.zeros_like(data),
            pages=pages,
            keep=keep,
            gaps=gaps_between(rows, self.page_rows) if len(ends) else None,
        )


def _stored_fields(master: PageMaster) -> dict[str, pa.Field]:
    fields = {c.name: pa.field(c.name, c.physical) for c in PhysicalSchema(master.schema).columns}
    return {**fields, store_format.CODE: pa.field(store_format.CODE, pa.int64())}
