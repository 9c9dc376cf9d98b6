"""R as a page store: reading what `build_pages` wrote.

Pages are Arrow record batches of equal length in one file, so a page number is all that is needed to find
one. The reader moves bytes and hands out addresses; pyarrow is not involved once the store is open.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.columns.keys import KeyCoder
from semistream.columns.physical import PhysicalSchema
from semistream.errors import ChecksumError, ConfigError, StoreError
from semistream.kernels.hashing import xxhash64_bytes
from semistream.kernels.pages import (
    CHECKSUM_SEED,
    TABLE_BLOCK,
    layout_pages,
    locate_in_fences,
    locate_in_table,
    read_pages,
    verify_pages,
    verify_touched,
)
from semistream.master import format as store_format
from semistream.master.base import (
    ALIGNMENT,
    Bools,
    Bytes,
    Int64s,
    Master,
    PageBlock,
    PageReader,
    RunRead,
    aligned_buffer,
)
from semistream.master.format import INDEX, KEYS, PAGES
from semistream.master.frequency import table_fences

_REMEDY = "the file was damaged after it was written: build the store again with build_pages"
# Buffered reads need no alignment; this one keeps buffers of a page on their own cache lines.
_CACHE_LINE = 64
# Blocks of the second index read at once, and the gap worth reading over (a seek costs about 180 kB).
_TABLE_BLOCKS = 64
_TABLE_GAP_DIRECT, _TABLE_GAP_CACHED = 44, 4


@dataclass(frozen=True)
class PageIndex:
    """What is held in memory of every page."""

    starts: Int64s
    fences: Int64s
    continues: Bools
    sums: npt.NDArray[np.uint64]

    @property
    def nbytes(self) -> int:
        return int(self.starts.nbytes + self.fences.nbytes + self.continues.nbytes + self.sums.nbytes)


def first_buffers(columns: Sequence[pa.Field]) -> Int64s:
    """Number of each column's first buffer in a record batch message; -1 for null columns: they have none."""
    first = np.empty(len(columns), dtype=np.int64)
    count = 0
    for i, column in enumerate(columns):
        first[i] = -1 if pa.types.is_null(column.type) else count
        var = pa.types.is_string(column.type) or pa.types.is_binary(column.type)
        count += 0 if pa.types.is_null(column.type) else 3 if var else 2
    return first


class PageMaster(Master):
    """A page store, in the version in force when it was opened (or the one asked for)."""

    def __init__(self, path: str | Path, version: int | None = None) -> None:
        self.path = Path(path)
        self.folder = store_format.current_folder(self.path, version)
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
        self.row_bytes = manifest.row_bytes
        self.null_key_rows = manifest.null_key_rows

    @cached_property
    def index(self) -> PageIndex:
        """Offsets, fences and checksums; read once and shared by all readers."""
        path = self.folder / INDEX
        try:
            content = np.fromfile(path, dtype=np.uint8)
        except OSError as error:
            raise StoreError(f"{path} cannot be read ({error.strerror}); {_REMEDY}") from error
        expected = self.manifest.files[INDEX].get("xxhash64")
        found = f"{int(xxhash64_bytes(content.ctypes.data, len(content), CHECKSUM_SEED)):016x}"
        if found != expected:
            raise ChecksumError(f"{path} has the checksum {found}, {expected} was written: {_REMEDY}")
        table = pa.ipc.open_file(pa.py_buffer(content)).read_all()
        offsets, lengths, fences, continues, sums = (
            np.array(column.to_numpy(zero_copy_only=False)) for column in table.columns
        )
        starts = np.append(offsets, offsets[-1] + lengths[-1] if len(offsets) else 0)
        if len(offsets) != self.n_pages or starts[-1] > self.manifest.files[PAGES]["bytes"]:
            raise StoreError(f"{path} does not fit the manifest beside it: {_REMEDY}")
        by_key = self.order == "key"
        return PageIndex(starts, fences if by_key else fences[:0], continues if by_key else continues[:0], sums)

    @cached_property
    def second_index(self) -> Int64s:
        """First code of every block of the second index (order "frequency")."""
        return table_fences(self.folder / KEYS)

    def may_be_null(self, column: str) -> bool:
        return self.manifest.null_counts.get(column, 1) > 0

    def open(self, columns: Sequence[str], direct: bool = False, page_rows: int | None = None) -> PageStoreReader:
        return PageStoreReader(self, columns, direct)


