"""`--as-of` and `--valid`: the join of the command line by time, from Parquet and from text."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from semistream.cli.app import app
from semistream.testing import assert_same_rows, reference_join

US = pa.timestamp("us")
MASTER = pa.table(
    {
        "k": [i // 4 for i in range(400)],
        "name": [f"n{i}" for i in range(400)],
        "valid_from": pa.array([i % 4 * 10_000_000 for i in range(400)], pa.int64()).cast(US),
        "valid_to": pa.array([None if i % 4 == 3 else (i % 4 + 1) * 10_000_000 for i in range(400)], pa.int64()).cast(
            US
        ),
    }
)
STREAM = pa.table(
    {
        "k": [i * 7 % 110 for i in range(1000)],
        "event_time": pa.array([i * 1_000_003 % 55_000_000 - 5_000_000 for i in range(1000)], pa.int64()).cast(US),
    }
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SEMISTREAM_CACHE", str(tmp_path / "cache"))
    pq.write_table(STREAM, "s.parquet")
    pq.write_table(MASTER, "r.parquet")
    pacsv.write_csv(STREAM, "s.csv")
    return tmp_path


def run(*more: str, stream: str = "s.parquet", command: str = "join") -> tuple[int, str]:
    given = [command, "--stream", stream, "--master", "r.parquet", "--on", "k", "--memory", "4MB", *more]
    done = CliRunner().invoke(app, given)
    return done.exit_code, done.output


def test_a_join_by_time(folder: Path) -> None:
    expected = reference_join(
        STREAM, MASTER, "k", "left", ["name"], as_of="event_time", valid=("valid_from", "valid_to")
    )
    timed = ("--as-of", "event_time", "--valid", "valid_from,valid_to", "--select", "name")
    code, said = run(*timed, "--out", "a.parquet")
    assert code == 0, said
    assert_same_rows(pq.read_table("a.parquet"), expected)
    types = ("--stream-schema", "event_time timestamp")
    code, said = run(*timed, *types, "--out", "b.parquet", stream="s.csv")
    assert code == 0, said
    assert_same_rows(pq.read_table("b.parquet"), expected)
    code, said = run(*timed, "--json", command="explain")
    assert code == 0, said
    assert json.loads(said[said.index("{") :])["setting"]["history"] == "valid_from <= event_time < valid_to"


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (("--as-of", "event_time"), "--as-of needs --valid"),
        (("--valid", "a,b"), "--valid needs --as-of"),
        (("--as-of", "event_time", "--valid", "valid_from"), "must name two columns"),
        (("--as-of", "event_time", "--valid", "valid_from,name"), "tells no time"),
        (("--as-of", "at", "--valid", "valid_from,valid_to"), "'at'"),
    ],
)
def test_what_is_refused_before_a_store_is_built(folder: Path, more: tuple[str, ...], says: str) -> None:
    code, said = run(*more, "--out", "a.parquet")
    assert code != 0
    assert says in " ".join(said.split())
    assert not (folder / "cache").exists()
