"""Two phases side by side: the stream is probed in the caller's thread, the disk phase runs in a second one.

    caller's thread:  chunk -> cache -> hits out; misses -> I_B
    second thread:    I_B -> H_S, Q -> loads and probes -> finished batches -> caller's thread

The stream phase stops only when the intermediate buffer I_B is full, the disk phase only when it is empty. A lock
guards the cache while one phase reads or the other changes it; reads, probes and output building of both phases
overlap, since kernels and file reads release the interpreter. Between two calls of `push` the disk phase rests, so that
a snapshot sees all tuples at rest.

What the phases tell each other stands under one condition, `_control`. Whoever waits there also waits for `_error`,
which is set when the disk phase ends, for whatever reason: nobody waits for a thread that is gone.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.engine.chunk import Chunk
from semistream.engine.intake import Encoded
from semistream.engine.loop import Loop
from semistream.engine.share import MovingShare, rebalanced
from semistream.engine.snapshot import Snapshot
from semistream.engine.workplace import Workplace
from semistream.errors import SemiStreamError
from semistream.loops.index import DiskPhase, IndexFront, waiting_table
from semistream.master.base import PageBlock
from semistream.parts.cache import Cache
from semistream.parts.disk_buffer import DiskBuffer
from semistream.parts.intermediate import IntermediateBuffer
from semistream.parts.pending import LinkedPending

Int64s = npt.NDArray[np.int64]

_READY_BATCHES = 8
#: what the disk phase counts for itself, and is added to the join's counts whenever it rests
_COUNTED_APART = ("finished", "unmatched", "appended", "expired", "iterations", "master_rows_probed")


@dataclass
class Handover:
    """Unmatched tuples in I_B, and how many of them the disk phase has taken."""

    chunk: Chunk
    size_bytes: int
    taken: int = 0


class LockedFront:
    """The cache as the disk phase sees it: changed under the lock under which the stream phase reads it."""

    def __init__(self, front: IndexFront) -> None:
        self._front = front
        self.lock = threading.Lock()
        self.missed = 0

    @property
    def cache(self) -> Cache | None:
        return self._front.cache

    @property
    def share(self) -> MovingShare | None:
        return self._front.share

    def answer(self, chunk: Chunk) -> Iterator[pa.RecordBatch]:
        """All rows of the hits at once: between two of them nobody may change the cache."""
        with self.lock:
            outputs = list(self._front.answer(chunk))
        self.missed = self._front.missed
        return iter(outputs)

    def matched(self, block: PageBlock, codes: Int64s, done: Int64s, count: int) -> None:
        with self.lock:
            self._front.matched(block, codes, done, count)

    def absent(self, done: Int64s, count: int) -> None:
        with self.lock:
            self._front.absent(done, count)

    def settle(self) -> None:
        self._front.settle()


class ParallelLoop(Loop):
    """Stream phase and disk phase in a thread each.

    `phase` has work arrays and counts of its own (`Workplace.beside`). With `in_step` the phases take turns instead of
    running side by side: slower, but all counts are the same every time.
    """

    def __init__(
        self, phase: DiskPhase, front: LockedFront, stream: Workplace, buffer_bytes: int, in_step: bool
    ) -> None:
        self.phase, self.front, self.work = phase, front, stream
        self.intermediate: IntermediateBuffer[Handover] = IntermediateBuffer(buffer_bytes)
        self._in_step = in_step
        self._control = threading.Condition()
        self._ready: deque[pa.RecordBatch] = deque()
        self._error: BaseException | None = None
        self._running_phase = self._resting = self._abandoned = False
        self._draining = self._stopping = False
        #: turns that the disk phase may still make before it rests; None: as many as there is work for
        self._turns: int | None = None
        self.settle()
        self._thread = threading.Thread(target=self._disk_phase, name="semistream disk phase", daemon=True)
        self._thread.start()

    @property
    def pending(self) -> LinkedPending:
        return self.phase.pending

    @property
    def cache(self) -> Cache | None:
        return self.front.cache

    @property
    def waiting(self) -> int:
        return len(self.phase.pending) + sum(item.chunk.n_rows - item.taken for item in self.intermediate)

    def settle(self) -> None:
        self.phase.settle()
        self.front.settle()

    # ------------------------------------------------------------------- stream phase, caller's thread

    def begin_batch(self) -> None:
        self._resume(draining=False)

    def consume(self, chunk: Chunk) -> Iterator[pa.RecordBatch]:
        work = self.work
        if work.reader.n_pages == 0:
            yield from work.finish_all(chunk)
            return
        size = 0
        for batch in self.front.answer(chunk):
            size += batch.get_total_buffer_size()
            yield batch
        # What the cache answers is built at once, under the lock: fewer tuples at a time where their rows are long.
        work.intake.joined_bytes = size / chunk.n_rows
        yield from self._collect_ready()
        for item in self._handovers(chunk, self.front.missed):
            yield from self._hand_over(item)

    def end_batch(self) -> Iterator[pa.RecordBatch]:
        """Ask the disk phase to stop after its current load, and take what it still delivers."""
        with self._control:
            self._running_phase = False
            self._control.notify_all()
        yield from self._until_rest()
        self._pause()
        yield from rebalanced(self, self.front.share)

    def give_up(self) -> None:
        """Nobody will take what the disk phase still delivers. It is not waited for: the join is failed or closing."""
        with self._control:
            self._running_phase = self._draining = False
            self._abandoned = True
            self._control.notify_all()

    def drain(self) -> Iterator[pa.RecordBatch]:
        return self._work_off(turns=None)

    def advance(self) -> Iterator[pa.RecordBatch]:
        """The disk phase takes what is in I_B and makes one load."""
        return self._work_off(turns=1)

    def _work_off(self, turns: int | None) -> Iterator[pa.RecordBatch]:
        self._resume(draining=True, turns=turns)
        try:
            yield from self._until_rest()
            self._pause()
        except BaseException:
            self.give_up()
            raise
        self.settle()

    def _until_rest(self) -> Iterator[pa.RecordBatch]:
        while True:
            with self._control:
                self._control.wait_for(lambda: self._ready or self._resting or self._error)
                finished = not self._ready and self._resting
            self._raise_error()
            yield from self._collect_ready()
            if finished:
                return

    def _handovers(self, chunk: Chunk, missed: int) -> Iterator[Handover]:
        """Copies of the misses in pieces of at most I_B's bytes, long values included; a single tuple may be larger."""
        tuples, limit, intake = self.work.output.of_chunk(chunk), self.intermediate.limit_bytes, self.work.intake
        slot_bytes = max(self.pending.pool.slot_bytes, 1)
        start, most = 0, max(limit // slot_bytes, 1)
        while start < missed:
            ids = self.work.scratch.misses[start : min(start + most, missed)].copy()
            arrays = tuples.take(ids, 0, len(ids), limit)
            if isinstance(arrays, int):
                ids = ids[:arrays].copy()
                arrays = tuples.take(ids, 0, len(ids))
                assert not isinstance(arrays, int)
            size = len(ids) * slot_bytes + sum(arrays[i].buffers()[2].size for i in intake.physical.var_columns)
            yield Handover(intake.chunk(Encoded(chunk.codes[ids], arrays)), size)
            start += len(ids)

    def _hand_over(self, item: Handover) -> Iterator[pa.RecordBatch]:
        """Put tuples into I_B as soon as it can take them."""
        self.work.stats.intermediate_appends += item.chunk.n_rows
        self.work.stats.handovers += 1
        placed = False
        while not placed:
            with self._control:
                self._control.wait_for(
                    lambda: self.intermediate.has_room(item.size_bytes) or self._ready or self._error
                )
                placed = self.intermediate.has_room(item.size_bytes)
                if placed:
                    self.intermediate.put(item)
                    self._resting = False
                    self._control.notify_all()
            self._raise_error()
            yield from self._collect_ready()
        if self._in_step:
            yield from self._until_rest()

    def _collect_ready(self) -> Iterator[pa.RecordBatch]:
        """Batches the disk phase has finished."""
        while True:
            with self._control:
                if not self._ready:
                    break
                batch = self._ready.popleft()
                self._control.notify_all()
            yield batch
        self._raise_error()

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def _resume(self, draining: bool, turns: int | None = None) -> None:
        with self._control:
            self._running_phase, self._draining, self._resting = True, draining, False
            self._turns = turns
            self._control.notify_all()

    def _pause(self) -> None:
        """Let the disk phase rest, and add its counts to those of the stream phase."""
        with self._control:
            self._running_phase = self._draining = False
            self._control.notify_all()
            self._control.wait_for(lambda: self._resting or self._error)
        self._raise_error()
        counts, mine = self.phase.work.stats, self.work.stats
        for name in _COUNTED_APART:
            setattr(mine, name, getattr(mine, name) + getattr(counts, name))
            setattr(counts, name, 0)
        self.work.copy_read_counts(*self.phase.disks)

    # ------------------------------------------------------------------------ disk phase, second thread

    def _disk_phase(self) -> None:
        try:
            while self._next_work():
                for batch in self._work_on():
                    if not self._deliver(batch):
                        break
            ended: BaseException = SemiStreamError(f"this {self.work.name} join is closed; open a new one")
        except BaseException as error:
            ended = error
        with self._control:
            self._error = ended
            self._control.notify_all()

    def _next_work(self) -> bool:
        """Wait until there is something to do; False when the join closes."""
        with self._control:
            while not self._stopping:
                wanted = len(self.intermediate) or (self._draining and len(self.pending))
                if self._running_phase and wanted and self._turns != 0:
                    return True
                self._resting = True
                self._control.notify_all()
                self._control.wait()
                self._resting = False
            return False

    def _work_on(self) -> Iterator[pa.RecordBatch]:
        """Take tuples from I_B; when H_S is full, or the stream has ended, load and probe."""
        if self._fill() or (self._draining and not len(self.intermediate)):
            self.phase.settle()
            yield from self.phase.iterate()
            if self._turns is not None:
                self._turns -= 1

    def _fill(self) -> bool:
        """Move tuples from I_B to H_S; True when H_S is full."""
        every = self.phase.work.scratch.every
        while True:
            with self._control:
                if not len(self.intermediate):
                    return False
                item = next(iter(self.intermediate))
            item.taken += self.phase.admit(item.chunk, every, item.taken, item.chunk.n_rows - item.taken)
            if item.taken < item.chunk.n_rows:
                if not len(self.pending):
                    raise self.work.too_small()
                return True
            with self._control:
                self.intermediate.get()
                self._control.notify_all()

    def _is_ready_full(self) -> bool:
        """Whether finished batches must be fetched before there may be more, by number or by bytes."""
        full = sum(batch.get_total_buffer_size() for batch in self._ready) > 2 * self.work.output.piece_bytes
        return full or len(self._ready) >= _READY_BATCHES

    def _deliver(self, batch: pa.RecordBatch) -> bool:
        """Hand a batch to the stream phase; False when nobody wants it any more."""
        with self._control:
            self._control.wait_for(lambda: not self._is_ready_full() or self._abandoned or self._stopping)
            if self._abandoned or self._stopping:
                return False
            self._ready.append(batch)
            self._control.notify_all()
            return True

    # ------------------------------------------------------------------------------ snapshot and closing

    def state(self) -> dict[str, Any]:
        return {} if self.front.share is None else self.front.share.state()

    def tuples(self) -> pa.Table:
        """Both phases rest between two calls: what waits is in H_S or in I_B."""
        work = self.work
        batches = []
        for item in self.intermediate:
            ids = np.arange(item.taken, item.chunk.n_rows, dtype=np.int64)
            for _, columns in work.output.stream_columns(work.output.of_chunk(item.chunk), ids):
                batches.append(pa.RecordBatch.from_arrays(columns, schema=work.intake.schema))
        handed = pa.Table.from_batches(batches, schema=work.intake.schema)
        return pa.concat_tables([waiting_table(work, self.pending), handed])

    def restore(self, snapshot: Snapshot) -> None:
        """Tuples that were in I_B may not all fit H_S: they go back to I_B."""
        assert snapshot.tuples is not None
        if self.front.share is not None:
            self.front.share.restore(snapshot)
        full = False
        for chunk in self.work.intake.waiting(snapshot.tuples):
            took = 0 if full else self.phase.admit(chunk, self.work.scratch.every, 0, chunk.n_rows)
            if took < chunk.n_rows:
                full = True
                size = (chunk.n_rows - took) * self.pending.pool.slot_bytes
                self.intermediate.put(Handover(chunk, size, took))

    def borrow_disk(self) -> DiskBuffer:
        return self.phase.borrow_disk()

    def close(self) -> None:
        """The threads first: readers stay open until nobody can read any more."""
        try:
            with self._control:
                self._stopping = True
                self._control.notify_all()
            self._thread.join()
        finally:
            self.phase.close()
