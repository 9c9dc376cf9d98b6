"""One contestant in a process of its own, timed inside and weighed from outside.

What it holds is read from the kernel while it runs: anonymous and shared pages (RssAnon + RssShmem), less what was
there before R was opened. Pages mapped from files are not counted: the kernel takes them back when it wants to.

    this process                                  the child
    start with the task as JSON ───────────────>  imports, joins a few tuples
                                <── ready ──────
    first weighing; go          ───────────────>  opens R, warms up, joins batches in turns
    weighs all the while        <── report ─────  what it did
    last weighing; the end      ───────────────>
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import semistream
from semistream.errors import SemiStreamError
from semistream.experiments.contestants import CONTESTANTS, Contestant
from semistream.workloads.relation import SyntheticStream

_SAMPLE_SECONDS = 0.01
_LONGEST_SECONDS = 900.0
_LONG_BATCH_SECONDS = 5.0
_KEPT_SAMPLES = 240


@dataclass(frozen=True)
class Task:
    """What a contestant has to do; JSON values only."""

    contestant: str
    path: str
    rows: int
    memory: int
    threads: int
    skew: float = 1.0
    seed: int = 1
    #: sizes of batches, one behind the other
    batches: tuple[int, ...] = (100_000,)
    #: turns of each size, and how long one takes (at least a batch); no size gets much more time than `most_seconds`
    turns: int = 3
    turn_seconds: float = 0.2
    most_seconds: float = 1.2
    #: how long who learns may learn before
    warm_seconds: float = 1.0


# ------------------------------------------------------------------------------------------ the child


class _Performance:
    """A contestant and its stream, which it never reads twice."""

    def __init__(self, task: Task, contestant: Contestant) -> None:
        self.contestant = contestant
        self.stream = SyntheticStream(task.rows, task.skew, task.seed)
        self.position = 0
        self.rows_out = 0

    def batch(self, rows: int) -> float:
        """Join one batch; seconds without the making of the batch."""
        batch = self.stream.rows(self.position, self.position + rows)
        self.position += rows
        started = time.perf_counter()
        self.rows_out += self.contestant.join(batch).num_rows
        return time.perf_counter() - started

    def turn(self, rows: int, least_seconds: float) -> tuple[int, float]:
        """Tuples and seconds of one turn: whole batches, as many as fill the time."""
        tuples, spent = 0, 0.0
        while not tuples or spent < least_seconds:
            spent += self.batch(rows)
            tuples += rows
        return tuples, spent


def perform(task: Task) -> dict[str, Any]:
    """Open, warm up, take turns, finish; what came of it."""
    contestant = CONTESTANTS[task.contestant](Path(task.path), task.memory, task.threads)
    try:
        show = _Performance(task, contestant)
        turns, ended = [], {}
        if contestant.learns:
            show.turn(task.batches[len(task.batches) // 2], task.warm_seconds)
        for rows in task.batches:
            first = show.batch(rows)
            patient = first < _LONG_BATCH_SECONDS
            if not patient:
                # A contestant that takes so long learns nothing that would show in a second one.
                turns.append({"batch": rows, "tuples": rows, "seconds": first})
            until = time.perf_counter() + task.most_seconds
            for number in range(task.turns if patient else 0):
                if number >= 2 and time.perf_counter() > until:
                    break
                tuples, seconds = show.turn(rows, task.turn_seconds)
                turns.append({"batch": rows, "tuples": tuples, "seconds": seconds})
            ended[str(rows)] = time.monotonic()
        rows_out = show.rows_out + sum(part.num_rows for part in contestant.finish())
        return {
            "turns": turns,
            "ended": ended,
            "tuples_in": show.position,
            "rows_out": rows_out,
            "peak_bytes": contestant.peak_bytes,
        }
    finally:
        contestant.close()


def main() -> None:
    """The child: its task is on the command line, its answers go to standard output."""
    task = Task(**json.loads(sys.argv[1]))
    CONTESTANTS[task.contestant].rehearse()
    print("ready", flush=True)
    sys.stdin.readline()
    print(json.dumps(perform(task)), flush=True)
    sys.stdin.readline()


# --------------------------------------------------------------------------------------- this process


def compete(task: Task) -> dict[str, Any]:
    """Run a task in a process of its own: its report, and by how many bytes it had grown, over time and at most.

    `grown_bytes` has the most up to the last turn of each size of batches.
    """
    environment = {**child_environment(), "POLARS_MAX_THREADS": str(task.threads)}
    command = [sys.executable, "-m", "semistream.experiments.contest", json.dumps(asdict(task))]
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment
        ) as process,
    ):
        try:
            return _watch(task, process)
        except _Ended:
            errors.seek(0)
            raise SemiStreamError(f"{task.contestant} ended without a result: {errors.read()[-2000:]}") from None
        finally:
            process.kill()


def child_environment() -> dict[str, str]:
    """In which a child finds this package, installed or not."""
    root = str(Path(semistream.__file__).resolve().parent.parent)
    known = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([root, known] if known else [root])}


class _Ended(Exception):
    """The child is gone."""


def _watch(task: Task, process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdin is not None
    _answer(process)
    before = resident_bytes(process.pid)
    started = time.monotonic()
    samples = [(0.0, 0)]
    process.stdin.write("go\n")
    process.stdin.flush()
    assert process.stdout is not None
    while not select.select([process.stdout], [], [], _SAMPLE_SECONDS)[0]:
        now = time.monotonic() - started
        samples.append((now, resident_bytes(process.pid) - before))
        if now > _LONGEST_SECONDS:
            raise SemiStreamError(f"{task.contestant} took more than {_LONGEST_SECONDS:.0f} s; take a smaller scale")
    report = json.loads(_answer(process))
    samples.append((time.monotonic() - started, resident_bytes(process.pid) - before))
    if report["rows_out"] != report["tuples_in"]:
        # Keys of R are unique and complete: every tuple has one match.
        raise SemiStreamError(f"{task.contestant} joined {report['tuples_in']} tuples to {report['rows_out']} rows")
    # The clock is the system's, the same in both processes.
    ended = {batch: at - started for batch, at in report["ended"].items()}
    grown = {batch: max(size for now, size in samples if now <= at) for batch, at in ended.items()}
    return {**report, "ended": ended, "grown_bytes": grown, "samples": _thinned(samples)}


def _answer(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise _Ended
    return line


def resident_bytes(pid: int) -> int:
    """Anonymous and shared memory of a process."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except ProcessLookupError:
        raise _Ended from None
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(("RssAnon:", "RssShmem:")))


def _thinned(samples: list[tuple[float, int]]) -> list[tuple[float, int]]:
    """As many samples as a curve needs: the largest of each stretch."""
    stretch = -(-len(samples) // _KEPT_SAMPLES)
    return [max(samples[i : i + stretch], key=lambda sample: sample[1]) for i in range(0, len(samples), stretch)]


if __name__ == "__main__":
    main()
