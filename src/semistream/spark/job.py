"""A join of Parquet files as one Spark job: what `semistream join --engine spark` runs."""

from __future__ import annotations

import secrets
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from semistream.errors import StoreError
from semistream.lake.files import FileWriter
from semistream.lake.rows import stored_schema
from semistream.lake.target import Target
from semistream.planner.policy import Policy
from semistream.spark import metrics
from semistream.spark.enrichment import Placement, enrich_by
from semistream.spark.failures import brief
from semistream.spark.lake import plan_write, write_files
from semistream.spec import JoinRequest


def join_files(spark: SparkSession, stream: Path, master: Path, out: Path, request: JoinRequest) -> dict[str, Any]:
    """Write the join as Parquet files into the existing folder `out`, by the tasks that join.

    The result is the account of the job (`metrics`), with `elapsed` seconds.
    """
    # A name of its own: other jobs of the session report as well.
    name = f"{master.name} {secrets.token_hex(4)}"
    out = out.absolute()
    started = time.perf_counter()
    try:
        rows = spark.read.parquet(str(stream))
        # Only a plan asks how long the stream is.
        policy = Policy(horizon=max(rows.count(), 1)) if request.is_auto else None
        plan = plan_write(enrich_by(rows, master, request, Placement(name=name), policy))
        target = Target(str(out), stored_schema(plan.schema).serialize().to_pybytes())
        files = {out / file.path for file in write_files(plan.frame, plan, target, f"write(parquet, {out})")}
        for path in out.iterdir():
            if path not in files:
                # Of a task that was killed.
                path.unlink()
        if not files:
            with FileWriter(replace(target, writes_empty=True), plan.schema) as empty:
                empty.finish()
    except (PySparkException, Py4JError) as error:
        raise StoreError(f"the join on Spark failed: {brief(error)}") from error
    values = metrics.of_job(name)
    if values is None:
        raise StoreError("the join on Spark gave no account of itself; look into Spark's log")
    return {**values, "elapsed": time.perf_counter() - started}
