"""`semistream join` as a user runs it, Parquet to Parquet, beside DuckDB and Polars that write the same rows.

Every contestant is a process of its own, from its start to its end: imports count. They take turns, so that a slow
minute of the machine touches all. All get two threads, the same columns and the same codec; a column that the codec
does not make smaller, semistream leaves as it is. R is in a page store for semistream, which keeps it between joins,
and in Parquet for the others; `--build` adds the command that has no store yet. The others may have all the memory
they want. What they hold is sampled from outside: anonymous and shared pages at their peak, less those of the same
program on 1,000 rows. The first turn's rows are counted and summed up column by column, and must be the same.

    python benchmarks/command.py                                    R and S of 10 M rows, 120 MB
    python benchmarks/command.py --rows 1000000 --memory 12MB --turns 1 --save results/command.json
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from semistream.lab.measure.child import weigh
from semistream.lab.workloads.relation import KEY, SyntheticMaster, SyntheticStream
from semistream.lab.workloads.workload import Workload

THREADS = 2
SMALL_ROWS = 1_000
ROW_GROUP_ROWS = 1_000_000
BATCH_ROWS = 500_000
#: what must hold: rows per second over DuckDB in batches, wall time and memory over whoever takes all at once
LEAST_OVER_BATCHES, MOST_TIME, MOST_MEMORY = 1.5, 1.3, 0.2
console = Console(width=140)


@dataclass(frozen=True)
class Turn:
    """One run of one contestant."""

    wall_s: float
    cpu_s: float
    peak_bytes: int
    out_bytes: int


# ------------------------------------------------------------------------------------- the others, in their process


def duckdb_batches(folder: Path, out: Path, codec: str) -> None:
    """The join of one batch of S after the other with R, each into a file of its own."""
    import duckdb
    import pyarrow as pa
    import pyarrow.parquet as pq

    out.mkdir()
    connection = duckdb.connect()
    connection.execute(f"SET threads = {THREADS}; SET preserve_insertion_order = false")
    for number, batch in enumerate(pq.ParquetFile(folder / "s.parquet").iter_batches(BATCH_ROWS)):
        connection.register("s", pa.Table.from_batches([batch]))
        connection.execute(_copy("s", folder, out / f"part-{number:05d}.parquet", codec))


def duckdb_at_once(folder: Path, out: Path, codec: str) -> None:
    """One query over all of S."""
    import duckdb

    connection = duckdb.connect()
    connection.execute(f"SET threads = {THREADS}; SET preserve_insertion_order = false")
    connection.execute(_copy(f"read_parquet('{folder / 's.parquet'}')", folder, out, codec))


def _copy(stream: str, folder: Path, out: Path, codec: str) -> str:
    return (
        f"COPY (SELECT s.*, r.* EXCLUDE ({KEY}) FROM {stream} s JOIN read_parquet('{folder / 'r.parquet'}') r "
        f"USING ({KEY})) TO '{out}' (FORMAT parquet, COMPRESSION {codec})"
    )


def polars_streaming(folder: Path, out: Path, codec: str) -> None:
    """The streaming engine, over all of S."""
    import polars as pl

    s, r = pl.scan_parquet(folder / "s.parquet"), pl.scan_parquet(folder / "r.parquet")
    joined = s.join(r, on=KEY, how="inner", maintain_order="none")
    joined.sink_parquet(out, compression=codec, maintain_order=False, engine="streaming")  # type: ignore[arg-type]


OTHERS: dict[str, Callable[[Path, Path, str], None]] = {
    "DuckDB, batches of 500 k": duckdb_batches,
    "DuckDB, one query": duckdb_at_once,
    "Polars, streaming": polars_streaming,
}
OURS, BUILDING, AUTO = "semistream join", "semistream join, no store yet", "semistream join, no store yet, auto"

# ------------------------------------------------------------------------------------------------- the contest


class Contest:
    """The data, and how each contestant is run on it."""

    def __init__(self, data: Path, rows: int, memory: str, codec: str) -> None:
        self.data, self.rows, self.memory, self.codec = data, rows, memory, codec

    def folder(self, rows: int) -> Path:
        """R and S of so many rows as Parquet, and R as a page store; made once."""
        place = self.data / f"rows{rows}"
        if (place / "done").exists():
            return place
        console.print(f"writing R and S of {rows:,} rows …")
        place.mkdir(parents=True, exist_ok=True)
        _write(SyntheticMaster(rows, seed=1), rows, place / "r.parquet")
        _write(SyntheticStream(rows, seed=2), rows, place / "s.parquet")
        from semistream import build_pages

        build_pages(place / "r.parquet", place / "store", on=KEY, overwrite=True)
        (place / "done").touch()
        return place

    def run(self, name: str, rows: int, out: Path) -> Turn:
        folder = self.folder(rows)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        started = time.perf_counter()
        done = weigh(self._command(name, folder, out), environment=self._environment(out))
        wall = time.perf_counter() - started
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if done.status:
            raise SystemExit(f"{name} ended with {done.status}: {done.errors[-2000:]}")
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        size = sum(file.stat().st_size for file in ([out] if out.is_file() else out.iterdir()))
        return Turn(wall, cpu, done.most_bytes, size)

    def _command(self, name: str, folder: Path, out: Path) -> list[str]:
        if name in OTHERS:
            return [__file__, "--play", name, str(folder), str(out), self.codec]
        master = "store" if name == OURS else "r.parquet"
        words = ["-m", "semistream.cli", "join", "--json", "--how", "inner", "--memory", self.memory, "--on", KEY]
        words += ["--stream", str(folder / "s.parquet"), "--master", str(folder / master), "--out", str(out)]
        return [*words, "--algorithm", "auto"] if name == AUTO else words

    def _environment(self, out: Path) -> dict[str, str]:
        # A store that is built goes with the output.
        return {"POLARS_MAX_THREADS": str(THREADS), "SEMISTREAM_CACHE": str(out.with_suffix(".cache"))}


def _write(relation: Workload, rows: int, path: Path) -> None:
    import pyarrow.parquet as pq

    with pq.ParquetWriter(path, relation.schema) as writer:
        for first in range(0, rows, ROW_GROUP_ROWS):
            writer.write_table(relation.table(first, min(first + ROW_GROUP_ROWS, rows)))


def _sums(out: Path) -> tuple[Any, ...]:
    """What tells the rows of an output from others: their number, and every column's values in any order."""
    import duckdb

    files = f"read_parquet('{out}/*.parquet')" if out.is_dir() else f"read_parquet('{out}')"
    names = [row[0] for row in duckdb.execute(f"DESCRIBE SELECT * FROM {files}").fetchall()]
    # Each value with the number of its row in the stream, so that a value in a wrong row shows.
    columns = ", ".join(f"bit_xor(hash(seq, {name})), sum({name}::HUGEINT)" for name in sorted(names))
    found = duckdb.execute(f"SELECT count(*), {columns} FROM {files}").fetchone()
    return (tuple(sorted(names)), *(found or ()))


