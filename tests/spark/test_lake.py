"""Rows in a lake: exactly the join, whichever way they went, once per micro-batch, with all that batches have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.spark.lakes import catalog, read_all
from tests.spark.queries import Query, build, patiently, refusal, relation, stream, until

import semistream
from semistream.errors import ConfigError, SchemaError, SemiStreamError, StoreError
from semistream.lake.files import WrittenFile
from semistream.lake.parquet import ParquetFolder
from semistream.lake.table import Committed
from semistream.spark import enrich, enrich_star, metrics, write
from semistream.spark.lake import LakeQuery, Written, explain_write
from semistream.testing import assert_same_rows, reference_join

R = relation()
FILES = [
    table.set_column(2, "qty", pa.array([value % 3 for value in table["qty"].to_pylist()], pa.int32()))
    for table in stream()
]
S = pa.concat_tables(FILES)
MEMORY = "2MB"
_PATIENCE_SECONDS = 120


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(R, tmp_path_factory.mktemp("master") / "r")


@pytest.fixture(scope="module")
def frame(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> DataFrame:
    """The stream as a DataFrame that is none."""
    folder = tmp_path_factory.mktemp("stream")
    for number, table in enumerate(FILES):
        pq.write_table(table, folder / f"{number}.parquet")
    return spark.read.parquet(str(folder))


@dataclass
class Sink:
    """A table, and a query into it that is started as often as a test likes."""

    query: Query
    format: str = "parquet"
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def path(self) -> str:
        return "db.t" if self.format == "iceberg" else str(self.query.folder / "table")

    def write(self, df: DataFrame, **changes: Any) -> Any:
        where = {"catalog": catalog(self.query.folder)} if self.format == "iceberg" else {}
        return write(df, self.path, self.format, **{**where, **self.options, **changes})

    def finish(self, df: DataFrame, **changes: Any) -> LakeQuery:
        """All files that are new, a batch each; or as another trigger says."""
        started: list[LakeQuery] = []

        def run() -> None:
            given = {"checkpoint": self.query.checkpoint, "trigger": "availableNow", **changes}
            started.append(self.write(df, **given))
            try:
                assert started[-1].awaitTermination(_PATIENCE_SECONDS)
            finally:
                started[-1].stop()

        patiently(run)
        return started[-1]

    def rows(self) -> pa.Table:
        return read_all(self.format, self.path, self.query.folder)

    def holds(self, expected: pa.Table) -> None:
        """Exactly these rows; where a folder stands for a column, readers put it last."""
        assert_same_rows(self.rows().select(expected.column_names), expected)


@pytest.fixture
def sink(spark: SparkSession, tmp_path: Path) -> Sink:
    return Sink(Query(spark, tmp_path))


# --------------------------------------------------------------------------------------------------- streams


@pytest.mark.parametrize("format", ["parquet", "delta", "iceberg"])
def test_a_stream_is_the_join(sink: Sink, store: Path, format: str) -> None:
    """Three batches; then R is replaced, and a batch comes that sees the new one; nothing is done twice."""
    own = build(R, sink.query.folder / "r")
    sink.format = format
    sink.options = {"partition_by": ["qty"]}
    sink.query.feed(*FILES[:2])
    enriched = enrich(sink.query.reading(), own, on="k", memory=MEMORY, name="products")
    done = sink.finish(enriched)
    assert done.fused
    assert "one pass: enrich(" in done.how
    account = metrics.of(str(done.id), 1, "products")
    assert account is not None
    assert (account["rows_in"], account["master_version"]) == (FILES[1].num_rows, 1)
    second = relation(seed=5)
    build(second, own)
    sink.query.feed(FILES[2])
    again = sink.finish(enriched.select("*"))
    assert again.id == done.id
    expected = pa.concat_tables(
        [
            reference_join(pa.concat_tables(FILES[:2]), R, "k", "left"),
            reference_join(FILES[2], second, "k", "left"),
        ]
    )
    sink.holds(expected)
    # The versions of R that the batches had are given back when the query has ended.
    assert until(lambda: not list((own / "queries").glob("*/*.json")))


def test_spark_before_and_after(sink: Sink, store: Path) -> None:
    """What is left to Spark is written the same way."""
    sink.query.feed(*FILES)
    enriched = enrich(sink.query.reading(), store, on="k", how="inner", memory=MEMORY)
    done = sink.finish(enriched.filter("seq % 2 = 0").coalesce(1))
    assert not done.fused
    assert "Repartition comes after" in done.how
    expected = reference_join(S, R, "k", "inner").to_pandas().query("seq % 2 == 0")
    sink.holds(pa.Table.from_pandas(expected, preserve_index=False))


def test_two_sinks_and_a_union(spark: SparkSession, sink: Sink, store: Path, tmp_path: Path) -> None:
    sink.query.feed(*FILES)
    enriched = enrich(sink.query.reading(), store, on="k", memory=MEMORY)
    other = Sink(Query(spark, tmp_path / "other"), "delta")
    both = [sink.write(enriched.filter("m01 IS NULL"), checkpoint=sink.query.checkpoint, trigger="availableNow")]
    twice = enriched.union(enrich(sink.query.reading(), store, on="k", memory=MEMORY))
    both.append(other.write(twice, checkpoint=other.query.checkpoint, trigger={"availableNow": True}, name="union"))
    for query in both:
        assert query.awaitTermination(_PATIENCE_SECONDS)
    assert [query.fused for query in both] == [True, False]
    joined = reference_join(S, R, "k", "left")
    sink.holds(joined.filter(pa.compute.is_null(joined["m01"])))
    other.holds(pa.concat_tables([joined, joined]))


def test_a_batch_that_is_there_is_not_joined_again(sink: Sink, store: Path) -> None:
    """The driver died after the commit: Spark does not know of it, the table does."""
    sink.query.feed(*FILES)
    enriched = enrich(sink.query.reading(), store, on="k", memory=MEMORY, name="again")
    done = sink.finish(enriched)
    before = sorted(Path(sink.path).rglob("*.parquet"))
    sink.query.forget_last_batch()
    runs = metrics.frame(sink.query.spark).where("dimension = 'again'").count()
    assert sink.finish(enriched).id == done.id
    assert sorted(Path(sink.path).rglob("*.parquet")) == before
    assert metrics.frame(sink.query.spark).where("dimension = 'again'").count() == runs
    sink.holds(reference_join(S, R, "k", "left"))


def test_a_replay_sees_its_own_version(sink: Sink, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit fails, R is replaced, and the batch is attempted again."""

    def failing(table: ParquetFolder, app: str, batch: int, files: Sequence[WrittenFile]) -> Committed:
        raise StoreError("the disk is full")

    own = build(R, sink.query.folder / "r")
    enriched = enrich(sink.query.reading(), own, on="k", memory=MEMORY)
    sink.query.feed(FILES[0])
    sink.finish(enriched)
    sink.query.feed(FILES[1])
    monkeypatch.setattr(ParquetFolder, "commit", failing)
    with pytest.raises(StreamingQueryException, match="the disk is full"):
        sink.finish(enriched)
    sink.holds(reference_join(FILES[0], R, "k", "left"))
    monkeypatch.undo()
    second = relation(seed=5)
    build(second, own)
    sink.query.feed(FILES[2])
    sink.finish(enriched)
    before = reference_join(pa.concat_tables(FILES[:2]), R, "k", "left")
    sink.holds(pa.concat_tables([before, reference_join(FILES[2], second, "k", "left")]))


