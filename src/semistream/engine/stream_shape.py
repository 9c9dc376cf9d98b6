"""What every batch of a stream must look like: the schema that the first one fixed.

Schemas that differ in nothing but what they allow (nulls) or say (metadata) describe the same columns, and producers do
vary these from batch to batch; such a batch is taken under the stream's schema. Values are what counts: packed rows
have no room for a null where the stream's schema has none.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa

from semistream.columns.arrow_in import kind_of, record_batches
from semistream.errors import ConfigError, SchemaError

_NESTED = (
    pa.lib.Type_STRUCT,
    pa.lib.Type_LIST,
    pa.lib.Type_LARGE_LIST,
    pa.lib.Type_FIXED_SIZE_LIST,
    pa.lib.Type_MAP,
)


def required_batches(data: object) -> list[pa.RecordBatch]:
    """The record batches of what was pushed, at least one; whatever holds no Arrow data is refused."""
    if isinstance(data, pa.RecordBatch):
        return [data]
    found = record_batches(data, "a batch of the stream")
    if found is None:
        raise ConfigError(
            f"push takes Arrow data, not {kind_of(data)}: a pyarrow.RecordBatch or Table, a Polars or pandas frame, a "
            "DuckDB relation, or whatever else has the Arrow PyCapsule interface; make a batch of rows with "
            "pa.RecordBatch.from_pylist(rows)"
        )
    return list(found) or [pa.RecordBatch.from_pylist([], schema=found.schema)]


class StreamShape:
    """The schema of a stream, and how batches are brought under it."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self._without_nulls = np.array([at for at, column in enumerate(schema) if not column.nullable], dtype=np.intp)

    def fitted(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch under the stream's schema; refused if it cannot be."""
        return batch if batch.schema.equals(self.schema) else self._relabelled(batch)

    def _has_nulls(self, at: int) -> SchemaError:
        return SchemaError(
            f"column {self.schema.field(at).name!r} of this batch has nulls, but the stream began with a schema that "
            "allows none in it: begin with one that does (stream_schema), or fill the nulls"
        )

    def _relabelled(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch.schema.names != self.schema.names:
            raise SchemaError(self._misfit(_names_differ(batch.schema.names, self.schema.names)))
        arrays = []
        for array, own, wanted in zip(batch.columns, batch.schema, self.schema, strict=True):
            if own.type != wanted.type:
                if not _allows(wanted.type, own.type):
                    raise SchemaError(self._misfit(_types_differ(own, wanted)))
                array = array.cast(wanted.type)
            arrays.append(array)
        for at in self._without_nulls.tolist():
            if arrays[at].null_count:
                raise self._has_nulls(at)
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    @staticmethod
    def _misfit(how: str) -> str:
        return f"this batch does not fit the schema that the stream began with: {how}; cast every batch to one schema"


def _names_differ(names: list[str], wanted: list[str]) -> str:
    missing, extra = Counter(wanted) - Counter(names), Counter(names) - Counter(wanted)
    if not missing and not extra:
        return f"its columns stand in the order {', '.join(names)} instead of {', '.join(wanted)}"
    parts = [
        f"{what} {', '.join(map(repr, found.elements()))}"
        for what, found in (("it lacks", missing), ("it also has", extra))
        if found
    ]
    return " and ".join(parts)


def _types_differ(own: pa.Field, wanted: pa.Field) -> str:
    if str(own.type) == str(wanted.type):
        return f"its column {own.name!r}, {own.type}, may have nulls inside of its values, where the stream has none"
    return f"its column {own.name!r} is {own.type} instead of {wanted.type}"


def _allows(wanted: pa.DataType, given: pa.DataType) -> bool:
    """Whether two types differ at most in nulls inside of nested values, and all that is given is allowed."""
    if wanted == given:
        return True
    if wanted.id not in _NESTED or wanted.id != given.id or wanted.num_fields != given.num_fields:
        return False
    if pa.types.is_fixed_size_list(wanted) and wanted.list_size != given.list_size:
        return False
    pairs = [(wanted.field(at), given.field(at)) for at in range(wanted.num_fields)]
    return all(
        (a.name == b.name or not pa.types.is_struct(wanted))
        and (a.nullable or not b.nullable)
        and _allows(a.type, b.type)
        for a, b in pairs
    )
