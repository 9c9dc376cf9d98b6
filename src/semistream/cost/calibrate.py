"""Measure the unit costs of this machine: micro-runs of the real kernels, reads and operators, with intervals.

    reads          c_I/O: loads of 1 to 32 pages, in order and at random, through the page cache, past it, and mapped
    operations     c_S, c_H ... : slope between few and many operations in one call (`micro.py`)
    operators      c_C, c_T, c_O, c_P ... of each: what short real runs take besides, per chunk, turn, row ...

Times of operations and operators are those of the CPU, which neighbours on a shared machine disturb least, in units
of a yardstick timed beside them; times of reads are the wall's. Every figure is a median, with the 95 % interval of a
bootstrap over the repeats.
"""

from __future__ import annotations

import copy
import itertools
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

from semistream.cost import micro
from semistream.cost.clock import PRICING, SCATTERED, CostClock, counted, operations_of, table_depth
from semistream.cost.profile import FAR, IO_MODES, NEAR, OVERLAP, SYMBOLS, CostProfile, IoCost, UnitCost, machine_info
from semistream.errors import StoreError
from semistream.master.base import Master, PageReader
from semistream.master.build import build_pages
from semistream.master.open import open_master
from semistream.operators.chunk import JoinStats
from semistream.operators.registry import OPERATORS, open_join
from semistream.parts.disk_buffer import DiskBuffer

Floats = npt.NDArray[np.float64]
Say = Callable[[str], None]
Clock = Callable[[], float]

_BOOTSTRAPS = 200
_REPEATS = 15
_LARGE_ROWS, _LARGE_PAGE_ROWS = 262_144, 256
_SMALL_ROWS, _SMALL_PAGE_ROWS = 30_000, 64
_ROW_BYTES = 120.0
_IO_SIZES = (1, 4, 16, 32)
#: budgets of the joins that single operations are timed in
_NEAR_BUDGET, _FAR_BUDGET = 4_000_000, 32_000_000
#: what an operation in the CPU's own cache takes at least of what it takes in the smaller of these
_LEFT_NEAR = 0.25
#: tuples of a step; of a short run before it is timed; and timed turns, which go on until the operator's main loop has
#: turned twice: one that collects tuples before it works does nothing else for long. A step before each turn gives the
#: CPU's caches back to the operator, which the yardstick took
_STEP = 10_000
_WARM, _MOST_WARM = 6 * _STEP, 45 * _STEP
_TURNS, _LOOPS, _SHORTEST_TURN, _LONGEST_TURN = 3, 2, 2 * _STEP, 20 * _STEP
#: the operators' short runs: which R, budget in bytes, exponent of the stream, tuples per push, whether each is drained
_RUNS = (
    ("small", 500_000, 1.0, 10_000, False),
    ("large", 4_000_000, 0.0, 10_000, False),
    ("large", 6_000_000, 1.0, 10_000, False),
    ("small", 1_000_000, 0.0, 2_000, True),
    ("large", 4_000_000, 1.0, 2_000, False),
    ("small", 500_000, 0.0, 10_000, False),
    ("large", 60_000_000, 0.0, 10_000, False),
    ("small", 2_000_000, 1.0, 2_000, True),
    ("large", 6_000_000, 0.0, 2_000, False),
    ("large", 2_000_000, 1.0, 10_000, False),
    ("small", 2_000_000, 1.5, 2_000, True),
)
#: costs that are an operator's own: beginning and ending chunks and turns, output from where its rows stand,
#: and what it does for a key it looks up (in order or at random, which far memory tells apart), for a page it visits
#: and for a tuple it takes into its cache
#: (and how much each should be as usual: building a row is much the same everywhere, making room in a cache is not)
_OWN = {
    "c_C": 0.1,
    "c_T": 0.1,
    "c_O": 0.5,
    f"{NEAR}.c_O": 0.5,
    "c_L": 0.1,
    f"{FAR}.c_L": 0.1,
    "c_P": 0.05,
    "c_B": 0.05,
}
_SEED = 11


