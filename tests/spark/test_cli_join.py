"""`semistream join --engine spark`: the same job as the local engine does, with the same output and the same checks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from semistream import build_pages
from semistream.cli.output import ParquetOutput
from semistream.errors import ConfigError, SchemaError
from semistream.lake.files import WrittenFile
from semistream.lake.target import Target
from semistream.planner.policy import Policy
from semistream.spark import job
from semistream.spark.enrichment import Placement, enrich_by
from semistream.spark.job import join_files
from semistream.spark.lake import write_files
from semistream.spec import JoinRequest
from semistream.testing import assert_same_rows, reference_join

STREAM = pa.table(
    {
        "k": pa.array([i * 7 % 300 for i in range(2000)] + [None, 5000], pa.int64()),
        "when": pa.array([i * 1_000_003 for i in range(2002)], pa.timestamp("us", "UTC")),
        "list": pa.array([[i, None] for i in range(2002)], pa.list_(pa.int32())),
    }
)
MASTER = pa.table(
    {"k": pa.array([i % 200 for i in range(500)], pa.int64()), "price": pa.array([i / 4 for i in range(500)])}
)


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SEMISTREAM_CACHE", str(tmp_path / "cache"))
    (tmp_path / "s").mkdir()
    pq.write_table(STREAM.slice(0, 900), "s/a.parquet")
    pq.write_table(STREAM.slice(900), "s/b.parquet")
    pq.write_table(MASTER, "r.parquet", row_group_size=64)
    return tmp_path


def joined(
    spark: SparkSession, data: Path, out: str, how: str = "inner", stream: str = "s", algorithm: str = "sweepjoin"
) -> dict[str, float]:
    """What the command does, in a session that is already there."""
    if not (data / "store").exists():
        build_pages(MASTER, data / "store", on="k", page_rows=16)
    output = ParquetOutput(data / out)
    with output.folder() as folder:
        values = join_files(
            spark,
            data / stream,
            data / "store",
            folder,
            JoinRequest.make(on="k", how=how, memory=8_000_000, algorithm=algorithm),
        )
        output.take_over(folder)
    return values


@pytest.mark.parametrize("how", ["inner", "left", "semi", "anti"])
def test_how(spark: SparkSession, data: Path, how: str) -> None:
    values = joined(spark, data, "out.parquet", how)
    expected = reference_join(STREAM, MASTER, "k", how)
    assert_same_rows(pq.read_table("out.parquet"), expected)
    assert (values["rows_in"], values["rows_out"]) == (STREAM.num_rows, expected.num_rows)
    assert values["elapsed"] > 0
    assert sorted(path.name for path in data.iterdir()) == ["out.parquet", "r.parquet", "s", "store"]


def test_auto_plans_for_the_length_of_the_stream(
    spark: SparkSession, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Policy] = []

    def watched(df: DataFrame, master: Path, request: JoinRequest, where: Placement, policy: Policy) -> DataFrame:
        given.append(policy)
        return enrich_by(df, master, request, where, policy)

    monkeypatch.setattr(job, "enrich_by", watched)
    joined(spark, data, "out.parquet", algorithm="auto")
    assert [policy.horizon for policy in given] == [STREAM.num_rows]
    assert_same_rows(pq.read_table("out.parquet"), reference_join(STREAM, MASTER, "k", "inner"))


def test_a_file_of_a_task_that_was_killed_is_not_taken(
    spark: SparkSession, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*arguments: Any) -> list[WrittenFile]:
        files = write_files(*arguments)
        target: Target = arguments[2]
        pq.write_table(MASTER, Path(target.folder) / "part-of-a-killed-task.parquet")
        return files

    monkeypatch.setattr(job, "write_files", interrupted)
    joined(spark, data, "out")
    assert_same_rows(pq.read_table("out"), reference_join(STREAM, MASTER, "k", "inner"))


def test_folder(spark: SparkSession, data: Path) -> None:
    joined(spark, data, "out")
    assert_same_rows(pq.read_table("out"), reference_join(STREAM, MASTER, "k", "inner"))
    parts = sorted(path.name for path in (data / "out").iterdir())
    assert parts == [f"part-{number:05d}.parquet" for number in range(len(parts))]
    assert sorted(path.name for path in data.iterdir()) == ["out", "r.parquet", "s", "store"]


@pytest.mark.parametrize("out", ["out", "out.parquet"])
def test_an_empty_stream_gives_the_columns(spark: SparkSession, data: Path, out: str) -> None:
    pq.write_table(STREAM.slice(0, 0), "none.parquet")
    values = joined(spark, data, out, stream="none.parquet")
    assert_same_rows(pq.read_table(out), reference_join(STREAM.slice(0, 0), MASTER, "k", "inner"))
    assert values["rows_out"] == 0


def test_nothing_is_left_after_an_error(spark: SparkSession, data: Path) -> None:
    pq.write_table(STREAM.rename_columns(["key", "when", "list"]), "other.parquet")
    with pytest.raises(SchemaError, match="'k'"):
        joined(spark, data, "out.parquet", stream="other.parquet")
    (data / "taken.parquet").write_text("mine")
    with pytest.raises(ConfigError, match=r"taken\.parquet exists"):
        joined(spark, data, "taken.parquet")
    assert sorted(path.name for path in data.iterdir()) == ["other.parquet", "r.parquet", "s", "store", "taken.parquet"]


WORDS = ["join", "--stream", "s", "--master", "r.parquet", "--on", "k", "--how", "left", "--memory", "16MB", "--json"]


def test_the_command_says_the_same_on_both_engines(data: Path) -> None:
    printed = {}
    for engine in ("local", "spark"):
        words = [*WORDS, "--engine", engine, "--spark-master", "local[1]", "--out", f"{engine}.parquet"]
        done = subprocess.run(
            [sys.executable, "-m", "semistream.cli", *words], capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr
        printed[engine] = json.loads(done.stdout)
    assert_same_rows(pq.read_table("spark.parquet"), pq.read_table("local.parquet"))
    assert list(printed["spark"]) == list(printed["local"])
    for key in ("algorithm", "rows_in", "rows_out", "budget_bytes"):
        assert printed["spark"][key] == printed["local"][key]
    assert 0 < printed["spark"]["peak_bytes"] <= printed["spark"]["budget_bytes"]


@pytest.mark.parametrize("words", [[*WORDS, "--engine", "spark", "--out", "out.parquet"], ["run", "p.toml"]])
def test_without_the_extra_it_is_named(data: Path, words: list[str]) -> None:
    program = "import sys; sys.modules['pyspark'] = None; from semistream.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, timeout=300)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "pip install 'semistream[spark]'" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (data / "out.parquet").exists()
