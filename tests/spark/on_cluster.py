"""The program that `test_cluster.py` runs on a cluster: `python -m tests.spark.on_cluster '{"master_url": ...}'`.

Files -> enrich -> something that goes wrong in a task, once -> Parquet.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
from pyspark import TaskContext
from tests.spark.cluster import CONF

from semistream.spark import enrich
from semistream.spark.session import open_session

SCHEMA = "k long, seq long, qty int"
Task = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


@dataclass(frozen=True)
class Told:
    """What to run. `queries` are the arguments of `enrich` by name; `mishap` is a function below."""

    master_url: str
    folder: str
    queries: dict[str, dict[str, Any]]
    mishap: str | None = None
    conf: dict[str, str] = field(default_factory=dict)

    def path(self, name: str) -> Path:
        return Path(self.folder) / name


def _once(folder: Path, name: str) -> bool:
    """Whether nobody was here before, in whatever process."""
    try:
        os.close(os.open(folder / name, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def executor_dies(folder: Path) -> Task:
    """The second batch's first task to have taken all its rows takes its executor with it, before anyone is told.

    What the executor has shuffled is lost as well, so the stage before runs again.
    """

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        context = TaskContext.get()
        assert context is not None
        if context.getLocalProperty("streaming.sql.batchId") == "1" and _once(folder, "executor died"):
            daemon = psutil.Process(os.getppid())
            os.kill(daemon.ppid(), signal.SIGKILL)

    return task


def worker_dies(folder: Path) -> Task:
    """As above, but only the Python worker."""

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        if _once(folder, "worker died"):
            os.kill(os.getpid(), signal.SIGKILL)

    return task


def slow_first_attempt(folder: Path) -> Task:
    """The first attempt at partition 0 of a batch is slow at its end: Spark starts a second one beside it."""

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        context = TaskContext.get()
        assert context is not None
        if context.partitionId() == 0 and context.attemptNumber() == 0:
            time.sleep(6)
        elif context.attemptNumber() > 0:
            _once(folder, "second attempt")

    return task


MISHAPS = {task.__name__: task for task in (executor_dies, worker_dies, slow_first_attempt)}


def main(told: Told) -> None:
    conf = {**CONF, "spark.local.dir": str(told.path("local")), **told.conf}
    spark = open_session("cluster", told.master_url, conf)
    try:
        queries = []
        for name, arguments in told.queries.items():
            checkpoint = told.path(f"{name}-checkpoint")
            df = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 2).parquet(str(told.path("in")))
            if "max_delay" in arguments:
                arguments = {**arguments, "checkpoint": checkpoint}
            df = enrich(df, told.path("r"), on="k", **arguments)
            if told.mishap is not None:
                df = df.mapInArrow(MISHAPS[told.mishap](told.path("marks")), df.schema)
            writer = df.writeStream.format("parquet").option("path", str(told.path(f"{name}-out")))
            writer = writer.option("checkpointLocation", str(checkpoint))
            queries.append(writer.trigger(availableNow=True).start())
        for query in queries:
            query.awaitTermination()
    finally:
        spark.stop()


if __name__ == "__main__":
    main(Told(**json.loads(sys.argv[1])))
