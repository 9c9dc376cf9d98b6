"""A table of a DuckDB file as a source, opened for reading only, in one transaction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from semistream.sources.base import BATCH_ROWS, needs_package, plain_schema
from semistream.sources.sql import Column, TableScan, TableSource, Values


class DuckdbSource(TableSource):
    def check(self) -> None:
        super().check()
        self.address.only("table")

    @contextmanager
    def connected(self) -> Iterator[TableScan]:
        try:
            import duckdb
        except ImportError as error:
            raise needs_package("duckdb", error) from None
        path = self.local_file()
        with duckdb.connect(str(path), read_only=True) as connection:
            connection.execute("SET TimeZone = 'UTC'")
            connection.execute("BEGIN TRANSACTION")
            yield DuckdbScan(self, connection)


class DuckdbScan(TableScan):
    def __init__(self, source: DuckdbSource, connection: Any) -> None:
        super().__init__(source)
        self._connection = connection

    def found_columns(self) -> Sequence[Column]:
        found = self._stream(f"SELECT * FROM {self.source.quoted_table} LIMIT 0", []).schema
        rows = self._connection.execute(f"PRAGMA table_info({_text(self.source.quoted_table)})").fetchall()
        strict = {row[1] for row in rows if row[3]}
        return [Column(one.name, one.type, one.name not in strict) for one in plain_schema(found)]

    def run(self, statement: str, values: Values, columns: Sequence[Column]) -> Iterator[pa.RecordBatch]:
        yield from self._stream(statement, values.bound)

    def _stream(self, statement: str, bound: Sequence[Any]) -> pa.RecordBatchReader:
        result = self._connection.sql(statement, params=list(bound) or None)
        # The second name is that of releases before 2.
        reader = getattr(result, "to_arrow_reader", None) or result.fetch_arrow_reader
        return reader(BATCH_ROWS)


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
