"""Servers, one of a kind for all tests of a module, and tables in them and in files."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.sources.servers import PASSWORD, MariaDb, Postgres, running
from tests.sources.tables import (
    DeltaFolder,
    DuckdbTable,
    IcebergFolder,
    MysqlTable,
    ParquetFile,
    PostgresTable,
    SqliteTable,
    Table,
)

FILES: dict[str, Callable[[Path], Table]] = {
    "parquet": ParquetFile,
    "delta": DeltaFolder,
    "iceberg": IcebergFolder,
    "sqlite": SqliteTable,
    "duckdb": DuckdbTable,
}
KINDS = (*FILES, "postgresql", "mysql")
DATABASES = ("sqlite", "duckdb", "postgresql", "mysql")


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    with running(Postgres) as server:
        assert isinstance(server, Postgres)
        yield server


@pytest.fixture(scope="module")
def mariadb() -> Iterator[MariaDb]:
    with running(MariaDb) as server:
        assert isinstance(server, MariaDb)
        yield server


@pytest.fixture(autouse=True)
def password(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("DB_PASSWORD", PASSWORD)
    return PASSWORD


@pytest.fixture
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], Table]:
    """A fresh table of a kind, with the first rows."""

    def made(kind: str) -> Table:
        name = f"odd name.{secrets.token_hex(4)}"
        if kind == "postgresql":
            return PostgresTable(request.getfixturevalue("postgres"), name)
        if kind == "mysql":
            return MysqlTable(request.getfixturevalue("mariadb"), name)
        return FILES[kind](tmp_path)

    return made
