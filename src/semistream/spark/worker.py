"""What runs in Spark's Python worker processes.

    task -> batches of a partition -> join of dimension 1 -> join of dimension 2 ... -> joined batches

A worker process outlives its tasks, and so do its joins and plans: the process's one `Workshop` keeps them, each under
the whole identity of its enrichment and of the version of R. What the processes of an executor share is in files in
the executor's own folder (see `parts/generation.py`), so it does not matter which of them a task meets. All of that
is soft state; a task that fails drops its joins.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext

from semistream.algorithms.registry import resolve
from semistream.columns.regrouping import regrouped
from semistream.engine.join import SemiStreamJoin
from semistream.errors import BudgetError, SchemaError, SemiStreamError, StoreError
from semistream.loops.resident import fill, resident_bytes, resident_keys
from semistream.master.base import Master
from semistream.master.format import Parts
from semistream.master.leases import pin, unpin_before
from semistream.parts.generation import Generations, Seen
from semistream.parts.upkeep import Upkeep
from semistream.sealed import digest
from semistream.spark.auto import Planner, peeked
from semistream.spark.dimension import Dimension
from semistream.spark.metrics import TaskMetrics
from semistream.spark.plans import Chosen

FOLDER = "semistream"
#: where Spark tells which query and which micro-batch a job belongs to
QUERY_PROPERTY, BATCH_PROPERTY = "sql.streaming.queryId", "streaming.sql.batchId"
_JOB = "job"
#: characters of an error that are repeated where its consequence is explained
_SAID = 200
_KEPT_BATCHES = 2
_IDLE_SECONDS = 120.0
#: part of a join's budget that is left for an index of R that grows with its changes: a changed key takes 25 bytes
_GROWTH = 1 / 8
#: cache folders that have not been used for this long are removed by the next process that looks
_STALE_SECONDS = 3600.0


@dataclass(frozen=True)
class TaskInfo:
    """Where a task stands: which query and run of it, which micro-batch, which partition."""

    query: str | None
    batch: int | None
    partition: int
    run: str = ""

    @staticmethod
    def current() -> TaskInfo:
        task = TaskContext.get()
        if task is None:
            return TaskInfo(None, None, 0)
        batch = task.getLocalProperty(BATCH_PROPERTY)
        query = task.getLocalProperty(QUERY_PROPERTY)
        if batch is None or query is None:
            query = batch = None
        # Spark runs all jobs of a query's run in a group of that name.
        run = task.getLocalProperty("spark.jobGroup.id") or ""
        return TaskInfo(query, None if batch is None else int(batch), task.partitionId(), run)

    @property
    def folder(self) -> Path:
        """Where the processes of this executor keep what they share for the query, or for batch jobs."""
        return executor_folder() / (self.query or _JOB)


def executor_folder() -> Path:
    """A folder that belongs to this executor alone; Spark removes it with the executor."""
    own = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0]
    return Path(own or tempfile.gettempdir()) / FOLDER


class OpenJoin:
    """A join that stays open between the tasks of a worker process, behind the cache it shares with the others."""

    def __init__(self, dimension: Dimension, master: Master, budget: int, folder: Path) -> None:
        self.dimension = dimension
        self.budget = budget
        self.used = time.monotonic()
        #: where a carrying task left the join, for the next one to recognise; None: no tuple waits in it
        self.mark: str | None = None
        self._folder = folder
        self.upkeep: Upkeep | None = None
        self._open(master)

    def _open(self, master: Master) -> None:
        self.version = master.version if self.dimension.versioned else None
        self.identity = master.identity
        try:
            #: decided here, by the memory of this machine
            self.reading = self.dimension.reading(master)
        except BaseException:
            master.close()
            raise
        self.join = self._join_with(master)
        master = self.join.master
        #: the join's counts when a task reported last
        self.reported: dict[str, float] = {}
        layout = self.join.row_layout
        self.generations: Generations | None = None
        limit = self.dimension.shared_bytes
        if limit >= Generations.least_bytes(layout):
            family = self.dimension.identity[:16]
            parts = master.parts if self.join.follows else Parts(self.identity)
            name = f"{family}-{digest(parts.base.encode())[:16]}"
            self.generations = Generations(self._folder / name, name, limit, layout, runs=parts.runs)
            self.upkeep = Upkeep(self.generations)
            self._keep_caches()
            _remove_unused(self._folder, lambda other: other.startswith(f"{family}-") and other != name)
            _remove_unused(self._folder.parent, lambda other: False)

    def _keep_caches(self) -> None:
        """Show others that these cache files are in use."""
        if self.generations is not None:
            for folder in (self.generations.folder, self._folder):
                with suppress(OSError):
                    os.utime(folder)

    def _join_with(self, master: Master) -> SemiStreamJoin:
        """The join, with room for changes of R to come, where there may be some and the join can follow them."""
        dimension = self.dimension
        changes = dimension.versioned and not dimension.fixed and master.reserved_from is not None
        self._has_room = changes and resolve(dimension.request.algorithm).follows
        if self._has_room:
            with suppress(BudgetError):
                return dimension.join_with(master, int(self.budget * (1 - _GROWTH)), self.reading)
            master = dimension.open_master(master.version)
        return self._join_without_room(master)

    def _join_without_room(self, master: Master) -> SemiStreamJoin:
        """What is too little for changes to come may be enough for R as it is."""
        self._has_room = False
        return self.dimension.join_with(master, self.budget, self.reading)

    def start(self) -> None:
        """Make the tables of the join, if that was not done before."""
        if self.join.output_schema is not None:
            return
        schema = self.dimension.stream_schema
        try:
            self.join.start(schema)
        except BudgetError:
            if not self._has_room:
                raise
            self.join.close()
            self.join = self._join_without_room(self.dimension.open_master(self.version))
            self.join.start(schema)

    def follow(self, master: Master) -> bool:
        """Go on with a version of R that has more changes, keeping all that is known; False if that cannot be.

        Takes `master` over if it can.
        """
        if self.mark is not None:
            return False
        if self.upkeep is not None:
            self.upkeep.rest()
        if not self.join.follow(master, self.budget):
            return False
        self.version, self.identity = master.version, master.identity
        if self.upkeep is not None and self.generations is not None:
            self.upkeep.follow(master.parts.runs)
            if self.generations.current is not self.join.shared:
                self.join.share(self.generations.current)
        return True

    def switch(self, master: Master) -> None:
        """Go on with another version of R."""
        if not self.follow(master):
            self.close()
            self._open(master)

    def begin(self) -> None:
        """Before the first batch of a task: use the newest generation of the shared cache that is ready.

        The private cache keeps all it knows but for the keys that the generation has.
        """
        self._keep_caches()
        self.start()
        if self.upkeep is None or self.generations is None:
            return
        self.upkeep.free()
        private = self.join.loop.cache
        if private is not None and private.complete:
            self.upkeep.close()
            self.generations = self.upkeep = None
        elif self.upkeep.adopt():
            self.join.share(self.generations.current)

    def end(self, seen: Seen) -> None:
        """After a task, when all its rows are gone: have what it has learnt published, if that pays."""
        if self.upkeep is None or self.generations is None or self.join.output_schema is None:
            return
        private = self.join.loop.cache
        self.generations.saw(seen.tuples, private, seen)
        if private is not None:
            now = self.generations.current
            self.upkeep.look(private, self._load if now is None or now.is_outgrown else None)

    def counts(self) -> dict[str, float]:
        """What this join has counted since it is open."""
        counts: dict[str, float] = {**self.join.stats.as_dict(), "seconds": self.join.seconds}
        if self.generations is not None:
            made = self.generations
            counts |= {"builds": made.built, "build_seconds": made.seconds, "failures": made.failures}
        return counts

    def _load(self, check: Callable[[], None]) -> bool:
        """Put all of R into a generation, if it has room for that."""
        assert self.generations is not None
        r = self.join.plan.r
        room = resident_bytes(r) + (1 << 16)
        if room > self.generations.limit_bytes:
            return False
        return self.generations.load(resident_keys(r.rows), partial(fill, self.join.loop, check=check), room)

    def close(self) -> None:
        if self.upkeep is not None:
            self.upkeep.close()
        self.join.close()


def _remove_unused(parent: Path, replaced: Callable[[str], bool]) -> None:
    """Remove cache folders whose place others have taken, and those that nobody has used for long."""
    with suppress(OSError):
        for folder in parent.iterdir():
            stale = time.time() - folder.stat().st_mtime > _STALE_SECONDS
            if folder.is_dir() and (stale or replaced(folder.name)):
                shutil.rmtree(folder, ignore_errors=True)


class Workshop:
    """All that a worker process keeps between its tasks: one object, so that nothing is kept anywhere else."""

    def __init__(self) -> None:
        #: by folder, enrichment and the place it has in its task (a shard, where tuples are carried over)
        self._joins: dict[tuple[Path, str, int], OpenJoin] = {}
        self._planners: dict[tuple[Path, str, int], Planner] = {}

    def attach(
        self, dimension: Dimension, at: int, task: TaskInfo, master: Master, budget: int | None = None, *, alone: bool
    ) -> OpenJoin:
        """The open join of a dimension with just this master data, or a new one; takes `master` over.

        `alone` closes those of other places: a worker process has one budget, however many shards come by.
        """
        key = task.folder, dimension.identity, at
        now = time.monotonic()
        for other, held in list(self._joins.items()):
            if other != key and (now - held.used > _IDLE_SECONDS or (alone and other[:2] == key[:2])):
                self._joins.pop(other).close()
        found = self._joins.get(key)
        budget = budget or dimension.private_bytes
        if found is not None and (found.identity, found.budget) == (master.identity, budget):
            master.close()
        elif found is None or found.budget != budget or not found.follow(master):
            if found is not None:
                self._joins.pop(key).close()
            found = self._joins[key] = OpenJoin(dimension, master, budget, task.folder)
        found.used = now
        return found

    def open(
        self, dimension: Dimension, at: int, task: TaskInfo, first: pa.RecordBatch | None
    ) -> tuple[OpenJoin, tuple[Planner, Chosen] | None]:
        """The open join of a dimension in the version of the task's batch; with "auto" by the plan in force."""
        dimension = replace(dimension, version=version_of(dimension, task))
        while True:
            named, plan = self.settle(dimension, at, task, first)
            try:
                held = self.attach(named, at, task, named.open_master(named.version), alone=False)
                if plan is not None:
                    self._start(held)
            except BudgetError as error:
                # A trial stops nothing: who does not fit leaves it, and the next one is opened.
                if plan is None or first is None or not plan[0].leave(plan[1], first, str(error)):
                    raise
            else:
                return held, plan

    def _start(self, held: OpenJoin) -> None:
        try:
            held.start()
        except BaseException:
            self.detach([held])
            raise

    def master_of(self, identity: str) -> Master | None:
        """The master data of an open join, if one has just this: its table of changed keys is loaded already."""
        return next((held.join.master for held in self._joins.values() if held.identity == identity), None)

    def settle(
        self, dimension: Dimension, at: int, task: TaskInfo, first: pa.RecordBatch | None
    ) -> tuple[Dimension, tuple[Planner, Chosen] | None]:
        """The dimension with an algorithm, which the plan of this executor names if the user did not."""
        if not dimension.request.is_auto:
            return dimension, None
        key = task.folder, dimension.identity, at
        planner = self._planners.setdefault(key, Planner(dimension, task.folder))
        planner.dimension = dimension
        named, chosen = planner.settle(first)
        if planner.used is not None and planner.used.request.algorithm != named.request.algorithm:
            # There is one budget: the operator that goes gives its part back first.
            planner.close()
            gone = self._joins.pop((task.folder, planner.used.identity, at), None)
            if gone is not None:
                gone.close()
        planner.used = named
        return named, None if chosen is None else (planner, chosen)

    def detach(self, joins: Iterable[OpenJoin]) -> None:
        """Forget joins that a failed task may have left half-way."""
        gone = list(joins)
        for key, held in list(self._joins.items()):
            if any(held is other for other in gone):
                self._joins.pop(key).close()

    def clear(self) -> None:
        """Forget everything, as a new process would."""
        self.detach(list(self._joins.values()))
        self._planners.clear()

    def drop(self, query: str) -> None:
        """Close what is open for a query that has ended, and remove its cache files."""
        folder = executor_folder() / query
        self.detach([held for key, held in self._joins.items() if key[0] == folder])
        for key in [key for key in self._planners if key[0] == folder]:
            del self._planners[key]
        shutil.rmtree(folder, ignore_errors=True)


