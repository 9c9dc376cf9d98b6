"""Is the budget the truth? Memory of a join over time, seen from outside its process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from semistream.lab.contest.contest import Task
from semistream.lab.contest.contestants import CONTESTANTS
from semistream.lab.figure import Axis, Figure, Point, Verdict
from semistream.lab.figures.peers import contest
from semistream.lab.laboratory import Lab
from semistream.lab.measure.resident import allowed_bytes
from semistream.lab.measure.runs import Estimate
from semistream.lab.verdicts import Check, Curves, judge

FIGURE = "memory-over-time"
BUDGET = "budget"
_MEMORY_SHARE, _BATCH_SHARE = 0.5, 0.02
_MOST_ROWS = 10_000_000
NAMES = ("sweepjoin", "ssbj, tuples wait", "cachejoin, tuples wait")
#: what a steady join may still grow by in the second half of its time
_STEADY_MB = 10.0


def _run(lab: Lab) -> Iterator[Point]:
    source = lab.synthetic(min(lab.rows, _MOST_ROWS))
    memory = lab.memory(source, _MEMORY_SHARE)
    longest = 0.0
    for name in NAMES:
        task = Task(
            contestant=name,
            path=str(lab.path(source, CONTESTANTS[name].form)),
            rows=source.rows,
            memory=memory,
            threads=1,
            seed=lab.seed,
            batches=(max(int(source.rows * _BATCH_SHARE), 1),),
            turns=6,
            turn_seconds=0.5,
            most_seconds=3.0,
        )
        result = contest(lab, task)
        for seconds, size in result["samples"]:
            megabytes = Estimate(size / 1e6, size / 1e6, size / 1e6, 1)
            yield lab.point(FIGURE, "wall", name, seconds, megabytes, budget=memory, rows=source.rows)
        longest = max(longest, result["samples"][-1][0])
    for seconds in (0.0, longest):
        line = Estimate(memory / 1e6, memory / 1e6, memory / 1e6, 0)
        yield lab.point(FIGURE, "wall", BUDGET, seconds, line, budget=memory, rows=source.rows)


def _judge(points: Sequence[Point]) -> Verdict:
    def checks(curves: Curves) -> list[Check]:
        found = []
        memory = max((int(p.settings["budget"]) for p in points), default=0)
        budget, bound = memory / 1e6, allowed_bytes(memory) / 1e6
        for name in NAMES:
            curve = curves.series.get(name, {})
            if not curve:
                continue
            middle = max(curve) / 2
            first = max(size for at, size in curve.items() if at <= middle)
            later = max((size for at, size in curve.items() if at > middle), default=first)
            most = max(first, later)
            text = f"{name} {most:.0f} MB of {budget:.0f} MB budget"
            found.append(Check(f"{name} within {bound:.0f} MB", most <= bound, text))
            steady = Check(
                f"{name} steady in the second half", later <= first + _STEADY_MB, f"then {later - first:+.0f} MB"
            )
            found.append(steady)
        return found

    return judge(
        points,
        checks,
        "Arrow's pool keeps what it was given back for a while, and a push may give out more tuples than it took in.",
    )


FIGURES = (
    Figure(
        id=FIGURE,
        title="Memory over time, beside the budget",
        x=Axis("time since the join was opened", "s"),
        y=Axis("growth of resident memory", "MB"),
        claim=(
            "Anonymous and shared memory of the process never grows by more than 1.25 times the budget plus 64 MB for "
            "the batches and pools outside of the join, and in the second half of the time by less than 10 MB."
        ),
        run=_run,
        judge=_judge,
    ),
)