@dataclass(frozen=True)
class _Run:
    """A short run: seconds, how many of them the other unit costs explain, and the numbers of `_OWN`.

    `wall` is the same by the wall clock, which parallel phases make shorter; `counts` are all numbers.
    """

    seconds: float
    explained: float
    own: tuple[float, ...]
    wall: float = 0.0
    counts: Mapping[str, float] = field(default_factory=dict)


Runs = list[list[_Run]]


class Yardstick:
    """A fixed piece of work, timed beside other work: how much slower the machine is than when it was calibrated."""

    def __init__(self, master: Master) -> None:
        self._join = open_join("inlj", master=master, on=micro.KEY, memory=1_000_000, stream_schema=micro.STREAM_SCHEMA)
        self._batch = micro.stream_batch(micro.zipf_codes(master.n_rows, 4096, 0.0))
        self._usual: dict[Clock, float] = {}
        self.seconds(time.perf_counter)

    def usual(self, now: Clock) -> float:
        """Seconds of the work when it was first asked for: the middle one of many times."""
        if now not in self._usual:
            self._usual[now] = float(np.median([self.seconds(now) for _ in range(_REPEATS)]))
        return self._usual[now]

    def pace(self, now: Clock) -> float:
        """How much slower the machine is now than it was then."""
        return self.seconds(now) / self.usual(now)

    def seconds(self, now: Clock, times_done: int = 3) -> float:
        """Seconds of the work by this clock: the middle one of some times."""
        times = []
        for _ in range(times_done):
            start = now()
            for _output in self._join.push(self._batch):
                pass
            times.append(now() - start)
        return sorted(times)[times_done // 2]

    def close(self) -> None:
        self._join.close()


@dataclass(frozen=True)
class _Masters:
    """R in two sizes: one that the CPU's caches hold for the most part, and one they do not."""

    small: Master
    large: Master


def _masters(folder: Path, order: str) -> _Masters:
    sizes = (("small", _SMALL_ROWS, _SMALL_PAGE_ROWS), ("large", _LARGE_ROWS, _LARGE_PAGE_ROWS))
    return _Masters(*(_master(folder, name, rows, page_rows, order) for name, rows, page_rows in sizes))


def _master(folder: Path, name: str, rows: int, page_rows: int, order: str) -> Master:
    path = folder / f"{name}-{order}"
    if not path.exists():
        wanted = (np.arange(rows, dtype=np.int64), micro.zipf_weights(rows)) if order == "frequency" else None
        build_pages(micro.master_table(rows), path, on=micro.KEY, page_rows=page_rows, order=order, frequency=wanted)
    return open_master(path, (micro.KEY,))


def yardstick_in(folder: Path) -> Yardstick:
    """The yardstick of a calibration, with its data in this folder."""
    return Yardstick(_master(folder, "large", _LARGE_ROWS, _LARGE_PAGE_ROWS, "key"))


def calibrate(
    *,
    folder: str | Path | None = None,
    seconds: float = 150.0,
    least: int = 0,
    say: Say | None = None,
    name: str = "measured",
) -> CostProfile:
    """Measure a profile; about two minutes. `folder` is where the test data is written: the disk that is measured.

    After `seconds` no further round of short runs is begun, once `least` of them were. A round takes all operators
    through one setting, so that what else goes on meanwhile touches all alike.
    """
    tell = say or (lambda _: None)
    deadline = time.monotonic() + seconds
    with tempfile.TemporaryDirectory(prefix="semistream-calibrate-", dir=folder) as place:
        tell("reads")
        by_key = _masters(Path(place), "key")
        plain = Path(place) / "large.parquet"
        pq.write_table(micro.master_table(_LARGE_ROWS), plain, row_group_size=65_536)
        io = measure_io(by_key.large, open_master(plain, (micro.KEY,)))
        yardstick = Yardstick(by_key.large)
        usual, usual_wall = yardstick.usual(time.process_time), yardstick.usual(time.perf_counter)
        tell("operations")
        units = measure_units(by_key, yardstick)
        nothing = {symbol: UnitCost.exactly(0.0) for symbol in _OWN}
        base = CostProfile(name, {**units, **nothing}, io)
        by_frequency = _masters(Path(place), "frequency")
        runs: dict[str, Runs] = {}
        for number, run in enumerate(_RUNS, 1):
            if time.monotonic() > deadline and number > least:
                break
            for algorithm, operator in OPERATORS.items():
                tell(f"operators, round {number} of {len(_RUNS)}: {algorithm}")
                masters = by_frequency if operator.wants_frequency_order else by_key
                turns = list(_short_runs(algorithm, masters, run, base, yardstick))
                runs.setdefault(algorithm, []).append(turns)
        yardstick.close()
    every_run = [turns for part in runs.values() for turns in part]
    units |= own_costs(every_run, {symbol: cost for symbol, cost in units.items() if symbol in _OWN})
    own = {
        f"{symbol}.{algorithm}": cost
        for algorithm, part in runs.items()
        for symbol, cost in own_costs(part, units).items()
        if symbol.rpartition(".")[2] in PRICING[algorithm].operations
    }
    priced = CostProfile(name, {**units, **own}, io)
    side_by_side = {
        f"{OVERLAP}.{algorithm}": overlap(algorithm, part, priced)
        for algorithm, part in runs.items()
        if PRICING[algorithm].threads > 1
    }
    return CostProfile(
        name,
        {**units, **own, **side_by_side},
        io,
        {
            **machine_info(),
            "measured": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "yardstick_s": usual,
            "yardstick_wall_s": usual_wall,
        },
        {symbol: f"measured: {text}" for symbol, text in SYMBOLS.items()},
    )


def interval(values: Floats) -> UnitCost:
    """Median and its 95 % bootstrap interval; a cost is never below nothing."""
    values = np.clip(np.asarray(values, dtype=np.float64), 0.0, None)
    random = np.random.default_rng(_SEED)
    medians = np.median(values[random.integers(0, len(values), (_BOOTSTRAPS, len(values)))], axis=1)
    middle = float(np.median(values))
    low, high = np.percentile(medians, [2.5, 97.5])
    return UnitCost(middle, min(float(low), middle), max(float(high), middle))


# ------------------------------------------------------------------------------------------------- reads


def measure_io(master: Master, parquet: Master) -> dict[str, IoCost]:
    """c_I/O of each way to read; where the file system has no O_DIRECT, that of buffered reads stands in."""
    columns = [column for column in master.schema.names if column != micro.KEY]
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
    random = np.random.default_rng(_SEED)
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
    columns = [column for column in parquet.schema.names if column != micro.KEY]
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
    random = np.random.default_rng(_SEED)
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


# -------------------------------------------------------------------------------------------- operations


def measure_units(masters: _Masters, yardstick: Yardstick) -> dict[str, UnitCost]:
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


# --------------------------------------------------------------------------------------------- operators


def overlap(algorithm: str, runs: Runs, profile: CostProfile) -> UnitCost:
    """How much of what could run side by side did, from 0 (nothing) to 1 (the slowest phase hides all others)."""
    parts = []
    for run in (run for turns in runs for run in turns):
        price = CostClock(profile).price(algorithm, run.counts)
        longest, serial = max(price.phases), price.serial_seconds
        if serial > longest:
            parts.append(float(np.clip((serial - run.wall) / (serial - longest), 0.0, 1.0)))
    return interval(np.array(parts)) if parts else UnitCost.exactly(1.0)


def own_costs(runs: Runs, usual: dict[str, UnitCost]) -> dict[str, UnitCost]:
    """What runs take beyond what the unit costs explain: per chunk, per turn, per output row.

    A few short runs tell the many costs apart only roughly; where they do not, an operator's cost is the usual one,
    where that is known.
    """
    prior = [usual[symbol].seconds if symbol in usual else 0.0 for symbol in _OWN]
    fits = [_fit([sorted(turns, key=_seconds_per_tuple)[len(turns) // 2] for turns in runs], prior)]
    random = np.random.default_rng(_SEED)
    fits += [
        _fit([turns[int(random.integers(0, len(turns)))] for turns in runs], prior) for _ in range(_BOOTSTRAPS // 4)
    ]
    table = np.array(fits)
    costs = {}
    for column, symbol in enumerate(_OWN):
        best = float(table[0, column])
        low, high = np.percentile(table[:, column], [2.5, 97.5])
        costs[symbol] = UnitCost(best, min(float(low), best), max(float(high), best))
    return costs


def _seconds_per_tuple(run: _Run) -> float:
    return run.seconds / max(run.counts.get("tuples_in", 1.0), 1.0)


def _is_filling(stats: JoinStats) -> bool:
    """H_S, or a cache: until that is full no key has to make room."""
    return not stats.has_turned_over or (stats.switched > 0 and stats.evicted == 0)


def _short_runs(
    algorithm: str,
    masters: _Masters,
    run: tuple[str, int, float, int, bool],
    base: CostProfile,
    yardstick: Yardstick,
) -> Iterator[_Run]:
    which, budget, exponent, batch, drained = run
    master: Master = getattr(masters, which)
    codes = micro.zipf_codes(master.n_rows, _MOST_WARM + _TURNS * (_STEP + _LONGEST_TURN), exponent)
    clock = CostClock(base)
    with open_join(algorithm, master=master, on=micro.KEY, memory=budget, stream_schema=micro.STREAM_SCHEMA) as join:
        done = 0

        def step() -> None:
            nonlocal done
            micro.flow(join, codes[done : done + _STEP], batch, drained)
            done += _STEP

        while done < _WARM or (_is_filling(join.stats) and done < _MOST_WARM):
            step()
        for _ in range(_TURNS):
            pace, pace_wall = yardstick.pace(time.process_time), yardstick.pace(time.perf_counter)
            step()
            before, begun = copy.copy(join.stats), done
            start, start_wall = time.process_time(), time.perf_counter()
            while done - begun < _SHORTEST_TURN or (
                join.stats.iterations - before.iterations < _LOOPS and done - begun < _LONGEST_TURN
            ):
                step()
            seconds = (time.process_time() - start) / pace
            wall = (time.perf_counter() - start_wall) / pace_wall
            counts = counted(join, before, batch=batch)
            explained = clock.price(join.name, counts).serial_seconds
            own = tuple(operations_of(join.name, symbol, counts) for symbol in _OWN)
            yield _Run(seconds, explained, own, wall, counts)


def _fit(runs: list[_Run], prior: list[float]) -> tuple[float, ...]:
    """Least squares of the relative residuals over the own costs, none below 0: the best of all subsets of them."""
    if not runs:
        return tuple(prior)
    weight = np.array([1.0 / run.seconds for run in runs])
    rest = np.array([run.seconds - run.explained for run in runs]) * weight
    columns = np.array([run.own for run in runs]) * weight[:, None]
    # A cost that is off its usual value by all of that value counts as a residual of this size.
    known = np.flatnonzero(np.array(prior) > 0)
    held = np.array(list(_OWN.values()))
    columns = np.vstack((columns, np.diag(held / np.maximum(np.array(prior), 1e-12))[known]))
    rest = np.concatenate((rest, held[known]))
    best, best_error = (0.0,) * len(_OWN), float((rest**2).sum())
    for size in range(1, len(_OWN) + 1):
        for used in itertools.combinations(range(len(_OWN)), size):
            part = columns[:, used]
            found = np.linalg.lstsq(part, rest, rcond=None)[0]
            error = float(((rest - part @ found) ** 2).sum())
            if (found >= 0).all() and error < best_error:
                values = dict(zip(used, found.tolist(), strict=True))
                best, best_error = tuple(values.get(place, 0.0) for place in range(len(_OWN))), error
    return best
