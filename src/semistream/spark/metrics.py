"""What every task says about its part of a micro-batch, on its way to the driver.

    worker: TaskMetrics -> accumulator -> driver: one record per (query, batch, enrichment, partition)

An accumulator costs nothing per row; a SparkContext has one, however many enrichments there are. A task that ran twice
replaces its own record, and a batch that ran twice its own records, so retries do not count double; what a task does
in several parts, as after `coalesce`, is added up. On the driver, `of` gives the sums of a batch, as a
`StreamingQueryListener` wants them when it hears of the batch's progress, and `frame` all that is remembered, as a
DataFrame.
"""

from __future__ import annotations

import json
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

from pyspark import SparkContext, TaskContext
from pyspark.accumulators import Accumulator, AccumulatorParam
from pyspark.sql import DataFrame, SparkSession

from semistream.parts.generation import Seen
from semistream.spark.dimension import Dimension

if TYPE_CHECKING:
    from semistream.spark.worker import OpenJoin, TaskInfo

_T = TypeVar("_T")
#: what the driver keeps: this many batches and jobs, and fewer if their tasks are many
_REMEMBERED_BATCHES, _REMEMBERED_RECORDS = 1000, 50_000
#: the queries under which batch jobs report: with SQL executions for batches, or stages where there is none
_JOB, _RDD = "job", "rdd"

#: counts of a task, by the name they have in `JoinStats`
_COUNTS = {
    "rows_out": "rows_out",
    "hits": "cache_hits",
    "shared_hits": "shared_hits",
    "misses": "cache_misses",
    "unmatched": "unmatched",
    "null_keys": "null_keys",
    "pages_read": "pages_read",
    "bytes_read": "bytes_read",
    "reads": "reads",
}
#: of tuples without a match that are parked or become dead letters (`parking.py`)
_PARKED = ("parked", "parked_bytes", "retried", "expired", "left_early", "dead_letters")
_SECONDS = ("seconds_input", "seconds_join", "seconds_build")
_SUMS = ("rows_in", *_COUNTS, "carried", *_PARKED, "builds", "cache_failures", *_SECONDS)
_LARGEST = ("cache_bytes", "peak_bytes", "generation", "master_version", "carried_oldest_s", "parked_oldest_s")
#: words: all that tasks said, and the last
_DIFFERENT, _LAST = ("algorithm", "reading"), ("algorithm_why", "reading_why", "last_cache_failure")
_FRACTIONS = ("seconds", *_SECONDS, "carried_oldest_s", "parked_oldest_s", "hit_rate")


@dataclass
class TaskMetrics:
    """The account of one dimension in one task."""

    query: str
    batch: int
    partition: int
    dimension: str
    algorithm: str = ""
    #: with "auto": why this one, and where a trial stands
    algorithm_why: str = ""
    #: how R was read, and why
    reading: str = ""
    reading_why: str = ""
    rows_in: int = 0
    #: the SQL execution, of which the last one counts when a batch runs several times
    execution: int = 0
    attempt: int = 0
    #: how often the shared cache had to do without its files, and why the last time
    cache_failures: int = 0
    last_cache_failure: str = ""
    values: dict[str, float] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    #: what the shared cache is told of the task
    seen: Seen = field(default_factory=Seen)

    @staticmethod
    def begin(dimension: Dimension, task: TaskInfo) -> TaskMetrics:
        query, execution, attempt = _job()
        new = TaskMetrics(query, execution, task.partition, dimension.name, execution=execution, attempt=attempt)
        if task.query is not None and task.batch is not None:
            new.query, new.batch = task.query, task.batch
        return new

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start

    def timed(self, name: str, items: Iterator[_T]) -> Iterator[_T]:
        """The same items; what it takes to make them is charged to a phase."""
        while True:
            with self.phase(name):
                try:
                    item = next(items)
                except StopIteration:
                    return
            yield item

    def done(self, held: OpenJoin) -> TaskMetrics:
        """The account of a task, with what was done for the shared cache since the task before it."""
        now, before = held.counts(), held.reported
        held.reported = now
        more = {name: value - before.get(name, 0) for name, value in now.items()}
        self.algorithm = held.join.name
        self.reading, self.reading_why = held.reading.name, held.reading.why
        self.values |= {name: more[counter] for name, counter in _COUNTS.items()}
        missing = held.dimension.missing
        if missing.letters is not None and not missing.waits:
            self.values["dead_letters"] = self.values["unmatched"]
        memory = held.join.memory
        generations = held.generations
        current = None if generations is None else generations.current
        self.values["cache_bytes"] = memory.now.get("cache", 0) + (0 if current is None else current.file_bytes)
        self.values["peak_bytes"] = memory.peak_bytes
        self.values["generation"] = 0 if current is None else current.number
        if generations is not None:
            self.values["builds"] = more["builds"]
            self.seconds["build"] = more["build_seconds"]
            self.cache_failures = int(more["failures"])
            self.last_cache_failure = generations.last_failure or ""
        self.values["master_version"] = held.version or 0
        self.seen = Seen(self.rows_in, int(more["cache_hits"]), int(more["shared_hits"]), more["seconds"])
        return self

    def to_json(self, enrichment: int) -> str:
        seconds = {f"seconds_{name}": round(spent, 6) for name, spent in self.seconds.items()}
        words = {"algorithm": self.algorithm, "reading": self.reading, "reading_why": self.reading_why}
        values = {**words, "rows_in": self.rows_in, **self.values, **seconds}
        if self.algorithm_why:
            values["algorithm_why"] = self.algorithm_why
        if self.cache_failures:
            values |= {"cache_failures": self.cache_failures, "last_cache_failure": self.last_cache_failure}
        where = [self.query, self.batch, self.execution, enrichment, self.dimension, self.partition, self.attempt]
        return json.dumps([*where, values])


