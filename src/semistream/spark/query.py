"""Runs a pipeline: builds the query, starts it, and says what every micro-batch did."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from semistream.errors import ConfigError, SemiStreamError
from semistream.lake.table import FORMATS
from semistream.master.format import is_store
from semistream.sources.keeper import Keeper
from semistream.spark import metrics
from semistream.spark.checkpoints import clear_unborn, has_begun, sink_of
from semistream.spark.enrichment import Placement, enrich_by, enrich_star_by
from semistream.spark.failures import brief
from semistream.spark.lake import explain_write, write
from semistream.spark.names import folds_case
from semistream.spark.paths import shared_path
from semistream.spark.pipeline import Enrichment, Pipeline, PipelineError
from semistream.spark.session import running_session

_LOOK_SECONDS = 1
#: what workers can be told in a sink's options
_FILES = "file_size|row_group_size|compact"
_LAKE_OPTIONS = {"parquet": _FILES, "delta": _FILES, "iceberg": rf"{_FILES}|catalog(\..+)?"}
_COUNTS = ("hits", "misses", "unmatched", "expired", "left_early", "dead_letters", "pages_read", "bytes_read")


@dataclass
class Totals:
    """What a run has done so far, and how its last batch went."""

    batches: int = 0
    rows_in: int = 0
    rows_out: int = 0
    hits: int = 0
    misses: int = 0
    unmatched: int = 0
    #: tuples that waited for their key, in the shards that the last batch came to; and what became of such tuples
    parked: int = 0
    expired: int = 0
    left_early: int = 0
    dead_letters: int = 0
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


@contextmanager
def kept_masters(pipeline: Pipeline, say: Callable[[str], None], dry_run: bool = False) -> Iterator[Callable[[], None]]:
    """Builds the stores of a pipeline that are missing, and refreshes them in threads until the end.

    Gives what is to be called now and then: it raises when data is older than the pipeline allows.
    """

    def redacted(line: str) -> None:
        say(pipeline.secrets.redact(line))

    def check() -> None:
        for keeper in keepers:
            keeper.check()

    keepers = [
        Keeper(
            shared_path(one.path, "master data"),
            one.source,
            one.schedule,
            redacted,
            keep_versions=one.keep_versions,
            memory_limit=one.memory_bytes,
        )
        for one in pipeline.masters
    ]
    if dry_run:
        for keeper in keepers:
            if not is_store(keeper.path):
                raise PipelineError(
                    f"{keeper.path} does not exist yet, and --dry-run does not build it: build it first"
                )
        keepers.clear()
    try:
        with explained(pipeline):
            for keeper in keepers:
                keeper.start()
        yield check
    finally:
        for keeper in keepers:
            keeper.stop()


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
        if given.shuffle is not None or request.max_delay_s is not None or given.missing.is_apart:
            return given
        return request.spec.how, request.spec.suffix, request.memory_bytes, request.algorithm, request.options

    return [list(group) for _, group in groupby(enrichments, settings)]


def _enriched(frame: DataFrame, group: Sequence[Enrichment], checkpoint: str | None) -> DataFrame:
    if len(group) > 1:
        return enrich_star_by(frame, [(given.master, given.request) for given in group])
    (one,) = group
    where = Placement(name=one.name, shuffle=one.shuffle, checkpoint=checkpoint, missing=one.missing)
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


@dataclass(frozen=True)
class Writing:
    """Who writes the files of a pipeline, and how, or why not the workers."""

    by_workers: bool
    how: str


def writing(pipeline: Pipeline, frame: DataFrame) -> Writing:
    """Workers write where they can, unless the file says otherwise; a query that was begun goes on as it began."""
    sink = pipeline.sink
    against = 'the pipeline says writer = "spark"' if sink.writer == "spark" else _against_workers(pipeline)
    letters = [given.name for given in pipeline.enrichments if given.missing.letters is not None]
    if letters and sink.writer != "workers" and against is not None:
        raise PipelineError(
            f"the enrichment {letters[0]!r} has dead letters, which workers write, and here they do not: {against}. "
            "Change that, or choose another on_missing"
        )
    if sink.writer == "workers" or against is None:
        return Writing(True, f"workers write {sink.format} to {sink.path}: {explain_write(frame)}")
    if pipeline.checkpoint is not None and sink_of(_local(pipeline.checkpoint)) is not None:
        raise PipelineError(
            f"the query of {pipeline.checkpoint} was begun with workers that write, and now Spark would: {against}. "
            'Go on with writer = "workers" and what it can do, or name a new checkpoint and a new path'
        )
    return Writing(False, f"Spark writes {sink.format} itself: {against}")


def _against_workers(pipeline: Pipeline) -> str | None:
    """Why the workers do not write, where the file leaves it open."""
    sink = pipeline.sink
    if sink.format not in FORMATS:
        return f"workers write {', '.join(FORMATS)}"
    if sink.mode != "append":
        return f"workers append, and the mode is {sink.mode}"
    if sink.path is None or pipeline.checkpoint is None:
        return "workers need a path and a checkpoint"
    strange = sorted(name for name in sink.options if not re.fullmatch(_LAKE_OPTIONS[sink.format], name))
    if strange:
        return f"workers do not know the option {strange[0]}"
    if sink.format == "iceberg" and not any(name.partition(".")[0] == "catalog" for name in sink.options):
        return "workers need the option catalog"
    package = {"delta": "deltalake", "iceberg": "pyiceberg"}.get(sink.format)
    if package is not None and find_spec(package) is None:
        return f"workers need the package {package} (pip install 'semistream[{sink.format}]')"
    try:
        checkpoint = _local(pipeline.checkpoint)
        folder = None if sink.format == "iceberg" else shared_path(sink.path, "the table")
    except ConfigError:
        return "workers write to file systems that are mounted"
    if folder is not None and (folder / "_spark_metadata").exists():
        return f"{folder} has the log of Spark's own sink (_spark_metadata), by which its files are told"
    if has_begun(checkpoint) and sink_of(checkpoint) is None:
        return f"{checkpoint} was begun with Spark's own sink, which knows how far it got"
    return None


def _local(checkpoint: str) -> Path:
    return shared_path(checkpoint, "checkpoint")


def _lake_options(given: Mapping[str, str]) -> dict[str, Any]:
    """The options of `write`: those of a catalog are a mapping, `catalog.uri = …` in the file."""
    options: dict[str, Any] = {}
    for name, value in given.items():
        first, _, rest = name.partition(".")
        if rest:
            options.setdefault(first, {})[rest] = value
        else:
            options[name] = {"true": True, "false": False}.get(value, value)
    return options


def start(pipeline: Pipeline, frame: DataFrame) -> StreamingQuery:
    sink = pipeline.sink
    if writing(pipeline, frame).by_workers:
        assert sink.path is not None
        assert pipeline.checkpoint is not None
        return write(
            frame,
            sink.path,
            sink.format,
            checkpoint=pipeline.checkpoint,
            partition_by=sink.partition_by,
            trigger=pipeline.trigger or None,
            name=pipeline.name,
            **_lake_options(sink.options),
        )
    writer = frame.writeStream.format(sink.format).options(**sink.options).outputMode(sink.mode)
    writer = writer.queryName(pipeline.name)
    if sink.partition_by:
        writer = writer.partitionBy(*sink.partition_by)
    if pipeline.checkpoint is not None:
        # Elsewhere than on a mounted file system nothing is left half-written.
        with suppress(ConfigError):
            clear_unborn(_local(pipeline.checkpoint))
        writer = writer.option("checkpointLocation", pipeline.checkpoint)
    if pipeline.trigger:
        writer = writer.trigger(**pipeline.trigger)
    return writer.start(sink.path)


def follow(
    query: StreamingQuery,
    pipeline: Pipeline,
    stop: threading.Event,
    seen: Callable[[Totals], None],
    check: Callable[[], None] = lambda: None,
) -> Totals:
    """Wait for the query to end, or end it when `stop` is set or `check` raises; `seen` is called with every batch.

    A batch that is stopped half way is done again from the checkpoint when the pipeline is run next.
    """
    totals = Totals()
    began = time.perf_counter()
    ended = False
    while not ended:
        try:
            if stop.is_set():
                query.stop()
            check()
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
        except SemiStreamError:
            query.stop()
            raise
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
    totals.parked = int(values["parked"])
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
