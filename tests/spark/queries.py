"""A streaming query from files to files, for tests that stop it, break something and start it again."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import semistream
from semistream.errors import SemiStreamError
from semistream.lab.workloads.relation import master_batches, stream_batches
from semistream.spark import enrich
from semistream.testing import as_multiset

N_KEYS = 4000
SCHEMA = "k long, seq long, qty int"
MASTER_COLUMNS = ["k", "m01", "m02", "m03"]
#: with this a scan operator cannot take a batch of FILE_ROWS in one pass, so tuples wait
MEMORY = "1MB"
FILE_ROWS = 400
#: far more than any of these queries takes; one that turns for ever must not hold up the tests
_PATIENCE_SECONDS = 120
_STARTS = 5
_TOO_SLOW = "Python worker failed to connect back"
_OURS = re.compile(r"\bsemistream(?:\.\w+)*\.\w+Error: (.+)")


def thorough(*cases: Any) -> list[Any]:
    """Cases of a parametrized test that much resemble another one; `pytest -m thorough` runs them."""
    return [pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.thorough) for case in cases]


def relation(seed: int = 1) -> pa.Table:
    return pa.Table.from_batches(master_batches(N_KEYS, seed, repeat=True)).select(MASTER_COLUMNS)


def build(table: pa.Table, path: Path) -> Path:
    semistream.build_pages(table, path, on="k", page_rows=64, overwrite=True)
    return path


def stream(files: int = 3, rows: int = FILE_ROWS, seed: int = 2) -> list[pa.Table]:
    table = pa.Table.from_batches(stream_batches(files * rows, int(N_KEYS * 1.2), 0.9, seed))
    return [table.slice(i * rows, rows) for i in range(files)]


class Query:
    """The folders of a query; it is started from them as often as a test likes."""

    def __init__(self, spark: SparkSession, folder: Path, schema: str = SCHEMA) -> None:
        self.spark = spark
        self.folder = folder
        self.schema = schema
        self.source, self.sink, self.checkpoint = folder / "in", folder / "out", folder / "checkpoint"
        self.source.mkdir(parents=True, exist_ok=True)

    def feed(self, *tables: pa.Table) -> None:
        """A file for each table, named in the order they come in."""
        for table in tables:
            number = len(list(self.source.iterdir()))
            pq.write_table(table, self.folder / "new.parquet")
            (self.folder / "new.parquet").rename(self.source / f"{number:03d}.parquet")

    def reading(self) -> DataFrame:
        """The files as a stream, one in a batch."""
        reader = self.spark.readStream.schema(self.schema).option("maxFilesPerTrigger", 1)
        return reader.parquet(str(self.source))

    def carrying(self, master: Path, df: DataFrame | None = None, **changes: Any) -> DataFrame:
        """The stream enriched by an operator that lets tuples wait."""
        arguments: dict[str, Any] = {
            "on": "k",
            "memory": MEMORY,
            "algorithm": "meshjoin",
            "max_delay": "600s",
            "checkpoint": self.checkpoint,
            "shards": 2,
        }
        return enrich(self.reading() if df is None else df, master, **{**arguments, **changes})

    def start(self, df: DataFrame, checkpoint: Path | None = None, **trigger: Any) -> StreamingQuery:
        writer = df.writeStream.format("parquet").option("path", str(self.sink))
        writer = writer.option("checkpointLocation", str(checkpoint or self.checkpoint))
        return (writer.trigger(**trigger) if trigger else writer).start()

    def one_batch(self, df: DataFrame, checkpoint: Path | None = None) -> None:
        """One batch with all files that are new (or the batch that was left open), then stop: tuples go on waiting."""
        self._run(df, checkpoint, once=True)

    def finish(self, df: DataFrame, checkpoint: Path | None = None) -> None:
        """All files that are new, until nobody waits."""
        self._run(df, checkpoint, availableNow=True)

    def _run(self, df: DataFrame, checkpoint: Path | None, **trigger: Any) -> None:
        def run() -> None:
            query = self.start(df, checkpoint, **trigger)
            try:
                assert query.awaitTermination(_PATIENCE_SECONDS), f"no end to it: {self.count()} rows are written"
            finally:
                query.stop()

        patiently(run)

    def begin(self, df: DataFrame) -> StreamingQuery:
        """Start it for good; the files that are there are done."""
        started: list[StreamingQuery] = []

        def run() -> None:
            started.append(self.start(df))
            started[-1].processAllAvailable()

        patiently(run)
        return started[-1]

    def rows(self) -> pa.Table:
        """What the sink holds for good; files of batches that failed are not in its log."""
        return self.spark.read.parquet(str(self.sink)).toArrow()

    def count(self) -> int:
        """How many rows the sink holds; before the first batch with rows there is no file to read a schema from."""
        if not (self.sink / "_spark_metadata").exists():
            return 0
        return self.spark.read.schema(self.schema).parquet(str(self.sink)).count()

    def forget_last_batch(self) -> None:
        """As if the driver had died after the last batch's tasks and before its commit: neither log has it."""
        commits = self.checkpoint / "commits"
        last = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
        for log in (commits, self.sink / "_spark_metadata"):
            for path in (log / str(last), log / f".{last}.crc"):
                path.unlink(missing_ok=True)

    def kept(self) -> list[Path]:
        """All files in which the checkpoint keeps what waits, the largest (records with tuples) first."""
        found = [path for path in (self.checkpoint / "semistream").rglob("*") if path.is_file()]
        return sorted(found, key=lambda path: (-path.stat().st_size, path))


def started(start: Callable[[], StreamingQuery]) -> StreamingQuery:
    """A query whose sources have started: it has done a batch, or has ended."""
    queries: list[StreamingQuery] = []

    def run() -> None:
        queries.append(start())
        while queries[-1].isActive and not queries[-1].recentProgress:
            time.sleep(0.1)
        failed = queries[-1].exception()
        if failed is not None:
            raise failed

    patiently(run)
    return queries[-1]


def patiently(run: Callable[[], None]) -> None:
    """Spark gives the process of a Python source ten seconds to start, which a busy machine may not have."""
    for attempt in range(_STARTS):
        try:
            return run()
        except StreamingQueryException as error:
            if _TOO_SLOW not in str(error) or attempt == _STARTS - 1:
                raise


def until(true: Callable[[], bool]) -> bool:
    """Whether something comes true within a time that is enough for a busy machine."""
    limit = time.monotonic() + 60
    while not true() and time.monotonic() < limit:
        time.sleep(0.1)
    return true()


def refusal(action: Callable[[], object], query: Query | None = None) -> str:
    """What an error of ours says; the test fails if the action succeeds or breaks in another way."""
    text = outcome(action)
    written = "" if query is None else f"; the sink holds {query.count()} rows"
    assert text is not None, f"it was not refused{written}"
    return text


def outcome(action: Callable[[], object]) -> str | None:
    """None if the action succeeds, or what an error of ours says; any other error fails the test."""
    try:
        action()
    except SemiStreamError as error:
        return str(error)
    except PySparkException as error:
        found = _OURS.findall(str(error))
        if not found:
            raise AssertionError(f"it failed, but with no error of ours: {str(error)[-3000:]}") from error
        return str(found[-1])
    return None


def assert_no_row_too_many(actual: pa.Table, expected: pa.Table) -> None:
    """Rows may be missing, as after a query that was refused; none is wrong or there twice."""
    extra = as_multiset(actual) - as_multiset(expected)
    assert not extra, f"{extra.total()} rows that should not be there, such as {next(iter(extra))}"