def test_a_stream_with_state(sink: Sink, store: Path) -> None:
    """A batch that is skipped leaves the state of the source where its first attempt had brought it."""
    sink.query.feed(*FILES)
    source = sink.query.reading().dropDuplicates(["k"])
    sink.finish(enrich(source, store, on="k", memory=MEMORY))
    sink.query.forget_last_batch()
    sink.query.feed(FILES[0])
    done = sink.finish(enrich(source, store, on="k", memory=MEMORY))
    assert done.fused
    keys = sink.rows()["k"].to_pylist()
    rows_of = {key: keys.count(key) for key in set(S["k"].to_pylist())}
    copies = reference_join(pa.table({"k": sorted(rows_of)}), R, "k", "left")["k"].to_pylist()
    assert rows_of == {key: copies.count(key) for key in rows_of}


def test_tuples_that_wait(sink: Sink) -> None:
    """A carrying operator publishes its record before the batch is committed; ticks bring what waits."""
    master = build(R, sink.query.folder / "r")
    sink.query.feed(FILES[0])
    assert sink.finish(sink.query.carrying(master), trigger="once").fused
    assert 0 < len(set(sink.rows()["seq"].to_pylist())) < FILES[0].num_rows
    # As if the driver had died just before the commit: the record is there, the rows are not.
    waiting = sink.rows()
    _take_back(sink, 0)
    sink.finish(sink.query.carrying(master), trigger="once")
    sink.holds(waiting)
    sink.query.feed(*FILES[1:])
    sink.finish(sink.query.carrying(master))
    sink.holds(reference_join(S, R, "k", "left"))


