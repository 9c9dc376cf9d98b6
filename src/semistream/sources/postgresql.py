"""A table of PostgreSQL as a source, through ADBC: rows come by COPY, in one read-only transaction with one snapshot.

COPY takes no parameters, so values are bound to settings of the transaction (`set_config`), which the statement reads.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote, urlencode

import pyarrow as pa

from semistream.sources.base import needs_package
from semistream.sources.sql import Column, TableScan, TableSource, Values
from semistream.sources.where import as_text

_HINT = "adbc.postgresql.batch_size_hint_bytes"
_SNAPSHOT = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY"
_COLUMNS = """
    SELECT attname::text, format_type(atttypid, atttypmod),
        format_type(CASE typtype WHEN 'd' THEN typbasetype ELSE atttypid END, NULL),
        CASE typtype WHEN 'd' THEN typtypmod ELSE atttypmod END::int8, attnotnull
    FROM pg_attribute JOIN pg_type ON pg_type.oid = atttypid
    WHERE attrelid = to_regclass($1) AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""
#: types that come as they are; all others come as their texts
_TYPES = {
    "bigint": pa.int64(),
    "integer": pa.int32(),
    "smallint": pa.int16(),
    "boolean": pa.bool_(),
    "real": pa.float32(),
    "double precision": pa.float64(),
    "date": pa.date32(),
    "timestamp without time zone": pa.timestamp("us"),
    "timestamp with time zone": pa.timestamp("us", "UTC"),
    "time without time zone": pa.time64("us"),
    "bytea": pa.binary(),
    "text": pa.string(),
    "character varying": pa.string(),
}
_TEXT = "CAST({} AS text)"


class PostgresSource(TableSource):
    """Whatever the address does not say comes from libpq's own variables (PGHOST, PGUSER, PGPASSWORD …)."""

    @contextmanager
    def connected(self) -> Iterator[TableScan]:
        try:
            import adbc_driver_postgresql.dbapi as driver
        except ImportError as error:
            raise needs_package("postgresql", error) from None
        for name in ("PGPASSWORD", "PGSSLPASSWORD"):
            self.secrets.hide(name, os.environ.get(name, ""))
        with driver.connect(self._dsn()) as connection:
            with connection.cursor() as cursor:
                cursor.execute(_SNAPSHOT)
                # Texts of times must not depend on where the server is.
                cursor.execute("SET LOCAL TimeZone TO 'UTC'")
                cursor.execute("SET LOCAL DateStyle TO 'ISO, YMD'")
            yield PostgresScan(self, connection)

    def _dsn(self) -> str:
        at = self.address
        user = "" if at.user is None else quote(at.user, safe="")
        login = user if at.password is None else f"{user}:{quote(at.password, safe='')}"
        place = (at.host if at.host.startswith("[") else quote(at.host, safe="")) + (
            "" if at.port is None else f":{at.port}"
        )
        options = urlencode({name: value for name, value in at.options.items() if name != "table"}, quote_via=quote)
        path = f"/{quote(at.path, safe='')}" if at.path else ""
        return f"postgresql://{login}{'@' if login else ''}{place}{path}{'?' if options else ''}{options}"


class PostgresScan(TableScan):
    def __init__(self, source: PostgresSource, connection: Any) -> None:
        super().__init__(source)
        self._connection = connection
        self._declared: dict[str, str] = {}

    def found_columns(self) -> Sequence[Column]:
        with self._connection.cursor() as cursor:
            cursor.execute(_COLUMNS, (self.source.quoted_table,))
            found = cursor.fetch_arrow_table()
        columns = []
        for name, declared, kind, modifier, strict in zip(
            *(column.to_pylist() for column in found.columns), strict=True
        ):
            self._declared[name] = declared
            columns.append(_column(name, kind, modifier, not strict))
        return columns

    def values(self) -> Values:
        return _Settings(self._declared)

    def run(self, statement: str, values: Values, columns: Sequence[Column]) -> Iterator[pa.RecordBatch]:
        with self._connection.cursor() as cursor:
            for number, value in enumerate(values.bound):
                cursor.execute("SELECT set_config($1, $2, true)", (_setting(number), value))
                cursor.fetchall()
        with self._connection.cursor() as cursor:
            cursor.adbc_statement.set_options(**{_HINT: str(self.source.batch_bytes)})
            cursor.execute(statement)
            with cursor.fetch_record_batch() as reader:
                yield from reader


class _Settings(Values):
    """Values as texts in settings, which the statement casts to the column's own type."""

    def __init__(self, declared: dict[str, str]) -> None:
        super().__init__()
        self._declared = declared

    def put(self, value: Any, column: Column) -> str:
        number = len(self.bound)
        self.bound.append(f"\\x{value.hex()}" if isinstance(value, bytes) else as_text(value))
        # A query within the query is asked once, not for every row.
        return f"(SELECT CAST(current_setting('{_setting(number)}') AS {self._declared[column.name]}))"


def _setting(number: int) -> str:
    return f"semistream.value{number}"


def _column(name: str, kind: str, modifier: int, nullable: bool) -> Column:
    if kind in _TYPES:
        return Column(name, _TYPES[kind], nullable)
    if kind == "numeric" and modifier >= 4:
        precision, scale = (modifier - 4) >> 16, (modifier - 4) & 0x7FF
        if scale <= precision <= 76:
            wide = pa.decimal128 if precision <= 38 else pa.decimal256
            return Column(name, wide(precision, scale), nullable, _TEXT)
    return Column(name, pa.string(), nullable, _TEXT)
