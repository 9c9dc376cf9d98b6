"""Killed and started again: no row lost, none twice. The long version is `make soak`."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.spark.soak import Run, torment, verify


@pytest.mark.parametrize(("algorithm", "how", "max_delay"), [("sweepjoin", "left", None), ("ssbj", "inner", "3s")])
def test_kill_9(algorithm: str, how: str, max_delay: str | None, spark: SparkSession, tmp_path: Path) -> None:
    run = Run(str(tmp_path / "run"), algorithm, how, max_delay, files=16)
    run.prepare()
    killed = torment(run, kills=2, seed=7)
    assert killed["driver"] == 2
    assert verify(spark, run) > 0