class PageStoreReader(PageReader):
    """Reads, maps and locates pages of a store for some of its columns."""

    has_index = True

    def __init__(self, master: PageMaster, columns: Sequence[str], direct: bool) -> None:
        super().__init__(master.columns_schema(columns), master.n_rows, master.page_rows)
        manifest = master.manifest
        self._path = master.folder / PAGES
        self._index = master.index
        self.fences, self.continues = self._index.fences, self._index.continues
        self._direct = direct
        self._align = ALIGNMENT if direct else _CACHE_LINE
        names = [*columns, manifest.code_column]
        stored = _stored_fields(master)
        numbers = first_buffers([stored[name] for name in manifest.physical])
        self._buffers = np.array([numbers[manifest.physical.index(name)] for name in names], dtype=np.int64)
        self._kinds = np.append(self.physical.kinds, 0)
        self._seen = np.zeros((self.n_pages + 7) // 8, dtype=np.uint8)
        self._mapped: Bytes | None = None
        #: longest run of so many pages in the file, for every number that was asked for
        self._spans: dict[int, int] = {}
        self._fd = _open_file(self._path, direct)
        self._table: _SecondIndex | None = None
        self._tables: tuple[Int64s, Int64s, Int64s, Int64s] | None = None
        try:
            if master.order == "frequency":
                self._table = _SecondIndex(master.folder / KEYS, master.second_index, direct)
            if set(names) <= set(manifest.fixed_layout):
                self._tables = self._fixed_tables()
            elif direct and self.n_pages:
                self._fetch(np.zeros(1, dtype=np.int64), aligned_buffer(self.buffer_bytes(1)), 0)
        except BaseException:
            self.close()
            raise

    @property
    def index_bytes(self) -> int:
        second = 0 if self._table is None else self._table.nbytes
        return int(self._index.nbytes + self._seen.nbytes) + second

    @property
    def index_reads(self) -> int:
        """Reads of the second index so far."""
        return 0 if self._table is None else self._table.reads

    def held_bytes(self, n_pages: int) -> int:
        tables = 0 if self._tables is not None else 32 * len(self._buffers)
        return n_pages * (32 + tables)

    def buffer_bytes(self, n_pages: int) -> int:
        n = max(min(n_pages, self.n_pages), 0)
        if n not in self._spans:
            starts = self._index.starts
            self._spans[n] = int((starts[n:] - starts[: len(starts) - n]).max())
        return -(-self._spans[n] // ALIGNMENT) * ALIGNMENT + 2 * ALIGNMENT

    def page_offset(self, page: int) -> int:
        """Where a page begins in the file."""
        return int(self._index.starts[page])

    @property
    def page_bytes(self) -> float:
        """Mean length of a page on disk."""
        starts = self._index.starts
        return float(starts[-1] - starts[0]) / max(self.n_pages, 1)

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

    def map(self, pages: Int64s) -> PageBlock:
        if self._direct:
            raise ConfigError(
                "mapped pages go through the page cache, which direct=True forbids: use read or read_runs"
            )
        if self._mapped is None:
            self._mapped = np.frombuffer(mmap.mmap(self._fd, 0, access=mmap.ACCESS_READ), dtype=np.uint8)
        pages = self._chosen(pages)
        base = self._index.starts[pages] + self._mapped.ctypes.data
        bad = verify_touched(base, pages, self._index.starts, self._index.sums, self._seen)
        if bad >= 0:
            raise self._wrong_sum(int(pages[bad]), int(base[bad]))
        return self._block(base, pages, self._mapped)

    def locate(self, codes: Int64s) -> tuple[Int64s, Int64s]:
        codes = np.ascontiguousarray(codes)
        if self._table is not None:
            return self._table.locate(codes, self.page_rows)
        first, last = np.empty_like(codes), np.empty_like(codes)
        locate_in_fences(self.fences, self.continues, codes, first, last)
        return first, last

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        if self._table is not None:
            self._table.close()
        self._mapped = None

    def _fetch(self, pages: Int64s, buffer: Bytes, gap_bytes: int) -> tuple[Int64s, Int64s]:
        """Read and verify; result holds the pages done, the reads and the bytes."""
        if self._fd < 0:
            raise StoreError(f"{self._path} was closed")
        if self._direct and buffer.ctypes.data % ALIGNMENT:
            raise ConfigError(
                f"direct reads need a buffer that starts on a multiple of {ALIGNMENT}: use aligned_buffer"
            )
        base, result = np.empty(len(pages), dtype=np.int64), np.zeros(4, dtype=np.int64)
        index = self._index
        read_pages(
            self._fd,
            pages,
            index.starts,
            buffer.ctypes.data,
            buffer.nbytes,
            gap_bytes,
            self._align,
            base,
            result,
        )
        if result[3] >= 0:
            raise _failed_read(self._path, self._fd, int(result[3]), self._direct)
        done = int(result[0])
        bad = verify_pages(base[:done], pages[:done], index.starts, index.sums)
        if bad >= 0:
            raise self._wrong_sum(int(pages[bad]), int(base[bad]))
        return base, result

    def _wrong_sum(self, page: int, address: int) -> ChecksumError:
        starts = self._index.starts
        found = int(xxhash64_bytes(address, int(starts[page + 1] - starts[page]), CHECKSUM_SEED))
        return ChecksumError(
            f"page {page} of {self._path} (bytes {starts[page]} to {starts[page + 1]}) has the checksum "
            f"{found:016x}, {int(self._index.sums[page]):016x} was written: {_REMEDY}"
        )

    def _fixed_tables(self) -> tuple[Int64s, Int64s, Int64s, Int64s]:
        """Two rows do for the whole store: full pages are laid out alike, and the last one may be shorter."""
        shape = (2, len(self._buffers))
        data, valid, offs, bit = (np.full(shape, fill, dtype=np.int64) for fill in (0, -1, -1, 0))
        if self.n_pages:
            buffer = aligned_buffer(self.buffer_bytes(1))
            for row, page in enumerate((0, self.n_pages - 1)):
                base, _ = self._fetch(np.array([page], dtype=np.int64), buffer, 0)
                layout_pages(
                    base,
                    self._buffers,
                    self._kinds,
                    data[row : row + 1],
                    valid[row : row + 1],
                    offs[row : row + 1],
                )
        return data, valid, offs, bit

    def _block(self, base: Int64s, pages: Int64s, keep: object) -> PageBlock:
        rows = self._rows_on(pages)
        if self._tables is not None:
            data, valid, offs, bit = self._tables
            kind = (pages == self.n_pages - 1).astype(np.int32)
        else:
            shape = (len(pages), len(self._buffers))
            data, valid, offs = (np.empty(shape, dtype=np.int64) for _ in range(3))
            bit = np.zeros(shape, dtype=np.int64)
            layout_pages(base, self._buffers, self._kinds, data, valid, offs)
            kind = np.arange(len(pages), dtype=np.int32)
        return PageBlock(int(rows.sum()), self.page_rows, base, rows, kind, data, valid, offs, bit, pages, keep)


class _SecondIndex:
    """Looks codes up in the file of (code, first row, rows)."""

    def __init__(self, path: Path, fences: Int64s, direct: bool) -> None:
        self._path = path
        self._fences = fences
        self._direct = direct
        self._scratch = aligned_buffer(_TABLE_BLOCKS * TABLE_BLOCK)
        self.reads = 0
        self._fd = _open_file(path, direct)

    @property
    def nbytes(self) -> int:
        return int(self._fences.nbytes + self._scratch.nbytes)

    def locate(self, codes: Int64s, page_rows: int) -> tuple[Int64s, Int64s]:
        first, last = np.empty_like(codes), np.empty_like(codes)
        result = np.zeros(3, dtype=np.int64)
        gap = _TABLE_GAP_DIRECT if self._direct else _TABLE_GAP_CACHED
        locate_in_table(
            self._fd,
            self._fences,
            codes,
            self._scratch.ctypes.data,
            _TABLE_BLOCKS,
            gap,
            page_rows,
            first,
            last,
            result,
        )
        self.reads += int(result[0])
        if result[1] >= 0:
            if result[2] == 0:
                raise _failed_read(self._path, self._fd, int(result[1]) * TABLE_BLOCK, self._direct)
            raise ChecksumError(f"block {result[1]} of {self._path} has a wrong checksum: {_REMEDY}")
        return first, last

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _stored_fields(master: PageMaster) -> dict[str, pa.Field]:
    fields = {c.name: pa.field(c.name, c.physical) for c in PhysicalSchema(master.schema).columns}
    return {**fields, store_format.CODE: pa.field(store_format.CODE, pa.int64())}


def _open_file(path: Path, direct: bool) -> int:
    try:
        return os.open(path, os.O_RDONLY | (getattr(os, "O_DIRECT", 0) if direct else 0))
    except OSError as error:
        if direct and error.errno == errno.EINVAL:
            raise _no_direct(path) from error
        raise StoreError(f"{path} cannot be opened ({error.strerror})") from error


def _no_direct(path: Path) -> StoreError:
    return StoreError(f"the file system of {path} refuses O_DIRECT; open with direct=False or move the store")


def _failed_read(path: Path, fd: int, offset: int, direct: bool) -> StoreError:
    """The kernel does not tell why a read failed, so the read is tried once more to learn the reason."""
    try:
        got = os.preadv(fd, [aligned_buffer(ALIGNMENT).data], offset // ALIGNMENT * ALIGNMENT)
    except OSError as error:
        if direct and error.errno == errno.EINVAL:
            return _no_direct(path)
        return StoreError(f"{path} cannot be read at byte {offset} ({error.strerror})")
    return StoreError(f"{path} ends too early ({got} bytes at byte {offset}): it was truncated while in use")
