"""How fast `enrich` is on Spark: against the transport alone, and against Spark's own stream-static join.

All contestants read the same files with the same session and write to a sink that takes every row and keeps none. What
is timed is a micro-batch from trigger to commit, after the warm-up; the median of the batches counts. "transport" is
`mapInArrow` giving out rows as wide as the joined ones without joining; it runs before and after the others.

    python benchmarks/spark.py                                  R = 10 M, batches of 500 k: the bars
    python benchmarks/spark.py --curve --data DIR               R = 1, 10, 50 M; batches of 100 k, 500 k, 2 M
    python benchmarks/spark.py --rows 1e6 --batch 100e3 500e3   others
    python benchmarks/spark.py --rows 50e6 --reads direct mapped --data DIR   R past the page cache and in it
    python benchmarks/spark.py --memory-run                     resident size of the Python workers over 50 batches

With `--reads direct` R is read past the page cache by `enrich`; the native join reads its Parquet files as Spark does,
through the page cache. DIR keeps the generated data for the next time.
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
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from rich.console import Console
from rich.table import Table

from semistream.lab.contest.spark_contest import run_batches, stream_files
from semistream.lab.forms import path_of
from semistream.lab.measure.resident import proportional_bytes, spark_workers
from semistream.lab.sources import Synthetic
from semistream.lab.workloads.relation import KEY, MASTER_ROW_BYTES, MASTER_SCHEMA, SyntheticStream
from semistream.spark import enrich, metrics
from semistream.spark.session import open_session

SEED = 1
EXPONENT = 1.0
FILE_ROWS = 50_000
WIDE_DDL = "k long, seq long, qty int" + "".join(f", {name} long" for name in MASTER_SCHEMA.names if name != KEY)
BARS = {("sweepjoin inner", "transport"): 0.7, ("sweepjoin left", "transport"): 0.7}
BARS |= {("sweepjoin inner", "native inner"): 2.5, ("sweepjoin left", "native left"): 10.0}
#: what else is compared, with no bar
BESIDE = [("sweepjoin inner direct", other) for other in ("transport", "sweepjoin inner", "native inner")]
BESIDE += [("sweepjoin left direct", other) for other in ("transport", "sweepjoin left", "native left")]
console = Console(width=150)


@dataclass
class Result:
    """Rows per second of every contestant at one size of R and of the batch."""

    rows: int
    batch: int
    memory: int
    rates: dict[str, float] = field(default_factory=dict)
    seconds: dict[str, list[float]] = field(default_factory=dict)
    hit_rate: dict[str, float] = field(default_factory=dict)
    #: bytes of R that were read for a measured batch
    bytes_read: dict[str, float] = field(default_factory=dict)

    def ratios(self) -> dict[str, float]:
        found = {}
        for ours, theirs in (*BARS, *BESIDE):
            if ours in self.rates and theirs in self.rates:
                found[f"{ours} / {theirs}"] = self.rates[ours] / self.rates[theirs]
        return found


class Data:
    """R as Parquet and as page store, S as small files; made once for each size of R."""

    def __init__(self, folder: Path, rows: int) -> None:
        source = Synthetic(rows, EXPONENT, SEED)
        folder.mkdir(parents=True, exist_ok=True)
        self.rows = rows
        self.parquet = path_of(source, "parquet", folder)
        self.store = path_of(source, "pages", folder)
        self.stream = folder / f"stream-{rows}"
        self.stream.mkdir(exist_ok=True)

    def files(self, count: int) -> list[Path]:
        """So many files of the stream, the first ones."""
        return stream_files(SyntheticStream(self.rows, EXPONENT, SEED + 1), self.stream, FILE_ROWS, count)


def widen(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Rows of the joined width, but no join."""
    names = [name for name in MASTER_SCHEMA.names if name != KEY]
    columns: list[pa.Array] = []
    for batch in batches:
        if not columns or len(columns[0]) < batch.num_rows:
            values = np.random.default_rng(SEED).integers(0, 1 << 62, (len(names), batch.num_rows))
            columns = [pa.array(row) for row in values]
        extra = [column.slice(0, batch.num_rows) for column in columns]
        yield pa.RecordBatch.from_arrays([*batch.columns, *extra], names=[*batch.schema.names, *names])


def contestant(name: str, df: DataFrame, data: Data, memory: int) -> DataFrame:
    if name == "transport":
        return df.mapInArrow(widen, WIDE_DDL)
    kind, how, *reads = name.split()
    if kind == "native":
        return df.join(df.sparkSession.read.parquet(str(data.parquet)), KEY, how)
    return enrich(df, data.store, on=KEY, how=how, memory=memory, algorithm=kind, reads=(reads or ["mapped"])[0])


