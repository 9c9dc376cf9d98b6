"""A Delta table as a source: a version of it, and its change feed between two versions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from semistream.sources.base import Changes, Rebuild, Scan, Source, filtered, needs_package, plain_schema
from semistream.sources.where import Condition, typed

if TYPE_CHECKING:
    from deltalake import DeltaTable

#: what the feed says of each row
_META = pa.schema([("_change_type", pa.string()), ("_commit_version", pa.int64())])
_FEED = "delta.enableChangeDataFeed"


class DeltaSource(Source):
    """A table in a folder, or at an address that deltalake knows; its credentials come from the environment."""

    def check(self) -> None:
        super().check()
        self.address.only()

    @contextmanager
    def look(self) -> Iterator[Scan]:
        try:
            from deltalake import DeltaTable
        except ImportError as error:
            raise needs_package("delta", error) from None
        with self.errors_named():
            scan = DeltaScan(self, DeltaTable(self.address.path))
        yield scan


class DeltaScan(Scan):
    loses_changes = True

    def __init__(self, source: DeltaSource, table: DeltaTable) -> None:
        self._source, self._table = source, table
        self._all = plain_schema(pa.schema(table.schema().to_arrow()))
        columns = source.wanted.chosen(self._all, source.name)
        self.schema = pa.schema([self._all.field(name) for name in columns])
        self._version = int(table.version())
        self.mark = {"table": str(table.metadata().id), "version": self._version}
        written = [one.get("timestamp") for one in table.history(1)]
        self.committed_at = written[0] / 1000 if written and written[0] is not None else None

    def rows(self) -> Iterator[pa.RecordBatch]:
        return self._source.guarded(self._read([], self._table.scan, predicate=_predicate(self._where, self._all)))

    def changes(self, since: Mapping[str, Any]) -> Changes | Rebuild:
        version = since.get("version")
        if since.get("table") != self.mark["table"] or not isinstance(version, int):
            return Rebuild("it is another table than the one that was read")
        if version > self._version:
            return Rebuild(f"it is at version {self._version} again, and version {version} was read")
        if str(self._table.metadata().configuration.get(_FEED, "")).lower() != "true":
            return Rebuild(f"it keeps no change feed; set its property {_FEED} to true")
        given = pa.schema([*self.schema, *_META])
        try:
            batches = self._read(
                list(_META), self._table.load_cdf, starting_version=version + 1, ending_version=self._version
            )
        except Exception as error:
            return Rebuild(f"its change feed cannot be read ({self._source.scrubbed(error)})")
        return Changes(given, self._source.guarded(batches))

    @property
    def _where(self) -> tuple[Condition, ...]:
        return self._source.wanted.where

    def _read(self, meta: list[pa.Field], how: Any, **options: Any) -> Iterator[pa.RecordBatch]:
        names = [*dict.fromkeys([*self.schema.names, *(one.column for one in self._where)])]
        read = pa.schema([*(self._all.field(name) for name in names), *meta])
        reader = pa.RecordBatchReader.from_stream(how(columns=read.names, **options))
        return filtered(iter(reader), self._where, read, pa.schema([*self.schema, *meta]))


def _predicate(where: tuple[Condition, ...], schema: pa.Schema) -> str | None:
    """Comparisons with whole numbers, by which files are passed over; every row is filtered once more."""
    parts = []
    for one in where:
        kind = schema.field(one.column).type
        if pa.types.is_integer(kind) and one.operator in ("=", "<", "<=", ">", ">="):
            name = one.column.replace('"', '""')
            parts.append(f'"{name}" {one.operator} {int(typed(one.values[0], kind, one.column))}')
    return " AND ".join(parts) or None
