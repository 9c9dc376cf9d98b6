"""Are the cost models true? Predicted beside measured, for every operator.

Settings: skew 0 and 1, three budgets, three sizes of R. For each, the formula predicts c_loop, hit rate, reads, memory
from R, M and the distribution alone; then the operator runs until it is steady and is measured. Unit costs are
calibrated first, on other data and other budgets (or loaded with --profile).

    deviation      predicted / measured - 1, of c_loop: all errors of counts and of unit costs together
    counts only    the same with the run's own counts priced by the cost clock: errors of unit costs alone
    clock only     predicted and run both on the cost clock: errors of counts alone, the same on any machine

    python benchmarks/cost.py                         R = 50, 100, 200 k; fifteen to thirty minutes
    python benchmarks/cost.py --quick                 one size, one budget, to see that it runs
    python benchmarks/cost.py ssbj cachejoin --rows 1000000 --shares 0.01 0.05 0.1
    python benchmarks/cost.py --reads direct          past the page cache, wall time
    python benchmarks/cost.py --tune                  the analytic optimum against a grid of real runs, by the clock

Measured is CPU time with buffered reads, which a busy machine disturbs least, and wall time with direct reads. For
operators with threads CPU time is that of all threads, beside eq 2 of opcachejoin2020, which is a sum as well; --wall
compares wall time with the slowest of the parallel phases (on an idle machine with a CPU for each). Each turn is
timed beside a yardstick, a fixed piece of work, and counted in units of it: a machine that is slower now than when
it was calibrated touches both. That is good for small changes. A shared machine may be half as fast for minutes, and
then memory, CPU and system calls are not slower by the same factor: where its speed is 15 % off those it was calibrated
at, it is calibrated again.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from rich.console import Console
from rich.table import Table

from semistream import open_join
from semistream.algorithms.registry import ALGORITHMS
from semistream.cost.clock import CostClock, counted
from semistream.cost.profile import CostProfile, paper_profile
from semistream.cost.situation import Options, Situation
from semistream.cost.tune import tune
from semistream.engine.join import SemiStreamJoin
from semistream.errors import BudgetError
from semistream.lab.calibrate.calibrate import calibrate
from semistream.lab.calibrate.tune_runs import compare, grid_of, measured_point, tune_empirically
from semistream.lab.forms import path_of
from semistream.lab.measure.steady import push, warm
from semistream.lab.measure.yardstick import Yardstick
from semistream.lab.report.validation import plot_validation
from semistream.lab.sources import Synthetic
from semistream.lab.workloads.relation import KEY, MASTER_ROW_BYTES, STREAM_SCHEMA, SyntheticStream
from semistream.lab.workloads.workload import Reading
from semistream.master.base import Master
from semistream.master.open import open_master
from semistream.predict.keys import zipf
from semistream.spec import JoinSpec

SEED = 5
BATCH = 20_000
PAGE_ROWS = 64
TURNS = 5
#: speeds that one calibration is good for, the most calibrations, and how often a setting is measured again afterwards
SAME_SPEED, MOST_CALIBRATIONS, MOST_TRIES = 1.15, 6, 4
BAR = 0.15
TUNED = ("oxhybridjoin", "ssj", "cachejoin", "pcachejoin", "ssbj")


class Profiles:
    """Unit costs of this machine, at each of the speeds it was found to run at; or one that was given."""

    def __init__(self, folder: Path, given: CostProfile | None, clock: Callable[[], float]) -> None:
        self._folder, self._is_given, self.clock = folder, given is not None, clock
        self._name = "yardstick_wall_s" if clock is time.perf_counter else "yardstick_s"
        self.yardstick = Yardstick()
        self._known = [given] if given is not None else []
        self.calibrations = 0
        while not self._known:
            self.calibrate()

    def calibrate(self) -> None:
        """Take the unit costs of now, unless the machine changed its speed meanwhile; in the end just wait."""
        if self.calibrations == MOST_CALIBRATIONS:
            time.sleep(1.0)
            return
        self.calibrations += 1
        before = self.yardstick.seconds(self.clock)
        found = calibrate(folder=self._folder)
        if self.calibrations == MOST_CALIBRATIONS or _same_speed(self.yardstick.seconds(self.clock), before):
            self._known.append(found)

    def of(self, seconds: float) -> CostProfile:
        """The profile from when the yardstick took most nearly that long."""
        return min(self._known, key=lambda profile: abs(math.log(seconds / self.usual(profile))))

    def usual(self, profile: CostProfile) -> float:
        return float(profile.machine[self._name])

    def is_good(self, seconds: float) -> bool:
        """Whether one of them is of this speed, or it was given."""
        return self._is_given or _same_speed(seconds, self.usual(self.of(seconds)))


def _same_speed(a: float, b: float) -> bool:
    return 1 / SAME_SPEED <= a / b <= SAME_SPEED


def opened(folder: Path, algorithm: str, rows: int, skew: float) -> Master:
    """R in key order, or in the order of the stream's frequencies for those that want it."""
    order = "frequency" if ALGORITHMS[algorithm].wants_frequency_order else "key"
    source = Synthetic(rows, skew, SEED, order=order, page_rows=PAGE_ROWS)
    return open_master(path_of(source, "pages", folder), (KEY,))


