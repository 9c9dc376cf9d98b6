"""How much of the stream does SSBJ's cache answer? ssbj2019."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from semistream.lab.figure import Axis, Figure, Point, Printed, Verdict
from semistream.lab.figures.family import MEMORY_AXIS, SSBJ
from semistream.lab.figures.ticks import MEMORY, percent
from semistream.lab.laboratory import Lab
from semistream.lab.verdicts import FLAT, TREND, Check, Curves, judge

#: a share of the stream is the claimed one within this many points
_POINTS = 5.0
#: % of R from which on the paper's share grows no more
_FULL = 9.0


def _figure_5f(lab: Lab) -> Iterator[Point]:
    source = SSBJ.source(lab)
    for share in MEMORY.of(lab):
        run = lab.measure("ssbj", source, lab.memory(source, share))
        if run is not None:
            yield lab.point("ssbj-5f", "counts", "ssbj", percent(share), run.hit_share().scaled(100.0), run)


def judge_5f(points: Sequence[Point]) -> Verdict:
    def checks(curves: Curves) -> list[Check]:
        curve = curves.series.get("ssbj", {})
        if len(curve) < 2:
            return []
        first, last = curve[min(curve)], curve[max(curve)]
        text = ", ".join(f"{share:.0f} % at {x:g} %" for x, share in curve.items())
        found = [
            Check("39 % of the stream with the least memory", abs(first - 39.0) <= _POINTS, text, "size", first / 39.0),
            Check("54 % with the most", abs(last - 54.0) <= _POINTS, text, "size", last / 54.0),
            Check("the share grows with memory", last >= (1 + TREND) * first, text, "trend"),
        ]
        if _FULL in curve:
            found.append(Check("but no more from 9 % of R on", last <= (1 + FLAT) * curve[_FULL], text, "trend"))
        return found

    return judge(
        points,
        checks,
        "The paper's shares are low for the cache inequality, which would answer 65 % of a stream with unique keys at "
        "1 % of R and 80 % at 10 % (docs/arguments/cache-share.md). Keys drawn with repetition leave 37 % of the "
        "domain absent besides, and an absent key's absence is cached too, most of it in a filter of R's keys: those "
        "tuples count as answered by the cache, at next to no memory. The paper's stream arrived at a constant rate, "
        "and the share grew no more once that rate was served; ours never pauses.",
    )


FIGURES = (
    Figure(
        "ssbj-5f",
        "Share of the stream that SSBJ's cache answers",
        MEMORY_AXIS,
        Axis("answered by the cache", "% of the stream"),
        "39 % of the stream tuples go through the cache with memory of 1 % of R, growing to 54 % with 9 % and more, "
        "where all frequent keys are cached and the rate of arrival is served (R of 100 million tuples; the skew is "
        "not named, ours is 1).",
        _figure_5f,
        judge_5f,
        printed=(Printed(1.0, 39.0, "ssbj"), Printed(9.0, 54.0, "ssbj"), Printed(10.0, 54.0, "ssbj")),
    ),
)
