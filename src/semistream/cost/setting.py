"""The setting of a join, in the papers' symbols: R, M, the stream, and how many bytes things really take.

A formula describes our operators, so its bytes are theirs: slots with their headers, directory entries, pages with
their Arrow frame. `Setting.of` asks the parts themselves; `Setting.sketch` computes the same for data that does not
exist.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pyarrow as pa

from semistream.columns.physical import Kind, PhysicalSchema
from semistream.columns.rows import RowLayout
from semistream.cost.probability import KeyClasses
from semistream.errors import ConfigError
from semistream.kernels.cache import ROW_HEADER
from semistream.kernels.pages import TABLE_BLOCK, TABLE_ENTRIES
from semistream.master.base import ALIGNMENT, DEFAULT_PAGE_ROWS, Master
from semistream.master.pages import PageStoreReader
from semistream.spec import JoinSpec

#: offset, first code and checksum of a page, whether it continues a run, and whether it was verified
_INDEX_BYTES_PER_PAGE = 8 + 8 + 8 + 1 + 1 / 8
#: the second index of a store in order of frequency: a first code a block, room to read blocks into, no fences
_SECOND_INDEX_BLOCKS = 64
#: what Arrow IPC puts around a page: a node and two buffers a column, and the message itself
_FRAME_BYTES_PER_COLUMN = 48
_FRAME_BYTES = 96
_HELD_BYTES_PER_PAGE = 32
_LEAST_PAGE_ROWS, _MOST_PAGE_ROWS = 16, 65536
#: what a VAR value takes besides its bytes: cells of 32 bytes, on average half of the last one is empty
_VAR_EXTRA = 20


@dataclass(frozen=True)
class Setting:
    """What is known before a join is opened."""

    #: tuples of R, and tuples and bytes of one of its pages
    R_t: int
    page_rows: int
    v_P: float
    #: bytes of a master tuple in the cache (slot without directory entry), and of a stream tuple's payload in H_S
    v_R: float
    v_S: float
    #: bytes of an output row
    v_O: float
    #: total memory in bytes
    M: int
    #: the keys of the stream
    keys: KeyClasses
    #: bytes for finding pages; "key" or "frequency": how R is ordered
    index_bytes: int
    order: str = "key"
    has_index: bool = True
    #: about the least and the largest key code of R, if known
    code_range: tuple[int, int] | None = None
    #: a page store is read into a buffer of its pages; other forms of R hand out pages of their own
    has_buffer: bool = True
    #: bytes the reader holds a page in memory and besides, and columns that are read, the key code among them
    held_bytes: int = _HELD_BYTES_PER_PAGE
    held_fixed: int = 0
    columns: int = 15
    #: bytes a page has in memory (all columns), as the operators count what they map
    row_bytes: float = 120.0
    #: bytes a row counts for where R has no buffer of its own: its columns that are read, long values without
    read_row_bytes: float = 120.0
    #: stream tuples a `push`
    batch: int = 100_000
    direct: bool = False
    #: inner, left, semi or anti
    how: str = "inner"
    #: every batch is followed by `drain`, as in a micro-batch: what waits is finished with the batch
    drained: bool = False
    #: options of the algorithm, as `open_join` takes them
    options: Mapping[str, float] = field(default_factory=dict)

    @property
    def n_pages(self) -> int:
        return -(-self.R_t // self.page_rows)

    @property
    def rows_out(self) -> float:
        """Output rows per stream tuple."""
        absent = self.keys.absent_share
        if self.how == "semi":
            return 1.0 - absent
        if self.how == "anti":
            return absent
        return self.keys.rows_per_tuple + (absent if self.how == "left" else 0.0)

    def buffer_bytes(self, pages: int) -> int:
        """Bytes of a disk buffer of `pages` pages: the pages, aligned, their key codes and their tables."""
        span = min(pages, self.n_pages) if self.has_buffer else 0
        size = -(-int(span * self.v_P) // ALIGNMENT) * ALIGNMENT + 2 * ALIGNMENT if self.has_buffer else 0
        return size + 8 * pages * self.page_rows + self.held_fixed + pages * self.held_bytes

    def read_bytes(self, pages: int) -> float:
        """Bytes that a load of `pages` pages counts."""
        if not self.has_buffer:
            return pages * self.page_rows * self.read_row_bytes
        return self.buffer_bytes(pages) - 8 * pages * self.page_rows - self.held_fixed - pages * self.held_bytes

    def with_options(self, **options: float) -> Setting:
        """The same with other options of the algorithm."""
        return replace(self, options={**self.options, **options})

    @staticmethod
    def of(
        master: Master,
        spec: JoinSpec,
        stream: pa.Schema,
        budget_bytes: int,
        keys: KeyClasses,
        *,
        direct: bool = False,
        batch: int = 100_000,
        drained: bool = False,
        options: Mapping[str, float] | None = None,
    ) -> Setting:
        """The setting of a join with this master data, as the operators would open it."""
        exact = master.coder.exact
        if not spec.carries_master:
            select: list[str] = []
        elif spec.select is None:
            select = [name for name in master.schema.names if name not in spec.master_on]
        else:
            select = [name for name in dict.fromkeys(spec.select) if name not in spec.master_on]
        columns = select if exact else [*select, *(name for name in spec.master_on if name not in select)]
        cut = None
        if not master.has_index:
            # Parquet is cut at will: an operator takes pages of a 64th of its budget.
            cut = int(min(max(budget_bytes / 64 / max(master.row_bytes, 1.0), _LEAST_PAGE_ROWS), _MOST_PAGE_ROWS))
        with master.open(columns, direct=direct, page_rows=cut) as reader:
            physical, index, page_rows = reader.physical, reader.index_bytes, reader.page_rows
            held = reader.held_bytes(2) - reader.held_bytes(1)
            held_fixed = reader.held_bytes(1) - held
            has_buffer = reader.buffer_bytes(1) > 0
            v_P = page_rows * master.row_bytes
            if isinstance(reader, PageStoreReader):
                v_P = float(reader.longest_page)
        nullable = [master.may_be_null(name) for name in columns]
        payload = PhysicalSchema(stream)
        key_at = stream.get_field_index(spec.stream_on[0])
        aliases = [key_at] if exact and not pa.types.is_floating(payload.columns[key_at].physical) else []
        waiting = RowLayout(payload, 0, [f.nullable for f in stream], aliases, flag=spec.how != "inner")
        long = sum(column.kind is Kind.VAR for column in physical.columns)
        v_R = RowLayout(physical, ROW_HEADER, nullable).slot_bytes
        fixed = sum(int(width) for width in physical.widths)
        var_bytes = max(master.row_bytes - fixed, 0.0) + _VAR_EXTRA * long if long else 0.0
        stream_long = sum(column.kind is Kind.VAR for column in payload.columns)
        return Setting(
            R_t=master.n_rows,
            page_rows=page_rows,
            v_P=v_P,
            v_R=v_R + var_bytes,
            v_S=waiting.slot_bytes + 64 * stream_long,
            v_O=_row_width(payload) + _row_width(physical),
            M=budget_bytes,
            keys=keys,
            index_bytes=index,
            order=master.order,
            has_index=master.has_index,
            code_range=master.code_range,
            has_buffer=has_buffer,
            held_bytes=held,
            held_fixed=held_fixed,
            columns=len(columns) + 1,
            row_bytes=master.row_bytes,
            read_row_bytes=8.0 + fixed,
            batch=batch,
            direct=direct,
            how=spec.how,
            drained=drained,
            options=dict(options or {}),
        )

    @staticmethod
    def sketch(
        R_t: int,
        M: int,
        keys: KeyClasses,
        *,
        page_rows: int = DEFAULT_PAGE_ROWS,
        order: str = "key",
        direct: bool = False,
        batch: int = 100_000,
        drained: bool = False,
        options: Mapping[str, float] | None = None,
    ) -> Setting:
        """The papers' relations, 120 bytes per master tuple and 20 per stream tuple, in a store that is not built."""
        if R_t < 0 or M < 1:
            raise ConfigError(f"R_t={R_t}, M={M}: allowed are sizes from 0 tuples and from 1 byte")
        columns = 15
        pages = -(-R_t // page_rows)
        index = int(pages * _INDEX_BYTES_PER_PAGE) + 8
        if order == "frequency":
            index += _SECOND_INDEX_BLOCKS * TABLE_BLOCK + 8 * -(-R_t // TABLE_ENTRIES) - 9 * pages
        frame = _FRAME_BYTES + _FRAME_BYTES_PER_COLUMN * columns
        return Setting(
            R_t=R_t,
            page_rows=page_rows,
            v_P=float(page_rows * 8 * columns + frame),
            v_R=ROW_HEADER + 8 * (columns - 1),
            v_S=12,
            v_O=20 + 8 * (columns - 1),
            M=M,
            keys=keys,
            index_bytes=index,
            order=order,
            code_range=(0, R_t - 1) if R_t else None,
            columns=columns,
            batch=batch,
            direct=direct,
            drained=drained,
            options=dict(options or {}),
        )


def _row_width(physical: PhysicalSchema) -> float:
    return float(sum(16 if column.kind is Kind.VAR else column.width for column in physical.columns))
