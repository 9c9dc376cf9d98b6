"""What an operator does about tuples that wait: list them, finish them without the query, rename their enrichment."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.spark.test_carry import Query, _batches, _dimension, _master
from typer.testing import CliRunner, Result

import semistream
from semistream.cli.app import app
from semistream.spark.records import Records
from semistream.spark.waiting import Drain
from semistream.spark.worker import WORKSHOP
from semistream.testing import assert_same_rows, reference_join


@pytest.fixture
def checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "executor"))
    semistream.build_pages(_master(1), tmp_path / "r", on="k", page_rows=32)
    return tmp_path / "checkpoint"


def _query(checkpoint: Path, name: str = "r") -> Query:
    dimension = replace(_dimension(checkpoint.parent / "r", "meshjoin", "left"), name=name)
    return Query(dimension, checkpoint, max_delay=60.0)


def _carry(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["carry", *map(str, arguments)])


def _rows_of(query: Query, count: int) -> list[pa.RecordBatch]:
    output: list[pa.RecordBatch] = []
    for number, rows in enumerate(_batches(count)):
        output += query.attempt(number, rows)
    WORKSHOP.clear()
    return output


def test_what_waits_is_finished_without_the_query(checkpoint: Path, tmp_path: Path) -> None:
    query = _query(checkpoint)
    output = _rows_of(query, 3)
    waiting = query.records.waiting()
    (row,) = json.loads(_carry("list", checkpoint, "--json").stdout)
    assert (row["name"], row["tuples"], row["batch"], row["query"]) == ("r", waiting, 2, "q")
    out = tmp_path / "rest.parquet"
    result = _carry("drain", checkpoint, "--out", out, "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["tuples"] == waiting > 0
    assert query.records.waiting() == 0
    # The query goes on after it.
    more = query.attempt(3, _batches(4)[3])
    more += query.finish(4, _batches(1)[0].schema)
    drained = pq.read_table(out)
    rows = pa.concat_tables([pa.Table.from_batches(output, schema=drained.schema), drained])
    rows = pa.concat_tables([rows, pa.Table.from_batches(more, schema=drained.schema)])
    assert_same_rows(rows, reference_join(pa.concat_tables(_batches(4)), _master(1), "k", "left"))


def test_drain_that_was_cut_short_is_completed(checkpoint: Path, tmp_path: Path) -> None:
    """Killed after the rows had appeared: a second drain must not give them again."""
    query = _query(checkpoint)
    _rows_of(query, 2)
    out = tmp_path / "rest.parquet"

    class Killed(BaseException):
        pass

    def appear() -> None:
        pq.write_table(pa.Table.from_batches(rows), out)
        raise Killed

    drain = Drain(query.records)
    rows = list(drain.rows())
    with pytest.raises(Killed):
        drain.settle(out, appear)
    assert query.records.waiting() > 0
    result = _carry("drain", checkpoint, "--out", tmp_path / "again.parquet", "--json")
    assert json.loads(result.stdout)["completed"] == "an earlier drain"
    assert json.loads(result.stdout)["out"] == str(out)
    assert not (tmp_path / "again.parquet").exists()
    assert query.records.waiting() == 0
    assert list(query.records.folder.glob("draining")) == []


def test_unfinished_batch_is_left_to_the_query(checkpoint: Path, tmp_path: Path) -> None:
    query = _query(checkpoint)
    _rows_of(query, 2)
    (checkpoint / "offsets").mkdir()
    (checkpoint / "offsets" / "1").touch()
    for arguments in (("drain", checkpoint, "--out", tmp_path / "x.parquet"), ("rebind", checkpoint, "--to", "n")):
        result = _carry(*arguments)
        assert result.exit_code == 2
        assert "the last batch" in result.stderr
    assert not (tmp_path / "x.parquet").exists()


def test_renamed_enrichment_goes_on(checkpoint: Path) -> None:
    query = _query(checkpoint)
    output = _rows_of(query, 2)
    waiting = query.records.waiting()
    result = _carry("rebind", checkpoint, "--to", "new name")
    assert result.exit_code == 0, result.output
    assert f"{waiting:,} waiting tuples" in result.stdout
    renamed = _query(checkpoint, "new name")
    output += renamed.finish(2, _batches(1)[0].schema)
    expected = reference_join(pa.concat_tables(_batches(2)), _master(1), "k", "left")
    assert_same_rows(pa.Table.from_batches(output), expected)


def test_mistakes_are_named(checkpoint: Path, tmp_path: Path) -> None:
    query = _query(checkpoint)
    _rows_of(query, 1)
    result = _carry("drain", checkpoint, "--out", tmp_path / "x.parquet", "--name", "other")
    assert "has no enrichment named 'other'; it has r" in result.stderr
    result = _carry("rebind", tmp_path / "r", "--to", "x")
    assert "holds no records of waiting tuples" in result.stderr
    newest = query.files()[-1]
    newest.write_bytes(newest.read_bytes()[:-5])
    result = _carry("list", checkpoint)
    assert result.exit_code == 2
    assert f"{newest} holds waiting tuples and cannot be read" in result.stderr
    assert Records(query.records.folder).binding().name == "r"


def test_drained_columns_are_named_as_by_the_query(checkpoint: Path, tmp_path: Path) -> None:
    """A master column that differs from one of the stream in case only has the suffix, here as there."""
    table = _master(1).rename_columns(["k", "SEQ", "m02", "m03", "m04", "m05"])
    semistream.build_pages(table, tmp_path / "r", on="k", page_rows=32, overwrite=True)
    described = _dimension(tmp_path / "r", "meshjoin", "left")
    spec = replace(described.request.spec, select=("SEQ", "m02"), fold_case=True)
    described = replace(described, request=replace(described.request, spec=spec))
    query = Query(described, checkpoint, max_delay=60.0)
    _rows_of(query, 1)
    assert query.records.waiting() > 0
    assert _carry("drain", checkpoint, "--out", tmp_path / "rest.parquet").exit_code == 0
    assert pq.read_schema(tmp_path / "rest.parquet").names[-2:] == ["SEQ_right", "m02"]
