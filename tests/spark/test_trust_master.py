"""R is rebuilt, replaced or used in several ways at once: rows of the right R in the right columns, or an error."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from tests.spark.queries import Query, build, outcome, refusal, relation, stream, thorough

from semistream.spark import enrich, metrics
from semistream.testing import assert_same_rows, reference_join

FILES = stream()
S = pa.concat_tables(FILES)
KEYS = range(5000)


def _people(tag: str) -> pa.Table:
    """R with two columns that differ in nothing but their values."""
    keys = pa.array(KEYS, pa.int64())
    return pa.table({"k": keys, "name": [f"{tag} n{k}" for k in KEYS], "city": [f"{tag} c{k}" for k in KEYS]})


PLAIN, CARRYING = {"memory": "4MB"}, {"algorithm": "meshjoin", "memory": "1MB", "max_delay": "1s", "shards": 2}


@pytest.fixture
def query(spark: SparkSession, tmp_path: Path) -> Query:
    return Query(spark, tmp_path / "query")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return build(_people("old"), tmp_path / "r")


@contextmanager
def _running(query: Query, store: Path, **options: Any) -> Iterator[StreamingQuery]:
    """A query that has done the first file and goes on running."""
    query.feed(FILES[0])
    if "max_delay" in options:
        options["checkpoint"] = query.checkpoint
    started = query.begin(enrich(query.reading(), store, on="k", **options))
    try:
        yield started
    finally:
        started.stop()


def _rebuild(table: pa.Table, store: Path) -> str | None:
    """A new version of R; what was said if it is refused. A warning is as good, and the batch then tells more."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return outcome(lambda: build(table, store))


# --------------------------------------------------------------------------------- R rebuilt under a running query


@pytest.mark.parametrize(
    "options",
    [PLAIN, CARRYING, *thorough({"algorithm": "meshjoin", "memory": "1MB"})],
    ids=["index", "carrying", "scan"],
)
def test_columns_of_r_in_another_order(options: dict[str, Any], query: Query, store: Path) -> None:
    new = _people("new")
    with _running(query, store, **options) as running:
        build(new.select(["city", "k", "name"]), store)
        query.feed(FILES[1])
        running.processAllAvailable()
    expected = [reference_join(FILES[0], _people("old"), "k", "left"), reference_join(FILES[1], new, "k", "left")]
    assert_same_rows(query.rows(), pa.concat_tables(expected))


@pytest.mark.parametrize("options", [PLAIN, *thorough(CARRYING)], ids=["index", "carrying"])
@pytest.mark.parametrize("place", [1, *thorough(3)])
def test_column_added_to_r(place: int, options: dict[str, Any], query: Query, store: Path) -> None:
    """Nobody sees it until the query is started again."""
    new = _people("new")
    with _running(query, store, **options) as running:
        build(new.add_column(place, "zip", pa.array([f"z{k}" for k in KEYS])), store)
        query.feed(FILES[1])
        running.processAllAvailable()
    expected = [reference_join(FILES[0], _people("old"), "k", "left"), reference_join(FILES[1], new, "k", "left")]
    assert_same_rows(query.rows(), pa.concat_tables(expected))
    assert "zip" in enrich(query.reading(), store, on="k", **PLAIN).columns


@pytest.mark.parametrize(
    ("change", "options"),
    [
        ("removed", PLAIN),
        ("another type", CARRYING),
        *thorough(
            ("removed", CARRYING),
            ("another type", PLAIN),
            ("key of another type", PLAIN),
            ("key of another type", CARRYING),
        ),
    ],
)
def test_column_of_r_gone_or_of_another_type(change: str, options: dict[str, Any], query: Query, store: Path) -> None:
    """The batch fails before it gives a row, and says which version lacks what."""
    new = _people("new")
    column = "k" if change.startswith("key") else "city"
    if change == "removed":
        new = new.drop_columns(["city"])
    elif change == "another type":
        new = new.set_column(2, "city", pa.array(KEYS, pa.int32()))
    else:
        new = new.set_column(0, "k", pa.array([str(k) for k in KEYS]))
    with _running(query, store, **options) as running:
        before = query.count()
        text = _rebuild(new, store)
        if text is None:
            query.feed(FILES[1])
            text = refusal(running.processAllAvailable, query)
            assert "version 2" in text
    assert column in text
    assert query.count() == before


def test_column_that_is_not_selected_may_go(query: Query, store: Path) -> None:
    new = _people("new").drop_columns(["city"])
    with _running(query, store, select=["name"], **PLAIN) as running:
        build(new, store)
        query.feed(FILES[1])
        running.processAllAvailable()
    expected = [
        reference_join(FILES[0], _people("old"), "k", "left", select=["name"]),
        reference_join(FILES[1], new, "k", "left"),
    ]
    assert_same_rows(query.rows(), pa.concat_tables(expected))


# ------------------------------------------------------------------------ another R at the same path


