"""What a tuple costs when R grows: every operator and DuckDB, reads past the page cache, batches finished at once.

R of 1 to 100 M tuples of 120 bytes, S by Zipf's law with exponent 1, batches of 500 k; once with 120 MB of memory
whatever R is, once with a tenth of R. Each is warmed up for a while and then measured for a while. Who needs more than
`--limit` seconds for a batch is stopped, and not asked again with a larger R.

    python benchmarks/growth.py --data DIR                    everything; hours, and 24 GB of disk at once
    python benchmarks/growth.py --rows 1e6 3e6 --operators sweepjoin,duckdb
    python benchmarks/growth.py --draw                        only the picture, from the numbers that are there

The numbers are written to OUT/growth.json after each point, and what is there already is not measured again. R is
made when it is wanted and removed when its points are there (`--keep` leaves it).

DuckDB joins the batch with R as Parquet files, with two threads. It cannot read past the page cache, so the pages of
these files are dropped from it before every batch. Its memory limit is the operators' budget; where that is too little
for it, the least of the doubled ones that works, which stands beside the figure.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
import math
import os
import platform
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow as pa
from rich.console import Console

from semistream.algorithms.registry import ALGORITHMS, resolve
from semistream.errors import BudgetError, SemiStreamError
from semistream.lab.contest.contestants import Contestant, DuckDbParquet, Ours
from semistream.lab.figure import Axis, Figure, Point, Verdict
from semistream.lab.forms import path_of
from semistream.lab.sources import Synthetic
from semistream.lab.workloads.relation import MASTER_ROW_BYTES, SyntheticStream
from semistream.lab.workloads.workload import Reading
from semistream.spec import parse_bytes

SEED = 1
EXPONENT = 1.0
SIZES = (1e6, 3e6, 10e6, 30e6, 100e6)
DUCKDB = "duckdb"
THREADS = 2
#: DuckDB is offered the budget, and then twice as much again and again
_DOUBLINGS = 8
OUT = Path(__file__).parents[1] / "results" / "growth"
console = Console(width=150)


@dataclass(frozen=True)
class Times:
    """How long, in seconds: the warm-up, the measured part, and a single batch at most."""

    warm: float
    measured: float
    limit: float


@dataclass
class Cost:
    """What came of one contestant with one R and one memory; without seconds there is a reason."""

    rows: int
    memory: int
    batch: int
    #: of the measured batches
    seconds: list[float]
    #: "measured"; "stopped": a batch took longer than allowed; "refused": the memory is not enough
    state: str = "measured"
    why: str = ""
    bytes_per_batch: float | None = None
    hit_rate: float | None = None
    #: seconds that a batch was allowed to take
    limit: float = math.inf
    #: the memory that DuckDB needed
    memory_limit: int | None = None
    warm_batches: int = 0

    def microseconds(self) -> tuple[float, float, float]:
        """Per tuple: over all batches, in the fastest and in the slowest one."""
        each = [spent / self.batch * 1e6 for spent in self.seconds]
        return (sum(each) / len(each), min(each), max(each)) if each else (math.nan,) * 3


class TookTooLong(Exception):
    """A batch is not finished within the limit."""


# ------------------------------------------------------------------------------------------ contestants


class ColdDuckDb(DuckDbParquet):
    """DuckDB within a memory limit; before a batch the files are dropped from the page cache."""

    def __init__(self, path: Path, memory: int, threads: int, limit: float) -> None:
        super().__init__(path, memory, threads)
        self.limit = limit
        self.connection.execute(f"SET memory_limit = '{memory}B'")
        self.connection.execute(f"SET temp_directory = '{path.parent / 'duckdb-spill'}'")

    def forget(self) -> None:
        """Take R out of the page cache, as far as the system lets go of it."""
        for file in self.path.glob("*.parquet"):
            fd = os.open(file, os.O_RDONLY)
            try:
                # Pages that are not written yet would stay.
                os.fsync(fd)
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(fd)

    def join(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        import duckdb

        timer = threading.Timer(self.limit, self.connection.interrupt)
        timer.start()
        try:
            yield from super().join(batch)
        except duckdb.InterruptException as error:
            raise TookTooLong from error
        finally:
            timer.cancel()


def timed(contestant: Contestant, batch: pa.RecordBatch, limit: float) -> float:
    """Seconds to join one batch; all its rows must come."""
    if isinstance(contestant, ColdDuckDb):
        contestant.forget()
    out, started = 0, time.perf_counter()
    for joined in contestant.join(batch):
        out += joined.num_rows
        if time.perf_counter() - started > limit:
            raise TookTooLong
    seconds = time.perf_counter() - started
    if out != batch.num_rows:
        raise SemiStreamError(f"{type(contestant).__name__} gave {out:,} rows for a batch of {batch.num_rows:,} tuples")
    return seconds


def measure(contestant: Contestant, batches: Iterator[pa.RecordBatch], cost: Cost, times: Times) -> None:
    """Warm up, then join batches until the time is over: at least one, or until one takes too long."""
    ours = contestant if isinstance(contestant, Ours) else None
    try:
        spent = 0.0
        while spent < times.warm:
            spent += timed(contestant, next(batches), times.limit)
            cost.warm_batches += 1
        before = None if ours is None else copy.copy(ours.operator.stats)
        while sum(cost.seconds) < times.measured:
            cost.seconds.append(timed(contestant, next(batches), times.limit))
        if ours is not None:
            counted = ours.operator.stats - before
            cost.bytes_per_batch, cost.hit_rate = counted.bytes_read / len(cost.seconds), counted.hit_rate
    except TookTooLong:
        cost.seconds = []
        cost.state, cost.why = "stopped", f"a batch took more than {times.limit:g} s with R = {cost.rows:,}"


def measured_duckdb(path: Path, cost: Cost, batches: Iterator[pa.RecordBatch], times: Times) -> None:
    """DuckDB with the budget as its limit, or with the least of the doubled ones that it can work with."""
    import duckdb

    for doubled in range(_DOUBLINGS + 1):
        cost.memory_limit = cost.memory << doubled
        contestant = ColdDuckDb(path, cost.memory_limit, THREADS, times.limit)
        try:
            measure(contestant, batches, cost, times)
            return
        except duckdb.OutOfMemoryException as error:
            cost.seconds, cost.warm_batches, reason = [], 0, str(error).splitlines()[0]
        finally:
            contestant.close()
    cost.state, cost.why = "refused", reason


# ----------------------------------------------------------------------------------------------- points


class Record:
    """The numbers so far, in a file that is whole at any time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        known = json.loads(path.read_text())["points"] if path.exists() else {}
        self.points = {key: Cost(**cost) for key, cost in known.items()}

    @staticmethod
    def key(panel: str, rows: int, name: str) -> str:
        return f"{panel} / {rows} / {name}"

    def add(self, key: str, cost: Cost, about: dict[str, Any]) -> None:
        self.points[key] = cost
        self.path.parent.mkdir(parents=True, exist_ok=True)
        beside = self.path.with_suffix(".new")
        points = {name: asdict(each) for name, each in self.points.items()}
        beside.write_text(json.dumps({**about, "points": points}, indent=1) + "\n")
        beside.rename(self.path)

    def has(self, key: str, asked: Cost) -> bool:
        """Whether that is known, for the same memory and batches and no shorter limit."""
        known = self.points.get(key)
        if known is None or (known.memory, known.batch) != (asked.memory, asked.batch):
            return False
        return known.state != "stopped" or known.limit >= asked.limit

    def gave_up(self, panel: str, name: str, asked: Cost) -> Cost | None:
        """Where a contestant was stopped with a smaller R and the same rule for its memory."""
        for key, cost in self.points.items():
            its_panel, _, its_name = key.split(" / ")
            same = (its_panel, its_name, cost.batch) == (panel, name, asked.batch)
            if same and cost.state == "stopped" and cost.rows < asked.rows and cost.limit >= asked.limit:
                return cost
        return None


