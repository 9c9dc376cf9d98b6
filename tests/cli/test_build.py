"""`semistream master build`: a store, its next version, and clear refusals."""

from __future__ import annotations

import importlib
import io
import json
import sqlite3
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console
from tests.cli.conftest import MASTER, STREAM, Invoke

from semistream import open_master
from semistream.master.inventory import list_versions
from semistream.testing import assert_same_rows, reference_join

#: the module; its name in the package is that of the command
build = importlib.import_module("semistream.cli.build")


def built(invoke: Invoke, *words: object) -> dict[str, object]:
    done = invoke("master", "build", "r.pages", "--from", "r.parquet", "--on", "k", *words, "--json")
    assert done.exit_code == 0, done.output
    found: dict[str, object] = json.loads(done.stdout)
    return found


def test_build_and_join(invoke: Invoke) -> None:
    said = invoke("master", "build", "r.pages", "--from", "r.parquet", "--on", "k")
    assert said.exit_code == 0, said.output
    assert said.stdout.startswith("r.pages: version 1 with 200 rows, ")
    assert len(said.stdout.splitlines()) == 1
    words = ("--master", "r.pages", "--on", "k", "--out", "x.parquet")
    assert invoke("join", "--stream", "s.parquet", *words).exit_code == 0
    assert_same_rows(pq.read_table("x.parquet"), reference_join(STREAM, MASTER, "k"))
    assert not Path("cache").exists()


def test_a_store_gets_its_next_version(invoke: Invoke) -> None:
    first = built(invoke)
    with_nulls = pa.table({"k": [1, None], "price": [1.0, 2.0], "name": ["a", "b"]})
    pq.write_table(with_nulls, "r.parquet")
    second = built(invoke, "--keep", 0)
    assert (first["version"], second["version"]) == (1, 2)
    assert (second["rows"], second["rows_without_key"]) == (1, 1)
    assert [each.version for each in list_versions("r.pages")] == [2]
    said = invoke("master", "build", "r.pages", "--from", "r.parquet", "--on", "k")
    assert "version 3 with 1 rows, 1 without a key left out" in said.stdout


def test_columns_and_order(invoke: Invoke) -> None:
    assert built(invoke, "--select", "price")["order"] == "key"
    master = open_master("r.pages", "k")
    assert master.schema.names == ["k", "price"]
    master.close()
    assert built(invoke, "--frequency", "price")["order"] == "frequency"
    assert built(invoke, "--frequency-of", "s.parquet", "--page-rows", 16)["pages"] == 13


def test_progress_is_for_those_who_watch(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bar is drawn on standard error, and the result is the same."""
    shown = io.StringIO()
    monkeypatch.setattr(build, "notes", Console(file=shown, force_terminal=True))
    done = invoke("master", "build", "r.pages", "--from", "r.parquet", "--on", "k")
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("r.pages: version 1")
    assert "200/200" in shown.getvalue()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["x.pages", "--from", "nowhere", "--on", "k"], "nowhere does not exist"),
        (["x.pages", "--from", "r.parquet", "--on", "key"], "no column 'key'; it has k, price, name"),
        (["x.pages", "--from", "r.parquet", "--on", "k", "--select", "prize"], "did you mean 'price'"),
        (["x.pages", "--from", "r.parquet", "--on", "k", "--frequency", "name"], "name"),
        (["x.pages", "--from", "r.pages", "--on", "k"], "r.pages is a page store"),
        (["x.pages", "--from", "r.csv", "--on", "k"], "is csv; a page store is built from Parquet"),
        (["r.parquet", "--from", "r.parquet", "--on", "k"], "is a file"),
        (["full", "--from", "r.parquet", "--on", "k"], "is no page store (it holds 'mine.txt')"),
        (["r.pages", "--from", "r.parquet", "--on", "name"], "with the key k, not name"),
        (["x.pages", "--from", "r.parquet", "--on", "k", "--memory", "lots"], "lots"),
        (["x.pages", "--from", "r.parquet", "--on", "k", "--page-rows", "0"], "page_rows=0"),
        (
            ["x.pages", "--from", "r.parquet", "--on", "k", "--frequency", "price", "--frequency-of", "s.parquet"],
            "give one of them",
        ),
        (["x.pages", "--from", "r.parquet", "--on", "k", "--frequency-of", "empty.parquet"], "has no rows"),
    ],
)
def test_mistakes(invoke: Invoke, words: list[str], expected: str) -> None:
    built(invoke)
    Path("full").mkdir()
    Path("full/mine.txt").touch()
    Path("r.csv").write_text("k\n1\n")
    pq.write_table(STREAM.slice(0, 0), "empty.parquet")
    before = sorted(Path().rglob("*"))
    done = invoke("master", "build", *words)
    assert done.exit_code == 2
    assert expected in done.stderr
    assert done.stdout == ""
    assert sorted(Path().rglob("*")) == before


def test_readers_are_warned_of_columns_that_go(invoke: Invoke) -> None:
    built(invoke)
    reader = open_master("r.pages", "k")
    done = invoke("master", "build", "r.pages", "--from", "r.parquet", "--on", "k", "--select", "price")
    reader.close()
    assert done.exit_code == 0
    assert "column 'name' is gone" in done.stderr


def test_refresh_follows_a_database_and_says_why_it_reads_all(invoke: Invoke) -> None:
    def execute(*statements: str) -> None:
        connection = sqlite3.connect("shop.db")
        for statement in statements:
            connection.execute(statement)
        connection.commit()
        connection.close()

    execute("CREATE TABLE p (k INTEGER, price REAL, at INTEGER)", "INSERT INTO p VALUES (1, 0.5, 1), (2, 1.5, 2)")
    words = ("master", "refresh", "p.pages", "--from", "sqlite:shop.db?table=p", "--json")
    missing = invoke(*words)
    assert missing.exit_code == 2
    assert "p.pages is no page store yet: give --on" in missing.stderr
    mark = ("--watermark", "at", "--deletes", "reconcile", "--where", "price < 100")
    first = json.loads(invoke(*words, *mark, "--on", "k").stdout)
    assert (first["how"], first["version"], first["rows"]) == ("built", 1, 2)
    execute("UPDATE p SET price = 9, at = 3 WHERE k = 1", "DELETE FROM p WHERE k = 2", "INSERT INTO p VALUES (3, 3, 3)")
    done = invoke(*words, *mark)
    assert done.exit_code == 0, done.output
    second = json.loads(done.stdout)
    assert (second["version"], second["rows"]) == (2, 2)
    assert json.loads(invoke(*words, *mark).stdout)["how"] == "unchanged"
    again = invoke(*words[:-1], "--where", "price < 100")
    assert again.stdout.startswith("p.pages: rebuilt, version 3 with 2 rows")
    assert "without a watermark" in again.stderr
    execute("DROP TABLE p")
    failed = invoke(*words, "--where", "price < 100")
    assert failed.exit_code == 2
    assert len(failed.stderr.splitlines()) == 1
    assert "sqlite:shop.db?table=p" in failed.stderr
    assert "version 3 of p.pages stays in force" in failed.stderr
