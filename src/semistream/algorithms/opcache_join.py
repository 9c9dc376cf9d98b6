"""OP-CACHEJOIN: P-CACHEJOIN with two disk buffers, loaded while the other is probed.

OP-CACHEJOIN loads one disk buffer while the disk phase probes the other.

Each buffer is empty, full or busy and has a loader thread of its own. The tuple at the rear of the queue (the
oldest) picks the load of one, a tuple at its front (the newest) that of the other; a full buffer is probed, and
as soon as it is done its thread refills it. The disk phase changes over with almost no delay, so the time of a
load is hidden behind that of a probe.

Needs of R: an index. Exact as CACHEJOIN is; the oldest tuple still leaves with the next load that it picks.

Memory: M = (2·d_B + h_R)·v_R + i_B·v_S + 8·h_R + h_S·(v_S·f + v_Q).
Cost:   that of P-CACHEJOIN with half of c_I/O(d_B).

>>> import pyarrow as pa
>>> from semistream import open_join
>>> with open_join("opcachejoin", master=pa.table({"k": [1, 2], "v": [10, 20]}), on="k", memory="1MB") as join:
...     rows = [*join.push(pa.record_batch({"k": [2, 7]})), *join.drain()]
>>> pa.Table.from_batches(rows).to_pydict()
{'k': [2, 7], 'v': [20, None]}

Paper: opcachejoin2020, as P-CACHEJOIN.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from enum import Enum
from queue import SimpleQueue

import pyarrow as pa

from semistream.algorithms import pcache_join
from semistream.algorithms.pcache_join import INTERMEDIATE_KNOB, Options, ParallelPlan, parallel_plan, parallel_tables
from semistream.engine.algorithm import BUFFER_KNOB, CACHE_KNOB, Algorithm, Pricing
from semistream.engine.chunk import JoinStats, Scratch
from semistream.engine.division import Needs, divide
from semistream.engine.facts import MasterFacts, StreamFacts
from semistream.engine.workplace import Workplace
from semistream.loops.index import DiskPhase, IndexFront, PageRange
from semistream.loops.parallel import ParallelLoop
from semistream.loops.prices import HAND_OVER
from semistream.master.base import PageBlock
from semistream.parts.disk_buffer import DiskBuffer
from semistream.parts.pending import LinkedPending

_FRONT_TUPLES = 64


def plan(r: MasterFacts, s: StreamFacts, budget: int, options: Options) -> ParallelPlan:
    """Two disk buffers, each as large as P-CACHEJOIN's, and a second page index: a reader serves one thread."""
    needs = Needs(buffers=2, scratches=2, buffer_share=0.2, most_buffer=8 << 20, fixed=r.index_bytes)
    return parallel_plan(r, s, budget, options, divide(r, budget, options, needs))


class BufferState(Enum):
    """What a disk buffer is doing.

    EMPTY --loader thread--> FULL --disk phase takes it--> BUSY --probed--> EMPTY
    """

    EMPTY = "empty"
    FULL = "full"
    BUSY = "busy"


class LoadedBuffer:
    """A disk buffer with its state, its loader thread, and the key that asked for the load.

    Whoever may act on it is the only one to do so: the disk phase while it is empty or busy, the loader from a request
    until the buffer, full, is in `loaded`.
    """

    def __init__(self, disk: DiskBuffer, from_front: bool, loaded: SimpleQueue[LoadedBuffer]) -> None:
        self.disk = disk
        self.from_front = from_front
        self.state = BufferState.EMPTY
        self.code: int | None = None
        self.pages = PageRange()
        self.block: PageBlock | None = None
        self.error: BaseException | None = None
        self._loaded = loaded
        self._requests: SimpleQueue[bool] = SimpleQueue()
        self._loader = threading.Thread(target=self._load_loop, name="semistream loader", daemon=True)
        self._loader.start()

    @property
    def is_requested(self) -> bool:
        return self.code is not None

    def request(self, code: int, pages: PageRange) -> None:
        self.code, self.pages = code, pages
        self._requests.put(True)

    def release(self) -> None:
        self.code, self.block, self.state = None, None, BufferState.EMPTY

    def stop(self) -> None:
        self._requests.put(False)
        self._loader.join()

    def _load_loop(self) -> None:
        while self._requests.get():
            try:
                if self.pages.count and self.pages.is_whole:
                    self.block = self.disk.load(self.pages.first, self.pages.count)
            except BaseException as error:
                self.error = error
            self.state = BufferState.FULL
            self._loaded.put(self)


