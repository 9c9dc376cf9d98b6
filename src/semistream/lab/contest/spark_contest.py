"""Spark's own stream-static join and `enrich` on the same stream, in a process of its own with a Spark of its own.

A micro-batch counts from trigger to commit, written to a sink that takes every row and keeps none. Spark is local, two
tasks at a time, and talks to nobody but itself.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from semistream.errors import SemiStreamError
from semistream.lab.measure.child import child_environment
from semistream.lab.workloads.relation import KEY, SyntheticStream

NATIVE, HINTED, OURS = "spark native", "spark hinted", "spark sweepjoin"
HOWS = ("inner", "left")
#: what a user may tell Spark about R; the best of them is "hinted"
HINTS = ("broadcast", "shuffle_hash")
Seconds = list[float]
_LONGEST_SECONDS = 900.0
_TASKS = 2


@dataclass(frozen=True)
class SparkTask:
    """R in two forms, and the stream; JSON values only."""

    parquet: str
    pages: str
    rows: int
    memory: int
    batch: int
    seed: int = 1
    skew: float = 1.0
    #: micro-batches before the measured ones: for `enrich`, which learns, and for Spark, which compiles
    learning: int = 3
    warm: int = 1
    measured: int = 3
    hinted: int = 2


def spark_is_there() -> bool:
    """Whether pyspark is installed."""
    return find_spec("pyspark") is not None


def compete(task: SparkTask) -> dict[str, dict[str, Seconds]]:
    """Seconds of each measured micro-batch by kind of join and contestant; hints by their names.

    A hint may be more than Spark can do, such as broadcasting an R that its memory does not hold: then there are none.
    """
    command = [sys.executable, "-m", "semistream.lab.contest.spark_contest", json.dumps(asdict(task))]
    done = subprocess.run(
        command, env=child_environment(), capture_output=True, text=True, timeout=_LONGEST_SECONDS, check=False
    )
    if done.returncode != 0:
        raise SemiStreamError(f"the joins on Spark ended without a result: {done.stderr[-2000:]}")
    found: dict[str, dict[str, Seconds]] = json.loads(done.stdout.splitlines()[-1])
    return found


def perform(task: SparkTask, folder: Path) -> dict[str, dict[str, Seconds]]:
    """In the child: all contestants, one after the other."""
    from semistream.spark.session import running_session

    conf = {
        "spark.driver.memory": "3g",
        "spark.sql.shuffle.partitions": str(_TASKS),
        "spark.local.dir": str(folder / "local"),
        "spark.sql.streaming.numRecentProgressUpdates": "1000",
    }
    stream, each = SyntheticStream(task.rows, task.skew, task.seed), task.batch // _TASKS
    files = stream_files(stream, folder / "stream", each, (task.learning + task.measured) * _TASKS)
    found: dict[str, dict[str, Seconds]] = {}
    with running_session("semistream-peers", f"local[{_TASKS}]", conf, lambda _: None) as spark:
        for how in HOWS:
            found[how] = {}
            for name in (OURS, NATIVE, *HINTS):
                measured = task.hinted if name in HINTS else task.measured
                batches = (task.learning if name == OURS else task.warm) + measured
                scratch = folder / f"{how}-{name.replace(' ', '-')}"
                try:
                    seconds = _run(spark, task, name, how, files[: _TASKS * batches], scratch)
                except Exception as error:
                    if name not in HINTS or isinstance(error, SemiStreamError):
                        raise
                    seconds = []
                found[how][name] = seconds[-measured:]
    return found


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


def run_batches(
    spark: Any, files: Sequence[Path], per_batch: int, scratch: Path, joined: Callable[[Any], Any]
) -> tuple[str, list[MicroBatch]]:
    """Stream these files through `joined`, `per_batch` per micro-batch; the query's id and its batches.

    The sink takes every row and keeps none. `scratch` is on the file system of the files, which are linked there:
    the source takes whatever it finds.
    """
    source = scratch / "in"
    source.mkdir(parents=True)
    for path in files:
        os.link(path, source / path.name)
    schema = spark.read.parquet(str(files[0])).schema
    stream = spark.readStream.schema(schema).option("maxFilesPerTrigger", per_batch).parquet(str(source))
    writer = joined(stream).writeStream.format("noop")
    query = writer.option("checkpointLocation", str(scratch / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()
    return str(query.id), [
        MicroBatch(progress.batchId, progress.durationMs["triggerExecution"] / 1000)
        for progress in query.recentProgress
        if progress.numInputRows
    ]


def _run(spark: Any, task: SparkTask, name: str, how: str, files: list[Path], scratch: Path) -> list[float]:
    """Seconds of every micro-batch. Ours is joined and counted once before: a wrong join is not to be timed."""
    expected = task.batch // _TASKS * _TASKS
    once = spark.read.parquet(*map(str, files[:_TASKS]))
    if name == OURS and _joined(task, name, how, once).count() != expected:
        raise SemiStreamError(f"{name} ({how}) does not give one row for each of {expected} tuples")
    _, batches = run_batches(spark, files, _TASKS, scratch, partial(_joined, task, name, how))
    return [batch.seconds for batch in batches]


def _joined(task: SparkTask, name: str, how: str, stream: Any) -> Any:
    if name == OURS:
        from semistream.spark import enrich

        return enrich(stream, task.pages, on=KEY, how=how, memory=task.memory)
    master = stream.sparkSession.read.parquet(task.parquet)
    return stream.join(master.hint(name) if name in HINTS else master, KEY, how)


def main() -> None:
    """The child: its task is on the command line, the last line of its output is the result."""
    task = SparkTask(**json.loads(sys.argv[1]))
    with tempfile.TemporaryDirectory(prefix="semistream-spark-", dir=Path(task.parquet).parent) as folder:
        found = perform(task, Path(folder))
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
