"""Reading pages of a store: they are read, mapped, found by code and checked; the bytes are handed out as addresses.

file 0  |head|p0|p1|p2|foot|   file 1  |head|p3|p4|foot|      starts:  p0 p1 p2 p3 p4 end
                                                              as if the pages were one sequence of bytes;
                                                              less the shift of a file: where they are in it
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.columns.physical import PhysicalSchema
from semistream.errors import ChecksumError, ConfigError, StoreError
from semistream.kernels.hashing import xxhash64_bytes
from semistream.kernels.pages import (
    CHECKSUM_SEED,
    announce_pages,
    fitting_pages,
    layout_pages,
    locate_in_fences,
    mark_seen,
    pages_in_memory,
    populate_pages,
    read_pages,
    unseen_pages,
    verify_pages,
)
from semistream.kernels.units import read_each
from semistream.master.base import (
    ALIGNMENT,
    Bytes,
    Int64s,
    PageBlock,
    PageFile,
    PageReader,
    RunRead,
    aligned_buffer,
    gaps_between,
)
from semistream.master.files import failed_read, open_file
from semistream.master.format import CODE, DAMAGED, KEYS
from semistream.master.frequency import SecondIndex
from semistream.master.mapped import MappedPages, flag_bytes
from semistream.master.page_index import first_buffers
from semistream.master.read_ahead import ReadAhead

if TYPE_CHECKING:
    from semistream.master.pages import PageMaster

# Buffered reads need no alignment; this one keeps buffers of a page on their own cache lines.
_CACHE_LINE = 64
# Mapped pages that are read in and checked together, while the disk reads as many behind them: it is slow with one
# request at a time.
_TOUCHED_TOGETHER = 512


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
        self._columns = tuple(columns)
        self._direct = direct
        self._align = ALIGNMENT if direct else _CACHE_LINE
        names = [*columns, manifest.code_column]
        self._buffers = _buffers_of(master, manifest.physical, names)
        self._kinds = np.append(self.physical.kinds, 0)
        self._is_fixed = set(names) <= set(manifest.fixed_layout)
        self._describe(master)
        self._shared = master.shared
        self._mapped: MappedPages | None = None
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

    def _describe(self, master: PageMaster) -> None:
        """What is known of all pages of a version."""
        manifest = master.manifest
        self.n_rows, self.n_pages = master.n_rows, master.n_pages
        self._paths = [file.path for file in master.page_files]
        self._sizes = [file.size for file in master.page_files]
        self._index = master.index
        if master.order == "key":
            self.fences, self.continues = self._index.fences, self._index.continues
        self._recoding = master.coder.recoding
        if self._recoding is not None:
            self._recoding.load()
        self._last_pages = self._index.borders[1:] - 1
        self._last_rows = np.array(
            [shard["rows"] - (shard["pages"] - 1) * self.page_rows for shard in manifest.shards], dtype=np.int32
        )
        #: pages of runs have a column for codes, whatever the base has: where they begin, and their buffers
        self._run_page = manifest.base_pages
        self._run_buffers = self._buffers
        if manifest.run_physical:
            self._run_buffers = _buffers_of(master, manifest.run_physical, [*self._columns, CODE])
        #: where the columns lie on a full page of the base, if that is the same on all of them; then on the last page
        #: of each of its shards, and on every page of runs. Filled in as pages are seen.
        places = 1 + manifest.base_shards + self.n_pages - self._run_page if self._is_fixed else 0
        shape = places, len(self._buffers)
        self._places = tuple(np.full(shape, -1, dtype=np.int64) for _ in range(3))
        self._placed, self._bits = np.zeros(places, dtype=np.bool_), np.zeros(shape, dtype=np.int64)
        #: longest run of that many pages in the files, for every number that was asked for
        self._spans: dict[int, int] = {}

    def growth_bytes(self, master: PageMaster) -> int:
        """How much larger the index is with a version that follows this one."""
        changed = [0 if each is None else each.nbytes for each in (self._recoding, master.coder.recoding)]
        flags = flag_bytes(master.n_pages) - flag_bytes(self.n_pages)
        places = 32 * len(self._buffers) * (master.n_pages - self.n_pages) if self._is_fixed else 0
        return master.index.nbytes - self._index.nbytes + flags + places + changed[1] - changed[0]

    def reads_with(self, master: PageMaster, size: int) -> bool:
        """Whether a buffer of that size holds any page of a version that follows this one."""
        longest = int(np.diff(master.index.starts).max(initial=0))
        return -(-longest // ALIGNMENT) * ALIGNMENT + 2 * ALIGNMENT <= size

    def extend(self, master: PageMaster) -> None:
        """Go on with a version that follows this one: pages that were read before stay where they are, and checked.

        If it fails, the reader is as it was.
        """
        files = master.page_files[len(self._paths) :]
        recoding = master.coder.recoding
        if recoding is not None:
            recoding.load()
        index, mapped = master.index, self._mapped
        opened: list[int] = []
        try:
            for file in files:
                opened.append(open_file(file.path, self._direct))  # noqa: PERF401  those before must be closed
            if mapped is not None:
                mapped = mapped.extended(opened, files, index)
        except BaseException:
            for handle in opened:
                os.close(handle)
            raise
        before, self._lease = self._lease, master._lease.again()
        before.close()
        self._describe(master)
        self._fds = np.append(self._fds, np.array(opened, dtype=np.int64))
        self._mapped, self._shared = mapped, master.shared
        if mapped is not None:
            self._shared.mapped = mapped

    @property
    def index_bytes(self) -> int:
        second = 0 if self._table is None else self._table.nbytes
        changed = 0 if self._recoding is None else self._recoding.nbytes
        if self._is_fixed:
            changed += 32 * len(self._buffers) * (self.n_pages - self._run_page)
        return int(self._index.nbytes) + flag_bytes(self.n_pages) + second + changed

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
        return self._run_read(pages.copy(), base, result, buffer)

    def read_ahead(self, buffers: Sequence[Bytes], n_pages: int, gap_bytes: int, readers: int) -> ReadAhead:
        self._require_ready(buffers[0])
        index = self._index
        files = self._fds, index.borders, index.shifts, index.starts
        sums = index.starts, index.sums
        sizes = buffers[0].nbytes, gap_bytes, self._align
        return ReadAhead(self._chosen, self._finished_run, files, sums, sizes, buffers, n_pages, readers)

    def _finished_run(self, pages: Int64s, base: Int64s, result: Int64s, buffer: Bytes) -> RunRead:
        """What another thread has read and verified."""
        self._require_open()
        self._require_read(result)
        if result[5] >= 0:
            raise self._wrong_sum(int(pages[result[5]]), int(base[result[5]]))
        return self._run_read(pages, base, result, buffer)

    def _run_read(self, pages: Int64s, base: Int64s, result: Int64s, buffer: Bytes) -> RunRead:
        done = int(result[0])
        if not done and len(pages):
            raise ConfigError(
                f"a buffer of {buffer.nbytes} bytes is too small for one page; buffer_bytes says {self.buffer_bytes(1)}"
            )
        return RunRead(self._block(base[:done], pages[:done], buffer), done, int(result[1]), int(result[2]))

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
        pages = self._chosen(pages)
        base, mapped = self._addresses(pages)
        fresh = np.empty(len(pages), dtype=np.int64)
        count = unseen_pages(pages, mapped.seen, fresh)
        if count:
            self._touch(base[fresh[:count]], pages[fresh[:count]], mapped.seen)
        return self._block(base, pages, mapped.files)

    def in_memory(self, pages: Int64s) -> int:
        """How many of some pages the page cache has; all of them, if the system does not tell."""
        pages = self._chosen(pages)
        base, _ = self._addresses(pages)
        return int(pages_in_memory(base, pages, self._index.starts))

    def _addresses(self, pages: Int64s) -> tuple[Int64s, MappedPages]:
        """Where pages are in the mapped files."""
        self._require_open()
        if self._mapped is None:
            self._mapped = self._map_files()
        shifts = self._mapped.shifts
        base = self._index.starts[pages]
        base += shifts[self._files_of(pages)] if len(shifts) > 1 else shifts
        return base, self._mapped

    def _map_files(self) -> MappedPages:
        """As an earlier reader of the same master left them, or for the first time."""
        mapped = self._shared.mapped
        if mapped is None:
            files = list(map(PageFile, self._paths, self._sizes))
            mapped = self._shared.mapped = MappedPages.of(self._fds.tolist(), files, self._index)
        return mapped

    def _touch(self, base: Int64s, pages: Int64s, seen: Bytes) -> None:
        """Read and check mapped pages the first time they are wanted; a failure is an error and not a signal."""
        starts, step = self._index.starts, _TOUCHED_TOGETHER
        announce_pages(base[:step], pages[:step], starts)
        for at in range(0, len(pages), step):
            behind = slice(at + step, at + 2 * step)
            announce_pages(base[behind], pages[behind], starts)
            self._touch_some(base[at : at + step], pages[at : at + step])
        mark_seen(pages, seen)

    def _touch_some(self, base: Int64s, pages: Int64s) -> None:
        if populate_pages(base, pages, self._index.starts) >= 0:
            # The kernel is older than Linux 5.14, or the pages cannot be read: reading them in tells.
            buffer = aligned_buffer(self.buffer_bytes(1))
            for page in pages:
                self._fetch(np.array([page]), buffer, 0)
        bad = verify_pages(base, pages, self._index.starts, self._index.sums)
        if bad >= 0:
            raise self._wrong_sum(int(pages[bad]), int(base[bad]))

    def locate(self, codes: Int64s) -> tuple[Int64s, Int64s]:
        codes = np.ascontiguousarray(codes)
        if self._table is not None:
            first, last = self._table.locate(codes, self.page_rows)
            if self._recoding is not None:
                self._locate_changed(codes, first, last)
            return first, last
        first, last = np.empty_like(codes), np.empty_like(codes)
        locate_in_fences(self.fences, self.continues, codes, first, last)
        return first, last

    def _locate_changed(self, codes: Int64s, first: Int64s, last: Int64s) -> None:
        """Pages of codes that changes have given, which the second index of the base does not know."""
        assert self._recoding is not None
        given = np.flatnonzero(codes > self._recoding.absent)
        index, some = self._index, codes[given]
        if len(given) and len(index.fences):
            at, end = np.empty_like(some), np.empty_like(some)
            locate_in_fences(index.fences, index.continues, some, at, end)
            first[given], last[given] = at + index.fenced, end + index.fenced

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
        self._require_read(result)
        done = int(result[0])
        bad = verify_pages(base[:done], pages[:done], self._index.starts, self._index.sums)
        if bad >= 0:
            raise self._wrong_sum(int(pages[bad]), int(base[bad]))
        return done

    def _require_read(self, result: Int64s) -> None:
        if result[3] >= 0:
            file = int(result[4])
            raise failed_read(self._paths[file], int(self._fds[file]), int(result[3]), self._direct)

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

    def _layout(self, base: Int64s, pages: Int64s) -> tuple[Int64s, Int64s, Int64s]:
        """Where the columns lie on pages in memory: data, valid, offs."""
        data, valid, offs = (np.empty((len(base), len(self._buffers)), dtype=np.int64) for _ in range(3))
        if self._run_buffers is self._buffers:
            layout_pages(base, self._buffers, self._kinds, data, valid, offs)
            return data, valid, offs
        in_run = pages >= self._run_page
        for buffers, rows in ((self._buffers, ~in_run), (self._run_buffers, in_run)):
            part = tuple(np.empty((int(rows.sum()), len(buffers)), dtype=np.int64) for _ in range(3))
            layout_pages(base[rows], buffers, self._kinds, *part)
            data[rows], valid[rows], offs[rows] = part
        return data, valid, offs

    def _placed_at(
        self, base: Int64s, pages: Int64s, file: npt.NDArray[np.intp], ends: npt.NDArray[np.intp]
    ) -> npt.NDArray[np.int32]:
        """Which row of the reader's tables says where the columns lie on each page; those that are new are filled in.

        Several threads may do so at once: they fill in the same.
        """
        kind = np.zeros(len(pages), dtype=np.int32)
        kind[ends] = file[ends] + 1
        if self._run_page < self.n_pages:
            before = len(self._placed) - (self.n_pages - self._run_page)
            changed = np.flatnonzero(pages >= self._run_page)
            kind[changed] = pages[changed] - self._run_page + before
        if not self._placed.all() and not (known := self._placed[kind]).all():
            rows, fresh = np.unique(kind[~known], return_index=True)
            fresh = np.flatnonzero(~known)[fresh]
            for table, found in zip(self._places, self._layout(base[fresh], pages[fresh]), strict=True):
                table[rows] = found
            self._placed[rows] = True
        return kind

    def _block(self, base: Int64s, pages: Int64s, keep: object) -> PageBlock:
        file = self._files_of(pages)
        ends = np.flatnonzero(self._last_pages[file] == pages)
        rows = np.full(len(pages), self.page_rows, dtype=np.int32)
        rows[ends] = self._last_rows[file[ends]]
        if self._is_fixed:
            kind = self._placed_at(base, pages, file, ends)
            data, valid, offs = self._places
            bit = self._bits
        else:
            kind = np.arange(len(pages), dtype=np.int32)
            data, valid, offs = self._layout(base, pages)
            bit = np.zeros_like(data)
        return PageBlock(
            n_rows=int(rows.sum()),
            page_rows=self.page_rows,
            base=base,
            rows=rows,
            kind=kind,
            data=data,
            valid=valid,
            offs=offs,
            bit=bit,
            pages=pages,
            keep=keep,
            gaps=gaps_between(rows, self.page_rows) if len(ends) else None,
        )


def _buffers_of(master: PageMaster, stored: Sequence[str], names: Sequence[str]) -> Int64s:
    """Number of the first buffer of each column, on pages with the columns `stored`."""
    fields = {c.name: pa.field(c.name, c.physical) for c in PhysicalSchema(master.schema).columns}
    fields[CODE] = pa.field(CODE, pa.int64())
    numbers = first_buffers([fields[name] for name in stored])
    return np.array([numbers[stored.index(name)] for name in names], dtype=np.int64)
