"""A session that runs for weeks: queries come and go, and leave nothing behind."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pyarrow as pa
from pyspark import accumulators
from pyspark.sql import DataFrame, SparkSession
from tests.spark.queries import until

import semistream
from semistream.spark import cleanup, enrich, metrics
from semistream.spark.records import done_before

ROUNDS = 2
MEMORY = "2MB"


def _sizes() -> dict[str, int]:
    return {
        "accumulators": len(accumulators._accumulatorRegistry),
        "watchers": len(cleanup._WATCHERS),
        "threads": threading.active_count(),
        "files": len(os.listdir("/proc/self/fd")),
        "queries": len(metrics.queries()),
    }


def test_nothing_grows(spark: SparkSession, tmp_path: Path) -> None:
    """Short queries in sessions of their own, with `enrich` before the sink and in `foreachBatch`."""
    store, source = tmp_path / "r", tmp_path / "in"
    semistream.build_pages(pa.table({"id": range(20_000), "v": range(20_000)}), store, on="id", page_rows=64)
    spark.range(3000).repartition(3).write.parquet(str(source))
    folders = Path(spark.conf.get("spark.local.dir") or "")
    ids: list[str] = []
    caches: list[Path] = []

    def in_batch(df: DataFrame, _: int) -> None:
        for _ in range(2):
            enrich(df, store, on="id", memory=MEMORY).write.format("noop").mode("overwrite").save()
        query = df.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        caches.extend(folders.glob(f"**/semistream/{query}"))

    def run() -> None:
        session = spark.newSession()
        stream = session.readStream.schema("id long").option("maxFilesPerTrigger", 1).parquet(str(source))
        for enriched in (False, True):
            df = enrich(stream, store, on="id", memory=MEMORY) if enriched else stream
            writer = df.writeStream.format("noop") if enriched else df.writeStream.foreachBatch(in_batch)
            checkpoint = str(tmp_path / f"checkpoint-{len(ids)}")
            query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
            ids.append(str(query.id))
            query.awaitTermination()
            assert metrics.of(ids[-1], 2) is not None, "no task has reported: the test shows nothing"

    def left() -> list[Path]:
        return [folder for query in ids for folder in folders.glob(f"**/semistream/{query}")]

    def pins() -> list[Path]:
        return list((store / "queries").glob("*/*.json"))

    run()
    assert until(lambda: not metrics.queries() and not left())
    assert until(lambda: not pins()), pins()
    before = _sizes()
    for _ in range(ROUNDS):
        run()
    assert len(set(ids)) == 2 * (ROUNDS + 1)
    assert len(set(caches)) == ROUNDS + 1, "queries made no cache files: the test shows nothing"
    assert until(lambda: not left()), left()
    assert until(lambda: not pins()), pins()
    # PySpark itself keeps a thread and its socket for every query with a foreachBatch, and one for Java's finalizer.
    allowed = {name: size + (ROUNDS + 1) * (name in ("threads", "files")) for name, size in before.items()}
    assert until(lambda: all(now <= allowed[name] for name, now in _sizes().items())), (before, _sizes())


def test_versions_are_kept_for_what_is_not_done(tmp_path: Path) -> None:
    """A batch that will be attempted again needs its version; without a checkpoint nothing is attempted again."""
    assert done_before(tmp_path / "gone") is None
    for folder in ("offsets", "commits"):
        (tmp_path / folder).mkdir()
    assert done_before(tmp_path) == 0
    for batch in range(3):
        (tmp_path / "offsets" / str(batch)).touch()
        if batch < 2:
            (tmp_path / "commits" / str(batch)).touch()
    assert done_before(tmp_path) == 2
