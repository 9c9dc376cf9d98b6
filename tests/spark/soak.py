"""A query that is killed again and again must end with exactly the rows of the join.

    python -m tests.spark.soak                          all combinations, 20 kills each (about an hour)
    python -m tests.spark.soak ssbj-left --kills 30     one of them

Files -> enrich -> Parquet, started as a program of its own. It is killed with SIGKILL, driver, JVM and Python workers
at once, at random moments after it has begun a new batch, and started again from its checkpoint; in between single
Python workers are killed as well, and R gets new versions. `test_kills.py` runs a few kills of two combinations.
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

import semistream
from semistream.spark import enrich
from semistream.spark.records import Records
from semistream.spark.session import open_session
from semistream.testing import assert_same_rows, reference_join
from semistream.workloads.relation import master_batches, stream_batches

ROOT = Path(__file__).resolve().parents[2]
COMBINATIONS = [
    (algorithm, how) for algorithm in ("sweepjoin", "opcachejoin", "ssbj", "meshjoin") for how in ("inner", "left")
]
N_KEYS = 20_000
COLUMNS = ["k", "m01", "m02", "m03", "m04", "m05"]
SCHEMA = "k long, seq long, qty int"
_PATIENCE_SECONDS = 300


@dataclass(frozen=True)
class Run:
    """One query: where its files are, and what it does."""

    folder: str
    algorithm: str
    how: str
    max_delay: str | None
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

    def batches_begun(self) -> int:
        offsets = self.path("checkpoint") / "offsets"
        return sum(1 for path in offsets.glob("*") if path.name.isdigit()) if offsets.is_dir() else 0


def query(run: Run) -> None:
    """The program that is killed."""
    conf = {
        "spark.driver.memory": "512m",
        "spark.sql.shuffle.partitions": "2",
        "spark.local.dir": str(run.path("local")),
        "spark.log.level": "OFF",
    }
    # Eight attempts a task, since its worker may be killed.
    spark = open_session("soak", "local[2,8]", conf)
    try:
        df = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 2).parquet(str(run.path("in")))
        joined = enrich(
            df,
            run.path("r"),
            on="k",
            how=run.how,
            memory="2MB",
            algorithm=run.algorithm,
            max_delay=run.max_delay,
            checkpoint=run.path("checkpoint") if run.max_delay else None,
        )
        writer = joined.writeStream.format("parquet").option("path", str(run.path("out")))
        writer = writer.option("checkpointLocation", str(run.path("checkpoint")))
        writer.trigger(availableNow=True).start().awaitTermination()
    finally:
        spark.stop()


def torment(run: Run, kills: int, seed: int) -> dict[str, int]:
    """Run a query to its end through `kills` deaths of its driver; says what was killed."""
    dice = random.Random(seed)
    killed = {"driver": 0, "worker": 0}
    version = 1
    while True:
        process = run.start()
        begun = run.batches_begun()
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while killed["driver"] < kills and process.poll() is None:
            if run.batches_begun() > begun:
                time.sleep(dice.random() * 1.5)
                if dice.random() < 0.5:
                    killed["worker"] += _kill_a_worker(process, dice)
                    time.sleep(dice.random() * 1.5)
                _kill(process)
                killed["driver"] += 1
                break
            if time.monotonic() > deadline:
                _kill(process)
                raise AssertionError(f"the query stands still; see {run.path('log')}")
            time.sleep(0.05)
        if process.wait() == 0:
            return killed
        if killed["driver"] < kills and process.returncode != -signal.SIGKILL:
            raise AssertionError(f"the query failed by itself: {run.path('log').read_text()[-3000:]}")
        if killed["driver"] >= kills and process.returncode != -signal.SIGKILL:
            raise AssertionError(f"the last run failed: {run.path('log').read_text()[-3000:]}")
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


def verify(spark: SparkSession, run: Run) -> int:
    """The sink holds exactly the join's rows; returns how many."""
    rows = spark.read.parquet(str(run.path("out"))).toArrow()
    expected = reference_join(run.stream(), run.master(1), "k", run.how)
    assert_same_rows(rows.drop_columns(["version"]), expected.drop_columns(["version"]))
    # All matches of a stream tuple come from one version of R.
    seen = rows.filter(pa.compute.is_valid(rows["version"])).group_by("seq").aggregate([("version", "count_distinct")])
    assert seen["version_count_distinct"].to_pylist() == [1] * seen.num_rows
    if run.max_delay is not None:
        assert Records(run.path("checkpoint") / "semistream" / "r").waiting() == 0
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
    wanted = [tuple(name.split("-")) for name in options.combinations] or COMBINATIONS
    for number, (algorithm, how) in enumerate(wanted):
        with tempfile.TemporaryDirectory(prefix="semistream-soak-") as folder:
            delay = "4s" if algorithm in ("ssbj", "meshjoin") else None
            run = Run(f"{folder}/run", algorithm, how, delay, files=options.kills * 12)
            run.prepare()
            start = time.monotonic()
            killed = torment(run, options.kills, options.seed + number)
            spark = open_session("verify", "local[2]", {"spark.driver.memory": "1g"})
            rows = verify(spark, run)
            print(
                f"{algorithm} {how}: {killed['driver']} drivers and {killed['worker']} workers killed, {rows} rows, "
                f"exactly those of the join; {time.monotonic() - start:.0f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
