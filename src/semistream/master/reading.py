"""Whether R is read through the page cache or past it.

While R stays in memory mapped pages are by far the fastest. Where it cannot, each pass reads it again, and what it
pushes out of the page cache is missing elsewhere: then reads past the page cache take no longer and leave the memory
alone. So R is mapped where the machine can keep it; decision 0022 has the reasons for the borders.
"""

from __future__ import annotations

import os
import random
import time
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from statistics import median

from semistream.errors import ConfigError, StoreError
from semistream.master.base import ALIGNMENT, Bytes, Master, PageFile, aligned_buffer
from semistream.master.files import open_file
from semistream.master.room import cache_room, is_memory
from semistream.spec import AUTO, format_bytes

#: R of this size is mapped whatever the memory: a machine that cannot spare that does nothing in time
SMALL_BYTES = 32 << 20
#: R is sure to stay in memory if that has room for this many times R
SURE = 2
#: R that may stay there is mapped unless reads through the page cache take this many times as long as those past it
SLOWER = 2.0
#: reads of each kind that are timed, their size, and how long that may take
_READS, _READ_BYTES, _READ_SECONDS = 8, 8 * ALIGNMENT, 0.005


@dataclass(frozen=True)
class Reading:
    """How R is read, and why in one sentence."""

    direct: bool
    why: str

    @property
    def name(self) -> str:
        """As `reads` calls it."""
        return "direct" if self.direct else "mapped"


#: where nobody has to decide
MAPPED = Reading(False, "reads go through the page cache")


def choose_reading(master: Master, reads: str, budget_bytes: int, root: Path = Path("/")) -> Reading:
    """How a join with a budget of `budget_bytes` reads R; `reads` is the user's word, "auto" leaves it to the machine.

    `root` is where the system says what memory there is. Only what the user asked for is refused: "auto" maps R where
    nothing better is known.
    """
    files = master.page_files
    if files is None:
        if reads == "direct":
            raise ConfigError(
                "reads='direct' goes past the page cache, which only a page store allows: leave it out, or build a "
                "page store with build_pages"
            )
        return Reading(False, "R is no page store: there is nothing to read past the page cache")
    if reads != AUTO:
        return Reading(reads == "direct", f"reads={reads!r} was asked for: reads go {_way(reads == 'direct')}")
    r_bytes = sum(file.size for file in files)
    if r_bytes <= SMALL_BYTES:
        return decide(r_bytes, None)
    if is_memory(files[0].path, root):
        return _reading(False, "R lies in a file system that is memory")
    room = cache_room(root)
    room = None if room is None else max(room - budget_bytes, 0)
    found = decide(r_bytes, room, timed_reads(files) if is_open(r_bytes, room) else None)
    if found.direct and not takes_direct(files[0]):
        return Reading(False, f"{found.why}, but the file system refuses that, so they go {_way(False)}")
    return found


def is_open(r_bytes: int, room: int | None) -> bool:
    """Whether the sizes leave open how R is best read, so that some reads are timed."""
    return room is not None and r_bytes > SMALL_BYTES and r_bytes <= room < SURE * r_bytes


def decide(r_bytes: int, room: int | None, seconds: tuple[float, float] | None = None) -> Reading:
    """How R is read if the page cache can have `room` bytes, and a read through it and one past it take `seconds`.

    None: not known.
    """
    has = f"R has {format_bytes(r_bytes)}"
    if r_bytes <= SMALL_BYTES:
        return _reading(False, f"{has}, which is little")
    if room is None:
        return _reading(False, f"{has}, and the machine does not say how much it can keep")
    has += f", the machine can keep {format_bytes(room)}"
    if not is_open(r_bytes, room) or seconds is None:
        return _reading(room < r_bytes, has)
    through, past = seconds
    has += f", and a read takes {through * 1e6:,.0f} µs through the page cache and {past * 1e6:,.0f} µs past it"
    return _reading(through > SLOWER * past, has)


def _reading(direct: bool, because: str) -> Reading:
    return Reading(direct, f"{because}: reads go {_way(direct)}")


def _way(direct: bool) -> str:
    return "past the page cache" if direct else "through the page cache"


def timed_reads(files: Sequence[PageFile]) -> tuple[float, float] | None:
    """Seconds of a read through the page cache and of one past it, at any places of R; None where one is refused.

    What is in the page cache already is read from there, so the first number tells that too.
    """
    ends = list(accumulate(file.size // _READ_BYTES for file in files))
    buffer = aligned_buffer(_READ_BYTES)
    seconds: tuple[list[float], list[float]] = ([], [])
    started = time.perf_counter()
    places = iter(random.sample(range(ends[-1]), min(2 * _READS, ends[-1])))
    # In pairs, so that a disk that is busy for a moment is so for both kinds. No place is read twice.
    for pair in zip(places, places, strict=False):
        for direct, place in enumerate(pair):
            at = bisect_right(ends, place)
            offset = (place - ends[at] + files[at].size // _READ_BYTES) * _READ_BYTES
            try:
                seconds[direct].append(_timed_read(files[at].path, offset, buffer, direct=bool(direct)))
            except (StoreError, OSError):
                return None
        if time.perf_counter() - started > _READ_SECONDS:
            break
    return (median(seconds[0]), median(seconds[1])) if seconds[1] else None


def takes_direct(file: PageFile) -> bool:
    """Whether the file system opens and reads the file past the page cache; some refuse only the second."""
    try:
        _timed_read(file.path, 0, aligned_buffer(ALIGNMENT), direct=True)
    except (StoreError, OSError):
        return False
    return True


def _timed_read(path: Path, offset: int, buffer: Bytes, *, direct: bool) -> float:
    fd = open_file(path, direct)
    try:
        started = time.perf_counter()
        os.preadv(fd, [buffer.data], offset)
        return time.perf_counter() - started
    finally:
        os.close(fd)
