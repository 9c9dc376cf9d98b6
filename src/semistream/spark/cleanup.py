"""When a query ends, its cache files go: executors live on, and would keep them until the application ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from weakref import WeakKeyDictionary

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from semistream.spark import metrics
from semistream.spark.worker import WORKSHOP

#: tasks for each core, so that every executor is likely to get one
_TASKS_A_CORE = 2
_LOOK_SECONDS = 2.0
#: what Spark raises when it was stopped meanwhile
_STOPPED = (Py4JError, PySparkException, OSError, AttributeError)
_WATCHERS: WeakKeyDictionary[SparkContext, threading.Thread] = WeakKeyDictionary()
_WATCHERS_LOCK = threading.Lock()


def watch(df: DataFrame) -> None:
    """Clean up after the queries of an application from now on, if this DataFrame belongs to one.

    One thread looks which queries are gone. A listener would hear of those of its own session only, and `foreachBatch`
    sees a copy of the session.
    """
    context = df.sparkSession.sparkContext
    if not df.isStreaming and context.getLocalProperty("sql.streaming.queryId") is None:
        return
    with _WATCHERS_LOCK:
        known = _WATCHERS.get(context)
        if known is None or not known.is_alive():
            session = df.sparkSession.newSession()
            thread = threading.Thread(target=_sweep, args=(session,), name="semistream clean-up", daemon=True)
            _WATCHERS[context] = thread
            thread.start()


def _sweep(spark: SparkSession) -> None:
    """Remove what queries have left that are gone, until the application ends."""
    with suppress(*_STOPPED):
        while spark.sparkContext._jsc is not None:
            time.sleep(_LOOK_SECONDS)
            # In this order: a query that starts meanwhile is not among those which have reported.
            reported = metrics.queries()
            if reported:
                active = spark._jsparkSession.sharedState().activeStreamingQueries().keySet().toString()
                ended = {query for query in reported if query not in active}
                if ended:
                    remove_caches(spark, *ended)
                    metrics.dismiss(ended)


def remove_caches(spark: SparkSession, *queries: str) -> None:
    """Remove the cache files of queries from all executors; if the application ends meanwhile, Spark does it.

    The job runs as `mapInArrow`, so that it meets the worker processes which the queries have used.
    """
    with suppress(*_STOPPED):
        tasks = spark.sparkContext.defaultParallelism * _TASKS_A_CORE
        job = spark.range(0, tasks, 1, tasks).mapInArrow(partial(_remove, queries), "id long")
        job.write.format("noop").mode("overwrite").save()


def _remove(queries: tuple[str, ...], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for query in queries:
        WORKSHOP.drop(query)
    return batches
