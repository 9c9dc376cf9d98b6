"""Spark's own stream-static join and `enrich` on the same stream, in a process of its own with a Spark of its own.

A micro-batch counts from trigger to commit, written to a sink that takes every row and keeps none. Spark is local, two
tasks at a time, and talks to nobody but itself. Both sides run in the same session, with the settings that are best for
Spark's own join (`spark_runs.tuned`).
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from semistream.errors import SemiStreamError
from semistream.lab.contest.spark_runs import (
    DRIVER_MEMORY,
    Ran,
    into_noop,
    native_settings,
    persisted,
    run_batches,
    stream_files,
    tuned,
)
from semistream.lab.measure.child import child_environment
from semistream.lab.workloads.relation import KEY, SyntheticStream

NATIVE, CACHED, HINTED, OURS = "spark native", "spark cached", "spark hinted", "spark sweepjoin"
HOWS = ("inner", "left")
#: what a user may tell Spark about R; the best of them is "hinted"
HINTS = ("broadcast", "shuffle_hash")
#: of one contestant: the seconds of its measured micro-batches, and the settings it ran with
Outcome = dict[str, Any]
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
    #: of the JVM, which Spark's own join has for itself
    driver_memory: str = DRIVER_MEMORY


def spark_is_there() -> bool:
    """Whether pyspark is installed."""
    return find_spec("pyspark") is not None


def compete(task: SparkTask) -> dict[str, dict[str, Outcome]]:
    """What came out by kind of join and contestant; hints by their names.

    A hint may be more than Spark can do, such as broadcasting an R that its memory does not hold: then there are no
    seconds.
    """
    command = [sys.executable, "-m", "semistream.lab.contest.spark_contest", json.dumps(asdict(task))]
    done = subprocess.run(
        command, env=child_environment(), capture_output=True, text=True, timeout=_LONGEST_SECONDS, check=False
    )
    if done.returncode != 0:
        raise SemiStreamError(f"the joins on Spark ended without a result: {done.stderr[-2000:]}")
    found: dict[str, dict[str, Outcome]] = json.loads(done.stdout.splitlines()[-1])
    return found


def perform(task: SparkTask, folder: Path) -> dict[str, dict[str, Outcome]]:
    """In the child: all contestants, one after the other."""
    from semistream.spark.session import running_session

    conf = {**tuned(_TASKS), "spark.driver.memory": task.driver_memory, "spark.local.dir": str(folder / "local")}
    stream, each = SyntheticStream(task.rows, task.skew, task.seed), task.batch // _TASKS
    files = stream_files(stream, folder / "stream", each, (task.learning + task.measured) * _TASKS)
    found: dict[str, dict[str, Outcome]] = {}
    with running_session("semistream-peers", f"local[{_TASKS}]", conf, lambda _: None) as spark:
        for how in HOWS:
            found[how] = {}
            for name in (OURS, NATIVE, CACHED, *HINTS):
                measured = task.hinted if name in HINTS else task.measured
                batches = (task.learning if name == OURS else task.warm) + measured
                scratch = folder / f"{how}-{name.replace(' ', '-')}"
                settings = _settings(spark, task, name)
                try:
                    ran = _run(spark, task, name, how, files[: _TASKS * batches], scratch)
                except Exception as error:
                    if name not in HINTS or isinstance(error, SemiStreamError):
                        raise
                    found[how][name] = {"seconds": [], "settings": settings}
                    continue
                if name != OURS:
                    settings |= {"plan": ran.joins}
                seconds = [batch.seconds for batch in ran.batches]
                found[how][name] = {"seconds": seconds[-measured:], "settings": settings}
    return found


def _settings(spark: Any, task: SparkTask, name: str) -> dict[str, Any]:
    if name == OURS:
        return {"master": spark.sparkContext.master, "memory": f"{task.memory / 1e6:g} MB", "R": "page store"}
    held = "in Spark's memory" if name == CACHED else "Parquet files"
    return {**native_settings(spark), "R": held, "hint": name if name in HINTS else None}


def _run(spark: Any, task: SparkTask, name: str, how: str, files: list[Path], scratch: Path) -> Ran:
    """Every micro-batch. Ours is joined and counted once before: a wrong join is not to be timed."""
    expected = task.batch // _TASKS * _TASKS
    once = spark.read.parquet(*map(str, files[:_TASKS]))
    if name == OURS and _joined(task, name, how, once).count() != expected:
        raise SemiStreamError(f"{name} ({how}) does not give one row for each of {expected} tuples")
    start = into_noop(partial(_joined, task, name, how))
    if name != CACHED:
        return run_batches(spark, files, _TASKS, scratch, start)
    with persisted(spark.read.parquet(task.parquet)):
        ran = run_batches(spark, files, _TASKS, scratch, start)
    if not ran.from_memory:
        raise SemiStreamError(f"{name} ({how}) did not read R from Spark's memory")
    return ran


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
