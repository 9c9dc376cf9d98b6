"""Is the budget the truth? Memory of a join, seen from outside the process.

A child process opens a join over R on disk and streams through it; this process samples the child's resident
memory in /proc. What counts is the peak minus what was there before the join was opened:

    buffered reads   anonymous and shared pages (mapped pages of R are the kernel's to reclaim)
    O_DIRECT         all resident pages, since nothing of R is mapped

and it must stay below 1.25 × budget + 64 MB. "Own peak" is what the operator says of itself (`peak_bytes`).

    python benchmarks/memory.py                        every operator, R = 5 M × 120 bytes, 16, 64 and 256 MB
    python benchmarks/memory.py ssbj sweepjoin --rows 500000 --budgets 16MB --reads direct
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from semistream import open_join
from semistream.algorithms.registry import ALGORITHMS
from semistream.engine.join import SemiStreamJoin
from semistream.lab.contest.contestants import rehearse
from semistream.lab.forms import path_of
from semistream.lab.measure.child import hand_over, ready, watch
from semistream.lab.measure.resident import allowed_bytes
from semistream.lab.sources import Synthetic
from semistream.lab.workloads.relation import KEY, STREAM_SCHEMA, stream_batches
from semistream.spec import parse_bytes


def flow(join: SemiStreamJoin, batches: Iterator[pa.RecordBatch], until: float) -> int:
    """Push and drain until the input or the time is over; the output is built and dropped."""
    out = 0
    for joined in join.run(batches):
        out += joined.num_rows
        if time.monotonic() > until:
            break
    return out


def child(task: dict[str, object]) -> None:
    """Warm up (import, compile), join when the word comes, report while everything is still held."""
    algorithm, reads = str(task["algorithm"]), "direct" if task["direct"] else "mapped"
    rows, tuples = int(str(task["rows"])), int(str(task["tuples"]))
    rehearse(algorithm)
    ready()
    started = time.monotonic()
    with open_join(
        algorithm,
        master=task["store"],
        memory=task["budget"],
        on=KEY,
        how="inner",
        stream_schema=STREAM_SCHEMA,
        reads=reads,
    ) as join:
        out = flow(join, stream_batches(tuples, rows, seed=2), started + float(str(task["seconds"])))
        report = {
            "rows_in": join.stats.tuples_in,
            "rows_out": out,
            "peak_bytes": join.memory.peak_bytes,
            "budget_bytes": join.memory.budget_bytes,
            "seconds": round(time.monotonic() - started, 2),
        }
        hand_over(report)


def measure(task: dict[str, object]) -> dict[str, object]:
    """Run one child and weigh it."""
    direct = bool(task["direct"])
    watched = watch(str(task["algorithm"]), [__file__, "--child", json.dumps(task)], files=direct)
    report, grown = watched.report, watched.most_bytes
    bound = allowed_bytes(parse_bytes(str(task["budget"])))
    return {
        "algorithm": task["algorithm"],
        "budget": task["budget"],
        "reads": "direct" if direct else "buffered",
        **report,
        "resident_bytes": grown,
        "bound_bytes": bound,
        "ok": report["peak_bytes"] <= report["budget_bytes"] and grown <= bound,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("algorithms", nargs="*", help="operators (default: all)")
    parser.add_argument("--rows", type=int, default=5_000_000, help="tuples of R, 120 bytes each")
    parser.add_argument("--tuples", type=int, default=5_000_000, help="stream tuples at most")
    parser.add_argument("--seconds", type=float, default=20.0, help="time for each run at most")
    parser.add_argument("--budgets", nargs="+", default=["16MB", "64MB", "256MB"])
    parser.add_argument("--reads", nargs="+", choices=["buffered", "direct"], default=["buffered", "direct"])
    parser.add_argument("--folder", type=Path, help="where R is written and kept (default: a temporary folder)")
    parser.add_argument("--json", action="store_true", help="one JSON object per line")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(json.loads(args.child))
        return 0
    all_ok = True
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        store = path_of(Synthetic(args.rows), "pages", folder)
        if not args.json:
            print(f"R = {args.rows:,} tuples of 120 bytes; MB")
            heads = ("operator", "reads", "budget", "own peak", "resident", "bound", "M tuples")
            print("{:<14}{:<10}{:>9}{:>10}{:>10}{:>9}{:>10}".format(*heads))
        for algorithm in args.algorithms or sorted(ALGORITHMS):
            for reads in args.reads:
                for budget in args.budgets:
                    task = {"algorithm": algorithm, "direct": reads == "direct", "budget": budget}
                    task |= {"store": str(store), "rows": args.rows, "tuples": args.tuples, "seconds": args.seconds}
                    row = measure(task)
                    all_ok &= bool(row["ok"])
                    print(json.dumps(row) if args.json else line(row), flush=True)
    return 0 if all_ok else 1


def line(row: dict[str, object]) -> str:
    sizes = [float(str(row[name])) / 1e6 for name in ("peak_bytes", "resident_bytes", "bound_bytes", "rows_in")]
    return (
        f"{row['algorithm']:<14}{row['reads']:<10}{row['budget']:>9}{sizes[0]:>10.1f}{sizes[1]:>10.1f}"
        f"{sizes[2]:>9.1f}{sizes[3]:>10.2f}{'' if row['ok'] else '  TOO MUCH'}"
    )


if __name__ == "__main__":
    sys.exit(main())
