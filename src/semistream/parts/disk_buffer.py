"""The disk buffer D_B: where a run of pages of R is loaded."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from semistream.kernels.rows import copy_codes
from semistream.master.base import Bytes, PageBlock, PageReader, RunRead, aligned_buffer

Int64s = npt.NDArray[np.int64]


class DiskBuffer:
    """Room for `n_pages` pages and their key codes, side by side for the probing kernels."""

    def __init__(self, reader: PageReader, n_pages: int, buffer: Bytes | None = None) -> None:
        self.reader = reader
        self.n_pages = n_pages
        self.buffer = aligned_buffer(reader.buffer_bytes(n_pages)) if buffer is None else buffer
        self.codes = np.empty(n_pages * reader.page_rows, dtype=np.int64)
        self.bytes_held = self.bytes_for(reader, n_pages)
        self.pages_read = 0
        self.bytes_read = 0
        self.reads = 0

    def with_others(self, count: int) -> list[DiskBuffer]:
        """This one and so many others like it, all in one piece of memory; what was loaded here before is lost.

        Together they are made of huge pages that one alone is too small for.
        """
        size = self.buffer.nbytes
        memory = aligned_buffer((count + 1) * size)
        self.buffer = memory[:size]
        rest = (memory[size * i : size * (i + 1)] for i in range(1, count + 1))
        return [self, *(DiskBuffer(self.reader, self.n_pages, buffer) for buffer in rest)]

    @staticmethod
    def bytes_for(reader: PageReader, n_pages: int) -> int:
        """What a buffer of `n_pages` pages takes of the budget."""
        return reader.buffer_bytes(n_pages) + 8 * n_pages * reader.page_rows + reader.held_bytes(n_pages)

    @staticmethod
    def pages_within(reader: PageReader, size: int) -> int:
        """How many pages a buffer of `size` bytes holds; at least one, at most all of R."""
        low, high = 1, max(reader.n_pages, 1)
        while low < high:
            middle = (low + high + 1) // 2
            if DiskBuffer.bytes_for(reader, middle) <= size:
                low = middle
            else:
                high = middle - 1
        return low

    def follow(self) -> None:
        """The reader has other pages: as many of them are loaded at once as find room whichever they are."""
        while self.n_pages > 1 and self.reader.buffer_bytes(self.n_pages) > self.buffer.nbytes:
            self.n_pages -= 1

    def load(self, first_page: int, n_pages: int) -> PageBlock:
        """Read consecutive pages; `codes[:block.n_rows]` are their key codes."""
        block = self.reader.read(first_page, n_pages, self.buffer)
        copy_codes(block.base, block.rows, block.kind, block.data, self.codes)
        self.pages_read += len(block.pages)
        self.reads += 1
        self.bytes_read += self.reader.read_bytes(block)
        return block

    def read_runs(self, pages: Int64s, gap_bytes: int) -> RunRead:
        """Read as many of the sorted pages as fit in one sweep; `took` counts them."""
        return self.reader.read_runs(pages[: self.n_pages], self.buffer, gap_bytes)

    def took(self, run: RunRead) -> PageBlock:
        """Count what was read into this buffer, here or by a thread; `codes` are not made for it."""
        self.pages_read += run.pages
        self.reads += run.reads
        self.bytes_read += run.bytes
        return run.block
