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
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from semistream import build_pages, open_join
from semistream.operators.registry import OPERATORS
from semistream.spec import parse_bytes
from semistream.workloads.relation import KEY, MASTER_SCHEMA, STREAM_SCHEMA, master_batches, stream_batches

SLACK_BYTES = 64_000_000
SAMPLE_SECONDS = 0.004
WARM_ROWS = 2_000


def bound_bytes(budget: str) -> int:
    return int(1.25 * parse_bytes(budget)) + SLACK_BYTES


def resident(pid: int) -> dict[str, int]:
    """Resident bytes by kind."""
    kinds = {"RssAnon": 0, "RssFile": 0, "RssShmem": 0}
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in kinds:
            kinds[name] = int(value.split()[0]) * 1024
    return kinds


def counted(kinds: dict[str, int], direct: bool) -> int:
    return kinds["RssAnon"] + kinds["RssShmem"] + (kinds["RssFile"] if direct else 0)


def store(folder: Path, rows: int) -> Path:
    path = folder / f"r{rows}"
    if not path.exists():
        reader = pa.RecordBatchReader.from_batches(MASTER_SCHEMA, master_batches(rows, seed=1))
        build_pages(reader, path, on=KEY)
    return path


def flow(join: object, batches: Iterator[pa.RecordBatch], until: float) -> int:
    """Push and drain until the input or the time is over; the output is built and dropped."""
    out = 0
    for batch in batches:
        for joined in join.push(batch):  # type: ignore[attr-defined]
            out += joined.num_rows
            if time.monotonic() > until:
                return out
        if time.monotonic() > until:
            break
    for joined in join.drain():  # type: ignore[attr-defined]
        out += joined.num_rows
        if time.monotonic() > until:
            break
    return out


def child(task: dict[str, object]) -> None:
    """Warm up (import, compile), say so, wait for the word, join, report, wait to be measured a last time."""
    algorithm, direct = str(task["algorithm"]), bool(task["direct"])
    rows, tuples = int(str(task["rows"])), int(str(task["tuples"]))
    arguments = {"on": KEY, "stream_schema": STREAM_SCHEMA, "direct": direct}
    with open_join(algorithm, master=task["warm"], memory="32MB", **arguments) as join:
        flow(join, stream_batches(20_000, WARM_ROWS, batch_rows=5_000), time.monotonic() + 60)
    print("ready", flush=True)
    sys.stdin.readline()
    started = time.monotonic()
    with open_join(algorithm, master=task["store"], memory=task["budget"], **arguments) as join:
        batches = stream_batches(tuples, rows, seed=2)
        out = flow(join, batches, started + float(str(task["seconds"])))
        report = {
            "rows_in": join.stats.tuples_in,
            "rows_out": out,
            "peak_bytes": join.memory.peak_bytes,
            "budget_bytes": join.memory.budget_bytes,
            "seconds": round(time.monotonic() - started, 2),
        }
        print(json.dumps(report), flush=True)
        sys.stdin.readline()


def measure(task: dict[str, object]) -> dict[str, object]:
    """Run one child and sample it."""
    command = [sys.executable, __file__, "--child", json.dumps(task)]
    direct = bool(task["direct"])
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        if process.stdout.readline().strip() != "ready":
            raise RuntimeError(f"{task['algorithm']} did not start")
        before = peak = counted(resident(process.pid), direct)
        process.stdin.write("go\n")
        process.stdin.flush()
        answer: list[str] = []
        while not answer:
            peak = max(peak, counted(resident(process.pid), direct))
            if _readable(process, SAMPLE_SECONDS):
                answer.append(process.stdout.readline())
        if not answer[0]:
            raise RuntimeError(f"{task['algorithm']} ended without a report")
        peak = max(peak, counted(resident(process.pid), direct))
        process.stdin.close()
    report = json.loads(answer[0])
    bound = bound_bytes(str(task["budget"]))
    own = report["peak_bytes"] <= report["budget_bytes"]
    return {
        "algorithm": task["algorithm"],
        "budget": task["budget"],
        "reads": "direct" if direct else "buffered",
        **report,
        "resident_bytes": peak - before,
        "bound_bytes": bound,
        "ok": own and peak - before <= bound,
    }


def _readable(process: subprocess.Popen[str], seconds: float) -> bool:
    return bool(select.select([process.stdout], [], [], seconds)[0])


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("algorithms", nargs="*", help="operators (default: all)")
    parser.add_argument("--rows", type=int, default=5_000_000, help="tuples of R, 120 bytes each")
    parser.add_argument("--tuples", type=int, default=5_000_000, help="stream tuples at most")
    parser.add_argument("--seconds", type=float, default=20.0, help="time for each run at most")
    parser.add_argument("--budgets", nargs="+", default=["16MB", "64MB", "256MB"])
    parser.add_argument("--reads", nargs="+", choices=["buffered", "direct"], default=["buffered", "direct"])
    parser.add_argument("--folder", type=Path, help="where R is written and kept (default: a temporary folder)")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(json.loads(args.child))
        return 0
    all_ok = True
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        paths = {"store": str(store(folder, args.rows)), "warm": str(store(folder, WARM_ROWS))}
        if not args.json:
            print(f"R = {args.rows:,} tuples of 120 bytes; MB")
            heads = ("operator", "reads", "budget", "own peak", "resident", "bound", "M tuples")
            print("{:<14}{:<10}{:>9}{:>10}{:>10}{:>9}{:>10}".format(*heads))
        for algorithm in args.algorithms or sorted(OPERATORS):
            for reads in args.reads:
                for budget in args.budgets:
                    task = {"algorithm": algorithm, "direct": reads == "direct", "budget": budget, **paths}
                    task |= {"rows": args.rows, "tuples": args.tuples, "seconds": args.seconds}
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
