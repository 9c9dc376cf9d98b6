"""What the machine is worth while turns are taken: a fixed piece of work and a fixed read, timed before and after them.

Runs of a figure may be hours apart, and a machine that others use is not the same then. Counts do not care; wall times
do. So each run says how fast its machine was, and a verdict whether that was the same for all who are compared.
"""

from __future__ import annotations

import os
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
    file, buffer = open_file(master.page_files[0].path, direct=True), aligned_buffer(_PIECE_BYTES).data
    try:
        most, started = min(os.fstat(file).st_size, _READ_BYTES), time.perf_counter()
        read = sum(os.preadv(file, [buffer], start) for start in range(0, most, _PIECE_BYTES))
        return (time.perf_counter() - started) / read
    finally:
        os.close(file)


def mean_pace(paces: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean of some paces, in what all of them have."""
    return {part: sum(pace[part] for pace in paces) / len(paces) for part in paces[0] if all(part in p for p in paces)}
