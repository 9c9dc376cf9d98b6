"""A Spark standalone cluster on loopback: a master, two workers with one core each, and programs that run on it.

Each worker has an address of its own, as Spark starts no second copy of a slow task on the host of the first.
Only processes that were started here are ever looked at or killed: others may run Spark on the same machine.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pyspark
from tests.spark.conftest import JVM

from semistream.spark.java import find_java

ROOT = Path(__file__).resolve().parents[2]
WORKERS = 2
_SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
_START_SECONDS = 90
#: what a program needs to run on the cluster and to outlive what is killed there, again and again
CONF = {
    "spark.driver.memory": "768m",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.executor.extraJavaOptions": JVM,
    "spark.sql.shuffle.partitions": "2",
    "spark.log.level": "ERROR",
    "spark.task.maxFailures": "1000",
    "spark.stage.maxConsecutiveAttempts": "1000",
    "spark.excludeOnFailure.enabled": "false",
    "spark.locality.wait": "0",
    "spark.shuffle.io.maxRetries": "1",
    "spark.shuffle.io.retryWait": "200ms",
}


@dataclass(frozen=True)
class Cluster:
    """The master's address, and the processes of the workers."""

    url: str
    workers: tuple[int, ...]

    def executors(self) -> list[psutil.Process]:
        """The executors' JVMs."""
        return [process for pid in self.workers for process in family(pid) if _runs(process, "ExecutorBackend")]

    def python_workers(self) -> list[psutil.Process]:
        """The processes in which tasks run Python: children of each executor's daemon."""
        daemons = [child for executor in self.executors() for child in family(executor.pid) if _runs(child, "daemon")]
        parents = {daemon.pid for daemon in daemons}
        return [process for process in daemons if _parent(process) in parents]


def family(pid: int) -> list[psutil.Process]:
    """All processes that a process has started, and those that these have."""
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _runs(process: psutil.Process, word: str) -> bool:
    try:
        return word in " ".join(process.cmdline())
    except psutil.Error:
        return False


def _parent(process: psutil.Process) -> int | None:
    try:
        return process.ppid()
    except psutil.Error:
        return None


def kill_family(process: subprocess.Popen[bytes]) -> None:
    """A program and whatever it has started, at once."""
    for pid in [process.pid, *(child.pid for child in family(process.pid))]:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    process.wait()


@contextmanager
def running(command: list[str], log: Path, changes: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """A program with its output in `log`; it and its children are gone afterwards."""
    with log.open("ab") as out:
        process = subprocess.Popen(
            command, stdout=out, stderr=subprocess.STDOUT, env={**os.environ, **changes}, cwd=ROOT
        )
    try:
        yield process
    finally:
        kill_family(process)


def program(command: list[str], log: Path) -> subprocess.Popen[bytes]:
    """A Python program that finds the package and these tests, to be ended with `kill_family`."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    with log.open("ab") as out:
        return subprocess.Popen(
            [sys.executable, *command], cwd=ROOT, env=environment, stdout=out, stderr=subprocess.STDOUT
        )


def wait_for(pattern: str, log: Path) -> str:
    limit = time.monotonic() + _START_SECONDS
    while time.monotonic() < limit:
        found = re.search(pattern, log.read_text(errors="replace")) if log.exists() else None
        if found:
            return found[1]
        time.sleep(0.1)
    raise AssertionError(f"{pattern!r} is not in {log}: {log.read_text()[-2000:]}")


@contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    """A cluster whose workers have registered; `folder` is for its logs and the executors' own folders."""
    folder.mkdir(parents=True, exist_ok=True)
    changes = {
        "JAVA_HOME": str(find_java()),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_NO_DAEMONIZE": "1",
        "SPARK_DAEMON_MEMORY": "256m",
        # However often executors die, the application is not given up.
        "SPARK_DAEMON_JAVA_OPTS": f"{JVM} -Dspark.deploy.maxExecutorRetries=-1",
        "SPARK_LOCAL_DIRS": str(folder / "local"),
        "PYTHONPATH": str(ROOT / "src"),
        "PYSPARK_PYTHON": sys.executable,
    }
    with ExitStack() as stack:
        stack.enter_context(running(_starting("master.Master", 1), folder / "master", changes))
        url = wait_for(r"(spark://127\.0\.0\.1:\d+)", folder / "master")
        pids = []
        for number in range(1, WORKERS + 1):
            worker = [*_starting("worker.Worker", number), "--cores", "1", "--memory", "1g"]
            worker += ["--work-dir", str(folder / f"work{number}"), url]
            here = {**changes, "SPARK_LOCAL_IP": f"127.0.0.{number}"}
            pids.append(stack.enter_context(running(worker, folder / f"worker{number}", here)).pid)
        for number in range(1, WORKERS + 1):
            wait_for(r"(Successfully registered with master)", folder / f"worker{number}")
        yield Cluster(url, tuple(pids))


def _starting(role: str, number: int) -> list[str]:
    address = ["--host", f"127.0.0.{number}", "--port", "0", "--webui-port", "0"]
    return [str(_SPARK_CLASS), f"org.apache.spark.deploy.{role}", *address]