def run(spark: SparkSession, name: str, data: Data, result: Result, warm: int, measured: int) -> None:
    """Process `warm + measured` batches and keep the times of the last ones."""
    batches = warm + measured
    files = result.batch // FILE_ROWS
    with tempfile.TemporaryDirectory(prefix="semistream-bench-", dir=data.stream.parent) as scratch:
        query, finished = run_batches(
            spark,
            data.files(batches * files),
            files,
            Path(scratch),
            lambda df: contestant(name, df, data, result.memory),
        )
    times = [batch.seconds for batch in finished[-measured:]]
    result.seconds[name] = [*result.seconds.get(name, []), *times]
    result.rates[name] = result.batch / statistics.median(result.seconds[name])
    counted = [values for batch in finished[-measured:] if (values := metrics.of(query, batch.number))]
    read = ""
    if counted:
        wrong = next((values["rows_out"] for values in counted if values["rows_out"] != result.batch), None)
        if wrong is not None:
            raise SystemExit(f"{name} gave {wrong:,} rows for a batch of {result.batch:,} tuples")
        result.hit_rate[name] = counted[-1]["hit_rate"]
        result.bytes_read[name] = statistics.mean(values["bytes_read"] for values in counted)
        read = f", {result.bytes_read[name] / 1e9:.3f} GB read per batch"
    spread = f"{result.batch / max(times) / 1e6:.2f} to {result.batch / min(times) / 1e6:.2f}"
    console.print(f"  {name}: {result.batch / statistics.median(times) / 1e6:.3f} M rows/s ({spread}){read}")


def measure(spark: SparkSession, data: Data, batch: int, given: argparse.Namespace) -> Result:
    rows = data.rows
    result = Result(rows, batch, int(given.memory or rows * MASTER_ROW_BYTES // 10))
    console.print(f"R = {rows:,}, batches of {batch:,}, memory {result.memory / 1e6:.0f} MB")
    warm = max(int(given.warm) // batch, 3)
    measured = 8 if batch <= 500_000 else 4
    run(spark, "transport", data, result, 3, measured)
    for how in ("inner", "left"):
        for reads in given.reads:
            name = f"sweepjoin {how}" + (" direct" if reads == "direct" else "")
            run(spark, name, data, result, warm, measured)
            run(spark, "transport", data, result, 1, measured)
    if not given.no_native:
        # From 50 M on a native batch takes minutes, so one has to do.
        many = rows < 50_000_000
        run(spark, "native inner", data, result, 1 if many else 0, 3 if many else 1)
        run(spark, "native left", data, result, 1 if many else 0, 2 if many else 1)
    return result


def show(results: list[Result]) -> None:
    table = Table(title="rows per second, and ratios with the bar where there is one")
    for column in ("R", "batch", "contestant", "M rows/s", "GB read", "hit rate", "ratio"):
        table.add_column(column, justify="right")
    for result in results:
        bars = result.rows == 10_000_000 and result.batch == 500_000
        for name, rate in result.rates.items():
            ratios = []
            for ours, theirs in (*BARS, *BESIDE):
                if ours == name and theirs in result.rates:
                    ratio, bar = rate / result.rates[theirs], BARS.get((ours, theirs))
                    verdict = f" (bar {bar:g}: {'pass' if ratio >= bar else 'short'})" if bars and bar else ""
                    ratios.append(f"{ratio:.2f} x {theirs}{verdict}")
            hits = f"{result.hit_rate[name]:.3f}" if name in result.hit_rate else ""
            read = f"{result.bytes_read[name] / 1e9:.3f}" if name in result.bytes_read else ""
            size = (f"{result.rows:,}", f"{result.batch:,}")
            table.add_row(*size, name, f"{rate / 1e6:.3f}", read, hits, "; ".join(ratios))
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
    for name, count in (("transport", 10), ("sweepjoin left", batches)):
        watch = Watch(local)
        watch.start()
        run(spark, name, data, Result(data.rows, 100_000, memory), 0, count)
        watch.done = True
        watch.join()
        held[name] = watch
    base, joined = held["transport"], held["sweepjoin left"]
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
    conf = {
        "spark.driver.memory": "6g",
        "spark.sql.shuffle.partitions": "2",
        "spark.local.dir": str(local),
        "spark.log.level": "ERROR",
        "spark.sql.streaming.numRecentProgressUpdates": "10000",
    }
    spark = open_session("benchmark", "local[2]", conf)
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
            "results": [{**asdict(result), "ratios": result.ratios()} for result in results],
        }
        options.save.parent.mkdir(parents=True, exist_ok=True)
        options.save.write_text(json.dumps(about, indent=1))


if __name__ == "__main__":
    main()