#: the workshop of this process
WORKSHOP = Workshop()


def version_of(dimension: Dimension, task: TaskInfo) -> int | None:
    """The version of R for this micro-batch: recorded before the batch runs, the same for all its tasks and replays."""
    if not dimension.versioned or dimension.version is not None or task.query is None or task.batch is None:
        return dimension.version
    version = pin(dimension.master, task.query, task.batch)
    forget_before(dimension, task.query, task.batch - _KEPT_BATCHES + 1)
    return version


def forget_before(dimension: Dimension, owner: str, batch: int) -> None:
    """Forget versions that earlier batches have used; what cannot be forgotten now is forgotten with the next batch."""
    with suppress(StoreError):
        unpin_before(dimension.master, owner, max(batch, 0))


def as_described(schema: pa.Schema, batch: pa.RecordBatch) -> pa.RecordBatch:
    """A batch under the names that the enrichment was described with; Spark hands columns over by their place."""
    if batch.schema.equals(schema):
        return batch
    if batch.num_columns != len(schema):
        raise SchemaError(
            f"Spark handed over {batch.num_columns} columns ({', '.join(batch.schema.names)}), the enrichment was "
            f"described with {len(schema)} ({', '.join(schema.names)}): describe it anew"
        )
    arrays = [
        array if array.type == column.type else array.cast(column.type)
        for array, column in zip(batch.columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def run(
    dimensions: tuple[Dimension, ...], batches: Iterator[pa.RecordBatch], task: TaskInfo | None = None
) -> Iterator[pa.RecordBatch | TaskMetrics]:
    """Join a partition with all dimensions, one after the other; every tuple is finished here.

    The last items are what the task has to say about itself, one for each dimension.
    """
    task = TaskInfo.current() if task is None else task
    metrics = [TaskMetrics.begin(dimension, task) for dimension in dimensions]
    schema = dimensions[0].stream_schema
    stream = metrics[0].timed("input", (as_described(schema, batch) for batch in batches))
    first: pa.RecordBatch | None = None
    if any(dimension.request.is_auto for dimension in dimensions):
        first, stream = peeked(stream)
    chosen: list[tuple[Planner, Chosen] | None] = []
    joins: list[OpenJoin] = []
    for at, dimension in enumerate(dimensions):
        held, plan = WORKSHOP.open(dimension, at, task, first)
        joins.append(held)
        chosen.append(plan)
        metrics[at].algorithm_why = "" if plan is None else plan[1].why
    try:
        for held, task_metrics in zip(joins, metrics, strict=True):
            stream = task_metrics.timed("join", _finish(held, stream, task_metrics))
        yield from stream
        upstream = metrics[0].seconds["input"]
        for task_metrics in metrics:
            # What a join waited for its input is not its own.
            total = task_metrics.seconds["join"]
            task_metrics.seconds["join"], upstream = total - upstream, total
        yield from (task_metrics.done(held) for held, task_metrics in zip(joins, metrics, strict=True))
        for held, task_metrics in zip(joins, metrics, strict=True):
            held.end(task_metrics.seen)
        for plan, held, task_metrics in zip(chosen, joins, metrics, strict=True):
            if plan is not None and first is not None and task_metrics.rows_in:
                hits, misses = task_metrics.values["hits"], task_metrics.values["misses"]
                plan[0].after(plan[1], first, held.join, task_metrics.rows_in, hits, hits + misses)
    except BaseException as error:
        WORKSHOP.detach(joins)
        if isinstance(error, Exception) and first is not None:
            _give_up(chosen, first, error)
        raise


def _give_up(chosen: list[tuple[Planner, Chosen] | None], first: pa.RecordBatch, error: Exception) -> None:
    """After a task that failed: no operator on trial is given its next attempt."""
    why = f"its task failed: {str(error)[:_SAID]}"
    with suppress(SemiStreamError, OSError):
        for plan in chosen:
            if plan is not None:
                plan[0].leave(plan[1], first, why)


def _finish(held: OpenJoin, batches: Iterator[pa.RecordBatch], task_metrics: TaskMetrics) -> Iterator[pa.RecordBatch]:
    """All batches through one join, as one batch that shares its reads, and what waits in it at the end."""
    first = next(batches, None)
    if first is None:
        return
    held.begin()
    schema = held.dimension.stream_schema

    def parts() -> Iterator[pa.RecordBatch]:
        for batch in chain((first,), batches):
            task_metrics.rows_in += batch.num_rows
            yield as_described(schema, batch)

    yield from held.join.push_parts(regrouped(parts(), held.join.plan.division.chunk_rows))
    yield from held.join.drain()
