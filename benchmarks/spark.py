"""How fast a stream is joined on Spark and written: against the transport alone, and against Spark's own join.

All contestants read the same files in the same session, in turns, and Spark's own join has the settings that suit it
(`spark_runs.tuned`). What is timed is a micro-batch from trigger to commit, after the warm-up; the median of the
batches counts. "transport" is `mapInArrow` giving out rows as wide as the joined ones without joining; it runs before
and after those that are compared with it. Rows that are written are read back once per contestant, and compared with
the rows of the join.

    python benchmarks/spark.py                                  R = 10 M, batches of 500 k, a sink that keeps nothing
    python benchmarks/spark.py --sink parquet delta             the same, and the rows written: all the bars
    python benchmarks/spark.py --curve --data DIR               R = 1, 10, 50 M; batches of 100 k, 500 k, 2 M
    python benchmarks/spark.py --rows 1e6 --batch 100e3 500e3   others
    python benchmarks/spark.py --rows 50e6 --reads direct mapped --data DIR   R past the page cache and in it
    python benchmarks/spark.py --memory-run                     resident size of the Python workers over 50 batches

With `--sink` there are, beside `enrich` and the native join into a sink that keeps nothing, both with Spark's own
Parquet sink, and `write`, which writes Parquet or Delta in the workers that join. With `--reads direct` R is read past
the page cache by `enrich`; the native join reads its Parquet files as Spark does, through the page cache, and once more
from Spark's memory, where R is held by `persist`. DIR keeps the generated data for the next time.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import shutil
import statistics
import tempfile
import threading
import time
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from rich.console import Console
from rich.table import Table

from semistream.lab.contest.spark_entries import NOOP, PARQUET, Entry, Place, master, read_back
from semistream.lab.contest.spark_runs import in_words, persisted, run_batches, stream_files, tuned
from semistream.lab.forms import path_of
from semistream.lab.measure.resident import proportional_bytes, spark_workers
from semistream.lab.sources import Synthetic
from semistream.lab.workloads.checksum import expected_checksum
from semistream.lab.workloads.relation import MASTER_ROW_BYTES, SyntheticStream
from semistream.spark import metrics
from semistream.spark.session import open_session

SEED = 1
EXPONENT = 1.0
FILE_ROWS = 50_000
CORES = 2
TRANSPORT = Entry("transport")
#: what of its own join Spark's memory holds, at most
MOST_CACHED_ROWS = 20_000_000
#: `enrich` into a sink that keeps nothing / the transport, by the rows of R
OVER_TRANSPORT = {1_000_000: 0.7, 10_000_000: 0.85, 50_000_000: 0.7}
#: the bars hold at this size of batches, those beside the transport's at this size of R
BARRED_BATCH, BARRED_ROWS = 500_000, 10_000_000
console = Console(width=180)


def comparisons(rows: int) -> list[tuple[str, str, float | None]]:
    """Pairs of contestants whose rates are compared, with the bar where there is one."""
    found: list[tuple[str, str, float | None]] = []
    for how, times in (("inner", 2.5), ("left", 10.0)):
        ours, native = f"sweepjoin {how}", f"native {how}"
        here = rows == BARRED_ROWS
        found += [(ours, "transport", OVER_TRANSPORT.get(rows)), (ours, native, times if here else None)]
        found += [(ours, f"{native} cached", None)]
        found += [(f"{ours} direct", other, None) for other in ("transport", ours, native)]
        for sink in ("parquet", "delta"):
            write = f"write {how}, {sink}"
            found += [
                (write, f"{ours}, Spark's parquet", 2.5 if here else None),
                (write, f"{native}, Spark's parquet", 6.0 if here and how == "inner" else None),
                (write, f"{native} cached, Spark's parquet", None),
                (write, ours, 0.9 if here else None),
            ]
    return found


@dataclass
class Result:
    """What every contestant did at one size of R and of the batch."""

    rows: int
    batch: int
    memory: int
    rates: dict[str, float] = field(default_factory=dict)
    seconds: dict[str, list[float]] = field(default_factory=dict)
    #: what each ran with
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)
    hit_rate: dict[str, float] = field(default_factory=dict)
    #: bytes of R that were read for a measured batch
    bytes_read: dict[str, float] = field(default_factory=dict)
    #: seconds of a measured batch by phase, over all tasks
    phases: dict[str, dict[str, float]] = field(default_factory=dict)
    #: bytes that R takes in Spark's memory
    cached_bytes: dict[str, int] = field(default_factory=dict)
    #: bytes on disk per row that was written
    row_bytes: dict[str, float] = field(default_factory=dict)

    def ratios(self) -> list[dict[str, Any]]:
        """Every comparison, with both sides' settings."""
        return [
            {
                "ours": ours,
                "theirs": theirs,
                "ratio": self.rates[ours] / self.rates[theirs],
                "bar": bar if self.batch == BARRED_BATCH else None,
                "our_settings": self.settings[ours],
                "their_settings": self.settings[theirs],
            }
            for ours, theirs, bar in comparisons(self.rows)
            if ours in self.rates and theirs in self.rates
        ]


