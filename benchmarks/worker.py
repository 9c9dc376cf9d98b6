"""What a Spark worker process does with its tasks, without Spark: where their time goes.

Tasks are given to the functions that Spark's Python workers run (`semistream.spark.worker.run`), in one process or in
several that share a cache as those of an executor do. Printed are the seconds of tasks at rest, of those that build a
generation of the shared cache, and of those that meet a new one; "churn" is what the last two take beyond a task at
rest, as a part of all time.

    python benchmarks/worker.py                            R = 10 M, memory 10 % of R, tasks of 250 k, two processes
    python benchmarks/worker.py --rows 1e6 --processes 1   another size, in one process
    python benchmarks/worker.py --drift 20                 after 20 tasks other keys are hot
    python benchmarks/worker.py --each                     a line for every task

DIR, given as `--data`, keeps the generated data for the next time.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path

import pyarrow as pa
from rich.console import Console
from rich.table import Table

from semistream.lab.forms import path_of
from semistream.lab.sources import Synthetic
from semistream.lab.workloads.relation import KEY, MASTER_ROW_BYTES, SyntheticStream
from semistream.master.open import open_master
from semistream.spark import worker
from semistream.spark.dimension import Dimension
from semistream.spark.metrics import TaskMetrics
from semistream.spec import JoinRequest, JoinSpec

SEED, EXPONENT = 1, 1.0
#: rows per batch of a task, as Spark hands them over
ARROW_ROWS = 10_000
TASK_ROWS = 250_000
#: a phase "build" beyond this is a build
BUILD_SECONDS = 0.005
Task = dict[str, float]
console = Console(width=150)


def dimension_of(store: Path, rows: int, given: argparse.Namespace) -> Dimension:
    spec = JoinSpec.make(KEY, given.how)
    request = JoinRequest(spec, int(given.memory or rows * MASTER_ROW_BYTES // 10), given.algorithm)
    schema = SyntheticStream(rows, EXPONENT, SEED + 1).schema
    with closing(open_master(store, (KEY,))) as master:
        return Dimension(
            name="r",
            master=str(store),
            request=request,
            tasks=given.slots,
            versioned=True,
            version=master.version,
            lineage=master.lineage,
            stream=schema.serialize().to_pybytes(),
        )


def stream_of(rows: int, drifted: bool) -> SyntheticStream:
    return SyntheticStream(rows, EXPONENT, SEED + 1, hot_seed=SEED + 99 if drifted else None)


def batches_of(table: pa.Table) -> Iterator[pa.RecordBatch]:
    return iter(table.combine_chunks().to_batches(max_chunksize=ARROW_ROWS))


def one_task(dimension: Dimension, batches: Iterable[pa.RecordBatch]) -> Task:
    """The seconds of a task and of its phases, and what it says of itself."""
    found: TaskMetrics | None = None
    start, used = time.perf_counter(), time.process_time()
    for item in worker.run((dimension,), iter(batches)):
        if isinstance(item, TaskMetrics):
            found = item
    seconds = time.perf_counter() - start
    assert found is not None
    phases = {f"seconds_{name}": spent for name, spent in found.seconds.items()}
    return {"seconds": seconds, "cpu": time.process_time() - used, "rows": found.rows_in, **phases, **found.values}


def child(given: argparse.Namespace) -> None:
    """One worker process: every so many-th task, when it is told to."""
    rows = int(given.rows)
    dimension = dimension_of(path_of(Synthetic(rows, EXPONENT, SEED), "pages", given.data), rows, given)
    size = int(given.batch)
    for number in range(given.child, given.tasks, given.processes):
        drifted = given.drift is not None and number >= given.drift
        table = stream_of(rows, drifted).table(number * size, (number + 1) * size)
        print("ready", flush=True)
        if not sys.stdin.readline():
            return
        print(json.dumps({"task": number, **one_task(dimension, batches_of(table))}), flush=True)


def run(given: argparse.Namespace) -> list[Task]:
    """All tasks, as many at once as there are processes, each with a pause before it as on Spark."""
    tasks: list[Task] = []
    with tempfile.TemporaryDirectory(prefix="semistream-worker-", dir=given.data) as local:
        environment = {**os.environ, "SPARK_LOCAL_DIRS": local}
        command = [sys.executable, __file__, *sys.argv[1:], "--data", str(given.data)]
        children = [
            subprocess.Popen(
                [*command, "--child", str(number)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=environment,
            )
            for number in range(given.processes)
        ]
        while len(tasks) < given.tasks:
            working = []
            for process in children:
                assert process.stdout is not None
                if process.stdout.readline() == "ready\n":
                    working.append(process)
            if not working:
                raise SystemExit("a worker process has ended")
            time.sleep(given.pause)
            for process in working:
                assert process.stdin is not None
                process.stdin.write("go\n")
                process.stdin.flush()
            for process in working:
                assert process.stdout is not None
                tasks.append({**json.loads(process.stdout.readline()), "process": children.index(process)})
                if given.each:
                    print(line_of(tasks[-1]), flush=True)
        for process in children:
            process.communicate()
    return tasks


def line_of(task: Task) -> str:
    rows = max(task["rows"], 1)
    spent = "  ".join(f"{name} {1e3 * task.get(f'seconds_{name}', 0.0):6.1f}" for name in ("input", "join", "build"))
    shared, hits = task["shared_hits"] / rows, task["hits"] / rows
    return (
        f"task {task['task']:3.0f} of process {task['process']:.0f}: {1e3 * task['seconds']:6.1f} ms  "
        f"CPU {1e3 * task['cpu']:6.1f}  {spent}  "
        f"generation {task['generation']:3.0f}  hits {hits:.3f}, shared {shared:.3f}"
    )


def show(tasks: list[Task], given: argparse.Namespace) -> None:
    """Medians of the three kinds of tasks after the first ones, and the share of churn."""
    kinds: dict[str, list[Task]] = {"at rest": [], "with a build": [], "after a change": []}
    before: dict[float, float] = {}
    for task in tasks:
        changed = task["generation"] != before.get(task["process"], 0.0)
        before[task["process"]] = task["generation"]
        if task["task"] < given.warm:
            continue
        built = task.get("seconds_build", 0.0) > BUILD_SECONDS
        kinds["with a build" if built else "after a change" if changed else "at rest"].append(task)
    measured = [task for each in kinds.values() for task in each]
    total = sum(task["seconds"] for task in measured)
    title = (
        f"R = {int(given.rows):,}, tasks of {int(given.batch):,}, {given.processes} processes, from task {given.warm}"
    )
    table = Table(title=title)
    for column in ("tasks", "number", "ms, median", "CPU", "input", "join", "build", "hit rate", "shared", "time"):
        table.add_column(column, justify="right")
    for kind, found in {**kinds, "all": measured}.items():
        if found:
            rates = [sum(task[name] for task in found) / sum(task["rows"] for task in found) for name in _HITS]
            share = sum(task["seconds"] for task in found) / total
            figures = [f"{1e3 * _median(found, name):.1f}" for name in _TIMES]
            table.add_row(kind, str(len(found)), *figures, *(f"{rate:.3f}" for rate in rates), f"{share:.2f}")
    console.print(table)
    rest = _median(kinds["at rest"], "seconds") if kinds["at rest"] else 0.0
    disturbed = [*kinds["with a build"], *kinds["after a change"]]
    churn = sum(max(task["seconds"] - rest, 0.0) for task in disturbed) / total
    console.print(f"churn {churn:.2f} of all time; {sum(task['cpu'] for task in measured):.2f} s CPU, {total:.2f} s")


_TIMES = ("seconds", "cpu", "seconds_input", "seconds_join", "seconds_build")
_HITS = ("hits", "shared_hits")


def _median(tasks: list[Task], name: str) -> float:
    return statistics.median(task.get(name, 0.0) for task in tasks)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=float, default=10e6)
    parser.add_argument("--batch", type=float, default=TASK_ROWS, help="rows per task")
    parser.add_argument("--memory", type=float, help="budget of all processes (default: 10 %% of R)")
    parser.add_argument("--tasks", type=int, default=60)
    parser.add_argument("--warm", type=int, default=20, help="tasks that are not counted")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--slots", type=int, default=2, help="tasks at once for which the budget is divided")
    parser.add_argument("--pause", type=float, default=0.2, help="seconds between tasks")
    parser.add_argument("--drift", type=int, help="from this task on other keys are hot")
    parser.add_argument("--algorithm", default="sweepjoin")
    parser.add_argument("--how", default="left")
    parser.add_argument("--each", action="store_true")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child is not None:
        child(given)
        return
    kept = given.data
    given.data = kept or Path(tempfile.mkdtemp(prefix="semistream-bench-"))
    given.data.mkdir(parents=True, exist_ok=True)
    try:
        path_of(Synthetic(int(given.rows), EXPONENT, SEED), "pages", given.data)
        show(run(given), given)
    finally:
        if kept is None:
            shutil.rmtree(given.data, ignore_errors=True)


if __name__ == "__main__":
    main()
