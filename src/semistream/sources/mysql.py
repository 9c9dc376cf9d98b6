"""A table of MySQL or MariaDB as a source, through connectorx.

connectorx runs in a process of its own (`mysql_reader.py`): it ends a scan that breaks with a panic and pages of trace,
tries a wrong password for half a minute, and reads ahead without a bound. From outside one line of that can be taken,
and the process be ended or halted. One statement is one connection and, with InnoDB, one snapshot.

connectorx cannot bind values. They are written into the statement by their types: numbers and times as such, texts and
bytes in hexadecimal digits, so no text of anybody becomes part of a statement.
"""

from __future__ import annotations

import contextlib
import datetime
import decimal
import json
import math
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any
from urllib.parse import quote, urlencode

import pyarrow as pa

from semistream.errors import ConfigError, SchemaError, SourceError
from semistream.sources.base import BATCH_ROWS, needs_package
from semistream.sources.sql import Column, TableScan, TableSource, Values

_CONNECT_SECONDS = 10
_PORT = 3306
#: the process is halted between two batches when it holds more than this
_AHEAD_BYTES = 256 << 20
_COLUMNS = """
    SELECT column_name AS name, data_type AS kind, CAST(column_type AS CHAR) AS whole,
        CAST(numeric_precision AS SIGNED) AS digits, CAST(numeric_scale AS SIGNED) AS scale, is_nullable AS can_be_null
    FROM information_schema.columns WHERE table_name = {} AND table_schema = {} ORDER BY ordinal_position
"""
_INTEGERS = {"tinyint": 8, "smallint": 16, "mediumint": 32, "int": 32, "bigint": 64}
_TYPES = {
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "datetime": pa.timestamp("us"),
    "timestamp": pa.timestamp("us"),
    "year": pa.int16(),
    "char": pa.string(),
    "varchar": pa.string(),
    "binary": pa.binary(),
    "varbinary": pa.binary(),
}
_TYPES |= {f"{size}text": pa.string() for size in ("tiny", "", "medium", "long")}
_TYPES |= {f"{size}blob": pa.binary() for size in ("tiny", "", "medium", "long")}
#: what the driver says when the server answers and there is no use in trying again
_REFUSED = re.compile(r"ERROR 1\d{3}|Access denied|Unknown database")


class MysqlSource(TableSource):
    quote = "`"

    def check(self) -> None:
        super().check()
        if len(self.table) > 2:
            raise ConfigError(f"{self.address.shown}: the table is name or database.name")
        if len(self.table) == 1 and not self.address.path:
            raise ConfigError(f"{self.address.shown} names no database; write mysql://host/database?table=name")

    @contextmanager
    def connected(self) -> Iterator[TableScan]:
        if find_spec("connectorx") is None:
            raise needs_package("mysql", ImportError("No module named 'connectorx'"))
        # A server that is not there is told at once.
        at = self.address
        host = at.host or "localhost"
        with socket.create_connection((host.strip("[]"), at.port or _PORT), timeout=_CONNECT_SECONDS):
            pass
        yield MysqlScan(self)

    def dsn(self) -> str:
        at = self.address
        login = "" if at.user is None else quote(at.user, safe="")
        login += "" if at.password is None else f":{quote(at.password, safe='')}"
        options = urlencode({name: value for name, value in at.options.items() if name != "table"}, quote_via=quote)
        place = f"{at.host or 'localhost'}:{at.port or _PORT}/{quote(at.path, safe='')}"
        return f"mysql://{login}{'@' if login else ''}{place}{'?' if options else ''}{options}"


