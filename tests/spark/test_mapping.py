"""What `explain` shows of an enrichment."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

import semistream
from semistream.spark import enrich, enrich_star
from semistream.spark.records import records_folder, remember


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("master") / "customers"
    for _ in range(2):
        semistream.build_pages(pa.table({"id": [1], "v": [2]}), path, on="id", overwrite=True)
    return path


def plan(df: DataFrame, capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    df.explain()
    return capsys.readouterr().out


def test_explain_names_the_join(spark: SparkSession, store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    df = spark.range(3).withColumnRenamed("id", "customer.id")
    shown = plan(enrich(df, store, on={"customer.id": "id"}, memory="12.5MB"), capsys)
    assert f"MapInArrow enrich({store} on customer.id = id, left, sweepjoin, 12.5MB, version 2)" in shown
    shown = plan(enrich_star(spark.range(3), [(store, "id", []), (store, "id", None)], "inner", "4GB", "inlj"), capsys)
    one = f"{store} on id, inner, inlj, 2GB, version 2"
    direct = enrich(spark.range(3), store, on="id", reads="direct")
    assert f"enrich({store} on id, left, sweepjoin, 256MB, version 2, reads direct)" in plan(direct, capsys)
    assert f"MapInArrow enrich({one}; {one})" in shown


def test_explain_of_a_stream(
    spark: SparkSession, store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rate = spark.readStream.format("rate").load().withColumnRenamed("value", "id")
    assert f"{store} on id, left, auto by trial, 256MB, version of the batch)" in plan(
        enrich(rate, store, "id", algorithm="auto"), capsys
    )
    pq.write_table(pa.table({"id": [1], "v": [2]}), tmp_path / "r.parquet")
    carrying = enrich(
        rate,
        tmp_path / "r.parquet",
        on="id",
        algorithm="meshjoin",
        memory=9_000_000,
        max_delay="2 min",
        checkpoint=tmp_path / "checkpoint",
    )
    assert "r.parquet on id, left, meshjoin, 9MB, max_delay 120s)" in plan(carrying, capsys)
    remember(records_folder(tmp_path / "other", "r.parquet") / "plan", {"algorithm": "meshjoin"})
    chosen = enrich(
        rate,
        tmp_path / "r.parquet",
        on="id",
        algorithm="auto",
        memory=9_000_000,
        max_delay="2 min",
        checkpoint=tmp_path / "other",
    )
    assert "left, meshjoin, 9MB, max_delay 120s, by auto, without a trial: tuples wait)" in plan(chosen, capsys)
