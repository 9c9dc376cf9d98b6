"""What does `enrich` gain over Spark's own stream-static join?"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from semistream.lab.contest.spark_contest import (
    CACHED,
    HINTED,
    HINTS,
    HOWS,
    NATIVE,
    OURS,
    Outcome,
    SparkTask,
    compete,
    spark_is_there,
)
from semistream.lab.contest.spark_runs import in_words
from semistream.lab.figure import Axis, Figure, Point, Verdict
from semistream.lab.figures.peers import measured
from semistream.lab.laboratory import Lab
from semistream.lab.measure.runs import Estimate
from semistream.lab.verdicts import FACTOR_REACHED, Check, Curves, judge, times

FIGURE = "peers-spark"
#: Spark's own join takes seconds per batch already there
_MOST_ROWS = 500_000
_BATCH_SHARE = 0.1
_LEAST_MEMORY = 16_000_000


def _result(lab: Lab, task: SparkTask) -> dict[str, Any]:
    settings = {name: value for name, value in asdict(task).items() if name not in ("parquet", "pages")}

    def hold() -> dict[str, Any]:
        lab.say(f"Spark, R = {task.rows:,}")
        return compete(task)

    return lab.log.once({"run": "spark contest", **settings}, hold)


def _run(lab: Lab) -> Iterator[Point]:
    if not spark_is_there():
        nothing = Estimate(math.nan, math.nan, math.nan, 0)
        yield lab.point(FIGURE, "wall", OURS, 0, nothing, note="Spark was left out: pyspark is not installed")
        return
    source = lab.synthetic(min(lab.rows, _MOST_ROWS))
    task = SparkTask(
        parquet=str(lab.path(source, "parquet").resolve()),
        pages=str(lab.path(source, "pages").resolve()),
        rows=source.rows,
        memory=max(lab.memory(source, 0.1), _LEAST_MEMORY),
        batch=max(int(source.rows * _BATCH_SHARE), 2),
        seed=lab.seed,
    )
    result = _result(lab, task)
    for x, how in enumerate(HOWS):
        outcomes = result[how]
        common: dict[str, Any] = {"label": f"{how} join", "rows": task.rows, "batch": task.batch}
        for name in (OURS, NATIVE, CACHED):
            yield _point(lab, task, name, x, outcomes[name], **common)
        possible = [hint for hint in HINTS if outcomes[hint]["seconds"]]
        if possible:
            best = min(possible, key=lambda hint: statistics.median(outcomes[hint]["seconds"]))
            failed = [hint for hint in HINTS if hint not in possible]
            if failed:
                memory = f"{task.driver_memory} of heap"
                common["note"] = f"With the hint {', '.join(failed)} the {how} join failed on Spark ({memory})"
            yield _point(lab, task, HINTED, x, outcomes[best], **common)


def _point(lab: Lab, task: SparkTask, name: str, x: int, outcome: Outcome, **common: Any) -> Point:
    rate = Estimate.of([task.batch / seconds for seconds in outcome["seconds"]])
    return lab.point(FIGURE, "wall", name, x, rate, settings=in_words(outcome["settings"]), **common)


#: what we expect: this many times the rate of the other, for each kind of join
EXPECTED = {(NATIVE, "inner"): 2.0, (NATIVE, "left"): 5.0, (HINTED, "inner"): 1.5, (HINTED, "left"): 1.5}


def _judge(points: Sequence[Point]) -> Verdict:
    def checks(curves: Curves) -> list[Check]:
        found = []
        for (other, how), wanted in EXPECTED.items():
            ratio = curves.ratio(OURS, other).get(float(HOWS.index(how)), 0.0)
            text = f"{times(ratio)} {other} ({how})"
            found.append(Check(f"{wanted:g} times {other} ({how})", ratio >= FACTOR_REACHED * wanted, text))
        return found

    return judge(
        measured(points),
        checks,
        "At this size a micro-batch is mostly Spark's own planning and commit, which all of them pay; Spark's joins "
        "grow with R, `enrich` hardly does.",
    )


FIGURES = (
    Figure(
        id=FIGURE,
        title="On Spark: enrich beside the native stream-static join",
        x=Axis("join"),
        y=Axis("rate of a micro-batch", "tuples/s"),
        claim=(
            "With batches of 10 % of R, `enrich` (SWEEPJOIN, a tenth of R as memory) has 2 times the rate of Spark's "
            "inner join as Spark plans it and 5 times that of the left join, and 1.5 times that of the best hint. "
            "Spark has a shuffle partition per core and 6 GB of heap; beside it, R held in Spark's memory."
        ),
        run=_run,
        judge=_judge,
        kind="bars",
    ),
)
