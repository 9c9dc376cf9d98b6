"""Files of pages in memory, and which of their pages were checked there."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from semistream.errors import StoreError
from semistream.master.base import Bytes, Int64s, PageFile
from semistream.master.format import DAMAGED
from semistream.master.page_index import PageIndex


@dataclass
class MappedPages:
    """The files of a store in memory, what takes a page's start to its address there, and a bit per checked page."""

    files: list[Bytes]
    shifts: Int64s
    seen: Bytes

    @staticmethod
    def of(handles: Sequence[int], files: Sequence[PageFile], index: PageIndex) -> MappedPages:
        """Open files, of which no page was checked."""
        mapped = list(map(_mapped, handles, files))
        return MappedPages(mapped, _shifts(mapped, index), np.zeros(flag_bytes(index.n_pages), dtype=np.uint8))

    def extended(self, handles: Sequence[int], files: Sequence[PageFile], index: PageIndex) -> MappedPages:
        """The same with more files behind them; what was checked stays so."""
        mapped = [*self.files, *map(_mapped, handles, files)]
        seen = np.zeros(flag_bytes(index.n_pages), dtype=np.uint8)
        seen[: len(self.seen)] = self.seen
        return MappedPages(mapped, _shifts(mapped, index), seen)


@dataclass
class Shared:
    """What readers of one opened store leave to each other: each page is checked once, whoever asked first for it.

    An operator that takes over from another finds the pages in memory where that one had them.
    """

    mapped: MappedPages | None = None


def flag_bytes(pages: int) -> int:
    """Bytes of one bit per page."""
    return (pages + 7) // 8


def _mapped(handle: int, file: PageFile) -> Bytes:
    """A file of pages in memory, if it still has the length that the manifest says."""
    try:
        # Python refuses a length beyond the end of the file.
        content = mmap.mmap(handle, file.size, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise StoreError(f"{file.path} cannot be mapped ({error}): {DAMAGED}") from error
    return np.frombuffer(content, dtype=np.uint8)


def _shifts(files: Sequence[Bytes], index: PageIndex) -> Int64s:
    addresses = np.array([file.ctypes.data for file in files], dtype=np.int64)
    shifts: Int64s = addresses - index.shifts
    return shifts
