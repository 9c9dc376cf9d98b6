"""How long does a tuple take, and how long does it wait for its turn? ssj2014 and sscj2013."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from semistream.lab.figure import Axis, Figure, Point, Verdict, Way
from semistream.lab.figures.family import SIZE_AXIS, SSCJ, SSJ, Family
from semistream.lab.figures.ticks import Ticks
from semistream.lab.laboratory import WAYS, Lab
from semistream.lab.measure.delays import run_delays
from semistream.lab.measure.pace import taken_of
from semistream.lab.measure.runs import Estimate
from semistream.lab.measure.steady import batch_rows
from semistream.lab.sources import Synthetic
from semistream.lab.verdicts import AHEAD, Check, Curves, judge, rises
from semistream.lab.workloads.relation import SyntheticStream

#: Sizes of R in proportion, the largest being two fifths of this scale's; memory is a tenth of that.
_LARGEST = 0.4
_SIZES = Ticks((0.25, 0.5, 1.0), (0.25, 0.5, 0.75, 1.0))
_MEMORY = 0.1
_SLOWEST = "meshjoin"


def measured(lab: Lab, algorithm: str, source: Synthetic, memory: int) -> Mapping[str, Any]:
    """Processing and waiting times of an algorithm, made or remembered; arrival rates are parts of MESHJOIN's best."""
    rates: dict[str, list[float]] | None = None
    if algorithm != _SLOWEST:
        slowest = measured(lab, _SLOWEST, source, memory)
        rates = {way: [found["rate_per_s"] for found in slowest["waiting"][way]] for way in WAYS}
    batch = max(batch_rows(memory) // 4, 100)
    settings = {
        "run": "delays",
        "algorithm": algorithm,
        "source": source.describe(),
        "memory": memory,
        "batch": batch,
        "direct": lab.direct,
        # Priced while it runs, so that it belongs to these unit costs.
        "papers": hashlib.sha256(json.dumps(lab.profiles["papers"].to_json()).encode()).hexdigest()[:12],
    }

    def make() -> Mapping[str, Any]:
        lab.say(f"{algorithm}, times, R = {source.rows:,}, M = {memory:,}")
        with lab.open(algorithm, source, memory) as join:
            stream = SyntheticStream(source.rows, source.skew, source.seed)
            return run_delays(join, stream, batch, lab.profiles, WAYS, rates, lab.together, lab.pace)

    return lab.log.once(settings, make, alone=False)


def _processing(lab: Lab, *, figure: str, family: Family) -> Iterator[Point]:
    memory = lab.memory(family.source(lab, _LARGEST), _MEMORY)
    for size in _SIZES.of(lab):
        source = family.source(lab, _LARGEST * size)
        for algorithm in family.algorithms:
            found = measured(lab, algorithm, source, memory)
            for way in WAYS:
                yield _point(lab, figure, way, algorithm, source.rows, found["processing"][way], memory, found)


def _waiting(lab: Lab, *, figure: str, family: Family) -> Iterator[Point]:
    source = family.source(lab, _LARGEST)
    memory = lab.memory(source, _MEMORY)
    for algorithm in family.algorithms:
        found = measured(lab, algorithm, source, memory)
        for way in WAYS:
            for one in found["waiting"][way]:
                yield _point(lab, figure, way, algorithm, one["rate_per_s"], one, memory, found)


def _point(
    lab: Lab,
    figure: str,
    way: Way,
    algorithm: str,
    x: float,
    times: Mapping[str, Any],
    memory: int,
    run: Mapping[str, Any],
) -> Point:
    settings = {
        "algorithm": algorithm,
        "memory": memory,
        "quantiles": list(times["quantiles"]),
        "steady": run["steady"],
        "tuning": "defaults",
    }
    if way == "wall":
        settings["taken"] = taken_of(run)
    return lab.point(
        figure, way, algorithm, x, Estimate(times["mean"], times["low"], times["high"], int(times["n"])), **settings
    )


def _shorter(curves: Curves, one: str, other: str) -> Check:
    ratios = curves.ratio(other, one)
    text = ", ".join(f"{ratio:.1f}" for ratio in ratios.values())
    return Check(
        f"{one} shorter than {other} everywhere",
        bool(ratios) and all(ratio >= AHEAD for ratio in ratios.values()),
        f"{other} over {one}: {text}",
    )


PROCESSING = (
    "A tuple that the cache answers takes next to no time, and any other the time that a full table takes to drain: an "
    "operator that drains more slowly, or whose every load seeks, keeps it longer. Between a scan with a cache and one "
    "without, where reading R sets the time, the ratio is 1 / (1 - p) if the cache answers the share p. With the same "
    "memory p falls when R grows, and the ratio with it; what grows is the difference in seconds, as R-cycles do."
)
WAITING = (
    "Waiting is for the turn of the main loop that is under way, so it grows with what a turn takes: an index "
    "operator's load costs a seek on the papers' disk, and two scans with buffers of one size take about as long for a "
    "turn."
)


def judge_times(points: Sequence[Point], family: Family, grows: bool) -> Verdict:
    """The first algorithm has the shorter times; for processing times, the more so the larger R is."""

    def checks(curves: Curves) -> list[Check]:
        first, *others = family.algorithms
        found = [_shorter(curves, first, other) for other in others]
        # As a ratio: an absolute gap grows with R even where both grow alike.
        return found + [rises(curves, other, first) for other in others if grows]

    return judge(points, checks, PROCESSING if grows else WAITING)


def _figure(name: str, family: Family, processing: bool, claim: str) -> Figure:
    run: Callable[[Lab], Iterator[Point]] = partial(_processing if processing else _waiting, figure=name, family=family)
    listed = ", ".join(algorithm for algorithm in family.algorithms)
    return Figure(
        name,
        f"{'Processing' if processing else 'Waiting'} time of a tuple: {listed}",
        SIZE_AXIS if processing else Axis("arrival rate", "tuples/s"),
        Axis("processing time" if processing else "waiting time", "s", log=True),
        claim,
        run,
        partial(judge_times, family=family, grows=processing),
        kind="box",
    )


FIGURES = (
    _figure(
        "ssj-7a",
        SSJ,
        True,
        "A tuple spends much less time in SSJ than in MESHJOIN, from being loaded to being matched, the more so the "
        "larger R is: a large part of the stream is answered by the cache at once (sizes are not named; we hold the "
        "ratio of both times to grow).",
    ),
    _figure(
        "ssj-7b",
        SSJ,
        False,
        "A tuple waits for much less time in the stream buffer of SSJ than in that of MESHJOIN, at different arrival "
        "rates (none is named).",
    ),
    _figure(
        "sscj-5a",
        SSCJ,
        True,
        "A tuple spends much less time in SSCJ (here: cachejoin) than in HYBRIDJOIN, R-MESHJOIN and MESHJOIN, the "
        "more so the larger R is (sizes are not named; we hold the ratio of both times to grow).",
    ),
    _figure(
        "sscj-5b",
        SSCJ,
        False,
        "A tuple waits for much less time in the stream buffer of SSCJ (here: cachejoin) than in those of HYBRIDJOIN, "
        "R-MESHJOIN and MESHJOIN, at different arrival rates (none is named).",
    ),
)
