"""One contestant in a process of its own, timed inside and weighed from outside (`measure/child.py`)."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from semistream.errors import SemiStreamError
from semistream.lab.contest.contestants import CONTESTANTS
from semistream.lab.measure.child import hand_over, ready, watch
from semistream.lab.measure.turns import Performance
from semistream.lab.workloads.relation import SyntheticStream
from semistream.lab.workloads.workload import Reading

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


def perform(task: Task) -> dict[str, Any]:
    """Open, warm up, take turns, finish; what came of it."""
    contestant = CONTESTANTS[task.contestant](Path(task.path), task.memory, task.threads)
    try:
        stream = Reading(SyntheticStream(task.rows, task.skew, task.seed))
        show = Performance(contestant.join, stream.batches(task.batches[len(task.batches) // 2]))
        turns, ended = [], {}
        if contestant.learns:
            show.turn(task.warm_seconds)
        for rows in task.batches:
            show.batches = stream.batches(rows)
            first = show.batch()
            patient = first < _LONG_BATCH_SECONDS
            if not patient:
                # A contestant that takes so long learns nothing that would show in a second one.
                turns.append({"batch": rows, "tuples": rows, "seconds": first})
            until = time.perf_counter() + task.most_seconds
            for number in range(task.turns if patient else 0):
                if number >= 2 and time.perf_counter() > until:
                    break
                tuples, seconds = show.turn(task.turn_seconds)
                turns.append({"batch": rows, "tuples": tuples, "seconds": seconds})
            ended[str(rows)] = time.monotonic()
        rows_out = show.rows_out + sum(part.num_rows for part in contestant.finish())
        return {
            "turns": turns,
            "ended": ended,
            "tuples_in": show.tuples_in,
            "rows_out": rows_out,
            "peak_bytes": contestant.peak_bytes,
        }
    finally:
        contestant.close()


def main() -> None:
    """The child: its task is on the command line, its answers go to standard output."""
    task = Task(**json.loads(sys.argv[1]))
    CONTESTANTS[task.contestant].rehearse()
    ready()
    hand_over(perform(task))


# --------------------------------------------------------------------------------------- this process


def compete(task: Task) -> dict[str, Any]:
    """Run a task in a process of its own: its report, and by how many bytes it had grown, over time and at most.

    `grown_bytes` has the most up to the last turn of each size of batches.
    """
    watched = watch(
        task.contestant,
        ["-m", "semistream.lab.contest.contest", json.dumps(asdict(task))],
        environment={"POLARS_MAX_THREADS": str(task.threads)},
    )
    report = watched.report
    if report["rows_out"] != report["tuples_in"]:
        # Keys of R are unique and complete: every tuple has one match.
        raise SemiStreamError(f"{task.contestant} joined {report['tuples_in']} tuples to {report['rows_out']} rows")
    ended = {batch: at - watched.started for batch, at in report["ended"].items()}
    grown = {batch: max(size for now, size in watched.samples if now <= at) for batch, at in ended.items()}
    return {**report, "ended": ended, "grown_bytes": grown, "samples": _thinned(watched.samples)}


def _thinned(samples: list[tuple[float, int]]) -> list[tuple[float, int]]:
    """As many samples as a curve needs: the largest of each stretch."""
    stretch = -(-len(samples) // _KEPT_SAMPLES)
    return [max(samples[i : i + stretch], key=lambda sample: sample[1]) for i in range(0, len(samples), stretch)]


if __name__ == "__main__":
    main()
