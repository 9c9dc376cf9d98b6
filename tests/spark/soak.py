"""Queries that are killed again and again must end with exactly the rows of the join.

    python -m tests.spark.soak                          all combinations, four queries side by side, 20 kills each time
    python -m tests.spark.soak ssbj-left --kills 30     one of them

Files -> enrich -> Parquet, one query a combination, some in a program of their own. It is killed with SIGKILL (driver,
JVM and Python workers at once) at random moments after new batches have begun, and started again from the checkpoints.
In between single Python workers are killed as well, and R gets new versions. `test_kills.py` runs a few kills of two
combinations.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

import semistream
from semistream.spark import enrich
from semistream.spark.records import Records
from semistream.spark.session import open_session
from semistream.testing import assert_same_rows, reference_join
from semistream.workloads.relation import master_batches, stream_batches

ROOT = Path(__file__).resolve().parents[2]
COMBINATIONS = [
    [f"{algorithm}-{how}" for algorithm in algorithms for how in ("inner", "left")]
    for algorithms in (("sweepjoin", "opcachejoin"), ("ssbj", "meshjoin"))
]
#: these carry tuples over from batch to batch
DELAYS = {"ssbj": "4s", "meshjoin": "4s"}
N_KEYS = 20_000
COLUMNS = ["k", "m01", "m02", "m03", "m04", "m05"]
SCHEMA = "k long, seq long, qty int"
_PATIENCE_SECONDS = 300
_FAILURES = 3


@dataclass(frozen=True)
class Run:
    """Some queries over the same files: where these are, and which joins ("ssbj-left") the queries do."""

    folder: str
    joins: list[str]
    files: int
    rows_a_file: int = 500

    def path(self, name: str) -> Path:
        return Path(self.folder) / name

    def stream(self) -> pa.Table:
        return pa.Table.from_batches(stream_batches(self.files * self.rows_a_file, int(N_KEYS * 1.2), 0.9, 3))

    def master(self, version: int) -> pa.Table:
        """R; its versions differ in one column, so that a row tells which of them it was made with."""
        table = pa.Table.from_batches(master_batches(N_KEYS, 1, repeat=True)).select(COLUMNS)
        return table.append_column("version", pa.array(np.full(table.num_rows, version)))

    def prepare(self) -> None:
        self.path("in").mkdir(parents=True)
        table = self.stream()
        for i in range(self.files):
            pq.write_table(table.slice(i * self.rows_a_file, self.rows_a_file), self.path("in") / f"{i:05d}.parquet")
        self.new_version(1)

    def new_version(self, version: int) -> None:
        semistream.build_pages(self.master(version), self.path("r"), on="k", page_rows=32, overwrite=version > 1)

    def start(self) -> subprocess.Popen[bytes]:
        """The query in a process group of its own."""
        command = [sys.executable, "-m", "tests.spark.soak", "--run", json.dumps(asdict(self))]
        environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
        with self.path("log").open("ab") as log:
            return subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )

    def batches_begun(self) -> dict[str, int]:
        """By query."""
        return {name: _numbered(self.path(name) / "checkpoint" / "offsets") for name in self.joins}

    def batches_open(self) -> int:
        """Batches that were begun and are not committed."""
        begun = self.batches_begun()
        return sum(begun[name] > _numbered(self.path(name) / "checkpoint" / "commits") for name in self.joins)


def _numbered(folder: Path) -> int:
    return sum(1 for path in folder.glob("*") if path.name.isdigit()) if folder.is_dir() else 0


def query(run: Run) -> None:
    """The program that is killed."""
    conf = {
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": "2",
        "spark.local.dir": str(run.path("local")),
        "spark.log.level": "OFF",
    }
    # Eight attempts a task, since its worker may be killed.
    spark = open_session("soak", "local[2,8]", conf)
    try:
        queries = []
        # One after the other, each time in another order: Spark gives the process of a Python source ten seconds to
        # start, so they must not all start at once, and whoever comes first gets furthest.
        for name in random.sample(run.joins, len(run.joins)):
            queries.append(_start(spark, run, name))
            while queries[-1].isActive and not queries[-1].recentProgress:
                time.sleep(0.1)
        for each in queries:
            each.awaitTermination()
    finally:
        spark.stop()


def _start(spark: SparkSession, run: Run, name: str) -> StreamingQuery:
    algorithm, how = name.split("-")
    delay, checkpoint = DELAYS.get(algorithm), run.path(name) / "checkpoint"
    df = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(run.path("in")))
    joined = enrich(
        df,
        run.path("r"),
        on="k",
        how=how,
        memory="2MB",
        algorithm=algorithm,
        max_delay=delay,
        checkpoint=checkpoint if delay else None,
    )
    writer = joined.writeStream.format("parquet").option("path", str(run.path(name) / "out"))
    return writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()


def torment(run: Run, kills: int, seed: int) -> dict[str, int]:
    """Run the queries to their end through `kills` deaths of their driver; says what was killed.

    `batches` are those that were begun and not committed when their driver died; `failed` counts ends with an error.
    """
    dice = random.Random(seed)
    killed = {"driver": 0, "worker": 0, "batches": 0, "failed": 0}
    version = 1
    while True:
        process = run.start()
        begun = run.batches_begun()
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while killed["driver"] < kills and process.poll() is None:
            now = run.batches_begun()
            if any(now[name] > begun[name] for name in run.joins):
                time.sleep(dice.random() * 8)
                if dice.random() < 0.5:
                    killed["worker"] += _kill_a_worker(process, dice)
                    time.sleep(dice.random() * 2)
                _kill(process)
                killed["driver"] += 1
                killed["batches"] += run.batches_open()
                break
            if time.monotonic() > deadline:
                _kill(process)
                raise AssertionError(f"the query stands still; see {run.path('log')}")
            time.sleep(0.05)
        if process.wait() == 0:
            return killed
        if process.returncode != -signal.SIGKILL:
            # On an overloaded machine Spark gives up on a Python process that is too slow to start.
            killed["failed"] += 1
            if killed["failed"] > _FAILURES:
                raise AssertionError(f"the program fails by itself: {run.path('log').read_text()[-3000:]}")
            continue
        if killed["driver"] % 3 == 0:
            version += 1
            run.new_version(version)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Driver, JVM and whatever else the query has started."""
    family = [process.pid, *(child.pid for child in psutil.Process(process.pid).children(recursive=True))]
    for pid in family:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    process.wait()