def _job() -> tuple[str, int, int]:
    """What a task belongs to, if it is no streaming query, and which attempt this is."""
    task = TaskContext.get()
    if task is None:
        return _JOB, 0, 0
    execution = task.getLocalProperty("spark.sql.execution.id")
    if execution is None:
        return _RDD, task.stageId(), task.taskAttemptId()
    return _JOB, int(execution), task.taskAttemptId()


class _Records(AccumulatorParam[list[str]]):
    """Collects JSON texts in a worker; on the driver they go straight into the store and are not kept."""

    on_driver = False

    def zero(self, value: list[str]) -> list[str]:
        return []

    def addInPlace(self, value1: list[str], value2: list[str]) -> list[str]:
        if not self.on_driver:
            return value1 + value2
        for text in value2:
            _STORE.add(text)
        return value1

    def __getstate__(self) -> dict[str, Any]:
        return {}


@dataclass
class _Run:
    """One enrichment in one run of a batch: by partition, the last attempt and what it said."""

    execution: int
    tasks: dict[int, tuple[int, list[dict[str, Any]]]] = field(default_factory=dict)

    def __len__(self) -> int:
        return sum(len(parts) for _, parts in self.tasks.values())

    def add(self, partition: int, attempt: int, values: dict[str, Any]) -> int:
        """Returns by how many records this has grown."""
        known, parts = self.tasks.get(partition, (None, []))
        if known == attempt:
            parts.append(values)
            return 1
        self.tasks[partition] = (attempt, [values])
        return 1 - len(parts)


