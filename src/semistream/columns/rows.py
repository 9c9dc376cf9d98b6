"""Packed rows and their way back into Arrow columns.

`RowLayout` decides where each physical column stands in a packed row; `take_paged` and `take_rows` build fresh Arrow
arrays for picked rows of paged columns or of packed rows. One allocation serves all columns of an output batch.

Both are given the number of bytes they may make. Lengths are known before a byte is copied: where the rows are too
large together, nothing is built, and the answer is how many of them fit (at least one, whatever its size).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.columns.helper import in_halves
from semistream.columns.physical import Kind, PhysicalSchema
from semistream.kernels import rows as kernel

Int64s = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]


class Paged(Protocol):
    """Columns in one or more pages, as kernels see them (see master.base.PageBlock)."""

    page_rows: int
    base: Int64s
    kind: Int32s
    data: Int64s
    valid: Int64s
    offs: Int64s
    bit: Int64s


#: what kernels take of paged columns, in the order of `kernels.rows.PAGES`
PageView = tuple[int, Int64s, Int32s, Int64s, Int64s, Int64s, Int64s]


def page_view(source: Paged) -> PageView:
    """Paged columns as one argument of a kernel."""
    return source.page_rows, source.base, source.kind, source.data, source.valid, source.offs, source.bit


class BatchColumns:
    """One record batch as a single page."""

    base = np.zeros(1, dtype=np.int64)
    kind = np.zeros(1, dtype=np.int32)

    def __init__(self, physical: PhysicalSchema, arrays: Sequence[pa.Array], n_rows: int) -> None:
        view = physical.view(arrays)
        self.n_rows = n_rows
        self.page_rows = max(n_rows, 1)
        self.data = view.data.reshape(1, -1)
        self.valid = np.where(view.valid == 0, -1, view.valid).reshape(1, -1)
        self.offs = view.offs.reshape(1, -1)
        self.bit = view.bit.reshape(1, -1)
        self.keep = view.keep


class StackedColumns:
    """Several record batches, a page each: row `r` of batch `b` has the number `b * page_rows + r`."""

    def __init__(self, batches: Sequence[BatchColumns]) -> None:
        self.page_rows = max(batch.page_rows for batch in batches)
        self.base = np.zeros(len(batches), dtype=np.int64)
        self.kind = np.arange(len(batches), dtype=np.int32)
        self.data = np.concatenate([batch.data for batch in batches])
        self.valid = np.concatenate([batch.valid for batch in batches])
        self.offs = np.concatenate([batch.offs for batch in batches])
        self.bit = np.concatenate([batch.bit for batch in batches])
        self.keep = list(batches)


class RowLayout:
    """Where the cells of a packed row stand, counted from the payload's first byte.

    `aliases` names columns whose value is the slot's key code: they are read from the slot's first bytes and
    take no room. `nullable` says which columns may hold nulls; `flag` asks for one byte of operator flags, `counter`
    for one that counts matches. Columns that decide whether the others are wanted, `leading`, stand in front with all
    null bits: next to the slot's link, and so mostly in a cache line that is there already.
    """

    def __init__(
        self,
        physical: PhysicalSchema,
        header: int,
        nullable: Sequence[bool] | None = None,
        aliases: Sequence[int] = (),
        flag: bool = False,
        counter: bool = False,
        leading: Sequence[int] = (),
    ) -> None:
        self.physical = physical
        self.header = header
        count = len(physical)
        nullable = [True] * count if nullable is None else nullable
        self.kinds, self.widths = physical.kinds, physical.widths
        self.cells = np.zeros(count, dtype=np.int64)
        self.null_bits = np.full(count, -1, dtype=np.int64)
        stored = [i for i in range(count) if i not in aliases]
        may_be_null = [i for i in stored if nullable[i] and i not in physical.null_columns]
        self.null_bits[may_be_null] = np.arange(len(may_be_null))
        null_bytes = -(-len(may_be_null) // 8)
        self.cells[list(aliases)] = -header
        at = null_bytes if leading else 0
        for i in sorted(stored, key=lambda each: each not in leading):
            self.cells[i] = at
            at += 4 if physical.columns[i].kind is Kind.VAR else physical.columns[i].width
        self.var_columns = np.flatnonzero(self.kinds == int(Kind.VAR)).astype(np.int64)
        self.var_cells = np.ascontiguousarray(self.cells[self.var_columns])
        self.head = at
        if len(self.var_columns):
            at += 4
        self.nulls_at = 0 if leading else at
        at += 0 if leading else null_bytes
        self.flag_at = header + at if flag else 0
        at += int(flag)
        self.counter_at = header + at if counter else 0
        at += int(counter)
        self.slot_bytes = max(header + at, 8)
        self.stored = np.array(stored, dtype=np.int64)
        #: all columns, and those that are stored, in the order of `kernels.rows.CELLS`
        self.packed = (self.kinds, self.widths, self.cells, self.null_bits)
        self._packed_stored = tuple(array[self.stored] for array in self.packed)

    @property
    def has_var(self) -> bool:
        return len(self.var_columns) > 0

    @property
    def chain_at(self) -> int:
        """Offset of the VAR chain's head from the slot's first byte; 0 when there are no VAR columns."""
        return self.header + self.head if self.has_var else 0

    def var_bytes(self, source: Paged, ids: Int64s, start: int, count: int) -> Int64s:
        """Bytes of the VAR values of rows `ids[start:start+count]`, in whole cells."""
        sizes = np.empty(count, dtype=np.int64)
        kernel.var_blocks_needed(ids, start, count, page_view(source), self.var_columns, sizes)
        return sizes

    def pack(self, source: Paged, ids: Int64s, start: int, count: int, slots: Int64s) -> None:
        """Write rows `ids[start:start+count]` of paged columns into slots (VAR bytes apart)."""
        pages = page_view(source)
        header, nulls_at = self.header, self.nulls_at
        kernel.pack_rows(ids, start, count, slots, pages, self.stored, header, nulls_at, self._packed_stored)


class _Output:
    """Column buffers of one output batch, cut from a single allocation, bitmaps (zeroed) last."""

    def __init__(self, physical: PhysicalSchema, count: int, with_valid: npt.NDArray[np.bool_]) -> None:
        self.physical = physical
        self.count = count
        self.data = np.zeros(len(physical), dtype=np.int64)
        self.valid = np.zeros(len(physical), dtype=np.int64)
        bitmap = -(-count // 512) * 64
        sizes: list[tuple[int, int]] = []
        at = 0
        for column in physical.columns:
            size = 0
            if column.kind is Kind.FIXED:
                size = count * column.width
            elif column.kind is Kind.VAR:
                size = 4 * (count + 1)
            sizes.append((at, size))
            at += -(-size // 64) * 64
        zero_from = at
        bitmaps: dict[int, int] = {}
        for i, column in enumerate(physical.columns):
            if column.kind is Kind.BOOL:
                sizes[i] = (at, bitmap)
                at += bitmap
            if with_valid[i]:
                bitmaps[i] = at
                at += bitmap
        self.buffer = pa.allocate_buffer(max(at, 64))
        address = self.buffer.address
        if at > zero_from:
            np.frombuffer(self.buffer, dtype=np.uint8)[zero_from:at] = 0
        for i, (begin, _) in enumerate(sizes):
            self.data[i] = address + begin
        for i, begin in bitmaps.items():
            self.valid[i] = address + begin
        self._sizes, self._bitmaps, self._bitmap_bytes = sizes, bitmaps, bitmap
        self.var: dict[int, pa.Buffer] = {}

    def offsets(self, i: int) -> npt.NDArray[np.int32]:
        """The offsets of a VAR column."""
        begin, size = self._sizes[i]
        return np.frombuffer(self.buffer, dtype=np.int32, count=size // 4, offset=begin)

    def arrays(self) -> list[pa.Array]:
        result = []
        for i, column in enumerate(self.physical.columns):
            if i in self.physical.null_columns:
                result.append(pa.nulls(self.count, column.physical))
                continue
            valid = None
            if i in self._bitmaps:
                valid = self.buffer.slice(self._bitmaps[i], self._bitmap_bytes)
            begin, size = self._sizes[i]
            buffers = [valid, self.buffer.slice(begin, size)]
            if column.kind is Kind.VAR:
                buffers.append(self.var[i])
            result.append(pa.Array.from_buffers(column.physical, self.count, buffers))
        return result


INT32_MAX = 2**31 - 1


def _fitting(out: _Output, var: dict[int, int], row_bytes: int, limit: int) -> int:
    """How many of the rows fit the limit; `var` has the total of each VAR column, its offsets stand in `out`."""
    if max(var.values()) > INT32_MAX:
        return max(out.count // 2, 1)
    if out.count * row_bytes + sum(var.values()) <= limit:
        return out.count
    ends = np.arange(1, out.count + 1, dtype=np.int64) * row_bytes
    for i in var:
        ends += out.offsets(i)[1:]
    return max(int(np.searchsorted(ends, limit, side="right")), 1)


def take_paged(
    physical: PhysicalSchema,
    source: Paged,
    ids: Int64s,
    start: int,
    count: int,
    columns: Int64s,
    limit: int = INT32_MAX,
) -> list[pa.Array] | int:
    """Physical arrays of picked rows; `columns[i]` is the paged column behind physical column i.

    A number when they take more than `limit` bytes, or a VAR column passes 2 GiB: the number of rows that fit.
    """
    row_bytes = physical.fixed_bytes
    if count > 1 and count * row_bytes > limit:
        return max(limit // row_bytes, 1)
    with_valid: npt.NDArray[np.bool_] = np.any(source.valid[:, columns] >= 0, axis=0)
    out = _Output(physical, count, with_valid)
    pages = page_view(source)
    totals = {
        i: int(kernel.var_offsets_paged(ids, start, count, pages, int(columns[i]), int(out.data[i])))
        for i in physical.var_columns
    }
    if totals:
        fitting = _fitting(out, totals, row_bytes, limit)
        if fitting < count:
            return fitting

    def gather(first: int, rows: int, data: Int64s, valid: Int64s) -> None:
        kernel.gather_paged(ids, start + first, rows, pages, columns, physical.kinds, physical.widths, data, valid)

    in_halves(gather, count, out.data, out.valid, physical.steps)
    for i, total in totals.items():
        out.var[i] = pa.allocate_buffer(total)
        kernel.var_copy_paged(ids, start, count, pages, int(columns[i]), int(out.data[i]), out.var[i].address)
    return out.arrays()


def take_rows(
    layout: RowLayout,
    slots: Int64s,
    start: int,
    count: int,
    arena: Int64s,
    nulls: npt.NDArray[np.bool_],
    limit: int = INT32_MAX,
) -> list[pa.Array] | int:
    """Physical arrays of packed rows; `nulls` says which columns ever received a null. A number: as `take_paged`."""
    physical = layout.physical
    row_bytes = physical.fixed_bytes
    if count > 1 and count * row_bytes > limit:
        return max(limit // row_bytes, 1)
    out = _Output(physical, count, nulls & (layout.null_bits >= 0))
    totals = {
        i: int(kernel.var_offsets_rows(slots, start, count, layout.header + int(layout.cells[i]), int(out.data[i])))
        for i in physical.var_columns
    }
    if totals:
        fitting = _fitting(out, totals, row_bytes, limit)
        if fitting < count:
            return fitting

    def gather(first: int, rows: int, data: Int64s, valid: Int64s) -> None:
        kernel.gather_rows(slots, start + first, rows, layout.header, layout.nulls_at, layout.packed, data, valid)

    in_halves(gather, count, out.data, out.valid, physical.steps)
    for position, (i, total) in enumerate(totals.items()):
        out.var[i] = pa.allocate_buffer(total)
        kernel.var_copy_rows(
            slots,
            start,
            count,
            layout.header,
            layout.head,
            layout.var_cells,
            position,
            int(arena[0]),
            int(arena[1]),
            int(out.data[i]),
            out.var[i].address,
        )
    return out.arrays()
