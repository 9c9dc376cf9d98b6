"""A real cluster: executors die, stages run again, tasks run twice at once; the rows are those of the join."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from tests.spark.cluster import Cluster, cluster
from tests.spark.on_cluster import SPECULATION, Program, Work, dying_tasks, slow_tasks

import semistream
from semistream.lab.workloads.relation import master_batches, stream_batches
from semistream.testing import assert_same_rows, reference_join

N_KEYS = 20_000
FILES = 12
PLAIN: dict[str, Any] = {"memory": "4MB"}
BY_KEY: dict[str, Any] = {"memory": "4MB", "shuffle": "key"}
CARRYING: dict[str, Any] = {"memory": "2MB", "algorithm": "ssbj", "max_delay": "2s"}


@pytest.fixture(scope="module")
def on(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("cluster")) as started:
        yield started


@pytest.fixture(scope="module")
def relation() -> pa.Table:
    return pa.Table.from_batches(master_batches(N_KEYS, 1, repeat=True)).select(["k", "m01", "m02", "m03", "m04"])


@pytest.fixture(scope="module")
def stream() -> pa.Table:
    return pa.Table.from_batches(stream_batches(FILES * 300, int(N_KEYS * 1.2), 0.9, 2))


@pytest.fixture
def folder(relation: pa.Table, stream: pa.Table, tmp_path: Path) -> Path:
    """R, the stream's files, and a place for marks."""
    semistream.build_pages(relation, tmp_path / "r", on="k", page_rows=64)
    for name in ("in", "marks"):
        (tmp_path / name).mkdir()
    for i in range(FILES):
        pq.write_table(stream.slice(i * 300, 300), tmp_path / "in" / f"{i}.parquet")
    return tmp_path


@pytest.mark.thorough
def test_executor_killed_mid_run(
    on: Cluster, spark: SparkSession, folder: Path, relation: pa.Table, stream: pa.Table
) -> None:
    queries = {"carrying": CARRYING, "none": PLAIN, "key": BY_KEY}
    with Program(Work(on.url, str(folder), queries)) as running:
        running.wait_for_batch(0)
        executors = on.executors()
        assert len(executors) == 2, running.log.read_text()[-2000:]
        executors[0].send_signal(signal.SIGKILL)
        assert not running.committed(FILES // 2 - 1), "the queries were over before an executor could be killed"
        running.finish()
        for rows in running.results(spark).values():
            assert_same_rows(rows, reference_join(stream, relation, "k", "left"))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("mishap", "marks", "conf"),
    [(dying_tasks, ["executor died", "worker died"], {}), (slow_tasks, ["second attempt"], SPECULATION)],
    ids=["stage and task retry", "speculation"],
)
def test_tasks_that_run_again(
    mishap: Any,
    marks: list[str],
    conf: dict[str, str],
    on: Cluster,
    spark: SparkSession,
    folder: Path,
    relation: pa.Table,
    stream: pa.Table,
) -> None:
    """The first attempt has given all its rows, and left its record, when the second one begins."""
    queries = {"carrying": CARRYING, "key": BY_KEY, "lake": {**PLAIN, "lake": "delta"}}
    with Program(Work(on.url, str(folder), queries, mishap.__name__, conf)) as running:
        running.finish()
        happened = sorted(path.name for path in (folder / "marks").iterdir())
        assert happened == sorted(f"{query}: {mark}" for query in queries for mark in marks)
        for rows in running.results(spark).values():
            assert_same_rows(rows, reference_join(stream, relation, "k", "left"))
