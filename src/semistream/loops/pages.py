"""Pages of R for operators that know which they want: mapped in place, or read into the disk buffer."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from semistream.engine.facts import MasterFacts
from semistream.engine.workplace import Workplace
from semistream.master.base import PageBlock

Int64s = npt.NDArray[np.int64]

#: reading a gap of this many bytes costs about as much as a seek
DEFAULT_GAP_BYTES = 128 << 10
_LEAST_GROUP = 64


def mapped_group(r: MasterFacts, buffer_bytes: int) -> int:
    """Pages that a mapped block may have, when what is held for them is to fit a disk buffer."""
    return max(buffer_bytes // max(r.held_bytes, 64), _LEAST_GROUP)


class PageGroups:
    """Loads groups of pages. They are used in place, unless they must bypass the page cache."""

    def __init__(self, work: Workplace, direct: bool, gap_bytes: int = DEFAULT_GAP_BYTES) -> None:
        self._work, self._gap_bytes = work, gap_bytes
        self.mapped = not direct
        held = max(work.reader.held_bytes(1), 64)
        #: pages that a group may have
        self.capacity = max(work.disk.bytes_held // held, _LEAST_GROUP) if self.mapped else work.disk.n_pages

    def load(self, pages: Int64s) -> PageBlock:
        """Sorted pages: all of them mapped, or as many as fit the disk buffer, in as few reads as pay."""
        work, stats = self._work, self._work.stats
        if self.mapped:
            block = work.reader.map(pages)
            stats.pages_read += len(pages)
            stats.reads += 1 + int(np.count_nonzero(np.diff(pages) > 1))
            stats.bytes_read += int(len(pages) * work.reader.page_rows * work.master.row_bytes)
            return block
        block, _ = work.disk.load_runs(pages, self._gap_bytes)
        work.copy_read_counts()
        return block
