"""What every task says about its part of a micro-batch, on its way to the driver.

    worker: TaskMetrics -> accumulator -> driver: one record per (query, batch, dimension, partition)

An accumulator costs nothing a row. A task that ran twice replaces its own record, so retries do not count double. On
the driver, `of` gives the sums of a batch, as a `StreamingQueryListener` wants them when it hears of the batch's
progress, and `frame` all that is remembered, as a DataFrame.
"""

from __future__ import annotations

import json
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from pyspark.accumulators import Accumulator, AccumulatorParam
from pyspark.sql import DataFrame, SparkSession

from semistream.spark.plan import Dimension

if TYPE_CHECKING:
    from semistream.spark.worker import OpenJoin, TaskInfo

_T = TypeVar("_T")
_REMEMBERED_BATCHES = 1000

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
_SUMS = ("rows_in", *_COUNTS, "seconds_input", "seconds_join", "seconds_build")
_LARGEST = ("cache_bytes", "peak_bytes", "generation", "master_version", "carried", "carried_oldest_s")


@dataclass
class TaskMetrics:
    """The account of one dimension in one task."""

    query: str
    batch: int
    partition: int
    dimension: str
    algorithm: str = ""
    rows_in: int = 0
    values: dict[str, float] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    _before: dict[str, float] = field(default_factory=dict)

    @staticmethod
    def begin(dimension: Dimension, task: TaskInfo) -> TaskMetrics:
        batch = -1 if task.batch is None else task.batch
        return TaskMetrics(task.query or "job", batch, task.partition, dimension.name)

    def mark(self, held: OpenJoin) -> None:
        """Counts of a join run on between tasks: remember where this one began."""
        self._before = held.join.stats.as_dict()

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
        now = held.join.stats.as_dict()
        self.algorithm = held.join.name
        for name, counter in _COUNTS.items():
            self.values[name] = now[counter] - self._before.get(counter, 0)
        memory = held.join.memory
        generations = held.generations
        current = None if generations is None else generations.current
        self.values["cache_bytes"] = memory.now.get("cache", 0) + (0 if current is None else current.file_bytes)
        self.values["peak_bytes"] = memory.peak_bytes
        self.values["generation"] = 0 if current is None else current.number
        self.values["master_version"] = held.version or 0
        return self

    def to_json(self) -> str:
        seconds = {f"seconds_{name}": round(spent, 6) for name, spent in self.seconds.items()}
        told = {"algorithm": self.algorithm, "rows_in": self.rows_in, **self.values, **seconds}
        return json.dumps([self.query, self.batch, self.partition, self.dimension, told])


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


class _Store:
    """The last batches of every query."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._batches: OrderedDict[tuple[str, int], dict[tuple[str, int], dict[str, Any]]] = OrderedDict()

    def add(self, text: str) -> None:
        query, batch, partition, dimension, told = json.loads(text)
        with self._lock:
            self._batches.setdefault((query, batch), {})[(dimension, partition)] = told
            while len(self._batches) > _REMEMBERED_BATCHES:
                self._batches.popitem(last=False)

    def batch(self, query: str, batch: int, dimension: str | None) -> dict[str, Any] | None:
        with self._lock:
            found = dict(self._batches.get((query, batch), {}))
        told = [values for (name, _), values in found.items() if dimension in (None, name)]
        return _summary(told) if told else None

    def rows(self) -> list[tuple[tuple[str, int, str], dict[str, Any]]]:
        with self._lock:
            keys = {(query, batch, name) for (query, batch), found in self._batches.items() for name, _ in found}
        return [(key, self.batch(*key) or {}) for key in sorted(keys)]

    def knows(self, query: str) -> bool:
        with self._lock:
            return any(known == query for known, _ in self._batches)

    def forget(self, query: str, batch: int) -> None:
        with self._lock:
            self._batches.pop((query, batch), None)


_STORE = _Store()


def _summary(told: list[dict[str, Any]]) -> dict[str, Any]:
    summary: dict[str, Any] = {name: sum(values.get(name, 0) for values in told) for name in _SUMS}
    summary |= {name: max(values.get(name, 0) for values in told) for name in _LARGEST}
    summary["carried"] = sum(values.get("carried", 0) for values in told)
    summary["seconds"] = sum(summary[name] for name in ("seconds_input", "seconds_join", "seconds_build"))
    asked = summary["hits"] + summary["misses"]
    summary["hit_rate"] = summary["hits"] / asked if asked else 0.0
    summary["tasks"] = len(told)
    summary["algorithm"] = ", ".join(sorted({str(values["algorithm"]) for values in told if values.get("algorithm")}))
    return summary


def collector(spark: SparkSession) -> Accumulator[list[str]]:
    """The accumulator through which tasks report; one for each enrichment."""
    param = _Records()
    param.on_driver = True
    return spark.sparkContext.accumulator([], param)


def of(query_id: str, batch_id: int, name: str | None = None) -> dict[str, Any] | None:
    """What a micro-batch did, over all tasks, in one dimension or in all; None if nothing is known of it.

    To be used in `StreamingQueryListener.onQueryProgress`: `of(str(event.progress.id), event.progress.batchId)`. A
    batch job reports under the query "job" and the batch -1.
    """
    return _STORE.batch(query_id, batch_id, name)


def knows(query_id: str) -> bool:
    """Whether any task has reported for this query."""
    return _STORE.knows(query_id)


def of_job(name: str | None = None) -> dict[str, Any] | None:
    """What the last batch job did."""
    return of("job", -1, name)


def forget_job() -> None:
    """Start the account of batch jobs anew: they all report under one name."""
    _STORE.forget("job", -1)


def frame(spark: SparkSession) -> DataFrame:
    """All that is remembered, a row for each query, batch and dimension."""
    columns = (*_SUMS, *_LARGEST, "seconds", "hit_rate", "tasks")
    rows = [
        (*key, str(told.get("algorithm", "")), *(float(told.get(column, 0)) for column in columns))
        for key, told in _STORE.rows()
    ]
    kinds = ", ".join(f"{column} double" for column in columns)
    return spark.createDataFrame(rows, f"query string, batch long, dimension string, algorithm string, {kinds}")
