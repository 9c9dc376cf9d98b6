"""However a carrying query is composed, replayed or started again: exactly the rows of the join, or a refusal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.spark.queries import (
    SCHEMA,
    Query,
    assert_no_row_too_many,
    build,
    outcome,
    refusal,
    relation,
    stream,
    thorough,
    until,
)

from semistream.errors import SemiStreamError
from semistream.spark import enrich, metrics
from semistream.testing import assert_same_rows, reference_join

R = relation()
FILES = stream()
S = pa.concat_tables(FILES)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(R, tmp_path_factory.mktemp("master") / "r")


@pytest.fixture
def query(spark: SparkSession, tmp_path: Path) -> Query:
    return Query(spark, tmp_path / "query")


def _waiting(query: Query, store: Path, **changes: Any) -> None:
    """One batch has run, and tuples of it wait."""
    query.feed(FILES[0])
    query.one_batch(query.carrying(store, **changes))
    assert query.count() < reference_join(FILES[0], R, "k", "left").num_rows, "nobody waits: the test shows nothing"


# ---------------------------------------------------------------------------------------- what comes after and before


@pytest.mark.parametrize(
    ("after", "algorithm"),
    [("coalesce", "meshjoin"), *thorough(("coalesce", "ssbj"), ("repartition", "meshjoin"), ("repartition", "ssbj"))],
)
def test_coalesce_after_enrich(after: str, algorithm: str, query: Query, store: Path) -> None:
    query.feed(*FILES)
    enriched = query.carrying(store, algorithm=algorithm, memory="1.2MB")
    query.finish(enriched.coalesce(1) if after == "coalesce" else enriched.repartition(3))
    assert_same_rows(query.rows(), reference_join(S, R, "k", "left"))


@pytest.mark.parametrize("place", ["first", *thorough("last")])
def test_union_with_another_stream_after_enrich(
    place: str, spark: SparkSession, query: Query, store: Path, tmp_path: Path
) -> None:
    """The other stream has a file in some batches only, so the tasks of the enriched one are not always the same."""
    query.feed(*FILES)
    other = Query(spark, tmp_path / "other")
    other.feed(FILES[1])
    bare = other.reading().selectExpr("k", "seq", "qty", *(f"cast(null as long) {name}" for name in R.column_names[1:]))
    enriched = query.carrying(store)
    query.finish(bare.union(enriched) if place == "first" else enriched.union(bare))
    nothing = reference_join(FILES[1], R.slice(0, 0), "k", "left")
    assert_same_rows(query.rows(), pa.concat_tables([reference_join(S, R, "k", "left"), nothing]))


def test_union_with_another_stream_before_enrich(
    spark: SparkSession, query: Query, store: Path, tmp_path: Path
) -> None:
    query.feed(*FILES[:2])
    other = Query(spark, tmp_path / "other")
    other.feed(FILES[2])
    query.finish(query.carrying(store, other.reading().union(query.reading())))
    assert_same_rows(query.rows(), reference_join(S, R, "k", "left"))


# ------------------------------------------------------------------------------ whose records they are


def _chained(query: Query, store: Path, names: tuple[str | None, str | None]) -> tuple[DataFrame, pa.Table]:
    first = query.carrying(store, select=["m01"], name=names[0])
    second = query.carrying(store, first, select=["m02"], name=names[1])
    joined = reference_join(S, R, "k", "left", select=["m01"])
    return second, reference_join(joined, R, "k", "left", select=["m02"])


def _in_two_branches(query: Query, store: Path, names: tuple[str | None, str | None]) -> tuple[DataFrame, pa.Table]:
    even = query.carrying(store, query.reading().where("seq % 2 = 0"), name=names[0])
    odd = query.carrying(store, query.reading().where("seq % 2 = 1"), name=names[1])
    return even.union(odd), reference_join(S, R, "k", "left")


@pytest.mark.parametrize("compose", [_chained, *thorough(_in_two_branches)])
def test_one_master_twice_in_a_query_with_the_default_name(
    compose: Callable[..., tuple[DataFrame, pa.Table]], query: Query, store: Path
) -> None:
    """Exact, or refused with the remedy; never rows of one enrichment taken for those of the other."""
    query.feed(*FILES)
    expected = compose(Query(query.spark, query.folder / "aside"), store, ("a", "b"))[1]

    def run() -> None:
        query.finish(compose(query, store, (None, None))[0])

    text = outcome(run)
    if text is not None:
        assert "name=" in text
        assert query.count() == 0
    else:
        assert_same_rows(query.rows(), expected)


@pytest.mark.parametrize("compose", [_in_two_branches, *thorough(_chained)])
def test_one_master_twice_in_a_query_under_two_names(
    compose: Callable[..., tuple[DataFrame, pa.Table]], query: Query, store: Path
) -> None:
    query.feed(*FILES)
    enriched, expected = compose(query, store, ("a", "b"))
    query.finish(enriched)
    assert_same_rows(query.rows(), expected)


def test_two_sinks_of_one_enriched_frame(query: Query, store: Path, spark: SparkSession, tmp_path: Path) -> None:
    """Their records would be the same: the second query is refused, and the first goes on as though alone."""
    query.feed(*FILES[:2])
    enriched = query.carrying(store)
    query.one_batch(enriched)
    second = Query(spark, tmp_path / "second")
    text = outcome(lambda: second.finish(enriched))
    if text is not None:
        assert "checkpoint" in text
        assert second.count() == 0
    else:
        assert_same_rows(second.rows(), reference_join(pa.concat_tables(FILES[:2]), R, "k", "left"))
    query.feed(FILES[2])
    query.finish(enriched)
    assert_same_rows(query.rows(), reference_join(S, R, "k", "left"))


def test_two_sinks_at_the_same_time(query: Query, store: Path, spark: SparkSession, tmp_path: Path) -> None:
    query.feed(*FILES)
    enriched = query.carrying(store, max_delay="1s")
    second = Query(spark, tmp_path / "second")
    running = query.start(enriched)
    try:
        refused = outcome(lambda: second.finish(enriched)) is not None
    finally:
        running.stop()
    query.finish(enriched)
    expected = reference_join(S, R, "k", "left")
    assert_same_rows(query.rows(), expected)
    if refused:
        assert_no_row_too_many(second.rows() if second.count() else expected.slice(0, 0), expected)
    else:
        assert_same_rows(second.rows(), expected)


def test_checkpoint_that_is_not_the_querys(query: Query, store: Path, tmp_path: Path) -> None:
    query.feed(*FILES)
    text = refusal(lambda: query.finish(query.carrying(store, checkpoint=tmp_path / "elsewhere")))
    assert "checkpoint" in text
    assert query.count() == 0


def test_checkpoint_of_another_query(query: Query, store: Path, spark: SparkSession, tmp_path: Path) -> None:
    """The other's waiting tuples are neither taken nor harmed."""
    _waiting(query, store)
    second = Query(spark, tmp_path / "second")
    second.feed(*FILES)
    text = refusal(lambda: second.finish(second.carrying(store, checkpoint=query.checkpoint)))
    assert "checkpoint" in text
    assert second.count() == 0
    query.finish(query.carrying(store))
    assert_same_rows(query.rows(), reference_join(FILES[0], R, "k", "left"))


