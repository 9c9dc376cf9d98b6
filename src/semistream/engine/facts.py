"""What a plan may know of both sides, as plain values: how large things are, not what is in them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pyarrow as pa

from semistream.columns.physical import Kind, PhysicalSchema
from semistream.columns.rows import RowLayout
from semistream.errors import ConfigError
from semistream.master.base import ALIGNMENT, DEFAULT_PAGE_ROWS, Master, PageReader
from semistream.master.frequency import second_index_bytes
from semistream.parts.arena import blocks_for
from semistream.parts.cache import Cache
from semistream.parts.disk_buffer import DiskBuffer
from semistream.spec import JoinSpec

#: of a store that nobody has built: offset, first code and checksum of a page, whether it continues a run, and whether
#: it was verified
_INDEX_BYTES_PER_PAGE = 8 + 8 + 8 + 1 + 1 / 8
#: of these, the fences of a page, which a store in order of frequency does without
_FENCE_BYTES = 9
#: what Arrow IPC puts around a page: a node and two buffers per column, and the message itself
_FRAME_BYTES_PER_COLUMN = 48
_FRAME_BYTES = 96
#: what the reader of a store holds per page in memory
_HELD_BYTES = 32
#: what a VAR value takes besides its bytes: cells of 32 bytes, on average half of the last one is empty
_VAR_EXTRA = 20
#: what a waiting tuple takes for a VAR column, as long as none was seen
_WAITING_VAR_BYTES = 64


@dataclass(frozen=True)
class MasterFacts:
    """R as a plan sees it, opened for the columns of one join."""

    rows: int
    page_rows: int
    n_pages: int
    #: bytes of a master tuple in the cache: its slot, and on average what its VAR values take besides
    row_slot: int
    var_bytes: float
    var_columns: int
    #: columns that are read, the key code among them; bytes of a row of these, and of one with all columns
    columns: int
    width: float
    row_bytes: float
    #: bytes of a page, and of what the reader holds per page in memory
    page_bytes: float
    held_bytes: int
    index_bytes: int
    #: bytes of a disk buffer of that many pages, and bytes that a load of them counts
    buffer_bytes: Callable[[int], int] = field(compare=False, repr=False)
    read_bytes: Callable[[int], float] = field(compare=False, repr=False)
    #: "key", "frequency" or "none": how R is ordered
    order: str = "key"
    has_index: bool = True
    #: read past the page cache
    direct: bool = False
    #: about the least and the largest key code, if known
    code_range: tuple[int, int] | None = None

    @property
    def v_R(self) -> float:
        """Bytes of a master tuple in the cache, its directory entry apart."""
        return self.row_slot + self.var_bytes

    @property
    def block_bytes(self) -> float:
        """Bytes of the VAR blocks of a cached row, on average, with room to spare."""
        return blocks_for(self.row_bytes, self.var_columns) if self.var_columns else 0.0

    @property
    def bytes(self) -> float:
        """Bytes of all of R in memory."""
        return self.rows * self.row_bytes

    def pages_within(self, size: int) -> int:
        """How many pages a disk buffer of `size` bytes holds; at least one, at most all of R."""
        low, high = 1, max(self.n_pages, 1)
        while low < high:
            middle = (low + high + 1) // 2
            if self.buffer_bytes(middle) <= size:
                low = middle
            else:
                high = middle - 1
        return low

    @staticmethod
    def of(master: Master, reader: PageReader, layout: RowLayout, direct: bool = False) -> MasterFacts:
        """The facts of an opened R."""
        physical = reader.physical
        fixed = int(physical.widths.sum())
        long = len(physical.var_columns)
        page_bytes = float(reader.longest_page) or reader.page_rows * master.row_bytes
        return MasterFacts(
            rows=reader.n_rows,
            page_rows=reader.page_rows,
            n_pages=reader.n_pages,
            row_slot=layout.slot_bytes,
            var_bytes=max(master.row_bytes - fixed, 0.0) + _VAR_EXTRA * long if long else 0.0,
            var_columns=long,
            columns=len(physical) + 1,
            width=_row_width(physical),
            row_bytes=master.row_bytes,
            page_bytes=page_bytes,
            held_bytes=reader.held_bytes(2) - reader.held_bytes(1),
            index_bytes=reader.index_bytes,
            buffer_bytes=lambda pages: DiskBuffer.bytes_for(reader, pages),
            read_bytes=lambda pages: reader.buffer_bytes(pages) or pages * reader.page_rows * (8.0 + fixed),
            order=master.order,
            has_index=master.has_index,
            direct=direct,
            code_range=master.code_range,
        )

    @staticmethod
    def sketch(
        rows: int, *, page_rows: int = DEFAULT_PAGE_ROWS, order: str = "key", direct: bool = False
    ) -> MasterFacts:
        """The papers' R, 120 bytes per master tuple, in a page store nobody has built."""
        if rows < 0:
            raise ConfigError(f"R_t={rows}: allowed are sizes from 0 tuples")
        columns = 15
        store = _Store(rows, page_rows, 8.0 * columns, columns, order)
        return MasterFacts(
            rows=rows,
            page_rows=page_rows,
            n_pages=store.n_pages,
            row_slot=Cache.HEADER + 8 * (columns - 1),
            var_bytes=0.0,
            var_columns=0,
            columns=columns,
            width=8.0 * (columns - 1),
            row_bytes=8.0 * columns,
            page_bytes=store.page_bytes,
            held_bytes=_HELD_BYTES,
            index_bytes=store.index_bytes,
            buffer_bytes=store.buffer_bytes,
            read_bytes=store.read_bytes,
            order=order,
            direct=direct,
            code_range=(0, rows - 1) if rows else None,
        )

    @staticmethod
    def stored(r: MasterFacts, *, page_rows: int = DEFAULT_PAGE_ROWS) -> MasterFacts:
        """R, which lies elsewhere, in a page store nobody has built."""
        store = _Store(r.rows, page_rows, r.row_bytes, r.columns, "key")
        return replace(
            r,
            page_rows=page_rows,
            n_pages=store.n_pages,
            page_bytes=store.page_bytes,
            held_bytes=_HELD_BYTES,
            index_bytes=store.index_bytes,
            buffer_bytes=store.buffer_bytes,
            read_bytes=store.read_bytes,
            order="key",
            has_index=True,
        )


