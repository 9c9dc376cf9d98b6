"""One Spark for all tests below here: a JVM and its session take ten seconds to start and a gigabyte."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from semistream.spark.session import open_session

#: Short-lived JVMs, those that tests start as programs too: compiling well and collecting in parallel does not pay.
JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
os.environ.setdefault("SPARK_SUBMIT_OPTS", JVM)
os.environ.setdefault("SPARK_DAEMON_JAVA_OPTS", JVM)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    folder = tmp_path_factory.mktemp("spark")
    settings = {
        "spark.driver.memory": "1g",
        "spark.local.dir": str(folder / "local"),
        "spark.log.level": "ERROR",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    session = open_session("tests", "local[2]", settings)
    yield session
    session.stop()
