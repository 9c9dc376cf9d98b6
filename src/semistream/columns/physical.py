"""The border between Arrow's many types and the three shapes a kernel can move.

Kernels know FIXED (the same number of bytes per value), BOOL (a bitmap) and VAR (bytes behind int32 offsets).
Everything else is brought into one of these on the way in and restored on the way out, so a column of any type passes
through a join untouched.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.columns.nested import TooManyValuesError, decode_nested, encode_nested, supports_nested
from semistream.columns.plain import from_plain, plain_type, to_plain
from semistream.errors import SchemaError

Int64s = npt.NDArray[np.int64]


class Kind(IntEnum):
    """How a kernel moves a value."""

    FIXED = 0
    BOOL = 1
    VAR = 2


def _unsupported(column: pa.Field) -> SchemaError:
    return SchemaError(
        f"column {column.name!r} has type {column.type}, which cannot be carried through a join; allowed are "
        "fixed-width types, strings, binaries, lists, structs and maps: cast it, or leave it out"
    )


@dataclass(frozen=True)
class PhysicalColumn:
    """One logical column and the shape it has inside a kernel."""

    name: str
    logical: pa.DataType
    kind: Kind
    width: int
    nullable: bool = True

    @staticmethod
    def of(column: pa.Field) -> PhysicalColumn:
        plain = plain_type(column.type)
        if pa.types.is_boolean(plain):
            return PhysicalColumn(column.name, column.type, Kind.BOOL, 1, column.nullable)
        if pa.types.is_nested(plain) and not supports_nested(plain):
            raise _unsupported(column)
        if pa.types.is_string(plain) or pa.types.is_binary(plain) or pa.types.is_nested(plain):
            return PhysicalColumn(column.name, column.type, Kind.VAR, 0, column.nullable)
        if pa.types.is_null(plain):
            return PhysicalColumn(column.name, column.type, Kind.FIXED, 0, True)
        try:
            return PhysicalColumn(column.name, column.type, Kind.FIXED, plain.byte_width, column.nullable)
        except ValueError:
            raise _unsupported(column) from None

    @cached_property
    def physical(self) -> pa.DataType:
        """The Arrow type kernels see."""
        plain = plain_type(self.logical)
        if self.kind is Kind.VAR:
            return pa.string() if pa.types.is_string(plain) else pa.binary()
        return plain

    @cached_property
    def passes(self) -> bool:
        """Whether the column needs no change at either border."""
        return bool(self.physical == self.logical)

    @cached_property
    def nested(self) -> bool:
        """Whether values are coded as blobs (`columns/nested.py`)."""
        return bool(pa.types.is_nested(plain_type(self.logical)))

    def to_physical(self, array: pa.Array) -> pa.Array:
        if not self.passes:
            try:
                array = encode_nested(array) if self.nested else to_plain(array)
            except pa.ArrowException as error:
                raise SchemaError(
                    f"column {self.name!r} of type {self.logical} cannot be taken apart ({error}): cast it to "
                    f"{plain_type(self.logical)}, or push smaller batches"
                ) from error
        if not self.nullable and array.null_count:
            raise SchemaError(
                f"column {self.name!r} is declared as not null and holds {array.null_count} nulls in this batch: "
                "declare it nullable, or leave these rows out"
            )
        return array

    def to_logical(self, array: pa.Array) -> pa.Array:
        """Raises `TooManyValuesError` when the rows do not fit one array of the logical type."""
        if self.passes:
            return array
        return decode_nested(array, self.logical) if self.nested else from_plain(array, self.logical)


@dataclass
class ColumnsView:
    """Addresses of the physical columns of one record batch, as kernels take them.

    `data` is already moved by the array's offset for FIXED columns, `offs` for VAR columns; bitmaps keep their
    bit offset in `bit`. A column without nulls has `valid` 0.
    """

    n_rows: int
    data: Int64s
    valid: Int64s
    offs: Int64s
    bit: Int64s
    keep: list[pa.Array] = field(repr=False)

    @property
    def has_nulls(self) -> npt.NDArray[np.bool_]:
        present: npt.NDArray[np.bool_] = self.valid != 0
        return present


class PhysicalSchema:
    """The physical columns of a logical schema."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self.columns = [PhysicalColumn.of(column) for column in schema]
        self.kinds = np.array([int(column.kind) for column in self.columns], dtype=np.int64)
        self.widths = np.array([column.width for column in self.columns], dtype=np.int64)
        self.var_columns = [i for i, column in enumerate(self.columns) if column.kind is Kind.VAR]
        #: the numbers of all columns
        self.every = np.arange(len(self.columns), dtype=np.int64)
        #: columns of Arrow's null type, which have no buffers
        self.null_columns = frozenset(i for i, column in enumerate(self.columns) if pa.types.is_null(column.physical))
        #: bytes of a row of plain arrays but for its VAR values; bitmaps apart
        self.fixed_bytes = int(self.widths.sum()) + 4 * len(self.var_columns)
        #: bytes that eight values of each column take; a VAR column's bytes are not gathered with the others
        self.steps = np.where(self.kinds == int(Kind.BOOL), 1, 8 * self.widths).astype(np.int64)
        #: columns whose logical form is another one
        self._dressed = [(i, column) for i, column in enumerate(self.columns) if not column.passes]

    def __len__(self) -> int:
        return len(self.columns)

    @property
    def is_plain(self) -> bool:
        """Whether the physical columns are the logical ones: nothing is copied to get from one to the other."""
        return not self._dressed

    @property
    def has_var(self) -> bool:
        return bool(self.var_columns)

    def encode(self, arrays: Sequence[pa.Array]) -> list[pa.Array]:
        return [column.to_physical(array) for column, array in zip(self.columns, arrays, strict=True)]

    def decode(self, arrays: Sequence[pa.Array]) -> list[pa.Array]:
        """Logical columns of all columns or of the first ones; `TooManyValuesError` when they must be fewer rows."""
        result = list(arrays)
        for i, column in self._dressed:
            if i < len(result):
                result[i] = column.to_logical(result[i])
        return result

    def decode_pieces(self, arrays: Sequence[pa.Array]) -> Iterator[list[pa.Array]]:
        """Logical columns of all rows in order, cut where one array of their type does not hold them all."""
        try:
            yield self.decode(arrays)
        except TooManyValuesError:
            half = len(arrays[0]) // 2
            if not half:
                raise
            yield from self.decode_pieces([array.slice(0, half) for array in arrays])
            yield from self.decode_pieces([array.slice(half) for array in arrays])

    def view(self, arrays: Sequence[pa.Array]) -> ColumnsView:
        """Addresses of physical arrays (what `encode` returned)."""
        count = len(self.columns)
        data, valid, offs, bit = (np.zeros(count, dtype=np.int64) for _ in range(4))
        for i, (column, array) in enumerate(zip(self.columns, arrays, strict=True)):
            buffers = array.buffers()
            bit[i] = array.offset
            if array.null_count and buffers[0] is not None:
                valid[i] = buffers[0].address
            if column.kind is Kind.VAR:
                offs[i] = buffers[1].address + 4 * array.offset if buffers[1] is not None else 0
                data[i] = buffers[2].address if buffers[2] is not None else 0
            elif column.kind is Kind.BOOL:
                data[i] = buffers[1].address if buffers[1] is not None else 0
            elif column.width:
                data[i] = buffers[1].address + column.width * array.offset if buffers[1] is not None else 0
        rows = len(arrays[0]) if count else 0
        return ColumnsView(rows, data, valid, offs, bit, list(arrays))
