"""Does SSBJ become a main-memory join by itself when memory grows? ssbj2019, theorem 3.

The theorem starts from a rate and says that SSBJ takes no more memory than all of R does, and then holds all of R.
Seen from the other side: while memory grows to that of R, ever more of the stream is answered by the cache, an R-cycle
serves ever more tuples, and the rate goes over to that of a join that holds R. R is a twentieth of the scale's: an
R-cycle serves fifty times its tuples before it ends to exist.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from semistream.errors import BudgetError
from semistream.lab.figure import Axis, Figure, Point, Verdict
from semistream.lab.figures.family import MEMORY_AXIS, RATE, SSBJ, optimum_ratio
from semistream.lab.figures.ticks import Ticks, percent
from semistream.lab.laboratory import Lab
from semistream.lab.measure.cycles import run_cycles
from semistream.lab.measure.runs import Estimate
from semistream.lab.measure.steady import Run, batch_rows
from semistream.lab.sources import Synthetic
from semistream.lab.verdicts import AHEAD, SAME, Check, Curves, ahead, judge, rises
from semistream.lab.workloads.relation import MASTER_ROW_BYTES, WAITING_BYTES

HITS, CYCLE, SPEED = "ssbj-theorem-3-hits", "ssbj-theorem-3-cycle", "ssbj-theorem-3-rate"
RESIDENT, BEST = "all of R in memory", "best cache (W*) calculated"
_SIZE, _MOST_ROWS = 0.05, 500_000
#: R takes 18 % more in a cache than its tuples' 120 bytes. With all else a budget of 130 % holds it; 150 % where R is
#: as small as the small scale's, and the buffers are a larger part.
MEMORY = Ticks(
    (0.1, 0.4, 0.8, 1.2, 1.5),
    (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.5),
)
_ENOUGH = 2.0
_CYCLES = {"ssbj": 24, "meshjoin": 6}
#: tuples of a warm-up, in multiples of R
_MOST_TUPLES = 1_000
#: points of the stream: a share that does not fall by more than this does not fall
_POINT = 1.0


def _source(lab: Lab) -> Synthetic:
    rows = min(max(int(SSBJ.rows(lab) * _SIZE), 1), _MOST_ROWS)
    return lab.synthetic(rows, repeated=SSBJ.repeated)


def _measured(lab: Lab, algorithm: str, source: Synthetic, memory: int) -> Run | None:
    batch = batch_rows(memory)
    settings: dict[str, Any] = {
        "run": "cycles",
        "algorithm": algorithm,
        "source": source.describe(),
        "memory": memory,
        "options": {},
        "batch": batch,
        "cycles": _CYCLES[algorithm],
        "most_tuples": _MOST_TUPLES * source.rows,
        "direct": lab.direct,
    }

    def make() -> dict[str, Any]:
        lab.say(f"{algorithm}, R = {source.rows:,}, M = {memory:,}, whole R-cycles")
        try:
            with lab.open(algorithm, source, memory) as join:
                stream = source.stream(batch, lab.data)
                return run_cycles(
                    join, stream, batch, settings["cycles"], settings["most_tuples"], lab.together, lab.pace
                )
        except BudgetError as error:
            return {"refused": str(error)}

    result = lab.log.once(settings, make, alone=False)
    return None if "refused" in result else Run(algorithm, settings, result, result, lab.profiles)


def _each(lab: Lab) -> Iterator[tuple[float, str, Run]]:
    """Memory in percent of R, algorithm, run."""
    source = _source(lab)
    for share in MEMORY.of(lab):
        for algorithm in SSBJ.algorithms:
            run = _measured(lab, algorithm, source, lab.memory(source, share))
            if run is not None:
                yield percent(share), algorithm, run


def _best(lab: Lab, share: float) -> tuple[float, float]:
    """W* over R's tuples, and the share of the stream that its cache answers; infinite and 1 where all of R fits."""
    source = _source(lab)
    keys, memory = source.classes(), lab.memory(source, share)
    ratio = optimum_ratio(keys, memory)
    if ratio == float("inf"):
        return ratio, 1.0
    best = ratio * memory / WAITING_BYTES
    cached = keys.m * MASTER_ROW_BYTES < best * keys.p * WAITING_BYTES
    return best / source.rows, float((keys.count * keys.p)[cached].sum())


def _run_hits(lab: Lab) -> Iterator[Point]:
    for x, algorithm, run in _each(lab):
        if algorithm == "ssbj":
            yield lab.point(HITS, "counts", algorithm, x, run.hit_share().scaled(100.0), run, **_state(run))
    for share in MEMORY.of(lab):
        best = 100 * _best(lab, share)[1]
        yield lab.point(HITS, "counts", BEST, percent(share), Estimate(best, best, best, 1))


def _run_cycle(lab: Lab) -> Iterator[Point]:
    for x, algorithm, run in _each(lab):
        cycles = [cycle["tuples"] for cycle in run.result["cycles"]][-3:]
        if cycles and not run.result["resident"]:
            length = Estimate.of([tuples / run.settings["source"]["rows"] for tuples in cycles])
            yield lab.point(CYCLE, "counts", algorithm, x, length, run, **_state(run))
    for share in MEMORY.of(lab):
        best = _best(lab, share)[0]
        if best < float("inf"):
            yield lab.point(CYCLE, "counts", BEST, percent(share), Estimate(best, best, best, 1))


