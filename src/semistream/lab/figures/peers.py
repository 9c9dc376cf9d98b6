"""How do today's tools fare with the same join, batch by batch? Rate and memory, beside ours.

Every contestant has a process of its own and reads R from disk in the form it likes best; the file system's cache is
warm for all. The peers take all cores and all memory they want; ours take one core and a tenth of R's bytes. All give
their rows out as Arrow batches, and nobody writes files. Every point names the settings behind it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

from semistream.lab.contest.contest import Task, compete
from semistream.lab.contest.contestants import CONTESTANTS, missing_library
from semistream.lab.figure import Axis, Figure, Point, Verdict
from semistream.lab.laboratory import Lab
from semistream.lab.measure.resident import allowed_bytes
from semistream.lab.measure.runs import Estimate
from semistream.lab.verdicts import Check, Curves, ahead, judge, times

BATCH, MEMORY = "peers-batch", "peers-memory"
#: of which peers can take a batch in a few seconds; SQLite's file is the largest part of the data
_MOST_ROWS = 10_000_000
#: batches, as parts of R: 10 k, 100 k and 500 k tuples of a million
_BATCH_SHARES = (0.01, 0.1, 0.5)
_MEMORY_SHARE = 0.1
OURS = ("sweepjoin", "ssbj, tuples wait", "cachejoin, tuples wait")
PEERS = tuple(name for name in CONTESTANTS if name not in OURS)
#: of a stream tuple and its output row
_ROW_BYTES = 152


def _task(lab: Lab, name: str) -> Task:
    source = lab.synthetic(min(lab.rows, _MOST_ROWS))
    return Task(
        contestant=name,
        path=str(lab.path(source, CONTESTANTS[name].form)),
        rows=source.rows,
        memory=lab.memory(source, _MEMORY_SHARE),
        threads=os.cpu_count() or 1,
        skew=source.skew,
        seed=lab.seed,
        batches=tuple(max(int(source.rows * share), 1) for share in _BATCH_SHARES),
    )


def contest(lab: Lab, task: Task) -> dict[str, Any]:
    """A contest, held or remembered. A path is no setting: the data may be somewhere else next time."""
    settings = {name: value for name, value in asdict(task).items() if name != "path"}

    def hold() -> dict[str, Any]:
        lab.say(f"{task.contestant}, R = {task.rows:,}")
        return compete(task)

    return lab.log.once({"run": "contest", **settings, "batches": list(task.batches)}, hold)


def _absent(lab: Lab, figure: str, name: str, library: str) -> Point:
    """A contestant that cannot take part, and why."""
    nothing = Estimate(math.nan, math.nan, math.nan, 0)
    return lab.point(figure, "wall", name, 0, nothing, note=f"{name} was left out: {library} is not installed")


def _library(name: str | None) -> str | None:
    return None if name is None else f"{name} {version(name)}"


def _run_batch(lab: Lab) -> Iterator[Point]:
    for name, contestant in CONTESTANTS.items():
        library = missing_library(name)
        if library is not None:
            yield _absent(lab, BATCH, name, library)
            continue
        task = _task(lab, name)
        result = contest(lab, task)
        for batch in task.batches:
            rates = [turn["tuples"] / turn["seconds"] for turn in result["turns"] if turn["batch"] == batch]
            yield lab.point(
                BATCH,
                "wall",
                name,
                batch,
                Estimate.of(rates),
                rows=task.rows,
                **contestant.described(task.memory, task.threads),
                library=_library(contestant.library),
                finishes_each_batch=contestant.finishes,
            )


def _run_memory(lab: Lab) -> Iterator[Point]:
    for name in CONTESTANTS:
        library = missing_library(name)
        if library is not None:
            yield _absent(lab, MEMORY, name, library)
            continue
        task = _task(lab, name)
        result = contest(lab, task)
        batch = task.batches[1]
        size = result["grown_bytes"][str(batch)] / 1e6
        yield lab.point(
            MEMORY,
            "wall",
            name,
            0,
            Estimate(size, size, size, 1),
            rows=task.rows,
            batch=batch,
            **CONTESTANTS[name].described(task.memory, task.threads),
            budget=task.memory,
            allowed=allowed_bytes(task.memory, _ROW_BYTES * batch),
            own_peak=result["peak_bytes"],
        )


def measured(points: Sequence[Point]) -> list[Point]:
    """Those with a value."""
    return [point for point in points if math.isfinite(point.y)]


def _judge_batch(points: Sequence[Point]) -> Verdict:
    def checks(curves: Curves) -> list[Check]:
        largest = max((x for curve in curves.series.values() for x in curve), default=0.0)
        found = [ahead(curves, "sweepjoin", peer, but=[largest]) for peer in PEERS if peer in curves.series]
        ratios = [curves.ratio("sweepjoin", peer).get(largest, math.inf) for peer in PEERS]
        least = min(ratios)
        text = f"at the largest batch sweepjoin has {times(least)} the best peer's rate"
        found.append(Check("at the largest batch sweepjoin has at least half the best peer's rate", least >= 0.5, text))
        return found

    return judge(measured(points), checks, "Scanning R costs the same for any batch: what a large batch pays once.")


def _judge_memory(points: Sequence[Point]) -> Verdict:
    def checks(curves: Curves) -> list[Check]:
        bound = max((float(point.settings["allowed"]) for point in measured(points)), default=0.0) / 1e6
        sizes = {name: curve[0.0] for name, curve in curves.series.items() if 0.0 in curve}
        found = [
            Check(f"{name} within {bound:.0f} MB", sizes[name] <= bound, f"{name} {sizes[name]:.0f} MB")
            for name in OURS
            if name in sizes
        ]
        hungry = [name for name in ("duckdb parquet", "duckdb table", "polars scan") if name in sizes]
        text = ", ".join(f"{name} {sizes[name]:.0f} MB" for name in hungry)
        found.append(
            Check("DuckDB and Polars take more than all of ours", bool(hungry) and _all_above(sizes, hungry), text)
        )
        return found

    return judge(
        measured(points), checks, "A peer that streams through R holds its batch and its threads' buffers only."
    )


def _all_above(sizes: dict[str, float], hungry: Sequence[str]) -> bool:
    most = max((sizes[name] for name in OURS if name in sizes), default=math.inf)
    return all(sizes[name] > most for name in hungry)


FIGURES = (
    Figure(
        id=BATCH,
        title="Joining batch by batch: ours and today's tools",
        x=Axis("batch", "tuples", log=True),
        y=Axis("rate", "tuples/s", log=True),
        claim=(
            "With a tenth of R as memory and one core, SWEEPJOIN, which finishes every batch at once, is ahead of all "
            "peers at batches of 1 and 10 % of R; at half of R, where scanning all of it pays, it has at least half "
            "the rate of the best peer."
        ),
        run=_run_batch,
        judge=_judge_batch,
    ),
    Figure(
        id=MEMORY,
        title="What they hold in memory meanwhile",
        x=Axis("contestant"),
        y=Axis("growth of resident memory at most", "MB"),
        claim=(
            "At batches of 10 % of R ours stay below 1.25 times their budget plus a batch with its output plus 64 MB; "
            "DuckDB and Polars, which have no limit, take more than any of ours."
        ),
        run=_run_memory,
        judge=_judge_memory,
        kind="bars",
    ),
)
