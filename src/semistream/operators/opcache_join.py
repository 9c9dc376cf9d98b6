"""OP-CACHEJOIN: P-CACHEJOIN with two disk buffers, loaded while the other is probed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from enum import Enum
from queue import SimpleQueue
from typing import Any

import pyarrow as pa

from semistream.kernels import linked as kernel
from semistream.master.base import Master, PageBlock, PageReader
from semistream.operators.pcache_join import PCacheJoin
from semistream.parts.disk_buffer import DiskBuffer
from semistream.spec import JoinSpec

_FRONT_TUPLES = 64


class BufferState(Enum):
    """What a disk buffer is doing.

    EMPTY --loader thread--> FULL --disk phase takes it--> BUSY --probed--> EMPTY
    """

    EMPTY = "empty"
    FULL = "full"
    BUSY = "busy"


class LoadedBuffer:
    """A disk buffer with its state, its loader thread, and the key that asked for the load.

    Only one thread may act on it at a time: the disk phase while it is empty or busy, the loader from a request
    until the buffer, full, is in `loaded`.
    """

    def __init__(self, disk: DiskBuffer, from_front: bool, loaded: SimpleQueue[LoadedBuffer]) -> None:
        self.disk = disk
        self.from_front = from_front
        self.state = BufferState.EMPTY
        self.code: int | None = None
        self.pages = (-1, 0, -1)
        self.block: PageBlock | None = None
        self.error: BaseException | None = None
        self._loaded = loaded
        self._requests: SimpleQueue[bool] = SimpleQueue()
        self._loader = threading.Thread(target=self._load_loop, name="semistream loader", daemon=True)
        self._loader.start()

    @property
    def is_requested(self) -> bool:
        return self.code is not None

    def request(self, code: int, pages: tuple[int, int, int]) -> None:
        self.code, self.pages = code, pages
        self._requests.put(True)

    def release(self) -> None:
        self.code, self.block, self.state = None, None, BufferState.EMPTY

    def stop(self) -> None:
        self._requests.put(False)
        self._loader.join()

    def _load_loop(self) -> None:
        while self._requests.get():
            first, pages, last = self.pages
            try:
                if pages and last < first + pages:
                    self.block = self.disk.load(first, pages)
            except BaseException as error:
                self.error = error
            self.state = BufferState.FULL
            self._loaded.put(self)


class OPCacheJoin(PCacheJoin):
    """OP-CACHEJOIN loads one disk buffer while the disk phase probes the other.

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
    {'k': [2], 'v': [20]}

    Paper: opcachejoin2020, as P-CACHEJOIN.
    """

    name = "opcachejoin"
    buffers = 2

    def __init__(self, master: Master, spec: JoinSpec, budget_bytes: int, **common: Any) -> None:
        self._second_reader: PageReader | None = None
        self.disk_buffers: tuple[LoadedBuffer, ...] = ()
        super().__init__(master, spec, budget_bytes, **common)

    def _default_buffer_bytes(self, total: int) -> int:
        """Each buffer is as large as P-CACHEJOIN's single one."""
        return 2 * super()._default_buffer_bytes(total)

    def _extra_fixed_bytes(self, total: int) -> int:
        """A reader serves one thread: the second buffer has its own."""
        return self.reader.index_bytes

    def _build(self) -> None:
        self._second_reader = self.master.open(self._reader_columns, direct=self._direct)
        second = DiskBuffer(self._second_reader, self.buffer_pages)
        #: full buffers as they come from the loaders, and those taken from there
        self._from_loaders: SimpleQueue[LoadedBuffer] = SimpleQueue()
        self._full: list[LoadedBuffer] = []
        super()._build()
        for disk in (self.disk, second):
            self.disk_buffers += (LoadedBuffer(disk, from_front=disk is second, loaded=self._from_loaders),)

    # --------------------------------------------------------------------------------------- disk phase

    def _serve_next(self) -> Iterator[pa.RecordBatch]:
        """Ask for loads from both ends of the queue, then probe a buffer that is full."""
        self._request_loads()
        buffer = self._next_full()
        buffer.state = BufferState.BUSY
        yield from self._probe_buffer(buffer)
        buffer.release()
        self._request_loads()

    def _request_loads(self) -> None:
        """Give every empty buffer the key at its end of the queue, unless the other one loads the same pages."""
        for buffer, other in (self.disk_buffers, self.disk_buffers[::-1]):
            if buffer.is_requested or not len(self.pending):
                continue
            code = self._front_code() if buffer.from_front else self._code_at(self.pending.oldest)
            pages = self._pages_for(code)
            if not other.is_requested or (other.code != code and other.pages[0] != pages[0]):
                buffer.request(code, pages)
        if self._in_step:
            self._await_loads(sum(buffer.is_requested for buffer in self.disk_buffers))
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
        if self.master.order != "key":
            return self._code_at(self.pending.newest)
        return int(
            kernel.linked_front(
                self.pending.arena.state,
                self.pending.queue,
                self.reader.fences,
                self.reader.continues,
                self.buffer_pages,
                self._loaded,
                _FRONT_TUPLES,
            )
        )

    def _probe_buffer(self, buffer: LoadedBuffer) -> Iterator[pa.RecordBatch]:
        first, pages, last = buffer.pages
        code = buffer.code
        assert code is not None
        if not self.pending.chain_of(code) and buffer.block is None:
            return
        yield from self._serve(code, first, pages, last, buffer.disk, self.disk_scratch, buffer.block)

    def _copy_read_counts(self) -> None:
        disks = [buffer.disk for buffer in self.disk_buffers]
        self._counts.reads = sum(disk.reads for disk in disks)
        self._counts.pages_read = sum(disk.pages_read for disk in disks)
        self._counts.bytes_read = sum(disk.bytes_read for disk in disks)

    def borrow_disk(self) -> DiskBuffer:
        """Loads go on while the phases rest: they are awaited, and what they brought is forgotten."""
        while any(buffer.is_requested for buffer in self.disk_buffers):
            self._next_full().release()
        return self.disk

    def _release(self) -> None:
        try:
            super()._release()
        finally:
            if self._second_reader is not None:
                self._second_reader.close()

    def _stop_threads(self) -> None:
        """The disk phase first: it may wait for a load."""
        super()._stop_threads()
        for buffer in self.disk_buffers:
            buffer.stop()
