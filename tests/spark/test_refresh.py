"""R changes by DataFrames: what a store then holds, and what queries that run make of it."""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.spark.queries import Query, build, patiently, stream

import semistream
from semistream.errors import ConfigError, SchemaError, SemiStreamError
from semistream.master.pages import PageMaster
from semistream.spark import apply_changes, enrich, refresh_master
from semistream.testing import assert_same_rows, reference_join

KEYS = range(5000)


def _rows(store: Path, columns: list[str]) -> pa.Table:
    """All that some key leads to, in R's own types."""
    with closing(PageMaster(store)) as master:
        schema = master.schema
        keys = pa.table({"k": pa.array(KEYS, pa.int64())})
    with semistream.open_join("inlj", master=store, on="k", how="inner", memory="4MB") as join:
        found = [*join.push(keys.to_batches()[0]), *join.drain()]
        table = pa.Table.from_batches(found, join.output_schema)
    return table.select(columns).cast(pa.schema([schema.field(name) for name in columns]))


def _version(store: Path) -> int:
    with closing(PageMaster(store)) as master:
        assert master.version is not None
        return master.version


def _people(tag: str, keys: Any = KEYS) -> pa.Table:
    return pa.table({"k": pa.array(keys, pa.int64()), "name": [f"{tag} {key}" for key in keys]})


def _without(table: pa.Table, keys: list[int]) -> pa.Table:
    return table.filter(pa.compute.invert(pa.compute.is_in(table["k"], pa.array(keys, pa.int64()))))


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return build(_people("old"), tmp_path / "r")


def _feed(spark: SparkSession, rows: list[tuple[int, str, str, int]]) -> DataFrame:
    return spark.createDataFrame(rows, "k long, name string, _change_type string, _commit_version long")


# ------------------------------------------------------------------------------------------------ one DataFrame


def test_a_change_feed(spark: SparkSession, store: Path) -> None:
    changes = _feed(
        spark,
        [
            (7, "old 7", "update_preimage", 3),
            (7, "seven", "update_postimage", 3),
            (7, "seven", "update_preimage", 4),
            (7, "SEVEN", "update_postimage", 4),
            (8, "old 8", "delete", 4),
            (9, "more", "insert", 5),
        ],
    )
    for _ in range(2):
        with closing(refresh_master(store, changes.repartition(3), source="feed")) as master:
            assert (master.version, len(master.runs), master.origin.position) == (2, 1, 5)
    expected = [_without(_people("old"), [7, 8]), _people("x", [7, 9]).set_column(1, "name", [["SEVEN", "more"]])]
    assert_same_rows(_rows(store, ["k", "name"]), pa.concat_tables(expected))
    assert not [path.name for path in store.iterdir() if path.name.startswith(".") and path.is_dir()]


def test_rows_and_deletes_of_many_types(spark: SparkSession, tmp_path: Path) -> None:
    """Spark has no zones but its own, no unsigned numbers and no views; the store keeps the types it was built with."""
    schema = pa.schema(
        [
            ("k", pa.int64()),
            ("at", pa.timestamp("ms", "Europe/Berlin")),
            ("local", pa.timestamp("us")),
            ("day", pa.date32()),
            ("n", pa.uint32()),
            ("price", pa.decimal128(12, 2)),
            ("text", pa.large_string()),
            ("kind", pa.dictionary(pa.int32(), pa.string())),
            ("tags", pa.list_(pa.string())),
        ]
    )

    def table(keys: list[int], tag: str) -> pa.Table:
        rows = [
            {
                "k": key,
                "at": datetime(2026, 3, 29, 1, 30, key % 60, tzinfo=UTC),
                "local": datetime(2026, 3, 29, 2, 30, key % 60),
                "day": date(2026, 1, 1 + key % 28),
                "n": (1 << 31) + key,
                "price": Decimal(key) / 4 * 100 // 1 / 100,
                "text": f"{tag} {key}",
                "kind": tag if key % 3 else None,
                "tags": [tag, str(key)],
            }
            for key in keys
        ]
        return pa.Table.from_pylist(rows, schema)

    store = tmp_path / "r"
    semistream.build_pages(table(list(range(400)), "old"), store, on="k", page_rows=64).close()
    new = table([5, 5, 900], "new")
    plain = new.set_column(4, "n", new["n"].cast(pa.int64())).set_column(6, "text", new["text"].cast(pa.string()))
    plain = plain.set_column(7, "kind", new["kind"].cast(pa.string()))
    df = spark.createDataFrame(plain).selectExpr(
        "k", "at", "cast(local as timestamp_ntz) local", "day", "n", "price", "text", "kind", "tags"
    )
    gone = spark.createDataFrame([(6,), (7,)], "k long")
    refresh_master(store, df, deletes=gone).close()
    expected = pa.concat_tables([table([key for key in range(400) if key not in (5, 6, 7)], "old"), new])
    names = [name for name in schema.names if name != "kind"]
    assert_same_rows(_rows(store, names), expected.select(names))


