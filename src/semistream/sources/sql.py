"""What tables of databases share: statements with quoted names and bound values, and changes by a watermark.

A watermark is a column that grows with every change of a row. Rows from the last position on are read again, for others
may have the same value (a tie); `lag` reads further back, for a transaction that commits late with an older value.
The statement gives *all* rows of a key of which some row has changed, so that they can replace what the store has.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa

from semistream.errors import ConfigError, SchemaError, SourceError
from semistream.sources.address import name_parts
from semistream.sources.base import Changes, Rebuild, Scan, Source, as_schema
from semistream.sources.where import Condition, as_text, typed
from semistream.spec import parse_seconds


@dataclass(frozen=True)
class Column:
    """A column of a table: how it is selected, if not by its name, and its type here."""

    name: str
    type: pa.DataType
    nullable: bool = True
    #: the statement's words for it, in which {} stands for its quoted name
    form: str = "{}"


class Values:
    """Values that are bound to a statement, and how each stands in it."""

    def __init__(self) -> None:
        self.bound: list[Any] = []

    def put(self, value: Any, column: Column) -> str:
        self.bound.append(value)
        return "?"


class TableSource(Source):
    """A table of a database."""

    quote = '"'

    def check(self) -> None:
        self.table = name_parts(self.address.option("table"), "table")
        wanted = self.wanted
        if wanted.lag is not None and isinstance(wanted.lag, str) and not wanted.lag.strip():
            raise ConfigError("lag is empty; write a duration such as '5m', or a number for a watermark of numbers")

    def quoted(self, name: str) -> str:
        if "\0" in name:
            raise ConfigError(f"the name {name!r} has a character that no name can have")
        return self.quote + name.replace(self.quote, self.quote * 2) + self.quote

    @property
    def quoted_table(self) -> str:
        return ".".join(map(self.quoted, self.table))

    def local_file(self) -> Path:
        """The file of a database that is one."""
        path = Path(self.address.path)
        if not path.is_file():
            raise SourceError(f"{self.name} cannot be read: there is no file {path}")
        return path

    @abstractmethod
    def connected(self) -> AbstractContextManager[TableScan]:
        """A scan over a connection of its own, both of which end with the block."""

    @contextmanager
    def look(self) -> Iterator[Scan]:
        with self.errors_named():
            opened = self.connected()
            scan = opened.__enter__()
        try:
            with self.errors_named():
                scan.describe()
            yield scan
        finally:
            # What a connection says when it is closed after an error is no news.
            with suppress(Exception):
                opened.__exit__(None, None, None)


class TableScan(Scan):
    """A look at a table, in one transaction if the driver has them."""

    def __init__(self, source: TableSource) -> None:
        self.source = source
        self.columns: dict[str, Column] = {}
        self.mark: Mapping[str, Any] = {}

    # -------------------------------------------------------------------------------- what each database has

    @abstractmethod
    def found_columns(self) -> Sequence[Column]:
        """The columns of the table."""

    @abstractmethod
    def run(self, statement: str, values: Values, columns: Sequence[Column]) -> Iterator[pa.RecordBatch]:
        """The rows of a statement, in batches of a bounded size, with these columns."""

    def values(self) -> Values:
        return Values()

    # -------------------------------------------------------------------------------- what all have

    def describe(self) -> None:
        source = self.source
        self.columns = {column.name: column for column in self.found_columns()}
        if not self.columns:
            raise SourceError(f"{source.name} has no such table, or it may not be read; check its name and the rights")
        every = pa.schema([pa.field(column.name, column.type) for column in self.columns.values()])
        chosen = source.wanted.chosen(every, source.name)
        self.schema = pa.schema([every.field(name) for name in chosen])
        mark = source.wanted.watermark
        if mark is not None:
            column = self.columns[mark]
            _require_order(column, source.name)
            # Read before the rows, so never ahead of them: what comes in between is read again.
            newest_form = column.form.format(f"max({source.quoted(mark)})")
            select = f"SELECT {newest_form} AS {source.quoted(mark)} FROM {source.quoted_table}"
            newest = _only(self._read(select, self.values(), [column]), source.name)
            self.mark = {"watermark": mark, "value": None if newest is None else as_text(newest)}

    def unchanged(self, since: Mapping[str, Any]) -> bool:
        return False

    def rows(self) -> Iterator[pa.RecordBatch]:
        values = self.values()
        return self._select(self.schema.names, self._filters(values), values)

    def keys(self) -> Iterator[pa.RecordBatch]:
        """The key columns of all rows that are wanted."""
        values = self.values()
        return self._select(list(self.source.wanted.on), self._filters(values), values)

    def changes(self, since: Mapping[str, Any]) -> Changes | Rebuild:
        wanted = self.source.wanted
        if wanted.watermark is None:
            return Rebuild("a table of a database tells no changes without a watermark")
        if since.get("watermark") != wanted.watermark:
            return Rebuild(f"the store was not read by the watermark {wanted.watermark!r}")
        if since.get("value") is None:
            return Rebuild(f"no row had a value in the watermark {wanted.watermark!r} when it was read")
        column = self.columns[wanted.watermark]
        start = _before(typed(str(since["value"]), column.type, column.name), wanted.lag, column)
        touched, values = self.values(), self.values()
        keys = ", ".join(map(self.source.quoted, wanted.on))
        # A row that no longer passes the filters has changed its key's rows as well: filters are outside only.
        inside = f"SELECT {keys} FROM {self.source.quoted_table} WHERE {{}}"
        after = self._filters(values)
        after.append(f"({keys}) IN ({inside.format(self._since(start, column, values))})")
        return Changes(
            self.schema,
            self._select(self.schema.names, after, values),
            touched=self._select(list(wanted.on), [self._since(start, column, touched)], touched),
        )

    def _since(self, start: Any, column: Column, values: Values) -> str:
        name = self.source.quoted(column.name)
        later = f"{name} >= {values.put(start, column)}"
        return f"({later} OR {name} IS NULL)" if column.nullable else later

    def _filters(self, values: Values) -> list[str]:
        return [self._filter(one, values) for one in self.source.wanted.where]

    def _filter(self, one: Condition, values: Values) -> str:
        column, name = self.columns[one.column], self.source.quoted(one.column)
        found = [values.put(typed(value, column.type, one.column), column) for value in one.values]
        if one.operator == "in":
            return f"{name} IN ({', '.join(found)})"
        operator = {"!=": "<>"}.get(one.operator, one.operator.upper())
        return " ".join([name, operator, *found])

    def _select(self, names: Sequence[str], filters: Sequence[str], values: Values) -> Iterator[pa.RecordBatch]:
        columns = [self.columns[name] for name in names]
        quoted = [
            (column.form.format(self.source.quoted(column.name)), self.source.quoted(column.name)) for column in columns
        ]
        select = ", ".join(form if form == name else f"{form} AS {name}" for form, name in quoted)
        statement = f"SELECT {select} FROM {self.source.quoted_table}"
        if filters:
            statement += f" WHERE {' AND '.join(filters)}"
        return self.source.guarded(self._read(statement, values, columns))

    def _read(self, statement: str, values: Values, columns: Sequence[Column]) -> Iterator[pa.RecordBatch]:
        schema = pa.schema([pa.field(column.name, column.type) for column in columns])
        for batch in self.run(statement, values, columns):
            if batch.schema.names != schema.names:
                raise SchemaError(
                    f"{self.source.name} gave the columns {', '.join(batch.schema.names)} instead of "
                    f"{', '.join(schema.names)}: the table was altered while it was read; try again"
                )
            if batch.num_rows:
                yield as_schema(batch, schema)


def _only(batches: Iterator[pa.RecordBatch], name: str) -> Any:
    """The value of a statement that has just one."""
    found = [value for batch in batches for value in batch.column(0).to_pylist()]
    if len(found) != 1:
        raise SourceError(f"{name} gave {len(found)} rows for one value; try again")
    return found[0]


def _require_order(column: Column, name: str) -> None:
    kind = column.type
    if not (
        pa.types.is_integer(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_timestamp(kind)
        or pa.types.is_date(kind)
        or pa.types.is_string(kind)
    ):
        raise ConfigError(
            f"the column {column.name!r} of {name} has the type {kind}, which cannot be a watermark; allowed are whole "
            "numbers, decimals, times, dates and texts that sort by time"
        )


def _before(value: Any, lag: str | float | None, column: Column) -> Any:
    """Where to begin: the lag before a value."""
    if lag is None:
        return value
    kind = column.type
    if pa.types.is_timestamp(kind):
        return value - timedelta(seconds=parse_seconds(lag))
    if pa.types.is_date(kind):
        return value - timedelta(days=math.ceil(parse_seconds(lag) / 86_400))
    if isinstance(value, int | Decimal):
        try:
            whole = int(lag)
        except ValueError:
            raise ConfigError(f"lag={lag!r} goes with a watermark of the type {kind}: give a whole number") from None
        return value - whole
    raise ConfigError(f"lag={lag!r} cannot be taken from the watermark {column.name!r}, a text: leave the lag out")
