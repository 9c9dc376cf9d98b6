"""Whatever goes wrong with a source is one line that names it and the version kept; nothing is half-published."""

from __future__ import annotations

import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import psutil
import pytest
from tests.sources.conftest import DATABASES
from tests.sources.servers import PASSWORD, MariaDb, Postgres
from tests.sources.tables import FIRST, MysqlTable, PostgresTable, SqlTable, Table
from tests.sources.test_stores import check, watched

from semistream.errors import SchemaError, SemiStreamError, SourceError, StoreError
from semistream.master.inventory import verify
from semistream.sources import mysql
from semistream.sources.open import open_source
from semistream.sources.stores import CHANGED, build_from, refresh_from

Make = Callable[[str], Table]
SERVERS = ("postgresql", "mysql")
#: rows that no buffer between a server and us holds
_LONG, _MANY = 1000, 60_000


def require_kept(error: BaseException, store: Path, before: list[Path], version: int = 1) -> None:
    """One line with source and version, no secrets in it or its trace, and the store as it was."""
    text = str(error)
    assert "\n" not in text
    assert f"version {version} of {store} stays in force" in text, text
    printed = "".join(traceback.format_exception(error))
    for secret in (PASSWORD, quote(PASSWORD, safe=""), "wr0ng"):
        assert secret not in printed
    assert sorted(store.rglob("*")) == before
    assert verify(store) == []


