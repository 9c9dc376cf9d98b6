"""How fast the operators are: against Polars and DuckDB, against the optimum, against each other.

Every figure is a ratio of two things measured in the same run, turn by turn, so that a slow or busy machine
touches both. A contestant keeps its state between turns: what is timed is its steady state, never the
filling of a cache. All output rows are built; stream tuples are generated outside the timed part.

    python benchmarks/operators.py                       all parts, R = 1 and 10 M
    python benchmarks/operators.py --part optimum        one part
    python benchmarks/operators.py --quick               small and short, to see that it runs
    python benchmarks/operators.py --full --data DIR     R = 50 M as well; DIR keeps the generated data

Polars and DuckDB get two threads; an operator runs in one, except those whose phases are threads.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ.setdefault("POLARS_MAX_THREADS", "2")

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

import semistream
from semistream.operators.ssbj import SSBJ
from semistream.workloads.optimum import optimal_tuples_per_cycle
from semistream.workloads.relation import (
    KEY,
    MASTER_ROW_BYTES,
    MASTER_SCHEMA,
    STREAM_SCHEMA,
    master_batches,
    master_keys,
    master_table,
    stream_batches,
)
from semistream.workloads.zipf import key_probabilities, zipf_keys

SEED = 1
EXPONENT = 1.0
#: The papers' size of a waiting tuple: 20 bytes and a queue node.
PAPER_V_S = 24
PARTS = ("memory", "peers", "optimum", "siblings")
console = Console(width=150)


@dataclass(frozen=True)
class Settings:
    """How large and how long."""

    rows: int
    turns: int
    seconds: float
    warm_cycles: int
    warm_seconds: float
    measured_cycles: int
    full: bool
    data: Path


@dataclass
class Line:
    """One figure and the bar it is held against."""

    part: str
    what: str
    figure: float
    low: float
    high: float
    bar: float | None
    note: str = ""
    detail: dict[str, Any] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        if self.bar is None:
            return ""
        return "pass" if self.figure >= self.bar else "short"


# ------------------------------------------------------------------------------------------------- data


def parquet_master(settings: Settings, rows: int, repeat: bool) -> Path:
    """R as Parquet files, made once for a data folder."""
    folder = settings.data / f"parquet-{rows}{'-repeat' if repeat else ''}"
    if folder.exists():
        return folder
    with _made_whole(folder) as scratch:
        scratch.mkdir()
        files, a_file = max(1, rows // 5_000_000), -(-rows // max(1, rows // 5_000_000))
        for number in range(files):
            # Plain and uncompressed: what a reader decodes fastest, for the values are random.
            with pq.ParquetWriter(
                scratch / f"part-{number:03d}.parquet",
                MASTER_SCHEMA,
                compression="none",
                use_dictionary=False,
            ) as writer:
                for start in range(number * a_file, min(rows, (number + 1) * a_file), 1 << 17):
                    count = min(1 << 17, rows - start, (number + 1) * a_file - start)
                    writer.write_table(master_table(rows, SEED, start, count, repeat))
    return folder


def page_store(settings: Settings, rows: int, repeat: bool) -> Path:
    """R as a page store, made once for a data folder."""
    folder = settings.data / f"pages-{rows}{'-repeat' if repeat else ''}"
    if folder.exists():
        return folder
    with _made_whole(folder) as scratch:
        reader = pa.RecordBatchReader.from_batches(MASTER_SCHEMA, master_batches(rows, SEED, repeat=repeat))
        semistream.build_pages(reader, scratch, on=KEY)
    return folder


@contextlib.contextmanager
def _made_whole(folder: Path) -> Iterator[Path]:
    console.print(f"making {folder.name} …")
    scratch = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".making-")) / folder.name
    yield scratch
    scratch.rename(folder)
    scratch.parent.rmdir()


class Stream:
    """An endless stream; each contestant reads its own, and never the same tuples twice."""

    def __init__(self, n_keys: int, batch_rows: int) -> None:
        self.n_keys = n_keys
        self.batch_rows = batch_rows
        self.position = 0

    def next(self) -> pa.RecordBatch:
        (batch,) = stream_batches(
            self.batch_rows, self.n_keys, EXPONENT, SEED, start=self.position, batch_rows=self.batch_rows
        )
        self.position += self.batch_rows
        return batch


# ------------------------------------------------------------------------------------------ contestants


class Contestant:
    """Anything that takes a batch of the stream and gives the number of joined rows it built."""

    def __init__(self, name: str, stream: Stream, consume: Callable[[pa.RecordBatch], int]) -> None:
        self.name = name
        self.stream = stream
        self.consume = consume
        self.rates: list[float] = []

    def turn(self, seconds: float) -> float:
        """Push batches until that much time has gone into joining; tuples a second."""
        spent, tuples = 0.0, 0
        while spent < seconds:
            batch = self.stream.next()
            started = time.perf_counter()
            self.consume(batch)
            spent += time.perf_counter() - started
            tuples += batch.num_rows
        return tuples / spent


class Operator(Contestant):
    """A semistream operator, kept open."""

    def __init__(self, algorithm: str, master: Path, stream: Stream, memory: int, **options: Any) -> None:
        self.algorithm = algorithm
        self.join = semistream.open_join(
            algorithm, master=master, on=KEY, memory=memory, stream_schema=STREAM_SCHEMA, **options
        )
        super().__init__(f"{algorithm} {memory / 1e6:,.1f} MB", stream, self._push)

    def _push(self, batch: pa.RecordBatch) -> int:
        return sum(joined.num_rows for joined in self.join.push(batch))

    def close(self, tuples: np.ndarray | None = None) -> None:
        """Finish, and refuse figures got with wrong output; `tuples` counts the master tuples of each key."""
        for _ in self.join.drain():
            pass
        expected = self.stream.position if tuples is None else matches(self.stream, tuples)
        if self.join.stats.rows_out != expected:
            raise SystemExit(f"{self.name} gave {self.join.stats.rows_out:,} rows instead of {expected:,}")
        self.join.close()


def matches(stream: Stream, tuples: np.ndarray) -> int:
    """Rows of the inner join of all tuples that were read of a stream."""
    total = 0
    for start in range(0, stream.position, 1 << 20):
        count = min(1 << 20, stream.position - start)
        total += int(tuples[zipf_keys(stream.n_keys, EXPONENT, SEED, start, count)].sum())
    return total


def polars_eager(master: pa.Table, stream: Stream) -> Contestant:
    """Joins every batch with all of R in memory, eagerly, two threads."""
    held = pl.DataFrame(master)

    def consume(batch: pa.RecordBatch) -> int:
        return pl.DataFrame(batch).join(held, on=KEY, how="inner").height

    return Contestant("polars", stream, consume)


def duckdb_with(source: str, master: pa.Table | None, stream: Stream) -> Contestant:
    """Joins every batch with a relation of DuckDB: a table in memory or the Parquet files."""
    connection = duckdb.connect(config={"threads": 2})
    if master is not None:
        connection.register("given", master)
        connection.execute("CREATE TABLE r AS SELECT * FROM given")

    def consume(batch: pa.RecordBatch) -> int:
        connection.register("s", pa.Table.from_batches([batch]))
        query = f"SELECT s.*, r.* EXCLUDE ({KEY}) FROM s JOIN {source} r USING ({KEY})"
        return int(connection.sql(query).to_arrow_table().num_rows)

    return Contestant("duckdb", stream, consume)


def take_turns(contestants: list[Contestant], turns: int, seconds: float) -> None:
    """One turn each, again and again, the order reversed every time."""
    for number in range(turns):
        for contestant in contestants if number % 2 == 0 else contestants[::-1]:
            contestant.rates.append(contestant.turn(seconds))
    for contestant in contestants:
        spread = f"{min(contestant.rates):,.0f} – {max(contestant.rates):,.0f}"
        console.print(f"  {contestant.name:<28} {statistics.median(contestant.rates):>12,.0f} /s   {spread}")


def ratio(part: str, one: Contestant, other: Contestant, bar: float | None, note: str = "") -> Line:
    """Median of the ratios turn by turn, with the smallest and the largest."""
    ratios = [a / b for a, b in zip(one.rates, other.rates, strict=True)]
    return Line(
        part,
        f"{one.name} / {other.name}",
        statistics.median(ratios),
        min(ratios),
        max(ratios),
        bar,
        note,
        {"rates_per_s": {one.name: one.rates, other.name: other.rates}},
    )


def warm(operator: Operator, settings: Settings) -> None:
    """Push until the cache is what it will stay: some R-cycles for a scan, some tuples a key for an index."""
    started = time.perf_counter()
    stats = operator.join.stats
    scans = operator.join.access == "scan"
    while time.perf_counter() - started < settings.warm_seconds:
        operator.consume(operator.stream.next())
        # A scan operator that holds all of R ends its cycles; then tuples decide there too.
        if scans and stats.r_cycles >= settings.warm_cycles:
            break
        if stats.finished >= (20 if scans else 5) * operator.stream.n_keys:
            break
    console.print(
        f"  {operator.name:<28} after {operator.stream.position:>12,} tuples, {stats.r_cycles} R-cycles, "
        f"{time.perf_counter() - started:.0f} s; hit rate so far {stats.hit_rate:.1%}"
    )


def tuples_per_cycle(operator: Operator, cycles: int) -> float:
    """Stream tuples finished in an R-cycle; cycles are counted in pages, for none ends with a batch."""
    stats, pages = operator.join.stats, operator.join.master.n_pages
    finished, read = stats.finished, stats.pages_read
    while stats.pages_read - read < cycles * pages:
        operator.consume(operator.stream.next())
    return float((stats.finished - finished) / ((stats.pages_read - read) / pages))


@dataclass(frozen=True)
class Sizes:
    """What the optimum is computed with: bytes for tuples, and what a tuple of either side takes of them."""

    memory: int
    v_R: float
    v_S: float
    entry_bytes: float


def real_sizes(operator: Operator) -> Sizes:
    """As the operator lays them out: slots with their headers and their part of the directories."""
    join = operator.join
    if not isinstance(join, SSBJ):
        raise TypeError(f"{operator.name} has no balance of cache and waiting tuples")
    tables = ("pending table", "cache", "var blocks", "key filter")
    rest = sum(size for part, size in join.memory.now.items() if part not in tables)
    return Sizes(
        memory=join.memory.budget_bytes - rest,
        v_R=join.cache.pool.slot_bytes,
        v_S=join.pending.tuple_bytes,
        entry_bytes=join.entry_bytes,
    )


# ------------------------------------------------------------------------------------------------ parts


def part_memory(settings: Settings) -> Iterator[Line]:
    """R small enough for Polars to hold: what does a budget of R, or of a tenth of it, cost in speed?"""
    rows = settings.rows
    store = page_store(settings, rows, repeat=False)
    size = rows * MASTER_ROW_BYTES
    master = master_table(rows, SEED)
    polars = polars_eager(master, Stream(rows, 100_000))
    table = duckdb_with("r", master, Stream(rows, 100_000))
    del master
    whole = [Operator(name, store, Stream(rows, 100_000), 4 * size) for name in ("ssbj", "sweepjoin")]
    tenth = [Operator(name, store, Stream(rows, 100_000), size // 10) for name in ("ssbj", "sweepjoin")]
    for operator in (*whole, *tenth):
        warm(operator, settings)
    for peer in (polars, table):
        peer.turn(settings.seconds / 4)
    take_turns([polars, table, *whole, *tenth], settings.turns, settings.seconds)
    for operator in whole:
        yield ratio("memory", operator, polars, 1.0, "the budget holds R")
    for operator in tenth:
        yield ratio("memory", operator, polars, 0.4, "the budget is 10 % of R")
    for operator in (*whole, *tenth):
        yield ratio("memory", operator, table, None, "R as a DuckDB table")
        operator.close()


def part_peers(settings: Settings) -> Iterator[Line]:
    """R as Parquet files too large to be held: DuckDB reads them for every batch."""
    sizes = [settings.rows, 10 * settings.rows] + ([50 * settings.rows] if settings.full else [])
    for rows in sizes:
        console.print(f"R = {rows:,}")
        store = page_store(settings, rows, repeat=False)
        files = parquet_master(settings, rows, repeat=False)
        peer = duckdb_with(f"read_parquet('{files}/*.parquet')", None, Stream(rows, 500_000))
        budget = rows * MASTER_ROW_BYTES // 10
        operators = [Operator(name, store, Stream(rows, 500_000), budget) for name in ("sweepjoin", "ssbj")]
        for operator in operators:
            warm(operator, settings)
        peer.turn(0.1)
        take_turns([peer, *operators], settings.turns, settings.seconds)
        lines = [ratio("peers", operator, peer, None, f"R = {rows:,}, budget 10 %") for operator in operators]
        yield from lines
        best = max(lines, key=lambda line: line.figure)
        bar = 3.0 if rows == 10_000_000 else None
        yield Line(
            "peers",
            "better of the two / duckdb",
            best.figure,
            best.low,
            best.high,
            bar,
            f"R = {rows:,}, {best.what}",
        )
        for operator in operators:
            operator.close()


def part_optimum(settings: Settings) -> Iterator[Line]:
    """Keys drawn with repetition (ssbj2019): how near SSBJ comes to the best any cache policy could do."""
    rows = settings.rows
    store = page_store(settings, rows, repeat=True)
    probabilities = key_probabilities(rows, EXPONENT, SEED)
    tuples = np.bincount(master_keys(rows, SEED, 0, rows, repeat=True), minlength=rows)
    for share, cycle_bar, second_bar in ((0.01, 2.5, 1.5), (0.10, 4.0, 2.0)):
        budget = int(share * rows * MASTER_ROW_BYTES)
        console.print(f"budget {share * 100:g} % of R")
        batch_rows = max(1000, budget // PAPER_V_S // 20)
        mesh, ssbj = (
            Operator(name, store, Stream(rows, batch_rows), budget, direct=True) for name in ("meshjoin", "ssbj")
        )
        per_cycle = {}
        for operator in (mesh, ssbj):
            warm(operator, settings)
            per_cycle[operator.algorithm] = tuples_per_cycle(operator, settings.measured_cycles)
        finished = per_cycle["ssbj"]
        note = f"budget {share * 100:g} % of R, per R-cycle"
        papers = optimal_tuples_per_cycle(probabilities, tuples, MASTER_ROW_BYTES, PAPER_V_S, budget)
        sizes = real_sizes(ssbj)
        real = optimal_tuples_per_cycle(probabilities, tuples, sizes.v_R, sizes.v_S, sizes.memory, sizes.entry_bytes)
        # The formula prices tuples only: a cached key, or its absence, costs nothing by itself.
        tuples_only = optimal_tuples_per_cycle(probabilities, tuples, sizes.v_R, sizes.v_S, sizes.memory)
        detail = {
            "tuples_per_cycle": per_cycle,
            "W_star": {"real": real, "real, tuples only": tuples_only, "papers": papers},
            **asdict(sizes),
        }
        for text, optimum, bar in (
            ("ssbj / W*, real bytes, key entries priced", real, 0.85),
            ("ssbj / W*, real bytes, tuples only", tuples_only, 0.85),
            ("ssbj / W*, papers' bytes", papers, None),
        ):
            figure = finished / optimum
            yield Line("optimum", text, figure, figure, figure, bar, note, detail)
        for text, figure, bar in (
            ("ssbj / meshjoin", finished / per_cycle["meshjoin"], cycle_bar),
            ("W* / meshjoin, real bytes, key entries priced", real / per_cycle["meshjoin"], None),
            ("W* / meshjoin, real bytes, tuples only", tuples_only / per_cycle["meshjoin"], None),
            ("W* / meshjoin, papers' bytes", papers / (budget / PAPER_V_S), None),
        ):
            yield Line("optimum", text, figure, figure, figure, bar, note, detail)
        take_turns([mesh, ssbj], settings.turns, settings.seconds)
        yield ratio("optimum", ssbj, mesh, second_bar, f"budget {share * 100:g} % of R, per second, O_DIRECT")
        mesh.close(tuples)
        ssbj.close(tuples)


def part_siblings(settings: Settings) -> Iterator[Line]:
    """The CACHEJOIN family among itself, every page read past the page cache."""
    rows = settings.rows
    store = page_store(settings, rows, repeat=False)
    budget = rows * MASTER_ROW_BYTES // 10
    operators = {
        name: Operator(name, store, Stream(rows, 100_000), budget, direct=True)
        for name in ("hybridjoin", "cachejoin", "pcachejoin", "opcachejoin")
    }
    for operator in operators.values():
        warm(operator, settings)
    take_turns(list(operators.values()), settings.turns, settings.seconds)
    for better, worse, bar in (
        ("cachejoin", "hybridjoin", 2.0),
        ("pcachejoin", "cachejoin", 1.0),
        ("opcachejoin", "pcachejoin", 1.0),
    ):
        yield ratio("siblings", operators[better], operators[worse], bar, "budget 10 % of R, O_DIRECT")
    for operator in operators.values():
        operator.close()


RUN: dict[str, Callable[[Settings], Iterator[Line]]] = {
    "memory": part_memory,
    "peers": part_peers,
    "optimum": part_optimum,
    "siblings": part_siblings,
}


# ----------------------------------------------------------------------------------------------- output


def show(lines: list[Line]) -> None:
    table = Table("part", "what", title="ratios: median of the turns, smallest – largest")
    for heading in ("ratio", "spread", "bar", ""):
        table.add_column(heading, justify="right")
    table.add_column("")
    colours = {"pass": "[green]pass[/]", "short": "[bold red]short[/]", "": ""}
    for line in lines:
        spread = "" if line.low == line.high else f"{line.low:.2f} – {line.high:.2f}"
        bar = "" if line.bar is None else f"≥ {line.bar:g}"
        table.add_row(line.part, line.what, f"{line.figure:.2f}", spread, bar, colours[line.verdict], line.note)
    console.print(table)


def save(lines: list[Line], settings: Settings, path: Path) -> None:
    packages = ("semistream", "numba", "numpy", "pyarrow", "polars", "duckdb")
    record = {
        "machine": {
            "cpus": os.cpu_count(),
            "machine": platform.machine(),
            "python": platform.python_version(),
        },
        "packages": {name: version(name) for name in packages},
        "settings": {key: value for key, value in asdict(settings).items() if key != "data"},
        "lines": [{**asdict(line), "verdict": line.verdict} for line in lines],
    }
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n")
    console.print(f"saved {path}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", action="append", choices=PARTS, help="only this part (may be repeated)")
    parser.add_argument("--rows", type=int, default=1_000_000, help="master tuples of the smallest R")
    parser.add_argument("--quick", action="store_true", help="R of 100 k tuples, short turns")
    parser.add_argument("--full", action="store_true", help="R of 50 M tuples as well")
    parser.add_argument("--turns", type=int, help="turns of every contestant")
    parser.add_argument("--seconds", type=float, help="length of a turn")
    parser.add_argument("--data", type=Path, help="folder that keeps the generated data (default: a temporary one)")
    parser.add_argument("--save", action="store_true", help="write results/operators.json")
    given = parser.parse_args()
    with contextlib.ExitStack() as stack:
        if given.data is None:
            data = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="semistream-bench-")))
        else:
            data = given.data
            data.mkdir(parents=True, exist_ok=True)
        settings = Settings(
            rows=min(given.rows, 100_000) if given.quick else given.rows,
            turns=given.turns or (3 if given.quick else 7),
            seconds=given.seconds or (0.3 if given.quick else 2.0),
            warm_cycles=8 if given.quick else 24,
            warm_seconds=3 if given.quick else 90,
            measured_cycles=4 if given.quick else 12,
            full=given.full,
            data=data,
        )
        lines: list[Line] = []
        for part in given.part or PARTS:
            console.rule(part)
            lines += RUN[part](settings)
        show(lines)
        if given.save:
            save(lines, settings, Path(__file__).parents[1] / "results" / "operators.json")
    return 1 if any(line.verdict == "short" for line in lines) else 0


if __name__ == "__main__":
    sys.exit(main())
