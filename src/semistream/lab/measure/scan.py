"""How fast files can be read from end to end past the page cache: the limit of every join that reads all of R."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from semistream.errors import StoreError
from semistream.lab.measure.turns import Performance
from semistream.loops.pages import AHEAD_BUFFERS, READERS
from semistream.master.base import aligned_buffer
from semistream.master.files import open_file
from semistream.master.pages import PageMaster

PIECE_BYTES = 4 << 20
#: of a disk buffer of a scan that checks its pages, as a join with 120 MB has them
BUFFER_BYTES = 3 << 20


def scan_seconds(paths: Sequence[Path], readers: int = 1, piece_bytes: int = PIECE_BYTES) -> float:
    """Seconds to read all of these files once, in pieces; `readers` pieces are on their way at once."""
    files = [open_file(path, direct=True) for path in paths]
    try:
        pieces = [(fd, start) for fd in files for start in range(0, os.fstat(fd).st_size, piece_bytes)]
        started = time.perf_counter()
        with ThreadPoolExecutor(readers) as pool:
            parts = pool.map(_read, [pieces[first::readers] for first in range(readers)], [piece_bytes] * readers)
            read = sum(parts)
        seconds = time.perf_counter() - started
        expected = sum(os.fstat(fd).st_size for fd in files)
    finally:
        for fd in files:
            os.close(fd)
    if read != expected:
        raise StoreError(f"a scan read {read} bytes of {expected}: the files have changed meanwhile, scan them again")
    return seconds


def _read(pieces: Sequence[tuple[int, int]], piece_bytes: int) -> int:
    buffer = aligned_buffer(piece_bytes).data
    return sum(os.preadv(fd, [buffer], start) for fd, start in pieces)


def checked_scan_seconds(master: PageMaster) -> float:
    """Seconds to read all pages of R as a join does that reads ahead: checked, by its threads, into its buffers."""
    with master.open(master.schema.names, direct=True) as reader:
        memory, size = aligned_buffer(AHEAD_BUFFERS * BUFFER_BYTES), BUFFER_BYTES
        buffers = [memory[size * i : size * (i + 1)] for i in range(AHEAD_BUFFERS)]
        every = np.arange(master.n_pages, dtype=np.int64)
        most = reader.fitting(every, size, 0)
        started = time.perf_counter()
        with reader.read_ahead(buffers, most, 0, READERS) as ahead:
            free, reading, at = list(range(AHEAD_BUFFERS)), deque[int](), 0
            while True:
                while free and at < len(every):
                    pages = every[at : at + most]
                    pages = pages[: reader.fitting(pages, size, 0)]
                    ahead.ask(free[-1], pages)
                    reading.append(free.pop())
                    at += len(pages)
                if not reading:
                    break
                ahead.wait(reading[0])
                free.append(reading.popleft())
        return time.perf_counter() - started


class ScanLimit(Performance):
    """One pass over R for each batch and nothing else: no join that reads all of R per batch can be faster.

    Read by one thread, and by two with one piece ahead of the other; the faster of the two counts.
    """

    name = "scan limit"

    def __init__(self, paths: Sequence[Path], batch_rows: int) -> None:
        self.paths = list(paths)
        self.batch_rows = batch_rows
        self.n_bytes = sum(path.stat().st_size for path in self.paths)
        super().__init__(lambda _: iter(()), iter(()))

    def change_batches(self, batch_rows: int) -> None:
        self.batch_rows = batch_rows
        self.rates = []

    def batch(self) -> float:
        self.tuples_in += self.batch_rows
        return min(scan_seconds(self.paths, readers) for readers in (1, 2))

    @property
    def bytes_per_second(self) -> float:
        """Of the middle turn."""
        return self.median / self.batch_rows * self.n_bytes


class CheckedScan(ScanLimit):
    """The same with every page checked: what is left to a join that trusts no page, if its own work costs no time."""

    name = "checked scan"

    def __init__(self, master: PageMaster, batch_rows: int) -> None:
        super().__init__([file.path for file in master.page_files], batch_rows)
        self._master = master

    def batch(self) -> float:
        self.tuples_in += self.batch_rows
        return checked_scan_seconds(self._master)
