"""Rows of a version as physical columns: all that some key leads to, or those of some codes.

Codes here are those of the rows' keys (`KeyCoder`), whatever code a change has given them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from queue import SimpleQueue
from types import TracebackType
from typing import Self

import numpy as np
import pyarrow as pa

from semistream.columns.physical import PhysicalSchema
from semistream.columns.rows import page_view, take_paged
from semistream.errors import StoreError
from semistream.kernels.lookup import find_runs
from semistream.master.base import ALIGNMENT, HUGE_PAGE, Bools, Bytes, Int64s, PageBlock, aligned_buffer
from semistream.master.format import CODE
from semistream.master.page_reader import PageStoreReader
from semistream.master.pages import PageMaster
from semistream.master.sorting import int64_view

#: codes that are looked up together
_GROUP = 8192
#: pages that are few enough to be mapped, wherever they are; and of more of them, how many are looked at
_FEW, _LOOKED_AT = 256, 64
#: threads that read pages from the disk, which serves many at once, and the buffer that each fills
_THREADS, _BUFFER = 16, HUGE_PAGE
_CODE = PhysicalSchema(pa.schema([pa.field(CODE, pa.int64(), nullable=False)]))


class LiveRows:
    """Reads the rows of a version; `schema` is the form of its batches: the code first, then R's columns, or some."""

    def __init__(self, master: PageMaster, memory: int, columns: Sequence[str] | None = None) -> None:
        self._master = master
        self._memory = memory
        self._columns = master.schema.names if columns is None else list(columns)
        self._reader = master.open(self._columns)
        self._physical = self._reader.physical
        self.schema = physical_schema(self._physical)
        recoding = master.coder.recoding
        self._recoding = recoding
        self._changed = np.empty(0, dtype=np.int64)
        self._given = self._owners = self._changed
        if recoding is not None:
            self._changed, fresh = recoding.pairs()
            order = np.argsort(fresh, kind="stable")
            order = order[fresh[order] > recoding.absent]
            #: codes that changes have given, those in force, sorted; and the code of each one's key
            self._given, self._owners = fresh[order], self._changed[order]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._reader.close()

    def largest_base_code(self) -> int | None:
        """The largest code on a page of the base; None if it has no row."""
        pages = self._master.manifest.base_pages
        if not pages:
            return None
        if self._master.order == "key":
            return int(self._codes(self._reader.map(np.array([pages - 1])))[-1])
        # Rows by frequency are in no order of codes; their index is.
        return int(self._master.listed_keys(-1)[0][-1])

    def rows_of(self, codes: Int64s) -> Iterator[pa.RecordBatch]:
        """All rows of keys with these codes, which are sorted and distinct; not in their order."""
        current = codes.copy()
        if self._recoding is not None:
            self._recoding.apply(current)
        if not self._reader.n_pages:
            return
        order = np.argsort(current, kind="stable")
        for start in range(0, len(order), _GROUP):
            group = order[start : start + _GROUP]
            some = current[group]
            first, last = self._reader.locate(some)
            present = np.flatnonzero(first >= 0)
            present = present[np.argsort(first[present], kind="stable")]
            if len(present):
                some, group = np.ascontiguousarray(some[present]), group[present]
                yield from self._found(some, codes[group], first[present], last[present])

    def _found(self, codes: Int64s, owners: Int64s, first: Int64s, last: Int64s) -> Iterator[pa.RecordBatch]:
        """Rows of codes that have pages, in the order of these."""
        pages = _distinct(first, last)
        direct = self._past_the_page_cache(pages)
        if direct is None:
            yield from self._rows_on(self._reader.map(pages), codes, owners, first, last)
            return
        most = _BUFFER // (direct.longest_page + 2 * ALIGNMENT)
        threads = min(_THREADS, self._memory // 4 // _BUFFER)
        free = SimpleQueue[Bytes]()
        for _ in range(threads):
            free.put(aligned_buffer(_BUFFER))

        def read(part: slice) -> list[pa.RecordBatch]:
            buffer = free.get()
            try:
                block = direct.read_runs(_distinct(first[part], last[part]), buffer, 0).block
                return list(self._rows_on(block, codes[part], owners[part], first[part], last[part]))
            finally:
                free.put(buffer)

        with ExitStack() as stack:
            stack.callback(direct.close)
            readers = ThreadPoolExecutor(threads, "semistream reader")
            stack.callback(readers.shutdown, cancel_futures=True)
            reading = deque[Future[list[pa.RecordBatch]]]()
            for part in _parts(pages, first, last, most):
                if part.stop - part.start == 1 and last[part.start] - first[part.start] >= most:
                    block = self._reader.map(_distinct(first[part], last[part]))
                    yield from self._rows_on(block, codes[part], owners[part], first[part], last[part])
                    continue
                if len(reading) > threads:
                    yield from reading.popleft().result()
                reading.append(readers.submit(read, part))
            while reading:
                yield from reading.popleft().result()

    def _past_the_page_cache(self, pages: Int64s) -> PageStoreReader | None:
        """A reader for pages that the page cache lacks, which would take them one by one into small pieces of memory.

        None if most are there, if memory is short, or if the file system refuses it.
        """
        if len(pages) < _FEW or self._memory // 4 < 2 * _BUFFER:
            return None
        some = pages[:: len(pages) // _LOOKED_AT]
        if 2 * self._reader.in_memory(some) > len(some):
            return None
        try:
            return self._master.open(self._columns, direct=True)
        except StoreError:
            return None

    def _rows_on(
        self, block: PageBlock, codes: Int64s, owners: Int64s, first: Int64s, last: Int64s
    ) -> Iterator[pa.RecordBatch]:
        """Rows of codes whose pages `first` to `last` a block has."""
        starts, ends = np.empty_like(codes), np.empty_like(codes)
        find_runs(
            codes,
            first,
            last,
            0,
            len(codes),
            page_view(block),
            block.rows,
            block.pages,
            self._master.order == "key",
            self._reader.fences,
            starts,
            ends,
        )
        lengths = ends - starts
        ids = np.repeat(starts - (np.cumsum(lengths) - lengths), lengths) + np.arange(int(lengths.sum()))
        yield from self._taken(block, ids, np.repeat(owners, lengths))

    def all_but(self, left_out: Int64s) -> Iterator[pa.RecordBatch]:
        """All rows in the order of R, but for those of keys with these codes, which are sorted."""
        count = self._pages_at_once()
        buffer = aligned_buffer(self._reader.buffer_bytes(count))
        for page in range(0, self._reader.n_pages, count):
            block = self._reader.read(page, count, buffer)
            codes = self._codes(block)
            owners, live = self._owners_of(codes)
            live &= ~_within(owners, left_out)
            rows = np.flatnonzero(live)
            yield from self._taken(block, block.row_ids(rows), owners[rows])

    def _pages_at_once(self) -> int:
        """As many pages as fit a quarter of the memory: they are held, and their rows a second time."""
        count = max(self._reader.n_pages, 1)
        while count > 1 and self._reader.buffer_bytes(count) > self._memory // 4:
            count = (count + 1) // 2
        return count

    def _owners_of(self, codes: Int64s) -> tuple[Int64s, Bools]:
        """The code of each row's key, and whether that key still leads to the row."""
        if self._recoding is None:
            return codes, np.ones(len(codes), dtype=np.bool_)
        given = codes > self._recoding.absent
        live = ~given & ~_within(codes, self._changed)
        at = np.searchsorted(self._given, codes)
        at[at == len(self._given)] = 0
        owners = codes.copy()
        if len(self._given):
            in_force = given & (self._given[at] == codes)
            owners[in_force] = self._owners[at[in_force]]
            live |= in_force
        return owners, live

    def _codes(self, block: PageBlock) -> Int64s:
        rows = block.row_ids(np.arange(block.n_rows))
        arrays = take_paged(_CODE, block, rows, 0, len(rows), np.array([len(self._physical)]))
        assert not isinstance(arrays, int)
        return int64_view(arrays[0])

    def _taken(self, block: PageBlock, ids: Int64s, owners: Int64s) -> Iterator[pa.RecordBatch]:
        at, most = 0, len(ids)
        while at < len(ids):
            count = min(most, len(ids) - at)
            arrays = take_paged(self._physical, block, ids, at, count, self._physical.every, self._memory // 4)
            if isinstance(arrays, int):
                most = arrays
                continue
            codes = pa.array(owners[at : at + count])
            yield pa.RecordBatch.from_arrays([codes, *arrays], schema=self.schema)
            at += count


def physical_schema(physical: PhysicalSchema) -> pa.Schema:
    """The form in which changes and rows that are kept meet: the code of the key, then all columns of R."""
    fields = [pa.field(column.name, column.physical) for column in physical.columns]
    return pa.schema([pa.field(CODE, pa.int64()), *fields])


def _distinct(first: Int64s, last: Int64s) -> Int64s:
    """All pages of some ranges, each once, sorted."""
    lengths = last - first + 1
    pages = np.repeat(first - (np.cumsum(lengths) - lengths), lengths) + np.arange(int(lengths.sum()))
    return np.unique(pages)


def _parts(pages: Int64s, first: Int64s, last: Int64s, most: int) -> Iterator[slice]:
    """Codes with their pages, cut where they would have more than `most` pages; a code with more of them is alone."""
    begins = np.searchsorted(pages, first)
    ends = np.maximum.accumulate(np.searchsorted(pages, last, side="right"))
    at = 0
    while at < len(first):
        stop = max(int(np.searchsorted(ends, begins[at] + most, side="right")), at + 1)
        yield slice(at, stop)
        at = stop


def _within(values: Int64s, known: Int64s) -> Bools:
    """Which of the values are among the known ones, which are sorted."""
    if not len(known):
        return np.zeros(len(values), dtype=np.bool_)
    at = np.searchsorted(known, values)
    at[at == len(known)] = 0
    found: Bools = known[at] == values
    return found
