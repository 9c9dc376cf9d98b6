"""Carrying waiting tuples from one micro-batch to the next, so that many batches share one pass over R.

    batch b, shard s:  record of b-1 -> restore -> push the input -> some steps of the main loop -> record of b

What a scan operator holds back is correctness state, so after its part of batch b a shard publishes one record before
the task succeeds (`records.py`). How many steps a batch makes depends on the clock, and what it answers at once on a
cache, so a second attempt at a batch does not decide anew: it finds the record and gives just the rows that the first
one gave.

    new tuples that are not in the record     finished in b: all their matches
    tuples of the record of b-1               their matches in the steps between the two records
    new tuples that are in the record         their matches in the steps from their arrival to the record
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa

from semistream.columns.nested import encode_nested
from semistream.operators.scan import ScanJoin
from semistream.operators.snapshot import FLAG_COLUMN
from semistream.spark.metrics import TaskMetrics
from semistream.spark.plan import Dimension
from semistream.spark.records import Record, Records
from semistream.spark.worker import OpenJoin, TaskInfo, attach, detach, version_of

Batches = Iterator[pa.RecordBatch]
#: the part of `max_delay` that is taken for the time between two batches until it was measured
_FIRST_INTERVAL = 0.1


def run_carrying(
    dimension: Dimension, folder: str, max_delay: float, batches: Batches
) -> Iterator[pa.RecordBatch | TaskMetrics]:
    """Join a shard's part of a micro-batch; tuples may wait for a later one. The last item is the task's account."""
    carrying = Carrying(dimension, Records(Path(folder)), max_delay, TaskInfo.current())
    record = carrying.records.of(carrying.batch, carrying.shard)
    told = TaskMetrics.begin(dimension, carrying.task)
    source = told.timed("input", batches)
    yield from told.timed(
        "join", carrying.advance(source, told) if record is None else carrying.replay(record, source, told)
    )
    told.seconds["join"] -= told.seconds["input"]
    yield told


class Carrying:
    """One task of a query that carries tuples over."""

    def __init__(self, dimension: Dimension, records: Records, max_delay: float, task: TaskInfo) -> None:
        assert task.batch is not None
        self.dimension = dimension
        self.records = records
        self.max_delay = max_delay
        self.task = task
        self.batch, self.shard = task.batch, task.partition
        self.version = version_of(dimension, task)
        self.previous = records.before(self.batch, self.shard)
        #: the previous record, if anybody waits in it
        self.carried = self.previous if self.previous is not None and self.previous.waiting else None

    # ------------------------------------------------------------------------------ the first attempt

    def advance(self, batches: Batches, told: TaskMetrics) -> Batches:
        """Take the input and make the steps that are due; then publish where that led."""
        held = self._attach()
        try:
            told.mark(held)
            yield from self._advance(held, batches, told)
            with told.phase("build"):
                held.end(told.rows_in)
            told.done(held)
        except BaseException:
            detach([held])
            raise

    def _attach(self) -> OpenJoin:
        """A join where the previous batch left it: still open in this process, or restored from the record.

        While tuples wait, the join keeps the version of R and the budget with which they began to.
        """
        carried = self.carried
        version, budget, mark = self.version, None, None
        if carried is not None:
            version, budget = carried.version, carried.private_bytes
            mark = (carried.batch, int(carried.snapshot.state["step_number"]))
        held = attach(self.dimension, self.shard, self.task, version, budget, alone=True)
        if held.mark != mark:
            detach([held])
            held = attach(self.dimension, self.shard, self.task, version, budget)
            if carried is not None:
                held.join.restore(carried.snapshot)
        held.mark = None
        return held

    def _advance(self, held: OpenJoin, batches: Batches, told: TaskMetrics) -> Batches:
        self.records.drop_before(0 if self.previous is None else self.previous.batch, self.shard)
        now = time.time()
        interval = self.max_delay * _FIRST_INTERVAL
        if self.previous is not None:
            interval = max(now - self.previous.saved_at, 0.001)
        arrivals: list[list[float]] = []
        if self.carried is not None and self.carried.version != self.version:
            # R has changed: those who wait have seen part of the old one, so they finish with it.
            yield from held.join.drain()
            held.switch(self.version)
            told.mark(held)
        elif self.carried is not None:
            arrivals = self.carried.arrivals
        appended = held.join.stats.appended
        for batch in batches:
            if told.rows_in == 0:
                held.begin(batch.schema, renew=False)
            told.rows_in += batch.num_rows
            yield from held.join.push(batch)
        join = held.join
        if not told.rows_in and self.carried is None:
            return
        assert isinstance(join, ScanJoin)
        waiting = 0
        # A join that was opened for a new version and got no input has no tables yet.
        if join.output_schema is not None:
            join.close_chunk()
            arrivals = trim([*arrivals, [join.stats.appended - appended, now]], len(join.pending))
            if told.rows_in == 0 and self.records.finishing:
                yield from join.drain()
            else:
                yield from join.advance(steps_due(join, arrivals, interval, self.max_delay, now))
            waiting = len(join.pending)
        record = Record(
            batch=self.batch,
            shard=self.shard,
            version=self.version,
            private_bytes=held.budget,
            saved_at=now,
            arrivals=trim(arrivals, waiting),
            snapshot=join.snapshot(),
        )
        self.records.publish(record)
        held.mark = (self.batch, join.step_number) if waiting else None
        _tell(told, record)

    # -------------------------------------------------------------------------------- any later attempt

    def replay(self, record: Record, batches: Batches, told: TaskMetrics) -> Batches:
        """Give the rows of the attempt that left `record`, no matter what the cache and the clock would say now."""
        taken = list(batches)
        told.rows_in = sum(batch.num_rows for batch in taken)
        _tell(told, record)
        carried = self.carried
        if carried is not None and carried.version != record.version:
            with self._restored(carried, carried) as join:
                yield from join.drain()
            carried = None
        if record.snapshot.tuples is None:
            return
        chunks = record.snapshot.state["chunks"]
        reached = int(record.snapshot.state["step_number"])
        before = [] if carried is None else carried.snapshot.state["chunks"]
        survivors = sum(1 for _, expiry in before if expiry > reached)
        old = sum(int(count) for count, _ in chunks[:survivors])
        fresh = record.snapshot.tuples.slice(old).drop_columns([FLAG_COLUMN])
        with self._restored(record, carried) as join:
            at = 0
            for count, expiry in chunks[survivors:]:
                yield from join.advance(expiry - join.k - join.step_number)
                join.skip_to(expiry - join.k)
                join.wait(fresh.slice(at, count))
                at += count
            yield from join.advance(reached - join.step_number)
        stream = pa.Table.from_batches(taken, schema=fresh.schema)
        with self.dimension.open(record.version, record.private_bytes) as other:
            for batch in without(stream, fresh).to_batches():
                yield from other.push(batch)
            yield from other.drain()

    @contextmanager
    def _restored(self, record: Record, carried: Record | None) -> Iterator[ScanJoin]:
        """A join with the version and budget of a record, holding the tuples that were carried over."""
        with self.dimension.open(record.version, record.private_bytes) as join:
            assert isinstance(join, ScanJoin)
            if carried is not None:
                join.restore(carried.snapshot)
            else:
                join.start(record.snapshot.stream_schema)
            yield join


def _tell(told: TaskMetrics, record: Record) -> None:
    told.values["carried"] = record.waiting
    told.values["master_version"] = record.version or 0
    if record.arrivals:
        told.values["carried_oldest_s"] = max(record.saved_at - record.arrivals[0][1], 0.0)


def steps_due(join: ScanJoin, arrivals: list[list[float]], interval: float, max_delay: float, now: float) -> int:
    """Steps that this batch should make so that nobody waits longer than `max_delay`, spread evenly over the batches.

    Chunks do not reach over batches, so each has the arrival time of the batch that brought it.
    """
    due = at = 0
    left = arrivals[0][0] if arrivals else 0
    for count, expiry in join.chunks:
        time_left = arrivals[at][1] + max_delay - now
        steps = expiry - join.step_number
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