@pytest.mark.parametrize("algorithm", ["sweepjoin", "auto", *thorough("meshjoin", "inlj")])
def test_store_removed_and_built_again_between_two_jobs(
    algorithm: str, spark: SparkSession, store: Path, tmp_path: Path
) -> None:
    """It is version 1 again, and not the same."""
    df = spark.createDataFrame(S).repartition(2)
    for tag in ("old", "new", "newest"):
        shutil.rmtree(store)
        build(_people(tag), store)
        rows = enrich(df, store, on="k", memory="4MB", algorithm=algorithm).toArrow()
        assert_same_rows(rows, reference_join(S, _people(tag), "k", "left"))


def test_frame_of_an_earlier_store_is_not_answered_from_the_new_one(spark: SparkSession, store: Path) -> None:
    """The frame was made for an R that is gone: an error, or the new rows; never rows of both."""
    df = spark.createDataFrame(S).repartition(2)
    enriched = enrich(df, store, on="k", memory="4MB")
    assert_same_rows(enriched.toArrow(), reference_join(S, _people("old"), "k", "left"))
    shutil.rmtree(store)
    build(_people("new"), store)
    rows: list[pa.Table] = []
    if outcome(lambda: rows.append(enriched.toArrow())) is None:
        assert_same_rows(rows[0], reference_join(S, _people("new"), "k", "left"))


@pytest.mark.parametrize("algorithm", ["sweepjoin", *thorough("meshjoin")])
def test_store_removed_and_built_again_between_two_batches(algorithm: str, query: Query, store: Path) -> None:
    with _running(query, store, memory="4MB", algorithm=algorithm) as running:
        shutil.rmtree(store)
        build(_people("new"), store)
        query.feed(FILES[1])
        running.processAllAvailable()
    expected = [
        reference_join(FILES[0], _people("old"), "k", "left"),
        reference_join(FILES[1], _people("new"), "k", "left"),
    ]
    assert_same_rows(query.rows(), pa.concat_tables(expected))


def test_store_removed_and_built_again_while_tuples_wait(query: Query, store: Path) -> None:
    """They have seen part of an R that is gone: nothing can finish them."""
    query.feed(FILES[0])
    query.one_batch(query.carrying(store))
    before = query.count()
    assert before < FILES[0].num_rows, "nobody waits: the test shows nothing"
    shutil.rmtree(store)
    build(_people("new"), store)
    assert "master data" in refusal(lambda: query.finish(query.carrying(store)), query)
    assert query.count() == before


@pytest.mark.parametrize("algorithm", ["ssbj", *thorough("meshjoin", "rmeshjoin", "ssj")])
def test_parquet_file_rewritten_between_two_jobs(algorithm: str, spark: SparkSession, tmp_path: Path) -> None:
    """Same path, same number of rows, same size: the values differ."""
    df = spark.createDataFrame(S).repartition(2)
    for tag in ("old", "new", "odd"):
        pq.write_table(_people(tag), tmp_path / "r.parquet", compression="none")
        rows = enrich(df, tmp_path / "r.parquet", on="k", memory="4MB", algorithm=algorithm).toArrow()
        assert_same_rows(rows, reference_join(S, _people(tag), "k", "left"))


def test_parquet_folder_with_another_file_between_two_jobs(spark: SparkSession, tmp_path: Path) -> None:
    df = spark.createDataFrame(S).repartition(2)
    (tmp_path / "r").mkdir()
    parts = [_people("one").slice(0, 2500), _people("two").slice(2500)]
    for number in range(2):
        pq.write_table(parts[number], tmp_path / "r" / f"{number}.parquet")
        rows = enrich(df, tmp_path / "r", on="k", memory="4MB", algorithm="meshjoin").toArrow()
        assert_same_rows(rows, reference_join(S, pa.concat_tables(parts[: number + 1]), "k", "left"))


# -------------------------------------------------------------------- one R used in several ways in one session


@pytest.mark.parametrize("algorithm", ["sweepjoin", *thorough("ssbj", "cachejoin", "meshjoin", "auto")])
def test_streams_with_different_columns(algorithm: str, spark: SparkSession, store: Path) -> None:
    """The same worker processes meet them one after the other, and the first again."""
    narrow = S.select(["k", "seq"])
    renamed = S.rename_columns(["k", "number", "amount"])
    typed = S.set_column(2, "qty", S["qty"].cast(pa.string()))
    for table in (S, narrow, renamed, typed, S):
        df = spark.createDataFrame(table).repartition(2)
        rows = enrich(df, store, on="k", memory="4MB", algorithm=algorithm).toArrow()
        assert_same_rows(rows, reference_join(table, _people("old"), "k", "left"))


def test_two_streams_with_different_columns_in_one_job(spark: SparkSession, store: Path) -> None:
    here = enrich(spark.createDataFrame(S), store, on="k", memory="4MB").select("k", "name")
    there = enrich(spark.createDataFrame(S.select(["k"])), store, on="k", memory="4MB").select("k", "name")
    expected = reference_join(S, _people("old"), "k", "left", select=["name"]).select(["k", "name"])
    assert_same_rows(here.union(there).toArrow(), pa.concat_tables([expected, expected]))


