"""As-of joins on Spark: enrichments, stars, pipelines, and what an enrichment is known by."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from semistream import build_pages
from semistream.errors import ConfigError, SchemaError
from semistream.spark import enrich, enrich_star
from semistream.spark.dimension import request_meant
from semistream.spark.enrichment import describe
from semistream.spark.pipeline import PipelineError, read_pipeline
from semistream.spark.records import Binding
from semistream.spec import JoinRequest
from semistream.testing import assert_same_rows, reference_join

INSTANT = pa.timestamp("us", "UTC")
AS_OF = {"as_of": "event_time", "valid": ("valid_from", "valid_to")}
RNG = np.random.default_rng(11)
STARTS = RNG.integers(0, 1000, 900)
HISTORY = pa.table(
    {
        "k": np.repeat(np.arange(300), 3),
        "name": [f"n{i}" for i in range(900)],
        "valid_from": pa.array(STARTS, mask=RNG.random(900) < 0.1).cast(INSTANT),
        "valid_to": pa.array(STARTS + RNG.integers(0, 700, 900), mask=RNG.random(900) < 0.3).cast(INSTANT),
    }
)
TODAY = pa.table({"k": range(300), "region": [f"r{i % 9}" for i in range(300)]})
EVENTS = pa.table(
    {
        "n": range(2000),
        "k": RNG.integers(0, 330, 2000),
        "event_time": pa.array(RNG.integers(-50, 1500, 2000), mask=RNG.random(2000) < 0.05).cast(INSTANT),
    }
)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    build_pages(HISTORY, tmp_path / "history", on="k", page_rows=64)
    build_pages(TODAY, tmp_path / "today", on="k")
    (tmp_path / "in").mkdir()
    for i in range(2):
        pq.write_table(EVENTS.slice(i * 1000, 1000), tmp_path / "in" / f"{i}.parquet")
    return tmp_path


def as_arrow(df: DataFrame) -> pa.Table:
    table = df.toArrow()
    kinds = [pa.field(each.name, INSTANT if pa.types.is_timestamp(each.type) else each.type) for each in table.schema]
    return table.cast(pa.schema(kinds))


def test_rows_meet_what_was_valid_then(spark: SparkSession, data: Path) -> None:
    events = spark.read.parquet(str(data / "in"))
    asked = {"as_of": "EVENT_TIME", "valid": ("Valid_From", "valid_to"), "memory": "8MB"}
    found = enrich(events, data / "history", "k", select=["name"], **asked)
    assert_same_rows(as_arrow(found), reference_join(EVENTS, HISTORY, "k", "left", ["name"], **AS_OF))
    plan = events.sparkSession._jvm.PythonSQLUtils.explainString(found._jdf.queryExecution(), "simple")
    assert "valid_from <= event_time < valid_to" in plan
    star = [(data / "history", "k", ["name"], ("valid_from", "valid_to")), (data / "today", "k", ["region"], None)]
    both = enrich_star(events, star, memory="16MB", as_of="event_time")
    first = reference_join(EVENTS, HISTORY, "k", "left", ["name"], **AS_OF)
    assert_same_rows(as_arrow(both), reference_join(first, TODAY, "k", "left", ["region"]))
    twice = enrich_star(events, [(data / "history", "k", ["name"])], memory="16MB", **AS_OF)
    assert_same_rows(as_arrow(twice), first)


def test_a_stream_is_joined_by_time(spark: SparkSession, data: Path) -> None:
    """By a lookup, and by a scan of Parquet in place."""
    pq.write_table(HISTORY, data / "history.parquet")
    expected = reference_join(EVENTS, HISTORY, "k", "inner", ["name"], **AS_OF)
    reading = spark.readStream.schema("n long, k long, event_time timestamp").option("maxFilesPerTrigger", 1)
    for algorithm, master in (("sweepjoin", data / "history"), ("ssbj", data / "history.parquet")):
        rows = reading.parquet(str(data / "in"))
        rows = enrich(rows, master, "k", "inner", ["name"], "8MB", algorithm, **AS_OF)
        writer = rows.writeStream.format("parquet").option("path", str(data / f"out-{algorithm}"))
        writer = writer.option("checkpointLocation", str(data / f"checkpoint-{algorithm}"))
        writer.trigger(availableNow=True).start().awaitTermination()
        assert_same_rows(as_arrow(spark.read.parquet(str(data / f"out-{algorithm}"))), expected)


def test_the_columns_of_time_are_part_of_an_enrichment(spark: SparkSession, data: Path) -> None:
    """What outlives a task is found under them, and they are checked before a query starts."""
    events = spark.read.parquet(str(data / "in"))

    def identity(**asked: object) -> tuple[str, dict[str, object]]:
        made = describe(events, data / "history", JoinRequest.make(on="k", memory="8MB", **asked))
        return made.identity, made.meaning

    plain, timed = identity(), identity(**AS_OF)
    other = identity(as_of="event_time", valid=("valid_to", "valid_from"))
    assert len({plain[0], timed[0], other[0]}) == 3
    assert "as of" not in plain[1]
    binding = Binding("r", "path", timed[1], 2, "token")
    assert binding.changes(timed[1]) == []
    assert [change.split(" was ")[0] for change in binding.changes(plain[1])] == ["as of", "valid"]
    assert [change.split(" was ")[0] for change in binding.changes(other[1])] == ["valid"]
    spec = request_meant(timed[1], 1000).spec
    assert (spec.as_of, spec.valid) == ("event_time", ("valid_from", "valid_to"))
    with pytest.raises(SchemaError, match=r"'event_time' .* type int64|integers cannot be compared"):
        enrich(events.selectExpr("k", "n as event_time"), data / "history", "k", memory="8MB", **AS_OF)
    with pytest.raises(SchemaError, match="since"):
        enrich(events, data / "history", "k", memory="8MB", as_of="event_time", valid=("since", "valid_to"))
    with pytest.raises(ConfigError, match="as_of was given without valid"):
        enrich_star(events, [(data / "today", "k", None)], as_of="event_time")


def test_pipelines_name_the_columns_of_time(tmp_path: Path) -> None:
    text = """
checkpoint = "c"
[source]
format = "parquet"
path = "in"
schema = "k BIGINT, event_time TIMESTAMP"
[[enrich]]
master = "history"
on = "k"
as_of = "event_time"
valid = ["valid_from", "valid_to"]
[sink]
format = "parquet"
path = "out"
"""
    path = tmp_path / "p.toml"
    path.write_text(text)
    (given,) = read_pipeline(path).enrichments
    assert given.request.spec.history == "valid_from <= event_time < valid_to"
    path.write_text(text.replace('valid = ["valid_from", "valid_to"]', ""))
    with pytest.raises(PipelineError, match=r"\[\[enrich\]\]: as_of was given without valid"):
        read_pipeline(path)
