"""Tuples without a match: null, dropped, in a table of their own or parked; each once, whatever is killed when."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from tests.spark.parked_driver import SCHEMA, enriched, run
from tests.spark.queries import Query, patiently, refusal

import semistream
from semistream.errors import ConfigError, StoreError
from semistream.lake.files import WrittenFile
from semistream.lake.parquet import ParquetFolder
from semistream.lake.table import Committed
from semistream.spark import enrich, metrics, write
from semistream.testing import as_multiset, assert_same_rows, reference_join


def master(*keys: int) -> pa.Table:
    return pa.table({"k": pa.array(keys, pa.int64()), "name": pa.array([f"n{key}" for key in keys], pa.string())})


def build(folder: Path, *keys: int) -> pa.Table:
    made = master(*keys)
    semistream.build_pages(made, folder / "r", on="k", page_rows=16, overwrite=True)
    return made


def feed(folder: Path, number: int, keys: Sequence[int | None]) -> pa.Table:
    """A file of tuples, the `seq` of each its place in all files of ten."""
    made = pa.table({"k": pa.array(keys, pa.int64()), "seq": [number * 10 + i for i in range(len(keys))]})
    (folder / "in").mkdir(exist_ok=True)
    pq.write_table(made, folder / "in" / f"{number}.parquet")
    return made


def read(path: Path) -> pa.Table:
    """A table as a plain folder has it, or Delta's."""
    if (path / "_delta_log").exists():
        return pa.table(DeltaTable(str(path)).to_pyarrow_table())
    found = sorted(path.glob("*.parquet"))
    return pa.concat_tables([pq.read_table(file) for file in found]) if found else pa.table({"seq": pa.array([], "i8")})


def seqs(path: Path) -> list[int]:
    return sorted(read(path)["seq"].to_pylist())


# --------------------------------------------------------------------------------------------------- dead letters


