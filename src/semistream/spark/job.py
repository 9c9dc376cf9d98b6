"""A join of Parquet files as one Spark job: what `semistream join --engine spark` runs."""

from __future__ import annotations

import secrets
import time
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from semistream.errors import StoreError
from semistream.spark import metrics
from semistream.spark.enrichment import Placement, enrich_by
from semistream.spark.failures import brief
from semistream.spec import JoinRequest


def join_files(spark: SparkSession, stream: Path, master: Path, out: Path, request: JoinRequest) -> dict[str, float]:
    """Write the join as Parquet files into the existing folder `out`.

    The result is the account of the job (`metrics`), with `elapsed` seconds.
    """
    # A name of its own: other jobs of the session report as well.
    name = f"{master.name} {secrets.token_hex(4)}"
    started = time.perf_counter()
    try:
        # Spark's default for timestamps is a format that Parquet has given up.
        spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
        frame = enrich_by(spark.read.parquet(str(stream)), master, request, Placement(name=name))
        frame.write.mode("append").parquet(str(out))
    except (PySparkException, Py4JError) as error:
        raise StoreError(f"the join on Spark failed: {brief(error)}") from error
    values = metrics.of_job(name)
    if values is None:
        raise StoreError("the join on Spark gave no account of itself; look into Spark's log")
    return {**values, "elapsed": time.perf_counter() - started}
