"""What happens when the hot keys change? Hits and rate over the stream, before and after a change of all of them.

The stream does not wait for a cache to be full: the curves begin with an empty one. Reads go through the page cache.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Sequence
from typing import Any

from semistream.algorithms.registry import resolve
from semistream.cost.clock import CostClock, counted, row_bytes
from semistream.engine.join import SemiStreamJoin
from semistream.errors import BudgetError
from semistream.lab.figure import Axis, Figure, Point, Verdict
from semistream.lab.laboratory import WAYS, Lab
from semistream.lab.measure.opening import open_named
from semistream.lab.measure.runs import Estimate
from semistream.lab.measure.steady import batch_rows, push
from semistream.lab.sources import Synthetic
from semistream.lab.verdicts import Check, Curves, judge
from semistream.lab.workloads.drift import Drift
from semistream.lab.workloads.relation import KEY, STREAM_SCHEMA, SyntheticStream

HITS, RATE = "drift-hits", "drift-rate"
LEARNING = ("sweepjoin", "ssbj", "cachejoin")
STATIC = "oxhybridjoin"
#: a part of the scale's R, so that caches have time to learn; the memory holds a small part of that
_SIZE, _MEMORY_SHARE = 0.25, 0.04
#: the stream in multiples of R: where all hot keys change, and where it ends; and blocks it is measured in
_CHANGE, _END, _BLOCKS = 4, 8, 48
_AXIS = Axis("stream", "tuples")
#: blocks over which a state is averaged before it is compared
_MEAN = 4
_MARK = "all hot keys change"


def _observed(lab: Lab, algorithm: str) -> dict[str, Any]:
    """Counts and seconds of every block, found or made now; no block where the operator refuses the budget."""
    order = "frequency" if resolve(algorithm).wants_frequency_order else "key"
    source = lab.synthetic(max(int(lab.rows * _SIZE), 1), order=order)
    memory = lab.memory(source, _MEMORY_SHARE)
    settings = {
        "run": "drift",
        "algorithm": algorithm,
        "source": source.describe(),
        "memory": memory,
        "change": _CHANGE,
        "end": _END,
        "blocks": _BLOCKS,
        "direct": False,
    }

    def make() -> dict[str, Any]:
        lab.say(f"{algorithm}, drift")
        try:
            with open_named(
                algorithm,
                master=lab.master(source),
                on=KEY,
                memory=memory,
                reads="mapped",
                stream_schema=STREAM_SCHEMA,
            ) as join:
                return _blocks(join, source, batch_rows(memory))
        except BudgetError:
            return {"blocks": []}

    return lab.log.once(settings, make)


def _blocks(join: SemiStreamJoin, source: Synthetic, batch: int) -> dict[str, Any]:
    """Push the whole stream; tuples of a block are made before the clock starts."""
    change = _CHANGE * source.rows
    stream = SyntheticStream(source.rows, source.skew, source.seed, drift=Drift((change,)))
    each = max(_END * source.rows // _BLOCKS, 1)
    blocks = []
    for start in range(0, each * _BLOCKS, each):
        batches = list(stream.batches(start, start + each, batch))
        before = copy.copy(join.stats)
        started = time.perf_counter()
        for part in batches:
            push(join, part)
        seconds = time.perf_counter() - started
        blocks.append({"seconds": seconds, "counts": counted(join, before, batch=batch)})
    return {"blocks": blocks, "each": each, "row_bytes": row_bytes(join), "changes_at": change}


def _places(result: dict[str, Any]) -> Iterator[tuple[float, dict[str, Any]]]:
    """Each block with the tuple in its middle."""
    for number, block in enumerate(result["blocks"]):
        yield (number + 0.5) * result["each"], block


def _run_hits(lab: Lab) -> Iterator[Point]:
    for algorithm in (*LEARNING, STATIC):
        result = _observed(lab, algorithm)
        for x, block in _places(result):
            asked = block["counts"]["cache_hits"] + block["counts"]["cache_misses"]
            share = 100 * block["counts"]["cache_hits"] / asked if asked else 0.0
            estimate = Estimate(share, share, share, 1)
            yield lab.point(HITS, "counts", algorithm, x, estimate, mark_x=result["changes_at"], mark=_MARK)


def _run_rate(lab: Lab) -> Iterator[Point]:
    for algorithm in (*LEARNING, STATIC):
        result = _observed(lab, algorithm)
        for x, block in _places(result):
            for way in WAYS:
                seconds = float(block["seconds"])
                if way != "wall":
                    clock = CostClock(lab.profiles[way])
                    width = float(result["row_bytes"])
                    seconds = clock.price(resolve(algorithm), block["counts"], row_bytes=width).seconds
                rate = block["counts"]["tuples_in"] / seconds
                estimate = Estimate(rate, rate, rate, 1)
                yield lab.point(RATE, way, algorithm, x, estimate, mark_x=result["changes_at"], mark=_MARK)


def _states(curves: Curves, series: str) -> tuple[float, float, float] | None:
    """Means just before the change, just after it, and at the end."""
    points = sorted((p for p in curves.points if p.series == series), key=lambda p: p.x)
    if not points:
        return None
    change = float(points[0].settings["mark_x"])
    before = [p.y for p in points if p.x < change][-_MEAN:]
    after = [p.y for p in points if p.x > change]
    return sum(before) / len(before), after[0], sum(after[-_MEAN:]) / len(after[-_MEAN:])


def _judge(points: Sequence[Point], back: float, lost: float, what: str) -> Verdict:
    def checks(curves: Curves) -> list[Check]:
        found = []
        for name in (*LEARNING, STATIC):
            states = _states(curves, name)
            if states is None:
                continue
            before, after, end = states
            text = f"{name} {after / before:.0%} at once, {end / before:.0%} in the end"
            if name == STATIC:
                found.append(Check(f"{name} stays below {lost:.0%} of its {what}", end <= lost * before, text))
            else:
                found.append(Check(f"{name} comes back to {back:.0%} of its {what}", end >= back * before, text))
        return found

    return judge(points, checks, "How long a cache learns depends on how long its counts remember.")


FIGURES = (
    Figure(
        id=HITS,
        title="All hot keys change at once: hits of the cache",
        x=_AXIS,
        y=Axis("tuples answered by the cache", "%"),
        claim=(
            "When half of the stream has passed, all hot keys become others. The hit rate falls at once; caches that "
            "learn come back to 95 % of what they had, within four times as many tuples as R has. The cache of "
            "Optimised X-HYBRIDJOIN is filled once: it stays below half."
        ),
        run=_run_hits,
        judge=lambda points: _judge(points, 0.95, 0.5, "hit rate"),
    ),
    Figure(
        id=RATE,
        title="All hot keys change at once: service rate",
        x=_AXIS,
        y=Axis("service rate", "tuples/s"),
        claim=(
            "The rate follows the hits: those who learn are back at 90 % in the end, Optimised X-HYBRIDJOIN stays "
            "below three quarters."
        ),
        run=_run_rate,
        judge=lambda points: _judge(points, 0.9, 0.75, "rate"),
    ),
)
