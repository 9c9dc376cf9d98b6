"""Runs a pipeline: builds the query, starts it, and says what every micro-batch did."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from semistream.errors import SemiStreamError
from semistream.spark import metrics
from semistream.spark.enrichment import Placement, enrich_by, enrich_star_by
from semistream.spark.failures import brief
from semistream.spark.names import folds_case
from semistream.spark.pipeline import Enrichment, Pipeline, PipelineError
from semistream.spark.session import running_session

_LOOK_SECONDS = 1
_COUNTS = ("hits", "misses", "unmatched", "pages_read", "bytes_read")


@dataclass
class Totals:
    """What a run has done so far, and how its last batch went."""

    batches: int = 0
    rows_in: int = 0
    rows_out: int = 0
    hits: int = 0
    misses: int = 0
    unmatched: int = 0
    pages_read: int = 0
    bytes_read: int = 0
    cache_bytes: int = 0
    master_version: int = 0
    seconds: float = 0.0
    batch: int = -1
    rate_per_s: float = 0.0
    lag: str = ""

    @property
    def hit_rate(self) -> float:
        asked = self.hits + self.misses
        return self.hits / asked if asked else 0.0


@contextmanager
def spark_for(pipeline: Pipeline, say: Callable[[str], None]) -> Iterator[SparkSession]:
    """A session for the pipeline, stopped at the end; what it says comes without values from the environment."""

    def redacted(line: str) -> None:
        say(pipeline.secrets.redact(line))

    with explained(pipeline), running_session(pipeline.name, pipeline.master, pipeline.conf, redacted) as spark:
        yield spark


def build(spark: SparkSession, pipeline: Pipeline) -> DataFrame:
    """The enriched stream; nothing runs yet, but paths, columns, types and master data have been checked."""
    source, sink = pipeline.source, pipeline.sink
    reader = spark.readStream.format(source.format).options(**source.options)
    if source.schema is not None:
        reader = reader.schema(source.schema)
    frame = _viewed(reader.load(source.path), source.sql, "source")
    for group in _groups(pipeline.enrichments):
        frame = _enriched(frame, group, pipeline.checkpoint)
    frame = _viewed(frame, sink.sql, "enriched")
    alike = str.lower if folds_case(spark) else str
    known = {alike(column) for column in frame.columns}
    for column in sink.partition_by:
        if alike(column) not in known:
            raise PipelineError(
                f"[sink] partition_by names {column!r}, which is no column; there are {', '.join(frame.columns)}"
            )
    return frame


def _groups(enrichments: Sequence[Enrichment]) -> list[list[Enrichment]]:
    """Neighbours that differ in nothing but master, key and columns, to be done in one pass through Python."""

    def settings(given: Enrichment) -> object:
        request = given.request
        if given.shuffle is not None or request.max_delay_s is not None:
            return given
        return request.spec.how, request.spec.suffix, request.memory_bytes, request.algorithm, request.options

    return [list(group) for _, group in groupby(enrichments, settings)]


def _enriched(frame: DataFrame, group: Sequence[Enrichment], checkpoint: str | None) -> DataFrame:
    if len(group) > 1:
        return enrich_star_by(frame, [(given.master, given.request) for given in group])
    (one,) = group
    where = Placement(name=one.name, shuffle=one.shuffle, checkpoint=checkpoint)
    return enrich_by(frame, one.master, one.request, where)


def _names(enrichments: Sequence[Enrichment]) -> list[str]:
    """What the metrics call them; those of one pass are numbered."""
    return [
        given.name if len(group) == 1 else f"{Path(given.master).name}-{number}"
        for group in _groups(enrichments)
        for number, given in enumerate(group, 1)
    ]


def _viewed(frame: DataFrame, sql: str | None, name: str) -> DataFrame:
    """What a SELECT from the table `name` makes of the frame."""
    if sql is None:
        return frame
    frame.createOrReplaceTempView(name)
    return frame.sparkSession.sql(sql)


def start(pipeline: Pipeline, frame: DataFrame) -> StreamingQuery:
    sink = pipeline.sink
    writer = frame.writeStream.format(sink.format).options(**sink.options).outputMode(sink.mode)
    writer = writer.queryName(pipeline.name)
    if sink.partition_by:
        writer = writer.partitionBy(*sink.partition_by)
    if pipeline.checkpoint is not None:
        writer = writer.option("checkpointLocation", pipeline.checkpoint)
    if pipeline.trigger:
        writer = writer.trigger(**pipeline.trigger)
    return writer.start(sink.path)


def follow(query: StreamingQuery, pipeline: Pipeline, stop: threading.Event, seen: Callable[[Totals], None]) -> Totals:
    """Wait for the query to end, or end it when `stop` is set; `seen` is called with every batch.

    A batch that is stopped half way is done again from the checkpoint when the pipeline is run next.
    """
    totals = Totals()
    began = time.perf_counter()
    ended = False
    while not ended:
        try:
            if stop.is_set():
                query.stop()
            ended = bool(query.awaitTermination(_LOOK_SECONDS))
            for progress in query.recentProgress:
                if int(progress["batchId"]) > totals.batch and "addBatch" in progress["durationMs"]:
                    _add(totals, pipeline, str(query.id), progress)
                    seen(totals)
        except (PySparkException, Py4JError, OSError):
            # A service manager that stops us may have stopped Java as well, which is then no news.
            if not stop.is_set():
                raise
            ended = True
        totals.seconds = time.perf_counter() - began
    return totals


def _add(totals: Totals, pipeline: Pipeline, query: str, progress: Mapping[str, Any]) -> None:
    totals.batch = int(progress["batchId"])
    totals.batches += 1
    totals.rate_per_s = float(progress["processedRowsPerSecond"] or 0.0)
    values = metrics.of(query, totals.batch)
    totals.lag = _lag(progress, (values or {}).get("carried_oldest_s", 0.0))
    names = _names(pipeline.enrichments)
    first, last = (metrics.of(query, totals.batch, name) for name in (names[0], names[-1]))
    if not values or not first or not last:
        return
    totals.rows_in += int(first["rows_in"])
    totals.rows_out += int(last["rows_out"])
    for name in _COUNTS:
        setattr(totals, name, getattr(totals, name) + int(values[name]))
    totals.cache_bytes = int(values["cache_bytes"])
    totals.master_version = int(last["master_version"])


def _lag(progress: Mapping[str, Any], carried_s: float) -> str:
    """What the source still has waiting, if it says so; else how old a row was when its batch was done."""
    for source in progress["sources"]:
        behind = (source["metrics"] or {}).get("maxOffsetsBehindLatest")
        if behind is not None:
            return f"{float(behind):,.0f} offsets"
    return f"{progress['durationMs'].get('triggerExecution', 0) / 1000 + carried_s:.1f} s"


@contextmanager
def explained(pipeline: Pipeline) -> Iterator[None]:
    """Turn Spark's errors, pages of plans and stack traces, into what is wrong, without the environment's values."""
    try:
        yield
    except (SemiStreamError, PySparkException, Py4JError, OSError) as error:
        raise PipelineError(pipeline.secrets.redact(brief(error))) from None
    except Exception as error:
        # A mistake of ours: its trace is wanted, but its text may quote anything.
        text = pipeline.secrets.redact(f"{type(error).__name__}: {error}")
        raise RuntimeError(text).with_traceback(error.__traceback__) from None
