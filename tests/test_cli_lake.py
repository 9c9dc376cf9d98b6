"""`semistream lake clean`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.lake.lakes import (
    FORMATS,
    READERS_OF,
    SCHEMA,
    expected,
    found_by,
    open_lake,
    rows_of,
    write_batch,
    write_files,
)
from typer.testing import CliRunner

from semistream.cli.app import app


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["lake", "clean", *map(str, arguments)])


@pytest.mark.parametrize("format", FORMATS)
def test_orphans_are_removed(tmp_path: Path, format: str) -> None:
    table = open_lake(tmp_path, format)
    table.prepare(SCHEMA)
    write_batch(table, "query", 0)
    write_files(table.target("query", 1), [rows_of(1)])
    where: list[object] = [tmp_path / "t"]
    if format == "iceberg":
        catalog = f"type=sql,uri=sqlite:///{tmp_path}/catalog.db,warehouse=file://{tmp_path}/warehouse"
        where = ["ns.t", "--catalog", catalog]
    assert run(*where).stdout == "nothing to remove\n"
    said = run(*where, "--older-than", "1ms", "--dry-run").stdout
    assert said.startswith(f"would remove {tmp_path}")
    assert len(said.splitlines()) == 1
    done = run(*where, "--older-than", "1ms", "--json")
    assert done.exit_code == 0, done.output
    answer = json.loads(done.stdout)
    assert answer == {"removed": [said.strip().removeprefix("would remove ")], "dry_run": False}
    assert not Path(answer["removed"][0]).exists()
    assert found_by(READERS_OF[format][0], tmp_path, format) == expected([0])


def test_what_is_no_table_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ice/metadata").mkdir(parents=True)
    (tmp_path / "ice/metadata/v1.metadata.json").touch()
    for words, message in [
        ([tmp_path], "is not a table that semistream has written"),
        ([tmp_path / "ice"], "give its name and its catalog instead"),
        ([tmp_path, "--format", "orc"], "allowed are parquet, delta, iceberg"),
        ([tmp_path, "--format", "delta"], "is no Delta table"),
        ([tmp_path, "--older-than", "soon"], "is not a duration"),
        (["ns.t", "--catalog", "a=b,c"], "must be the name of a catalog, or key=value,key=value"),
        (["ns.t", "--format", "iceberg"], "needs the option catalog"),
    ]:
        done = run(*words)
        assert done.exit_code == 2, words
        assert message in done.output, words
