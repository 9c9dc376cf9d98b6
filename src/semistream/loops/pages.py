"""Pages of R for operators that know which they want: mapped in place, or read into disk buffers.

Reads past the page cache are made ahead: while one group of pages is joined, threads read the next ones.

    caller's thread:   join group 1      join group 2      join group 3
    reader threads:    read 2, read 3    read 4            read 5          a disk buffer each, handed over in order
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from itertools import chain, islice
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from semistream.engine.division import Needs
from semistream.engine.facts import MasterFacts
from semistream.engine.workplace import Workplace
from semistream.master.base import HUGE_PAGE, PageBlock, RunRead
from semistream.parts.disk_buffer import DiskBuffer

Int64s = npt.NDArray[np.int64]
Wanted = TypeVar("Wanted")

#: reading a gap of this many bytes costs about as much as a seek
DEFAULT_GAP_BYTES = 128 << 10
_LEAST_GROUP = 64
#: disk buffers where pages are read ahead: one is joined, one is checked, and two are filled, by a thread each
AHEAD_BUFFERS, READERS = 4, 2
#: pages that each of them must hold to be worth it, bytes that it has at most, and the budget's part for all
_LEAST_AHEAD, _MOST_BUFFER, _AHEAD_SHARE = 4, 27 << 17, 0.1125
#: part of them that is given up so that huge pages hold all of the rest
_GIVEN_UP = 0.2


def mapped_group(r: MasterFacts, buffer_bytes: int) -> int:
    """Pages that a mapped block may have, when what is held for them is to fit a disk buffer."""
    return max(buffer_bytes // max(r.held_bytes, 64), _LEAST_GROUP)


def reading_needs(r: MasterFacts, budget: int, buffer_bytes: int | None, share: float) -> Needs:
    """One disk buffer of this share of the budget; several of a larger one where pages are read ahead."""
    most = AHEAD_BUFFERS * _MOST_BUFFER
    ahead = min(int(budget * _AHEAD_SHARE), most) if buffer_bytes is None else buffer_bytes
    if r.direct and ahead >= AHEAD_BUFFERS * r.buffer_bytes(_LEAST_AHEAD):
        size = AHEAD_BUFFERS * r.buffer_bytes(_pages_ahead(r, ahead))
        return Needs(buffers=AHEAD_BUFFERS, buffer_bytes=size, reads_ahead=True)
    return Needs(buffer_share=share)


def _pages_ahead(r: MasterFacts, size: int) -> int:
    """Pages per disk buffer; somewhat fewer than fit if all buffers then fill a number of huge pages."""
    pages = r.pages_within(size // AHEAD_BUFFERS)
    taken = AHEAD_BUFFERS * r.read_bytes(pages)
    whole = taken // HUGE_PAGE * HUGE_PAGE
    if whole < (1 - _GIVEN_UP) * taken:
        return pages
    fewer = int(pages * whole / taken)
    return fewer if AHEAD_BUFFERS * r.read_bytes(fewer) <= whole else fewer - 1


class PageGroups:
    """Loads groups of pages. They are used in place, unless they must bypass the page cache.

    With more than one disk buffer `ahead` reads the next groups while one is used.
    """

    def __init__(self, work: Workplace, direct: bool, gap_bytes: int = DEFAULT_GAP_BYTES, buffers: int = 1) -> None:
        self.work, self._gap_bytes = work, gap_bytes
        self.mapped = not direct
        self._disks = work.disk.with_others(buffers - 1) if buffers > 1 else [work.disk]
        held = max(work.reader.held_bytes(1), 64)
        #: pages that a group may have
        self.capacity = max(work.disk.bytes_held // held, _LEAST_GROUP) if self.mapped else work.disk.n_pages

    @property
    def reads_ahead(self) -> bool:
        """Whether groups are read while another one is used."""
        return len(self._disks) > 1

    def fitting(self, pages: Int64s) -> int:
        """How many of the sorted pages one group takes: gaps that are read over take room as pages do."""
        if self.mapped:
            return len(pages)
        disk = self._disks[0]
        return self.work.reader.fitting(pages[: disk.n_pages], disk.buffer.nbytes, self._gap_bytes)

    def load(self, pages: Int64s) -> PageBlock:
        """Sorted pages: all of them mapped, or as many as fit the disk buffer, in as few reads as pay."""
        work, stats = self.work, self.work.stats
        if self.mapped:
            block = work.reader.map(pages)
            stats.pages_read += len(pages)
            stats.reads += 1 + int(np.count_nonzero(np.diff(pages) > 1))
            stats.bytes_read += int(len(pages) * work.reader.page_rows * work.master.row_bytes)
            return block
        return self._took(work.disk, work.disk.read_runs(pages, self._gap_bytes))

    def _took(self, disk: DiskBuffer, run: RunRead) -> PageBlock:
        block = disk.took(run)
        self.work.copy_read_counts(*self._disks)
        return block

    def ahead(
        self, groups: Iterable[tuple[Wanted, Int64s]], has_work: Callable[[], bool] = lambda: False
    ) -> Generator[tuple[Wanted, PageBlock] | None, None, None]:
        """Load one group of fitting pages after another, each with what it is wanted for; valid until the next.

        None comes where the next group is still being read, as long as the caller has other work meanwhile. Close this
        generator where it is left early: its threads end with it.
        """
        wanted = iter(groups)
        first = list(islice(wanted, 2))
        if not self.reads_ahead or len(first) < 2:
            for what, pages in chain(first, wanted):
                yield what, self.load(pages)
            return
        wanted = chain(first, wanted)
        free, reading = deque(range(len(self._disks))), deque[tuple[Wanted, int]]()
        buffers, most = [disk.buffer for disk in self._disks], self._disks[0].n_pages
        with self.work.reader.read_ahead(buffers, most, self._gap_bytes, READERS) as ahead:
            while True:
                for what, pages in islice(wanted, len(free)):
                    ahead.ask(free[0], pages)
                    reading.append((what, free.popleft()))
                if not reading:
                    return
                what, at = reading.popleft()
                while has_work() and not ahead.is_done(at):
                    yield None
                yield what, self._took(self._disks[at], ahead.wait(at))
                free.append(at)
