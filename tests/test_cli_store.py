"""`semistream master list|verify|gc`."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from semistream import build_pages, refresh_pages
from semistream.cli.app import app
from semistream.master.format import versions_in
from semistream.master.leases import pin
from semistream.master.pages import PageMaster


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["master", *map(str, arguments)])


@pytest.fixture
def store(tmp_path: Path) -> Path:
    for rows in (3, 5):
        build_pages(pa.table({"k": range(rows)}), tmp_path / "r", on="k", overwrite=True, keep_versions=9).close()
        pin(tmp_path / "r", "a query", rows)
    return tmp_path / "r"


def test_list(store: Path) -> None:
    done = run("list", store)
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert len(lines) == 4
    assert PageMaster(store, 1).identity in lines[1]
    assert "query a query, batch 3, since " in lines[1]
    assert "in force" in lines[2]
    assert "query a query, batch 5, since " in lines[3]
    versions = json.loads(run("list", store, "--json").stdout)
    assert [(v["version"], v["rows"], v["in_force"]) for v in versions] == [(1, 3, False), (2, 5, True)]
    assert versions[0]["pins"][0]["batch"] == 3


def test_list_shows_changes(store: Path) -> None:
    when = datetime.now(UTC) - timedelta(hours=3)
    refresh_pages(
        store, pa.table({"k": [7]}), deletes=pa.table({"k": [1]}), source="orders", position=42, committed_at=when,
        compact="never",
    ).close()  # fmt: skip
    lines = run("list", store).stdout.splitlines()
    assert lines[0].split()[:9] == [
        "version",
        "rows",
        "dead",
        "runs",
        "bytes",
        "source",
        "position",
        "age",
        "refreshed",
    ]
    assert lines[-1].split()[:4] == ["3", "6", "1", "1"]
    assert " orders " in lines[-1]
    assert " 42 " in lines[-1]
    assert " 3 h " in lines[-1]
    newest = json.loads(run("list", store, "--json").stdout)[-1]
    assert (newest["dead_rows"], newest["runs"], newest["origin"]["position"]) == (1, 1, 42)
    assert 0 < newest["own_bytes"] < newest["bytes"]


def test_compact(store: Path) -> None:
    assert "has no runs, so it stays as it is" in run("compact", store).stdout
    refresh_pages(store, pa.table({"k": [7]}), deletes=pa.table({"k": [1]}), compact="never").close()
    done = run("compact", store)
    assert done.exit_code == 0, done.output
    assert "version 4 with 5 rows, without 1 runs and 1 dead rows" in done.stdout
    assert json.loads(run("compact", store, "--json").stdout)["version"] == 4
    assert run("compact", store / "none").exit_code != 0


def test_verify(store: Path) -> None:
    done = run("verify", store)
    assert (done.exit_code, done.stdout) == (0, "no damage found\n")
    pages = store / "v000001" / "pages-00000.arrow"
    raw = bytearray(pages.read_bytes())
    raw[len(raw) // 2] ^= 1
    pages.write_bytes(raw)
    done = run("verify", store)
    assert done.exit_code == 1
    assert "page 0 of" in done.stdout
    assert run("verify", store, "--version", 2).exit_code == 0
    done = run("verify", store, "--version", 1, "--json")
    assert (done.exit_code, len(json.loads(done.stdout)["damaged"])) == (1, 1)


def test_gc(store: Path) -> None:
    assert run("gc", store).stdout == "nothing to remove\n"
    done = run("gc", store, "--forget", "a query", "--dry-run")
    assert done.stdout.splitlines() == ["would remove version 1", "would remove the pins of query a query"]
    assert json.loads(run("gc", store, "--pins-older-than", "30d", "--json").stdout)["queries"] == []
    reader = PageMaster(store, 1)
    done = run("gc", store, "--forget", "a query")
    assert done.stdout == "removed the pins of query a query\n"
    assert done.stderr == "kept version 1: it is open\n"
    reader.close()
    assert run("gc", store, "--keep", 1).stdout == "nothing to remove\n"
    assert run("gc", store).stdout == "removed version 1\n"
    assert versions_in(store) == [2]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("list", "absent"), "absent is no page store"),
        (("verify", "absent"), "absent is no page store"),
        (("gc", "absent"), "absent is no page store"),
        (("gc", "STORE", "--forget", "nobody"), "'nobody' has no pins"),
        (("gc", "STORE", "--pins-older-than", "soon"), "'soon' is not a duration"),
        (("gc", "STORE", "--keep", "-1"), "keep=-1"),
    ],
)
def test_mistakes(store: Path, arguments: tuple[str, ...], words: str) -> None:
    done = run(*(str(store) if word == "STORE" else word for word in arguments))
    assert done.exit_code == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert words in line
