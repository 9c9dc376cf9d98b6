"""algorithm="auto" on Spark: one plan an executor, exact, and revised when it proves wrong."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery
from tests.spark.hasty import HASTY

import semistream
from semistream.algorithms.registry import ALGORITHMS
from semistream.errors import ConfigError
from semistream.lab.workloads.relation import master_batches, stream_batches
from semistream.planner.policy import Policy
from semistream.spark import enrich, enrich_star, metrics
from semistream.spark.auto import Planner
from semistream.spark.dimension import Dimension
from semistream.spec import JoinRequest
from semistream.testing import assert_same_rows, reference_join

N_KEYS = 4000
SCHEMA = "k long, seq long, qty int"


@pytest.fixture(scope="module")
def relation() -> pa.Table:
    return pa.Table.from_batches(master_batches(N_KEYS, 1, repeat=True)).select(["k", "m01", "m02"])


@pytest.fixture(scope="module")
def store(relation: pa.Table, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("master") / "r"
    semistream.build_pages(relation, path, on="k", page_rows=64)
    return path


@pytest.fixture(scope="module")
def stream() -> pa.Table:
    return pa.Table.from_batches(stream_batches(6000, int(N_KEYS * 1.2), 0.9, 2))


@pytest.fixture(scope="module")
def files(stream: pa.Table, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stream")
    for i in range(3):
        pq.write_table(stream.slice(i * 2000, 2000), folder / f"{i}.parquet")
    return folder


@pytest.mark.parametrize("max_delay", [None, "1h"])
def test_streaming(
    spark: SparkSession, store: Path, files: Path, stream: pa.Table, relation: pa.Table, max_delay: str | None,
    tmp_path: Path,
) -> None:  # fmt: skip
    df = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(files))
    checkpoint = tmp_path / "checkpoint"
    delay = {} if max_delay is None else {"max_delay": max_delay, "checkpoint": checkpoint}
    joined = enrich(df, store, on="k", memory="4MB", algorithm="auto", **delay)  # type: ignore[arg-type]
    writer = joined.writeStream.format("parquet").option("path", str(tmp_path / "out"))
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()
    assert_same_rows(pq.read_table(tmp_path / "out"), reference_join(stream, relation, "k", "left"))
    values = metrics.of(str(query.id), 0)
    assert values is not None
    assert values["algorithm"] in ALGORITHMS
    assert (checkpoint / "semistream" / "r" / "plan").exists() == (max_delay is not None)


def test_star_and_parquet(
    spark: SparkSession, store: Path, stream: pa.Table, relation: pa.Table, tmp_path: Path
) -> None:
    names = pa.table({"m01": relation["m01"], "name": relation["m02"]})
    second = tmp_path / "names"
    semistream.build_pages(names, second, on="m01", page_rows=64)
    df = spark.createDataFrame(stream).repartition(2)
    star = [(store, "k", ["m01"]), (second, "m01", ["name"])]
    result = enrich_star(df, star, memory="8MB", algorithm="auto").toArrow()
    first = reference_join(stream, relation.select(["k", "m01"]), "k", "left")
    assert_same_rows(result, reference_join(first, names, "m01", "left"))
    pq.write_table(relation, tmp_path / "r.parquet")
    in_place = enrich(df, tmp_path / "r.parquet", on="k", memory="20MB", algorithm="auto").toArrow()
    assert_same_rows(in_place, reference_join(stream, relation, "k", "left"))


def test_options_belong_to_an_algorithm(spark: SparkSession, store: Path, stream: pa.Table) -> None:
    with pytest.raises(ConfigError, match="'auto' has no option 'cache_share'"):
        enrich(spark.createDataFrame(stream), store, on="k", algorithm="auto", cache_share=0.5)


def test_auto_reads_past_the_page_cache_if_asked(
    spark: SparkSession, store: Path, stream: pa.Table, relation: pa.Table
) -> None:
    result = enrich(spark.createDataFrame(stream), store, on="k", memory="4MB", algorithm="auto", reads="direct")
    assert_same_rows(result.toArrow(), reference_join(stream, relation, "k", "left"))


def test_a_stream_tries_its_closest_and_the_checkpoint_remembers(
    spark: SparkSession, store: Path, files: Path, stream: pa.Table, relation: pa.Table, tmp_path: Path
) -> None:
    checkpoint, source = tmp_path / "checkpoint", tmp_path / "source"
    shutil.copytree(files, source)

    def run() -> StreamingQuery:
        df = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(source)).repartition(16)
        joined = enrich(df, store, on="k", memory="4MB", algorithm="auto", checkpoint=checkpoint, policy=HASTY)
        writer = joined.writeStream.format("parquet").option("path", str(tmp_path / "out"))
        query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
        query.awaitTermination()
        return query

    query = run()
    batches = [metrics.of(str(query.id), batch) for batch in range(3)]
    ran = {name for values in batches if values is not None for name in values["algorithm"].split(", ")}
    assert len(ran) == HASTY.most_tried_on_spark, batches
    assert (checkpoint / "semistream" / "r" / "choice").exists()
    assert batches[2] is not None
    chosen = batches[2]["algorithm_why"].removesuffix(" is the best").rpartition(" ")[2]
    assert chosen in ran
    pq.write_table(stream.slice(0, 500), source / "later.parquet")
    query = run()
    values = metrics.of(str(query.id), 3)
    assert values is not None
    assert values["algorithm"] == chosen
    assert values["algorithm_why"].endswith(f"for what is still to come {chosen} is the best")
    expected = reference_join(pa.concat_tables([stream, stream.slice(0, 500)]), relation, "k", "left")
    assert_same_rows(pq.read_table(tmp_path / "out"), expected)


def test_a_batch_job_tries_over_its_tasks(
    spark: SparkSession, store: Path, stream: pa.Table, relation: pa.Table
) -> None:
    """Also where one task does the work of several, and beside the tasks of another enrichment."""
    df = spark.createDataFrame(stream).repartition(32)
    parts = [enrich(df, store, on="k", memory=memory, algorithm="auto", policy=HASTY) for memory in ("4MB", "3MB")]
    result = parts[0].union(parts[1].coalesce(2)).toArrow()
    expected = reference_join(stream, relation, "k", "left")
    assert_same_rows(result, pa.concat_tables([expected, expected]))
    values = metrics.of_job()
    assert values is not None
    assert len(values["algorithm"].split(", ")) >= HASTY.most_tried_on_spark


def _dimension(store: Path) -> Dimension:
    return Dimension(
        name="r",
        master=str(store),
        request=JoinRequest.make(on="k", how="left", memory=400_000, algorithm="auto"),
        tasks=1,
        versioned=False,
    )


def test_one_plan_for_all_processes(store: Path, stream: pa.Table, tmp_path: Path) -> None:
    batch = stream.to_batches()[0]
    first, second = (Planner(_dimension(store), tmp_path) for _ in range(2))
    named, chosen = first.settle(batch)
    again, found = second.settle(None)
    assert chosen == found
    assert named == again == _dimension(store).with_algorithm(named.request.algorithm)
    assert len(list(tmp_path.glob("plan-*"))) == 1


def test_a_plan_that_proves_wrong_is_made_anew(store: Path, stream: pa.Table, tmp_path: Path) -> None:
    batch = stream.to_batches()[0]
    policy = Policy(first_check=10, warm_tuples_per_key=0.0, better=0.0)
    planner = Planner(replace(_dimension(store), policy=policy), tmp_path)
    _, chosen = planner.settle(batch)
    assert chosen is not None
    hits = chosen.hit_rate * 1000
    planner.review(chosen, batch, hits, 1000)
    assert len(list(tmp_path.glob("plan-*"))) == 1, "the hit rate was as predicted"
    planner.review(chosen, batch, abs(hits - 300), 1000)
    _, later = Planner(_dimension(store), tmp_path).settle(None)
    assert later is not None
    assert later.number == 2
    planner.review(chosen, batch, abs(hits - 300), 1000)
    assert len(list(tmp_path.glob("plan-*"))) == 2, "the plan in question was not in force any more"
