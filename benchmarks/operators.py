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
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ.setdefault("POLARS_MAX_THREADS", "2")

import numpy as np
from rich.console import Console
from rich.table import Table

from semistream.lab.contest.contestants import Contestant, DuckDbMemory, DuckDbParquet, Ours, PolarsMemory
from semistream.lab.forms import path_of
from semistream.lab.measure.steady import warm
from semistream.lab.measure.turns import Performance, ratios, take_turns
from semistream.lab.sources import Synthetic
from semistream.lab.workloads.optimum import optimal_tuples_per_cycle
from semistream.lab.workloads.relation import MASTER_ROW_BYTES, WAITING_BYTES, SyntheticStream
from semistream.lab.workloads.workload import Reading
from semistream.lab.workloads.zipf import key_probabilities, zipf_keys

SEED = 1
EXPONENT = 1.0
#: of Polars and DuckDB
THREADS = 2
PARTS = ("memory", "peers", "optimum", "siblings")
console = Console(width=150)


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

    def source(self, rows: int, repeated: bool = False) -> Synthetic:
        """R of so many tuples."""
        return Synthetic(rows, EXPONENT, SEED, repeated)

    def path(self, rows: int, form: str = "pages") -> Path:
        """R in one of its forms, made once for a data folder."""
        return path_of(self.source(rows), form, self.data, say)


def say(what: str) -> None:
    console.print(f"{what} …")


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


# -------------------------------------------------------------------------------------------- contestants


class Player(Performance):
    """A contestant with its own endless stream, of which it never reads the same tuples twice."""

    def __init__(self, name: str, contestant: Contestant, rows: int, batch_rows: int) -> None:
        self.name = name
        self.contestant = contestant
        self.rows = rows
        self.stream = Reading(SyntheticStream(rows, EXPONENT, SEED))
        super().__init__(contestant.join, self.stream.batches(batch_rows))

    def close(self, tuples: np.ndarray | None = None) -> None:
        """Finish, and refuse figures got with wrong output; `tuples` counts the master tuples of each key."""
        out = self.rows_out + sum(output.num_rows for output in self.contestant.finish())
        expected = self.tuples_in if tuples is None else self._matches(tuples)
        if out != expected:
            raise SystemExit(f"{self.name} gave {out:,} rows instead of {expected:,}")
        self.contestant.close()

    def _matches(self, tuples: np.ndarray) -> int:
        """Rows of the inner join of all tuples that were read of the stream."""
        total = 0
        for start in range(0, self.tuples_in, 1 << 20):
            count = min(1 << 20, self.tuples_in - start)
            total += int(tuples[zipf_keys(self.rows, EXPONENT, SEED, start, count)].sum())
        return total


class Operator(Player):
    """A semistream operator, kept open."""

    def __init__(self, algorithm: str, store: Path, rows: int, batch_rows: int, memory: int, **options: Any) -> None:
        self.algorithm = algorithm
        ours = Ours(store, memory, algorithm=algorithm, **options)
        self.join = ours.operator
        super().__init__(f"{algorithm} {memory / 1e6:,.1f} MB", ours, rows, batch_rows)


def compete(players: list[Player], settings: Settings) -> None:
    """Take turns, and show what came of it."""
    take_turns(players, settings.turns, settings.seconds)
    for player in players:
        spread = f"{min(player.rates):,.0f} – {max(player.rates):,.0f}"
        console.print(f"  {player.name:<28} {player.median:>12,.0f} /s   {spread}")


def ratio(part: str, one: Player, other: Player, bar: float | None, note: str = "") -> Line:
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
        {"rates_per_s": {one.name: one.rates, other.name: other.rates}},
    )


def warm_up(operator: Operator, settings: Settings) -> None:
    """Push until the operator is steady, or the time is over."""
    found = warm(operator.join, operator.batch, settings.warm_seconds)
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
        warm_up(operator, settings)
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
            warm_up(operator, settings)
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
        mesh, ssbj = (Operator(name, store, rows, batch_rows, budget, direct=True) for name in ("meshjoin", "ssbj"))
        per_cycle = {}
        for operator in (mesh, ssbj):
            warm_up(operator, settings)
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
        name: Operator(name, store, rows, 100_000, budget, direct=True)
        for name in ("hybridjoin", "cachejoin", "pcachejoin", "opcachejoin")
    }
    for operator in operators.values():
        warm_up(operator, settings)
    compete(list(operators.values()), settings)
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
    parser.add_argument("--quick", action="store_true", help="R of 200 k tuples, short turns")
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
            rows=min(given.rows, 200_000) if given.quick else given.rows,
            turns=given.turns or (3 if given.quick else 7),
            seconds=given.seconds or (0.3 if given.quick else 2.0),
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