def about(times: Times) -> dict[str, Any]:
    packages = ("semistream", "numba", "numpy", "pyarrow", "duckdb")
    return {
        "machine": {"cpus": os.cpu_count(), "machine": platform.machine(), "python": platform.python_version()},
        "packages": {name: version(name) for name in packages},
        "settings": {"exponent": EXPONENT, "seed": SEED, "reads": "direct", "drained": True, **asdict(times)},
    }


@contextlib.contextmanager
def master(rows: int, form: str, folder: Path, keep: bool) -> Iterator[Path]:
    """R in a form, made if it is not there; what was made here is removed at the end."""
    source = Synthetic(rows, EXPONENT, SEED)
    there = {path.name for path in folder.iterdir()}
    path = path_of(source, form, folder, lambda what: console.print(f"{what} …"))
    try:
        yield path
    finally:
        if not keep and path.name not in there:
            shutil.rmtree(path)


def run_points(given: argparse.Namespace, record: Record, folder: Path, times: Times) -> None:
    """All that are missing, the smallest R first."""
    for rows in map(int, sorted(given.rows)):
        budgets = {"fixed": given.memory, "share": int(rows * MASTER_ROW_BYTES * given.share)}
        for form, names in (
            ("pages", [name for name in given.operators if name != DUCKDB]),
            ("parquet", [name for name in given.operators if name == DUCKDB]),
        ):
            wanted = []
            for panel, memory in budgets.items():
                for name in names:
                    key = Record.key(panel, rows, name)
                    cost = Cost(rows, memory, given.batch, [], limit=times.limit)
                    if record.has(key, cost):
                        continue
                    earlier = record.gave_up(panel, name, cost)
                    if earlier is None:
                        wanted.append((key, name, cost))
                    else:
                        cost.state, cost.why = "stopped", earlier.why
                        record.add(key, cost, about(times))
            if not wanted:
                continue
            with master(rows, form, folder, given.keep) as path:
                for key, name, cost in wanted:
                    run_point(path, name, cost, times)
                    record.add(key, cost, about(times))
                    console.print(f"  {key}: {spelt(cost)}")


