"""Reading, joining and writing at the same time: a thread that reads ahead, and one that writes behind.

    reader thread ──> queue of batches ──> the join, in the main thread ──> queue of rows ──> writer thread

Arrow and the kernels work without the interpreter's lock, so the three run side by side. Queues are bounded in bytes,
so a slow writer holds the join back, and memory does not grow. An error in a thread is raised in the main thread, which
alone hears signals; whatever ends the main thread's part ends the threads too, and is over when they have ended.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator

import pyarrow as pa


class Stopped(Exception):
    """The other side of a queue has given up."""


class ByteQueue:
    """Batches between two threads, at most `limit_bytes` of them; a single batch may be larger."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._batches: deque[tuple[pa.RecordBatch, int]] = deque()
        self._held = 0
        self._changed = threading.Condition()
        self._ended = False
        self._stopped = False
        self._error: BaseException | None = None
        #: the most that waited at a time
        self.most_bytes = 0

    def put(self, batch: pa.RecordBatch) -> None:
        """Wait for room; `Stopped`, or the error that the taker ended with, if nobody takes any more."""
        size = batch.nbytes
        with self._changed:
            while self._batches and self._held + size > self._limit and not self._stopped:
                self._changed.wait()
            self._check()
            self._batches.append((batch, size))
            self._held += size
            self.most_bytes = max(self.most_bytes, self._held)
            self._changed.notify_all()

    def take(self) -> pa.RecordBatch | None:
        """The next batch, None after the last; `Stopped`, or the error that the giver ended with, if it gave up."""
        with self._changed:
            while not self._batches and not self._ended and not self._stopped:
                self._changed.wait()
            self._check()
            if not self._batches:
                return None
            batch, size = self._batches.popleft()
            self._held -= size
            self._changed.notify_all()
        return batch

    def end(self) -> None:
        """Nothing more will be put."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def stop(self, error: BaseException | None = None) -> None:
        """Give up: whoever waits, or comes later, is told so. The first reason counts."""
        with self._changed:
            if self._stopped:
                return
            self._stopped, self._error = True, error
            self._batches.clear()
            self._held = 0
            self._changed.notify_all()

    def _check(self) -> None:
        if self._stopped:
            raise Stopped if self._error is None else self._error


@contextlib.contextmanager
def read_ahead(batches: Iterator[pa.RecordBatch], limit_bytes: int) -> Iterator[Iterator[pa.RecordBatch]]:
    """The same batches, which another thread gets while the caller works."""
    queue = ByteQueue(limit_bytes)

    def read() -> None:
        for batch in batches:
            queue.put(batch)
        queue.end()

    with _beside(read, queue, "reader"):
        yield iter(queue.take, None)


@contextlib.contextmanager
def write_behind(write: Callable[[pa.RecordBatch], None], limit_bytes: int) -> Iterator[WriteBehind]:
    """Has another thread write what is put, in order; leaving the block without `finish` drops what waits."""
    queue = ByteQueue(limit_bytes)

    def take() -> None:
        for batch in iter(queue.take, None):
            write(batch)

    with _beside(take, queue, "writer") as thread:
        yield WriteBehind(queue, thread)


class WriteBehind:
    """Where the main thread puts what is to be written."""

    def __init__(self, queue: ByteQueue, thread: threading.Thread) -> None:
        self._queue, self._thread = queue, thread
        self.write = queue.put

    def finish(self) -> None:
        """Wait until all is written; raises what the thread has met."""
        self._queue.end()
        self._thread.join()
        self._queue._check()


@contextlib.contextmanager
def _beside(work: Callable[[], None], queue: ByteQueue, name: str) -> Iterator[threading.Thread]:
    """Runs the work in a thread for as long as the block; its error goes through the queue."""

    def run() -> None:
        try:
            work()
        except Stopped:
            pass
        except BaseException as error:
            queue.stop(error)

    thread = threading.Thread(target=run, name=f"semistream {name}", daemon=True)
    thread.start()
    try:
        yield thread
    finally:
        queue.stop()
        _joined(thread)


def _joined(thread: threading.Thread) -> None:
    """Wait for the end of a thread, which writes at most one more row group.

    Another Ctrl-C must not end the wait: files are removed next, and a thread that still writes would leave some.
    """
    while thread.is_alive():
        with contextlib.suppress(KeyboardInterrupt):
            thread.join()
