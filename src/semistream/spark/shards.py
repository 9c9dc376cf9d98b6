"""A task's turn at a shard of a query that holds tuples back: which shard its rows are of, and what its records say.

The number of the shard travels with the rows, in a last column: a tuple has its shard s, and tick t has
-1 - (t * shards + s). So it does not matter which task they meet, and a task that gets no row has nothing to do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.errors import SemiStreamError, StoreError
from semistream.spark.dimension import Dimension
from semistream.spark.records import Binding, Kept, Record, Records
from semistream.spark.worker import TaskInfo, as_described

Batches = Iterator[pa.RecordBatch]
Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True)
class ShardPlan:
    """What a task is given: the enrichment, and where its records are.

    `call` is the call of `enrich` that made it, so that two which share records by mistake are told apart.
    """

    dimension: Dimension
    folder: str
    call: str
    shards: int

    @property
    def meaning(self) -> Mapping[str, Any]:
        """What the records are bound to: all that decides which rows come out."""
        return self.dimension.meaning


class ShardInput:
    """The rows of a task: which shard they belong to, the tuples among them, and the tick, once all were seen."""

    def __init__(self, schema: pa.Schema, shards: int, batches: Batches) -> None:
        self._schema = schema
        self._shards = shards
        self._first = next((batch for batch in batches if batch.num_rows), None)
        self._batches = batches
        #: None: a task without rows has no shard
        self.shard = None if self._first is None else int(self._shards_of(_marks(self._first))[0])
        self.tick = 0

    def _shards_of(self, marks: Int64s) -> Int64s:
        return np.where(marks < 0, (-1 - marks) % self._shards, marks)

    def __iter__(self) -> Batches:
        batch = self._first
        while batch is not None:
            marks = _marks(batch)
            if (self._shards_of(marks) != self.shard).any():
                raise StoreError(f"rows of several shards came to the task of shard {self.shard}: this is a defect")
            rows = batch.select(range(batch.num_columns - 1))
            ticks = marks[marks < 0]
            if len(ticks):
                self.tick = max(self.tick, int(((-1 - ticks) // self._shards).max()))
                rows = rows.filter(pa.array(marks >= 0))
            if rows.num_rows:
                yield as_described(self._schema, rows)
            batch = next(self._batches, None)


def _marks(batch: pa.RecordBatch) -> Int64s:
    """What the last column says of every row."""
    return np.asarray(batch.column(batch.num_columns - 1).to_numpy(), dtype=np.int64)


class ShardTurn:
    """One task's part of a micro-batch in one shard, and the records before and, if it ran before, of it."""

    def __init__(self, plan: ShardPlan, task: TaskInfo, rows: ShardInput) -> None:
        assert task.batch is not None
        assert task.query is not None
        assert rows.shard is not None
        self.dimension = plan.dimension
        self.records = Records(Path(plan.folder))
        self.task = task
        self.rows = rows
        self.query, self.batch, self.shard = task.query, task.batch, rows.shard
        self.writer = (task.run, plan.call)
        self.records.check_query(self.query)
        self.binding = self._bound(plan.meaning)
        self.chain = self.records.shard(self.shard)
        #: the record of this batch, if an earlier attempt has left it, and the one before it
        self.done, self.previous = self._found()

    def record(self, **fields: Any) -> Record:
        """The record of this batch, which follows on the one before."""
        previous = None if self.previous is None else self.previous.record
        return Record(
            query=self.query,
            enrichment=self.binding.identity,
            writer=self.writer,
            batch=self.batch,
            shard=self.shard,
            sequence=1 if previous is None else previous.sequence + 1,
            predecessor="" if self.previous is None else self.previous.name,
            tick=max(self.rows.tick, 0 if previous is None else previous.tick),
            **fields,
        )

    def _bound(self, meaning: Mapping[str, Any]) -> Binding:
        """What the records belong to, which must be this enrichment."""
        binding = self.records.binding()
        changes = binding.changes(meaning)
        if changes:
            raise SemiStreamError(
                f"{self.records.folder} holds the records of another enrichment named {binding.name!r}: "
                f"{'; '.join(changes)}. Give each enrichment of a query a name= of its own"
            )
        return binding

    def _found(self) -> tuple[Kept | None, Kept | None]:
        newest = self.chain.newest()
        if newest is None:
            return None, None
        done: Kept | None = None
        previous: Kept | None = newest
        if newest.record.batch == self.batch and newest.record.part == 0:
            done, previous = newest, self.chain.before(newest)
            self.chain.mend(newest, previous)
        elif newest.record.batch >= self.batch:
            raise StoreError(
                f"batch {self.batch} of the query is attempted, but {newest.path} is of batch {newest.record.batch}: "
                "the checkpoint was put back without its records, or an attempt was given up and goes on; restore the "
                "checkpoint as a whole"
            )
        for kept in (done, previous):
            if kept is not None:
                self._check_owner(kept, matters=kept is done or kept.record.waiting > 0)
        return done, previous

    def _check_owner(self, kept: Kept, matters: bool) -> None:
        record = kept.record
        if record.query != self.query:
            raise StoreError(
                f"{kept.path} belongs to the query {record.query}, this is {self.query}: what waits can belong to one "
                "query only; give each its own checkpoint"
            )
        if record.enrichment != self.binding.identity and matters:
            raise StoreError(f"{kept.path} was left by another enrichment; start the query as it was then")
        if record.writer[0] == self.writer[0] != "" and record.writer[1] != self.writer[1]:
            raise SemiStreamError(
                f"two enrichments of one query keep their records in {self.records.folder}: "
                "give each a name= of its own"
            )