def run_point(path: Path, name: str, cost: Cost, times: Times) -> None:
    """One contestant with one R and one memory."""
    batches = Reading(SyntheticStream(cost.rows, EXPONENT, SEED)).batches(cost.batch)
    if name == DUCKDB:
        measured_duckdb(path, cost, batches, times)
        return
    try:
        ours = Ours(path, cost.memory, algorithm=name, reads="direct", drain=True)
    except BudgetError as error:
        cost.state, cost.why = "refused", str(error)
        return
    try:
        measure(ours, batches, cost, times)
    finally:
        ours.close()


def spelt(cost: Cost) -> str:
    if not cost.seconds:
        return f"{cost.state}: {cost.why}"
    usual, low, high = cost.microseconds()
    read = "" if cost.bytes_per_batch is None else f", {cost.bytes_per_batch / 1e9:.3f} GB per batch"
    hits = "" if cost.hit_rate is None else f", hit rate {cost.hit_rate:.1%}"
    limit = "" if cost.memory_limit in (None, cost.memory) else f", memory limit {cost.memory_limit / 1e6:,.0f} MB"
    return f"{usual:.3f} µs ({low:.3f} – {high:.3f}, {len(cost.seconds)} batches){read}{hits}{limit}"


# ---------------------------------------------------------------------------------------------- picture


def draw(record: Record, given: argparse.Namespace) -> list[Path]:
    """Cost over R, one panel per rule for the memory, one line per contestant; it ends where it was stopped."""
    from semistream.lab.report.colours import looks
    from semistream.lab.report.numbers import short
    from semistream.lab.report.plots import save_panels

    ends = f"; a line ends where a batch takes more than {given.limit:g} s"
    figure = Figure(
        "growth",
        f"Cost per tuple past the page cache, batches of {short(given.batch)} finished at once{ends}",
        Axis("size of R", "tuples", log=True),
        Axis("cost per tuple", "µs", log=True),
        claim="",
        run=lambda _: iter(()),
        judge=lambda _: Verdict("held", ""),
    )
    panels: dict[str, list[Point]] = {"fixed": [], "share": []}
    for key, cost in record.points.items():
        panel, _, name = key.split(" / ")
        if name in given.operators and cost.batch == given.batch and cost.seconds:
            usual, low, high = cost.microseconds()
            point = Point(figure.id, "wall", series(name), cost.rows, usual, low, high, len(cost.seconds))
            panels[panel].append(point)
    captions = {"fixed": f"Memory of {given.memory / 1e6:g} MB", "share": f"Memory of {given.share:.3g} × R"}
    shown = {captions[panel]: points for panel, points in panels.items() if points}
    styles = looks(series(name) for name in given.operators)
    return save_panels(figure, shown, styles, given.out, same_y=True, height=5.0) if shown else []


def series(name: str) -> str:
    """As the pictures of the reports call it."""
    return "duckdb parquet" if name == DUCKDB else name


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=float, nargs="+", default=list(SIZES), help="tuples of R")
    parser.add_argument("--memory", type=parse_bytes, default=120_000_000, help="the memory that does not grow")
    parser.add_argument("--share", type=float, default=0.1, help="the memory that grows, as a part of R")
    parser.add_argument("--batch", type=int, default=500_000, help="tuples per batch")
    parser.add_argument("--operators", type=names_of, default=[*ALGORITHMS, DUCKDB], help="as a,b,duckdb")
    parser.add_argument("--warm", type=float, default=20.0, help="seconds before the measured ones")
    parser.add_argument("--seconds", type=float, default=15.0, help="measured seconds, in whole batches")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds that a batch may take")
    parser.add_argument("--data", type=Path, help="where R is made (default: a temporary folder)")
    parser.add_argument("--keep", action="store_true", help="leave R there")
    parser.add_argument("--out", type=Path, default=OUT, help="folder of the numbers and the picture")
    parser.add_argument("--draw", action="store_true", help="measure nothing")
    given = parser.parse_args()
    times = Times(given.warm, given.seconds, given.limit)
    record = Record(given.out / "growth.json")
    if not given.draw:
        with contextlib.ExitStack() as stack:
            if given.data is None:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="semistream-growth-")))
            else:
                folder = given.data
                folder.mkdir(parents=True, exist_ok=True)
            run_points(given, record, folder, times)
    for path in draw(record, given):
        console.print(f"saved {path}")


def names_of(text: str) -> list[str]:
    """Operators by their names or aliases, and "duckdb"."""
    return [name if name == DUCKDB else resolve(name).name for name in text.split(",")]


if __name__ == "__main__":
    main()
