"""Arrow data, whoever made it: Polars, DuckDB, pandas and PyArrow hand it over by the Arrow PyCapsule interface.

An object with `__arrow_c_stream__` or `__arrow_c_array__` gives its columns without a copy, and none of the libraries
that make such objects is imported here.
"""

from __future__ import annotations

from typing import Protocol, TypeAlias, runtime_checkable

import pyarrow as pa

from semistream.errors import SchemaError


@runtime_checkable
class ArrowStream(Protocol):
    """Gives record batches one after another: a data frame, a table, a query, a reader."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


@runtime_checkable
class ArrowArray(Protocol):
    """Gives one record batch."""

    def __arrow_c_array__(self, requested_schema: object | None = None) -> tuple[object, object]: ...


ArrowData: TypeAlias = ArrowStream | ArrowArray


def record_batches(data: object, what: str) -> pa.RecordBatchReader | None:
    """The record batches of Arrow data with their schema, read as they are asked for; None if it is no such data.

    `what` names the data in an error.
    """
    if isinstance(data, pa.RecordBatchReader):
        return data
    if isinstance(data, pa.RecordBatch):
        return pa.RecordBatchReader.from_batches(data.schema, [data])
    if isinstance(data, pa.Table):
        return data.to_reader()
    try:
        if isinstance(data, ArrowStream):
            return pa.RecordBatchReader.from_stream(data)
        if isinstance(data, ArrowArray):
            batch = pa.record_batch(data)
            return pa.RecordBatchReader.from_batches(batch.schema, [batch])
    except pa.ArrowInvalid as error:
        raise SchemaError(
            f"{what} must be rows of named columns, and this {kind_of(data)} is not ({error}): give a table or a frame"
        ) from error
    return None


def kind_of(data: object) -> str:
    """The type of an object as a reader knows it, for an error."""
    kind = type(data)
    module = "" if kind.__module__ == "builtins" else f"{kind.__module__.split('.')[0]}."
    return f"{module}{kind.__qualname__}"
