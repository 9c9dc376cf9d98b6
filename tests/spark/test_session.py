"""The session: workers run the driver's Python, import this package, and share what the daemon loaded."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

import semistream
from semistream.spark.session import ARROW_BATCH_ROWS


def test_workers_are_the_drivers_python_with_this_package_loaded(spark: SparkSession) -> None:
    def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        loaded = {"pandas", "semistream.algorithms.registry", "semistream.spark.enrichment"} <= sys.modules.keys()
        import semistream as there

        for _ in batches:
            pass
        parent = Path(f"/proc/{os.getppid()}/cmdline").read_text().replace("\0", " ")
        row = {"python": [sys.executable], "package": [there.__file__], "loaded": [loaded], "parent": [parent]}
        yield pa.RecordBatch.from_pydict(row)

    columns = "python string, package string, loaded boolean, parent string"
    seen = spark.range(10).mapInArrow(look, columns).collect()[0]
    assert seen.python == sys.executable
    assert seen.package == semistream.__file__
    assert seen.loaded
    assert "semistream.spark.daemon" in seen.parent


def test_settings(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.sql.execution.arrow.maxRecordsPerBatch") == str(ARROW_BATCH_ROWS)
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"
    assert spark.sparkContext.getConf().get("spark.driver.host") == "127.0.0.1"
    assert spark.sparkContext.uiWebUrl is None