@pytest.mark.parametrize("kind", SERVERS)
def test_wrong_password(make: Make, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table, store = make(kind), tmp_path / "r.pages"
    build_from(store, watched(table, kind)).close()
    before = sorted(store.rglob("*"))
    monkeypatch.setenv("DB_PASSWORD", "wr0ng/p@ss word")
    with pytest.raises(SourceError, match=rf"^{kind}://127.0.0.1:") as found:
        refresh_from(store, watched(table, kind))
    require_kept(found.value, store, before)
    written = watched(table, kind).address
    assert "wr0ng" not in repr(written)
    plain = table.address.replace("${DB_PASSWORD}", quote("wr0ng/p@ss word", safe=""))
    with pytest.raises(SourceError, match=r"new.pages was not built") as found:
        build_from(tmp_path / "new.pages", open_source(plain, on="k"))
    assert "wr0ng" not in "".join(traceback.format_exception(found.value))
    assert not (tmp_path / "new.pages").exists()


@pytest.mark.parametrize(
    "address",
    [
        "postgresql://reader:wr0ng@127.0.0.1:1/db?table=t",
        "postgresql://reader:wr0ng@127.0.0.1:1/db?table=t&sslmode=strange",
        "postgresql://reader:wr0ng@127.0.0.1:1/db?table=t&password=wr0ng&nonsense=1",
        "mysql://reader:wr0ng@127.0.0.1:1/db?table=t",
        "iceberg:a.b?catalog.type=sql&catalog.uri=postgresql://reader:wr0ng@127.0.0.1:1/db",
        "iceberg:a.b?catalog.type=rest&catalog.uri=http://127.0.0.1:1&catalog.token=wr0ng",
    ],
)
def test_no_error_tells_a_password(address: str, tmp_path: Path) -> None:
    """Drivers quote the address that they were given."""
    with pytest.raises(SemiStreamError) as found:
        build_from(tmp_path / "r.pages", open_source(address, on="k"))
    assert "wr0ng" not in "".join(traceback.format_exception(found.value))
    assert address.partition(":")[0] in str(found.value)


@pytest.mark.parametrize("kind", SERVERS)
def test_a_server_that_restarts_in_mid_scan(make: Make, kind: str, tmp_path: Path) -> None:
    """Rows that came before the end are not taken for all of them; after the restart all is well."""
    table, store = make(kind), tmp_path / "r.pages"
    assert isinstance(table, PostgresTable | MysqlTable)
    build_from(store, watched(table, kind)).close()
    before = sorted(store.rglob("*"))
    fill(table)
    killed: list[int] = []

    def kill(rows: int) -> None:
        if not killed:
            killed.append(rows)
            table.server.kill()

    source = watched(table, kind)
    source.batch_bytes = 1 << 20
    try:
        with pytest.raises(SourceError, match=rf"^{kind}://127.0.0.1:") as found:
            build_from(store, source, progress=kill)
        assert killed
        assert killed[0] < _MANY
        require_kept(found.value, store, before)
    finally:
        table.server.kill()
        table.server.start()
    table.delete(7)
    assert refresh_from(store, watched(table, kind)).version == 1


def fill(table: SqlTable) -> None:
    """Many long rows under the key 7, with a watermark that has been passed."""
    generated = f"generate_series(1, {_MANY})" if isinstance(table.server, Postgres) else f"seq_1_to_{_MANY}"  # type: ignore[attr-defined]
    table.execute(f"ALTER TABLE {table.quoted} ADD COLUMN filler TEXT")
    table.execute(f"INSERT INTO {table.quoted} SELECT 7, 'seven', 7, repeat('x', {_LONG}) FROM {generated}")


@pytest.mark.parametrize("kind", SERVERS)
def test_a_table_that_is_altered_in_mid_scan(make: Make, kind: str, tmp_path: Path) -> None:
    """The scan has the table locked: whoever alters it waits for its end, and the store has all rows as they were.

    The process that reads from MySQL may have read all rows before the first ones are asked for.
    """
    table, store = make(kind), tmp_path / "r.pages"
    assert isinstance(table, PostgresTable | MysqlTable)
    fill(table)
    altered: list[str] = []

    def alter(rows: int) -> None:
        if altered:
            return
        patience = "SET lock_timeout = '200ms'" if kind == "postgresql" else "SET SESSION lock_wait_timeout = 1"
        try:
            table.execute(patience, f"ALTER TABLE {table.quoted} DROP COLUMN name")
            altered.append("done")
        except Exception as error:
            altered.append(str(error))

    source = watched(table, kind)
    source.batch_bytes = 1 << 20
    master = build_from(store, source, progress=alter)
    assert "timeout" in altered[0] or (kind == "mysql" and altered == ["done"])
    assert master.n_rows == len(FIRST) + _MANY
    assert master.schema.names == ["k", "name", "changed", "filler"]
    assert master.manifest.null_counts["name"] == 1
    master.close()


@pytest.mark.parametrize("kind", DATABASES)
def test_a_table_that_is_altered_between_refreshes(make: Make, kind: str, tmp_path: Path) -> None:
    table, store = make(kind), tmp_path / "r.pages"
    assert isinstance(table, SqlTable)
    build_from(store, watched(table, kind)).close()
    table.execute(f"ALTER TABLE {table.quoted} ADD COLUMN fresh VARCHAR(10)")
    table.update(1, "eins", 99)
    assert refresh_from(store, watched(table, kind)).how == CHANGED
    check(store, [(1, "eins", 99), *FIRST[1:]])
    before = sorted(store.rglob("*"))
    table.execute(f"ALTER TABLE {table.quoted} DROP COLUMN name")
    with pytest.raises(SchemaError, match=r"no column 'name'") as found:
        refresh_from(store, watched(table, kind))
    require_kept(found.value, store, before, 2)
    table.execute(f"ALTER TABLE {table.quoted} ADD COLUMN name {'REAL' if kind == 'sqlite' else 'DOUBLE PRECISION'}")
    with pytest.raises(SchemaError, match=r"was altered: column 'name' has the type double and had string") as found:
        refresh_from(store, watched(table, kind))
    require_kept(found.value, store, before, 2)


def test_a_table_that_is_altered_between_two_statements(make: Make, mariadb: MariaDb, tmp_path: Path) -> None:
    """With connectorx each statement has a transaction of its own."""
    table = make("mysql")
    assert isinstance(table, SqlTable)
    source = open_source(table.address, on="k")
    with source.look() as scan:
        table.execute(f"ALTER TABLE {table.quoted} DROP COLUMN name")
        with pytest.raises(SourceError, match=r"Unknown column"):
            list(scan.rows())


def test_what_reads_from_mysql_does_not_read_ahead_without_bound(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process is halted while a batch is worked on, if it holds more than it may, and is gone when nobody reads."""
    table = make("mysql")
    assert isinstance(table, MysqlTable)
    fill(table)
    with open_source(table.address, on="k").look() as scan:
        monkeypatch.setattr(mysql, "_AHEAD_BYTES", 0)
        known = set(psutil.Process().children())
        batches = scan.rows()
        rows = next(batches).num_rows
        (reader,) = set(psutil.Process().children()) - known
        assert reader.status() == psutil.STATUS_STOPPED
        assert rows + sum(batch.num_rows for batch in batches) == len(FIRST) + _MANY
        batches = scan.rows()
        next(batches)
        batches.close()  # type: ignore[attr-defined]
        assert set(psutil.Process().children()) <= known


_LIMITED = """
import resource, sys
from semistream.cli.app import main
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
sys.argv[0] = "semistream"
main()
"""


def test_a_full_disk(make: Make, tmp_path: Path) -> None:
    table, store = make("sqlite"), tmp_path / "r.pages"
    assert isinstance(table, SqlTable)
    build_from(store, watched(table, "sqlite")).close()
    before = sorted(store.rglob("*"))
    table.insert(*((i % 500 + 10, "x" * 1000, 100 + i) for i in range(600)))
    words = ["master", "refresh", str(store), "--from", table.address, "--watermark", "changed", "--deletes", "none"]
    done = subprocess.run(
        [sys.executable, "-c", _LIMITED, *words], capture_output=True, text=True, env={**os.environ, "COLUMNS": "1000"}
    )
    assert done.returncode == 2, done.stderr
    lines = [line for line in done.stderr.splitlines() if "compiling" not in line]
    assert len(lines) == 1, done.stderr
    assert table.address.partition("?")[0] in lines[0]
    require_kept(StoreError(lines[0]), store, before)
    assert done.stdout == ""
    assert refresh_from(store, watched(table, "sqlite", "none")).version == 2
