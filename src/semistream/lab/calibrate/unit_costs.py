"""Unit costs that can be measured one by one: reads, and operations of the real kernels and parts.

    reads          c_I/O: loads of 1 to 32 pages, in order and at random, through the page cache, past it, and mapped
    operations     c_S, c_H ... : slope between few and many operations in one call (`micro.py`)

Times of operations are those of the CPU, which neighbours on a shared machine disturb least, in units of a yardstick
timed beside them; times of reads are the wall's. Every figure is a median, with the 95 % interval of a bootstrap over
the repeats.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from semistream.cost.clock import SCATTERED, table_depth
from semistream.cost.profile import FAR, IO_MODES, IoCost, UnitCost
from semistream.errors import StoreError
from semistream.lab.calibrate import micro
from semistream.lab.forms import path_of
from semistream.lab.measure.yardstick import Yardstick
from semistream.lab.sources import Synthetic
from semistream.lab.workloads.relation import KEY
from semistream.master.base import Master, PageReader
from semistream.master.open import open_master
from semistream.parts.disk_buffer import DiskBuffer

Floats = npt.NDArray[np.float64]

BOOTSTRAPS = 200
_REPEATS = 15
_LARGE_ROWS, _LARGE_PAGE_ROWS = 262_144, 256
_SMALL_ROWS, _SMALL_PAGE_ROWS = 30_000, 64
#: an R that neither the CPU's caches nor its tables of addresses hold: what a large R costs who looks rows up on it
_HUGE_ROWS = 2_000_000
_ROW_BYTES = 120.0
_IO_SIZES = (1, 4, 16, 32)
#: into so many visits the first one of all pages is divided
_VISITS = 8
#: budgets of the joins that single operations are timed in
_NEAR_BUDGET, _FAR_BUDGET = 4_000_000, 32_000_000
#: what an operation in the CPU's own cache takes at least of what it takes in the smaller of these
_LEFT_NEAR = 0.25
SEED = 11


@dataclass(frozen=True)
class Masters:
    """R in order of "key" or "frequency", in sizes that the CPU's own cache holds for the most part, or does not."""

    folder: Path
    order: str

    @cached_property
    def small(self) -> Master:
        return _master(self.folder, _SMALL_ROWS, _SMALL_PAGE_ROWS, self.order)

    @cached_property
    def large(self) -> Master:
        return _master(self.folder, _LARGE_ROWS, _LARGE_PAGE_ROWS, self.order)

    @cached_property
    def huge(self) -> Master:
        """Made when somebody asks for it, for that takes some seconds."""
        return self.opened_anew()

    def opened_anew(self) -> Master:
        """The huge one once more: nobody has asked for any of its pages."""
        return _master(self.folder, _HUGE_ROWS, _LARGE_PAGE_ROWS, self.order)


def _master(folder: Path, rows: int, page_rows: int, order: str) -> Master:
    source = Synthetic(rows, seed=micro.SEED, order=order, page_rows=page_rows)
    return open_master(path_of(source, "pages", folder), (KEY,))


def parquet_in(folder: Path) -> Master:
    """The larger R as Parquet in place."""
    return open_master(path_of(Synthetic(_LARGE_ROWS, seed=micro.SEED), "parquet", folder), (KEY,))


def interval(values: Floats) -> UnitCost:
    """Median and its 95 % bootstrap interval; a cost is never below nothing."""
    values = np.clip(np.asarray(values, dtype=np.float64), 0.0, None)
    random = np.random.default_rng(SEED)
    medians = np.median(values[random.integers(0, len(values), (BOOTSTRAPS, len(values)))], axis=1)
    middle = float(np.median(values))
    low, high = np.percentile(medians, [2.5, 97.5])
    return UnitCost(middle, min(float(low), middle), max(float(high), middle))


# ------------------------------------------------------------------------------------------------- reads


def measure_io(master: Master, parquet: Master) -> dict[str, IoCost]:
    """c_I/O of each way to read; where the file system has no O_DIRECT, that of buffered reads stands in."""
    columns = [column for column in master.schema.names if column != KEY]
    io: dict[str, IoCost] = {}
    for mode in ("buffered", "direct"):
        try:
            with master.open(columns, direct=mode == "direct") as reader:
                io[mode] = _read_costs(reader)
        except StoreError:
            io[mode] = io["buffered"]
    with master.open(columns) as reader:
        io["mapped"] = _map_cost(reader)
    io["parquet"] = _decode_cost(parquet)
    return {mode: io[mode] for mode in IO_MODES}


def _read_costs(reader: PageReader) -> IoCost:
    """A line through loads of several sizes, at random and in order, fitted anew for every repeat."""
    disk = DiskBuffer(reader, max(_IO_SIZES))
    random = np.random.default_rng(SEED)
    for page in range(0, reader.n_pages, max(_IO_SIZES)):
        disk.load(page, max(_IO_SIZES))
    at_random, in_order, speed = [], [], []
    position = 0
    for _ in range(_REPEATS):
        points: list[tuple[float, float]] = []
        for pages in _IO_SIZES:
            first = int(random.integers(0, reader.n_pages - pages))
            points.append(_timed_load(disk, first, pages))
            position = (position + pages) % (reader.n_pages - max(_IO_SIZES))
            disk.load(position, 1)
            points.append(_timed_load(disk, position + 1, pages))
        sizes, times = np.array(points).T
        slope = max(float(np.polyfit(sizes, times, 1)[0]), 1e-12)
        at_random.append(float(np.median(times[0::2] - slope * sizes[0::2])))
        in_order.append(float(np.median(times[1::2] - slope * sizes[1::2])))
        speed.append(slope)
    per_byte = interval(np.array(speed))
    rate = UnitCost(1 / per_byte.seconds, 1 / per_byte.high, 1 / max(per_byte.low, 1e-15))
    return IoCost(interval(np.array(at_random)), interval(np.array(in_order)), rate)


