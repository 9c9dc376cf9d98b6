"""A cache of whole pages: what SSIJ and the partition-based join keep of R in memory.

Pages are copied into frames as they are, so a row is found and gathered there just as in a block that was read.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from semistream.columns.rows import page_view
from semistream.kernels import units as kernel
from semistream.master.base import PageBlock, PageReader, aligned_buffer
from semistream.master.page_reader import PageStoreReader
from semistream.parts.units import Asked

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_LINE = 64
#: bytes that every page of R takes in the directory, cached or not
DIRECTORY_BYTES = 4
#: bytes of the utility of a group of pages
UTILITY_BYTES = 4
#: stream tuples per page of R after which utilities are halved
_WINDOW_PER_PAGE = 8


def frame_bytes(page_bytes: float, columns: int) -> int:
    """Bytes of a frame with room for a page of that size, and of what describes its columns."""
    return _frame_room(page_bytes) + 24 + 32 * columns


def _frame_room(page_bytes: float) -> int:
    return -(-int(page_bytes) // _LINE) * _LINE


class PageCache:
    """Frames with room for any page each; kernels see them as a block whose page p is frame p.

    A table in memory is its own copy: its pages are pointed at, and charged with `page_bytes` as if they were copied.
    Every `group` consecutive pages of R have a utility: the tuples that they could answer lately, cached or not.
    """

    def __init__(self, reader: PageReader, frames: int, page_bytes: float, group: int = 1) -> None:
        self.page_rows = reader.page_rows
        self.group = group
        self._starts = reader.page_starts if isinstance(reader, PageStoreReader) else np.empty(0, dtype=np.int64)
        self._frame_room = _frame_room(page_bytes)
        columns = len(reader.physical) + 1
        self.n_frames = frames
        self.bytes_held = frames * frame_bytes(page_bytes, columns)
        self._memory = aligned_buffer(frames * self._frame_room if len(self._starts) else 0)
        self.base = np.zeros(frames, dtype=np.int64)
        self.rows = np.zeros(frames, dtype=np.int32)
        self.kind = np.arange(frames, dtype=np.int32)
        self.data, self.valid, self.offs, self.bit = (np.full((frames, columns), -1, dtype=np.int64) for _ in range(4))
        #: page in each frame, and frame of each page; -1: none
        self.pages = np.full(frames, -1, dtype=np.int64)
        self.directory = np.full(reader.n_pages, -1, dtype=np.int32)
        self.utility = np.zeros(-(-reader.n_pages // group), dtype=np.float32)
        self._asked = 0

    def answers(self, asked: Asked) -> tuple[Bools, int]:
        """Which tuples have all pages of their keys here, and how many these are; each is a point for its group.

        A tuple without a page, whose key R lacks, is among them.
        """
        resident = np.empty(asked.count, dtype=np.bool_)
        found = kernel.find_resident(
            asked.first, asked.last, asked.count, self.group, self.directory, self.utility, resident
        )
        self._asked += asked.count
        if self._asked >= _WINDOW_PER_PAGE * len(self.directory):
            self._asked = 0
            self.utility *= np.float32(0.5)
        return resident, int(found)

    def ordinals(self, pages: Int64s) -> Int64s:
        """Frames of pages that are here."""
        return self.directory[pages].astype(np.int64)

    def store(self, block: PageBlock, ordinals: Int64s, frames: Int64s) -> None:
        """Copy pages of a block into frames; what was there is forgotten."""
        source, target = ((page_view(pages), pages.rows, pages.pages) for pages in (block, self))
        memory = self._memory.ctypes.data
        kernel.store_pages(ordinals, frames, self._starts, source, target, self.directory, memory, self._frame_room)

    def drop(self, frames: Int64s) -> None:
        """Forget the pages in some frames."""
        held = self.pages[frames]
        self.directory[held[held >= 0]] = -1
        self.pages[frames] = -1
