"""Types of the databases: what comes of them, what is refused, and that no value is changed on the way."""

from __future__ import annotations

import datetime
import decimal
import sqlite3
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.sources.servers import MariaDb, Postgres

from semistream.errors import SemiStreamError, SourceError
from semistream.sources.open import open_source

NOON = datetime.datetime(2026, 7, 1, 12, 0, 0, 123456)


def rows_of(address: str, on: str = "k", **more: Any) -> tuple[list[dict[str, Any]], pa.Schema]:
    with open_source(address, on=on, **more).look() as scan:
        table = pa.Table.from_batches(scan.rows(), scan.schema)
    return table.to_pylist(), table.schema


def test_postgresql(postgres: Postgres) -> None:
    postgres.execute(
        "CREATE DOMAIN code AS bigint",
        "CREATE TYPE mood AS ENUM ('glad', 'sad')",
        """CREATE TABLE types (k code PRIMARY KEY, n numeric(30, 12), wide numeric(60, 2), free numeric, u uuid,
            j jsonb, at timestamptz, naive timestamp, d date, a int[],
            b bool, raw bytea, c char(5), m mood, f real, t time)""",
        """INSERT INTO types VALUES (1, 123456789012345678.123456789012, 1e50, 0.1,
            '9f6fa92f-9829-40f1-bcb2-89622ea6ad9b', '{"a": 1}', '2026-07-01 14:00:00.123456+02',
            '2026-07-01 12:00:00.123456', '2026-07-01', '{1,2}', true, '\\x00ff', 'ab', 'sad', 0.5, '23:59:59.5')""",
        "INSERT INTO types (k) VALUES (2)",
    )
    address = f"postgresql://reader:${{DB_PASSWORD}}@127.0.0.1:{postgres.port}/postgres?table=types"
    (first, second), schema = rows_of(address)
    assert first == {
        "k": 1,
        "n": decimal.Decimal("123456789012345678.123456789012"),
        "wide": decimal.Decimal("1e50"),
        "free": "0.1",
        "u": "9f6fa92f-9829-40f1-bcb2-89622ea6ad9b",
        "j": '{"a": 1}',
        "at": NOON.replace(tzinfo=datetime.UTC),
        "naive": NOON,
        "d": NOON.date(),
        "a": "{1,2}",
        "b": True,
        "raw": b"\x00\xff",
        "c": "ab",
        "m": "sad",
        "f": 0.5,
        "t": datetime.time(23, 59, 59, 500_000),
    }
    assert [value for name, value in second.items() if name != "k"] == [None] * (len(schema) - 1)
    assert schema.field("k").type == pa.int64()
    assert schema.field("wide").type == pa.decimal256(60, 2)
    filters = ["n >= 123456789012345678.123456789012", "at = 2026-07-01 12:00:00.123456+00:00", "c = ab", "m in sad"]
    assert len(rows_of(address, where=filters)[0]) == 1


def test_mariadb(mariadb: MariaDb) -> None:
    mariadb.execute(
        """CREATE TABLE types (k bigint unsigned PRIMARY KEY, n decimal(30, 12), at timestamp(6) NULL, dt datetime(6),
            d date, t time(1), j json, e enum('glad', 'sad'), raw varbinary(9), s varchar(9), f float,
            i tinyint, y year)""",
        "SET SESSION time_zone = '+02:00'",
        """INSERT INTO types VALUES (18446744073709551615, 123456789012345678.123456789012,
            '2026-07-01 14:00:00.123456', '2026-07-01 12:00:00.123456',
            '2026-07-01', '-100:00:00.5', '{}', 'sad', X'00FF', 'ä\\'', 0.5, -1, 2026)""",
        "INSERT INTO types (k, at) VALUES (2, NULL)",
        "CREATE TABLE bits (k bigint, b bit(3))",
        "SET SESSION sql_mode = ''",
        "CREATE TABLE zeros (k bigint, d date)",
        "INSERT INTO zeros VALUES (1, '0000-00-00')",
    )
    address = f"mysql://reader:${{DB_PASSWORD}}@127.0.0.1:{mariadb.port}/shop?table="
    (second, first), schema = rows_of(f"{address}types")
    assert first == {
        "k": 18446744073709551615,
        "n": decimal.Decimal("123456789012345678.123456789012"),
        "at": NOON,
        "dt": NOON,
        "d": NOON.date(),
        "t": "-100:00:00.5",
        "j": "{}",
        "e": "sad",
        "raw": b"\x00\xff",
        "s": "ä'",
        "f": 0.5,
        "i": -1,
        "y": 2026,
    }
    assert [value for name, value in second.items() if name != "k"] == [None] * (len(schema) - 1)
    filters = ["n >= 123456789012345678.123456789012", "at = 2026-07-01 12:00:00.123456", "s = 'ä'''", "d = 2026-07-01"]
    assert len(rows_of(f"{address}types", where=filters)[0]) == 1
    with pytest.raises(SourceError, match="0000-00-00"):
        rows_of(f"{address}zeros")
    with pytest.raises(SemiStreamError, match=r"column 'b' has the type bit.*leave it out"):
        rows_of(f"{address}bits")


def test_sqlite(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "x.db")
    connection.execute("CREATE TABLE t (k INTEGER, s TEXT, r REAL, at DATETIME, n NUMERIC, b BLOB, bad INTEGER)")
    connection.executemany("INSERT INTO t (k) VALUES (?)", [(number,) for number in range(5000)])
    connection.execute("INSERT INTO t VALUES (5000, 'x', 1, '2026-07-01 12:00:00', 2, x'00ff', 'no number')")
    connection.execute("INSERT INTO t (k, n) VALUES (5001, 2.5)")
    connection.commit()
    connection.close()
    address = f"sqlite:{tmp_path}/x.db?table=t"
    rows, schema = rows_of(address, columns=["s", "r", "at", "n", "b"])
    assert len(rows) == 5002
    assert rows[5000] == {"k": 5000, "s": "x", "r": 1.0, "at": "2026-07-01 12:00:00", "n": 2.0, "b": b"\x00\xff"}
    assert rows[5001]["n"] == 2.5
    assert schema.types == [pa.int64(), pa.string(), pa.float64(), pa.string(), pa.float64(), pa.binary()]
    with pytest.raises(SemiStreamError, match=r"x.db\?table=t cannot be read"):
        rows_of(address, columns=["bad"])
