"""Killed and started again: no row lost, none twice. `make soak` is longer."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession
from tests.spark.cluster import cluster
from tests.spark.soak import Run, Tormentor, verify


def test_kill_9(spark: SparkSession, tmp_path: Path) -> None:
    deaths = ["worker", "executor", "driver"]
    with cluster(tmp_path / "cluster") as on:
        run = Run(str(tmp_path / "run"), on.url, ["sweepjoin-left", "ssbj-inner-parquet", "sweepjoin-inner-delta"])
        run.prepare()
        account = Tormentor(run, on, seed=7).torment(deaths)
    assert dict(account.kills) == {"worker": 1, "executor": 1, "driver": 1}
    for name in run.joins:
        verdict = verify(spark, run, name)
        assert verdict.rows > 0
        assert verdict.sound, f"{name}: {verdict}"