class MysqlScan(TableScan):
    source: MysqlSource

    def values(self) -> Values:
        return _Literals()

    def found_columns(self) -> Sequence[Column]:
        *schema, table = self.source.table
        statement = _COLUMNS.format(literal(table), literal(schema[0] if schema else self.source.address.path))
        rows = [row for batch in self._rows(statement) for row in batch.to_pylist()]
        return [_column(**row) for row in rows]

    def run(self, statement: str, values: Values, columns: Sequence[Column]) -> Iterator[pa.RecordBatch]:
        return self._rows(statement)

    def _rows(self, statement: str) -> Iterator[pa.RecordBatch]:
        task = {"dsn": self.source.dsn(), "statement": statement, "rows": BATCH_ROWS // 4}
        with tempfile.TemporaryFile() as said, _reader(task, said) as process:
            assert process.stdout is not None
            watch = threading.Thread(target=_end_when_refused, args=(process, said), daemon=True)
            watch.start()
            # A stream that is cut looks like one that has ended: how the process ended tells them apart.
            with contextlib.suppress(pa.ArrowInvalid), pa.ipc.open_stream(process.stdout) as stream:
                for batch in stream:
                    with _halted(process):
                        yield batch
            if process.wait() != 0:
                watch.join()
                raise SourceError(f"{self.source.name} cannot be read: {self.source.scrubbed(_reason(said))}")


@contextmanager
def _reader(task: dict[str, Any], said: Any) -> Iterator[subprocess.Popen[bytes]]:
    """The process that reads; its task comes on its standard input, for a command line can be seen by others."""
    env = {**os.environ, "RUST_LOG": "error", "RUST_BACKTRACE": "0"}
    command = [sys.executable, "-m", "semistream.sources.mysql_reader"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, env=env)
    try:
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError), process.stdin as stdin:
            stdin.write(json.dumps(task).encode())
        yield process
    finally:
        process.kill()
        if process.stdout is not None:
            process.stdout.close()
        process.wait()


def _end_when_refused(process: subprocess.Popen[bytes], said: Any) -> None:
    """The driver tries again for half a minute whatever the server says; it is ended when that is final."""
    while process.poll() is None:
        if _REFUSED.search(_text(said)):
            process.kill()
            return
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.1)


@contextmanager
def _halted(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """While a batch is worked on: a process that has read far ahead does not read on."""
    halted = _resident(process.pid) > _AHEAD_BYTES
    if halted:
        process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        if halted:
            process.send_signal(signal.SIGCONT)


def _resident(number: int) -> int:
    try:
        with open(f"/proc/{number}/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")
    except (OSError, IndexError, ValueError):
        return 0


def _text(said: Any) -> str:
    return os.pread(said.fileno(), 1 << 16, 0).decode(errors="replace")


def _reason(said: Any) -> str:
    """The line of the driver that tells what is wrong."""
    lines = [line.strip() for line in _text(said).splitlines() if line.strip()]
    errors = [line for line in lines if "rror" in line or "ouldn't" in line]
    return re.sub(r"^\[[^]]*\]\s*", "", (errors or lines or ["the process that reads it was ended"])[-1])


class _Literals(Values):
    def put(self, value: Any, column: Column) -> str:
        return literal(value)


def literal(value: Any) -> str:
    """A value as part of a statement, made of digits and signs only, whatever it says."""
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, float) and math.isfinite(value):
        return repr(float(value))
    if isinstance(value, decimal.Decimal) and value.is_finite():
        return format(value, "f")
    if isinstance(value, datetime.datetime):
        return f"TIMESTAMP'{value:%Y-%m-%d %H:%M:%S.%f}'"
    if isinstance(value, datetime.date):
        return f"DATE'{value:%Y-%m-%d}'"
    if isinstance(value, str):
        return f"_utf8mb4 X'{value.encode().hex()}'"
    if isinstance(value, bytes):
        return f"X'{value.hex()}'"
    raise ConfigError(f"{value!r} cannot be compared with a column of this database")


def _column(name: str, kind: str, whole: str, digits: int | None, scale: int | None, can_be_null: str) -> Column:
    nullable, kind = can_be_null.upper() != "NO", kind.lower()
    if kind in _INTEGERS:
        width = _INTEGERS[kind]
        return Column(name, getattr(pa, f"{'u' if 'unsigned' in whole.lower() else ''}int{width}")(), nullable)
    if kind in _TYPES:
        return Column(name, _TYPES[kind], nullable)
    if kind == "decimal" and digits is not None and scale is not None:
        # As a text: the driver keeps ten digits behind the point, whatever the column has.
        wide = pa.decimal128 if digits <= 38 else pa.decimal256
        return Column(name, wide(digits, scale), nullable, "CAST({} AS CHAR)")
    if kind == "bit":
        raise SchemaError(f"the column {name!r} has the type {kind}, which cannot be read: leave it out")
    return Column(name, pa.string(), nullable, "CAST({} AS CHAR)")
