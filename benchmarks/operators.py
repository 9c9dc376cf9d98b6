"""How fast the operators are: against Polars and DuckDB, against the optimum, against each other.

Every figure is a ratio of two things measured in the same run, turn by turn, so that a slow or busy machine
touches both. A contestant keeps its state between turns: what is timed is its steady state, never the
filling of a cache. All output rows are built; stream tuples are generated outside the timed part.

    python benchmarks/operators.py                       all parts but "batches", R = 1 and 10 M
    python benchmarks/operators.py --part optimum        one part
    python benchmarks/operators.py --quick               small and short, to see that it runs
    python benchmarks/operators.py --full --data DIR     R = 50 M as well; DIR keeps the generated data

The part "batches" is about an R that is on disk: every operator, one size of batch after the other, each batch drained
as on Spark, beside a plain scan of R and the page cache. R = 10 M, 120 MB, batches of 10 k, 100 k, 500 k and 2 M unless
other numbers are given; most of an hour.

    python benchmarks/operators.py --reads direct --drain                  the whole part
    python benchmarks/operators.py --reads mapped --batch 500000 --operators sweepjoin,orderedjoin

Polars and DuckDB get two threads; an operator runs in one, except those whose phases are threads.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
import os
import platform
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ.setdefault("POLARS_MAX_THREADS", "2")

import numpy as np
from rich.console import Console

from semistream.algorithms.registry import ALGORITHMS, resolve
from semistream.engine.chunk import JoinStats
from semistream.lab.contest.contestants import DuckDbMemory, DuckDbParquet, PolarsMemory
from semistream.lab.contest.player import Operator, Player
from semistream.lab.forms import path_of
from semistream.lab.measure.bars import Line, table_of
from semistream.lab.measure.scan import CheckedScan, ScanLimit
from semistream.lab.measure.steady import warm
from semistream.lab.measure.turns import ratios, take_turns
from semistream.lab.sources import Synthetic
from semistream.lab.workloads.optimum import optimal_tuples_per_cycle
from semistream.lab.workloads.relation import MASTER_ROW_BYTES, WAITING_BYTES
from semistream.lab.workloads.zipf import key_probabilities
from semistream.spec import parse_bytes

SEED = 1
EXPONENT = 1.0
#: of Polars and DuckDB
THREADS = 2
PARTS = ("memory", "peers", "optimum", "siblings")
#: not among them, since it takes as long as all of them
BATCHES = "batches"
BATCH_ROWS = [10_000, 100_000, 500_000, 2_000_000]
#: of SWEEPJOIN past the page cache, by the size of the batch: over the best other operator, and over what is possible
BEST_OTHER, POSSIBLE = {500_000: 1.2}, {500_000: 0.8, 2_000_000: 0.8}
MOST_PASSES = 1.05
console = Console(width=150)


@dataclass(frozen=True)
class Batches:
    """What the part "batches" joins, how it reads R, and whether every batch is finished at once."""

    rows: int
    sizes: tuple[int, ...]
    memory: int
    reads: str
    drain: bool
    operators: tuple[str, ...]
    warm_seconds: float


@dataclass(frozen=True)
class Settings:
    """How large and how long."""

    rows: int
    turns: int
    seconds: float
    warm_seconds: float
    measured_cycles: int
    full: bool
    data: Path
    #: of the part "batches"
    batches: Batches

    def source(self, rows: int, repeated: bool = False) -> Synthetic:
        """R of so many tuples."""
        return Synthetic(rows, EXPONENT, SEED, repeated)

    def path(self, rows: int, form: str = "pages") -> Path:
        """R in one of its forms, made once for a data folder."""
        return path_of(self.source(rows), form, self.data, say)


def say(what: str) -> None:
    console.print(f"{what} …")


# -------------------------------------------------------------------------------------------- contestants


def compete(players: Sequence[Player | ScanLimit], settings: Settings) -> None:
    """Take turns, and show what came of it."""
    take_turns(players, settings.turns, settings.seconds)
    for player in players:
        spread = f"{min(player.rates):,.0f} – {max(player.rates):,.0f}"
        console.print(f"  {player.name:<28} {player.median:>12,.0f} /s   {spread}")


def ratio(part: str, one: Player, other: Player | ScanLimit, bar: float | None, note: str = "") -> Line:
    """Median of the ratios turn by turn, with the smallest and the largest."""
    found = ratios(one.rates, other.rates)
    return Line(
        part,
        f"{one.name} / {other.name}",
        statistics.median(found),
        min(found),
        max(found),
        bar,
        note,
        {
            "rates_per_s": {one.name: one.rates, other.name: other.rates},
            "settings": {side.name: side.contestant.settings for side in (one, other) if isinstance(side, Player)},
        },
    )


def warm_up(operator: Operator, most_seconds: float) -> None:
    """Push until the operator is steady, or the time is over."""
    found = warm(operator.join, operator.batch, most_seconds)
    stats = operator.join.stats
    console.print(
        f"  {operator.name:<28} after {operator.tuples_in:>12,} tuples, {stats.r_cycles} R-cycles; "
        f"hit rate so far {stats.hit_rate:.1%}{'' if found.steady else '; not steady yet'}"
    )


def tuples_per_cycle(operator: Operator, cycles: int) -> float:
    """Stream tuples finished in an R-cycle; cycles are counted in pages, for none ends with a batch."""
    stats, pages = operator.join.stats, operator.join.master.n_pages
    finished, read = stats.finished, stats.pages_read
    while stats.pages_read - read < cycles * pages:
        operator.batch()
    return float((stats.finished - finished) / ((stats.pages_read - read) / pages))


@dataclass(frozen=True)
class Sizes:
    """What the optimum is computed with: bytes for tuples, and what a tuple of either side takes of them."""

    memory: int
    v_R: float
    v_S: float
    entry_bytes: float


def real_sizes(operator: Operator) -> Sizes:
    """As SSBJ lays them out: slots with their headers and their part of the directories."""
    join = operator.join
    tables = ("pending table", "cache", "var blocks", "key filter")
    rest = sum(size for part, size in join.memory.now.items() if part not in tables)
    return Sizes(
        memory=join.memory.budget_bytes - rest,
        v_R=join.loop.cache.pool.slot_bytes,
        v_S=join.loop.pending.tuple_bytes,
        entry_bytes=join.loop.cache.entry_bytes(),
    )


# ------------------------------------------------------------------------------------------------ parts


def part_memory(settings: Settings) -> Iterator[Line]:
    """R small enough for Polars to hold: what does a budget of R, or of a tenth of it, cost in speed?"""
    rows = settings.rows
    store, files = settings.path(rows), settings.path(rows, "parquet")
    size = rows * MASTER_ROW_BYTES
    polars = Player("polars", PolarsMemory(files, size, THREADS), rows, 100_000)
    table = Player("duckdb", DuckDbMemory(files, size, THREADS), rows, 100_000)
    whole = [Operator(name, store, rows, 100_000, 4 * size) for name in ("ssbj", "sweepjoin")]
    tenth = [Operator(name, store, rows, 100_000, size // 10) for name in ("ssbj", "sweepjoin")]
    for operator in (*whole, *tenth):
        warm_up(operator, settings.warm_seconds)
    for peer in (polars, table):
        peer.turn(settings.seconds / 4)
    compete([polars, table, *whole, *tenth], settings)
    for operator in whole:
        yield ratio("memory", operator, polars, 1.0, "the budget holds R")
    for operator in tenth:
        yield ratio("memory", operator, polars, 0.4, "the budget is 10 % of R")
    for operator in (*whole, *tenth):
        yield ratio("memory", operator, table, None, "R as a DuckDB table")
    for player in (polars, table, *whole, *tenth):
        player.close()


def part_peers(settings: Settings) -> Iterator[Line]:
    """R as Parquet files too large to be held: DuckDB reads them for every batch."""
    sizes = [settings.rows, 10 * settings.rows] + ([50 * settings.rows] if settings.full else [])
    for rows in sizes:
        console.print(f"R = {rows:,}")
        budget = rows * MASTER_ROW_BYTES // 10
        peer = Player("duckdb", DuckDbParquet(settings.path(rows, "parquet"), budget, THREADS), rows, 500_000)
        store = settings.path(rows)
        operators = [Operator(name, store, rows, 500_000, budget) for name in ("sweepjoin", "ssbj")]
        for operator in operators:
            warm_up(operator, settings.warm_seconds)
        peer.turn(0.1)
        compete([peer, *operators], settings)
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
        for player in (peer, *operators):
            player.close()


def part_optimum(settings: Settings) -> Iterator[Line]:
    """Keys drawn with repetition (ssbj2019): how near SSBJ comes to the best any cache policy could do."""
    rows = settings.rows
    source = settings.source(rows, repeated=True)
    store = path_of(source, "pages", settings.data, say)
    probabilities = key_probabilities(rows, EXPONENT, SEED)
    tuples = np.bincount(source.master.keys(0, rows), minlength=rows)
    for share, cycle_bar, second_bar in ((0.01, 2.5, 1.5), (0.10, 4.0, 2.0)):
        budget = int(share * rows * MASTER_ROW_BYTES)
        console.print(f"budget {share * 100:g} % of R")
        batch_rows = max(1000, budget // WAITING_BYTES // 20)
        mesh, ssbj = (Operator(name, store, rows, batch_rows, budget, reads="direct") for name in ("meshjoin", "ssbj"))
        per_cycle = {}
        for operator in (mesh, ssbj):
            warm_up(operator, settings.warm_seconds)
            per_cycle[operator.algorithm] = tuples_per_cycle(operator, settings.measured_cycles)
        finished = per_cycle["ssbj"]
        note = f"budget {share * 100:g} % of R, per R-cycle"
        papers = optimal_tuples_per_cycle(probabilities, tuples, MASTER_ROW_BYTES, WAITING_BYTES, budget)
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
            ("W* / meshjoin, papers' bytes", papers / (budget / WAITING_BYTES), None),
        ):
            yield Line("optimum", text, figure, figure, figure, bar, note, detail)
        compete([mesh, ssbj], settings)
        yield ratio("optimum", ssbj, mesh, second_bar, f"budget {share * 100:g} % of R, per second, O_DIRECT")
        mesh.close(tuples)
        ssbj.close(tuples)


def part_siblings(settings: Settings) -> Iterator[Line]:
    """The CACHEJOIN family among itself, every page read past the page cache."""
    rows = settings.rows
    store = settings.path(rows)
    budget = rows * MASTER_ROW_BYTES // 10
    operators = {
        name: Operator(name, store, rows, 100_000, budget, reads="direct")
        for name in ("hybridjoin", "cachejoin", "pcachejoin", "opcachejoin")
    }
    for operator in operators.values():
        warm_up(operator, settings.warm_seconds)
    compete(list(operators.values()), settings)
    for better, worse, bar in (
        ("cachejoin", "hybridjoin", 2.0),
        ("pcachejoin", "cachejoin", 1.0),
        ("opcachejoin", "pcachejoin", 1.0),
    ):
        yield ratio("siblings", operators[better], operators[worse], bar, "budget 10 % of R, O_DIRECT")
    for operator in operators.values():
        operator.close()


def part_batches(settings: Settings) -> Iterator[Line]:
    """R on disk, and batches of several sizes: how near is an operator to one scan of R per batch?"""
    asked = settings.batches
    store = settings.path(asked.rows)

    def opened(algorithm: str, name: str, reads: str) -> Operator:
        sizes = (asked.rows, asked.sizes[0], asked.memory)
        return Operator(algorithm, store, *sizes, name=name, reads=reads, drain=asked.drain)

    operators = [opened(name, name, asked.reads) for name in asked.operators]
    sweep = next((each for each in operators if each.algorithm == "sweepjoin"), None)
    cached = opened("sweepjoin", "sweepjoin, mapped", "mapped") if sweep and asked.reads == "direct" else None
    master = operators[0].join.master
    scan = ScanLimit([master.folder / shard["pages_file"] for shard in master.manifest.shards], asked.sizes[0])
    checked = CheckedScan(master, asked.sizes[0]) if asked.reads == "direct" else None
    scans = [scan, *([checked] if checked else [])]
    everybody = [*operators, *([cached] if cached else [])]
    for size in asked.sizes:
        ways = f"{asked.reads}{', drained' if asked.drain else ''}"
        console.print(f"R = {asked.rows:,}, {asked.memory / 1e6:,.0f} MB, batches of {size:,}, {ways}")
        for player in (*everybody, *scans):
            player.change_batches(size)
        for operator in everybody:
            warm_up(operator, asked.warm_seconds)
        before = {each.name: (copy.copy(each.join.stats), len(each.bytes_read)) for each in everybody}
        # The default has its turns right beside the scan's: the speed of a shared disk changes within minutes.
        compete([*(each for each in everybody if each is not sweep), *([sweep] if sweep else []), *scans], settings)
        speed = f"{scan.bytes_per_second / 1e9:.2f} GB/s"
        console.print(f"  scan limit: one pass over R's {scan.n_bytes / 1e9:.2f} GB per batch, at {speed}")
        details = {each.name: per_batch(each, *before[each.name], scan) for each in everybody}
        for each in everybody:
            found = details[each.name]
            note = f"{size:,}: {each.median / 1e6:.2f} M rows/s, {found['gb_per_batch']:.2f} GB, "
            line = ratio(BATCHES, each, scan, None, note + f"hit rate {found['hit_rate']:.1%}")
            line.detail |= {"batch_rows": size, **found, "scan_bytes_per_s": scan.bytes_per_second}
            yield line
        if sweep is not None:
            yield from against_bars(sweep, operators, cached, scan, details[sweep.name], size, asked)
        if sweep is not None and checked is not None:
            yield ratio(BATCHES, sweep, checked, None, f"batches of {size:,}, a scan that checks its pages")
    for operator in everybody:
        operator.close()


def per_batch(operator: Operator, before: JoinStats, batches: int, scan: ScanLimit) -> dict[str, Any]:
    """What a measured batch took from R, in GB and in passes over its pages (the most that one took), and the hits."""
    read = operator.bytes_read[batches:]
    return {
        "gb_per_batch": statistics.mean(read) / 1e9,
        "passes": statistics.mean(read) / scan.n_bytes,
        "most_passes": max(read) / scan.n_bytes,
        "hit_rate": (operator.join.stats - before).hit_rate,
        "batches": len(read),
    }


def against_bars(
    sweep: Operator,
    operators: Sequence[Operator],
    cached: Operator | None,
    scan: ScanLimit,
    found: dict[str, Any],
    size: int,
    asked: Batches,
) -> Iterator[Line]:
    """SWEEPJOIN, the default, beside the best other operator and beside what is possible; bars past the page cache."""
    bars = asked.reads == "direct" and asked.drain
    note = f"batches of {size:,}"
    others = [each for each in operators if each is not sweep]
    if others:
        best = max(others, key=lambda each: each.median)
        yield ratio(BATCHES, sweep, best, BEST_OTHER.get(size) if bars else None, f"{note}, best other")
    if cached is not None:
        limit = min((scan, cached), key=lambda each: each.median)
        yield ratio(BATCHES, sweep, limit, POSSIBLE.get(size) if bars else None, f"{note}, what is possible")
    bar = MOST_PASSES if bars else None
    usual, most = found["passes"], found["most_passes"]
    yield Line(BATCHES, "sweepjoin, bytes per batch / R", most, usual, most, bar, f"{note}, the most", at_most=True)


RUN: dict[str, Callable[[Settings], Iterator[Line]]] = {
    "memory": part_memory,
    "peers": part_peers,
    "optimum": part_optimum,
    "siblings": part_siblings,
    BATCHES: part_batches,
}


# ----------------------------------------------------------------------------------------------- output


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
    parser.add_argument("--part", action="append", choices=[*PARTS, BATCHES], help="only this part (may be repeated)")
    parser.add_argument("--rows", type=int, help="master tuples of the smallest R (default: 1 M; batches: 10 M)")
    parser.add_argument("--quick", action="store_true", help="R of 200 k tuples, short turns")
    parser.add_argument("--full", action="store_true", help="R of 50 M tuples as well")
    parser.add_argument("--turns", type=int, help="turns of every contestant")
    parser.add_argument("--seconds", type=float, help="length of a turn")
    parser.add_argument("--warm", type=float, help="most seconds of warm-up of an operator (90; for a batch size: 20)")
    parser.add_argument("--data", type=Path, help="folder that keeps the generated data (default: a temporary one)")
    parser.add_argument("--save", action="store_true", help="write results/operators.json, or batches-{reads}.json")
    own = parser.add_argument_group(f"of the part {BATCHES!r}, which is meant where one of them stands")
    own.add_argument("--reads", choices=["mapped", "direct"], help="through the page cache, or past it (default)")
    own.add_argument("--drain", action=argparse.BooleanOptionalAction, help="finish every batch at once (default)")
    own.add_argument("--batch", type=int, action="append", help="tuples per batch (may be repeated)")
    own.add_argument("--memory", type=parse_bytes, help="budget of each operator (default: 120MB)")
    own.add_argument("--operators", type=names, help="some of them, as a,b,c (default: all)")
    given = parser.parse_args()
    owned = (given.reads, given.drain, given.batch, given.memory, given.operators)
    parts = given.part or (PARTS if all(each is None for each in owned) else [BATCHES])
    with contextlib.ExitStack() as stack:
        if given.data is None:
            data = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="semistream-bench-")))
        else:
            data = given.data
            data.mkdir(parents=True, exist_ok=True)
        batches = Batches(
            rows=given.rows or (200_000 if given.quick else 10_000_000),
            sizes=tuple(given.batch or BATCH_ROWS),
            memory=given.memory or 120_000_000,
            reads=given.reads or "direct",
            drain=given.drain is not False,
            operators=given.operators or tuple(ALGORITHMS),
            warm_seconds=given.warm if given.warm is not None else (1.0 if given.quick else 20.0),
        )
        rows = given.rows or 1_000_000
        settings = Settings(
            rows=min(rows, 200_000) if given.quick else rows,
            turns=given.turns or (3 if given.quick else 7),
            seconds=given.seconds or (0.3 if given.quick else 2.0),
            warm_seconds=given.warm if given.warm is not None else (3 if given.quick else 90),
            measured_cycles=4 if given.quick else 12,
            full=given.full,
            data=data,
            batches=batches,
        )
        lines: list[Line] = []
        for part in parts:
            console.rule(part)
            lines += RUN[part](settings)
        console.print(table_of(lines))
        if given.save:
            name = f"batches-{batches.reads}.json" if list(parts) == [BATCHES] else "operators.json"
            save(lines, settings, Path(__file__).parents[1] / "results" / name)
    return 1 if any(line.verdict == "short" for line in lines) else 0


def names(text: str) -> tuple[str, ...]:
    """Operators by their names or aliases."""
    return tuple(resolve(name).name for name in text.split(","))


if __name__ == "__main__":
    sys.exit(main())
