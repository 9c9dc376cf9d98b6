"""What it costs to change R, beside building it anew; and what a join pays for runs of changes that are not compacted.

    python benchmarks/refresh.py --data DIR                       R = 10 M tuples of 120 bytes, 0.1 % changed
    python benchmarks/refresh.py --data DIR --store STORE         with a store that exists; its files are linked
    python benchmarks/refresh.py --rows 1000000 --operators sweepjoin,ssbj
    python benchmarks/refresh.py --part worker                    what the tasks of a Spark worker notice of refreshes

The keys that change are drawn at random, so their pages are as far apart as can be. Changes come as states and as a
change feed, to R in the page cache, where a query that runs has it; once more with R on disk only. The joins run in
turns, in one process, on a store with eight runs and on the same one compacted: the figure is the median of the ratios
of neighbouring turns. `against.py` tells what a store without runs costs.

The part "worker" gives tasks to the functions that Spark's Python workers run, in this process, and changes R before
every fifth of them. Its figures are the hit rate of the first task after a change, as a part of the rate of those
before it, and the seconds of the slowest task, as a multiple of the median.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import worker as tasks

from semistream import build_pages, compact_pages, open_join, refresh_pages
from semistream.lab.workloads.relation import MASTER_ROW_BYTES, SyntheticMaster, SyntheticStream
from semistream.master.format import CURRENT, version_name

SEED, EXPONENT = 1, 1.0
RUNS = 8
_BATCH = 200_000
#: tasks of a worker before R changes for the first time, and from one change to the next
_WARM, _PER_CHANGE = 40, 5


def linked(store: Path, path: Path) -> None:
    """A store with the same files under other names; only the small ones that are changed in place are copied."""
    for folder in store.glob("v*"):
        (path / folder.name).mkdir(parents=True)
        for file in folder.iterdir():
            (shutil.copy if file.name == "manifest.json" else os.link)(file, path / folder.name / file.name)
    shutil.copy(store / CURRENT, path / CURRENT)


def states(rows: int, count: int, number: int) -> pa.Table:
    """New rows of `count` keys, others for each number."""
    rng = np.random.default_rng(number)
    keys = np.sort(rng.choice(rows, count, replace=False))
    columns = {name: rng.integers(0, 1 << 40, count) for name in SyntheticMaster(rows, SEED).schema.names}
    return pa.table({**columns, "k": keys})


def feed(before: pa.Table, after: pa.Table) -> pa.Table:
    """The same as a change feed; `before` has the rows that are replaced."""
    kinds = ["update_preimage"] * before.num_rows + ["update_postimage"] * after.num_rows
    both = pa.concat_tables([before.select(after.schema.names), after])
    return both.append_column("_change_type", pa.array(kinds)).append_column(
        "_commit_version", pa.array(np.ones(both.num_rows, dtype=np.int64))
    )


def written(path: Path, version: int) -> int:
    """Bytes of a version that no other one has."""
    folder = path / version_name(version)
    return sum(file.stat().st_size for file in folder.iterdir() if file.stat().st_nlink == 1)


def in_page_cache(path: Path, wanted: bool) -> None:
    """Have the pages of a store in the page cache, or out of it."""
    for file in path.glob("v*/pages-*"):
        with file.open("rb", buffering=0) as pages:
            if wanted:
                buffer = bytearray(1 << 22)
                while pages.readinto(buffer):
                    pass
            else:
                os.posix_fadvise(pages.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def timed_refresh(path: Path, changes: pa.Table) -> dict[str, Any]:
    started = time.perf_counter()
    master = refresh_pages(path, changes, compact="never")
    seconds = time.perf_counter() - started
    master.close()
    return {"seconds": seconds, "bytes": written(path, master.version)}


def turns(operators: list[str], stores: dict[str, Path], rows: int, count: int) -> Iterator[dict[str, Any]]:
    """How fast the joins are with the first store, as a multiple of the second; median and quartiles of pairs."""
    stream = SyntheticStream(rows, EXPONENT, SEED)
    batches = list(stream.batches(0, 20 * _BATCH, _BATCH))
    for operator in operators:
        opened = {
            name: open_join(operator, master=path, on="k", how="inner", memory=rows * MASTER_ROW_BYTES // 10)
            for name, path in stores.items()
        }
        seconds: dict[str, list[float]] = {name: [] for name in stores}
        for number in range(count + 6):
            for name in list(stores)[:: 1 if number % 2 else -1]:
                started = time.perf_counter()
                for _ in opened[name].push(batches[number % len(batches)]):
                    pass
                for _ in opened[name].drain() if operator not in _SCANS else ():
                    pass
                seconds[name].append(time.perf_counter() - started)
        one, two = (np.array(seconds[name][6:]) for name in stores)
        low, middle, high = statistics.quantiles((two / one).tolist(), n=4)
        yield {"operator": operator, "rate": _BATCH / float(np.median(one)), "ratio": middle, "quartiles": [low, high]}
        for join in opened.values():
            join.close()


#: a drain of these goes through all of R
_SCANS = ("meshjoin", "rmeshjoin", "ssj", "ssbj")


def driven(path: Path, rows: int, count: int, given: argparse.Namespace) -> dict[str, Any]:
    """What tasks notice of R's changes: medians, worst cases, and every task by itself."""
    how = argparse.Namespace(how="left", memory=None, algorithm="sweepjoin", slots=1)
    dimension = dataclasses.replace(tasks.dimension_of(path, rows, how), version=None)
    stream = tasks.stream_of(rows, drifted=False)
    found: list[dict[str, Any]] = []
    size, turns = tasks.TASK_ROWS, _WARM + _PER_CHANGE * given.changes
    for number in range(turns):
        changed = number >= _WARM and (number - _WARM) % _PER_CHANGE == 0
        if changed:
            refresh_pages(path, states(rows, count, 100 + number), compact="never").close()
        task = tasks.one_task(dimension, tasks.batches_of(stream.table(number * size, (number + 1) * size)))
        hits = task["hits"] / task["rows"]
        found.append({"changed": changed, "seconds": task["seconds"], "hits": hits, "generation": task["generation"]})
        time.sleep(given.pause)
    seconds = [task["seconds"] for task in found[_WARM:]]
    kept = [
        task["hits"] / statistics.mean(before["hits"] for before in found[at - _PER_CHANGE + 1 : at])
        for at, task in enumerate(found)
        if task["changed"]
    ]
    after = [task["seconds"] for task in found if task["changed"]]
    return {
        "changes": given.changes,
        "hits": statistics.median(task["hits"] for task in found[_WARM:]),
        "hits_kept": {"median": statistics.median(kept), "least": min(kept)},
        "seconds": {"median": statistics.median(seconds), "after_change": statistics.median(after)},
        "slowest": max(seconds) / statistics.median(seconds),
        "slowest_after_change": max(after) / statistics.median(seconds),
        "tasks": found,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000, help="tuples of R")
    parser.add_argument("--changed", type=float, default=0.001, help="the part of them that changes in a refresh")
    parser.add_argument("--data", type=Path, help="where stores are made and removed again (default: the usual one)")
    parser.add_argument("--store", type=Path, help="a page store of R by key, as the laboratory makes it")
    parser.add_argument("--operators", default="sweepjoin,cachejoin,inlj", help="joins to run (default: %(default)s)")
    parser.add_argument("--turns", type=int, default=30)
    parser.add_argument("--part", choices=["store", "worker"], default="store", help="what is measured (store)")
    parser.add_argument("--changes", type=int, default=RUNS, help="of the part worker: how often R changes")
    parser.add_argument("--pause", type=float, default=0.2, help="of the part worker: seconds between tasks")
    parser.add_argument("--save", type=Path, help="write the results there, as JSON")
    parser.add_argument("--no-build", action="store_true", help="do not time a full build")
    given = parser.parse_args()
    count = int(given.rows * given.changed)
    result: dict[str, Any] = {"rows": given.rows, "changed": count, "changed_bytes": count * MASTER_ROW_BYTES}
    with tempfile.TemporaryDirectory(prefix="refresh-", dir=given.data) as folder:
        path = Path(folder) / "r"
        if given.store is not None:
            linked(given.store, path)
        if given.store is None or not given.no_build:
            built = path if given.store is None else Path(folder) / "built"
            started = time.perf_counter()
            build_pages(SyntheticMaster(given.rows, SEED).reader(), built, on="k").close()
            result["build"] = {"seconds": time.perf_counter() - started}
            if built != path:
                shutil.rmtree(built)
        if given.part == "worker":
            os.environ["SPARK_LOCAL_DIRS"] = str(Path(folder) / "local")
            result["worker"] = driven(path, given.rows, count, given)
            tasks.worker.WORKSHOP.clear()
            return _report(result, given.save)
        # Once for the kernels to be compiled or loaded, with keys that do not matter.
        refresh_pages(path, states(given.rows, 1, 0), compact="never").close()
        in_page_cache(path, wanted=False)
        result["cold"] = timed_refresh(path, states(given.rows, count, 2))
        before = states(given.rows, count, 1)
        in_page_cache(path, wanted=True)
        result["states"] = timed_refresh(path, before)
        after = before.set_column(1, "m01", pa.array(np.arange(count)))
        result["feed"] = timed_refresh(path, feed(before, after))
        print(json.dumps(result, indent=1), flush=True)
        for number in range(4, RUNS):
            result["last"] = timed_refresh(path, states(given.rows, count, number))
        other = Path(folder) / "compacted"
        linked(path, other)
        started = time.perf_counter()
        compact_pages(other, keep_versions=0).close()
        result["compact"] = {"seconds": time.perf_counter() - started}
        result["joins"] = []
        for join in turns(
            list(filter(None, given.operators.split(","))), {"runs": path, "compacted": other}, given.rows, given.turns
        ):
            result["joins"].append(join)
            print(json.dumps(join), flush=True)
    _report(result, given.save)


def _report(result: dict[str, Any], save: Path | None) -> None:
    text = json.dumps(result, indent=1)
    print(text)
    if save is not None:
        save.write_text(text + "\n")


if __name__ == "__main__":
    main()
