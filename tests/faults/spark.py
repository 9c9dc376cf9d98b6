"""Spark's part of the faults: what users compose, start again and replace, and what dies under it.

    python -m tests.faults.spark                 all, some minutes
    python -m tests.faults.spark coalesce kill   those with one of these words in their name

Each scenario is a query, or several, with a carrying operator. In the end its sink must hold exactly the rows of the
join; where a start is to be refused, none of its rows. A process of its own, since the JVM does not survive the forks
of the other scenarios.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from tests.faults.__main__ import show
from tests.faults.harness import Result, Verdict, compare
from tests.spark.cluster import cluster
from tests.spark.on_cluster import SPECULATION, Program, Work, dying_tasks, slow_tasks
from tests.spark.queries import Query, build, outcome, relation, stream
from tests.spark.soak import Run, Tormentor, verify

from semistream.spark.session import open_session
from semistream.testing import as_multiset, reference_join

R = relation()
FILES = stream()
S = pa.concat_tables(FILES)
WHOLE = reference_join(S, R, "k", "left")
FIRST = reference_join(FILES[0], R, "k", "left")
CARRYING: dict[str, Any] = {"memory": "1.2MB", "algorithm": "ssbj", "max_delay": "2s"}


class Stage:
    """What a scenario plays on: a session, an empty folder, R, and the account of what happened."""

    def __init__(self, name: str, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.folder = folder
        self.result = Result(name, points=1)
        self.store = build(R, folder / "r")
        self.query = Query(spark, folder / "query")

    def expect(self, found: pa.Table, expected: pa.Table) -> None:
        self.result.verdict += compare(as_multiset(found).elements(), as_multiset(expected).elements())

    def refused(self, action: Callable[[], object], word: str) -> None:
        """The action must end with an error of ours that has this word."""
        text = outcome(action)
        if text is None or word not in text:
            self.result.failures.append(f"{self.result.name}: {text or 'it was not refused'}")

    def waiting(self) -> None:
        """One batch has run, and tuples of it wait."""
        self.query.feed(FILES[0])
        self.query.one_batch(self.query.carrying(self.store))

    def finished(self, expected: pa.Table, **changes: Any) -> None:
        self.query.finish(self.query.carrying(self.store, **changes))
        self.expect(self.query.rows(), expected)


def coalesce(stage: Stage) -> None:
    stage.query.feed(*FILES)
    stage.query.finish(stage.query.carrying(stage.store).coalesce(1))
    stage.expect(stage.query.rows(), WHOLE)


def union(stage: Stage) -> None:
    other = Query(stage.spark, stage.folder / "other")
    other.feed(FILES[1])
    stage.query.feed(*FILES)
    bare = other.reading().selectExpr("k", "seq", "qty", *(f"cast(null as long) {name}" for name in R.column_names[1:]))
    stage.query.finish(bare.union(stage.query.carrying(stage.store)))
    nothing = reference_join(FILES[1], R.slice(0, 0), "k", "left")
    stage.expect(stage.query.rows(), pa.concat_tables([WHOLE, nothing]))


def two_sinks(stage: Stage) -> None:
    stage.waiting()
    second = Query(stage.spark, stage.folder / "second")
    stage.refused(lambda: second.finish(stage.query.carrying(stage.store)), "checkpoint")
    if second.count():
        stage.expect(second.rows(), WHOLE.slice(0, 0))
    stage.finished(FIRST)


def changed_options(stage: Stage) -> None:
    stage.waiting()
    changes: list[dict[str, Any]] = [{"how": "inner"}, {"on": {"seq": "k"}}, {"select": ["m01"]}, {"name": "other"}]
    changes += [{"algorithm": "ssbj"}, {"k": 9}, {"suffix": "_r"}]
    for change in changes:
        word = "option" if "k" in change else next(iter(change))
        stage.refused(lambda change=change: stage.query.finish(stage.query.carrying(stage.store, **change)), word)
    stage.finished(FIRST)


def random_column(stage: Stage) -> None:
    def enriched() -> Any:
        return stage.query.carrying(stage.store, stage.query.reading().withColumn("id", F.expr("uuid()")))

    stage.query.feed(FILES[0])
    stage.query.one_batch(enriched())
    stage.query.forget_last_batch()
    stage.refused(lambda: stage.query.finish(enriched()), "is not what it was")


def damaged_records(stage: Stage) -> None:
    stage.waiting()
    for record in stage.query.kept()[:2]:
        sound = record.read_bytes()
        for broken in (None, b"", sound[:-1], sound[:-1] + bytes([sound[-1] ^ 1])):
            if broken is None:
                record.unlink()
            else:
                record.write_bytes(broken)
                stage.result.flips += 1
            stage.refused(lambda: stage.query.finish(stage.query.carrying(stage.store)), record.name)
            record.write_bytes(sound)
    stage.finished(FIRST)


def replay(stage: Stage) -> None:
    """The last batch again, after R has got a new version."""
    stage.query.feed(*FILES)
    stage.query.one_batch(stage.query.carrying(stage.store))
    stage.query.forget_last_batch()
    build(relation(2), stage.store)
    stage.finished(WHOLE)


def store_replaced(stage: Stage) -> None:
    stage.waiting()
    shutil.rmtree(stage.store)
    build(relation(2), stage.store)
    before = stage.query.rows()
    stage.refused(lambda: stage.query.finish(stage.query.carrying(stage.store)), "master data")
    stage.expect(stage.query.rows(), before)


def store_with_columns_in_another_order(stage: Stage) -> None:
    stage.query.feed(FILES[0])
    started = stage.query.begin(stage.query.carrying(stage.store, max_delay="1s"))
    try:
        build(R.select(["m03", "m01", "k", "m02"]), stage.store)
        stage.query.feed(*FILES[1:])
        started.processAllAvailable()
    finally:
        started.stop()
    stage.finished(WHOLE, max_delay="1s")


def _on_cluster(stage: Stage, mishap: str, conf: dict[str, str]) -> None:
    for name in ("in", "marks"):
        (stage.folder / name).mkdir()
    for number in range(12):
        pq.write_table(S.slice(number * 100, 100), stage.folder / "in" / f"{number}.parquet")
    with cluster(stage.folder / "cluster") as on:
        queries = {"key": {"memory": "4MB", "shuffle": "key"}, "carrying": CARRYING}
        with Program(Work(on.url, str(stage.folder), queries, mishap, conf)) as running:
            running.finish()
            for rows in running.results(stage.spark).values():
                stage.expect(rows, WHOLE)
    happened = [path.name for path in (stage.folder / "marks").iterdir()]
    stage.result.kills += sum("died" in mark for mark in happened)
    if not happened:
        stage.result.failures.append(f"{stage.result.name}: nothing has happened")


def stage_retry(stage: Stage) -> None:
    _on_cluster(stage, dying_tasks.__name__, {})


def speculation(stage: Stage) -> None:
    _on_cluster(stage, slow_tasks.__name__, SPECULATION)


def kills(stage: Stage) -> None:
    """Two of each kind; `make soak` is the long version."""
    with cluster(stage.folder / "cluster") as on:
        run = Run(str(stage.folder / "run"), on.url, ["meshjoin-left", "ssbj-inner"])
        run.prepare()
        account = Tormentor(run, on, seed=3).torment(["worker", "executor", "driver"] * 2)
    stage.result.kills += account.kills.total()
    for name in run.joins:
        found = verify(stage.spark, run, name)
        stage.result.verdict += Verdict(found.lost, found.doubled, found.wrong)


SPARK_SCENARIOS: list[Callable[[Stage], None]] = [
    coalesce,
    union,
    two_sinks,
    changed_options,
    random_column,
    damaged_records,
    replay,
    store_replaced,
    store_with_columns_in_another_order,
    stage_retry,
    speculation,
    kills,
]


def run_on_spark(words: list[str]) -> list[Result]:
    """All scenarios, or those with one of the words in their name, one after the other in one session."""
    results = []
    with tempfile.TemporaryDirectory(prefix="faults-spark-") as place:
        conf = {"spark.driver.memory": "1g", "spark.log.level": "OFF", "spark.local.dir": f"{place}/local"}
        spark = open_session("faults", "local[2]", {**conf, "spark.sql.shuffle.partitions": "2"})
        try:
            for scenario in SPARK_SCENARIOS:
                name = f"spark: {scenario.__name__.replace('_', ' ')}"
                if words and not any(word in name for word in words):
                    continue
                print(f"{name} ...", file=sys.stderr, flush=True)
                folder = Path(place) / scenario.__name__
                folder.mkdir()
                stage = Stage(name, spark, folder)
                try:
                    scenario(stage)
                except Exception:
                    stage.result.failures.append(f"{name}: {traceback.format_exc()[-2000:]}")
                for failure in stage.result.failures:
                    print(failure, file=sys.stderr, flush=True)
                results.append(stage.result)
        finally:
            spark.stop()
    return results


def main(words: list[str]) -> int:
    results = run_on_spark(words)
    show(results)
    return 0 if results and all(result.is_right for result in results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