@pytest.mark.parametrize("spelling", ["uri", *thorough("link", "dots")])
def test_own_checkpoint_under_another_spelling(spelling: str, query: Query, store: Path) -> None:
    query.feed(*FILES[:2])
    if spelling == "uri":
        path: str | Path = f"file://{query.checkpoint}"
    elif spelling == "link":
        path = query.folder / "link"
        path.symlink_to(query.checkpoint)
        query.checkpoint.mkdir()
    else:
        path = f"{query.folder}/in/../checkpoint"
    query.one_batch(query.carrying(store, checkpoint=path))
    query.feed(FILES[2])
    query.finish(query.carrying(store, checkpoint=path))
    assert_same_rows(query.rows(), reference_join(S, R, "k", "left"))


# ------------------------------------------------------------------------------------------ replayed batches


@pytest.mark.parametrize("column", ["uuid()", *thorough("cast(rand() as string)")])
def test_replay_of_a_batch_with_a_random_column(column: str, query: Query, store: Path) -> None:
    """Waiting rows cannot be found in the new input: the replay stops before it gives a row."""
    _waiting(query, store, df=query.reading().withColumn("id", F.expr(column)))
    query.forget_last_batch()
    text = refusal(lambda: query.finish(query.carrying(store, query.reading().withColumn("id", F.expr(column)))), query)
    assert "is not what it was" in text
    assert query.count() == 0


