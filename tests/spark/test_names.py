"""Column names: any characters, and case as Spark has it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import LongType, StructField, StructType

import semistream
from semistream.errors import ConfigError, SchemaError
from semistream.spark import build_master, enrich, enrich_star
from semistream.testing import assert_same_rows, reference_join

MEMORY = "8MB"
ODD = ["the.key", "a.b.c", "back`tick", "with space", "ключ", "1st", "*", "per%cent", "_x", "quo'te\"", "semi;colon"]


@pytest.fixture
def case_sensitive(spark: SparkSession) -> Iterator[None]:
    with setting(spark, "spark.sql.caseSensitive", "true"):
        yield


@contextmanager
def setting(spark: SparkSession, name: str, value: str) -> Iterator[None]:
    before = spark.conf.get(name)
    spark.conf.set(name, value)
    try:
        yield
    finally:
        spark.conf.set(name, before or "")


def frame(spark: SparkSession, *names: str, rows: int = 3) -> DataFrame:
    """Row r has the values 10 r, 10 r + 1, …; the first column is r, to be a key."""
    schema = StructType([StructField(name, LongType()) for name in names])
    values = [tuple(r if i == 0 else 10 * r + i for i in range(len(names))) for r in range(rows)]
    return spark.createDataFrame(values, schema)


def store(path: Path, *names: str, rows: int = 2) -> Path:
    columns = {name: [r if i == 0 else -10 * r - i for r in range(rows)] for i, name in enumerate(names)}
    semistream.build_pages(pa.table(columns), path, on=names[0])
    return path


@pytest.mark.parametrize("shuffle", ["none", "key"])
def test_any_characters(shuffle: str, spark: SparkSession, tmp_path: Path) -> None:
    master = pa.table({"k`2": [0, 2], "m.1": [7, 8], "a.b.c": [9, 9], "m 2": ["x", "y"]})
    df = frame(spark, *ODD)
    build_master(spark.createDataFrame(master), tmp_path / "r", on="k`2").close()
    on = {"the.key": "k`2"}
    result = enrich(df, tmp_path / "r", on=on, memory=MEMORY, shuffle=shuffle)  # type: ignore[arg-type]
    assert result.columns == [*ODD, "m.1", "a.b.c_right", "m 2"]
    assert_same_rows(result.toArrow(), reference_join(df.toArrow(), master, on, "left"))


def test_any_characters_in_parquet_and_streams(spark: SparkSession, tmp_path: Path) -> None:
    """Carried over, too, and with the master data read in place."""
    master = pa.table({"k.2": [0, 2], "m.1": [7, 8]})
    pq.write_table(master, tmp_path / "r.parquet")
    df = frame(spark, *ODD)
    df.write.parquet(str(tmp_path / "in"))
    stream = spark.readStream.schema(df.schema).parquet(str(tmp_path / "in"))
    checkpoint = tmp_path / "checkpoint"
    result = enrich(
        stream,
        tmp_path / "r.parquet",
        on={"the.key": "k.2"},
        memory=MEMORY,
        algorithm="meshjoin",
        max_delay="1s",
        checkpoint=checkpoint,
        shards=2,
    )
    writer = result.writeStream.format("parquet").option("checkpointLocation", str(checkpoint))
    writer.trigger(availableNow=True).start(str(tmp_path / "out")).awaitTermination()
    expected = reference_join(df.toArrow(), master, {"the.key": "k.2"}, "left")
    assert_same_rows(spark.read.parquet(str(tmp_path / "out")).toArrow(), expected)


def test_key_and_select_in_any_case(spark: SparkSession, tmp_path: Path) -> None:
    path = store(tmp_path / "r", "CUSTOMER_ID", "City", "Zip")
    df = frame(spark, "customer_id", "amount")
    result = enrich(df, path, on="Customer_ID", select=["CITY", "city", "customer_id"], memory=MEMORY)
    assert result.columns == ["customer_id", "amount", "City"]
    assert sorted(map(tuple, result.collect())) == [(0, 1, -1), (1, 11, -11), (2, 21, None)]
    renamed = enrich(df, path, on={"CUSTOMER_id": "customer_ID"}, shuffle="key", memory=MEMORY)
    assert renamed.columns == ["customer_id", "amount", "City", "Zip"]
    assert renamed.count() == 3


def test_parquet_in_place_in_any_case(spark: SparkSession, tmp_path: Path) -> None:
    pq.write_table(pa.table({"KEY": [0, 1], "V": [5, 6]}), tmp_path / "r.parquet")
    result = enrich(frame(spark, "key"), tmp_path / "r.parquet", on="Key", memory=MEMORY, algorithm="meshjoin")
    assert sorted(map(tuple, result.collect()), key=str) == [(0, 5), (1, 6), (2, None)]


def test_names_that_differ_in_case_get_the_suffix(spark: SparkSession, tmp_path: Path) -> None:
    path = store(tmp_path / "r", "k", "X")
    df = frame(spark, "k", "x")
    result = enrich(df, path, on="k", memory=MEMORY)
    assert result.columns == ["k", "x", "X_right"]
    result.write.parquet(str(tmp_path / "out"))
    assert sorted(map(tuple, spark.read.parquet(str(tmp_path / "out")).select("X", "x_right").collect())) == [
        (1, -1),
        (11, -11),
        (21, None),
    ]
    with pytest.raises(SchemaError, match=r"'X' would be named 'X_right'.*suffix"):
        enrich(frame(spark, "k", "x", "x_RIGHT"), path, on="k", memory=MEMORY)


def test_ambiguous_names_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    path = store(tmp_path / "r", "k", "v", "V")
    with pytest.raises(SchemaError, match="'k' may be 'k' or 'K' of the stream"):
        enrich(frame(spark, "k", "K"), path, on="k", memory=MEMORY)
    with pytest.raises(SchemaError, match="'v' may be 'v' or 'V' of the master data"):
        enrich(frame(spark, "k"), path, on="k", select=["v"], memory=MEMORY)
    with pytest.raises(ConfigError, match="names a column twice"):
        enrich(frame(spark, "k"), path, on=["k", "K"], memory=MEMORY)
    with pytest.raises(SchemaError, match="'Id' may be 'id' or 'ID' of the DataFrame"):
        build_master(frame(spark, "id", "ID"), tmp_path / "other", on="Id")
    # Nobody asks for them by name: they pass through.
    result = enrich(frame(spark, "k", "a", "A"), path, on="k", memory=MEMORY)
    assert result.columns == ["k", "a", "A", "v", "V_right"]
    assert (1, 11, 12, -11, -12) in map(tuple, result.collect())


def test_star_finds_columns_of_an_earlier_dimension(spark: SparkSession, tmp_path: Path) -> None:
    first = pa.table({"K": [0, 1], "City_Id": [5, 6]})
    semistream.build_pages(first, tmp_path / "first", on="K")
    semistream.build_pages(pa.table({"city_id": [5], "name": ["Ulm"]}), tmp_path / "second", on="city_id")
    dimensions = [(tmp_path / "first", "k", None), (tmp_path / "second", "CITY_ID", None)]
    result = enrich_star(frame(spark, "k"), dimensions, memory=MEMORY)
    assert result.columns == ["k", "City_Id", "name"]
    assert sorted(map(tuple, result.collect()))[0] == (0, 5, "Ulm")


def test_case_sensitive(case_sensitive: None, spark: SparkSession, tmp_path: Path) -> None:
    path = store(tmp_path / "r", "k", "X", "x")
    with pytest.raises(SchemaError, match="the stream has no column 'K'"):
        enrich(frame(spark, "k"), path, on={"K": "k"}, memory=MEMORY)
    with pytest.raises(SchemaError, match="master data has no column 'K'"):
        enrich(frame(spark, "k"), path, on={"k": "K"}, memory=MEMORY)
    result = enrich(frame(spark, "k", "K", "x"), path, on="k", memory=MEMORY)
    assert result.columns == ["k", "K", "x", "X", "x_right"]
    assert (1, 11, 12, -11, -12) in map(tuple, result.collect())


def test_build_master_finds_its_key_in_any_case(spark: SparkSession, tmp_path: Path) -> None:
    with closing(build_master(frame(spark, "Id", "v"), tmp_path / "r", on="ID")) as master:
        assert master.on == ("Id",)
