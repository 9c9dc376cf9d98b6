"""When a query ends, its cache files go: executors live on, and would keep them until the application ends."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from functools import partial

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from semistream.spark import metrics
from semistream.spark.worker import drop_query

#: tasks for each core, so that every executor is likely to get one
_TASKS_A_CORE = 2
_WATCHED: dict[int, StreamingQueryListener] = {}


class _Cleaner(StreamingQueryListener):
    """Hears that a query has ended, and sends a small job round."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Nothing to do yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Metrics come by another way."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        query = str(event.id)
        if metrics.knows(query):
            # A listener must not wait for a job: it stands on the bus that reports the job's progress.
            threading.Thread(target=remove_caches, args=(self._spark, query), daemon=True).start()


def watch(spark: SparkSession) -> None:
    """Clean up after the queries of a session from now on."""
    context = id(spark.sparkContext)
    if context not in _WATCHED:
        _WATCHED[context] = _Cleaner(spark)
        spark.streams.addListener(_WATCHED[context])


def remove_caches(spark: SparkSession, query: str) -> None:
    """Remove a query's cache files from all executors; if the application ends meanwhile, Spark does it.

    The job runs as `mapInArrow`, so that it meets the worker processes which the query has used.
    """
    with suppress(Py4JError, PySparkException, OSError, AttributeError):
        tasks = spark.sparkContext.defaultParallelism * _TASKS_A_CORE
        job = spark.range(0, tasks, 1, tasks).mapInArrow(partial(_remove, query), "id long")
        job.write.format("noop").mode("overwrite").save()


def _remove(query: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    drop_query(query)
    return batches
