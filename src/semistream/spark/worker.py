"""What runs in Spark's Python worker processes.

    task -> batches of a partition -> join of dimension 1 -> join of dimension 2 ... -> joined batches

A worker process outlives its tasks, and so do its joins: `attach` finds the one that an earlier task opened. What the
processes of an executor share is in files in the executor's own folder (see `parts/generation.py`), so it does not
matter which of them a task meets. All of that is soft state; a task that fails drops its joins.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext

from semistream.master.leases import pin, unpin_before
from semistream.operators.resident import fill, resident_bytes, resident_keys
from semistream.parts.cache import Cache
from semistream.parts.generation import Generations
from semistream.planner.plan import AUTO
from semistream.spark.auto import Chosen, Planner, peeked
from semistream.spark.metrics import TaskMetrics
from semistream.spark.plan import Dimension

FOLDER = "semistream"
_JOB = "job"
_KEPT_BATCHES = 2
_IDLE_SECONDS = 120.0


@dataclass(frozen=True)
class TaskInfo:
    """Where a task stands: which query, which micro-batch, which partition."""

    query: str | None
    batch: int | None
    partition: int

    @staticmethod
    def current() -> TaskInfo:
        task = TaskContext.get()
        if task is None:
            return TaskInfo(None, None, 0)
        batch = task.getLocalProperty("streaming.sql.batchId")
        query = task.getLocalProperty("sql.streaming.queryId")
        if batch is None or query is None:
            query = batch = None
        return TaskInfo(query, None if batch is None else int(batch), task.partitionId())


def executor_folder() -> Path:
    """A folder that belongs to this executor alone; Spark removes it with the executor."""
    own = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0]
    return Path(own or tempfile.gettempdir()) / FOLDER


class OpenJoin:
    """A join that stays open between the tasks of a worker process, behind the cache it shares with the others."""

    def __init__(self, dimension: Dimension, version: int | None, budget: int, folder: Path) -> None:
        self.dimension = dimension
        self.budget = budget
        self.used = time.monotonic()
        #: where a carrying task left the join, for the next one to recognise; None: nobody waits in it
        self.mark: tuple[int, int] | None = None
        self._folder = folder
        self._open(version)

    def _open(self, version: int | None) -> None:
        self.version = version
        self.join = self.dimension.open(version, self.budget)
        layout = self.join._master_layout
        self.generations: Generations | None = None
        limit = self.dimension.shared_bytes
        if limit >= Generations.least_bytes(layout):
            name = f"{self.dimension.signature}-v{version or 0}"
            for other in self._folder.glob(f"{self.dimension.signature}-v*"):
                if other.name != name:
                    shutil.rmtree(other, ignore_errors=True)
            self.generations = Generations(self._folder / name, name, limit, layout)

    def switch(self, version: int | None) -> None:
        """Go on with another version of R."""
        self.join.close()
        self._open(version)

    def begin(self, schema: pa.Schema, renew: bool = True) -> None:
        """Before the first batch of a task: look for a newer generation of the shared cache.

        With it the private cache starts anew (`renew`), as its best keys are in the generation now.
        """
        if self.generations is not None and self.generations.refresh() and renew:
            self.join.close()
            self.join = self.dimension.open(self.version, self.budget)
        if self.join.output_schema is None:
            self.join.start(schema)
        if getattr(self.join, "resident", False) is True:
            self.generations = None
        if self.generations is not None:
            self.join.front = self.generations.current

    def end(self, tuples: int) -> None:
        """After the last batch of a task: publish what this process has learnt, if it is time."""
        generations = self.generations
        if generations is None or self.join.output_schema is None:
            return
        private: Cache = self.join.cache  # type: ignore[attr-defined]
        generations.saw(tuples)
        if not generations.is_due(private):
            return
        with generations.building() as mine:
            if not mine:
                return
            if generations.current is None and resident_bytes(self.join) <= generations.limit_bytes - (1 << 16):
                generations.load(resident_keys(self.join), lambda cache: fill(self.join, cache))
            else:
                generations.merge(private)

    def close(self) -> None:
        self.join.close()


_JOINS: dict[tuple[str, int], OpenJoin] = {}


def version_of(dimension: Dimension, task: TaskInfo) -> int | None:
    """The version of R for this micro-batch: recorded before the batch runs, the same for all its tasks and replays."""
    if not dimension.versioned or task.query is None or task.batch is None:
        return dimension.version
    version = pin(dimension.master, task.query, task.batch)
    unpin_before(dimension.master, task.query, max(task.batch - _KEPT_BATCHES + 1, 0))
    return version


def attach(
    dimension: Dimension, at: int, task: TaskInfo, version: int | None, budget: int | None = None, alone: bool = False
) -> OpenJoin:
    """The open join of a dimension (of its shard `at`, where tuples are carried over), or a new one.

    `alone` closes those of other shards: a worker process has one budget, however many shards come by.
    """
    folder = executor_folder() / (task.query or _JOB)
    name = f"{folder}/{dimension.signature}"
    now = time.monotonic()
    for key, other in list(_JOINS.items()):
        if key != (name, at) and (now - other.used > _IDLE_SECONDS or (alone and key[0] == name)):
            _JOINS.pop(key).close()
    found = _JOINS.get((name, at))
    budget = budget or dimension.private_bytes
    if found is None or found.version != version or found.budget != budget:
        if found is not None:
            _JOINS.pop((name, at)).close()
        found = _JOINS[(name, at)] = OpenJoin(dimension, version, budget, folder)
    found.used = now
    return found


_PLANNERS: dict[tuple[str, int], Planner] = {}


def settle(
    dimension: Dimension, at: int, task: TaskInfo, first: pa.RecordBatch | None
) -> tuple[Dimension, tuple[Planner, Chosen] | None]:
    """The dimension with an algorithm, which the plan of this executor names if the user did not."""
    if dimension.algorithm != AUTO:
        return dimension, None
    folder = executor_folder() / (task.query or _JOB)
    key = (f"{folder}/{dimension.signature}", at)
    planner = _PLANNERS.setdefault(key, Planner(dimension, folder))
    planner.dimension = dimension
    named, chosen = planner.settle(first)
    if planner.used is not None and planner.used.algorithm != named.algorithm:
        # There is one budget: the operator that goes gives its part back first.
        gone = _JOINS.pop((f"{folder}/{planner.used.signature}", at), None)
        if gone is not None:
            gone.close()
    planner.used = named
    return named, None if chosen is None else (planner, chosen)


def detach(joins: Iterable[OpenJoin]) -> None:
    """Forget joins that a failed task may have left half-way."""
    for key, held in list(_JOINS.items()):
        if held in joins:
            _JOINS.pop(key).close()


def drop_query(query: str) -> None:
    """Close what this process has open for a query that has ended, and remove its cache files."""
    folder = executor_folder() / query
    detach([held for (name, _), held in _JOINS.items() if Path(name).parent == folder])
    for key in [key for key in _PLANNERS if Path(key[0]).parent == folder]:
        del _PLANNERS[key]
    shutil.rmtree(folder, ignore_errors=True)


def run(dimensions: tuple[Dimension, ...], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch | TaskMetrics]:
    """Join a partition with all dimensions, one after the other; every tuple is finished here.

    The last items are what the task has to say about itself, one for each dimension.
    """
    task = TaskInfo.current()
    metrics = [TaskMetrics.begin(dimension, task) for dimension in dimensions]
    stream = metrics[0].timed("input", batches)
    first: pa.RecordBatch | None = None
    if any(dimension.algorithm == AUTO for dimension in dimensions):
        first, stream = peeked(stream)
    chosen: list[tuple[Planner, Chosen] | None] = []
    joins: list[OpenJoin] = []
    for at, dimension in enumerate(dimensions):
        version = version_of(dimension, task)
        named, plan = settle(replace(dimension, version=version), at, task, first)
        joins.append(attach(named, at, task, version))
        chosen.append(plan)
    try:
        for held, told in zip(joins, metrics, strict=True):
            stream = told.timed("join", _finish(held, stream, told))
        yield from stream
        upstream = metrics[0].seconds["input"]
        for held, told in zip(joins, metrics, strict=True):
            # What a join waited for its input is not its own.
            total = told.seconds["join"]
            told.seconds["join"], upstream = total - upstream, total
            with told.phase("build"):
                held.end(told.rows_in)
        yield from (told.done(held) for held, told in zip(joins, metrics, strict=True))
        for plan, told in zip(chosen, metrics, strict=True):
            if plan is not None and first is not None:
                hits, misses = told.values["hits"], told.values["misses"]
                plan[0].review(plan[1], first, hits, hits + misses)
    except BaseException:
        detach(joins)
        raise


def _finish(held: OpenJoin, batches: Iterator[pa.RecordBatch], told: TaskMetrics) -> Iterator[pa.RecordBatch]:
    """All batches through one join, and what waits in it at the end."""
    begun = False
    for batch in batches:
        if not begun:
            held.begin(batch.schema)
            told.mark(held)
            begun = True
        told.rows_in += batch.num_rows
        yield from held.join.push(batch)
    if begun:
        yield from held.join.drain()