def test_replay_of_a_batch_whose_files_have_changed(query: Query, store: Path) -> None:
    _waiting(query, store)
    query.forget_last_batch()
    (file,) = query.source.iterdir()
    file.unlink()
    query.feed(FILES[1])
    assert "is not what it was" in refusal(lambda: query.finish(query.carrying(store)), query)
    assert query.count() == 0


@pytest.mark.parametrize("how", ["left", *thorough("inner")])
def test_replay_of_an_unchanged_batch(how: str, query: Query, store: Path) -> None:
    query.feed(*FILES[:2])
    query.one_batch(query.carrying(store, how=how))
    query.feed(FILES[2])
    query.one_batch(query.carrying(store, how=how))
    query.forget_last_batch()
    query.finish(query.carrying(store, how=how))
    assert_same_rows(query.rows(), reference_join(S, R, "k", how))


# ------------------------------------------------------------------------------- started again with another call


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"how": "inner"}, "how"),
        ({"name": "another"}, "name"),
        *thorough(
            ({"on": {"seq": "k"}}, "on"),
            ({"select": ["m01", "m02"]}, "select"),
            ({"suffix": "_master"}, "suffix"),
            ({"algorithm": "ssbj"}, "algorithm"),
            ({"k": 9}, "option"),
        ),
    ],
    ids=["how", "name", "on", "select", "suffix", "algorithm", "option"],
)
def test_started_again_with_another_call(change: dict[str, Any], named: str, query: Query, store: Path) -> None:
    """Refused with what has changed; the old call then goes on as if nothing had been tried."""
    _waiting(query, store)
    text = refusal(lambda: query.finish(query.carrying(store, **change)), query)
    assert named in text
    query.finish(query.carrying(store))
    assert_same_rows(query.rows(), reference_join(FILES[0], R, "k", "left"))


def test_started_again_with_other_columns_in_the_stream(query: Query, store: Path) -> None:
    """The record's tuples have no value for a column that is new."""
    _waiting(query, store)
    wider = query.reading().withColumn("extra", F.lit(1))
    text = refusal(lambda: query.finish(query.carrying(store, wider)), query)
    assert "extra" in text
    query.finish(query.carrying(store))
    assert_same_rows(query.rows(), reference_join(FILES[0], R, "k", "left"))


def test_started_again_with_another_master(query: Query, store: Path, tmp_path: Path) -> None:
    _waiting(query, store)
    other = build(relation(2), tmp_path / "other" / "r")
    text = refusal(lambda: query.finish(query.carrying(other)), query)
    assert "master data" in text
    query.finish(query.carrying(store))
    assert_same_rows(query.rows(), reference_join(FILES[0], R, "k", "left"))


def test_started_again_without_max_delay(query: Query, store: Path) -> None:
    """Those who wait would be forgotten; Spark misses a source and does not start the query."""
    _waiting(query, store)
    with pytest.raises((SemiStreamError, StreamingQueryException)):
        query.finish(enrich(query.reading(), store, on="k", memory="1MB", algorithm="meshjoin"))
    query.finish(query.carrying(store))
    assert_same_rows(query.rows(), reference_join(FILES[0], R, "k", "left"))


@pytest.mark.parametrize("change", [{"memory": "1.5MB"}, *thorough({"max_delay": "300s"})])
def test_started_again_with_another_budget_or_delay(change: dict[str, Any], query: Query, store: Path) -> None:
    """It may be refused, and then the old call goes on; in any case the rows are right."""
    _waiting(query, store)
    query.feed(*FILES[1:])
    if outcome(lambda: query.finish(query.carrying(store, **change))) is not None:
        query.finish(query.carrying(store))
    assert_same_rows(query.rows(), reference_join(S, R, "k", "left"))