class _Store:
    """The last batches and jobs."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._batches: OrderedDict[tuple[str, int], dict[tuple[int, str], _Run]] = OrderedDict()
        self._records = 0
        self._queries: set[str] = set()
        self._last_job: tuple[str, int] | None = None

    def __len__(self) -> int:
        """Batches that are remembered."""
        return len(self._batches)

    def add(self, text: str) -> None:
        query, batch, execution, enrichment, dimension, partition, attempt, values = json.loads(text)
        with self._lock:
            if query in (_JOB, _RDD):
                self._last_job = (query, batch)
            elif query not in self._queries:
                self._queries.add(query)
                ARRIVED.set()
            runs = self._batches.setdefault((query, batch), {})
            run = runs.get((enrichment, dimension))
            if run is None or run.execution < execution:
                self._records -= 0 if run is None else len(run)
                run = runs[(enrichment, dimension)] = _Run(execution)
            if run.execution == execution:
                self._records += run.add(partition, attempt, values)
            while len(self._batches) > _REMEMBERED_BATCHES or (
                self._records > _REMEMBERED_RECORDS and len(self._batches) > 1
            ):
                _, gone = self._batches.popitem(last=False)
                self._records -= sum(map(len, gone.values()))

    def batch(self, query: str, batch: int, dimension: str | None) -> dict[str, Any] | None:
        with self._lock:
            runs = self._batches.get((query, batch), {})
            tasks = [
                task for (_, name), run in runs.items() if dimension in (None, name) for task in run.tasks.values()
            ]
            records = [values for _, parts in tasks for values in parts]
        return {**_summary(records), "tasks": len(tasks)} if records else None

    def job(self, dimension: str | None) -> dict[str, Any] | None:
        return None if self._last_job is None else self.batch(*self._last_job, dimension)

    def rows(self) -> list[tuple[tuple[str, int, str], dict[str, Any]]]:
        with self._lock:
            keys = {(query, batch, name) for (query, batch), runs in self._batches.items() for _, name in runs}
        return [(key, values) for key in sorted(keys) if (values := self.batch(*key)) is not None]

    def queries(self) -> set[str]:
        with self._lock:
            return set(self._queries)

    def dismiss(self, queries: set[str]) -> None:
        with self._lock:
            self._queries -= queries

    def forget_jobs(self) -> None:
        """Another SparkContext counts its executions anew."""
        with self._lock:
            for key in [key for key in self._batches if key[0] in (_JOB, _RDD)]:
                self._records -= sum(map(len, self._batches.pop(key).values()))
            self._last_job = None


_STORE = _Store()
#: set when a query reports for the first time
ARRIVED = threading.Event()


def _summary(tasks: list[dict[str, Any]]) -> dict[str, Any]:
    summary: dict[str, Any] = {name: sum(values.get(name, 0) for values in tasks) for name in _SUMS}
    summary |= {name: max(values.get(name, 0) for values in tasks) for name in _LARGEST}
    summary["seconds"] = sum(summary[name] for name in _SECONDS)
    asked = summary["hits"] + summary["misses"]
    summary["hit_rate"] = summary["hits"] / asked if asked else 0.0
    for name in _DIFFERENT:
        summary[name] = ", ".join(sorted({str(values[name]) for values in tasks if values.get(name)}))
    for name in _LAST:
        said = [str(values[name]) for values in tasks if values.get(name)]
        summary[name] = said[-1] if said else ""
    return summary


class Reporter:
    """How the tasks of one `enrich` reach the driver: the accumulator of all of them, and which one this is."""

    def __init__(self, accumulator: Accumulator[list[str]], enrichment: int) -> None:
        self._accumulator = accumulator
        self._enrichment = enrichment

    def send(self, task_metrics: TaskMetrics) -> None:
        self._accumulator.add([task_metrics.to_json(self._enrichment)])


_ACCUMULATORS: WeakKeyDictionary[SparkContext, Accumulator[list[str]]] = WeakKeyDictionary()
_ACCUMULATORS_LOCK = threading.Lock()
_ENRICHMENTS = count()


def collector(spark: SparkSession) -> Reporter:
    """The way to the driver for the tasks of one enrichment."""
    context = spark.sparkContext
    with _ACCUMULATORS_LOCK:
        found = _ACCUMULATORS.get(context)
        if found is None:
            param = _Records()
            param.on_driver = True
            _STORE.forget_jobs()
            found = _ACCUMULATORS[context] = context.accumulator([], param)
        return Reporter(found, next(_ENRICHMENTS))


def of(query_id: str, batch_id: int, name: str | None = None) -> dict[str, Any] | None:
    """What a micro-batch did, over all tasks, in one dimension or in all; None if nothing is known of it.

    To be used in `StreamingQueryListener.onQueryProgress`: `of(str(event.progress.id), event.progress.batchId)`. A
    batch job reports under the query "job" and the id of its SQL execution, as Spark's UI shows it; a job on the
    DataFrame's `rdd` has none, and reports under "rdd" and the id of its stage.
    """
    return _STORE.batch(query_id, batch_id, name)


def of_job(name: str | None = None) -> dict[str, Any] | None:
    """What the batch job did that was the last one to report."""
    return _STORE.job(name)


def queries() -> set[str]:
    """Streaming queries of which a task has reported, and which nobody has dismissed."""
    return _STORE.queries()


def dismiss(ended: set[str]) -> None:
    """Queries that have ended are no longer listed by `queries`; their batches are remembered."""
    _STORE.dismiss(ended)


def frame(spark: SparkSession) -> DataFrame:
    """All that is remembered, a row for each query, batch and dimension; counts are whole numbers."""
    columns = (*_SUMS, *_LARGEST, "seconds", "hit_rate", "tasks")
    kinds = {column: float if column in _FRACTIONS else int for column in columns}
    words = (*_DIFFERENT, *_LAST)
    rows = [
        (*key, *(values[name] for name in words), *(kind(values[name]) for name, kind in kinds.items()))
        for key, values in _STORE.rows()
    ]
    types = ", ".join(f"{column} {'double' if kind is float else 'long'}" for column, kind in kinds.items())
    texts = ", ".join(f"{word} string" for word in words)
    return spark.createDataFrame(rows, f"query string, batch long, dimension string, {texts}, {types}")
