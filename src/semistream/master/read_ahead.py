"""Groups of pages are read by threads that never wait for the interpreter's lock.

    caller:    ask(0, pages)  ask(1, ..)  ask(2, ..)   wait(0) -> block  ...  ask(0, ..)   wait(1) -> block
                   | pipe                                 ^ pipe
    a thread:      read ------ pipe                       |
    another:                    +-> check --------------- done

A thread that needed the lock after every read would get it when the caller lets go of it, which may take milliseconds,
and the disk would rest meanwhile.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from select import POLLIN, poll
from threading import Thread
from types import TracebackType
from typing import Any, Self

import numpy as np

from semistream.kernels.ahead import END, RESULTS, serve_checks, serve_reads
from semistream.master.base import Bytes, Int64s, RunRead

#: pages, where they are in memory, results of the kernel, buffer -> what was read, or an error
Finish = Callable[[Int64s, Int64s, Int64s, Bytes], RunRead]


class ReadAhead:
    """Reads into buffers of equal size, each of at most `n_pages` pages; `readers` reads are on their way at once.

    `choose` refuses pages that R has not; `files` and `sizes` are what `serve_reads` is told of R's files, and of
    buffers, gaps and alignment; `sums` are where R's pages start and their checksums.
    """

    def __init__(
        self,
        choose: Callable[[Int64s], Int64s],
        finish: Finish,
        files: tuple[Any, ...],
        sums: tuple[Any, ...],
        sizes: tuple[int, int, int],
        buffers: Sequence[Bytes],
        n_pages: int,
        readers: int,
    ) -> None:
        self._choose, self._finish, self._buffers = choose, finish, list(buffers)
        shape = len(buffers), n_pages
        self._pages, self._base = np.empty(shape, dtype=np.int64), np.empty(shape, dtype=np.int64)
        self._counts = np.zeros(len(buffers), dtype=np.int64)
        self._results = np.zeros((len(buffers), RESULTS), dtype=np.int64)
        self._is_done = [False] * len(buffers)
        addresses = np.array([buffer.ctypes.data for buffer in buffers], dtype=np.int64)
        self._process = os.getpid()
        self._ends: list[int] = []
        self._asked = self._read = -1
        self._readers: list[Thread] = []
        self._checker: list[Thread] = []
        self._look = poll()
        # Compiled here: of a thread that fails at it nobody would hear.
        serve_reads.load()
        serve_checks.load()
        try:
            for _ in range(3):
                self._ends += os.pipe()
            served, self._asked, checked, self._read, self._done, done = self._ends
            self._look.register(self._done, POLLIN)
            found = self._base, self._results
            checks = checked, done, *sums, self._pages, *found
            reads = served, self._read, *files, addresses, *sizes, self._pages, self._counts, *found
            self._start(self._checker, "checker", serve_checks, checks)
            for _ in range(readers):
                self._start(self._readers, "reader", serve_reads, reads)
        except BaseException:
            self.close()
            raise

    def _start(self, threads: list[Thread], name: str, serve: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        # Should nobody close this, they end with the process.
        name = f"semistream {name} {len(threads)}"
        thread = Thread(target=self._serve, args=(serve, arguments), name=name, daemon=True)
        thread.start()
        threads.append(thread)

    def _serve(self, serve: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        """As a method it keeps the buffers alive that are named by addresses only."""
        serve(*arguments)

    def ask(self, buffer: int, pages: Int64s) -> None:
        """Have sorted pages read into a buffer, as many as fit; what it held before is lost."""
        count = len(pages)
        self._pages[buffer, :count] = self._choose(pages)
        self._counts[buffer] = count
        self._is_done[buffer] = False
        os.write(self._asked, bytes((buffer,)))

    def is_done(self, buffer: int) -> bool:
        """Whether `wait` would give what was read into a buffer at once."""
        while not self._is_done[buffer] and self._look.poll(0):
            self._take_done()
        return self._is_done[buffer]

    def _take_done(self) -> None:
        for done in os.read(self._done, len(self._is_done)):
            self._is_done[done] = True

    def wait(self, buffer: int) -> RunRead:
        """What was read into a buffer; valid until it is asked for again."""
        while not self._is_done[buffer]:
            self._take_done()
        count = self._counts[buffer]
        pages, base = self._pages[buffer, :count], self._base[buffer, :count]
        return self._finish(pages, base, self._results[buffer], self._buffers[buffer])

    def close(self) -> None:
        """Wait until nobody reads any more."""
        # A process that was forked meanwhile has the pipes too. So the threads are told to end, which closing the pipes
        # might not do; and by their own process only.
        if os.getpid() == self._process:
            self._end(self._readers, self._asked)
            self._end(self._checker, self._read)
        for end in self._ends:
            os.close(end)
        self._readers, self._checker, self._ends = [], [], []

    @staticmethod
    def _end(threads: list[Thread], pipe: int) -> None:
        for _ in threads:
            os.write(pipe, bytes((END,)))
        for thread in threads:
            thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