def _clear(place: Path) -> None:
    """Remove an output, and let the disk come to rest before the next one."""
    for path in place.parent.glob(f"{place.stem}*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    os.sync()


def main() -> None:
    if len(sys.argv) > 1 and sys.argv[1] == "--play":
        OTHERS[sys.argv[2]](Path(sys.argv[3]), Path(sys.argv[4]), sys.argv[5])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000, help="of R, and of S")
    parser.add_argument("--memory", default="120MB", help="of semistream; the others take what they want")
    parser.add_argument("--codec", default="snappy", choices=["snappy", "zstd", "uncompressed"], help="of the others")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--build", action="store_true", help="also without a store, by the default and by auto")
    parser.add_argument("--data", type=Path, help="a folder that keeps the generated data")
    parser.add_argument("--save", type=Path, help="write the results there, as JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        _compete(options, options.data or Path(scratch))


def _compete(options: argparse.Namespace, data: Path) -> None:
    data.mkdir(parents=True, exist_ok=True)
    contest = Contest(data, options.rows, options.memory, options.codec)
    names = [OURS, *([BUILDING, AUTO] if options.build else []), *OTHERS]
    turns: dict[str, list[Turn]] = {name: [] for name in names}
    bare: dict[str, int] = {}
    sums: dict[str, tuple[Any, ...]] = {}
    for rows in (SMALL_ROWS, options.rows):
        contest.folder(rows)
    for number in range(options.turns + 1):
        for name in names:
            # DuckDB in batches writes a folder, which it makes itself.
            out = data / ("out" if name == "DuckDB, batches of 500 k" else "out.parquet")
            _clear(out)
            if number == 0:
                bare[name] = contest.run(name, SMALL_ROWS, out).peak_bytes
                continue
            turns[name].append(contest.run(name, options.rows, out))
            if number == 1:
                sums[name] = _sums(out)
            _clear(out)
        if number:
            console.print(f"turn {number}: " + "; ".join(f"{name} {turns[name][-1].wall_s:.2f} s" for name in names))
    if len(set(sums.values())) != 1:
        raise SystemExit(f"the outputs differ: { ({name: found[:2] for name, found in sums.items()}) }")
    _report(options, turns, bare)


def _report(options: argparse.Namespace, turns: dict[str, list[Turn]], bare: dict[str, int]) -> None:
    wall = {name: statistics.median(turn.wall_s for turn in found) for name, found in turns.items()}
    over = {name: statistics.median(turn.peak_bytes for turn in found) - bare[name] for name, found in turns.items()}
    table = Table("", "seconds", "M rows/s", "processors", "MB above imports", "MB of imports", "MB written", box=None)
    for name, found in turns.items():
        busy = statistics.median(turn.cpu_s / turn.wall_s for turn in found)
        table.add_row(
            name,
            f"{wall[name]:.2f}",
            f"{options.rows / wall[name] / 1e6:.2f}",
            f"{busy:.2f}",
            f"{over[name] / 1e6:,.0f}",
            f"{bare[name] / 1e6:,.0f}",
            f"{found[0].out_bytes / 1e6:,.0f}",
        )
    console.print(table)
    batches, *at_once = OTHERS
    lines = {f"rows per second over {batches}": (wall[batches] / wall[OURS], f"at least {LEAST_OVER_BATCHES}")}
    for name in at_once:
        lines[f"time over {name}"] = (wall[OURS] / wall[name], f"at most {MOST_TIME}")
        lines[f"memory over {name}"] = (over[OURS] / over[name], f"at most {MOST_MEMORY}")
    for what, (ratio, wanted) in lines.items():
        console.print(f"{what}: {ratio:.2f} ({wanted})")
    if options.save:
        about = {
            "settings": {
                "rows": options.rows,
                "memory": options.memory,
                "codec": options.codec,
                "threads": THREADS,
                "semistream": "sweepjoin, R in a page store; codec snappy for columns that it makes smaller",
                "DuckDB": "threads = 2, preserve_insertion_order = false, no memory limit, R in Parquet",
                "Polars": "POLARS_MAX_THREADS = 2, maintain_order none, no memory limit, R in Parquet",
            },
            "machine": platform.machine(),
            "python": platform.python_version(),
            "versions": {name: version(name) for name in ("pyarrow", "numba", "duckdb", "polars")},
            "bare_bytes": bare,
            "turns": {name: [asdict(turn) for turn in found] for name, found in turns.items()},
            "ratios": {what: round(ratio, 3) for what, (ratio, _) in lines.items()},
        }
        options.save.parent.mkdir(parents=True, exist_ok=True)
        options.save.write_text(json.dumps(about, indent=1) + "\n")


if __name__ == "__main__":
    main()
