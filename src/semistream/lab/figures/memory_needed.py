"""How much memory does an arrival rate, or a size of R, take? ssbj2019.

An operator takes its memory as given, so the question is turned round: its service rate is measured over a ladder of
budgets, and the memory for a rate is read off between the rungs, both on logarithmic scales.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from semistream.lab.figure import Axis, Figure, Point, Printed, Verdict, Way
from semistream.lab.figures.family import SSBJ, optimum_ratio, span
from semistream.lab.figures.ticks import Ticks
from semistream.lab.laboratory import TUNED_FOR, WAYS, Lab
from semistream.lab.measure.pace import taken_together
from semistream.lab.measure.runs import Estimate
from semistream.lab.measure.steady import Run
from semistream.lab.sources import Synthetic
from semistream.lab.verdicts import AHEAD, Check, Curves, factor, judge, rises

#: Shares of R. MESHJOIN's rate follows the share whatever R is, and SSBJ reaches a rate with a smaller one, so its
#: ladder lies lower: all of them together reach some common rates.
Shares = Mapping[str, Ticks]
#: R of 20 million tuples in figure 4a
_SIZE = 0.2
_LADDER: Shares = {
    "ssbj": Ticks((0.02, 0.06, 0.2), (0.01, 0.02, 0.04, 0.06, 0.1, 0.2)),
    "meshjoin": Ticks((0.06, 0.2, 0.4), (0.03, 0.06, 0.1, 0.2, 0.3, 0.4)),
}
_SHORT: Shares = {
    "ssbj": Ticks((0.02, 0.1), (0.01, 0.02, 0.05, 0.1)),
    "meshjoin": Ticks((0.06, 0.3), (0.03, 0.06, 0.1, 0.2, 0.3)),
}
#: R of 20 to 80 million tuples in figure 4b
_SIZES = Ticks((_SIZE, 0.4, 0.8), (_SIZE, 0.4, 0.6, 0.8))
_RATES = Ticks((4,), (8,))
_MB = 1e6

Ladder = dict[Way, dict[str, list[tuple[float, float]]]]
#: the runs of the rungs, by clock, algorithm and R
Runs = dict[tuple[Way, str, Synthetic], list[Run]]


def _ladder(lab: Lab, source: Synthetic, shares: Shares, runs: Runs) -> Ladder:
    """(memory, rate) of both algorithms, each tuned for the clock, by way; adds the `runs` behind them."""
    found: Ladder = {way: {name: [] for name in shares} for way in WAYS}
    for algorithm, rungs in shares.items():
        for share in rungs.of(lab):
            memory = lab.memory(source, share)
            for way in WAYS:
                options = lab.tuned(algorithm, source, memory, TUNED_FOR[way])
                run = lab.measure(algorithm, source, memory, options=options)
                if run is not None:
                    found[way][algorithm].append((memory, run.rate(way).mean))
                    runs.setdefault((way, algorithm, source), []).append(run)
    return found


def _state(runs: Runs, way: Way, algorithm: str, source: Synthetic) -> dict[str, Any]:
    """What has to be known of the runs that a point is read off between."""
    state: dict[str, Any] = {"steady": all(run.steady for key, found in runs.items() for run in found if key[0] == way)}
    if way == "wall":
        state["taken"] = taken_together([run.taken for run in runs[way, algorithm, source]])
    return state


def memory_for(rungs: Sequence[tuple[float, float]], rate: float) -> float | None:
    """The least memory that serves this rate; None where the ladder does not reach so far."""
    if len(rungs) < 2:
        return None
    memory, rates = np.array(sorted(rungs)).T
    # More memory never hurts: where noise says so, the rate of the smaller budget stands.
    rates = np.maximum.accumulate(rates)
    if not rates[0] <= rate <= rates[-1]:
        return None
    return float(np.exp(np.interp(np.log(rate), np.log(rates), np.log(memory))))


def _common(ladders: Sequence[dict[str, list[tuple[float, float]]]]) -> tuple[float, float] | None:
    """Rates that every algorithm reaches somewhere on every ladder."""
    curves = [rungs for ladder in ladders for rungs in ladder.values()]
    if not curves or any(len(rungs) < 2 for rungs in curves):
        return None
    low = max(min(rate for _, rate in rungs) for rungs in curves)
    high = min(max(rate for _, rate in rungs) for rungs in curves)
    return (low, high) if low < high else None


def _figure_4a(lab: Lab) -> Iterator[Point]:
    source = SSBJ.source(lab, _SIZE)
    runs: Runs = {}
    ladder = _ladder(lab, source, _LADDER, runs)
    for way in WAYS:
        common = _common([ladder[way]])
        if common is None:
            continue
        for rate in np.geomspace(*common, int(_RATES.of(lab)[0])):
            yield from _needed(lab, "ssbj-4a", way, ladder[way], float(rate), float(rate), source, runs)


def _figure_4b(lab: Lab) -> Iterator[Point]:
    runs: Runs = {}
    ladders = {}
    for size in _SIZES.of(lab):
        source = SSBJ.source(lab, size)
        ladders[source] = _ladder(lab, source, _LADDER if size == _SIZE else _SHORT, runs)
    for way in WAYS:
        common = _common([ladder[way] for ladder in ladders.values()])
        if common is None:
            continue
        rate = float(np.sqrt(common[0] * common[1]))
        for source, ladder in ladders.items():
            yield from _needed(lab, "ssbj-4b", way, ladder[way], rate, source.rows, source, runs)


def _needed(
    lab: Lab,
    figure: str,
    way: Way,
    ladder: dict[str, list[tuple[float, float]]],
    rate: float,
    x: float,
    source: Synthetic,
    runs: Runs,
) -> Iterator[Point]:
    for algorithm, rungs in ladder.items():
        memory = memory_for(rungs, rate)
        if memory is not None:
            size = memory / _MB
            # Of the memory that SSBJ takes: as many times of it MESHJOIN must have to hold as many tuples as W*.
            best = optimum_ratio(source.classes(), memory) if algorithm == "ssbj" else float("inf")
            yield lab.point(
                figure,
                way,
                algorithm,
                x,
                Estimate(size, size, size, 1),
                rate_per_s=rate,
                rows=source.rows,
                **_state(runs, way, algorithm, source),
                tuning=f"tuned for the {TUNED_FOR[way]} profile",
                w_star_over_meshjoin=best if best < float("inf") else None,
            )


def _reason(points: Sequence[Point]) -> str:
    """By how much memory for a rate can differ where reading R is what takes the time: by W*."""
    found = [known for point in points if (known := point.settings.get("w_star_over_meshjoin")) is not None]
    bound = f"{span(found)} times" if found else "a multiple of"
    return (
        "With the memory that SSBJ takes, the best cache there is serves W* tuples per R-cycle, and for as many "
        f"MESHJOIN needs {bound} that memory (120 and 24 bytes per tuple; docs/arguments/w-star.md). Where an R-cycle "
        "is shared by so many tuples that the CPU sets the rate, those that a cache adds cost their time as well."
    )


def judge_4a(points: Sequence[Point]) -> Verdict:
    def checks(curves: Curves) -> list[Check]:
        ratios = curves.ratio("meshjoin", "ssbj")
        lowest = min(ratios, key=lambda x: ratios[x]) if ratios else None
        highest = max(ratios, key=lambda x: ratios[x]) if ratios else None
        return [factor(curves, "meshjoin", "ssbj", x, 7.0) for x in (lowest, highest)] + [_more(curves)]

    return judge(points, checks, _reason(points))


def judge_4b(points: Sequence[Point]) -> Verdict:
    sizes = sorted({point.x for point in points}) or [0.0]

    def checks(curves: Curves) -> list[Check]:
        return [
            factor(curves, "meshjoin", "ssbj", sizes[0], 7.0),
            factor(curves, "meshjoin", "ssbj", sizes[-1], 5.0),
            rises(curves, "meshjoin", "ssbj", falling=True),
            _more(curves),
        ]

    return judge(points, checks, _reason(points))


def _more(curves: Curves) -> Check:
    ratios = curves.ratio("meshjoin", "ssbj")
    return Check(
        "MESHJOIN needs more memory than SSBJ everywhere",
        bool(ratios) and all(ratio >= AHEAD for ratio in ratios.values()),
        "",
    )


_MEMORY = Axis("memory needed", "MB")

FIGURES = (
    Figure(
        "ssbj-4a",
        "Memory against arrival rate: SSBJ and MESHJOIN",
        Axis("arrival rate", "tuples/s"),
        _MEMORY,
        "For any arrival rate MESHJOIN needs about 7 times the memory of SSBJ (R of 20 million tuples, skew 1).",
        _figure_4a,
        judge_4a,
    ),
    Figure(
        "ssbj-4b",
        "Memory against the size of R: SSBJ and MESHJOIN",
        Axis("size of R", "tuples"),
        _MEMORY,
        "For one service rate (51,242 tuples per second there; here one that both reach at every size) MESHJOIN needs "
        "7 times the memory of SSBJ with R of 20 million tuples and 5 times with 80 million: a larger R has more rare "
        "keys, which are not cached (skew 1).",
        _figure_4b,
        judge_4b,
        printed=(
            Printed(0.25, 7.0, "meshjoin", "ssbj", in_proportion=True),
            Printed(1.0, 5.0, "meshjoin", "ssbj", in_proportion=True),
        ),
    ),
)
