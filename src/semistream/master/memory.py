"""R as an Arrow table in memory: for small master data, and for tests that need no disk.

The table is sorted by key code once; a page is then a range of rows, and every block points into the table's
own buffers.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from semistream.columns.border import check_table
from semistream.columns.keys import KeyCoder
from semistream.columns.physical import Kind, PhysicalColumn, PhysicalSchema
from semistream.columns.rows import INT32_MAX
from semistream.columns.stream_keys import StreamCoder
from semistream.errors import ConfigError
from semistream.kernels.pages import locate_in_fences
from semistream.master.base import (
    DEFAULT_PAGE_ROWS,
    Bools,
    Bytes,
    Int64s,
    Master,
    PageBlock,
    PageReader,
    RunRead,
    check_page_rows,
    require_columns,
)


def fence_pages(codes: Int64s, page_rows: int) -> tuple[Int64s, Bools]:
    """First code of every page of sorted codes, and whether its run began on an earlier page."""
    fences = codes[::page_rows].copy()
    continues = np.zeros(len(fences), dtype=np.bool_)
    if len(fences) > 1:
        continues[1:] = codes[page_rows - 1 : -1 : page_rows][: len(fences) - 1] == fences[1:]
    return fences, continues


class MemoryMaster(Master):
    """An Arrow table, sorted by key code.

    Rows with a null key match nothing and are left out. `code_mask` narrows hashed codes, so that tests can
    force collisions.
    """

    def __init__(
        self,
        table: pa.Table,
        on: str | Sequence[str],
        page_rows: int = DEFAULT_PAGE_ROWS,
        code_mask: int | None = None,
    ) -> None:
        check_table(table, "the master data in memory")
        self.on = (on,) if isinstance(on, str) else tuple(on)
        self.schema = table.schema
        require_columns(self.schema, self.schema.names, "master data")
        require_columns(self.schema, self.on, "master data")
        self.page_rows = check_page_rows(page_rows)
        self.order = "key"
        self.has_index = True
        self.version = 0
        # Tables have no name, and comparing their rows would cost more than it saves.
        self.identity = self.lineage = f"table-{uuid.uuid4().hex}"
        self.coder = StreamCoder(KeyCoder([self.schema.field(name).type for name in self.on], mask=code_mask))
        physical = PhysicalSchema(self.schema)
        columns = {
            column.name: _one_array(column, chunked.chunks)
            for column, chunked in zip(physical.columns, table.columns, strict=True)
        }
        codes, valid = self.coder.rows.codes([columns[name] for name in self.on])
        rows = np.arange(len(codes), dtype=np.int64) if valid is None else np.flatnonzero(valid)
        self.null_key_rows = len(codes) - len(rows)
        rows = rows[np.argsort(codes[rows], kind="stable")]
        self.codes: Int64s = np.ascontiguousarray(codes[rows])
        self.n_rows = len(rows)
        taken = pa.array(rows)
        self.arrays: dict[str, pa.Array] = {name: array.take(taken) for name, array in columns.items()}
        self.nbytes = sum(array.nbytes for array in self.arrays.values()) + self.codes.nbytes
        self.row_bytes = self.nbytes / max(self.n_rows, 1)

    @property
    def code_range(self) -> tuple[int, int] | None:
        return (int(self.codes[0]), int(self.codes[-1])) if self.n_rows else None

    def may_be_null(self, column: str) -> bool:
        return bool(self.arrays[column].null_count)

    def open(self, columns: Sequence[str], direct: bool = False, page_rows: int | None = None) -> MemoryReader:
        if direct:
            raise ConfigError("direct=True reads a file past the page cache; an in-memory table has no file")
        return MemoryReader(self, columns, check_page_rows(page_rows or self.page_rows))


class MemoryReader(PageReader):
    """Blocks over the table's buffers; nothing is ever copied, so no buffer is needed."""

    has_index = True

    def __init__(self, master: MemoryMaster, columns: Sequence[str], page_rows: int) -> None:
        super().__init__(master.columns_schema(columns), master.n_rows, page_rows)
        self.fences, self.continues = fence_pages(master.codes, page_rows)
        arrays = [master.arrays[name] for name in columns]
        view = self.physical.view(arrays)
        kinds, widths = self.physical.kinds, self.physical.widths
        self._data = np.append(view.data, master.codes.ctypes.data)
        self._data_step = np.append(np.where(kinds == Kind.FIXED, widths * page_rows, 0), 8 * page_rows)
        self._valid = np.append(np.where(view.has_nulls, view.valid, -1), -1)
        self._offs = np.append(np.where(kinds == Kind.VAR, view.offs, -1), -1)
        self._offs_step = np.append(np.where(kinds == Kind.VAR, 4 * page_rows, 0), 0)
        self._bit = np.append(view.bit, 0)
        self._keep = (view, master.codes)

    @property
    def index_bytes(self) -> int:
        return int(self.fences.nbytes + self.continues.nbytes)

    def buffer_bytes(self, n_pages: int) -> int:
        return 0

    def read(self, first_page: int, n_pages: int, buffer: Bytes) -> PageBlock:
        return self.map(self._run(first_page, n_pages))

    def read_runs(self, pages: Int64s, buffer: Bytes, gap_bytes: int) -> RunRead:
        return RunRead(self.map(pages), len(pages), 0, 0)

    def map(self, pages: Int64s) -> PageBlock:
        pages = self._chosen(pages)
        rows = np.full(len(pages), self.page_rows, dtype=np.int32)
        if len(pages) and pages[-1] == self.n_pages - 1:
            rows[-1] = self.n_rows - self.page_rows * (self.n_pages - 1)
        at = pages[:, None]
        bit = self._bit + at * self.page_rows
        return PageBlock(
            n_rows=int(rows.sum()),
            page_rows=self.page_rows,
            base=np.zeros(len(pages), dtype=np.int64),
            rows=rows,
            kind=np.arange(len(pages), dtype=np.int32),
            data=self._data + at * self._data_step,
            valid=np.broadcast_to(self._valid, bit.shape).copy(),
            offs=self._offs + at * self._offs_step,
            bit=bit,
            pages=pages,
            keep=self._keep,
        )

    def locate(self, codes: Int64s) -> tuple[Int64s, Int64s]:
        first, last = np.empty_like(codes), np.empty_like(codes)
        locate_in_fences(self.fences, self.continues, codes, first, last)
        return first, last

    def close(self) -> None:
        """Nothing to give back: the table belongs to the caller."""


def _one_array(column: PhysicalColumn, chunks: Sequence[pa.Array]) -> pa.Array:
    """The chunks of a column as one physical array. Joined as they are, dictionaries could outgrow their index."""
    arrays = [column.to_physical(chunk) for chunk in chunks]
    if sum(array.nbytes for array in arrays) > INT32_MAX and column.kind is Kind.VAR:
        raise ConfigError(
            f"column {column.name!r} of the in-memory master data holds more than 2 GB: build a page store"
        )
    return pa.concat_arrays(arrays) if arrays else pa.array([], column.physical)