def test_two_running_queries_with_different_columns(query: Query, store: Path, spark: SparkSession) -> None:
    other = Query(spark, query.folder / "other")
    query.feed(*FILES)
    other.feed(*FILES)
    started = [
        query.start(enrich(query.reading(), store, on="k", **PLAIN), availableNow=True),
        other.start(enrich(other.reading().drop("qty"), store, on="k", **PLAIN), availableNow=True),
    ]
    for each in started:
        each.awaitTermination()
    assert_same_rows(query.rows(), reference_join(S, _people("old"), "k", "left"))
    assert_same_rows(other.rows(), reference_join(S.drop_columns(["qty"]), _people("old"), "k", "left"))


def test_other_options_of_the_algorithm_are_honoured(spark: SparkSession, store: Path) -> None:
    """A pass over R takes k reads; the first call's k is not the second's, though all worker processes have met it."""
    df = spark.createDataFrame(S).repartition(4)
    reads = {}
    for k in (2, 20):
        rows = enrich(df, store, on="k", memory="4MB", algorithm="meshjoin", name=f"with k={k}", k=k).toArrow()
        assert_same_rows(rows, reference_join(S, _people("old"), "k", "left"))
        values = metrics.of_job(f"with k={k}")
        assert values is not None
        reads[k] = values["reads"]
    assert reads[20] > 5 * reads[2]


def test_another_suffix_and_another_time_zone(spark: SparkSession, tmp_path: Path) -> None:
    """What decides the names and types of the result is part of what a join is found by."""
    moments = pa.array([k * 1_000_000 for k in KEYS], pa.timestamp("us", tz="UTC"))
    table = pa.table({"k": pa.array(KEYS, pa.int64()), "qty": moments})
    store = build(table, tmp_path / "zoned")
    df = spark.createDataFrame(S).repartition(2)
    before = spark.conf.get("spark.sql.session.timeZone")
    try:
        for zone, suffix in (("UTC", "_right"), ("America/New_York", "_right"), ("UTC", "_r")):
            spark.conf.set("spark.sql.session.timeZone", zone)
            stamped = df.withColumn("at", F.timestamp_micros(F.col("seq")))
            rows = enrich(stamped, store, on="k", memory="4MB", suffix=suffix)
            assert rows.columns == ["k", "seq", "qty", "at", f"qty{suffix}"]
            found = rows.selectExpr("k", f"unix_micros(qty{suffix}) t", "unix_micros(at) - seq zero").toArrow()
            assert set(found["zero"].to_pylist()) == {0}
            pairs = zip(found["k"].to_pylist(), found["t"].to_pylist(), strict=True)
            assert {(k, t) for k, t in pairs} == {(k, k * 1_000_000) for k in S["k"].to_pylist()}
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)


# ---------------------------------------------------------------------------- the executor's disk is of no use


@contextmanager
def _unusable(spark: SparkSession, how: str) -> Iterator[None]:
    """The folder in which the executor's workers keep their caches cannot be written to, not even by root."""

    def tell(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import os

        yield from (pa.record_batch({"path": [os.environ["SPARK_LOCAL_DIRS"]]}) for _ in batches)

    (row,) = spark.range(1).repartition(1).mapInArrow(tell, "path string").collect()
    folder, aside = Path(row.path.split(",")[0]) / "semistream", Path(row.path.split(",")[0]) / "semistream-aside"
    if folder.exists():
        folder.rename(aside)
    if how == "a file":
        folder.write_bytes(b"")
    else:
        folder.symlink_to("/proc/self/fdinfo")
    try:
        yield
    finally:
        folder.unlink()
        if aside.exists():
            aside.rename(folder)


@pytest.mark.parametrize("how", ["a file", *thorough("a folder without writing")])
@pytest.mark.parametrize("algorithm", ["sweepjoin", *thorough("ssbj", "auto")])
def test_cache_folder_of_the_executor_is_unusable(
    algorithm: str, how: str, spark: SparkSession, query: Query, tmp_path: Path
) -> None:
    """Caches are soft: without them the join is slower, and exact."""
    table = relation()
    store = build(table, tmp_path / "soft")
    many = pa.concat_tables(stream(1, 30_000))
    query.feed(many)
    with _unusable(spark, how):
        job = enrich(spark.createDataFrame(many).repartition(2), store, on="k", memory="4MB", algorithm=algorithm)
        assert_same_rows(job.toArrow(), reference_join(many, table, "k", "left"))
        query.finish(enrich(query.reading(), store, on="k", memory="4MB", algorithm=algorithm))
    assert_same_rows(query.rows(), reference_join(many, table, "k", "left"))


def test_caches_are_removed_under_a_running_session(spark: SparkSession, store: Path) -> None:
    """As a clean-up of /tmp does it, between two jobs."""
    df = spark.createDataFrame(S).repartition(2)
    for _ in range(3):
        rows = enrich(df, store, on="k", memory="4MB").toArrow()
        assert_same_rows(rows, reference_join(S, _people("old"), "k", "left"))
        for folder in Path(str(spark.conf.get("spark.local.dir"))).rglob("semistream"):
            shutil.rmtree(folder)