def _kill_a_worker(process: subprocess.Popen[bytes], dice: random.Random) -> int:
    """One of Spark's Python workers: children of its daemon."""
    try:
        daemons = [p for p in psutil.Process(process.pid).children(recursive=True) if "daemon" in " ".join(p.cmdline())]
        workers = [child for daemon in daemons for child in daemon.children()]
        if not workers:
            return 0
        dice.choice(workers).kill()
    except psutil.Error:
        return 0
    return 1


def verify(spark: SparkSession, run: Run, name: str) -> int:
    """The sink of a query holds exactly the join's rows; returns how many."""
    algorithm, how = name.split("-")
    rows = spark.read.parquet(str(run.path(name) / "out")).toArrow()
    expected = reference_join(run.stream(), run.master(1), "k", how)
    assert_same_rows(rows.drop_columns(["version"]), expected.drop_columns(["version"]))
    # All matches of a stream tuple come from one version of R.
    seen = rows.filter(pa.compute.is_valid(rows["version"])).group_by("seq").aggregate([("version", "count_distinct")])
    assert seen["version_count_distinct"].to_pylist() == [1] * seen.num_rows
    if algorithm in DELAYS:
        assert Records(run.path(name) / "checkpoint" / "semistream" / "r").waiting() == 0
    return rows.num_rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("combinations", nargs="*", help="such as ssbj-left")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--run", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        query(Run(**json.loads(options.run)))
        return
    for joins in [options.combinations] if options.combinations else COMBINATIONS:
        with tempfile.TemporaryDirectory(prefix="semistream-soak-") as folder:
            run = Run(f"{folder}/run", joins, files=options.kills * 4)
            run.prepare()
            start = time.monotonic()
            killed = torment(run, options.kills, options.seed)
            print(
                f"{killed['driver']} drivers and {killed['worker']} workers killed, {killed['batches']} batches cut "
                f"short, {killed['failed']} ends with an error; {time.monotonic() - start:.0f} s",
                flush=True,
            )
            spark = open_session("verify", "local[2]", {"spark.driver.memory": "1g"})
            for name in run.joins:
                print(f"{name}: {verify(spark, run, name)} rows, exactly those of the join", flush=True)
            spark.stop()


if __name__ == "__main__":
    main()
