"""Is it right and small when R is large? R of 100 M tuples (12 GB) with 120 MB and with 1.2 GB of memory.

R is built as a page store in a process of its own, and joined in others, with reads past the page cache and every batch
finished at once. The joined rows are compared with those that the generator says there must be: their number, and a sum
over the hashes of all their values. This process weighs the others: what they grow by must stay within 1.25 × budget +
64 MB and the batches that come in and go out.

    python benchmarks/large.py --data DIR                     R = 100 M, sweepjoin; 24 GB of disk while R is built
    python benchmarks/large.py ssbj orderedjoin --rows 1e6 --memory 12MB --data DIR

DIR keeps R. The exit status is 1 where a join was not exact or took too much memory.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from rich.console import Console

from semistream.errors import SemiStreamError
from semistream.lab.contest.contestants import Ours, rehearse
from semistream.lab.forms import path_of
from semistream.lab.measure.child import hand_over, ready, watch, weigh
from semistream.lab.measure.resident import allowed_bytes
from semistream.lab.sources import Synthetic
from semistream.lab.workloads.checksum import checksum, expected_checksum
from semistream.lab.workloads.relation import SyntheticStream
from semistream.spec import parse_bytes

SEED = 1
EXPONENT = 1.0
console = Console(width=150)


@dataclass(frozen=True)
class Task:
    """What a process of its own joins; JSON values only."""

    algorithm: str
    store: str
    rows: int
    memory: int
    batch: int
    batches: int


def source(rows: int) -> Synthetic:
    return Synthetic(rows, EXPONENT, SEED)


def stream(rows: int) -> SyntheticStream:
    return SyntheticStream(rows, EXPONENT, SEED)


# ------------------------------------------------------------------------------------------- the children


def child_builds(rows: int, folder: Path) -> None:
    started = time.monotonic()
    path = path_of(source(rows), "pages", folder)
    print(json.dumps({"store": str(path), "seconds": time.monotonic() - started}))


def child_joins(task: Task) -> None:
    """Join when the word comes, report while everything is still held."""
    rehearse(task.algorithm)
    # The hash is a part of the check and not of the join: its memory is there before the first weighing.
    checksum(stream(task.rows).rows(0, task.batch))
    ready()
    joined = Ours(Path(task.store), task.memory, algorithm=task.algorithm, reads="direct", drain=True)
    batches = []
    rows, total = 0, 0
    for number in range(task.batches):
        batch = stream(task.rows).rows(number * task.batch, (number + 1) * task.batch)
        before = copy.copy(joined.operator.stats)
        seconds = 0.0
        for spent, output in timed(joined.join(batch)):
            seconds += spent
            rows += output.num_rows
            total += checksum(output)
        counted = joined.operator.stats - before
        batches.append({"seconds": seconds, "bytes_read": counted.bytes_read, "hit_rate": counted.hit_rate})
    memory = joined.operator.memory
    report = {
        "batches": batches,
        "rows_out": rows,
        "checksum": total % (1 << 64),
        "peak_bytes": memory.peak_bytes,
        "beside_bytes": batch.nbytes + memory.largest_piece_bytes,
    }
    hand_over(report)
    joined.close()


def timed(outputs: Iterator[pa.RecordBatch]) -> Iterator[tuple[float, pa.RecordBatch]]:
    """Each output with the seconds it took to come; the last seconds come with an empty one."""
    empty = None
    while True:
        started = time.perf_counter()
        output = next(outputs, None)
        spent = time.perf_counter() - started
        if output is None:
            if empty is not None:
                yield spent, empty
            return
        empty = output.slice(0, 0)
        yield spent, output


# ---------------------------------------------------------------------------------------------- the parent


def built(rows: int, folder: Path) -> dict[str, Any]:
    """R as a page store: where, in how many seconds, with how much memory in the whole process."""
    there = (folder / source(rows).store_name / "CURRENT").exists()
    done = weigh([__file__, "--build", str(rows), "--data", str(folder)])
    if done.status != 0:
        raise SemiStreamError(f"R of {rows:,} tuples was not built: {done.errors[-2000:]}")
    report = json.loads(done.out.splitlines()[-1])
    size = sum(file.stat().st_size for file in Path(report["store"]).glob("**/pages-*"))
    return {**report, "n_bytes": size, "process_bytes": done.most_bytes, "was_there": there}


def measure(task: Task, expected: int) -> dict[str, Any]:
    """Run one child, weigh it, and compare its rows with the expected ones."""
    watched = watch(task.algorithm, [__file__, "--child", json.dumps(asdict(task))], files=True)
    report, tuples = watched.report, task.batch * task.batches
    bound = allowed_bytes(task.memory, report["beside_bytes"])
    exact = report["rows_out"] == tuples and report["checksum"] == expected
    small = watched.most_bytes <= bound and report["peak_bytes"] <= task.memory
    return {
        **asdict(task),
        **report,
        "resident_bytes": watched.most_bytes,
        "bound_bytes": bound,
        "exact": exact,
        "within_memory": small,
    }


def spelt(row: dict[str, Any]) -> str:
    first, later = row["batches"][0], row["batches"][1:] or row["batches"]
    seconds = statistics.median(each["seconds"] for each in later)
    read = statistics.median(each["bytes_read"] for each in later)
    return (
        f"{row['algorithm']}, {row['memory'] / 1e6:,.0f} MB: {'exact' if row['exact'] else 'WRONG ROWS'}; first batch "
        f"{first['seconds']:.2f} s, {first['bytes_read'] / 1e9:.2f} GB; later {seconds:.2f} s "
        f"({row['batch'] / seconds / 1e6:.2f} M rows/s), {read / 1e9:.2f} GB, hit rate {later[-1]['hit_rate']:.1%}; "
        f"resident {row['resident_bytes'] / 1e6:,.0f} MB, {'within' if row['within_memory'] else 'ABOVE'} "
        f"{row['bound_bytes'] / 1e6:,.0f} MB"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("algorithms", nargs="*", default=["sweepjoin"], help="operators (default: sweepjoin)")
    parser.add_argument("--rows", type=float, default=100e6, help="tuples of R, 120 bytes each")
    parser.add_argument("--memory", type=parse_bytes, nargs="+", default=[120_000_000, 1_200_000_000])
    parser.add_argument("--batch", type=int, default=500_000, help="tuples per batch")
    parser.add_argument("--batches", type=int, default=8)
    parser.add_argument("--data", type=Path, help="folder that keeps R (default: a temporary one)")
    parser.add_argument("--save", type=Path, help="write the results there, as JSON")
    parser.add_argument("--build", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        child_joins(Task(**json.loads(given.child)))
        return 0
    if given.build:
        child_builds(given.build, given.data)
        return 0
    rows = int(given.rows)
    with contextlib.ExitStack() as stack:
        if given.data is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="semistream-large-")))
        else:
            folder = given.data
            folder.mkdir(parents=True, exist_ok=True)
        found = built(rows, folder)
        how = f"built in {found['seconds']:.1f} s by a process of {found['process_bytes'] / 1e6:,.0f} MB"
        console.print(f"R = {rows:,}, {found['n_bytes'] / 1e9:.2f} GB, {'was there' if found['was_there'] else how}")
        expected = expected_checksum(source(rows).master, stream(rows), given.batch * given.batches)
        joined = []
        for algorithm in given.algorithms:
            for memory in given.memory:
                task = Task(algorithm, found["store"], rows, memory, given.batch, given.batches)
                joined.append(measure(task, expected))
                console.print(spelt(joined[-1]))
    if given.save:
        given.save.parent.mkdir(parents=True, exist_ok=True)
        for place in (found, *joined):
            del place["store"]
        given.save.write_text(json.dumps({"rows": rows, "build": found, "joins": joined}, indent=1) + "\n")
    return 0 if all(row["exact"] and row["within_memory"] for row in joined) else 1


if __name__ == "__main__":
    sys.exit(main())