def _timed_load(disk: DiskBuffer, first: int, pages: int) -> tuple[float, float]:
    before = disk.bytes_read
    start = time.perf_counter()
    disk.load(first, pages)
    seconds = time.perf_counter() - start
    return float(disk.bytes_read - before), seconds


def _decode_cost(parquet: Master) -> IoCost:
    """Parquet in place: full scans in steps of two sizes, which tell the cost of a step from that of its bytes."""
    columns = [column for column in parquet.schema.names if column != KEY]
    steps, speeds = [], []
    for _ in range(_REPEATS // 5):
        points = []
        for rows in (2_048, 16_384):
            with parquet.open(columns, page_rows=rows) as reader:
                disk = DiskBuffer(reader, 1)
                start = time.thread_time()
                for page in range(reader.n_pages):
                    disk.load(page, 1)
                points.append((time.thread_time() - start, reader.n_pages, disk.bytes_read))
        (much, many, size), (less, few, _) = points
        step = max((much - less) / (many - few), 0.0)
        steps.append(step)
        speeds.append(size / max(less - few * step, 1e-9))
    step_cost, speed = interval(np.array(steps)), interval(np.array(speeds))
    return IoCost(step_cost, step_cost, speed)


def _map_cost(reader: PageReader) -> IoCost:
    """Mapped pages: what finding them in the mapping takes, once they were verified."""
    reader.map(np.arange(reader.n_pages, dtype=np.int64))
    random = np.random.default_rng(SEED)
    page_bytes = _LARGE_PAGE_ROWS * _ROW_BYTES
    few, many = 8, reader.n_pages // 2
    times = []
    for _ in range(_REPEATS):
        pair = []
        for count in (few, many):
            pages = np.sort(random.permutation(reader.n_pages)[:count]).astype(np.int64)
            start = time.thread_time()
            reader.map(pages)
            pair.append(time.thread_time() - start)
        times.append(max((pair[1] - pair[0]) / (many - few), 1e-10) / page_bytes)
    per_byte = interval(np.array(times))
    nothing = UnitCost.exactly(0.0)
    return IoCost(nothing, nothing, UnitCost(1 / per_byte.seconds, 1 / per_byte.high, 1 / max(per_byte.low, 1e-15)))


def measure_first_visit(masters: Masters) -> UnitCost:
    """Seconds per byte of a page in the page cache that is mapped and checked because nobody had asked for it.

    Some pages here, some there, as a batch asks for them: neighbours are mapped together, in half the time. And of an
    R that the CPU's caches do not hold.
    """
    times, random = [], np.random.default_rng(SEED)
    for _ in range(_REPEATS):
        with closing(masters.opened_anew()) as master, master.open([KEY]) as reader:
            visits = np.array_split(random.permutation(reader.n_pages).astype(np.int64), _VISITS)
            start = time.thread_time()
            for pages in visits:
                reader.map(np.sort(pages))
            times.append((time.thread_time() - start) / (reader.n_pages * reader.buffer_bytes(1)))
    # The first time pages may have come from the disk.
    return interval(np.array(times[1:]))


# -------------------------------------------------------------------------------------------- operations


def measure_units(masters: Masters, yardstick: Yardstick) -> dict[str, UnitCost]:
    """All operations; those that go far with what they cost more in large tables and on many pages."""
    units = _slopes(micro.tasks(masters.small, _NEAR_BUDGET), yardstick)
    tasks = (task for task in micro.tasks(masters.large, _FAR_BUDGET) if task.symbol in SCATTERED)
    tables = table_depth(_NEAR_BUDGET), table_depth(_FAR_BUDGET)
    pages = table_depth(_SMALL_ROWS * _ROW_BYTES), table_depth(_LARGE_ROWS * _ROW_BYTES)
    for symbol, large in _slopes(tasks, yardstick).items():
        near, far = pages if symbol == "c_L" else tables
        small = units[symbol]
        # A line through both, but something is left of the cost where nothing is far.
        slope = (large.seconds - small.seconds) / (far - near)
        base = min(max(small.seconds - near * slope, _LEFT_NEAR * small.seconds), small.seconds)
        scale = base / max(small.seconds, 1e-12)
        units[symbol] = UnitCost(base, scale * small.low, scale * small.high)
        more = [max(cost - base, 0.0) / far for cost in (large.seconds, large.low, large.high)]
        units[f"{FAR}.{symbol}"] = UnitCost(*more)
    return units


def _slopes(tasks: Iterator[micro.Task], yardstick: Yardstick) -> dict[str, UnitCost]:
    """Seconds of an operation: the slope between few and many of them."""
    units = {}
    for task in tasks:
        slopes = []
        # Before and after, for the yardstick takes the CPU's caches from what is timed.
        paces = [yardstick.pace(time.process_time)]
        for repeat in range(_REPEATS + 2):
            pair = []
            for n in (micro.SMALL, micro.LARGE):
                run = task.prepare(n)
                start = time.thread_time()
                operations = run()
                pair.append((operations, time.thread_time() - start))
            if repeat >= 2 and pair[1][0] > pair[0][0]:
                slopes.append((pair[1][1] - pair[0][1]) / (pair[1][0] - pair[0][0]))
        paces.append(yardstick.pace(time.process_time))
        units[task.symbol] = interval(np.array(slopes) / np.mean(paces))
    return units
