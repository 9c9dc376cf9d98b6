"""The accounts of tasks: nobody's are mixed with another's, and what the driver keeps of them is bounded."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import accumulators
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import DoubleType, LongType

import semistream
from semistream.spark import enrich, enrich_star, metrics
from semistream.spark.metrics import TaskMetrics, _Store

MEMORY = "8MB"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("master") / "r"
    semistream.build_pages(pa.table({"id": range(100), "v": range(100)}), path, on="id")
    return path


def test_every_job_has_its_own_account(spark: SparkSession, store: Path) -> None:
    before = {(row.query, row.batch) for row in metrics.frame(spark).collect()}
    small, large = (enrich(spark.range(n), store, on="id", memory=MEMORY, name="jobs") for n in (30, 200))
    for df, rows in ((small, 30), (large, 200), (small, 30)):
        df.write.format("noop").mode("overwrite").save()
        values = metrics.of_job("jobs")
        assert values is not None
        assert (values["rows_in"], values["rows_out"]) == (rows, rows)
    rows = [
        row
        for row in metrics.frame(spark).where("dimension = 'jobs'").orderBy("batch").collect()
        if (row.query, row.batch) not in before
    ]
    assert [(row.query, row.rows_in) for row in rows] == [("job", 30), ("job", 200), ("job", 30)]
    again = metrics.of("job", rows[1].batch)
    assert again is not None
    assert again["rows_in"] == 200
    assert large.rdd.count() == 200
    values = metrics.of_job("jobs")
    assert values is not None
    assert values["rows_in"] == 200


def test_counts_are_whole_numbers(spark: SparkSession, store: Path) -> None:
    enrich(spark.range(10), store, on="id", memory=MEMORY).collect()
    kinds = {field.name: field.dataType for field in metrics.frame(spark).schema.fields}
    whole = ("batch", "rows_in", "rows_out", "hits", "bytes_read", "cache_bytes", "master_version", "tasks", "carried")
    assert {kinds[name] for name in (*whole, "cache_failures")} == {LongType()}
    assert {kinds[name] for name in ("seconds", "seconds_join", "hit_rate", "carried_oldest_s")} == {DoubleType()}


def test_enrichments_of_one_name_are_added_up(spark: SparkSession, store: Path) -> None:
    """Chained, they run in the same tasks: neither may replace the other."""
    once = enrich(spark.range(50), store, on="id", memory=MEMORY, name="same")
    enrich(once, store, on="id", memory=MEMORY, name="same").write.format("noop").mode("overwrite").save()
    values = metrics.of_job("same")
    assert values is not None
    assert values["rows_in"] == 100


def test_foreach_batch_counts_the_last_run_of_an_enrichment(spark: SparkSession, store: Path, tmp_path: Path) -> None:
    """One enriched DataFrame written twice is one enrichment; two of them in one batch are two."""
    spark.range(40).write.parquet(str(tmp_path / "in"))
    seen: list[tuple[str, int]] = []

    def twice(df: DataFrame, number: int) -> None:
        query = df.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        seen.append((str(query), number))
        enriched = enrich(df, store, on="id", memory=MEMORY, name="one")
        for parts in (3, 1):
            enriched.coalesce(parts).write.format("noop").mode("overwrite").save()
        for _ in range(2):
            part = enrich(df.limit(10), store, on="id", memory=MEMORY, name="two")
            part.write.format("noop").mode("overwrite").save()

    stream = spark.readStream.schema("id long").parquet(str(tmp_path / "in"))
    query = stream.writeStream.foreachBatch(twice).trigger(availableNow=True)
    query.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()
    (key,) = seen
    for name, rows in (("one", 40), ("two", 20)):
        values = metrics.of(*key, name)
        assert values is not None
        assert values["rows_in"] == rows, name


@pytest.mark.parametrize("reads", ["auto", "mapped", "direct"])
def test_tasks_say_how_they_read_r(reads: str, spark: SparkSession, store: Path) -> None:
    name = f"reads {reads}"
    both = [(store, "id", ["v"]), (store, {"v": "id"}, ["v"])]
    star = enrich_star(spark.range(20), both, memory=MEMORY, reads=reads)
    for df in (enrich(spark.range(20), store, on="id", memory=MEMORY, name=name, reads=reads), star):
        df.write.format("noop").mode("overwrite").save()
        values = metrics.of_job()
        assert values is not None
        assert values["reading"] == ("direct" if reads == "direct" else "mapped")
        expected = "which is little" if reads == "auto" else f"reads='{reads}' was asked for"
        assert expected in values["reading_why"]
        assert isinstance(values["reads"], int)
    (row,) = metrics.frame(spark).where(f"dimension = '{name}'").collect()
    assert (row.reading, row.reading_why) == (values["reading"], values["reading_why"])


def test_executors_may_read_in_different_ways() -> None:
    store = _Store()
    for partition, reads in enumerate(("mapped", "direct", "mapped")):
        store.add(TaskMetrics("q", 1, partition, "r", reading=reads, reading_why=f"{partition}").to_json(0))
    summary = store.batch("q", 1, "r")
    assert summary is not None
    assert (summary["reading"], summary["reading_why"]) == ("direct, mapped", "2")


def test_cache_failures_are_counted() -> None:
    store = _Store()
    for partition, reason in enumerate(("", "No space left on device", "")):
        task_metrics = TaskMetrics("q", 1, partition, "r", cache_failures=2 * bool(reason), last_cache_failure=reason)
        store.add(task_metrics.to_json(0))
    summary = store.batch("q", 1, "r")
    assert summary is not None
    assert (summary["cache_failures"], summary["last_cache_failure"]) == (2, "No space left on device")


def test_the_store_is_bounded() -> None:
    store = _Store()
    for batch in range(3000):
        store.add(TaskMetrics("q", batch, 0, "r", rows_in=1).to_json(0))
    assert len(store) == 1000
    assert store.batch("q", 1999, None) is None
    assert store.batch("q", 2000, None) is not None
    for task in range(60_000):
        store.add(TaskMetrics("wide", task // 20_000, task % 20_000, "r", rows_in=1).to_json(0))
    assert store.batch("wide", 0, None) is None
    last = store.batch("wide", 2, None)
    assert last is not None
    assert last["tasks"] == 20_000
    assert store._records == sum(len(run) for runs in store._batches.values() for run in runs.values())


def test_attempts_replace_and_parts_add_up() -> None:
    store = _Store()
    for attempt, rows in ((1, 10), (1, 20), (2, 5), (2, 6), (3, 7)):
        store.add(TaskMetrics("q", 1, 0, "r", rows_in=rows, attempt=attempt).to_json(0))
        store.add(TaskMetrics("q", 1, 1, "r", rows_in=1000).to_json(0))
        values = store.batch("q", 1, "r")
        assert values is not None
        assert values["tasks"] == 2
    assert values["rows_in"] == 5007


def test_a_run_that_came_late_does_not_count() -> None:
    store = _Store()
    for execution, rows in ((5, 10), (7, 20), (5, 30)):
        store.add(TaskMetrics("q", 1, 0, "r", rows_in=rows, execution=execution).to_json(0))
    values = store.batch("q", 1, None)
    assert values is not None
    assert (values["rows_in"], values["tasks"]) == (20, 1)


def test_one_accumulator_for_all_enrichments(spark: SparkSession, store: Path) -> None:
    enrich(spark.range(1), store, on="id", memory=MEMORY)
    before = len(accumulators._accumulatorRegistry)
    for session in (spark, spark.newSession()):
        for _ in range(10):
            enrich(session.range(1), store, on="id", memory=MEMORY)
    assert len(accumulators._accumulatorRegistry) == before
