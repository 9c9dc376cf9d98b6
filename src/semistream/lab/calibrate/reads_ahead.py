"""Reads made ahead, past the page cache: groups of pages through `PageGroups.ahead`, as sweeps read them.

What one read takes follows from how long many take: some are always on their way at the same time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from semistream.cost.profile import AHEAD, IoCost, UnitCost
from semistream.errors import StoreError
from semistream.lab.calibrate.unit_costs import interval
from semistream.lab.measure.opening import open_named
from semistream.lab.workloads.relation import KEY, STREAM_SCHEMA
from semistream.loops.pages import AHEAD_BUFFERS, PageGroups
from semistream.master.base import Master

Int64s = npt.NDArray[np.int64]

_REPEATS = 5
#: bytes of a join that is opened for its disk buffers, and of these: as large as a large budget has them
_BUDGET, _BUFFER_BYTES = 32_000_000, 14_000_000
#: pages per read; and pages of a scan, which goes over R several times so that its threads' start does not count
_SIZES = (1, 4, 16, 64)
_SCANNED = 2048


def measure_ahead(master: Master) -> dict[str, IoCost]:
    """c_I/O of the mode "ahead"; nothing where the file system has no direct reads."""
    try:
        join = open_named(
            "sweepjoin",
            master=master,
            on=KEY,
            memory=_BUDGET,
            reads="direct",
            stream_schema=STREAM_SCHEMA,
            buffer_bytes=_BUFFER_BYTES,
        )
    except StoreError:
        return {}
    with join:
        # Reads of every gap are told apart, however small it is.
        return {AHEAD: _read_costs(PageGroups(join.loop.work, True, 0, AHEAD_BUFFERS), master.n_pages)}


def _read_costs(pages: PageGroups, n_pages: int) -> IoCost:
    """A line through reads of several sizes, with gaps and in order, fitted anew for every repeat."""
    every = np.arange(n_pages, dtype=np.int64)
    _scan(pages, every, n_pages)
    with_gaps, in_order, speed = [], [], []
    for _ in range(_REPEATS):
        points = []
        for size in _SIZES:
            points.append(_scan(pages, every[every // size % 2 == 0], n_pages))
            points.append(_scan(pages, every, size))
        sizes, times = np.array(points).T
        slope = max(float(np.polyfit(sizes, times, 1)[0]), 1e-12)
        with_gaps.append(float(np.median(times[0::2] - slope * sizes[0::2])))
        in_order.append(float(np.median(times[1::2] - slope * sizes[1::2])))
        speed.append(slope)
    per_byte = interval(np.array(speed))
    rate = UnitCost(1 / per_byte.seconds, 1 / per_byte.high, 1 / max(per_byte.low, 1e-15))
    return IoCost(interval(np.array(with_gaps)), interval(np.array(in_order)), rate)


def _scan(pages: PageGroups, wanted: Int64s, most: int) -> tuple[float, float]:
    """Bytes and seconds per read of these pages, in groups of as many as fit and at most so many."""
    stats = pages.work.stats
    size, reads = stats.bytes_read, stats.reads
    start = time.perf_counter()
    for _ in pages.ahead(_groups(pages, wanted, most)):
        pass
    seconds = time.perf_counter() - start
    reads = stats.reads - reads
    return (stats.bytes_read - size) / reads, seconds / reads


def _groups(pages: PageGroups, wanted: Int64s, most: int) -> Iterator[tuple[None, Int64s]]:
    """The pages again and again, until enough of them were wanted."""
    done = at = 0
    while done < _SCANNED:
        some = wanted[at : at + most]
        some = some[: pages.fitting(some)]
        at = (at + len(some)) % len(wanted)
        done += len(some)
        yield None, some