def test_what_does_not_fit_changes_nothing(spark: SparkSession, store: Path, tmp_path: Path) -> None:
    def refused(error: type[SemiStreamError], words: str, df: DataFrame | None, **more: Any) -> None:
        with pytest.raises(error, match=words):
            refresh_master(store, df, **more)
        assert _version(store) == 1
        assert not [path.name for path in store.iterdir() if path.name.startswith(".") and path.is_dir()]

    good = spark.createDataFrame([(1, "x")], "k long, name string")
    refused(SchemaError, "no columns named 'name'", good.withColumnRenamed("name", "nam"))
    refused(SchemaError, "'city', which R does not have", good.selectExpr("*", "'c' city"))
    refused(SchemaError, "'name' of the changes has the type int", good.selectExpr("k", "7 name"))
    refused(SchemaError, "'k' of the changes has the type string", good.selectExpr("'7' k", "name"))
    refused(SemiStreamError, "could not be read.*1.5", good.selectExpr("cast(1.5 as double) k", "name"))
    refused(SemiStreamError, "does not fit|do not fit", _feed(spark, [(7, "never", "delete", 1)]))
    refused(ConfigError, "nothing to apply", None)
    query = Query(spark, tmp_path / "query", "k long, name string")
    refused(ConfigError, "foreachBatch", query.reading())
    with pytest.raises(ConfigError, match="refresh_master"):
        apply_changes(store)(good, 0)


# --------------------------------------------------------------------------------------------- a stream of changes


def test_batches_of_a_stream_are_applied_once(spark: SparkSession, store: Path, tmp_path: Path) -> None:
    """After a crash Spark gives the last batch again; rows that were added must not be added twice."""
    query = Query(spark, tmp_path / "query", "k long, name string, _change_type string, _commit_version long")

    def run() -> None:
        def again() -> None:
            writer = query.reading().writeStream.foreachBatch(apply_changes(store))
            started = writer.option("checkpointLocation", str(query.checkpoint)).trigger(availableNow=True).start()
            assert started.awaitTermination(120)

        patiently(again)

    def added(key: int, name: str, commit: int) -> pa.Table:
        return pa.table({"k": [key], "name": [name], "_change_type": ["insert"], "_commit_version": [commit]})

    # A commit may be cut into two batches.
    query.feed(added(1, "a", 4), added(2, "b", 4))
    run()
    assert _version(store) == 3
    commits = query.checkpoint / "commits"
    for path in (commits / "1", commits / ".1.crc"):
        path.unlink()
    query.feed(added(3, "c", 5))
    run()
    assert _version(store) == 4
    expected = pa.table({"k": [1, 2, 3], "name": ["a", "b", "c"]})
    assert_same_rows(_rows(store, ["k", "name"]), pa.concat_tables([_people("old"), expected]))


# --------------------------------------------------------------------------------------------- queries that run


FILES = stream(4)
HOT = [int(key) for key in pa.concat_tables(FILES)["k"].value_counts().field("values").to_pylist()[:40]]


def _refreshed(spark: SparkSession, store: Path, relation: pa.Table, number: int) -> pa.Table:
    """R after some of the keys that are asked for have gone, and others have got new rows."""
    goes, comes = HOT[number::4], HOT[number + 1 :: 4]
    rows = _people(f"turn {number}", [key for key in comes for _ in range(1 + number)])
    gone = spark.createDataFrame([(key,) for key in goes], "k long")
    refresh_master(store, spark.createDataFrame(rows), deletes=gone).close()
    return pa.concat_tables([_without(relation, goes + comes), rows])


def test_every_batch_has_its_own_version(spark: SparkSession, store: Path, tmp_path: Path) -> None:
    """R changes between batches; at last one is repeated, when R has changed once more."""
    query = Query(spark, tmp_path / "query")
    relation = _people("old")
    expected = [reference_join(FILES[0], relation, "k", "left")]
    query.feed(FILES[0])
    running = query.begin(enrich(query.reading(), store, on="k", memory="4MB"))
    try:
        for number, file in enumerate(FILES[1:]):
            relation = _refreshed(spark, store, relation, number)
            query.feed(file)
            running.processAllAvailable()
            expected.append(reference_join(file, relation, "k", "left"))
    finally:
        running.stop()
    assert _version(store) == 4
    refresh_master(store, spark.createDataFrame(_people("too late", HOT))).close()
    query.forget_last_batch()
    query.finish(enrich(query.reading(), store, on="k", memory="4MB"))
    assert_same_rows(query.rows(), pa.concat_tables(expected))


def test_tuples_that_wait_keep_their_version(spark: SparkSession, store: Path, tmp_path: Path) -> None:
    query = Query(spark, tmp_path / "query")
    relation, expected = _people("old"), []
    for number, file in enumerate(FILES[:3]):
        query.feed(file)
        query.one_batch(query.carrying(store))
        expected.append(reference_join(file, relation, "k", "left"))
        relation = _refreshed(spark, store, relation, number)
    assert query.count() < sum(table.num_rows for table in expected), "somebody waits"
    query.finish(query.carrying(store))
    assert_same_rows(query.rows(), pa.concat_tables(expected))
