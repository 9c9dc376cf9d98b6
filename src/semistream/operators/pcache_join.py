"""P-CACHEJOIN: CACHEJOIN with its two phases in parallel."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.columns.rows import INT32_MAX, BatchColumns
from semistream.errors import BudgetError, SemiStreamError
from semistream.master.base import Master, PageBlock
from semistream.operators.cache_join import CacheJoin
from semistream.operators.chunk import Chunk, JoinStats, Scratch
from semistream.operators.snapshot import Snapshot
from semistream.parts.intermediate import IntermediateBuffer
from semistream.spec import JoinSpec

Int64s = npt.NDArray[np.int64]

_READY_BATCHES = 8


@dataclass
class Handover:
    """Unmatched tuples in I_B, and how many of them the disk phase has taken."""

    chunk: Chunk
    size_bytes: int
    taken: int = 0


class PCacheJoin(CacheJoin):
    """P-CACHEJOIN runs the stream-probing phase in the caller's thread and the disk-probing phase in a second one.

    Tuples that the cache cannot answer go through the intermediate buffer I_B. The stream phase stops only when I_B is
    full, the disk phase only when it is empty. A lock guards the cache while one phase reads or the other changes it;
    reads, probes and output building of both phases overlap, since kernels and file reads release the interpreter.
    Between two calls of `push` the disk phase rests, so that a snapshot sees no tuple on its way.

    What the phases tell each other stands under one condition, `_control`. A thread that waits there also waits
    for `_error`, which is set when the disk phase ends, for whatever reason: no thread waits for one that is gone.

    Needs of R: an index. Exact as CACHEJOIN is.

    Memory: M = (d_B + h_R)·v_R + i_B·v_S + 8·h_R + h_S·(v_S·f + v_Q).
    Cost:   c_loop = c_I/O(d_B) + d_B·(c_H + c_F) + w_S·(c_O + c_S + c_A + c_E + c_AI) + w_N·(c_H + c_O + c_S),
    the two phases side by side.

    Options: those of CACHEJOIN; `intermediate_bytes`, the size of I_B (default 2 % of the budget); `in_step`, with
    which the phases take turns instead of running side by side: slower, but all counts are the same every time.

    >>> import pyarrow as pa
    >>> from semistream import open_join
    >>> with open_join("pcachejoin", master=pa.table({"k": [1, 2], "v": [10, 20]}), on="k", memory="1MB") as join:
    ...     rows = [*join.push(pa.record_batch({"k": [2, 7]})), *join.drain()]
    >>> pa.Table.from_batches(rows).to_pydict()
    {'k': [2], 'v': [20]}

    Paper: opcachejoin2020 (M. A. Naeem, E. Mehmood, M. G. A. Malik, N. Jamil, "Optimizing semi-stream CACHEJOIN for
    near-real-time data warehousing", JDM 2020).
    """

    name = "pcachejoin"
    aliases: ClassVar[tuple[str, ...]] = ()
    paper = "opcachejoin2020"
    scratches = 2

    def __init__(
        self,
        master: Master,
        spec: JoinSpec,
        budget_bytes: int,
        *,
        intermediate_bytes: int | None = None,
        in_step: bool = False,
        **common: Any,
    ) -> None:
        self._wanted_intermediate = intermediate_bytes
        self._in_step = in_step
        self._thread: threading.Thread | None = None
        self._disk_counts = JoinStats()
        super().__init__(master, spec, budget_bytes, **common)

    def _build(self) -> None:
        size = self._wanted_intermediate
        size = max(self.budget.total // 50, 4096) if size is None else size
        if not 0 < size <= self.budget.spare // 2:
            raise BudgetError(
                f"an intermediate buffer of {size} bytes does not fit: it may take at most half of the "
                f"{self.budget.spare} bytes that are left for tables"
            )
        self.budget.hold("intermediate buffer", size)
        self.intermediate: IntermediateBuffer[Handover] = IntermediateBuffer(size)
        self.disk_scratch = Scratch(self.scratch.size)
        super()._build()
        self._cache_lock = threading.Lock()
        self._control = threading.Condition()
        self._ready: deque[pa.RecordBatch] = deque()
        #: output that the cache gave for a tuple of the last chunk
        self._row_bytes = 0.0
        self._error: BaseException | None = None
        self._running_phase = self._resting = self._abandoned = False
        self._draining = self._stopping = False
        self._thread = threading.Thread(target=self._disk_phase, name="semistream disk phase", daemon=True)
        self._thread.start()

    @property
    def stats(self) -> JoinStats:
        """Each phase counts for itself; the counts are added up whenever the disk phase rests."""
        if self._thread is not None and threading.current_thread() is self._thread:
            return self._disk_counts
        return self._counts

    # ------------------------------------------------------------------- stream phase, caller's thread

    def _push(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        self._resume(draining=False)
        try:
            yield from super()._push(batch)
            yield from self._come_to_rest()
            self._pause()
        except BaseException:
            self._give_up()
            raise

    def _drain(self) -> Iterator[pa.RecordBatch]:
        self._resume(draining=True)
        try:
            yield from self._until_rest()
            self._pause()
        except BaseException:
            self._give_up()
            raise
        self._settle()

    def _come_to_rest(self) -> Iterator[pa.RecordBatch]:
        """Ask the disk phase to stop after its current load, and take what it still delivers."""
        with self._control:
            self._running_phase = False
            self._control.notify_all()
        yield from self._until_rest()

    def _until_rest(self) -> Iterator[pa.RecordBatch]:
        while True:
            with self._control:
                self._control.wait_for(lambda: self._ready or self._resting or self._error)
                finished = not self._ready and self._resting
            self._raise_error()
            yield from self._collect_ready()
            if finished:
                return

    def _consume(self, chunk: Chunk) -> Iterator[pa.RecordBatch]:
        if self.reader.n_pages == 0:
            yield from super()._consume(chunk)
            return
        with self._cache_lock:
            outputs = []
            phase = self._cache_phase(chunk)
            while True:
                try:
                    outputs.append(next(phase))
                except StopIteration as stop:
                    missed = int(stop.value)
                    break
        self._row_bytes = sum(batch.get_total_buffer_size() for batch in outputs) / chunk.n_rows
        yield from outputs
        yield from self._collect_ready()
        if missed:
            yield from self._hand_over(chunk, missed)

    def _parts(self, rows: pa.RecordBatch | pa.Table) -> Iterator[pa.RecordBatch]:
        """Fewer tuples at once where the rows they become are long: what the cache answers is built under a lock."""
        for part in super()._parts(rows):
            start = 0
            while start < part.num_rows:
                size = max(int(self.piece_bytes / max(self._row_bytes, 1.0)), 1)
                yield part.slice(start, size)
                start += size

    def _hand_over(self, chunk: Chunk, missed: int) -> Iterator[pa.RecordBatch]:
        """Copy the misses into I_B, in pieces it can take."""
        for item in self._handovers(chunk, missed):
            size = item.size_bytes
            self.stats.intermediate_appends += item.chunk.n_rows
            self.stats.handovers += 1
            while True:
                with self._control:
                    self._control.wait_for(
                        lambda: self.intermediate.has_room(size) or self._ready or self._error  # noqa: B023
                    )
                    placed = self.intermediate.has_room(size)
                    if placed:
                        self.intermediate.put(item)
                        self._resting = False
                        self._control.notify_all()
                self._raise_error()
                yield from self._collect_ready()
                if placed:
                    break
            if self._in_step:
                yield from self._until_rest()

    def _handovers(self, chunk: Chunk, missed: int) -> Iterator[Handover]:
        """The misses in pieces of at most I_B's bytes, long values included; a single tuple may be larger."""
        take, limit = self._take_chunk(chunk), self.intermediate.limit_bytes
        slot_bytes = max(self.pending.pool.slot_bytes, 1)
        start, most = 0, max(limit // slot_bytes, 1)
        while start < missed:
            ids = self.scratch.misses[start : min(start + most, missed)].copy()
            arrays = take(ids, 0, len(ids), limit)
            if isinstance(arrays, int):
                ids = ids[:arrays].copy()
                arrays = take(ids, 0, len(ids), INT32_MAX)
                assert not isinstance(arrays, int)
            columns = BatchColumns(self._stream, arrays, len(ids))
            size = len(ids) * slot_bytes + sum(arrays[i].buffers()[2].size for i in self._stream.var_columns)
            yield Handover(Chunk(len(ids), chunk.codes[ids], columns, chunk.matched[:0]), size)
            start += len(ids)

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

    def _resume(self, draining: bool) -> None:
        with self._control:
            self._running_phase, self._draining, self._resting = True, draining, False
            self._control.notify_all()

    def _give_up(self) -> None:
        """Nobody will take what the disk phase still delivers. It is not waited for: the join is failed or closing."""
        with self._control:
            self._running_phase = self._draining = False
            self._abandoned = True
            self._control.notify_all()

    def _pause(self) -> None:
        """Let the disk phase rest, and add its counts to those of the stream phase."""
        with self._control:
            self._running_phase = self._draining = False
            self._control.notify_all()
            self._control.wait_for(lambda: self._resting or self._error)
        self._raise_error()
        counts, mine = self._disk_counts, self._counts
        for name in (
            "finished",
            "unmatched",
            "appended",
            "expired",
            "frequency_checks",
            "switched",
            "iterations",
        ):
            setattr(mine, name, getattr(mine, name) + getattr(counts, name))
            setattr(counts, name, 0)
        mine.master_rows_probed += counts.master_rows_probed
        counts.master_rows_probed = 0
        self._copy_read_counts()

    # ------------------------------------------------------------------------ disk phase, second thread

    def _disk_phase(self) -> None:
        try:
            while self._next_work():
                for batch in self._work():
                    if not self._deliver(batch):
                        break
            ended: BaseException = SemiStreamError(f"this {self.name} join is closed; open a new one")
        except BaseException as error:
            ended = error
        with self._control:
            self._error = ended
            self._control.notify_all()

    def _next_work(self) -> bool:
        """Wait until there is something to do; False when the join closes."""
        with self._control:
            while not self._stopping:
                if self._running_phase and (len(self.intermediate) or (self._draining and len(self.pending))):
                    return True
                self._resting = True
                self._control.notify_all()
                self._control.wait()
                self._resting = False
            return False

    def _work(self) -> Iterator[pa.RecordBatch]:
        """Take tuples from I_B; when H_S is full, or the stream has ended, load and probe."""
        if self._fill() or (self._draining and not len(self.intermediate)):
            yield from self._iterate()

    def _fill(self) -> bool:
        """Move tuples from I_B to H_S; True when H_S is full."""
        while True:
            with self._control:
                if not len(self.intermediate):
                    return False
                item = next(iter(self.intermediate))
            rest = item.chunk.n_rows - item.taken
            item.taken += self._admit(item.chunk, self.disk_scratch.every, item.taken, rest, self.disk_scratch.slots)
            if item.taken < item.chunk.n_rows:
                if not len(self.pending):
                    raise self._too_small()
                return True
            with self._control:
                self.intermediate.get()
                self._control.notify_all()

    def _is_ready_full(self) -> bool:
        """Whether finished batches must be fetched before there may be more, by number or by bytes."""
        full = sum(batch.get_total_buffer_size() for batch in self._ready) > 2 * self.piece_bytes
        return full or len(self._ready) >= _READY_BATCHES

    def _deliver(self, batch: pa.RecordBatch) -> bool:
        """Hand a batch to the stream phase; False when it is not wanted any more."""
        with self._control:
            self._control.wait_for(lambda: not self._is_ready_full() or self._abandoned or self._stopping)
            if self._abandoned or self._stopping:
                return False
            self._ready.append(batch)
            self._control.notify_all()
            return True

    def _iterate(self) -> Iterator[pa.RecordBatch]:
        self._settle_pending()
        yield from self._release_absent(self.disk_scratch)
        if len(self.pending):
            yield from self._serve_next()

    def _serve_next(self) -> Iterator[pa.RecordBatch]:
        """The oldest key picks the load."""
        code = self._code_at(self.pending.oldest)
        yield from self._serve(code, *self._pages_for(code), self.disk, self.disk_scratch)

    def _matched(self, block: PageBlock, codes: Int64s, done: Int64s, count: int) -> None:
        with self._cache_lock:
            super()._matched(block, codes, done, count)

    def _absent(self, done: Int64s, count: int) -> None:
        with self._cache_lock:
            super()._absent(done, count)

    # ------------------------------------------------------------------------------ snapshot and closing

    def _snapshot_tuples(self) -> pa.Table:
        """Both phases rest between two calls: what waits is in H_S or in I_B."""
        table = super()._snapshot_tuples()
        batches = []
        for item in self.intermediate:
            ids = np.arange(item.taken, item.chunk.n_rows, dtype=np.int64)
            for _, columns in self._stream_columns(self._take_chunk(item.chunk), ids, len(ids)):
                batches.append(pa.RecordBatch.from_arrays(columns, schema=self._schema))
        return pa.concat_tables([table, pa.Table.from_batches(batches, schema=self._schema)])

    def _restore(self, snapshot: Snapshot) -> None:
        """Tuples that were in I_B may not all fit H_S: they go back to I_B."""
        assert snapshot.tuples is not None
        full = False
        for batch in self._parts(snapshot.tuples):
            codes, columns = self._encoded(batch)
            chunk = Chunk(batch.num_rows, codes, columns, np.empty(0, dtype=np.bool_))
            took = 0
            if not full:
                took = self._admit(chunk, self.scratch.every, 0, batch.num_rows, self.scratch.slots)
            if took < batch.num_rows:
                full = True
                self.intermediate.put(Handover(chunk, (batch.num_rows - took) * self.pending.pool.slot_bytes, took))

    def _release(self) -> None:
        try:
            self._stop_threads()
        finally:
            super()._release()

    def _stop_threads(self) -> None:
        """The readers stay open until no thread can read any more."""
        if self._thread is not None and self._thread.ident is not None:
            with self._control:
                self._stopping = True
                self._control.notify_all()
            self._thread.join()
