"""Enriching DataFrames: exact for every operator, any schema, batch or stream; refused before a query starts."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.listener import StreamingQueryListener
from pyspark.sql.streaming.query import StreamingQuery
from tests.spark.queries import until

import semistream
from semistream.algorithms.registry import ALGORITHMS
from semistream.errors import BudgetError, ConfigError, KeyTypeError, SchemaError, StoreError, UnknownAlgorithmError
from semistream.lab.workloads.relation import master_batches, stream_batches
from semistream.sealed import read_sealed, sealed
from semistream.spark import enrich, enrich_star, metrics
from semistream.spark.cleanup import remove_caches
from semistream.testing import assert_same_rows, reference_join

N_KEYS = 4000
SCHEMA = "k long, seq long, qty int"
MEMORY = "8MB"


@pytest.fixture(scope="module")
def relation() -> pa.Table:
    return pa.Table.from_batches(master_batches(N_KEYS, 1, repeat=True)).select(["k", "m01", "m02", "m03"])


@pytest.fixture(scope="module")
def stream() -> pa.Table:
    table = pa.Table.from_batches(stream_batches(6000, int(N_KEYS * 1.2), 0.9, 2))
    keys = [None if i % 97 == 0 else key for i, key in enumerate(table["k"].to_pylist())]
    return pa.table({"k": pa.array(keys, pa.int64()), "seq": table["seq"], "qty": table["qty"]})


@pytest.fixture(scope="module")
def store(relation: pa.Table, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("master") / "r"
    semistream.build_pages(relation, path, on="k", page_rows=64)
    return path


@pytest.fixture(scope="module")
def files(stream: pa.Table, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stream")
    for i in range(4):
        pq.write_table(stream.slice(i * 1500, 1500), folder / f"{i}.parquet")
    return folder


def _reading(spark: SparkSession, files: Path) -> DataFrame:
    return spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(files))


def _run(df: DataFrame, folder: Path) -> tuple[pa.Table, StreamingQuery]:
    writer = df.writeStream.format("parquet").option("path", str(folder / "out"))
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()
    return pq.read_table(folder / "out"), query


def _batch(df: DataFrame) -> pa.Table:
    return df.toArrow()


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
def test_every_operator(algorithm: str, spark: SparkSession, store: Path, stream: pa.Table, relation: pa.Table) -> None:
    df = spark.createDataFrame(stream).repartition(3)
    result = _batch(enrich(df, store, on="k", memory=MEMORY, algorithm=algorithm))
    assert_same_rows(result, reference_join(stream, relation, "k", "left"))


@pytest.mark.parametrize("shuffle", ["none", "key"])
@pytest.mark.parametrize("how", ["inner", "left", "semi", "anti"])
def test_streaming(
    how: str,
    shuffle: str,
    spark: SparkSession,
    store: Path,
    files: Path,
    stream: pa.Table,
    relation: pa.Table,
    tmp_path: Path,
) -> None:
    result, _ = _run(enrich(_reading(spark, files), store, on="k", how=how, memory=MEMORY, shuffle=shuffle), tmp_path)
    assert_same_rows(result, reference_join(stream, relation, "k", how))


@pytest.mark.parametrize("algorithm", ["ssbj", pytest.param("meshjoin", marks=pytest.mark.thorough)])
def test_max_delay_carries_over_and_leaves_nothing(
    algorithm: str, spark: SparkSession, store: Path, files: Path, stream: pa.Table, relation: pa.Table, tmp_path: Path
) -> None:
    df = enrich(
        _reading(spark, files),
        store,
        on="k",
        memory="1MB" if algorithm == "meshjoin" else "1.2MB",
        algorithm=algorithm,
        max_delay="60s",
        checkpoint=tmp_path / "checkpoint",
        shards=2,
    )
    result, query = _run(df, tmp_path)
    assert_same_rows(result, reference_join(stream, relation, "k", "left"))
    accounts = [metrics.of(str(query.id), progress.batchId) for progress in query.recentProgress]
    assert any(values and values["carried"] for values in accounts), "no tuple was carried over: the test shows nothing"


def test_ticks_make_progress_when_no_data_arrives(
    spark: SparkSession, store: Path, files: Path, stream: pa.Table, relation: pa.Table, tmp_path: Path
) -> None:
    df = enrich(
        _reading(spark, files),
        store,
        on="k",
        memory="1MB",
        algorithm="meshjoin",
        max_delay="2s",
        checkpoint=tmp_path / "checkpoint",
        shards=2,
    )
    writer = df.writeStream.format("parquet").option("path", str(tmp_path / "out"))
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    expected = reference_join(stream, relation, "k", "left")
    sink = spark.read.schema(df.schema)
    try:
        written = (tmp_path / "out" / "_spark_metadata").exists
        assert until(lambda: written() and sink.parquet(str(tmp_path / "out")).count() == expected.num_rows)
    finally:
        query.stop()
    assert_same_rows(_batch(sink.parquet(str(tmp_path / "out"))), expected)


def test_any_column_passes_through(spark: SparkSession, tmp_path: Path) -> None:
    """Nested, decimal, timestamp and binary columns, on both sides, with nulls in all of them."""
    ddl = (
        "k string, d decimal(20,3), t timestamp, n timestamp_ntz, b binary, day date, f float, flag boolean, "
        "tags array<string>, attributes map<string, int>, place struct<lat: double, names: array<string>>, tiny byte"
    )
    when = datetime(2024, 2, 29, 12, 30, tzinfo=UTC)
    row = (
        "kéy",
        Decimal("12.345"),
        when,
        when.replace(tzinfo=None),
        b"\x00\xff",
        date(2024, 1, 1),
        1.5,
        True,
        ["a", None],
        {"x": 1, "y": None},
        (1.0, ["p"]),
        3,
    )
    df = spark.createDataFrame([row, (*row[:1], *[None] * 11), (None, *row[1:])], ddl)
    master = df.select(F.col("k"), *(F.col(name).alias(f"m_{name}") for name in df.columns[1:])).where("k is not null")
    semistream.build_pages(master.limit(1).toArrow(), tmp_path / "r", on="k")
    result = enrich(df, tmp_path / "r", on="k", memory=MEMORY)
    assert result.schema.fields[: len(df.columns)] == df.schema.fields
    assert [field.dataType for field in result.schema.fields[len(df.columns) :]] == [
        field.dataType for field in master.schema.fields[1:]
    ]
    expected = df.join(master.limit(1), "k", "left").select(result.columns)
    assert_same_rows(_batch(result), _batch(expected))


@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
def test_timestamp_key(zone: str, spark: SparkSession, tmp_path: Path) -> None:
    """A store written in one time zone is joined in another: a timestamp is a moment."""
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        keys = pa.array([1_000_000, 2_000_000, None], pa.timestamp("us", tz="UTC"))
        semistream.build_pages(pa.table({"t": keys, "v": [1, 2, 3]}), tmp_path / "r", on="t")
        df = spark.sql("select timestamp_micros(2000000) t union all select timestamp_micros(5) t")
        rows = enrich(df, tmp_path / "r", on="t", memory=MEMORY).select("v").collect()
        assert sorted(rows, key=str) == [(2,), (None,)]
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)


def test_renamed_and_composite_keys(spark: SparkSession, tmp_path: Path) -> None:
    master = pa.table({"country": ["de", "de", "fr"], "zip": [1, 2, 1], "city": ["A", "B", "C"]})
    semistream.build_pages(master, tmp_path / "r", on=["country", "zip"])
    df = spark.createDataFrame([("de", 2, 5), ("fr", 1, 6), ("fr", 2, 7)], "land string, plz long, city int")
    joined = enrich(df, tmp_path / "r", on={"land": "country", "plz": "zip"}, memory=MEMORY)
    assert joined.columns == ["land", "plz", "city", "city_right"]
    assert sorted(row.city_right or "" for row in joined.collect()) == ["", "B", "C"]


def test_empty_inputs(spark: SparkSession, store: Path, tmp_path: Path) -> None:
    df = spark.createDataFrame([], SCHEMA)
    assert enrich(df, store, on="k", memory=MEMORY).count() == 0
    semistream.build_pages(
        pa.table({"k": pa.array([], pa.int64()), "v": pa.array([], pa.int32())}), tmp_path / "r", on="k"
    )
    df = spark.range(5).withColumnRenamed("id", "k")
    assert enrich(df, tmp_path / "r", on="k", memory=MEMORY).where("v is null").count() == 5


def test_empty_micro_batches(spark: SparkSession, store: Path, files: Path, relation: pa.Table, tmp_path: Path) -> None:
    """A filter that leaves nothing of some batches."""
    df = _reading(spark, files).where("seq >= 4500")
    result, _ = _run(enrich(df, store, on="k", how="inner", memory=MEMORY), tmp_path)
    rows = pq.read_table(files).filter(pa.compute.field("seq") >= 4500)
    assert_same_rows(result, reference_join(rows, relation, "k", "inner"))


def test_star_is_one_pass(
    spark: SparkSession, stream: pa.Table, relation: pa.Table, store: Path, tmp_path: Path
) -> None:
    sizes = pa.table({"qty": pa.array(range(60), pa.int32()), "size": [f"s{i}" for i in range(60)]})
    semistream.build_pages(sizes, tmp_path / "sizes", on="qty")
    df = spark.createDataFrame(stream)
    result = enrich_star(df, [(store, "k", ["m01"]), (tmp_path / "sizes", "qty", None)], memory="16MB")
    plan = result._jdf.queryExecution().executedPlan().toString()
    assert plan.count("MapInArrow") == 1
    expected = reference_join(reference_join(stream, relation, "k", "left", select=["m01"]), sizes, "qty", "left")
    assert_same_rows(_batch(result), expected)
    chained = enrich(enrich(df, store, "k", select=["m01"], memory=MEMORY), tmp_path / "sizes", "qty", memory=MEMORY)
    assert_same_rows(_batch(chained), expected)


def test_replayed_batch_uses_its_version_of_r(
    spark: SparkSession, relation: pa.Table, files: Path, stream: pa.Table, tmp_path: Path
) -> None:
    """R changes after a batch ran and before it is replayed: the rows are those of the first time."""
    store = tmp_path / "r"
    semistream.build_pages(relation, store, on="k", page_rows=64)
    df = enrich(_reading(spark, files), store, on="k", memory=MEMORY)
    first, _ = _run(df, tmp_path)
    last = max(int(path.name) for path in (tmp_path / "checkpoint" / "commits").iterdir() if path.name.isdigit())
    # As if the driver had died after the last batch's tasks and before its commit: neither log has it.
    for log in (tmp_path / "checkpoint" / "commits", tmp_path / "out" / "_spark_metadata"):
        for path in (log / str(last), log / f".{last}.crc"):
            path.unlink(missing_ok=True)
    changed = relation.set_column(1, "m01", pa.array(np.zeros(relation.num_rows, dtype=np.int64)))
    semistream.build_pages(changed, store, on="k", page_rows=64, overwrite=True)
    _run(enrich(_reading(spark, files), store, on="k", memory=MEMORY), tmp_path)
    again = spark.read.parquet(str(tmp_path / "out")).toArrow()
    assert_same_rows(again, first)
    pq.write_table(stream.slice(0, 100), files / "late.parquet")
    try:
        _run(enrich(_reading(spark, files), store, on="k", memory=MEMORY), tmp_path)
    finally:
        (files / "late.parquet").unlink()
    late = spark.read.parquet(str(tmp_path / "out")).toArrow().num_rows - first.num_rows
    assert late == reference_join(stream.slice(0, 100), changed, "k", "left").num_rows


class _Listener(StreamingQueryListener):
    def __init__(self) -> None:
        self.seen: list[dict[str, float] | None] = []

    def onQueryStarted(self, event: object) -> None:
        pass

    def onQueryProgress(self, event: object) -> None:
        self.seen.append(metrics.of(str(event.progress.id), event.progress.batchId))  # type: ignore[attr-defined]

    def onQueryTerminated(self, event: object) -> None:
        pass


def test_metrics_reach_listener_and_frame(
    spark: SparkSession, store: Path, files: Path, stream: pa.Table, tmp_path: Path
) -> None:
    listener = _Listener()
    spark.streams.addListener(listener)
    try:
        df = enrich(_reading(spark, files), store, on="k", memory=MEMORY, name="master")
        result, query = _run(df, tmp_path)
        assert until(lambda: len(listener.seen) >= 4)
    finally:
        spark.streams.removeListener(listener)
    accounts = [values for values in listener.seen if values]
    assert sum(values["rows_in"] for values in accounts) == stream.num_rows
    assert sum(values["rows_out"] for values in accounts) == result.num_rows
    assert sum(values["null_keys"] for values in accounts) == stream["k"].null_count
    keyed = stream.num_rows - stream["k"].null_count
    assert sum(values["hits"] + values["misses"] for values in accounts) == keyed
    assert accounts[0]["master_version"] == 1
    frame = metrics.frame(spark).where(F.col("query") == str(query.id))
    assert frame.count() == 4
    assert frame.agg(F.sum("rows_in")).first()[0] == stream.num_rows
    assert {row.dimension for row in frame.collect()} == {"master"}


def test_a_stopped_query_leaves_only_its_checkpoint(
    spark: SparkSession, relation: pa.Table, files: Path, tmp_path: Path
) -> None:
    store = tmp_path / "r"
    semistream.build_pages(relation, store, on="k", page_rows=64)
    local = Path(spark.conf.get("spark.local.dir") or "")
    _, query = _run(enrich(_reading(spark, files), store, on="k", memory="1MB"), tmp_path)
    assert until(lambda: not list(local.glob(f"**/semistream/{query.id}")))
    remove_caches(spark, str(query.id))


def test_refused_before_the_query_starts(
    spark: SparkSession, store: Path, files: Path, relation: pa.Table, tmp_path: Path
) -> None:
    df = _reading(spark, files)
    with pytest.raises(StoreError, match=r"there is no master data at .*nowhere.*build_master"):
        enrich(df, tmp_path / "nowhere", on="k")
    with pytest.raises(ConfigError, match="s3:"):
        enrich(df, "s3://bucket/r", on="k")
    with pytest.raises(SchemaError, match="no column 'key'"):
        enrich(df, store, on={"key": "k"})
    with pytest.raises(SchemaError, match="no column 'm99'"):
        enrich(df, store, on="k", select=["m99"])
    with pytest.raises(KeyTypeError, match="string"):
        enrich(df.withColumn("k", F.col("k").cast("string")), store, on="k")
    with pytest.raises(UnknownAlgorithmError, match="sweepjoin"):
        enrich(df, store, on="k", algorithm="sweepjion")
    with pytest.raises(BudgetError, match="64 parsecs"):
        enrich(df, store, on="k", memory="64 parsecs")
    with pytest.raises(BudgetError, match="for each of its 2 tasks") as caught:
        enrich(df, store, on="k", memory=1000)
    least = caught.value.minimum_bytes
    assert least is not None
    enrich(df, store, on="k", memory=least)
    with pytest.raises(BudgetError):
        enrich(df, store, on="k", memory=least - 100)
    with pytest.raises(ConfigError, match="shuffle='sideways'"):
        enrich(df, store, on="k", shuffle="sideways")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="shards=3"):
        enrich(df, store, on="k", shards=3)
    with pytest.raises(ConfigError, match=r"soon.*duration"):
        enrich(df, store, on="k", algorithm="ssbj", max_delay="soon")
    with pytest.raises(ConfigError, match="checkpoint="):
        enrich(df, store, on="k", algorithm="ssbj", max_delay="1s")
    with pytest.raises(ConfigError, match="no option 'colour'"):
        enrich(df, store, on="k", colour="red")
    with pytest.raises(ConfigError, match="no dimension"):
        enrich_star(df, [])
    twice = spark.range(1).selectExpr("id k", "id v", "id v")
    with pytest.raises(SchemaError, match="several columns named 'v'"):
        enrich(twice, store, on="k")


def test_older_format_is_refused(spark: SparkSession, relation: pa.Table, tmp_path: Path) -> None:
    semistream.build_pages(relation, tmp_path / "r", on="k")
    (manifest,) = (tmp_path / "r").glob("v*/manifest.json")
    manifest_fields, _ = read_sealed(manifest)
    manifest.write_bytes(sealed({**manifest_fields, "format_version": 0})[0])
    with pytest.raises(StoreError, match="format version 0"):
        enrich(spark.range(1).withColumnRenamed("id", "k"), tmp_path / "r", on="k")