@pytest.mark.parametrize("format", ["parquet", "delta"])
def test_dead_letters_come_once(
    spark: SparkSession, tmp_path: Path, format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit of the rows fails when the dead letters are there, and R has changed when the batch comes again."""
    r = build(tmp_path, *range(0, 8))
    given = [feed(tmp_path, 0, [1, 20, None, 2]), feed(tmp_path, 1, [3, 3, 30, 31])]
    commit = ParquetFolder.commit

    def failing(table: ParquetFolder, app: str, batch: int, files: Sequence[WrittenFile]) -> Committed:
        if batch == 1 and table.folder.name == "out":
            raise StoreError("the disk is full")
        return commit(table, app, batch, files)

    letters = {"on_missing": "dead_letter", "dead_letters": tmp_path / "letters", "dead_letter_format": format}
    stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "in"))

    def go(**changes: Any) -> Any:
        rows = enrich(stream, tmp_path / "r", on="k", memory="4MB", name="r", **{**letters, **changes})
        query = write(rows, tmp_path / "out", checkpoint=tmp_path / "checkpoint", trigger="availableNow")
        assert query.awaitTermination(120)
        return query

    monkeypatch.setattr(ParquetFolder, "commit", failing)
    with pytest.raises(StreamingQueryException, match="the disk is full"):
        go()
    monkeypatch.undo()
    assert seqs(tmp_path / "letters") == [1, 2, 12, 13]
    build(tmp_path, 30)
    assert "its dead letters may be in" in refusal(lambda: go(dead_letters=tmp_path / "elsewhere"))
    done = go()
    assert f"unmatched to dead letters in {tmp_path / 'letters'}" in done.how
    stream_rows = pa.concat_tables(given)
    assert_same_rows(read(tmp_path / "out"), reference_join(stream_rows, r, "k", "inner"))
    assert_same_rows(read(tmp_path / "letters"), reference_join(stream_rows, r, "k", "anti"))
    # Between two batches they may go elsewhere.
    feed(tmp_path, 2, [30, 40])
    done = go(dead_letters=tmp_path / "elsewhere", dead_letter_format="parquet")
    assert seqs(tmp_path / "elsewhere") == [21]
    account = metrics.of(str(done.id), 2, "r")
    assert account is not None
    assert (account["dead_letters"], account["unmatched"], account["rows_out"]) == (1, 1, 1)


def test_dead_letters_of_a_chain(spark: SparkSession, tmp_path: Path) -> None:
    build(tmp_path, *range(10))
    names = pa.table({"name": ["n1", "n2"], "size": [1, 2]})
    semistream.build_pages(names, tmp_path / "names", on="name")
    feed(tmp_path, 0, [1, 5, 77])
    rows = spark.read.parquet(str(tmp_path / "in"))
    first = enrich(rows, tmp_path / "r", on="k", on_missing="dead_letter", dead_letters=tmp_path / "a", memory="4MB")
    both = {"on_missing": "dead_letter", "dead_letters": tmp_path / "b", "memory": "4MB"}
    done = write(enrich(first, tmp_path / "names", on="name", **both), tmp_path / "out")
    assert done.rows == 1
    assert [seqs(tmp_path / name) for name in ("out", "a", "b")] == [[0], [2], [1]]
    assert read(tmp_path / "b").column_names == ["k", "seq", "name"]


def test_who_cannot_write_dead_letters_refuses(spark: SparkSession, tmp_path: Path) -> None:
    build(tmp_path, 1)
    feed(tmp_path, 0, [1, 2])
    rows = spark.read.parquet(str(tmp_path / "in"))
    letters = {"on_missing": "dead_letter", "dead_letters": tmp_path / "letters"}
    made = enrich(rows, tmp_path / "r", on="k", memory="4MB", **letters)
    assert "only semistream.spark.write" in refusal(made.collect)
    computed = made.withColumn("more", F.upper("name"))
    with pytest.raises(ConfigError, match=r"join and write are not one pass, since the column .* is computed"):
        write(computed, tmp_path / "out")
    with pytest.raises(ConfigError, match="name another folder"):
        write(made, tmp_path / "letters")
    with pytest.raises(ConfigError, match="this DataFrame is no stream"):
        enrich(rows, tmp_path / "r", on="k", on_missing="wait", wait="1m", checkpoint=tmp_path / "c")
    assert not (tmp_path / "out").exists()


# --------------------------------------------------------------------------------------------------- parked


def test_any_sink_takes_tuples_that_waited(spark: SparkSession, tmp_path: Path) -> None:
    """Spark's own sink: a match after R has changed, with and without new rows, and the end of the time."""
    query = Query(spark, tmp_path, SCHEMA)
    build(tmp_path, 1)
    feed(tmp_path, 0, [1, 7, 8, None])

    def go(**changes: Any) -> None:
        query.finish(enriched(spark, tmp_path, **{"then": "null", "dead_letters": None, **changes}))

    def written() -> Counter[Any]:
        return as_multiset(query.rows().select(["seq", "name"]))

    go()
    expected = Counter({(0, "n1"): 1, (3, None): 1})
    assert written() == expected
    build(tmp_path, 1, 7)
    go()
    expected += Counter({(1, "n7"): 1})
    assert written() == expected
    build(tmp_path, 1, 7, 9)
    feed(tmp_path, 1, [8, 9])
    go()
    expected += Counter({(11, "n9"): 1})
    assert written() == expected
    # The time of both that wait is up.
    go(wait="1ms")
    expected += Counter({(2, None): 1, (10, None): 1})
    assert written() == expected
    said = refusal(lambda: enriched(spark, tmp_path, then="null", dead_letters=None, shards=3))
    assert "shards=3" in said


def test_parked_tuples_survive_kill_9(spark: SparkSession, tmp_path: Path) -> None:
    """Killed when tuples are parked and dead letters are committed, and rows are not; then R changes."""
    build(tmp_path, 1, 2)
    feed(tmp_path, 0, [1, 7, 8, None])
    program = [sys.executable, "-m", "tests.spark.parked_driver", str(tmp_path)]
    ended = subprocess.run(program, env=os.environ, capture_output=True, text=True, timeout=180, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr[-3000:]
    assert seqs(tmp_path / "out") == []
    assert seqs(tmp_path / "letters") == [3]
    assert list(tmp_path.glob("checkpoint/semistream/r/*.record"))
    build(tmp_path, 1, 2, 7, 8)
    feed(tmp_path, 1, [2, 9])
    patiently(lambda: run(spark, tmp_path) and None)
    assert as_multiset(read(tmp_path / "out").select(["seq", "name"])) == Counter(
        {(0, "n1"): 1, (1, "n7"): 1, (2, "n8"): 1, (10, "n2"): 1}
    )
    assert seqs(tmp_path / "letters") == [3]
    patiently(lambda: run(spark, tmp_path, wait="1ms") and None)
    assert seqs(tmp_path / "letters") == [3, 11]
    assert len(seqs(tmp_path / "out")) == 4
