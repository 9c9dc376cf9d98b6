"""A real cluster: a standalone master and two workers on loopback, one executor killed while queries run."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
import pytest
from pyspark.sql import SparkSession
from tests.spark.conftest import JVM

import semistream
from semistream.spark.java import find_java
from semistream.testing import assert_same_rows, reference_join
from semistream.workloads.relation import master_batches, stream_batches

ROOT = Path(__file__).resolve().parents[2]
SPARK = Path(pyspark.__file__).parent
N_KEYS = 20_000
FILES = 16
SHUFFLES = ("none", "key")
_START_SECONDS = 60

PROGRAM = """
import json, sys
from semistream.spark import enrich
from semistream.spark.session import open_session
told = json.loads(sys.argv[1])
conf = {"spark.driver.memory": "512m", "spark.executor.memory": "512m", "spark.executor.cores": "1",
        "spark.executor.extraJavaOptions": told["jvm"],
        "spark.sql.shuffle.partitions": "2", "spark.local.dir": told["local"], "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1"}
spark = open_session("cluster", told["master"], conf)
try:
    queries = []
    for shuffle in told["shuffles"]:
        df = spark.readStream.schema("k long, seq long, qty int").option("maxFilesPerTrigger", 2).parquet(told["in"])
        df = enrich(df, told["r"], on="k", memory="4MB", shuffle=shuffle)
        writer = df.writeStream.format("parquet").option("path", f"{told['out']}-{shuffle}")
        writer = writer.option("checkpointLocation", f"{told['checkpoint']}-{shuffle}")
        queries.append(writer.trigger(availableNow=True).start())
    for query in queries:
        query.awaitTermination()
finally:
    spark.stop()
"""


@contextmanager
def _running(command: list[str], log: Path, environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=environment, cwd=ROOT)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _wait_for(pattern: str, log: Path) -> str:
    limit = time.monotonic() + _START_SECONDS
    while time.monotonic() < limit:
        found = re.search(pattern, log.read_text(errors="replace")) if log.exists() else None
        if found:
            return found[1]
        time.sleep(0.1)
    raise AssertionError(f"{pattern!r} is not in {log}: {log.read_text()[-2000:]}")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The master's address; two workers with one core each have registered."""
    folder = tmp_path_factory.mktemp("cluster")
    environment = {
        **os.environ,
        "JAVA_HOME": str(find_java()),
        "SPARK_HOME": str(SPARK),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_NO_DAEMONIZE": "1",
        "PYTHONPATH": str(ROOT / "src"),
        "PYSPARK_PYTHON": sys.executable,
    }
    start = [str(SPARK / "bin" / "spark-class"), "org.apache.spark.deploy"]
    address = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
    master = [start[0], f"{start[1]}.master.Master", *address]
    with _running(master, folder / "master", environment):
        url = _wait_for(r"(spark://127\.0\.0\.1:\d+)", folder / "master")
        command = [start[0], f"{start[1]}.worker.Worker", *address, "--cores", "1", "--memory", "1g"]
        with (
            _running([*command, "--work-dir", str(folder / "work1"), url], folder / "worker1", environment),
            _running([*command, "--work-dir", str(folder / "work2"), url], folder / "worker2", environment),
        ):
            for name in ("worker1", "worker2"):
                _wait_for(r"(Successfully registered with master)", folder / name)
            yield url


def _executors() -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter(["cmdline"]):
        command = " ".join(process.info["cmdline"] or [])
        if "CoarseGrainedExecutorBackend" in command and "127.0.0.1" in command:
            found.append(process)
    return found


def test_executor_killed_mid_run(cluster: str, spark: SparkSession, tmp_path: Path) -> None:
    relation = pa.Table.from_batches(master_batches(N_KEYS, 1, repeat=True)).select(["k", "m01", "m02", "m03", "m04"])
    semistream.build_pages(relation, tmp_path / "r", on="k", page_rows=64)
    stream = pa.Table.from_batches(stream_batches(FILES * 500, int(N_KEYS * 1.2), 0.9, 2))
    (tmp_path / "in").mkdir()
    for i in range(FILES):
        pq.write_table(stream.slice(i * 500, 500), tmp_path / "in" / f"{i}.parquet")
    told = {name: str(tmp_path / name) for name in ("in", "r", "out", "checkpoint", "local")}
    command = [sys.executable, "-c", PROGRAM, json.dumps({**told, "master": cluster, "shuffles": SHUFFLES, "jvm": JVM})]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    log = tmp_path / "log"
    commits = [tmp_path / f"checkpoint-{shuffle}" / "commits" for shuffle in SHUFFLES]
    with _running(command, log, environment) as queries:
        limit = time.monotonic() + 120
        while not all((each / "0").exists() for each in commits) and queries.poll() is None:
            assert time.monotonic() < limit, log.read_text()[-2000:]
            time.sleep(0.05)
        before = _executors()
        assert len(before) == 2, log.read_text()[-2000:]
        before[0].send_signal(signal.SIGKILL)
        for each in commits:
            assert not (each / str(FILES // 2 - 1)).exists(), "a query was over before an executor could be killed"
        assert queries.wait(timeout=180) == 0, log.read_text()[-3000:]
    expected = reference_join(stream, relation, "k", "left")
    for shuffle in SHUFFLES:
        assert_same_rows(spark.read.parquet(str(tmp_path / f"out-{shuffle}")).toArrow(), expected)