def _take_back(sink: Sink, batch: int) -> None:
    """Neither Spark's log nor the table's has the batch any more."""
    sink.query.forget_last_batch()
    folder = Path(sink.path)
    for path in (*folder.glob("*.parquet"), *folder.parent.glob(f".{folder.name}.semistream/log/*/*{batch}.batch")):
        path.unlink()


def test_a_task_that_fails_leaves_no_file(sink: Sink, store: Path) -> None:
    def broken(batches: Any) -> Any:
        yield from batches
        raise ValueError("the source broke off")

    sink.query.feed(FILES[0])
    source = sink.query.reading().mapInArrow(broken, sink.query.schema)
    query = sink.write(enrich(source, store, on="k", memory=MEMORY), checkpoint=sink.query.checkpoint)
    with pytest.raises(StreamingQueryException, match="the source broke off"):
        query.awaitTermination(_PATIENCE_SECONDS)
    table = Path(sink.path)
    left = [path for path in table.parent.glob(f".{table.name}.semistream/staged/**/*") if path.is_file()]
    assert left == []
    assert list(table.rglob("*")) == []


# --------------------------------------------------------------------------------------------------- other DataFrames


@pytest.mark.parametrize("how", ["inner", "left", "semi", "anti"])
def test_a_frame_is_written_at_once(frame: DataFrame, sink: Sink, store: Path, how: str) -> None:
    enriched = enrich(frame, store, on="k", how=how, memory=MEMORY)
    fused = sink.write(enriched)
    plain = sink.write(enriched.coalesce(1))
    expected = reference_join(S, R, "k", how)
    assert isinstance(fused, Written)
    assert (fused.fused, plain.fused, fused.skipped) == (True, False, False)
    assert fused.rows == plain.rows == expected.num_rows
    assert fused.files > 0
    sink.holds(pa.concat_tables([expected, expected]))


