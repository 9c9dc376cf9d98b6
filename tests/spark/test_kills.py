"""Killed and started again: no row lost, none twice. The long version is `make soak`."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession
from tests.spark.soak import Run, torment, verify


def test_kill_9(spark: SparkSession, tmp_path: Path) -> None:
    run = Run(str(tmp_path / "run"), ["sweepjoin-left", "ssbj-inner"], files=12)
    run.prepare()
    killed = torment(run, kills=2, seed=7)
    assert killed["driver"] == 2
    assert killed["batches"] > 0
    for name in run.joins:
        assert verify(spark, run, name) > 0
