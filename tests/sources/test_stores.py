"""Stores built and refreshed from every kind of source, real servers among them, joined by operators of all kinds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.sources.conftest import DATABASES, KINDS
from tests.sources.tables import FIRST, SCHEMA, Row, Table

from semistream import open_join, open_master
from semistream.errors import ConfigError, SchemaError, StoreError
from semistream.master.refresh import refresh_pages
from semistream.sources.base import Changes, Position, Source
from semistream.sources.open import open_source
from semistream.sources.stores import BUILT, CHANGED, REBUILT, UNCHANGED, build_from, refresh_from
from semistream.testing import assert_same_rows, reference_join, run_join

Make = Callable[[str], Table]
STREAM = pa.table({"k": [5, 3, 9, 1, 3, 4, 2, 7, 6, 8], "n": range(10)})


def check(store: Path, rows: list[Row], algorithm: str = "sweepjoin") -> None:
    """What a join finds in the store is what it finds in these rows."""
    expected = pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in rows], SCHEMA)
    join = open_join(algorithm, master=store, on="k", how="left", memory="4MB")
    assert_same_rows(run_join(join, STREAM), reference_join(STREAM, expected, "k"))


def watched(table: Table, kind: str, deletes: str = "reconcile", **more: Any) -> Source:
    mark: dict[str, Any] = {"watermark": "changed", "deletes": deletes} if kind in DATABASES else {}
    return open_source(table.address, on="k", **mark, **more)


@pytest.mark.parametrize("kind", KINDS)
def test_a_store_follows_its_source(make: Make, kind: str, tmp_path: Path) -> None:
    """Inserts, updates and deletes; a key that goes from one row to three to none; nothing where nothing changed."""
    table, store = make(kind), tmp_path / "r.pages"
    first = build_from(store, watched(table, kind))
    assert first.version == 1
    first.close()
    for algorithm in ("sweepjoin", "cachejoin", "hybridjoin", "meshjoin", "ssij"):
        check(store, FIRST, algorithm)
    assert refresh_from(store, watched(table, kind)).how == UNCHANGED
    rows = list(FIRST)

    table.insert((6, "six", 60), (1, "uno", 61), (1, "un", 62))
    rows += [(6, "six", 60), (1, "uno", 61), (1, "un", 62)]
    done = refresh_from(store, watched(table, kind))
    assert done.how == (REBUILT if kind == "parquet" else CHANGED), done.reason
    check(store, rows)

    table.update(2, "zwei", 63)
    rows = [(2, "zwei", 63) if row[0] == 2 else row for row in rows]
    refresh_from(store, watched(table, kind))
    check(store, rows)

    table.delete(1)
    table.delete(5)
    rows = [row for row in rows if row[0] not in (1, 5)]
    done = refresh_from(store, watched(table, kind))
    for algorithm in ("sweepjoin", "cachejoin", "hybridjoin", "meshjoin", "ssij"):
        check(store, rows, algorithm)
    version = done.version
    assert refresh_from(store, watched(table, kind)).version == version


@pytest.mark.parametrize("kind", KINDS)
def test_rows_and_columns_that_are_not_wanted_stay_there(make: Make, kind: str, tmp_path: Path) -> None:
    """Filters with values that would be dangerous as text; a row that leaves the filter leaves the store."""
    table, store = make(kind), tmp_path / "r.pages"

    def source() -> Source:
        return watched(table, kind, "none", columns=["name"], where=["name != one", "changed < 100", "k in 1, 2,3,'4'"])

    build_from(store, source()).close()
    assert names_in(store) == [(2, "two"), (3, "drei"), (3, "three"), (4, "vier'\"`ä")]
    table.update(4, "four", 99)
    table.update(2, "two", 100)
    refresh_from(store, source())
    assert names_in(store) == [(3, "drei"), (3, "three"), (4, "four")]
    evil = open_source(table.address, on="k", where=["name = '''; DROP TABLE x; --'"])
    build_from(tmp_path / "x.pages", evil).close()
    assert names_in(tmp_path / "x.pages") == []


def names_in(store: Path) -> list[tuple[object, ...]]:
    """The keys and names of a store, sorted."""
    keys = pa.table({"k": pa.array(range(10), pa.int64())})
    joined = run_join(open_join("sweepjoin", master=store, on="k", how="inner", memory="4MB"), keys)
    return sorted(zip(joined["k"].to_pylist(), joined["name"].to_pylist(), strict=True), key=repr)


@pytest.mark.parametrize("kind", DATABASES)
def test_ties_and_late_rows(make: Make, kind: str, tmp_path: Path) -> None:
    """A row with the last watermark is seen, an older one only within the lag, or when keys are compared."""
    table, store = make(kind), tmp_path / "r.pages"
    build_from(store, watched(table, kind, "none")).close()
    table.insert((7, "tie", 50))
    assert refresh_from(store, watched(table, kind, "none")).how == CHANGED
    table.insert((8, "late", 45))
    assert refresh_from(store, watched(table, kind, "none")).how == UNCHANGED
    assert refresh_from(store, watched(table, kind, "none", lag="5")).how == CHANGED
    check(store, [*FIRST, (7, "tie", 50), (8, "late", 45)])
    table.insert((9, "later", 1))
    done = refresh_from(store, watched(table, kind))
    assert done.how == REBUILT
    assert "1 of its keys" in done.reason
    check(store, [*FIRST, (7, "tie", 50), (8, "late", 45), (9, "later", 1)])


@pytest.mark.parametrize("kind", DATABASES)
def test_without_a_watermark_all_is_read_again(make: Make, kind: str, tmp_path: Path) -> None:
    table, store = make(kind), tmp_path / "r.pages"
    assert refresh_from(store, open_source(table.address, on="k")).how == BUILT
    table.delete(3)
    done = refresh_from(store, open_source(table.address, on="k"))
    assert done.how == REBUILT
    assert "without a watermark" in done.reason
    check(store, [row for row in FIRST if row[0] != 3])


def test_the_manifest_says_where_rows_come_from(make: Make, tmp_path: Path, password: str) -> None:
    table, store = make("postgresql"), tmp_path / "r.pages"
    build_from(store, watched(table, "postgresql")).close()
    master = open_master(store)
    origin = master.origin  # type: ignore[attr-defined]
    master.close()
    assert origin.source.startswith("postgresql://127.0.0.1:")
    assert '"value":"50"' in origin.position
    for file in store.rglob("*"):
        if file.is_file():
            for secret in (password, "reader", "DB_PASSWORD", "Ge%20heim"):
                assert secret.encode() not in file.read_bytes()


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_changes_that_cannot_be_told_are_read_again(make: Make, kind: str, tmp_path: Path) -> None:
    table, store = make(kind), tmp_path / "r.pages"
    source = open_source(table.address, on="k")
    build_from(store, source).close()
    if kind == "delta":
        from deltalake import DeltaTable

        table.delete(1)
        for file in (tmp_path / "a table").rglob("_change_data/*.parquet"):
            file.unlink()
        table.delete(2)
        DeltaTable(tmp_path / "a table").to_pyarrow_table()
    else:
        table.delete(1)
        table.delete(2)
    done = refresh_from(store, source)
    assert done.how == REBUILT
    assert done.reason
    check(store, [row for row in FIRST if row[0] > 2])


def test_another_source_or_key_is_refused(make: Make, tmp_path: Path) -> None:
    table, store = make("sqlite"), tmp_path / "r.pages"
    build_from(store, watched(table, "sqlite")).close()
    (tmp_path / "else").mkdir()
    other = make("duckdb")
    with pytest.raises(ConfigError, match=r"was built from sqlite:.*version 1 of .* stays in force"):
        refresh_from(store, watched(other, "duckdb"))
    with pytest.raises(ConfigError, match="has the key k, not name"):
        refresh_from(store, open_source(table.address, on="name"))
    with pytest.raises(SchemaError, match="build it again"):
        refresh_from(store, open_source(table.address, on="k", columns=["name"]))


def test_a_variable_with_another_value_is_another_place(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, store = make("sqlite"), tmp_path / "r.pages"
    monkeypatch.setenv("PLACE", str(tmp_path))
    address = table.address.replace(str(tmp_path), "${PLACE}")
    build_from(store, open_source(address, on="k")).close()
    (tmp_path / "staging").mkdir()
    (tmp_path / "staging/a file.db").write_bytes((tmp_path / "a file.db").read_bytes())
    monkeypatch.setenv("PLACE", str(tmp_path / "staging"))
    with pytest.raises(ConfigError, match="another place"):
        refresh_from(store, open_source(address, on="k"))


def test_two_refreshes_at_once_apply_no_change_twice(make: Make, tmp_path: Path) -> None:
    """The second one has read changes that the first one has applied: it is refused, or has nothing to do."""
    table, store = make("delta"), tmp_path / "r.pages"
    source = open_source(table.address, on="k")
    build_from(store, source).close()
    table.insert((6, "six", 60))
    with source.look() as scan:
        table.insert((7, "seven", 70))
        assert refresh_from(store, source).how == CHANGED
        master = open_master(store)
        before = Position.read(master.manifest.positions[source.name])  # type: ignore[attr-defined]
        master.close()
        assert before is not None
        found = scan.changes({**scan.mark, "version": 0})
        assert isinstance(found, Changes)
        with pytest.raises(StoreError, match=r"another refresh was quicker.*version 2 of"):
            refresh_pages(
                store,
                pa.RecordBatchReader.from_batches(found.schema, found.batches),
                source=source.name,
                position=str(Position(source.digest, {"version": 9}, before.step)),
                after=str(Position(source.digest, {"version": 0}, before.step - 1)),
            )
    check(store, [*FIRST, (6, "six", 60), (7, "seven", 70)])