def test_a_star_with_columns_chosen(frame: DataFrame, sink: Sink, store: Path, tmp_path: Path) -> None:
    sizes = pa.table({"qty": pa.array(range(3), pa.int32()), "size": ["s0", "s1", "s2"]})
    semistream.build_pages(sizes, tmp_path / "sizes", on="qty")
    star = enrich_star(frame, [(store, "k", ["m01"]), (tmp_path / "sizes", "qty", None)], memory="4MB")
    chosen = star.filter("size IN ('s0', 's1') AND m01 IS NOT NULL").select("seq", "size", F.col("m01").alias("the m"))
    done = sink.write(chosen, partition_by="SIZE", file_size="1MB")
    assert done.fused
    expected = reference_join(reference_join(S, R.select(["k", "m01"]), "k", "left"), sizes, "qty", "left")
    wanted = pa.compute.is_in(expected["size"], pa.array(["s0", "s1"]))
    expected = expected.filter(pa.compute.and_(wanted, pa.compute.is_valid(expected["m01"])))
    expected = expected.select(["seq", "size", "m01"]).rename_columns(["seq", "size", "the m"])
    sink.holds(expected)
    assert {path.name for path in Path(sink.path).iterdir()} == {"size=s0", "size=s1"}


def test_in_a_users_own_batches(sink: Sink, store: Path) -> None:
    """`write` in foreachBatch: twice into one table, and the batch is attempted again after the first of them."""
    sink.query.feed(*FILES)
    fail = [True]
    accounts: list[Written] = []

    def batch(df: DataFrame, number: int) -> None:
        enriched = enrich(df, store, on="k", memory=MEMORY)
        accounts.append(sink.write(enriched.filter("m01 IS NULL")))
        if number == 1 and fail.pop():
            raise ValueError("between the two")
        accounts.append(sink.write(enriched.filter("m01 IS NOT NULL")))

    def run() -> None:
        writer = sink.query.reading().writeStream.foreachBatch(batch).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(sink.query.checkpoint)).start()
        query.awaitTermination(_PATIENCE_SECONDS)

    with pytest.raises(StreamingQueryException, match="between the two"):
        run()
    fail.append(False)
    run()
    assert [account.skipped for account in accounts] == [False] * 3 + [True] + [False] * 3
    assert all(account.fused for account in accounts)
    sink.holds(reference_join(S, R, "k", "left"))


def test_types_and_zones(spark: SparkSession, tmp_path: Path, sink: Sink) -> None:
    """Timestamps are moments whatever the session calls them; nested values and odd names come through."""
    master = pa.table(
        {
            "id": range(3),
            "when": pa.array([0, 1_700_000_000_000_000, None], pa.timestamp("us", tz="UTC")),
            "list.of": [[1, None], [], None],
        }
    )
    semistream.build_pages(master, tmp_path / "r", on="id")
    zone = spark.conf.get("spark.sql.session.timeZone")
    try:
        spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
        enriched = enrich(spark.range(4), tmp_path / "r", on="id", memory=MEMORY)
        late = enriched.filter("when > TIMESTAMP'2001-01-01 00:00:00' OR when IS NULL OR id = 0")
        assert sink.write(late).fused
        assert not sink.write(late.coalesce(1)).fused
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(zone))
    expected = reference_join(pa.table({"id": range(4)}), master, "id", "left")
    sink.holds(pa.concat_tables([expected, expected]))


# --------------------------------------------------------------------------------------------------- refused, explained


def test_explained(spark: SparkSession, frame: DataFrame, store: Path) -> None:
    enriched = enrich(frame, store, on="k", memory=MEMORY)
    assert explain_write(enriched) == (
        f"join and write are one pass: enrich({store} on k, left, sweepjoin, 2MB, version 1)"
    )
    why = explain_write(enriched.filter("m01 % 2 = 0"))
    assert why.startswith("rows come from Spark and are written by its Python workers, since the expression (m01#")
    assert "there is none" in explain_write(spark.range(3))


