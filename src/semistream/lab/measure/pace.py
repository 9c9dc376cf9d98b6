"""What the machine is worth while turns are taken: a fixed piece of work and a fixed read, timed between them.

Runs of a figure may be hours apart, and a machine that others use is not the same then. Counts do not care; wall times
do. So each run says how fast its machine was, and a verdict whether that was the same for all who are compared.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Mapping, Sequence
from functools import cached_property

from semistream.lab.measure.yardstick import Yardstick
from semistream.master.base import Master, aligned_buffer
from semistream.master.files import open_file
from semistream.master.pages import PageMaster

#: what is read from the beginning of R, in pieces: long enough to be a rate, and short beside the turns
_READ_BYTES, _PIECE_BYTES = 64 << 20, 4 << 20


class Pace:
    """How long the same work takes now, and did before."""

    @cached_property
    def _yardstick(self) -> Yardstick:
        return Yardstick()

    def now(self, master: Master, direct: bool) -> dict[str, float]:
        """Seconds of the yardstick and, where R is read past the page cache, per byte of it."""
        found = {"work_s": self._yardstick.seconds(time.perf_counter)}
        if direct and isinstance(master, PageMaster):
            found["read_s_per_byte"] = _read_seconds_per_byte(master)
        return found


def _read_seconds_per_byte(master: PageMaster) -> float:
    """Of the middle one of the pieces."""
    file, buffer = open_file(master.page_files[0].path, direct=True), aligned_buffer(_PIECE_BYTES).data
    try:
        most, times = min(os.fstat(file).st_size, _READ_BYTES), []
        for start in range(0, most, _PIECE_BYTES):
            begun = time.perf_counter()
            read = os.preadv(file, [buffer], start)
            times.append((time.perf_counter() - begun) / read)
        return statistics.median(times)
    finally:
        os.close(file)


def usual_pace(paces: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The middle one of some paces, part by part, in what all of them have."""
    parts = set.intersection(*(set(pace) for pace in paces))
    return {part: statistics.median(pace[part] for pace in paces) for part in sorted(parts)}