class Data:
    """R as Parquet and as page store, S as small files; made once for each size of R."""

    def __init__(self, folder: Path, rows: int) -> None:
        self.source = Synthetic(rows, EXPONENT, SEED)
        folder.mkdir(parents=True, exist_ok=True)
        self.rows = rows
        self.parquet = path_of(self.source, "parquet", folder)
        self.store = path_of(self.source, "pages", folder)
        self.stream = folder / f"stream-{rows}"
        self.stream.mkdir(exist_ok=True)

    def place(self, memory: int) -> Place:
        return Place(self.store, self.parquet, memory)

    def files(self, count: int) -> list[Path]:
        """So many files of the stream, the first ones."""
        return stream_files(SyntheticStream(self.rows, EXPONENT, SEED + 1), self.stream, FILE_ROWS, count)

    @cache  # noqa: B019  a benchmark has few of them, and they live as long as it does
    def expected(self, tuples: int) -> int:
        """The checksum of the first tuples, joined."""
        return expected_checksum(self.source.master, SyntheticStream(self.rows, EXPONENT, SEED + 1), tuples)


def run(spark: SparkSession, entry: Entry, data: Data, result: Result, warm: int, measured: int) -> None:
    """Process `warm + measured` batches and keep the times of the last ones; read back what is written, once."""
    name, place = entry.name, data.place(result.memory)
    batches, files = warm + measured, result.batch // FILE_ROWS
    holding = persisted(master(spark, place)) if entry.cached else contextlib.nullcontext(0)
    with tempfile.TemporaryDirectory(prefix="semistream-bench-", dir=data.stream.parent) as folder, holding as cached:
        scratch = Path(folder)
        ran = run_batches(spark, data.files(batches * files), files, scratch, entry.start(place, scratch / "out"))
        if entry.sink != NOOP and name not in result.row_bytes:
            result.row_bytes[name] = verified(entry, data, scratch / "out", batches * result.batch)
    if entry.cached:
        result.cached_bytes[name] = cached
    result.settings[name] = entry.settings(spark, place, ran)
    times = [batch.seconds for batch in ran.batches[-measured:]]
    result.seconds[name] = [*result.seconds.get(name, []), *times]
    result.rates[name] = result.batch / statistics.median(result.seconds[name])
    counted = [values for batch in ran.batches[-measured:] if (values := metrics.of(ran.query, batch.number))]
    read = ""
    if counted:
        wrong = next((values["rows_out"] for values in counted if values["rows_out"] != result.batch), None)
        if wrong is not None:
            raise SystemExit(f"{name} gave {wrong:,} rows for a batch of {result.batch:,} tuples")
        result.hit_rate[name] = counted[-1]["hit_rate"]
        result.bytes_read[name] = statistics.mean(values["bytes_read"] for values in counted)
        phases = [key for key in counted[0] if key.startswith("seconds_")]
        result.phases[name] = {
            key.removeprefix("seconds_"): statistics.median(values[key] for values in counted) for key in phases
        }
        read = f", {result.bytes_read[name] / 1e9:.3f} GB read per batch"
    spread = f"{result.batch / max(times) / 1e6:.2f} to {result.batch / min(times) / 1e6:.2f}"
    console.print(f"  {name}: {result.batch / statistics.median(times) / 1e6:.3f} M rows/s ({spread}){read}")


def verified(entry: Entry, data: Data, out: Path, tuples: int) -> float:
    """Bytes per row on disk; rows that are not the join's end the benchmark."""
    found = read_back(out, entry.sink)
    if (found.rows, found.checksum) != (tuples, data.expected(tuples)):
        raise SystemExit(f"{entry.name} wrote {found.rows:,} rows for {tuples:,} tuples, or others than the join's")
    return found.n_bytes / found.rows