def situation_of(master: Master, rows: int, budget: int, skew: float, direct: bool = False) -> Situation:
    """What the formulas are given: R, M and the distribution alone."""
    spec = JoinSpec.make(KEY, "inner")
    return Situation.of(master, spec, STREAM_SCHEMA, budget, zipf(rows, skew), direct=direct, batch=BATCH)


def measure(
    algorithm: str, folder: Path, rows: int, budget: int, skew: float, direct: bool, wall: bool, profiles: Profiles
) -> dict[str, Any] | None:
    """Predict, run, compare."""
    master = opened(folder, algorithm, rows, skew)
    situation = situation_of(master, rows, budget, skew, direct)
    now, yardstick = profiles.clock, profiles.yardstick
    try:
        predicted = situation.predict(algorithm, profiles.of(yardstick.seconds(now)))
    except BudgetError:
        return None
    reads = "direct" if direct else "mapped"
    given = {"how": "inner", "memory": budget, "stream_schema": STREAM_SCHEMA, "reads": reads}
    with open_join(algorithm, master=master, on=KEY, **given) as join:
        stream = Reading(SyntheticStream(rows, skew, SEED)).batches(BATCH)
        warm(join, lambda: push(join, next(stream)))
        turn = max(-(-int(20 * predicted.w) // BATCH) * BATCH, 2 * BATCH)
        turn = min(turn, 10 * BATCH)
        for _ in range(MOST_TRIES):
            first = copy.copy(join.stats)
            seconds, speeds = [], []
            for _ in range(TURNS):
                speeds.append(yardstick.seconds(now))
                batches = list(itertools.islice(stream, turn // BATCH))
                started = now()
                for batch in batches:
                    push(join, batch)
                seconds.append((now() - started) / speeds[-1])
            counts = counted(join, first, batch=BATCH)
            speed = statistics.median(speeds)
            if profiles.is_good(speed):
                break
            profiles.calibrate()
        peak = join.memory.peak_bytes
    profile = profiles.of(speed)
    predicted = situation.predict(algorithm, profile)
    tuples = counts["tuples_in"]
    turns_of_loop = counts["iterations"] or tuples / BATCH
    per_tuple = statistics.median(seconds) * profiles.usual(profile) / turn
    ahead, width = join.plan.division.reads_ahead, situation.row_bytes
    own = CostClock(profile).price(ALGORITHMS[algorithm], counts, direct=direct, ahead=ahead, row_bytes=width)
    own_clock = (own.seconds if wall else own.serial_seconds) / tuples
    c_loop = predicted.c_loop if wall else sum(predicted.terms.values())
    model = c_loop / predicted.w
    asked = counts["cache_hits"] + counts["cache_misses"]
    return {
        "algorithm": algorithm,
        "rows": rows,
        "budget": budget,
        "skew": skew,
        "c_loop_measured_us": per_tuple * tuples / turns_of_loop * 1e6,
        "c_loop_predicted_us": c_loop * 1e6,
        "us_per_tuple_measured": per_tuple * 1e6,
        "us_per_tuple_predicted": model * 1e6,
        "deviation": model / per_tuple - 1,
        "units_deviation": own_clock / per_tuple - 1,
        "counts_deviation": model / own_clock - 1,
        "hit_measured": counts["cache_hits"] / asked if asked else 0.0,
        "hit_predicted": predicted.hit_rate,
        "reads_measured": counts["reads"] / tuples,
        "reads_predicted": predicted.reads_per_tuple,
        "memory_measured": peak,
        "memory_predicted": predicted.memory_bytes,
        "pace": speed / profiles.usual(profile),
        "yardstick_s": speed,
    }


def results(args: argparse.Namespace, folder: Path, profiles: Profiles) -> Iterator[dict[str, Any]]:
    """All operators in one setting after the other, so that no time of day is one operator's."""
    direct = args.reads == "direct"
    wall = args.wall or direct
    for rows, share, skew in itertools.product(args.rows, args.shares, args.skews):
        for algorithm in args.algorithms or [name for name, each in ALGORITHMS.items() if each.predict]:
            budget = int(rows * MASTER_ROW_BYTES * share)
            row = measure(algorithm, folder, rows, budget, skew, direct, wall, profiles)
            if row is not None:
                yield row


def tuning(folder: Path, rows: int, share: float, algorithms: list[str]) -> Table:
    """Analytic and empirical optimum on the cost clock of the papers' disk, and how far apart they are."""
    table = Table(title=f"Tuning: R = {rows:,}, M = {share:.0%} of R, skew 1, cost clock with the papers' profile")
    for head in ("operator", "d analytic", "grid", "h_R analytic", "grid", "rate: default", "analytic", "grid", "dev"):
        table.add_column(head, justify="left" if head == "operator" else "right")
    profile, budget, warm_tuples = paper_profile(), int(rows * MASTER_ROW_BYTES * share), 8 * rows
    for algorithm in algorithms:
        master = opened(folder, algorithm, rows, 1.0)
        situation = situation_of(master, rows, budget, 1.0)

        def open_with(options: Options, algorithm: str = algorithm, master: Master = master) -> SemiStreamJoin:
            sizes = {"how": "inner", "memory": budget, "reads": "mapped", **options}
            return open_join(algorithm, master=master, on=KEY, stream_schema=STREAM_SCHEMA, **sizes)

        def batches() -> Iterator[pa.RecordBatch]:
            return SyntheticStream(rows, 1.0, SEED).batches(0, warm_tuples + 4 * rows, BATCH)

        analytic = tune(algorithm, situation, profile)
        empirical = tune_empirically(
            algorithm, open_with, batches, grid_of(algorithm, situation), profile, warm=warm_tuples
        )
        found = compare(analytic, empirical, open_with, batches, profile, warm=warm_tuples)
        default = measured_point(open_with, batches, {}, profile, warm=warm_tuples)
        table.add_row(
            algorithm,
            f"{analytic.best.d:,.0f}",
            f"{empirical.best.d:,.0f}",
            f"{analytic.best.h_R:,.0f}",
            f"{empirical.best.h_R:,.0f}",
            f"{default.rate_per_s:,.0f}",
            f"{found.reached_per_s:,.0f}",
            f"{empirical.best.rate_per_s:,.0f}",
            f"{found.rate:+.1%}",
        )
    return table


def summary(rows: list[dict[str, Any]]) -> Table:
    """Medians by operator and skew."""
    table = Table(title="Cost validation: median over sizes and budgets")
    heads = ("operator", "skew", "n", "c_loop µs measured", "predicted", "|dev|", "units", "counts", "hit", "memory")
    for head in heads:
        table.add_column(head, justify="left" if head == "operator" else "right")
    for algorithm in dict.fromkeys(row["algorithm"] for row in rows):
        for skew in dict.fromkeys(row["skew"] for row in rows):
            part = [row for row in rows if row["algorithm"] == algorithm and row["skew"] == skew]
            if not part:
                continue

            def middle(name: str, part: list[dict[str, Any]] = part) -> float:
                return statistics.median(abs(row[name]) for row in part)

            hit = max(abs(row["hit_predicted"] - row["hit_measured"]) for row in part)
            memory = max(abs(row["memory_predicted"] / row["memory_measured"] - 1) for row in part)
            deviation = middle("deviation")
            table.add_row(
                algorithm,
                f"{skew:g}",
                str(len(part)),
                f"{middle('c_loop_measured_us'):.0f}",
                f"{middle('c_loop_predicted_us'):.0f}",
                f"{deviation:.0%}{'' if deviation <= BAR else ' !'}",
                f"{middle('units_deviation'):.0%}",
                f"{middle('counts_deviation'):.0%}",
                f"{100 * hit:.1f}",
                f"{memory:.1%}",
            )
    return table


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("algorithms", nargs="*", help="operators (default: all)")
    parser.add_argument("--rows", type=int, nargs="+", default=[50_000, 100_000, 200_000], help="tuples of R")
    parser.add_argument("--shares", type=float, nargs="+", help="budgets, as parts of R (default 0.05 0.1 0.2)")
    parser.add_argument("--skews", type=float, nargs="+", default=[0.0, 1.0], help="Zipf exponents")
    parser.add_argument("--reads", choices=["buffered", "direct"], default="buffered")
    parser.add_argument("--tune", action="store_true", help="tuning instead of validation: first of --rows, 15 %% of R")
    parser.add_argument("--wall", action="store_true", help="wall time instead of CPU time")
    parser.add_argument("--profile", type=Path, help="unit costs (default: calibrated now)")
    parser.add_argument("--quick", action="store_true", help="one size and one budget")
    parser.add_argument("--folder", type=Path, help="where R is written and kept (default: a temporary folder)")
    parser.add_argument("--json", type=Path, help="write every setting to this file, one JSON object per line")
    parser.add_argument("--plot", type=Path, help="draw predicted over measured into this file (svg or png)")
    args = parser.parse_args()
    args.shares = args.shares or ([0.15] if args.tune else [0.05, 0.1, 0.2])
    if args.quick:
        args.rows, args.shares = args.rows[:1], args.shares[1:2]
    console = Console(width=140)
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        if args.tune:
            console.print(tuning(folder, args.rows[0], args.shares[0], args.algorithms or list(TUNED)))
            console.print("rates in tuples per virtual second; dev: grid's best over what the analytic options reach")
            return 0
        given = CostProfile.load(args.profile) if args.profile else None
        clock = time.perf_counter if args.wall or args.reads == "direct" else time.process_time
        profiles = Profiles(folder, given, clock)
        rows = []
        out = args.json.open("w", encoding="utf-8") if args.json else None
        for row in results(args, folder, profiles):
            rows.append(row)
            if out is not None:
                out.write(json.dumps(row) + "\n")
                out.flush()
        if out is not None:
            out.close()
    if args.plot:
        dots = [
            (
                row["algorithm"],
                f"R = {row['rows']:,}, M = {row['budget']:,}, skew {row['skew']:g}",
                row["c_loop_predicted_us"],
                row["c_loop_measured_us"],
            )
            for row in rows
        ]
        plot_validation(dots, args.plot, quantity="c_loop", unit="µs")
    console.print(summary(rows))
    deviations = [abs(row["deviation"]) for row in rows]
    hits = [abs(row["hit_predicted"] - row["hit_measured"]) for row in rows]
    within = sum(hit <= 0.03 for hit in hits)
    console.print(
        f"{len(rows)} settings; median deviation of c_loop {statistics.median(deviations):.1%} (bar {BAR:.0%}); "
        f"largest {max(deviations):.0%}; hit rate within 3 points in {within} of {len(hits)}; "
        f"calibrated {profiles.calibrations} times"
    )
    console.print("units: errors of unit costs alone; counts: of predicted counts alone; hit: largest error in points")
    return 0


if __name__ == "__main__":
    sys.exit(main())
