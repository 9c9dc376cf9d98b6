"""How fast files can be read from end to end past the page cache: the limit of every join that reads all of R."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from semistream.errors import StoreError
from semistream.lab.measure.turns import Performance
from semistream.master.base import aligned_buffer
from semistream.master.files import open_file

PIECE_BYTES = 4 << 20


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
