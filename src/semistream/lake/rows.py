"""Rows in the types in which files keep them: how values were carried (dictionaries, runs, views) is not kept."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from semistream.errors import SchemaError


def stored_type(kind: pa.DataType) -> pa.DataType:
    """The type that a Parquet file has for values of another.

    >>> stored_type(pa.dictionary(pa.int8(), pa.string_view()))
    DataType(string)
    """
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return stored_type(kind.value_type)
    # Arrow can neither cut views nor take rows of them.
    if pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_binary_view(kind):
        return pa.binary()
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(stored_type(field.type)) for field in kind])
    if isinstance(kind, pa.BaseExtensionType):
        inner = stored_type(kind.storage_type)
        return kind if inner.equals(kind.storage_type) else inner
    return kind


def stored_schema(schema: pa.Schema) -> pa.Schema:
    """The columns of a file for rows of a schema; refuses what Parquet has no form for."""
    import pyarrow.parquet as pq

    names = schema.names
    if not names:
        raise SchemaError("there are no columns to write; name some")
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        raise SchemaError(f"there are two columns named {', '.join(map(repr, doubled))}; rename one of them")
    fields = [pa.field(field.name, stored_type(field.type), field.nullable) for field in schema]
    for field in fields:
        try:
            pq.ParquetWriter(pa.BufferOutputStream(), pa.schema([field])).close()
        except (pa.ArrowException, OSError) as error:
            raise SchemaError(
                f"column {field.name!r} of type {field.type} cannot be kept in Parquet ({error}); leave it out or "
                "convert it"
            ) from error
    return pa.schema(fields)


class Shaping:
    """Batches of one schema, turned into batches of another with the same columns."""

    def __init__(self, given: pa.Schema, wanted: pa.Schema) -> None:
        if sorted(given.names) != sorted(wanted.names):
            raise SchemaError(
                f"the rows have the columns {', '.join(given.names)}, and the table takes {', '.join(wanted.names)}"
            )
        self._given = given
        self._wanted = wanted
        self._same = given.equals(wanted)
        self._places: Sequence[int] = [given.get_field_index(name) for name in wanted.names]

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch.schema.names != self._given.names or batch.schema.types != self._given.types:
            raise SchemaError(f"a batch has the schema {batch.schema}, and the ones before it {self._given}")
        if self._same:
            return batch if batch.schema.equals(self._wanted) else batch.cast(self._wanted)
        columns = [
            _converted(batch.column(place), field) for place, field in zip(self._places, self._wanted, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._wanted)


def _converted(column: pa.Array, field: pa.Field) -> pa.Array:
    if column.null_count and not field.nullable:
        raise SchemaError(f"column {field.name!r} has a null, and the table takes none there")
    if column.type.equals(field.type):
        return column
    try:
        return _unwrapped(column, field.type)
    except pa.ArrowException as error:
        raise SchemaError(
            f"column {field.name!r} of type {column.type} cannot be written as {field.type} ({error}); convert it"
        ) from error


def _unwrapped(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    """The values in another type; wrappers come off from the outside in, so that rows are taken of plain values."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _unwrapped(column.dictionary, wanted).take(column.indices)
    if pa.types.is_run_end_encoded(kind):
        rows = np.arange(column.offset, column.offset + len(column))
        runs = np.searchsorted(column.run_ends.to_numpy(), rows, side="right")
        return _unwrapped(column.values, wanted).take(pa.array(runs))
    if kind.equals(wanted):
        return column
    return _unwrapped(column.storage, wanted) if isinstance(kind, pa.BaseExtensionType) else column.cast(wanted)