@dataclass(frozen=True)
class _Store:
    """Sizes of a page store that nobody has built."""

    rows: int
    page_rows: int
    row_bytes: float
    columns: int
    order: str

    @property
    def n_pages(self) -> int:
        return -(-self.rows // self.page_rows)

    @property
    def page_bytes(self) -> float:
        return float(self.page_rows * self.row_bytes + _FRAME_BYTES + _FRAME_BYTES_PER_COLUMN * self.columns)

    @property
    def index_bytes(self) -> int:
        index = int(self.n_pages * _INDEX_BYTES_PER_PAGE) + 8
        if self.order == "frequency":
            index += second_index_bytes(self.rows) - _FENCE_BYTES * self.n_pages
        return index

    def read_bytes(self, count: int) -> int:
        return -(-int(min(count, self.n_pages) * self.page_bytes) // ALIGNMENT) * ALIGNMENT + 2 * ALIGNMENT

    def buffer_bytes(self, count: int) -> int:
        return self.read_bytes(count) + count * (8 * self.page_rows + _HELD_BYTES)


@dataclass(frozen=True)
class StreamFacts:
    """A stream tuple as a plan sees it: bytes of its packed form behind a slot's header."""

    #: without a key that the slot's code stands for, and with it
    payload: int
    payload_with_key: int
    var_columns: int = 0
    #: bytes of a row, long values at 16
    width: float = 20.0
    #: there may be tuples with a null key that are output, so that where they wait no code can stand for the key
    null_keys: bool = False

    def slot(self, header: int, *, counter: bool = False, with_key: bool = False) -> int:
        """Bytes of a waiting tuple's slot; `counter` asks for a byte that counts matches."""
        return max(header + (self.payload_with_key if with_key else self.payload) + counter, 8)

    @property
    def var_bytes(self) -> float:
        """What a waiting tuple takes besides its slot."""
        return float(_WAITING_VAR_BYTES * self.var_columns)

    @staticmethod
    def of(schema: pa.Schema, spec: JoinSpec, code_is_key: bool) -> StreamFacts:
        """The facts of a stream with this schema; `code_is_key`: a key's code can stand for it where a tuple waits."""
        physical, nullable = PhysicalSchema(schema), [column.nullable for column in schema]
        key_at = schema.get_field_index(spec.stream_on[0])
        alias = code_is_key and not pa.types.is_floating(physical.columns[key_at].physical)
        flag = spec.how != "inner"
        # A slot has at least eight bytes, so a header of that size shows what the payload takes.
        without = RowLayout(physical, 8, nullable, [key_at] if alias else [], flag=flag).slot_bytes - 8
        whole = RowLayout(physical, 8, nullable, flag=True).slot_bytes - 8
        null_keys = spec.keeps_unmatched and schema.field(key_at).nullable
        return StreamFacts(without, whole, len(physical.var_columns), _row_width(physical), null_keys)

    @staticmethod
    def unknown() -> StreamFacts:
        """The narrowest stream there can be: what it has no room for, no stream has."""
        return StreamFacts(0, 1)

    @staticmethod
    def sketch() -> StreamFacts:
        """The papers' stream: 20 bytes per tuple, 8 of them the key."""
        return StreamFacts(12, 21)


def _row_width(physical: PhysicalSchema) -> float:
    return float(sum(16 if column.kind is Kind.VAR else column.width for column in physical.columns))
