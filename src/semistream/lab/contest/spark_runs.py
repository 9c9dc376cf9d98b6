"""How a contest on Spark is run: the files of the stream, the session's settings, and a query timed batch by batch.

Spark's own join gets what is best for it, and what it got is written down: settings are read from the session and from
the plan that ran, not from what somebody meant to set.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from semistream.lab.workloads.relation import SyntheticStream

#: Of the JVM. Spark's own joins keep their tables there; ours hardly uses it.
DRIVER_MEMORY = "6g"
_JOINS = re.compile(r"\b(BroadcastHashJoin|BroadcastNestedLoopJoin|ShuffledHashJoin|SortMergeJoin)\b")
#: makes a query of the stream; the folder is its checkpoint
Start = Callable[[Any, Path], Any]


def tuned(cores: int) -> dict[str, str]:
    """Settings that suit Spark's own stream-static join on so many cores: a partition for each, and memory enough.

    With more partitions than cores every micro-batch schedules tasks for nothing; that is worth a factor of two.
    """
    return {
        "spark.driver.memory": DRIVER_MEMORY,
        "spark.sql.shuffle.partitions": str(cores),
        "spark.sql.adaptive.enabled": "true",
        "spark.sql.streaming.numRecentProgressUpdates": "10000",
    }


def native_settings(spark: Any) -> dict[str, str]:
    """What a session gives to Spark's own join."""
    conf = spark.conf
    return {
        "master": spark.sparkContext.master,
        "driver memory": spark.sparkContext.getConf().get("spark.driver.memory", "1g"),
        "shuffle partitions": conf.get("spark.sql.shuffle.partitions"),
        "adaptive execution": "on" if conf.get("spark.sql.adaptive.enabled") == "true" else "off",
    }


@contextmanager
def persisted(frame: Any) -> Iterator[int]:
    """Hold a table in Spark's memory for a while, as its users do with master data; the bytes that it takes.

    What does not fit goes to disk, as Spark does by default.
    """
    before = held_in_spark(frame.sparkSession)
    frame.persist()
    try:
        frame.count()
        yield held_in_spark(frame.sparkSession) - before
    finally:
        frame.unpersist(blocking=True)


def held_in_spark(spark: Any) -> int:
    """Bytes of what Spark keeps for later: tables that were persisted, in its memory and on disk."""
    return sum(int(info.memSize() + info.diskSize()) for info in spark.sparkContext._jsc.sc().getRDDStorageInfo())


def in_words(settings: dict[str, Any]) -> str:
    """Settings as one line.

    >>> in_words({"master": "local[2]", "cached": True, "hint": None})
    'master local[2], cached'
    """
    said = [
        name if value is True else f"{name} {value}" for name, value in settings.items() if value not in (None, False)
    ]
    return ", ".join(said)


def stream_files(stream: SyntheticStream, folder: Path, rows: int, count: int) -> list[Path]:
    """The first `count` files of a stream, each of `rows` rows, made if not there; their times are their order."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for number in range(count):
        path = folder / f"{number:06d}.parquet"
        if not path.exists():
            pq.write_table(stream.table(number * rows, (number + 1) * rows), path)
            os.utime(path, (1e9 + number, 1e9 + number))
        paths.append(path)
    return paths


@dataclass(frozen=True)
class MicroBatch:
    """A finished micro-batch: its number, and its seconds from trigger to commit."""

    number: int
    seconds: float


@dataclass(frozen=True)
class Ran:
    """A query that has ended; `joins` are the joins of Spark's plan for its last batch."""

    query: str
    batches: list[MicroBatch]
    joins: str
    #: whether that plan read from Spark's memory
    from_memory: bool


def into_noop(joined: Callable[[Any], Any]) -> Start:
    """A query whose sink takes every row and keeps none."""

    def start(stream: Any, checkpoint: Path) -> Any:
        writer = joined(stream).writeStream.format("noop").option("checkpointLocation", str(checkpoint))
        return writer.trigger(availableNow=True).start()

    return start


def into_parquet(joined: Callable[[Any], Any], folder: Path) -> Start:
    """A query with Spark's own Parquet sink."""

    def start(stream: Any, checkpoint: Path) -> Any:
        writer = joined(stream).writeStream.format("parquet").option("checkpointLocation", str(checkpoint))
        return writer.option("path", str(folder)).trigger(availableNow=True).start()

    return start


def run_batches(spark: Any, files: Sequence[Path], per_batch: int, scratch: Path, start: Start) -> Ran:
    """Stream these files through the query that `start` makes, `per_batch` per micro-batch.

    `scratch` is on the file system of the files, which are linked there: the source takes whatever it finds.
    """
    source = scratch / "in"
    source.mkdir(parents=True)
    for path in files:
        os.link(path, source / path.name)
    schema = spark.read.parquet(str(files[0])).schema
    stream = spark.readStream.schema(schema).option("maxFilesPerTrigger", per_batch).parquet(str(source))
    query = start(stream, scratch / "checkpoint")
    query.awaitTermination()
    finished = [
        MicroBatch(progress.batchId, progress.durationMs["triggerExecution"] / 1000)
        for progress in query.recentProgress
        if progress.numInputRows
    ]
    plan = query._jsq.explainInternal(False)
    joins = ", ".join(dict.fromkeys(_JOINS.findall(plan)))
    return Ran(str(query.id), finished, joins, "InMemoryTableScan" in plan)
