"""Rows divided by their partition columns, and the folders that are named after the values, as Spark names them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from semistream.errors import SchemaError

#: the values of the partition columns as text, in their order; None is null
Values = tuple[str | None, ...]

#: stands for null in the name of a folder
NULL_NAME = "__HIVE_DEFAULT_PARTITION__"
_ESCAPED = re.compile("[\x00-\x1f\"#%'*/:=?\\\\\x7f{\\[\\]^]")


def check_partition_columns(schema: pa.Schema, partition_by: Sequence[str]) -> None:
    """Refuse columns that rows cannot be divided by."""
    names = list(partition_by)
    if len(set(names)) != len(names):
        raise SchemaError(f"partition_by={names} names a column twice; name every column once")
    for name in names:
        if name not in schema.names:
            raise SchemaError(f"partition_by names {name!r}, which is no column; there are {', '.join(schema.names)}")
        kind = schema.field(name).type
        known = (
            pa.types.is_integer(kind)
            or pa.types.is_boolean(kind)
            or pa.types.is_string(kind)
            or pa.types.is_large_string(kind)
            or pa.types.is_date(kind)
            or pa.types.is_decimal(kind)
        )
        if not known:
            raise SchemaError(
                f"partition_by names {name!r} of type {kind}; allowed are whole numbers, decimals, booleans, strings "
                "and dates. Add a column of such a type, for example the date of a timestamp"
            )
    if len(names) == len(schema):
        raise SchemaError(f"partition_by={names} names all columns; leave one for the files")


def folder_of(names: Sequence[str], values: Values) -> str:
    """The folder for rows of these values, relative to the table's.

    >>> folder_of(["day", "a b"], ("2024-01-01", None)), folder_of(["p"], ("x/y=z",))
    ('day=2024-01-01/a b=__HIVE_DEFAULT_PARTITION__', 'p=x%2Fy%3Dz')
    """
    return "/".join(
        f"{_escape(name)}={NULL_NAME if value is None else _escape(value)}"
        for name, value in zip(names, values, strict=True)
    )


def _escape(text: str) -> str:
    return _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", text)


def divide(table: pa.Table, names: Sequence[str], *, empty_is_null: bool) -> Iterator[tuple[Values, pa.Table]]:
    """The rows of each combination of values, in their order; every piece has memory of its own.

    A folder cannot be named after the empty string: where that is how values are kept, it counts as null.
    """
    if not table.num_rows:
        return
    codes: npt.NDArray[np.int64] = np.zeros(table.num_rows, dtype=np.int64)
    for name in names:
        own, count = _codes(_hashable(table.column(name).combine_chunks()))
        # Dense again, so that any number of columns fits into 64 bits.
        codes, kinds = _codes(pa.array(codes * count + own)) if codes.any() else (own, count)
    first = np.empty(kinds, dtype=np.int64)
    first[codes[::-1]] = np.arange(len(codes))[::-1]
    values = _texts(table.select(names).take(pa.array(first)), empty_is_null)
    if kinds == 1:
        yield values[0], table
        return
    table = table.combine_chunks()
    # Small numbers are sorted in one pass.
    order = np.argsort(codes.astype(np.uint16) if kinds < 1 << 16 else codes, kind="stable")
    counts = np.bincount(codes)
    ends = np.cumsum(counts)
    for value, start, end in zip(values, ends - counts, ends, strict=True):
        yield value, table.take(pa.array(order[start:end]))


def _codes(column: pa.Array) -> tuple[npt.NDArray[np.int64], int]:
    """A number per row, the same for the same values, and how many there are."""
    found = pc.dictionary_encode(column, null_encoding="encode")
    return found.indices.to_numpy(zero_copy_only=False).astype(np.int64), len(found.dictionary)


def _texts(rows: pa.Table, empty_is_null: bool) -> list[Values]:
    columns = [_hashable(column.combine_chunks()).cast(pa.string()).to_pylist() for column in rows.columns]
    if empty_is_null:
        columns = [[value or None for value in column] for column in columns]
    return list(zip(*columns, strict=True))


def _hashable(column: pa.Array) -> pa.Array:
    """In a type that Arrow hashes, and writes, by value."""
    if pa.types.is_decimal32(column.type) or pa.types.is_decimal64(column.type):
        return column.cast(pa.decimal128(column.type.precision, column.type.scale))
    return column.cast(pa.date32()) if pa.types.is_date64(column.type) else column
