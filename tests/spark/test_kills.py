"""Killed and started again while R changes: no row lost, none twice, none of another version. `make soak` is longer."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.spark.cluster import cluster
from tests.spark.soak import Run, Tormentor, deaths, verify


@pytest.mark.thorough
def test_kill_9_through_compactions_and_builds(spark: SparkSession, tmp_path: Path) -> None:
    """So many versions that R is compacted, and built anew, under the queries."""
    with cluster(tmp_path / "cluster") as on:
        run = Run(str(tmp_path / "run"), on.url, ["sweepjoin-left", "inlj-inner", "ssbj-left-parquet"])
        run.prepare()
        account = Tormentor(run, on, seed=18).torment(deaths(14, 18))
    assert account.versions == 15
    for name in run.joins:
        verdict = verify(spark, run, name, account.versions)
        assert verdict.rows > 0
        assert verdict.sound, f"{name}: {verdict}"


def test_kill_9(spark: SparkSession, tmp_path: Path) -> None:
    kinds = ["worker", "executor", "driver"]
    with cluster(tmp_path / "cluster") as on:
        run = Run(str(tmp_path / "run"), on.url, ["ssbj-inner-parquet", "sweepjoin-inner-delta"])
        run.prepare()
        account = Tormentor(run, on, seed=7).torment(kinds)
    assert dict(account.kills) == {"worker": 1, "executor": 1, "driver": 1}
    for name in run.joins:
        verdict = verify(spark, run, name, account.versions)
        assert verdict.rows > 0
        assert verdict.sound, f"{name}: {verdict}"
