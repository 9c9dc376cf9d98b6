"""When a query ends, its cache files go, and the versions of R that nobody will ask for again are given back.

Executors live on and would keep the files until the application ends; a store would keep the versions for ever. A query
that has a batch left to attempt, or tuples that wait, keeps its versions: it may be started again.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from weakref import WeakKeyDictionary

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from semistream.errors import SemiStreamError
from semistream.master.leases import owners_of, unpin_before
from semistream.spark import metrics
from semistream.spark.paths import shared_path
from semistream.spark.records import done_before
from semistream.spark.worker import WORKSHOP

#: tasks for each core, so that every executor is likely to get one
_TASKS_PER_CORE = 2
_LOOK_SECONDS = 2.0
#: what Spark raises when it was stopped meanwhile
_STOPPED = (Py4JError, PySparkException, OSError, AttributeError)
_WATCHERS: WeakKeyDictionary[SparkContext, threading.Thread] = WeakKeyDictionary()
_WATCHERS_LOCK = threading.Lock()
#: the page stores that queries of this process have used
_STORES: set[str] = set()


def watch(df: DataFrame, store: Path) -> None:
    """Clean up after the queries of an application from now on, if this DataFrame, read with a store, belongs to one.

    One thread looks which queries are gone. A listener would hear of those of its own session only, and `foreachBatch`
    sees a copy of the session.
    """
    context = df.sparkSession.sparkContext
    if not df.isStreaming and context.getLocalProperty("sql.streaming.queryId") is None:
        return
    with _WATCHERS_LOCK:
        _STORES.add(str(store))
        known = _WATCHERS.get(context)
        if known is None or not known.is_alive():
            session = df.sparkSession.newSession()
            thread = threading.Thread(target=_sweep, args=(session,), name="semistream clean-up", daemon=True)
            _WATCHERS[context] = thread
            thread.start()


def _sweep(spark: SparkSession) -> None:
    """Remove what queries have left that are gone, until the application ends."""
    checkpoints: dict[str, str] = {}
    with suppress(*_STOPPED):
        while spark.sparkContext._jsc is not None:
            metrics.ARRIVED.wait(_LOOK_SECONDS)
            metrics.ARRIVED.clear()
            # In this order: a query that starts meanwhile is not among those which have reported.
            reported = metrics.queries()
            if reported:
                active = active_checkpoints(spark)
                checkpoints |= active
                ended = reported - active.keys()
                if ended:
                    remove_caches(spark, *ended)
                    for query in ended:
                        _give_back(query, checkpoints.pop(query, None))
                    metrics.dismiss(ended)


def active_checkpoints(spark: SparkSession) -> dict[str, str]:
    """The checkpoints of all queries that run, in whatever session."""
    running = spark._jsparkSession.sharedState().activeStreamingQueries().values()
    # One that ends while we look is None.
    return {str(query.id().toString()): str(query.resolvedCheckpointRoot()) for query in running if query is not None}


def _give_back(query: str, checkpoint: str | None) -> None:
    """Forget which versions of R a query has used where it cannot need them again."""
    if checkpoint is None:
        return
    with suppress(SemiStreamError, OSError):
        # Up to what is done: the query may have been started again meanwhile.
        done = done_before(shared_path(checkpoint, "checkpoint"))
        for store in list(_STORES):
            for owner in owners_of(Path(store), query):
                unpin_before(store, owner, done)


def remove_caches(spark: SparkSession, *queries: str) -> None:
    """Remove the cache files of queries from all executors; if the application ends meanwhile, Spark does it.

    The job runs as `mapInArrow`, so that it meets the worker processes which the queries have used.
    """
    with suppress(*_STOPPED):
        tasks = spark.sparkContext.defaultParallelism * _TASKS_PER_CORE
        job = spark.range(0, tasks, 1, tasks).mapInArrow(partial(_remove, queries), "id long")
        job.write.format("noop").mode("overwrite").save()


def _remove(queries: tuple[str, ...], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for query in queries:
        WORKSHOP.drop(query)
    return batches
