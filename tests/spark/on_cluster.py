"""A program that tests run on a cluster: `python -m tests.spark.on_cluster '{"master_url": ...}'`.

Files -> enrich -> something that goes wrong in a task, once -> Parquet.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession
from tests.spark.cluster import CONF, kill_family, program
from tests.spark.lakes import read_all
from tests.spark.queries import started

from semistream.spark import enrich, write
from semistream.spark.session import open_session

SCHEMA = "k long, seq long, qty int"
Task = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


@dataclass(frozen=True)
class Work:
    """What to run. `queries` are the arguments of `enrich` by name; `mishap` is a function below.

    A query with a `lake`, the format of one, is written by the tasks that join; its mishap comes before the join, and
    so when the files are begun.
    """

    master_url: str
    folder: str
    queries: dict[str, dict[str, Any]]
    mishap: str | None = None
    conf: dict[str, str] = field(default_factory=dict)

    def path(self, name: str) -> Path:
        return Path(self.folder) / name


SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.minTaskRuntime": "100ms",
}


class Program:
    """Queries that run on the cluster until their files are done."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.log = work.path("log")
        self.process = program(["-m", "tests.spark.on_cluster", json.dumps(asdict(work))], self.log)

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        kill_family(self.process)

    def committed(self, batch: int) -> bool:
        """Whether all queries have committed a batch."""
        commits = [self.work.path(f"{name}-checkpoint") / "commits" / str(batch) for name in self.work.queries]
        return all(path.exists() for path in commits)

    def wait_for_batch(self, batch: int) -> None:
        limit = time.monotonic() + 180
        while not self.committed(batch):
            assert self.process.poll() is None, self.log.read_text()[-3000:]
            assert time.monotonic() < limit, self.log.read_text()[-3000:]
            time.sleep(0.05)

    def finish(self) -> None:
        assert self.process.wait(timeout=300) == 0, self.log.read_text()[-3000:]

    def results(self, spark: SparkSession) -> dict[str, pa.Table]:
        """What the queries have written, by name."""

        def rows(name: str) -> pa.Table:
            place, lake = self.work.path(f"{name}-out"), self.work.queries[name].get("lake")
            if lake is not None:
                return read_all(lake, str(place), place)
            return spark.read.parquet(str(place)).toArrow()

        return {name: rows(name) for name in self.work.queries}


def _once(folder: Path, name: str) -> bool:
    """Whether nobody was here before, in whatever process."""
    try:
        os.close(os.open(folder / name, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def _batch() -> int:
    context = TaskContext.get()
    assert context is not None
    return int(context.getLocalProperty("streaming.sql.batchId") or 0)


def dying_tasks(folder: Path, query: str) -> Task:
    """A task of batch 1 that has taken all its rows takes its executor with it; one of batch 2 its Python worker.

    What the executor has shuffled is lost as well, so the stage before runs again.
    """

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        if _batch() == 1 and _once(folder, f"{query}: executor died"):
            daemon = psutil.Process(os.getppid())
            os.kill(daemon.ppid(), signal.SIGKILL)
        if _batch() == 2 and _once(folder, f"{query}: worker died"):
            os.kill(os.getpid(), signal.SIGKILL)

    return task


def slow_tasks(folder: Path, query: str) -> Task:
    """In two batches the first attempt at partition 0 is slow at its end: Spark starts a second one beside it."""

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        context = TaskContext.get()
        assert context is not None
        if context.partitionId() == 0 and context.attemptNumber() == 0 and _batch() in (1, 2):
            time.sleep(8)
        elif context.attemptNumber() > 0:
            _once(folder, f"{query}: second attempt")

    return task


MISHAPS = {task.__name__: task for task in (dying_tasks, slow_tasks)}


def main(work: Work) -> None:
    conf = {**CONF, "spark.local.dir": str(work.path("local")), **work.conf}
    spark = open_session("cluster", work.master_url, conf)
    try:
        queries = []
        for name, arguments in work.queries.items():
            checkpoint = work.path(f"{name}-checkpoint")
            df = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 2).parquet(str(work.path("in")))
            lake = arguments.get("lake")
            arguments = {key: value for key, value in arguments.items() if key != "lake"}
            if "max_delay" in arguments:
                arguments = {**arguments, "checkpoint": checkpoint}
            if lake is not None:
                if work.mishap is not None:
                    df = df.mapInArrow(MISHAPS[work.mishap](work.path("marks"), name), df.schema)
                df = enrich(df, work.path("r"), on="k", **arguments)
                place = work.path(f"{name}-out")
                queries.append(write(df, place, lake, checkpoint=checkpoint, trigger="availableNow"))
                continue
            df = enrich(df, work.path("r"), on="k", **arguments)
            if work.mishap is not None:
                df = df.mapInArrow(MISHAPS[work.mishap](work.path("marks"), name), df.schema)
            writer = df.writeStream.format("parquet").option("path", str(work.path(f"{name}-out")))
            writer = writer.option("checkpointLocation", str(checkpoint))
            start = writer.trigger(availableNow=True).start
            # One after the other: they must not all start their sources' processes at once.
            queries.append(started(start) if "max_delay" in arguments else start())
        for query in queries:
            query.awaitTermination()
    finally:
        spark.stop()


if __name__ == "__main__":
    main(Work(**json.loads(sys.argv[1])))
