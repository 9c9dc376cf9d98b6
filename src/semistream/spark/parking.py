"""Parking tuples that found no match until a later version of R has their key, or their time is up.

    batch b, shard s:  last record -> retry those whose key has changed -> join the input -> record of b

A parked tuple is asked for again only where R has changed: its record holds the code that its key had, and a version of
R gives every key that it changes a new one. A version that is not of the same line (a rebuild, a compaction) may have
changed everything, so all are tried once.

What a batch gives depends on the clock and on how full the shard is, so after its part of batch b a shard publishes one
record before the task succeeds (`records.py`), and a later attempt does not decide anew:

    parked before, a match in the version of b     their rows
    parked before, none, not in the record         they leave, as `then` says
    new, no match, not in the record               they leave, as `then` says
    new, a match                                   their rows

Whether a tuple has a match depends on its key and the version alone, which is recorded before the batch begins.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.columns.nested import encode_nested
from semistream.columns.physical import PhysicalColumn
from semistream.engine.intake import Intake
from semistream.engine.join import result_schema, selected_columns
from semistream.engine.output import apart_schema, is_apart, null_columns
from semistream.engine.snapshot import Snapshot
from semistream.errors import StoreError
from semistream.master.base import Master
from semistream.master.format import Parts, current_folder, load_identity, shares_codes
from semistream.master.pages import PageMaster
from semistream.spark import worker
from semistream.spark.carry import without
from semistream.spark.dimension import Dimension
from semistream.spark.metrics import TaskMetrics
from semistream.spark.records import CODE_COLUMN, Record
from semistream.spark.shards import Batches, ShardInput, ShardPlan, ShardTurn
from semistream.spark.worker import TaskInfo, version_of

Int64s = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Items = Iterator[pa.RecordBatch | TaskMetrics]

#: a shard's tuples are one table in memory and in its record, which are written with every batch
MOST_SHARD_BYTES = 1 << 30
_CODE_BYTES = 8
#: unmatched rows that are compared with a record at once, at least
_COMPARED_BYTES = 1 << 20


@dataclass(frozen=True)
class ParkPlan(ShardPlan):
    """What a task is given whose tuples may be parked; the enrichment says how long and in how many bytes."""

    @property
    def meaning(self) -> Mapping[str, Any]:
        return parked_meaning(self.dimension)

    @property
    def wait_s(self) -> float:
        """How long a tuple may be parked."""
        wait = self.dimension.missing.wait_s
        assert wait is not None
        return wait

    @property
    def shard_bytes(self) -> int:
        """The part of the bytes that each shard has."""
        return max(self.dimension.missing.wait_bytes // self.shards, 1)


def parked_meaning(dimension: Dimension) -> dict[str, Any]:
    """What parked tuples depend on: no algorithm has begun with them, so another one may go on."""
    return {name: value for name, value in dimension.meaning.items() if name not in ("algorithm", "options")}


def run_parking(plan: ParkPlan, batches: Batches) -> Items:
    """Join a shard's part of a micro-batch; tuples without a match may be parked.

    Tuples that become dead letters come apart (`is_apart`); the last items are the task's account.
    """
    task = TaskInfo.current()
    task_metrics = TaskMetrics.begin(plan.dimension, task)
    rows = ShardInput(plan.dimension.stream_schema, plan.shards, batches)
    if rows.shard is None:
        yield task_metrics
    else:
        yield from Parking(plan, task, rows).run()


@dataclass(frozen=True)
class Parked:
    """Tuples in the order of their arrival, each with the code of its key and the time."""

    tuples: pa.Table
    codes: Int64s
    times: Floats

    @staticmethod
    def of(record: Record | None, schema: pa.Schema) -> Parked:
        """Those that a record holds."""
        if record is None or not record.waiting:
            return Parked(schema.empty_table(), np.empty(0, np.int64), np.empty(0, np.float64))
        tuples = record.parked
        assert record.snapshot.tuples is not None
        codes = record.snapshot.tuples.column(tuples.num_columns).to_numpy().astype(np.int64)
        counts = [int(count) for count, _ in record.arrivals]
        times = np.repeat(np.array([when for _, when in record.arrivals], np.float64), counts)
        return Parked(tuples.cast(schema), codes, times)

    def __len__(self) -> int:
        return len(self.codes)

    @property
    def n_bytes(self) -> int:
        return int(self.tuples.nbytes) + _CODE_BYTES * len(self)

    def filter(self, keep: Bools) -> Parked:
        return Parked(self.tuples.filter(pa.array(keep)), self.codes[keep], self.times[keep])

    def without_first(self, count: int) -> Parked:
        return Parked(self.tuples.slice(count), self.codes[count:], self.times[count:])

    def with_codes(self, codes: Int64s) -> Parked:
        return replace(self, codes=codes)

    def and_then(self, others: list[Parked]) -> Parked:
        every = [self, *others]
        return Parked(
            pa.concat_tables([each.tuples for each in every]).combine_chunks(),
            np.concatenate([each.codes for each in every]),
            np.concatenate([each.times for each in every]),
        )

    def snapshot(self, state: dict[str, Any]) -> Snapshot:
        """What a record holds of them."""
        return Snapshot(
            state, self.tuples.append_column(pa.field(CODE_COLUMN, pa.int64(), False), pa.array(self.codes))
        )

    def arrivals(self) -> list[list[float]]:
        """[tuples, time of arrival], oldest first."""
        if not len(self):
            return []
        starts = np.flatnonzero(np.diff(self.times, prepend=np.nan) != 0)
        counts = np.diff(starts, append=len(self))
        return [[int(count), float(when)] for count, when in zip(counts, self.times[starts], strict=True)]


class Keys:
    """The keys of stream tuples as a version of R sees them."""

    def __init__(self, dimension: Dimension, master: Master) -> None:
        spec, schema = dimension.request.spec, dimension.stream_schema
        self._at = [schema.get_field_index(name) for name in spec.stream_on]
        self._schema = pa.schema([schema.field(i) for i in self._at])
        self._intake = Intake(self._schema, spec, master, chunk_rows=1 << 30, piece_bytes=1 << 30)
        self.exact = master.coder.exact
        recoding = master.coder.recoding
        #: a code that no row has; None: there is no such code
        self.absent = None if recoding is None else recoding.absent

    def codes(self, tuples: pa.RecordBatch) -> tuple[Int64s, Bools | None]:
        """Codes, and which keys can match at all (None: every one)."""
        keys = pa.RecordBatch.from_arrays([tuples.column(i) for i in self._at], schema=self._schema)
        encoded = self._intake.encoded(keys)
        return encoded.codes, encoded.valid

    def codes_of(self, tuples: pa.Table) -> Int64s:
        """Codes of tuples whose keys are not null."""
        found = [self.codes(batch)[0] for batch in tuples.to_batches()]
        return np.concatenate(found) if found else np.empty(0, np.int64)

    def among(self, tuples: pa.Table, others: pa.Table) -> Bools:
        """Which tuples have a key that one of the others has."""
        if self.exact:
            return np.isin(self.codes_of(tuples), self.codes_of(others))
        both = pa.concat_tables([tuples, others]).select(self._at).combine_chunks()
        rows = pa.StructArray.from_arrays([column.chunk(0) for column in both.columns], fields=list(both.schema))
        values = encode_nested(rows).dictionary_encode().indices.to_numpy()
        return np.isin(values[: tuples.num_rows], values[tuples.num_rows :])


class Leaving:
    """Tuples that have found no match and wait no longer."""

    def __init__(self, dimension: Dimension, master: Master) -> None:
        spec, schema = dimension.request.spec, dimension.stream_schema
        self.then = dimension.missing.then
        self.count = 0
        self._schema = result_schema(master, spec, schema)
        self._columns = [PhysicalColumn.of(master.schema.field(name)) for name in selected_columns(master, spec)]
        self._apart = apart_schema(schema)

    def rows(self, tuples: pa.Table) -> Batches:
        """What `then` makes of them."""
        self.count += tuples.num_rows
        for batch in tuples.to_batches() if self.then != "drop" else ():
            if self.then == "dead_letter":
                yield pa.RecordBatch.from_arrays(batch.columns, schema=self._apart)
            else:
                nulls = null_columns(self._columns, batch.num_rows)
                yield pa.RecordBatch.from_arrays([*batch.columns, *nulls], schema=self._schema)


class Parking(ShardTurn):
    """One task of a query whose tuples may be parked."""

    def __init__(self, plan: ParkPlan, task: TaskInfo, rows: ShardInput) -> None:
        super().__init__(plan, task, rows)
        self.wait_s, self.shard_bytes = plan.wait_s, plan.shard_bytes
        before = None if self.previous is None else self.previous.record
        # No tuple may seem to have come before one that came earlier.
        self.now = max(time.time(), 0.0 if before is None else before.saved_at)
        if self.done is not None:
            self.now = self.done.record.saved_at
        self.parked = Parked.of(before, self.dimension.stream_schema)
        self.fresh = self.expired = self.early = self.retried = 0

    def run(self) -> Items:
        """Join what may have a match, or give again what an earlier attempt gave."""
        self.dimension = replace(self.dimension, version=version_of(self.dimension, self.task))
        with self._opened() as master:
            self._require_same(master)
            self.keys, self.leaving = Keys(self.dimension, master), Leaving(self.dimension, master)
            accounts: list[TaskMetrics] = []
            yield from self._retry(master, accounts)
            # What leaves is cut off the front: the oldest are there.
            yield from self._expire() if self.done is None else self._leave_old(self.done.record)
            yield from self._join_input(accounts) if self.done is None else self._replay(self.done.record, accounts)
            if self.done is None:
                self._publish(master, accounts[-1])
        self._note(accounts[-1])
        yield from accounts

    @contextmanager
    def _opened(self) -> Iterator[Master]:
        """R in the version of the batch, for what can be asked of it without reading its pages."""
        version = self.dimension.version
        if version is not None:
            identity = str(load_identity(current_folder(Path(self.dimension.master), version)))
            lent = worker.WORKSHOP.master_of(identity)
            if lent is not None:
                yield lent
                return
        with closing(self.dimension.open_master(version)) as master:
            yield master

    def _require_same(self, master: Master) -> None:
        """Refuse to give a batch again with other master data (Parquet in place has no versions)."""
        if self.done is not None and self.done.record.master != master.identity:
            raise StoreError(
                f"{self.dimension.master} was replaced after batch {self.batch} had been joined with it, and the batch "
                "is attempted again: put it back, or start the query with another checkpoint"
            )

    # ------------------------------------------------------------------------------ those of earlier batches

    def _retry(self, master: Master, accounts: list[TaskMetrics]) -> Batches:
        """Rows of parked tuples that have a match now; the others stay, with the codes that their keys have now."""
        before = None if self.previous is None else self.previous.record
        if before is None or not len(self.parked) or before.master == master.identity:
            return
        codes = self.keys.codes_of(self.parked.tuples)
        changed = codes != self.parked.codes
        if not shares_codes(_parts_in(before), _parts_of(master)):
            changed[:] = True
        if self.keys.absent is not None:
            # Before the first change a key may have had, for itself, the code that it has been given since.
            changed |= self.parked.codes > self.keys.absent
            changed &= codes != self.keys.absent
        self.parked = self.parked.with_codes(codes)
        self.retried = int(changed.sum())
        if not self.retried:
            return
        tried = self.parked.tuples.filter(pa.array(changed))
        missed: list[pa.RecordBatch] = []
        for item in worker.run((self.dimension,), iter(tried.to_batches()), self.task):
            if isinstance(item, TaskMetrics):
                # These tuples came and were counted in an earlier batch.
                item.rows_in = 0
                item.values["unmatched"] = 0
                accounts.append(item)
            elif is_apart(item):
                missed.append(item)
            else:
                yield item
        schema = self.dimension.stream_schema
        still = pa.Table.from_batches([_plain(batch, schema) for batch in missed], schema)
        keep = ~changed
        keep[changed] = self.keys.among(tried, still)
        self.parked = self.parked.filter(keep)

    def _expire(self) -> Batches:
        self.expired = int(np.searchsorted(self.parked.times, self.now - self.wait_s, side="right"))
        yield from self._leave_first(self.expired)

    def _leave_old(self, record: Record) -> Batches:
        """Those that are not in the record any more."""
        gone = len(self.parked) - (record.waiting - int(record.snapshot.state["fresh"]))
        if gone < 0:
            raise self._other_input(record)
        self.expired = min(int(np.searchsorted(self.parked.times, self.now - self.wait_s, side="right")), gone)
        self.early = gone - self.expired
        yield from self._leave_first(gone)

    def _leave_first(self, count: int) -> Batches:
        yield from self.leaving.rows(self.parked.tuples.slice(0, count))
        self.parked = self.parked.without_first(count)

    # ------------------------------------------------------------------------------ those of this batch

    def _input(self, accounts: list[TaskMetrics], take: Callable[[pa.RecordBatch, Int64s], Batches]) -> Batches:
        """Rows of the input; what becomes of tuples without a match, `take` says, if a later R may have their key."""
        for item in worker.run((self.dimension,), iter(self.rows), self.task):
            if isinstance(item, TaskMetrics):
                accounts.append(item)
            elif is_apart(item):
                batch = _plain(item, self.dimension.stream_schema)
                codes, valid = self.keys.codes(batch)
                if valid is not None:
                    # No version of R will have a row for a key that is null.
                    yield from self.leaving.rows(pa.Table.from_batches([batch.filter(pa.array(~valid))]))
                    batch, codes = batch.filter(pa.array(valid)), codes[valid]
                if batch.num_rows:
                    yield from take(batch, codes)
            else:
                yield item

    def _join_input(self, accounts: list[TaskMetrics]) -> Batches:
        """Park what has no match; where there is no room, those leave that have waited longest."""
        fresh: deque[Parked] = deque()
        held = self.parked.n_bytes

        def park(batch: pa.RecordBatch, codes: Int64s) -> Batches:
            nonlocal held
            fresh.append(Parked(pa.Table.from_batches([batch]), codes, np.full(len(codes), self.now)))
            held += fresh[-1].n_bytes
            while held > self.shard_bytes:
                oldest = self.parked if len(self.parked) else fresh[0]
                before = oldest.n_bytes
                count = min(math.ceil((held - self.shard_bytes) * len(oldest) / before), len(oldest))
                yield from self.leaving.rows(oldest.tuples.slice(0, count))
                self.early += count
                left = oldest.without_first(count)
                held += left.n_bytes - before
                if oldest is self.parked:
                    self.parked = left
                elif len(left):
                    fresh[0] = left
                else:
                    fresh.popleft()

        yield from self._input(accounts, park)
        self.fresh = sum(map(len, fresh))
        self.parked = self.parked.and_then(list(fresh))

    def _replay(self, record: Record, accounts: list[TaskMetrics]) -> Batches:
        """Give the rows of the attempt that left `record`: what it has not parked has left."""
        schema = self.dimension.stream_schema
        held = Parked.of(record, schema)
        self.fresh = int(record.snapshot.state["fresh"])
        expected = held.tuples.slice(len(held) - self.fresh)
        # Rows may come in another order than before, so they are told by their values.
        least = max(int(expected.nbytes), _COMPARED_BYTES)
        gathered: list[pa.RecordBatch] = []

        def compare() -> Batches:
            nonlocal expected
            came = pa.Table.from_batches(gathered, schema)
            gathered.clear()
            left = without(came, expected)
            expected = without(expected, came)
            self.early += left.num_rows
            yield from self.leaving.rows(left)

        def take(batch: pa.RecordBatch, _: Int64s) -> Batches:
            gathered.append(batch)
            if sum(each.nbytes for each in gathered) >= least:
                yield from compare()

        yield from self._input(accounts, take)
        yield from compare()
        if expected.num_rows or accounts[-1].rows_in != record.rows_in:
            raise self._other_input(record)
        self.parked = held

    def _other_input(self, record: Record) -> StoreError:
        return StoreError(
            f"the input of batch {record.batch} is not what it was: it had {record.rows_in} rows in shard "
            f"{record.shard}, and of these {self.fresh} are parked, which did not all come again. A source or an "
            "expression before enrich gives other rows each time (rand, uuid, current_timestamp …): make it "
            "repeatable, for instance by writing the stream to a table first"
        )

    # ------------------------------------------------------------------------------ what is left behind

    def _publish(self, master: Master, account: TaskMetrics) -> None:
        parts = _parts_of(master)
        record = self.record(
            version=self.dimension.version,
            master=master.identity,
            private_bytes=self.dimension.request.memory_bytes // self.dimension.tasks,
            rows_in=account.rows_in,
            saved_at=self.now,
            arrivals=self.parked.arrivals(),
            snapshot=self.parked.snapshot({"base": parts.base, "runs": list(parts.runs), "fresh": self.fresh}),
        )
        self.chain.publish(record, self.previous)

    def _note(self, account: TaskMetrics) -> None:
        account.values |= {
            "parked": len(self.parked),
            "parked_bytes": self.parked.n_bytes,
            "retried": self.retried,
            "expired": self.expired,
            "left_early": self.early,
            "dead_letters": self.leaving.count if self.leaving.then == "dead_letter" else 0,
        }
        if len(self.parked):
            account.values["parked_oldest_s"] = max(self.now - float(self.parked.times[0]), 0.0)


def _parts_of(master: Master) -> Parts:
    """What a version is made of; what is no page store is all base."""
    return master.parts if isinstance(master, PageMaster) else Parts(master.identity)


def _parts_in(record: Record) -> Parts:
    """The same of the version that a record was written with."""
    state = record.snapshot.state
    return Parts(str(state["base"]), tuple(state["runs"]))


def _plain(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Tuples that came apart, as the stream has them."""
    return pa.RecordBatch.from_arrays(batch.columns, schema=schema)
