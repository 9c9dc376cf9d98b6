"""OP-CACHEJOIN: P-CACHEJOIN with two disk buffers, loaded while the other is probed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from enum import Enum
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
    """A disk buffer with its state, its loader thread, and the key that asked for the load."""

    def __init__(self, disk: DiskBuffer, from_front: bool) -> None:
        self.disk = disk
        self.from_front = from_front
        self.state = BufferState.EMPTY
        self.code: int | None = None
        self.pages = (-1, 0, -1)
        self.block: PageBlock | None = None

    @property
    def is_requested(self) -> bool:
        return self.code is not None


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

    Paper: seed 004, as P-CACHEJOIN.
    """

    name = "opcachejoin"
    buffers = 2

    def __init__(self, master: Master, spec: JoinSpec, budget_bytes: int, **common: Any) -> None:
        self._second_reader: PageReader | None = None
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
        self.disk_buffers = (LoadedBuffer(self.disk, from_front=False), LoadedBuffer(second, from_front=True))
        self._loads = threading.Condition()
        self._loading_stopped = False
        self._load_error: BaseException | None = None
        self._loaders = [
            threading.Thread(target=self._load_loop, args=(buffer,), name="semistream loader", daemon=True)
            for buffer in self.disk_buffers
        ]
        super()._build()
        for loader in self._loaders:
            loader.start()

    # ---------------------------------------------------------------------------------- loader threads

    def _load_loop(self, buffer: LoadedBuffer) -> None:
        while True:
            with self._loads:
                self._loads.wait_for(
                    lambda: self._loading_stopped or (buffer.state is BufferState.EMPTY and buffer.is_requested)
                )
                if self._loading_stopped:
                    return
                first, pages, last = buffer.pages
            try:
                block = None
                if pages and last < first + pages:
                    block = buffer.disk.load(first, pages)
            except BaseException as error:
                with self._loads:
                    self._load_error = error
                    self._loads.notify_all()
                return
            with self._loads:
                buffer.block = block
                buffer.state = BufferState.FULL
                self._loads.notify_all()

    # --------------------------------------------------------------------------------------- disk phase

    def _serve_next(self) -> Iterator[pa.RecordBatch]:
        """Ask for loads from both ends of the queue, then probe a buffer that is full."""
        self._request_loads()
        with self._loads:
            self._loads.wait_for(
                lambda: self._load_error is not None or any(b.state is BufferState.FULL for b in self.disk_buffers)
            )
            if self._load_error is not None:
                raise self._load_error
            full = [b for b in self.disk_buffers if b.state is BufferState.FULL]
            buffer = full[0]
            buffer.state = BufferState.BUSY
        yield from self._probe_buffer(buffer)
        with self._loads:
            buffer.code, buffer.block = None, None
            buffer.state = BufferState.EMPTY
        self._request_loads()

    def _request_loads(self) -> None:
        """Give every empty buffer the key at its end of the queue, unless the other one loads the same pages."""
        with self._loads:
            for buffer, other in (self.disk_buffers, self.disk_buffers[::-1]):
                if buffer.state is not BufferState.EMPTY or buffer.is_requested or not len(self.pending):
                    continue
                code = self._front_code() if buffer.from_front else self._code_at(self.pending.oldest)
                pages = self._pages_for(code)
                if other.is_requested and (other.code == code or other.pages[0] == pages[0]):
                    continue
                buffer.code, buffer.pages = code, pages
            self._loads.notify_all()
            if self._in_step:
                self._loads.wait_for(lambda: self._load_error is not None or self._all_loaded)

    @property
    def _all_loaded(self) -> bool:
        return all(buffer.state is BufferState.FULL for buffer in self.disk_buffers if buffer.is_requested)

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

    def close(self) -> None:
        super().close()
        if self._second_reader is not None and not self._loading_stopped:
            with self._loads:
                self._loading_stopped = True
                self._loads.notify_all()
            for loader in self._loaders:
                if loader.is_alive():
                    loader.join()
            self._second_reader.close()
