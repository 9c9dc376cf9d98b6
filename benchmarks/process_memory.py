"""Is the budget the truth for a whole process? Memory of `semistream join`, seen from outside.

The command joins Parquet with Parquet (or with a page store built beforehand) and writes Parquet. This process samples
the anonymous and shared pages of the command in /proc; mapped pages of files are the kernel's to reclaim. What counts
is the peak on large data minus the peak of the same command on 1,000 rows, which is what interpreter and libraries
need anyway. It must stay below 1.25 × budget + 64 MB, whatever the reader, the writer, the sort and the allocator do.

    python benchmarks/process_memory.py                     16 and 64 MB, R and S of 3 M rows
    python benchmarks/process_memory.py sweepjoin --rows 300000 --budgets 16MB --json
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
from pathlib import Path

import pyarrow.parquet as pq

from semistream import build_pages
from semistream.lab.measure.child import weigh
from semistream.lab.measure.resident import allowed_bytes
from semistream.lab.workloads.relation import KEY, SyntheticMaster, SyntheticStream
from semistream.spec import parse_bytes

SMALL_ROWS = 1_000
#: Large on purpose: memory must not grow with the row groups of the input.
ROW_GROUP_ROWS = 1_000_000
ALGORITHMS = ("sweepjoin", "ssbj", "auto", "hybridjoin")
#: Where R is: in Parquet, of which the command makes a page store if the operator needs one; or in a page store.
FORMS = ("parquet", "store")


def data(folder: Path, rows: int) -> Path:
    """R and S of so many rows as Parquet, and R as a page store; made once."""
    place = folder / f"rows{rows}"
    if (place / "store").exists():
        return place
    place.mkdir(parents=True, exist_ok=True)
    for name, table in (
        ("r", SyntheticMaster(rows, seed=1).table()),
        ("s", SyntheticStream(rows, seed=2).table(0, rows)),
    ):
        pq.write_table(table, place / f"{name}.parquet", row_group_size=ROW_GROUP_ROWS)
    build_pages(place / "r.parquet", place / "store", on=KEY)
    return place


def run(folder: Path, algorithm: str, budget: str, form: str) -> tuple[int, dict[str, float]] | None:
    """Peak bytes of one command and its own report with the processor's seconds; None if it refuses."""
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        master = folder / ("store" if form == "store" else "r.parquet")
        command = ["-m", "semistream.cli", "join", "--json", "--algorithm", algorithm]
        command += ["--stream", str(folder / "s.parquet"), "--master", str(master), "--on", KEY]
        command += ["--memory", budget, "--out", f"{scratch}/out.parquet"]
        started = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = weigh(command, environment={"SEMISTREAM_CACHE": f"{scratch}/cache"})
        if done.status == 2:
            # A budget below the least that the operator needs here; the command says how much that is.
            return None
        if done.status:
            raise RuntimeError(f"{' '.join(command)} failed: {done.errors}")
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = ended.ru_utime + ended.ru_stime - started.ru_utime - started.ru_stime
    return done.most_bytes, {**json.loads(done.out), "cpu_seconds": round(seconds, 2)}


def measure(large: Path, small: Path, algorithm: str, budget: str, form: str) -> dict[str, object]:
    setting: dict[str, object] = {"algorithm": algorithm, "master": form, "budget": budget}
    base, found = run(small, algorithm, budget, form), run(large, algorithm, budget, form)
    if base is None or found is None:
        return {**setting, "refused": True, "ok": True}
    least, (peak, report) = base[0], found
    bound = allowed_bytes(parse_bytes(budget))
    return {
        **setting,
        "small_bytes": least,
        "large_bytes": peak,
        "over_bytes": peak - least,
        "bound_bytes": bound,
        "rows_per_s": report["service_rate_per_s"],
        "cpu_seconds": report["cpu_seconds"],
        "ok": peak - least <= bound,
    }


def line(row: dict[str, object]) -> str:
    start = f"{row['algorithm']:<14}{row['master']:<9}{row['budget']:>7}"
    if "refused" in row:
        return f"{start}  refused: the operator needs more here"
    sizes = [float(str(row[name])) / 1e6 for name in ("small_bytes", "large_bytes", "over_bytes", "bound_bytes")]
    return (
        start
        + "".join(f"{size:>9.1f}" for size in sizes)
        + f"{row['rows_per_s']:>12,.0f}{row['cpu_seconds']:>8}{'' if row['ok'] else '  TOO MUCH'}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("algorithms", nargs="*", default=list(ALGORITHMS), help="operators, or auto")
    parser.add_argument("--rows", type=int, default=3_000_000, help="tuples of R (120 bytes) and of S (20 bytes)")
    parser.add_argument("--budgets", nargs="+", default=["16MB", "64MB"])
    parser.add_argument("--masters", nargs="+", choices=FORMS, default=list(FORMS))
    parser.add_argument("--folder", type=Path, help="where the data is written and kept (default: a temporary folder)")
    parser.add_argument("--json", action="store_true", help="one JSON object per line")
    args = parser.parse_args()
    all_ok = True
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or Path(temporary)
        small, large = data(folder, SMALL_ROWS), data(folder, args.rows)
        if not args.json:
            print(f"R and S of {args.rows:,} rows; MB of anonymous and shared memory")
            heads = ("operator", "master", "budget", "small", "large", "over", "bound", "rows/s", "CPU s")
            print("{:<14}{:<9}{:>7}{:>9}{:>9}{:>9}{:>9}{:>12}{:>8}".format(*heads))
        for algorithm in args.algorithms:
            for form in args.masters:
                for budget in args.budgets:
                    row = measure(large, small, algorithm, budget, form)
                    all_ok &= bool(row["ok"])
                    print(json.dumps(row) if args.json else line(row), flush=True)
    return 0 if all_ok else 1


if __name__ == "__main__":
    sys.exit(main())
