"""A table of an SQLite file as a source, through ADBC, in one read transaction.

SQLite has types of values, not of columns, and the driver takes a column's type from the first rows that it sees. So a
first row is put before the others, with a value of the type that each column was declared with.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

import pyarrow as pa

from semistream.errors import SchemaError
from semistream.sources.base import needs_package
from semistream.sources.sql import Column, TableScan, TableSource, Values

_ROWS = "adbc.sqlite.query.batch_rows"
#: small, for nothing tells the driver how wide rows are
_BATCH_ROWS = 4096
_BUSY_MS = 10_000
#: a value of each type, as the first row has it
_FIRST = {pa.int64(): "0", pa.float64(): "0.0", pa.string(): "''", pa.binary(): "x''"}
_STORED = {"integer": pa.int64(), "real": pa.float64(), "text": pa.string(), "blob": pa.binary()}


class SqliteSource(TableSource):
    def check(self) -> None:
        super().check()
        self.address.only("table")

    @contextmanager
    def connected(self) -> Iterator[TableScan]:
        try:
            import adbc_driver_sqlite.dbapi as driver
        except ImportError as error:
            raise needs_package("sqlite", error) from None
        path = self.local_file()
        with driver.connect(f"file:{quote(str(path.absolute()))}?mode=ro") as connection:
            with connection.cursor() as cursor:
                # Somebody may be writing just now.
                cursor.execute(f"PRAGMA busy_timeout = {_BUSY_MS}")
                cursor.fetchall()
            yield SqliteScan(self, connection)


class SqliteScan(TableScan):
    def __init__(self, source: SqliteSource, connection: Any) -> None:
        super().__init__(source)
        self._connection = connection

    def found_columns(self) -> Sequence[Column]:
        *schema, table = self.source.table
        arguments = [table, *schema]
        marks = ", ".join("?" * len(arguments))
        with self._connection.cursor() as cursor:
            cursor.execute(
                f'SELECT name, type, "notnull" FROM pragma_table_xinfo({marks}) WHERE hidden <> 1', arguments
            )
            rows = cursor.fetchall()
        columns = [(name, _declared(kind or ""), not strict) for name, kind, strict in rows]
        unsure = [name for name, kind, _ in columns if kind is None]
        seen = self._seen(unsure) if unsure else {}
        return [Column(name, kind or seen[name], nullable) for name, kind, nullable in columns]

    def _seen(self, names: list[str]) -> dict[str, pa.DataType]:
        """The types of values in columns whose declaration tells none, such as DATETIME or NUMERIC."""
        asked = [f"max(typeof({self.source.quoted(name)}) = '{stored}')" for name in names for stored in _STORED]
        with self._connection.cursor() as cursor:
            cursor.execute(f"SELECT {', '.join(asked)} FROM {self.source.quoted_table}")
            (found,) = cursor.fetchall()
        kinds = {}
        for number, name in enumerate(names):
            some = found[4 * number : 4 * number + 4]
            stored = [kind for kind, there in zip(_STORED.values(), some, strict=True) if there]
            if pa.binary() in stored and len(stored) > 1:
                raise SchemaError(
                    f"the column {name!r} of {self.source.name} holds blobs and other values, which have no common "
                    "type: leave it out"
                )
            # Whole numbers are numbers, and all can be written as texts.
            kinds[name] = stored[-1] if stored else pa.string()
        return kinds

    def run(self, statement: str, values: Values, columns: Sequence[Column]) -> Iterator[pa.RecordBatch]:
        first = ", ".join(f"{_FIRST[column.type]} AS {self.source.quoted(column.name)}" for column in columns)
        with self._connection.cursor() as cursor:
            cursor.adbc_statement.set_options(**{_ROWS: str(_BATCH_ROWS)})
            cursor.execute(f"SELECT {first} UNION ALL {statement}", values.bound or None)
            with cursor.fetch_record_batch() as reader:
                for number, batch in enumerate(reader):
                    yield batch if number else batch.slice(1)


def _declared(kind: str) -> pa.DataType | None:
    """The type of a column by SQLite's own rules of affinity; None where values of several types are usual."""
    upper = kind.upper()
    if "INT" in upper:
        return pa.int64()
    if any(part in upper for part in ("CHAR", "CLOB", "TEXT")):
        return pa.string()
    if any(part in upper for part in ("REAL", "FLOA", "DOUB")):
        return pa.float64()
    return None
