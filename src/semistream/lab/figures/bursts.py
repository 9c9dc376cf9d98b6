"""Do bursts of the stream do harm? oxhybridjoin2012, whose stream is bursty and self-similar.

A service rate at full speed, as ours in its figures 6a and 6b, is that of a stream that never pauses, and says nothing
about bursts. Here tuples arrive by the clock, evenly or in bursts of every length at the same mean rate, and what
counts is how long a tuple stays: from its arrival to its row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from semistream.engine.join import SemiStreamJoin
from semistream.errors import BudgetError
from semistream.lab.figure import Axis, Figure, Point, Verdict, Way
from semistream.lab.figures.family import OX
from semistream.lab.figures.ticks import Ticks, percent
from semistream.lab.laboratory import WAYS, Lab
from semistream.lab.measure.arriving import Arriving, Floats, bursty, even
from semistream.lab.measure.delays import clock_of, distribution
from semistream.lab.measure.pace import taken_of
from semistream.lab.measure.runs import Estimate
from semistream.lab.measure.steady import batch_rows, push_next, warm
from semistream.lab.sources import Synthetic
from semistream.lab.verdicts import AHEAD, Check, Curves, judge
from semistream.lab.workloads.relation import SyntheticStream
from semistream.lab.workloads.workload import Reading

FIGURE = "oxhybridjoin-bursty"
EVEN = ", even"
INDEXED = ("oxhybridjoin", "xhybridjoin", "hybridjoin")
SCANS = ("rmeshjoin", "meshjoin")
#: R of 2 million tuples, as in figure 6b, and its least memory
_SIZE, _MEMORY = 0.25, 0.05
#: mean arrival rates, as parts of what the slowest of them serves at full speed
LOADS = Ticks((0.3, 0.7), (0.1, 0.3, 0.5, 0.7, 0.9))
#: tuples of a run: what a full MESHJOIN has waiting, so many times; below its capacity they are several R-cycles
_FILLINGS, _LEAST_TUPLES, _MOST_TUPLES = 1, 20_000, 3_000_000
#: on the wall clock a run lasts as long as its tuples come, and no longer than this
_WALL_SECONDS = 2.0
#: grows when a run records something else: older runs are made again
_RULES = 2
_KINDS = {"": bursty, EVEN: even}


def _capacity(lab: Lab, source: Synthetic, memory: int) -> tuple[dict[Way, float], int] | None:
    """What the slowest of the algorithms serves, by each clock, and how many tuples wait in a full MESHJOIN."""
    runs = [lab.measure(algorithm, source, memory) for algorithm in OX.algorithms]
    known = [run for run in runs if run is not None]
    if len(known) < len(runs):
        return None
    waiting = next(run.symbols["h_S"] for run in known if run.algorithm == "meshjoin")
    return {way: min(run.rate(way).mean for run in known) for way in WAYS}, int(waiting)


def _measured(
    lab: Lab, algorithm: str, source: Synthetic, memory: int, rates: Mapping[Way, float], tuples: int
) -> dict[str, Any]:
    """Stays of an algorithm by clock, load and kind of stream, made or remembered."""
    loads = LOADS.of(lab)
    settings = {
        "run": "bursts",
        "algorithm": algorithm,
        "source": source.describe(),
        "memory": memory,
        "tuples": tuples,
        "loads": list(loads),
        "rates": {way: round(rate) for way, rate in rates.items()},
        "rules": _RULES,
        "direct": lab.direct,
    }

    def make() -> dict[str, Any]:
        lab.say(f"{algorithm}, bursts, R = {source.rows:,}, M = {memory:,}")
        batch, stream = batch_rows(memory), SyntheticStream(source.rows, source.skew, source.seed)
        with lab.open(algorithm, source, memory) as join:
            reading = Reading(stream)
            warm(join, partial(push_next, join, reading.batches(batch), lab.together))
            with lab.together.alone():
                return _stays(lab, join, stream, reading.position, rates, loads, tuples)

    return lab.log.once(settings, make, alone=False)


def _stays(
    lab: Lab,
    join: SemiStreamJoin,
    stream: SyntheticStream,
    position: int,
    rates: Mapping[Way, float],
    loads: Sequence[float],
    tuples: int,
) -> dict[str, Any]:
    """How long tuples stay, by clock, load and kind of stream."""
    found: dict[str, Any] = {}
    watch = lab.pace.watch(join)
    arriving = Arriving(join, stream, position)
    for way in WAYS:
        for load in loads:
            for kind, schedule in _KINDS.items():
                for _ in join.drain():
                    pass
                stays: list[Floats] = []
                clock = clock_of(way, join, lab.profiles)
                rate = load * rates[way]
                count = min(tuples, max(int(rate * _WALL_SECONDS), 100)) if way == "wall" else tuples
                times = schedule(rate, count, lab.seed)
                behind = max(sample.behind for sample in arriving.turns(times, clock, stays))
                found[f"{way}/{load}/{kind}"] = {**distribution(np.concatenate(stays)), "behind": behind}
                if way == "wall":
                    watch.look()
    return {"stays": found, "taken": watch.taken()}


def _run(lab: Lab) -> Iterator[Point]:
    source = OX.source(lab, _SIZE)
    memory = lab.memory(source, _MEMORY)
    capacity = _capacity(lab, source, memory)
    if capacity is None:
        return
    rates, waiting = capacity
    tuples = min(max(_FILLINGS * waiting, _LEAST_TUPLES), _MOST_TUPLES)
    for algorithm in OX.algorithms:
        try:
            found = _measured(lab, algorithm, source, memory, rates, tuples)
        except BudgetError:
            continue
        for name, one in found["stays"].items():
            way, load, kind = name.split("/")
            timed: dict[str, Any] = {"taken": taken_of(found)} if way == "wall" else {}
            stay = Estimate(one["mean"], one["low"], one["high"], int(one["n"]))
            yield lab.point(
                FIGURE,
                way,
                f"{algorithm}{kind}",
                percent(float(load)),
                stay,
                memory=memory,
                rate_per_s=float(load) * rates[way],
                tuples=tuples,
                quantiles=list(one["quantiles"]),
                most_behind=one["behind"],
                **timed,
            )


def _judge(points: Sequence[Point]) -> Verdict:
    def checks(curves: Curves) -> list[Check]:
        found = []
        longer = {name: _worst(curves.ratio(name, f"{name}{EVEN}")) for name in OX.algorithms}
        for name in INDEXED:
            for scan in SCANS:
                ratios = curves.ratio(scan, name)
                text = ", ".join(f"{ratio:.1f}" for ratio in ratios.values())
                shorter = bool(ratios) and all(ratio >= AHEAD for ratio in ratios.values())
                says = f"a shorter stay in {name} than in {scan} under bursts"
                found.append(Check(says, shorter, f"{scan} over {name}: {text}"))
        scans = min((longer[scan] for scan in SCANS), default=0.0)
        for name in INDEXED:
            text = f"bursts make the stay up to {longer[name]:.1f} times as long in {name}, {scans:.1f} in a scan"
            less = 0.0 < longer[name] < scans
            found.append(Check(f"bursts prolong the stay in {name} by less than in a scan", less, text))
        return found

    return judge(
        points,
        checks,
        "Rates are shares of what the slowest serves, so the others have room in H_S for a burst, and a scan's chunk "
        "is as large as the stream made it: bursts hardly prolong a stay in any of them. How long a stay is follows "
        "from the disk: a scan's is one R-cycle, an index operator's is many loads, which seek on the papers' disk.",
    )


def _worst(ratios: Mapping[float, float]) -> float:
    return max(ratios.values(), default=0.0)


FIGURES = (
    Figure(
        FIGURE,
        "How long a tuple stays when the stream is bursty: Optimised X-HYBRIDJOIN and its relatives",
        Axis("mean arrival rate", "% of what the slowest serves"),
        Axis("from arrival to row", "s", log=True),
        "The stream is bursty and self-similar (Zipf's law with exponent 1). HYBRIDJOIN can deal with bursts, which is "
        "a limitation of MESHJOIN and R-MESHJOIN (section 2; neither measured nor a number there. We hold HYBRIDJOIN "
        "and the two built on it to shorter stays than in the scans under bursts, and to stays that bursts prolong by "
        "a smaller factor).",
        _run,
        _judge,
    ),
)