class LoadingPhase(DiskPhase):
    """The disk phase over two buffers: one is loaded while the other is probed."""

    def __init__(self, work: Workplace, pending: LinkedPending, front: IndexFront, in_step: bool) -> None:
        super().__init__(work, pending, front)
        self._in_step = in_step
        self._second_reader = work.second_reader()
        #: full buffers as they come from the loaders, and those taken from there
        self._from_loaders: SimpleQueue[LoadedBuffer] = SimpleQueue()
        self._full: list[LoadedBuffer] = []
        second = DiskBuffer(self._second_reader, work.disk.n_pages)
        self.buffers = tuple(
            LoadedBuffer(disk, from_front=disk is second, loaded=self._from_loaders) for disk in (work.disk, second)
        )

    @property
    def disks(self) -> tuple[DiskBuffer, ...]:
        return tuple(buffer.disk for buffer in self.buffers)

    def iterate(self) -> Iterator[pa.RecordBatch]:
        """Ask for loads from both ends of the queue, then probe a buffer that is full."""
        yield from self.release_absent()
        if not len(self.pending):
            return
        self._request_loads()
        buffer = self._next_full()
        buffer.state = BufferState.BUSY
        code = buffer.code
        assert code is not None
        if self.pending.chain_of(code) or buffer.block is not None:
            yield from self.serve(code, buffer.pages, buffer.disk, buffer.block)
        buffer.release()
        self._request_loads()

    def _request_loads(self) -> None:
        """Give every empty buffer the key at its end of the queue, unless the other one loads the same pages."""
        for buffer, other in (self.buffers, self.buffers[::-1]):
            if buffer.is_requested or not len(self.pending):
                continue
            code = self._front_code() if buffer.from_front else self.pending.code_at(self.pending.oldest)
            pages = self.pages_for(code)
            if not other.is_requested or (other.code != code and other.pages.first != pages.first):
                buffer.request(code, pages)
        if self._in_step:
            self._await_loads(sum(buffer.is_requested for buffer in self.buffers))
            self._full.sort(key=lambda buffer: buffer.from_front)

    def _await_loads(self, wanted: int) -> None:
        while len(self._full) < wanted:
            self._full.append(self._from_loaders.get())

    def _next_full(self) -> LoadedBuffer:
        """The buffer that was full first; in step, the rear's."""
        self._await_loads(1)
        buffer = self._full.pop(0)
        if buffer.error is not None:
            raise buffer.error
        return buffer

    def _front_code(self) -> int:
        """The key that picks a load at the front: of the newest tuples the one whose pages were not read for longest.

        The very newest tuple's pages may have been read a moment ago, and then hardly another tuple waits for them.
        """
        if self.work.master.order != "key":
            return self.pending.code_at(self.pending.newest)
        reader = self.work.reader
        return self.pending.front_code(self.times, reader.fences, reader.continues, _FRONT_TUPLES)

    def borrow_disk(self) -> DiskBuffer:
        """Loads go on while the phases rest: they are awaited, and what they brought is forgotten."""
        while any(buffer.is_requested for buffer in self.buffers):
            self._next_full().release()
        return self.work.disk

    def close(self) -> None:
        try:
            for buffer in self.buffers:
                buffer.stop()
        finally:
            self._second_reader.close()


def run(plan: ParallelPlan, work: Workplace) -> ParallelLoop:
    """Both phases side by side, the disk phase with two disk buffers."""
    front, pending = parallel_tables(plan, work)
    beside = work.beside(JoinStats(), Scratch(plan.division.chunk_rows))
    phase = LoadingPhase(beside, pending, front, plan.options.in_step)
    return ParallelLoop(phase, front, work, plan.intermediate, plan.options.in_step)


ALGORITHM = Algorithm(
    name="opcachejoin",
    about=__doc__,
    plan=plan,
    run=run,
    options=Options,
    # The paper halves c_I/O(d_B), as if the disk served both loads at once. Here loads run beside the disk phase, and
    # c_loop is the slowest of stream phase, disk phase and loads.
    predict=pcache_join.predict,
    pricing=Pricing(HAND_OVER, threads=3),
    knobs=(BUFFER_KNOB, CACHE_KNOB, INTERMEDIATE_KNOB),
    paper="opcachejoin2020",
    needs_index=True,
    shares_cache=True,
)