def test_started_again_with_another_call_when_nobody_waits(query: Query, store: Path) -> None:
    """Nothing hangs on the old call any more: the new one is taken, or refused as a whole."""
    query.feed(FILES[0])
    query.finish(query.carrying(store))
    first = reference_join(FILES[0], R, "k", "left")
    assert_same_rows(query.rows(), first)
    query.feed(FILES[1])
    refused = outcome(lambda: query.finish(query.carrying(store, how="inner"))) is not None
    second = reference_join(FILES[1], R, "k", "left" if refused else "inner")
    if refused:
        query.finish(query.carrying(store))
    assert_same_rows(query.rows(), pa.concat_tables([first, second]))


def test_started_again_as_it_was(query: Query, store: Path) -> None:
    for file in FILES:
        query.feed(file)
        query.one_batch(query.carrying(store))
    query.finish(query.carrying(store))
    assert_same_rows(query.rows(), reference_join(S, R, "k", "left"))


# ----------------------------------------------------------------------------------------------- foreachBatch


def test_enrich_inside_foreach_batch_with_a_replay_after_r_has_changed(
    spark: SparkSession, query: Query, tmp_path: Path
) -> None:
    """A batch that runs twice gives the same rows twice, whatever R is meanwhile."""
    store = build(R, tmp_path / "r")
    query.feed(*FILES)

    died: list[int] = []

    def write(batch: DataFrame, number: int) -> None:
        enriched = enrich(batch, store, on="k", memory="8MB")
        enriched.write.mode("overwrite").parquet(str(query.sink / f"batch={number}"))
        if number == len(FILES) - 1 and not died:
            died.append(number)
            raise RuntimeError("written, but not committed")

    def run() -> None:
        writer = query.reading().writeStream.foreachBatch(write)
        writer = writer.option("checkpointLocation", str(query.checkpoint)).trigger(availableNow=True)
        writer.start().awaitTermination()

    def rows() -> pa.Table:
        return spark.read.parquet(str(query.sink)).drop("batch").toArrow()

    with pytest.raises(StreamingQueryException, match="written, but not committed"):
        run()
    assert until(lambda: not metrics.queries())  # the clean-up has been there, and has left what is needed
    assert_same_rows(rows(), reference_join(S, R, "k", "left"))
    build(relation(2), store)
    run()
    assert_same_rows(rows(), reference_join(S, R, "k", "left"))


def test_the_same_batch_enriched_twice_inside_foreach_batch(spark: SparkSession, query: Query, store: Path) -> None:
    """Two actions on one enriched frame, as a user who writes to two places does."""
    query.feed(*FILES)

    def write(batch: DataFrame, number: int) -> None:
        enriched = enrich(batch, store, on="k", memory="8MB")
        for name in ("one", "two"):
            enriched.write.mode("overwrite").parquet(str(query.sink / name / f"batch={number}"))

    writer = query.reading().writeStream.foreachBatch(write).option("checkpointLocation", str(query.checkpoint))
    writer.trigger(availableNow=True).start().awaitTermination()
    for name in ("one", "two"):
        rows = spark.read.parquet(str(query.sink / name)).drop("batch").toArrow()
        assert_same_rows(rows, reference_join(S, R, "k", "left"))


def test_carrying_is_not_promised_inside_foreach_batch(spark: SparkSession, query: Query, store: Path) -> None:
    """A frame in foreachBatch is no stream: every tuple is finished in its batch, or max_delay is refused."""
    query.feed(*FILES)

    def write(batch: DataFrame, number: int) -> None:
        query.carrying(store, batch).write.mode("overwrite").parquet(str(query.sink / f"batch={number}"))

    def run() -> None:
        writer = query.reading().writeStream.foreachBatch(write)
        writer = writer.option("checkpointLocation", str(query.checkpoint)).trigger(availableNow=True)
        writer.start().awaitTermination()

    if outcome(run) is None:
        rows = spark.read.schema(f"{SCHEMA}, m01 long, m02 long, m03 long").parquet(str(query.sink)).toArrow()
        assert_same_rows(rows, reference_join(S, R, "k", "left"))