def test_restarts_with_other_options(sink: Sink, store: Path) -> None:
    sink.query.feed(FILES[0])
    enriched = enrich(sink.query.reading(), store, on="k", memory=MEMORY)
    sink.finish(enriched, partition_by=["qty"])
    rows = sink.rows()
    sink.query.feed(FILES[1])
    changes: list[tuple[Callable[[], object], str]] = [
        (lambda: sink.finish(enriched), "qty"),
        (lambda: sink.finish(enriched, partition_by=["k"]), "'?k'?"),
        (lambda: sink.finish(enriched.drop("m02"), partition_by=["qty"]), "m02"),
        (lambda: sink.finish(enriched.withColumn("m02", F.lit("x")), partition_by=["qty"]), "m02"),
        (lambda: write(enriched, f"{sink.path}2", checkpoint=sink.query.checkpoint), "if the table has only moved"),
        (lambda: write(enriched, sink.path, "delta", checkpoint=sink.query.checkpoint), "a new checkpoint"),
    ]
    for change, word in changes:
        with pytest.raises(SemiStreamError, match=word):
            change()
    sink.holds(rows)
    # A change that the table allows: another budget, another size of files, from Spark and not from the join.
    sink.finish(
        enrich(sink.query.reading(), store, on="k", memory="3MB").coalesce(1), partition_by=["qty"], file_size="1MB"
    )
    sink.holds(reference_join(pa.concat_tables(FILES[:2]), R, "k", "left"))


def test_a_checkpoint_of_sparks_own_sink_is_refused(sink: Sink, store: Path) -> None:
    sink.query.feed(FILES[0])
    enriched = enrich(sink.query.reading(), store, on="k", memory=MEMORY)
    sink.query.finish(enriched)
    assert "sink of Spark's" in refusal(lambda: sink.finish(enriched))
    assert "_spark_metadata" in refusal(lambda: write(enriched, sink.query.sink, checkpoint=sink.query.folder / "c2"))


def test_a_query_that_was_killed_before_its_first_batch_starts_again(sink: Sink, store: Path) -> None:
    """What Spark leaves if it is killed while it notes the first batch, and by itself refuses to start from."""
    offsets = Path(sink.query.checkpoint) / "offsets"
    offsets.mkdir(parents=True)
    for left in [".0.3c1ba3f2-5b5e-4bd4-8b0a-0d6f5f6f4b5e.tmp", "..0.3c1ba3f2-5b5e-4bd4-8b0a-0d6f5f6f4b5e.tmp.crc"]:
        (offsets / left).write_bytes(b"v1")
    sink.query.feed(FILES[0])
    enriched = enrich(sink.query.reading(), store, on="k", memory=MEMORY)
    with pytest.raises(StreamingQueryException, match="should be empty on batch 0"):
        sink.query.finish(enriched)
    sink.finish(enriched)
    sink.holds(reference_join(FILES[0], R, "k", "left"))


def test_mistakes_are_named(spark: SparkSession, frame: DataFrame, sink: Sink) -> None:
    rate = spark.readStream.format("rate").load()
    path = sink.path
    for mistake, word in [
        (lambda: write(rate, path), "give checkpoint="),
        (lambda: write(frame, path, checkpoint=path), "leave them out"),
        (lambda: write(frame, path, "csv"), "allowed are parquet, delta, iceberg"),
        (lambda: write(rate, path, checkpoint=f"{path}-c", trigger={"continuous": "1 s"}), "'continuous'"),
        (lambda: write(rate, path, checkpoint="s3://bucket/c"), "s3"),
        (lambda: write(frame, "hdfs://host/t"), "hdfs"),
        (lambda: write(frame, path, speed="high"), "'speed' is no option"),
        (lambda: write(frame, path, "iceberg"), "namespace.table"),
    ]:
        with pytest.raises(ConfigError, match=word):
            mistake()
    with pytest.raises(SchemaError, match="no column"):
        write(frame, path, partition_by=["price"])
    with pytest.raises(SchemaError, match="same name"):
        write(frame.withColumn("K2", F.lit(1)).withColumn("k2", F.lit(2)).selectExpr("k", "k AS K"), path)
    with pytest.raises(SemiStreamError, match="cannot be"):
        write(spark.sql("SELECT INTERVAL 1 MONTH AS i, 1 AS one"), path)
    assert not Path(path).exists() or not list(Path(path).iterdir())
