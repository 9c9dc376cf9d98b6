"""What workers do with the rows of an enrichment is what Spark would have done; whatever else is left to Spark."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import semistream
from semistream.spark import enrich, enrich_star
from semistream.spark.fusing import Fused, NotFused, fused, stored_schema
from semistream.spark.mapping import map_batches
from semistream.spark.tasks import JoinTask
from semistream.testing import assert_same_rows

KEYS = 60


def _some(values: list[object]) -> list[object]:
    return [None if at % 7 == 3 else values[at % len(values)] for at in range(KEYS)]


MASTER = pa.table(
    {
        "k": range(KEYS),
        "flag": pa.array(_some([True, False]), pa.bool_()),
        "small": pa.array(_some([-3, 0, 5]), pa.int16()),
        "long": pa.array(_some([-(2**62), 7, 2**62]), pa.int64()),
        "text": pa.array(_some(["", "a", "A", "é", "z z", "\U0001f600", "\uffff"]), pa.string()),
        "other": pa.array(_some(["a", "é", ""]), pa.string()),
        "raw": pa.array(_some([b"", b"\x00", b"\x7f", b"\xff"]), pa.binary()),
        "day": pa.array(_some([date(1950, 1, 1), date(2024, 2, 29)]), pa.date32()),
        "when": pa.array(_some([datetime(2024, 5, 1, 12, tzinfo=UTC), datetime(1965, 1, 1, tzinfo=UTC)])),
        "price": pa.array(_some([Decimal("1.50"), Decimal("-2.25")]), pa.decimal128(10, 2)),
        "ratio": pa.array(_some([0.0, -0.0, float("nan"), 1.5]), pa.float64()),
    }
)
MASTER = MASTER.set_column(8, "when", MASTER["when"].cast(pa.timestamp("us", tz="UTC")))


@pytest.fixture(scope="module")
def enriched(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> DataFrame:
    store = tmp_path_factory.mktemp("master") / "r"
    semistream.build_pages(MASTER, store, on="k", page_rows=16)
    stream = spark.range(0, 200, numPartitions=2).selectExpr("id AS seq", "id % 70 AS k", "CAST(id % 5 AS INT) AS n")
    return enrich(stream, store, on="k", memory="2MB")


def _chain(found: Fused, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for stage in found.stages:
        batches = stage(batches)
    for batch in batches:
        assert batch.schema.equals(schema)
        yield batch


def by_workers(df: DataFrame) -> tuple[Fused, pa.Table]:
    """What the stages make of the source."""
    found = fused(df)
    stages = Fused(None, found.stages)  # type: ignore[arg-type]  # a DataFrame does not travel
    made = map_batches(found.source, partial(_chain, stages, stored_schema(df)), df.schema, "stages")
    return found, made.toArrow()


def check(df: DataFrame) -> pa.Table:
    found, rows = by_workers(df)
    # Nothing of the enrichment is left for Spark.
    assert "MapInArrow" not in found.source._jdf.queryExecution().analyzed().toString()
    expected = df.toArrow()
    assert_same_rows(rows, expected)
    return expected


C = F.col
CONDITIONS = {
    "whole numbers": "long > 7",
    "a wider number": "long <= CAST(5 AS SHORT)",
    "a wider column": "n < k",
    "texts": "text >= 'A' AND text < 'é'",
    "two columns": "text = other",
    "not equal": "text != 'a'",
    "bytes": "raw >= X'7F'",
    "dates": "day = DATE'2024-02-29'",
    "a date as text": "day > '1999-12-31'",
    "timestamps": "when < TIMESTAMP'1970-01-01 00:00:00'",
    "decimals": "price = CAST('1.50' AS DECIMAL(10, 2))",
    "truth values": "flag = false",
    "a column": "flag",
    "not a column": "NOT flag",
    "null-safe": "text <=> 'a'",
    "null-safe null": "small <=> CAST(NULL AS SHORT)",
    "null-safe columns": "NOT (text <=> other)",
    "equal to null": "long = NULL",
    "null": "ratio IS NULL OR when IS NULL",
    "not null": "price IS NOT NULL AND NOT flag IS NULL",
    "in": "text IN ('a', 'é', '')",
    "not in": "long NOT IN (7, 8)",
    "in with null": "text IN ('a', NULL)",
    "not in with null": "text NOT IN ('a', NULL)",
    "only null": "NOT (k IN (NULL))",
    "between": "k BETWEEN 3 AND 30",
    "always": "true",
    "never": "CAST(NULL AS BOOLEAN)",
    "kleene": "(flag AND long > 0) OR NOT (small < CAST(0 AS SHORT) OR flag)",
    "in SQL": "text BETWEEN 'a' AND 'é' OR k BETWEEN 2 AND 5",
}


def _random_conditions() -> list[str]:
    """Nested at random, so that every kind of value meets null on either side."""
    dice = random.Random(1)

    def nested(depth: int) -> str:
        if not depth:
            return f"({dice.choice(list(CONDITIONS.values()))})"
        left, right = nested(depth - 1), nested(depth - 1)
        return dice.choice([f"({left} AND {right})", f"({left} OR {right})", f"(NOT {left})"])

    return [nested(dice.choice([1, 2, 3])) for _ in range(30)]


def test_conditions_mean_what_they_mean_to_spark(enriched: DataFrame) -> None:
    joined = enriched.toArrow().combine_chunks().to_batches()[0]
    conditions = [*CONDITIONS.values(), *_random_conditions()]
    named = [F.expr(condition).alias(str(at)) for at, condition in enumerate(conditions)]
    answers = enriched.select("seq", *named).toArrow()
    for at, condition in enumerate(conditions):
        (stage,) = fused(enriched.filter(condition).select("seq")).stages
        got = stage.selection.on(joined.select(stage.selection.given)).column(0).to_pylist()
        wanted = answers.filter(answers[str(at)])["seq"].to_pylist()
        assert sorted(got) == sorted(wanted), condition


def test_columns_are_chosen_renamed_and_added(spark: SparkSession, enriched: DataFrame) -> None:
    frame = enriched.drop("raw").withColumnRenamed("text", "a.b").withColumn("n2", C("n")).withColumn("n", C("seq"))
    frame = frame.filter(C("n2") > 1).withColumns({"from": F.lit("here"), "none": F.lit(None).cast("date")})
    rows = check(frame.filter(C("n2") < 4).alias("x").select("`a.b`", "n", "when", "none", "from", "ratio"))
    assert rows.column_names == ["a.b", "n", "when", "none", "from", "ratio"]
    assert 0 < rows.num_rows < 200
    enriched.createOrReplaceTempView("joined")
    check(spark.sql("SELECT u, k FROM (SELECT k, text AS u, 1 AS one FROM joined WHERE n = 2) t WHERE one = 1"))
    check(enriched)


def joined_columns(found: Fused) -> list[list[str]]:
    """The columns that the joins of each stage give."""
    columns = []
    for stage in found.stages:
        work = stage.work._work
        assert isinstance(work, JoinTask)
        columns.append([name for dimension in work.dimensions for name in dimension.request.spec.select or ()])
    return columns


def test_columns_that_are_dropped_are_not_joined(spark: SparkSession, enriched: DataFrame, tmp_path: Path) -> None:
    for frame, wanted in (
        (enriched.select("text", "seq"), ["text"]),
        (enriched.filter("long > 7").drop("text", "raw").select("n", "ratio"), ["long", "ratio"]),
        (enriched.select("n"), []),
        (enriched, [name for name in MASTER.column_names if name != "k"]),
    ):
        found, _ = by_workers(frame)
        assert joined_columns(found) == [wanted]
        check(frame)
    # A column by which another dimension is joined is needed, whoever else wants it.
    semistream.build_pages(pa.table({"id": range(40), "v": range(40), "x": range(40)}), tmp_path / "a", on="id")
    semistream.build_pages(pa.table({"v": range(30), "w": range(30), "x": range(30)}), tmp_path / "b", on="v")
    dimensions = [(tmp_path / "a", "id", None), (tmp_path / "b", "v", None)]
    star = enrich_star(spark.range(50), dimensions, memory="4MB")
    for frame, wanted in (
        (star.select("w"), ["v", "w"]),
        (star.select("x_right", "id"), ["v", "x"]),
        (star.select("x"), ["v", "x"]),
    ):
        found, _ = by_workers(frame)
        assert joined_columns(found) == [wanted]
        check(frame)
    # What a column is called may depend on those before it, so nothing is left out where a later key has such a name.
    semistream.build_pages(pa.table({"id": range(30), "y": range(30)}), tmp_path / "c", on="id")
    named = [*dimensions, (tmp_path / "c", {"x_right": "id"}, None)]
    frame = enrich_star(spark.range(50), named, memory="6MB").select("y")
    found, _ = by_workers(frame)
    assert joined_columns(found) == [["v", "x", "w", "x", "y"]]
    check(frame)


LEFT_TO_SPARK: dict[str, tuple[Callable[[DataFrame], DataFrame], str]] = {
    "arithmetic": (lambda df: df.filter(C("k") % 2 == 0), "left to Spark"),
    "floats": (lambda df: df.filter(C("ratio") == 0.0), "double is left to Spark"),
    "float in a list": (lambda df: df.filter(C("ratio").isin(0.0, 1.5)), "left to Spark"),
    "a function": (lambda df: df.select(F.upper("text").alias("u")), "is computed"),
    "decimals of other scale": (lambda df: df.filter(C("price") > F.lit(Decimal("1.005"))), "left to Spark"),
    "a collation": (lambda df: df.filter(F.collate("text", "UTF8_LCASE") == "a"), "left to Spark"),
    "a cast": (lambda df: df.select(C("k").cast("string").alias("k")), "is computed"),
    "a narrower number": (lambda df: df.filter(C("long").cast("short") == 7), "left to Spark"),
    "order of truth values": (lambda df: df.filter(C("flag") > F.lit(False)), "left to Spark"),
    "luck": (lambda df: df.filter(F.rand() < 2), "left to Spark"),
    "the clock": (lambda df: df.withColumn("now", F.current_timestamp()), "is computed"),
    "coalesce": (lambda df: df.coalesce(1), "Repartition comes after"),
    "union": (lambda df: df.union(df), "Union comes after"),
    "an aggregate": (lambda df: df.groupBy("n").count(), "Aggregate comes after"),
    "rows that are kept": (lambda df: df.select("seq").persist(StorageLevel.DISK_ONLY), "Spark keeps them"),
    "other Python": (lambda df: df.mapInArrow(lambda batches: batches, df.schema), "is not an enrichment"),
}


@pytest.mark.parametrize("name", LEFT_TO_SPARK)
def test_what_is_left_to_spark(enriched: DataFrame, name: str) -> None:
    change, why = LEFT_TO_SPARK[name]
    changed = change(enriched)
    with pytest.raises(NotFused, match=why):
        fused(changed)
    changed.unpersist()


def test_no_enrichment(spark: SparkSession) -> None:
    with pytest.raises(NotFused, match="Range comes after the enrichment, or there is none"):
        fused(spark.range(3))


def test_chains_are_one_pass_where_they_can_be(spark: SparkSession, tmp_path: Path) -> None:
    semistream.build_pages(pa.table({"id": range(40), "v": range(40)}), tmp_path / "a", on="id", page_rows=16)
    semistream.build_pages(pa.table({"v": range(30), "w": range(30)}), tmp_path / "b.c", on="v", page_rows=16)
    first = enrich(spark.range(50), tmp_path / "a", on="id", how="inner", memory="2MB")
    second = enrich(first.filter("v > 3").withColumnRenamed("id", "the id"), tmp_path / "b.c", on="v", memory="2MB")
    found, _ = by_workers(second.filter("w IS NULL"))
    assert len(found.stages) == 2
    assert found.label.count("enrich(") == 2
    assert check(second.filter("w IS NULL").select("the id", "w")).num_rows == 10
    # The same join twice in one process would be one join; Spark gives each a process of its own.
    twice = enrich(enrich(spark.range(50), tmp_path / "a", "id", "semi"), tmp_path / "a", "id", "semi")
    assert len(fused(twice).stages) == 1
    # "auto" opens its join late, so another's might be taken for one that is not used any more.
    late = enrich(enrich(spark.range(50), tmp_path / "a", "id", algorithm="auto"), tmp_path / "b.c", on="v")
    assert len(fused(late).stages) == 1
    star = enrich_star(spark.range(50), [(tmp_path / "a", "id", None), (tmp_path / "b.c", "v", ["w"])], memory="4MB")
    check(star.select("w", "id"))


def test_a_name_like_ours_is_not_enough(spark: SparkSession) -> None:
    def impostor(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return batches

    impostor.__name__ = "enrich(nothing)"
    with pytest.raises(NotFused, match="is not an enrichment"):
        fused(spark.range(3).mapInArrow(impostor, "id long"))