def measure(spark: SparkSession, data: Data, batch: int, given: argparse.Namespace) -> Result:
    result = Result(data.rows, batch, int(given.memory or data.rows * MASTER_ROW_BYTES // 10))
    console.print(f"R = {data.rows:,}, batches of {batch:,}, memory {result.memory / 1e6:.0f} MB")
    warm = max(int(given.warm) // batch, 1)
    measured = given.measured or (8 if batch <= 500_000 else 4)
    # From 50 M on a native batch takes minutes, so one has to do.
    many = data.rows < 50_000_000
    run(spark, TRANSPORT, data, result, 3, measured)
    for _ in range(given.turns):
        for entry in entries(data.rows, given):
            if entry.learns:
                run(spark, entry, data, result, warm, measured)
            else:
                some = 3 if entry.how == "inner" else 2
                run(spark, entry, data, result, int(many), min(some, measured) if many else 1)
            if entry.kind == "enrich" and entry.sink == NOOP:
                run(spark, TRANSPORT, data, result, 1, measured)
    return result


def entries(rows: int, given: argparse.Namespace) -> list[Entry]:
    """Who takes part in a turn, in this order."""
    sinks = [sink for sink in given.sink if sink != NOOP]
    places = [NOOP, PARQUET] if sinks else [NOOP]
    found = []
    for how in given.how:
        found += [Entry("enrich", how, NOOP, reads) for reads in given.reads]
        if sinks:
            found.append(Entry("enrich", how, PARQUET, given.reads[0]))
            found += [Entry("write", how, sink, given.reads[0]) for sink in sinks]
    for how in [] if given.no_native else given.how:
        found += [Entry("native", how, sink) for sink in places]
        if rows <= MOST_CACHED_ROWS:
            found += [Entry("native", how, sink, cached=True) for sink in places]
    return found


def show(results: list[Result]) -> None:
    """Rates with the settings behind them, the comparisons, and where the time of a batch goes."""
    table = Table(title="rows per second, and what each contestant ran with")
    for column in ("R", "batch", "contestant", "M rows/s", "hit rate", "GB read", "bytes/row"):
        table.add_column(column, justify="right")
    table.add_column("settings")
    for result in results:
        for name, rate in result.rates.items():
            hits = f"{result.hit_rate[name]:.3f}" if name in result.hit_rate else ""
            read = f"{result.bytes_read[name] / 1e9:.3f}" if name in result.bytes_read else ""
            size = f"{result.row_bytes[name]:.0f}" if name in result.row_bytes else ""
            said = in_words(result.settings[name])
            if name in result.cached_bytes:
                said += f" ({result.cached_bytes[name] / 1e9:.2f} GB)"
            table.add_row(f"{result.rows:,}", f"{result.batch:,}", name, f"{rate / 1e6:.3f}", hits, read, size, said)
    console.print(table)
    table = Table(title="ratios of rates of the same run, and the bar where there is one")
    for column in ("R", "batch", "ours", "theirs", "ratio", "bar", ""):
        table.add_column(column, justify="right")
    for result in results:
        for pair in result.ratios():
            bar, ratio = pair["bar"], pair["ratio"]
            verdict = "" if bar is None else "[green]pass[/]" if ratio >= bar else "[bold red]short[/]"
            line = (pair["ours"], pair["theirs"], f"{ratio:.2f}", "" if bar is None else f"≥ {bar:g}", verdict)
            table.add_row(f"{result.rows:,}", f"{result.batch:,}", *line)
    console.print(table)
    names = list(dict.fromkeys(phase for result in results for of in result.phases.values() for phase in of))
    table = Table(title=f"milliseconds of a batch: wall time, and by phase, the sum of {CORES} tasks")
    for column in ("R", "batch", "contestant", "wall", *names):
        table.add_column(column, justify="right")
    for result in results:
        for name, times in result.seconds.items():
            of = result.phases.get(name, {})
            wall = f"{1000 * statistics.median(times):.0f}"
            spent = [f"{1000 * of[phase]:.0f}" if phase in of else "" for phase in names]
            table.add_row(f"{result.rows:,}", f"{result.batch:,}", name, wall, *spent)
    console.print(table)


class Watch(threading.Thread):
    """Memory of Spark's Python processes, seen from outside: their own (anonymous and shared, pages that several of
    them share counted once), and the files of the shared cache."""

    def __init__(self, local: Path) -> None:
        super().__init__(daemon=True)
        self._local = local
        self.done = False
        self.workers = 0
        self.own: list[int] = []
        self.cache_files = 0

    def run(self) -> None:
        while not self.done:
            workers = spark_workers()
            self.workers = max(self.workers, len(workers))
            self.own.append(sum(proportional_bytes(pid) for pid in workers))
            self.cache_files = max(self.cache_files, _cache_bytes(self._local))
            time.sleep(0.1)


def _cache_bytes(local: Path) -> int:
    total = 0
    for path in local.glob("**/semistream/*/*/*"):
        with contextlib.suppress(OSError):
            total += path.stat().st_size
    return total


def memory_run(spark: SparkSession, data: Data, batches: int, memory: int, local: Path) -> None:
    """`batches` micro-batches of 100 k: what the Python processes hold at most, and without a join."""
    held = {}
    for entry, count in ((TRANSPORT, 10), (Entry("enrich", "left"), batches)):
        watch = Watch(local)
        watch.start()
        run(spark, entry, data, Result(data.rows, 100_000, memory), 0, count)
        watch.done = True
        watch.join()
        held[entry.kind] = watch
    base, joined = held["transport"], held["enrich"]
    third = len(joined.own) // 3
    more = max(joined.own) - max(base.own)
    left = [path for path in local.glob("**/semistream/*/*") if path.is_file()]
    table = Table(title=f"memory = {memory / 1e6:.0f} MB, {batches} batches, {joined.workers} Python processes; MB")
    for column in ("held at most", "MB"):
        table.add_column(column)
    for label, size in (
        ("of their own, without a join", max(base.own)),
        ("of their own, with it", max(joined.own)),
        ("difference", more),
        ("in the first third of the run", max(joined.own[:third])),
        ("in the last third", max(joined.own[-third:])),
        ("cache files, two generations while one replaces the other", joined.cache_files),
    ):
        table.add_row(label, f"{size / 1e6:.0f}")
    console.print(table)
    console.print(f"files left behind: {len(left)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=float, nargs="+", default=[10e6])
    parser.add_argument("--batch", type=float, nargs="+", default=[500e3])
    parser.add_argument("--curve", action="store_true", help="R = 1, 10, 50 M; batches of 100 k, 500 k, 2 M")
    parser.add_argument("--warm", type=float, default=10e6, help="tuples before the measured ones")
    parser.add_argument("--measured", type=int, help="batches that count of each turn (default: 8, or 4 large ones)")
    parser.add_argument("--turns", type=int, default=1, help="how often each contestant's turn comes")
    parser.add_argument("--how", nargs="+", choices=["inner", "left"], default=["inner", "left"])
    parser.add_argument(
        "--sink", nargs="+", choices=["noop", "parquet", "delta"], default=["noop"], help="where rows go"
    )
    parser.add_argument("--no-native", action="store_true")
    parser.add_argument("--memory-run", action="store_true")
    parser.add_argument("--memory", type=float, help="budget (default: 10 %% of R; 120 MB in the memory run)")
    parser.add_argument(
        "--reads", nargs="+", choices=["mapped", "direct"], default=["mapped"], help="in the page cache, or past it"
    )
    parser.add_argument("--data", type=Path)
    parser.add_argument("--save", type=Path, help="write the results there, as JSON")
    options = parser.parse_args()
    rows = [1e6, 10e6, 50e6] if options.curve else options.rows
    sizes = [100e3, 500e3, 2e6] if options.curve else options.batch
    folder = options.data or Path(tempfile.mkdtemp(prefix="semistream-bench-"))
    local = Path(tempfile.mkdtemp(prefix="semistream-local-", dir=folder if folder.is_dir() else None))
    conf = {**tuned(CORES), "spark.local.dir": str(local), "spark.log.level": "ERROR"}
    spark = open_session("benchmark", f"local[{CORES}]", conf)
    results = []
    try:
        for count in rows:
            data = Data(folder, int(count))
            if options.memory_run:
                memory_run(spark, data, 50, int(options.memory or 120e6), local)
                continue
            for batch in sizes:
                results.append(measure(spark, data, int(batch), options))
                show(results[-1:])
    finally:
        spark.stop()
        shutil.rmtree(local, ignore_errors=True)
        if options.data is None:
            shutil.rmtree(folder, ignore_errors=True)
    if results:
        show(results)
    if options.save:
        about = {
            "machine": platform.machine(),
            "cores": os.cpu_count(),
            "versions": {name: version(name) for name in ("pyspark", "pyarrow", "numba", "numpy")},
            "spark": tuned(CORES),
            "results": [{**asdict(result), "ratios": result.ratios()} for result in results],
        }
        options.save.parent.mkdir(parents=True, exist_ok=True)
        options.save.write_text(json.dumps(about, indent=1))


if __name__ == "__main__":
    main()
