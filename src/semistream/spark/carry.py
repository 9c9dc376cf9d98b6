"""Carrying waiting tuples from one micro-batch to the next, so that many batches share one pass over R.

    batch b, shard s:  last record -> restore -> push the input -> some steps of the main loop -> record of b

What a scan operator holds back is correctness state, so after its part of batch b a shard publishes one record before
the task succeeds (`records.py`). How many steps a batch makes depends on the clock, and what it answers at once on a
cache, so a second attempt at a batch does not decide anew: it finds the record and gives just the rows that the first
one gave.

    new tuples that are not in the record     finished in b: all their matches
    tuples of the record before               their matches in the steps between the two records
    new tuples that are in the record         their matches in the steps from their arrival to the record
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from semistream.columns.nested import encode_nested
from semistream.engine.join import SemiStreamJoin
from semistream.engine.snapshot import FLAG_COLUMN
from semistream.errors import SemiStreamError, StoreError
from semistream.loops.scan import ScanLoop
from semistream.master.base import Master
from semistream.master.leases import pin
from semistream.spark.metrics import TaskMetrics
from semistream.spark.records import Record
from semistream.spark.shards import Batches, ShardInput, ShardPlan, ShardTurn
from semistream.spark.worker import WORKSHOP, OpenJoin, TaskInfo, forget_before

#: the part of `max_delay` that is taken for the time between two batches until it was measured
_FIRST_INTERVAL = 0.1


@dataclass(frozen=True)
class CarryPlan(ShardPlan):
    """What a carrying task is given; the request of its enrichment says how long tuples may wait."""

    @property
    def max_delay_s(self) -> float:
        """The longest time that a tuple may wait."""
        delay = self.dimension.request.max_delay_s
        if delay is None:
            raise SemiStreamError("tuples are carried over, but the request does not say how long they may wait")
        return delay


def run_carrying(plan: CarryPlan, batches: Batches) -> Iterator[pa.RecordBatch | TaskMetrics]:
    """Join a shard's part of a micro-batch; tuples may wait for a later one. The last item is the task's account."""
    task = TaskInfo.current()
    task_metrics = TaskMetrics.begin(plan.dimension, task)
    rows = ShardInput(plan.dimension.stream_schema, plan.shards, task_metrics.timed("input", batches))
    if rows.shard is not None:
        carrying = Carrying(plan, task, rows)
        yield from task_metrics.timed("join", carrying.run(task_metrics))
        task_metrics.seconds["join"] -= task_metrics.seconds["input"]
    yield task_metrics


class Carrying(ShardTurn):
    """One task of a query that carries tuples over."""

    def __init__(self, plan: CarryPlan, task: TaskInfo, rows: ShardInput) -> None:
        super().__init__(plan, task, rows)
        self.max_delay_s = plan.max_delay_s
        #: the previous record, if anybody waits in it
        self.carried = self.previous.record if self.previous is not None and self.previous.record.waiting else None

    def run(self, task_metrics: TaskMetrics) -> Batches:
        """Join the input, or give again what an earlier attempt gave."""
        return self.advance(task_metrics) if self.done is None else self.replay(self.done.record, task_metrics)

    # ------------------------------------------------------------------------------ the first attempt

    def advance(self, task_metrics: TaskMetrics) -> Batches:
        """Take the input and make the steps that are due; then publish where that led."""
        version = self._version()
        held = self._attach(version)
        try:
            yield from self._advance(held, version, task_metrics)
            task_metrics.done(held)
            held.end(task_metrics.seen)
        except BaseException:
            WORKSHOP.detach([held])
            raise

    def _version(self) -> int | None:
        """The version of R for this batch; those that records still need are kept as well."""
        dimension = self.dimension
        if not dimension.versioned:
            return None
        owner = f"{self.query} {self.binding.token}"
        version = pin(dimension.master, owner, self.batch)
        if self.shard == 0:
            forget_before(dimension, owner, min(self.records.keeps(), self.batch))
        return version

    def _master_of(self, record: Record) -> Master:
        """R as it was when a record was written; refuses another."""
        master = self.dimension.open_master(record.version)
        if master.identity != record.master:
            master.close()
            raise StoreError(
                f"tuples of batch {record.batch} wait for the rest of {self.dimension.master} as it was then, and it "
                "has been replaced: put it back, or start the query with another checkpoint"
            )
        return master

    def _attach(self, version: int | None) -> OpenJoin:
        """A join where the last record left it: still open in this process, or restored from the record.

        While tuples wait, the join keeps the version of R and the budget with which they began to.
        """
        carried, budget, mark = self.carried, None, None
        if carried is not None and self.previous is not None:
            budget, mark = carried.private_bytes, self.previous.name

        def attached() -> OpenJoin:
            master = self.dimension.open_master(version) if carried is None else self._master_of(carried)
            return WORKSHOP.attach(self.dimension, self.shard, self.task, master, budget, alone=True)

        held = attached()
        if held.mark != mark and held.join.output_schema is not None:
            # It has gone another way than the record.
            WORKSHOP.detach([held])
            held = attached()
        if held.mark != mark and carried is not None:
            held.join.restore(carried.snapshot)
        held.mark = None
        return held

    def _changed(self, held: OpenJoin, version: int | None) -> Master | None:
        """R as this batch is to see it, where that is not what the join has."""
        master = self.dimension.open_master(version)
        if master.identity != held.identity:
            return master
        master.close()
        return None

    def _advance(self, held: OpenJoin, version: int | None, task_metrics: TaskMetrics) -> Batches:
        now = time.time()
        interval = self.max_delay_s * _FIRST_INTERVAL
        if self.previous is not None:
            interval = max(now - self.previous.record.saved_at, 0.001)
        arrivals: list[list[float]] = []
        changed = None if self.carried is None else self._changed(held, version)
        if changed is not None:
            # R has changed: those who wait have seen part of the old one, so they finish with it.
            yield from held.join.drain()
            held.switch(changed)
        elif self.carried is not None:
            arrivals = self.carried.arrivals
        held.begin()
        join, scan = held.join, scan_of(held.join)
        appended = join.stats.appended
        for batch in self.rows:
            task_metrics.rows_in += batch.num_rows
            yield from join.push(batch)
        scan.close_chunk()
        arrivals = trim([*arrivals, [join.stats.appended - appended, now]], join.waiting)
        if task_metrics.rows_in == 0 and self.records.finishing:
            yield from join.drain()
        else:
            yield from join.advance(steps_due(scan, arrivals, interval, self.max_delay_s, now))
        waiting = join.waiting
        record = self.record(
            version=held.version,
            master=held.identity,
            private_bytes=held.budget,
            rows_in=task_metrics.rows_in,
            saved_at=now,
            arrivals=trim(arrivals, waiting),
            snapshot=join.snapshot(),
        )
        name = self.chain.publish(record, self.previous)
        held.mark = name if waiting else None
        _note_record(task_metrics, record)

    # -------------------------------------------------------------------------------- any later attempt

    def replay(self, record: Record, task_metrics: TaskMetrics) -> Batches:
        """Give the rows of the attempt that left `record`, no matter what the cache and the clock would say now."""
        taken = list(self.rows)
        task_metrics.rows_in = sum(batch.num_rows for batch in taken)
        _note_record(task_metrics, record)
        carried = self.carried
        if record.snapshot.tuples is None:
            raise StoreError(f"the record of batch {record.batch}, shard {record.shard} has no table of waiting tuples")
        chunks = record.snapshot.state["chunks"]
        reached = int(record.snapshot.state["step_number"])
        before = [] if carried is None or carried.master != record.master else carried.snapshot.state["chunks"]
        survivors = sum(1 for _, expiry in before if expiry > reached)
        old = sum(int(count) for count, _ in chunks[:survivors])
        fresh = record.snapshot.tuples.slice(old).drop_columns([FLAG_COLUMN])
        finished = self._finished(record, pa.Table.from_batches(taken, schema=fresh.schema), fresh)
        if carried is not None and carried.master != record.master:
            with self._restored(carried, carried) as join:
                yield from join.drain()
            carried = None
        with self._restored(record, carried) as join:
            scan, at = scan_of(join), 0
            for count, expiry in chunks[survivors:]:
                arrived = expiry - scan.k
                yield from join.advance(arrived - scan.step_number)
                scan.skip_to(arrived)
                scan.wait(fresh.slice(at, count))
                at += count
            yield from join.advance(reached - scan.step_number)
        with self.dimension.join_with(self._master_of(record), record.private_bytes) as other:
            for batch in finished.to_batches():
                yield from other.push(batch)
            yield from other.drain()

    def _finished(self, record: Record, stream: pa.Table, fresh: pa.Table) -> pa.Table:
        """The input less what still waited after the batch; refuses an input that the record was not made from."""
        left = without(stream, fresh)
        if stream.num_rows != record.rows_in or left.num_rows != stream.num_rows - fresh.num_rows:
            raise StoreError(
                f"the input of batch {record.batch} is not what it was: it had {record.rows_in} rows in shard "
                f"{record.shard}, of which {fresh.num_rows} wait; of the {stream.num_rows} rows that came again "
                f"{stream.num_rows - left.num_rows} are among these. A source or an expression before enrich gives "
                "other rows each time (rand, uuid, current_timestamp …): make it repeatable, for instance by writing "
                "the stream to a table first"
            )
        return left

    @contextmanager
    def _restored(self, record: Record, carried: Record | None) -> Iterator[SemiStreamJoin]:
        """A join with the version and budget of a record, holding the tuples that were carried over."""
        with self.dimension.join_with(self._master_of(record), record.private_bytes) as join:
            if carried is not None:
                join.restore(carried.snapshot)
            else:
                join.start(record.snapshot.stream_schema)
            yield join


def _note_record(task_metrics: TaskMetrics, record: Record) -> None:
    task_metrics.values["carried"] = record.waiting
    task_metrics.values["master_version"] = record.version or 0
    if record.arrivals:
        task_metrics.values["carried_oldest_s"] = max(record.saved_at - record.arrivals[0][1], 0.0)


def scan_of(join: SemiStreamJoin) -> ScanLoop:
    """The loop of a join whose tuples are carried over: it can be moved step by step."""
    loop = join.loop
    if not isinstance(loop, ScanLoop):
        raise SemiStreamError(f"{join.name} cannot carry tuples over: name an algorithm on the scan loop")
    return loop


def steps_due(scan: ScanLoop, arrivals: list[list[float]], interval: float, max_delay: float, now: float) -> int:
    """Steps that this batch should make so that no tuple waits longer than `max_delay`, spread evenly over the batches.

    Chunks do not reach over batches, so each has the arrival time of the batch that brought it.
    """
    due = at = 0
    left = arrivals[0][0] if arrivals else 0
    for count, expiry in scan.chunks:
        time_left = arrivals[at][1] + max_delay - now
        steps = expiry - scan.step_number
        due = max(due, steps if time_left <= interval else math.ceil(steps * interval / time_left))
        left -= count
        if left <= 0 and at + 1 < len(arrivals):
            at += 1
            left += arrivals[at][0]
    return due


def trim(arrivals: list[list[float]], waiting: int) -> list[list[float]]:
    """The arrival times of the `waiting` youngest tuples."""
    kept: list[list[float]] = []
    for count, when in reversed(arrivals):
        taken = min(int(count), waiting)
        if taken:
            kept.append([taken, when])
            waiting -= taken
    return kept[::-1]


def without(tuples: pa.Table, gone: pa.Table) -> pa.Table:
    """Rows less other rows, as multisets, for any column types."""
    if gone.num_rows == 0 or tuples.num_rows == 0:
        return tuples
    both = pa.concat_tables([gone, tuples]).combine_chunks()
    rows = pa.StructArray.from_arrays([column.chunk(0) for column in both.columns], fields=list(both.schema))
    codes = encode_nested(rows).dictionary_encode().indices.to_numpy()
    removed = np.bincount(codes[: gone.num_rows], minlength=int(codes.max()) + 1)
    mine = codes[gone.num_rows :]
    order = np.argsort(mine, kind="stable")
    ordered = mine[order]
    first = np.searchsorted(ordered, ordered, side="left")
    keep = np.empty(len(mine), dtype=np.bool_)
    keep[order] = np.arange(len(mine)) - first >= removed[ordered]
    return tuples.filter(pa.array(keep))