def _run_rate(lab: Lab) -> Iterator[Point]:
    for x, algorithm, run in _each(lab):
        yield from lab.rates(SPEED, algorithm, x, run, **_state(run))
    source = _source(lab)
    whole = _measured(lab, "ssbj", source, lab.memory(source, _ENOUGH))
    if whole is not None:
        for share in MEMORY.of(lab):
            yield from lab.rates(SPEED, RESIDENT, percent(share), whole, **_state(whole))


def _state(run: Run) -> dict[str, Any]:
    return {"resident": run.result["resident"], "cycles": len(run.result["cycles"])}


def judge_hits(points: Sequence[Point]) -> Verdict:
    def checks(curves: Curves) -> list[Check]:
        curve = list(curves.series.get("ssbj", {}).values())
        if len(curve) < 2:
            return []
        text = ", ".join(f"{share:.0f} % at {x:g} %" for x, share in curves.series["ssbj"].items())
        held = [point.x for point in curves.points if point.series == "ssbj" and point.settings.get("resident")]
        before = [share for x, share in curves.series["ssbj"].items() if not held or x < min(held)]
        growing = all(now >= then - _POINT for then, now in pairwise(curve))
        return [
            Check("the cache's share of the stream grows with memory", growing, text),
            Check("all of R is in the cache at last", bool(held) and curve[-1] >= 100 - _POINT, text),
            Check(
                "without a jump: 95 % of the stream just before",
                bool(before) and before[-1] >= 95.0,
                f"{before[-1]:.1f} % with the largest memory that does not hold R" if before else "",
            ),
        ]

    return judge(points, checks, "A key of one or two tuples per R-cycle takes fewer bytes in H_S than in the cache.")


def judge_cycle(points: Sequence[Point]) -> Verdict:
    def checks(curves: Curves) -> list[Check]:
        curve = curves.series.get("ssbj", {})
        values = list(curve.values())
        text = ", ".join(f"{length:.1f} R at {x:g} %" for x, length in curve.items())
        return [
            Check("an R-cycle serves ever more tuples", len(values) > 1 and values == sorted(values), text),
            rises(curves, "ssbj", "meshjoin"),
            ahead(curves, "ssbj", "meshjoin", " %"),
        ]

    return judge(points, checks, "A cache that is not at rest yet serves fewer.")


def judge_rate(points: Sequence[Point]) -> Verdict:
    def checks(curves: Curves) -> list[Check]:
        ratios = curves.ratio("ssbj", RESIDENT)
        if not ratios:
            return []
        held = {point.x for point in curves.points if point.series == "ssbj" and point.settings.get("resident")}
        disk = [x for x in ratios if x not in held]
        text = ", ".join(f"{ratio:.2f} at {x:g} %" for x, ratio in ratios.items())
        mesh = curves.ratio(RESIDENT, "meshjoin")
        most = max(mesh, default=0.0)
        return [
            Check(
                "SSBJ is a main-memory join with enough memory",
                bool(held) and all(abs(ratios[x] - 1) <= SAME for x in held),
                f"rate over that with all of R in memory: {text}",
            ),
            Check(
                "its rate goes over to that: three quarters of it just before",
                bool(disk) and ratios[max(disk)] >= 0.75,
                "",
            ),
            Check("MESHJOIN stays behind a main-memory join", most > 0 and mesh[max(mesh)] >= AHEAD, ""),
            ahead(curves, "ssbj", "meshjoin", " %"),
        ]

    return judge(
        points,
        checks,
        "Where R-cycles serve many times R's tuples, reading R costs little per tuple with any algorithm, and what is "
        "left is the CPU time of a tuple, which is longer for one that waits.",
    )


def _figure(name: str, what: str, y: Axis, claim: str, run: Any, judged: Any) -> Figure:
    whole = f"SSBJ goes over into a main-memory join by itself and smoothly (theorem 3; not measured there): {claim}."
    return Figure(name, f"{what} while memory grows beyond R: SSBJ", MEMORY_AXIS, y, whole, run, judged)


FIGURES = (
    _figure(
        HITS,
        "Share of the stream that the cache answers",
        Axis("answered by the cache", "% of the stream"),
        "above some rate it takes no more memory than R does, and has all of R in its cache. Seen by memory: the more "
        "there is, the more of R is cached, and all of it in the end",
        _run_hits,
        judge_hits,
    ),
    _figure(
        CYCLE,
        "Tuples per R-cycle",
        Axis("tuples per R-cycle", "times R's tuples", log=True),
        "MESHJOIN takes more memory than R does at such a rate. Seen by memory: an R-cycle of SSBJ serves ever more "
        "tuples than one of MESHJOIN, until there is none",
        _run_cycle,
        judge_cycle,
    ),
    _figure(
        SPEED,
        "Service rate",
        RATE,
        "with all of R in the cache it is a pure main-memory hash join. Seen by memory: its rate becomes that of one, "
        "which MESHJOIN's does not",
        _run_rate,
        judge_rate,
    ),
)
