"""A cache of whole pages: what SSIJ and the partition-based join keep of R in memory.

Pages are copied into frames as they are, so a row is found and gathered there just as in a block that was
read.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from semistream.kernels import units as kernel
from semistream.master.base import PageBlock, PageReader, aligned_buffer
from semistream.master.pages import PageStoreReader

Int64s = npt.NDArray[np.int64]

_LINE = 64
#: bytes that every page of R takes in the directory, cached or not
DIRECTORY_BYTES = 4


class PageCache:
    """Frames with room for any page each; kernels see them as a block whose page p is frame p.

    A table in memory is its own copy: its pages are pointed at, and charged with `page_bytes` as if they were
    copied.
    """

    def __init__(self, reader: PageReader, limit_bytes: int, page_bytes: float) -> None:
        self.page_rows = reader.page_rows
        self._starts = np.empty(0, dtype=np.int64)
        frame = int(page_bytes)
        if isinstance(reader, PageStoreReader):
            self._starts = reader.page_starts
            frame = reader.longest_page
        elif reader.buffer_bytes(1):
            # Pages of unknown length can be read, but not be copied.
            limit_bytes = 0
        self.frame_bytes = -(-frame // _LINE) * _LINE
        columns = len(reader.physical) + 1
        per_frame = self.frame_bytes + 24 + 32 * columns
        count = max(min(limit_bytes // per_frame, reader.n_pages), 0)
        self.n_frames = count
        self.bytes_held = count * per_frame
        self._memory = aligned_buffer(count * self.frame_bytes if len(self._starts) else 0)
        self.base = np.zeros(count, dtype=np.int64)
        self.rows = np.zeros(count, dtype=np.int32)
        self.kind = np.arange(count, dtype=np.int32)
        self.data, self.valid, self.offs, self.bit = (np.full((count, columns), -1, dtype=np.int64) for _ in range(4))
        #: page in each frame, and frame of each page; -1: none
        self.pages = np.full(count, -1, dtype=np.int64)
        self.directory = np.full(reader.n_pages, -1, dtype=np.int32)

    def store(self, block: PageBlock, ordinals: Int64s, frames: Int64s) -> None:
        """Copy pages of a block into frames; what was there is forgotten."""
        kernel.store_pages(
            ordinals,
            frames,
            len(ordinals),
            self._starts,
            block.pages,
            block.base,
            block.rows,
            block.kind,
            block.data,
            block.valid,
            block.offs,
            block.bit,
            self._memory.ctypes.data,
            self.frame_bytes,
            self.base,
            self.rows,
            self.data,
            self.valid,
            self.offs,
            self.bit,
            self.pages,
            self.directory,
        )

    def drop(self, frames: Int64s) -> None:
        """Forget the pages in some frames."""
        held = self.pages[frames]
        self.directory[held[held >= 0]] = -1
        self.pages[frames] = -1
