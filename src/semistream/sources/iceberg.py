"""An Iceberg table as a source: a snapshot of it, and what was appended since another one.

Whatever else happened between two snapshots (a delete, an overwrite, a merge) rewrites files and does not tell which
rows are new, so all rows are read again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from semistream.errors import ConfigError
from semistream.lake.iceberg import load_catalog
from semistream.sources.base import Changes, Rebuild, Scan, Source, filtered, needs_package, plain_schema
from semistream.sources.where import Condition, typed

if TYPE_CHECKING:
    from pyiceberg.table import Table

_INSERT = pa.field("_change_type", pa.string())
_CATALOG = "catalog."


class IcebergSource(Source):
    """A table that a catalog knows by name: `?catalog=NAME`, or `?catalog.uri=…&catalog.type=…`."""

    def check(self) -> None:
        super().check()
        own = [name for name in self.address.options if name.startswith(_CATALOG)]
        self.address.only("catalog", *own)
        if bool(own) == ("catalog" in self.address.options):
            raise ConfigError(
                f"{self.address.shown} needs a catalog: add ?catalog=NAME of one that pyiceberg knows, or its "
                "properties: ?catalog.type=sql&catalog.uri=…"
            )

    @contextmanager
    def look(self) -> Iterator[Scan]:
        try:
            import pyiceberg  # noqa: F401
        except ImportError as error:
            raise needs_package("iceberg", error) from None
        given = self.address.options
        catalog: str | dict[str, str] = given.get("catalog") or {
            name.removeprefix(_CATALOG): value for name, value in given.items()
        }
        with self.errors_named():
            scan = IcebergScan(self, load_catalog(catalog).load_table(self.address.path))
        yield scan


class IcebergScan(Scan):
    loses_changes = True

    def __init__(self, source: IcebergSource, table: Table) -> None:
        self._source, self._table = source, table
        self._all = plain_schema(table.schema().as_arrow())
        columns = source.wanted.chosen(self._all, source.name)
        self.schema = pa.schema([self._all.field(name) for name in columns])
        self._snapshot = table.current_snapshot()
        number = None if self._snapshot is None else self._snapshot.snapshot_id
        self.mark = {"table": str(table.metadata.table_uuid), "snapshot": number}
        self.committed_at = None if self._snapshot is None else self._snapshot.timestamp_ms / 1000

    def rows(self) -> Iterator[pa.RecordBatch]:
        if self._snapshot is None:
            return iter(())
        read = self._table.scan(
            row_filter=_row_filter(self._where, self._all),
            selected_fields=tuple(self._names),
            snapshot_id=self._snapshot.snapshot_id,
        )
        return self._source.guarded(self._filtered(read.to_arrow_batch_reader()))

    def changes(self, since: Mapping[str, Any]) -> Changes | Rebuild:
        if since.get("table") != self.mark["table"]:
            return Rebuild("it is another table than the one that was read")
        before = since.get("snapshot")
        if self._snapshot is None or before is None:
            return Rebuild("it had no snapshot that changes could be told from")
        at = self._snapshot
        while at.snapshot_id != before:
            operation = "unknown" if at.summary is None else at.summary.operation.value
            # One of the kind "replace" has the same rows in other files.
            if operation not in ("append", "replace"):
                return Rebuild(
                    f"its snapshot {at.snapshot_id} is of the kind {operation!r}, and only appends can be told"
                )
            parent = None if at.parent_snapshot_id is None else self._table.snapshot_by_id(at.parent_snapshot_id)
            if parent is None:
                return Rebuild(f"its snapshot {before} is gone or was rolled back")
            at = parent
        read = self._table.incremental_append_scan(
            row_filter=_row_filter(self._where, self._all),
            selected_fields=tuple(self._names),
            from_snapshot_id_exclusive=before,
            to_snapshot_id_inclusive=self._snapshot.snapshot_id,
        )
        given = pa.schema([*self.schema, _INSERT])
        rows = self._source.guarded(self._filtered(read.to_arrow_batch_reader()))
        return Changes(given, (_inserted(batch, given) for batch in rows))

    @property
    def _where(self) -> tuple[Condition, ...]:
        return self._source.wanted.where

    @property
    def _names(self) -> list[str]:
        return [*dict.fromkeys([*self.schema.names, *(one.column for one in self._where)])]

    def _filtered(self, reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
        read = pa.schema([self._all.field(name) for name in self._names])
        return filtered(iter(reader), self._where, read, self.schema)


def _inserted(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    kinds = pa.array(["insert"] * batch.num_rows, pa.string())
    return pa.RecordBatch.from_arrays([*batch.columns, kinds], schema=schema)


def _row_filter(where: tuple[Condition, ...], schema: pa.Schema) -> Any:
    """The conditions in Iceberg's form, by which files are passed over; every row is filtered once more."""
    from pyiceberg import expressions as of

    forms = {
        "=": of.EqualTo,
        "<": of.LessThan,
        "<=": of.LessThanOrEqual,
        ">": of.GreaterThan,
        ">=": of.GreaterThanOrEqual,
    }
    made: Any = of.AlwaysTrue()
    for one in where:
        kind = schema.field(one.column).type
        values = [typed(value, kind, one.column) for value in one.values]
        if one.operator in forms and isinstance(values[0], int | float | str):
            made = of.And(made, forms[one.operator](one.column, values[0]))
    return made
