"""How a claim is judged: by checks with tolerances that stand here, fixed before anything was measured.

A claim is a list of checks. Each belongs to a part of the claim: its direction (who is ahead), its size (by how much)
or its trend (how that changes along the axis). Every clock judges every part by itself: first the counts, which no
clock touches, then the wall clock, then the papers' clock, whose unit costs are not ours to measure.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from semistream.lab.figure import PARTS, Marks, Outcome, Part, Point, Verdict, Way

#: a claimed factor is met by three quarters to four thirds of it; "ahead" is by 2 % or more; "slightly worse" is 75 to
#: 100 %
FACTOR_REACHED = 0.75
AHEAD = 1.02
SLIGHTLY_WORSE = 0.75
#: "about the same", and how near a prediction must be to a measurement to resemble it closely
SAME = 0.15
#: an ending of a curve that is within this part of its highest point is not below it
FLAT = 0.02
#: a ratio that changes by less from one end of the axis to the other has no trend; nor may it go back by more between
TREND = 0.05

#: a machine that is faster by no more than this for some contestants than for others is the same for all
PACE = 1.1

#: in the order in which they are asked; the first one that a figure has gives the one-word outcome
CLOCKS: Mapping[Way, str] = {
    "counts": "counts",
    "wall": "wall clock",
    "papers": "papers' clock",
    "machine": "this machine's clock",
}
DEFAULTS = ", defaults"
_MARKED = {True: "yes", False: "no", None: "–"}


@dataclass(frozen=True)
class Check:
    """One statement of a claim, whether it holds, and the numbers it was decided by."""

    says: str
    holds: bool
    numbers: str
    part: Part = "direction"
    #: our factor over the claimed one
    share: float | None = None


class Curves:
    """The points of one way, by series and x."""

    def __init__(self, points: Sequence[Point], way: Way) -> None:
        self.way = way
        self.points = [point for point in points if point.way == way]

    @cached_property
    def series(self) -> dict[str, dict[float, float]]:
        return {name: {x: point.y for x, point in found.items()} for name, found in self._by_series.items()}

    @cached_property
    def _by_series(self) -> dict[str, dict[float, Point]]:
        found: dict[str, dict[float, Point]] = {}
        for point in sorted(self.points, key=lambda point: point.x):
            found.setdefault(point.series, {})[point.x] = point
        return found

    def ratio(self, over: str, under: str) -> dict[float, float]:
        """One series over another at every x both have."""
        a, b = self.series.get(over, {}), self.series.get(under, {})
        return {x: a[x] / b[x] for x in a if b.get(x)}

    def spread(self, over: str, under: str, x: float) -> float:
        """Half of the 95 % interval of a ratio, as a part of it."""
        return math.hypot(*(_half(self._by_series[name][x]) for name in (over, under)))


def _half(point: Point) -> float:
    half = max(point.high - point.y, point.y - point.low)
    return half / point.y if point.y and math.isfinite(half) else 0.0


def judge(
    points: Sequence[Point],
    checks: Callable[[Curves], list[Check]],
    why: str = "",
    *,
    unjudged: Mapping[Way, str] | None = None,
    notes: Sequence[str] = (),
) -> Verdict:
    """Judge by every clock that has points; the reason is given where the claim does not hold.

    `unjudged` names clocks on which the claim cannot fail, and says why: they show their numbers and no mark.
    """
    ways = [way for way in CLOCKS if any(point.way == way for point in points)]
    if not ways:
        return Verdict("not", "nothing was measured", "no operator accepted these budgets, or the data is missing")
    without = unjudged or {}
    found = {way: checks(Curves(points, way)) for way in ways}
    marks = {
        way: _marks(made, [p for p in points if p.way == way], without.get(way, "")) for way, made in found.items()
    }
    judging = [way for way in ways if way not in without]
    deciding = found[judging[0]] if judging else []
    outcome: Outcome = "not"
    if any(check.holds for check in deciding):
        outcome = "held" if all(check.holds for check in deciding) else "partly"
    measured = ". ".join(_by_clock(way, found[way], marks[way]) for way in ways) + "."
    remarks = (
        *_rest_notes(marks),
        *_pace_notes(marks),
        *notes,
        *(f"{CLOCKS[way]}: not judged, {text}" for way, text in without.items()),
    )
    failed = {check.says: None for way in judging for check in found[way] if not check.holds}
    if not failed and deciding:
        return Verdict(outcome, measured, "", marks, remarks)
    text = "; ".join(failed) or "nothing to compare"
    return Verdict(outcome, measured, f"Not so on at least one clock: {text}. {why}".strip(), marks, remarks)


def _marks(found: Sequence[Check], points: Sequence[Point], unjudged: str) -> Marks:
    """By the points of one clock."""
    timed = [point for point in points if point.way == "wall" and not {"taken", "cpus"}.isdisjoint(point.settings)]
    paced = [point for point in timed if point.settings.get("taken") is not None]
    held: dict[Part, bool | None] = {}
    for part in PARTS:
        mine = [check.holds for check in found if check.part == part]
        held[part] = all(mine) if mine and not unjudged else None
    return Marks(
        direction=held["direction"],
        size=held["size"],
        trend=held["trend"],
        sizes=tuple(check.share for check in found if check.share is not None),
        numbers=_numbers(found),
        unrested=sum(point.settings.get("steady") is False for point in points),
        pace=unevenness(paced),
        unpaced=len(timed) - len(paced),
        unjudged=unjudged,
    )


def _rest_notes(marks: Mapping[Way, Marks]) -> list[str]:
    open_runs = {CLOCKS[way]: found.unrested for way, found in marks.items() if found.unrested}
    if not open_runs:
        return []
    text = ", ".join(f"{clock} {number}" for clock, number in open_runs.items())
    return [f"Points whose runs did not come to rest within their limit: {text}. What is judged by them is open."]


def _pace_notes(marks: Mapping[Way, Marks]) -> list[str]:
    """What is known of the machine while the wall clock was read."""
    found = marks.get("wall")
    if found is None or is_of_one_pace(found):
        return []
    said = []
    if found.pace > PACE:
        said.append(f"The machine was {found.pace:.2f} times faster for some series, or values of x, than for others.")
    if found.unpaced:
        said.append(f"Of {found.unpaced} points nobody noted how fast it was.")
    return [f"Wall clock: {' '.join(said)} A small lead may be the machine's."]


def unevenness(points: Sequence[Point]) -> float:
    """How many times faster the machine was for some contestants, or at some places of the axis, than for others.

    In work or in reads, whichever differs more. By their means: at a single point a neighbour's second shows.
    """
    widest = 1.0
    for part in ("work_s", "read_s_per_byte"):
        for by in ("series", "x"):
            found: dict[object, list[float]] = {}
            for point in points:
                if part in point.settings["taken"]:
                    found.setdefault(getattr(point, by), []).append(point.settings["taken"][part])
            means = [math.fsum(paces) / len(paces) for paces in found.values()]
            if means:
                widest = max(widest, max(means) / min(means))
    return widest


def is_of_one_pace(marks: Marks) -> bool:
    """Whether the machine is known to have been equally fast for all points whose time was taken."""
    return not marks.unpaced and marks.pace <= PACE


def _numbers(found: Sequence[Check]) -> str:
    return "; ".join(dict.fromkeys(check.numbers for check in found if check.numbers))


def sizes_text(sizes: Sequence[float]) -> str:
    """Our factors as parts of the claimed ones.

    >>> sizes_text([0.28, 0.354]), sizes_text([1.0])
    ('0.28 to 0.35 of the claimed factor', '1.00 of the claimed factor')
    """
    if not sizes:
        return ""
    low, high = f"{min(sizes):.2f}", f"{max(sizes):.2f}"
    return f"{low if low == high else f'{low} to {high}'} of the claimed factor"


def _by_clock(way: Way, found: Sequence[Check], marks: Marks) -> str:
    """What one clock says: numbers, then a word per part of the claim."""
    parts = [f"{part} {_MARKED[marks.of(part)]}" for part in PARTS if any(check.part == part for check in found)]
    size = sizes_text(marks.sizes)
    return f"{CLOCKS[way]}: {marks.numbers or 'no numbers'} ({', '.join([*parts, *([size] if size else [])])})"


# ------------------------------------------------------------------------------------------------ checks


def times(number: float) -> str:
    return f"{number:.1f}×" if number < 10 else f"{number:.0f}×"


def at(x: float) -> str:
    """A value of x as text, without digits nobody needs.

    >>> at(0.05), at(1000000.0), at(2.0)
    ('0.05', '1,000,000', '2')
    """
    return f"{x:,.0f}" if x == round(x) or abs(x) >= 1000 else f"{x:g}"


def ratios_text(ratios: Mapping[float, float], over: str, under: str, unit: str) -> str:
    inside = ", ".join(f"{times(ratio)} at {at(x)}{unit}" for x, ratio in ratios.items())
    return f"{over} / {under} {inside}"


def ahead(curves: Curves, over: str, under: str, unit: str = "", but: Sequence[float] = ()) -> Check:
    """One algorithm ahead of another at every x, `but` excepted."""
    ratios = curves.ratio(over, under)
    held_to = [ratio for x, ratio in ratios.items() if x not in but]
    return Check(
        f"{over} ahead of {under} everywhere",
        bool(held_to) and all(ratio >= AHEAD for ratio in held_to),
        ratios_text(ratios, over, under, unit),
    )


def factor(curves: Curves, over: str, under: str, x: float | None, claimed: float, unit: str = "") -> Check:
    """One algorithm `claimed` times another at an x, or at its smallest or largest (None: the best of all).

    A factor that is a third larger than the claimed one is not that one either, though in its favour.
    """
    ratios = curves.ratio(over, under)
    if not ratios:
        return Check(f"{over} {claimed:g} times {under}", False, "", "size")
    place = max(ratios, key=lambda at: ratios[at]) if x is None else min(ratios, key=lambda at: abs(at - x))
    share = ratios[place] / claimed
    return Check(
        f"{over} {claimed:g} times {under} at {at(place)}{unit} (we have {times(ratios[place])}, {share:.2f} of it)",
        FACTOR_REACHED <= share <= 1 / FACTOR_REACHED,
        ratios_text(ratios, over, under, unit),
        "size",
        share,
    )


def slightly_worse(curves: Curves, over: str, under: str, x: float, unit: str = "") -> Check:
    """A little behind at this x."""
    ratio = curves.ratio(over, under).get(x)
    text = "" if ratio is None else f"{over} / {under} {ratio:.2f} at {at(x)}{unit}"
    says = f"{over} slightly worse than {under} at {at(x)}{unit}"
    return Check(says, ratio is not None and SLIGHTLY_WORSE <= ratio <= 1.0, text)


def rises(curves: Curves, over: str, under: str, unit: str = "", falling: bool = False) -> Check:
    """The ratio of two curves grows (or falls) from one end of the axis to the other.

    By more than the tolerance and more than the intervals of both ends, and without going back in between.
    """
    word = "falls" if falling else "grows"
    says = f"the lead of {over} over {under} {word} along the axis"
    ratios = curves.ratio(over, under)
    if len(ratios) < 2:
        return Check(says, False, "", "trend")
    places, values = list(ratios), list(ratios.values())
    steps = [(b / a) ** (-1 if falling else 1) for a, b in itertools.pairwise(values)]
    change = math.prod(steps)
    noise = math.hypot(*(curves.spread(over, under, x) for x in (places[0], places[-1])))
    grows = change >= 1 + max(TREND, noise) and all(step >= 1 - TREND for step in steps)
    return Check(says, grows, f"lead {values[-1] / values[0]:.2f}× from end to end", "trend")


def best_inside(curves: Curves, series: str, unit: str = "") -> Check:
    """A curve rises to a best point and falls behind it: the best is at neither end."""
    curve = curves.series.get(series, {})
    if len(curve) < 3:
        return Check(f"{series} has its best point inside", False, "", "trend")
    best = max(curve, key=lambda x: curve[x])
    first, last = min(curve), max(curve)
    inside = all(curve[end] < (1 - FLAT) * curve[best] for end in (first, last))
    return Check(f"{series} has its best point inside", inside, f"{series} best at {at(best)}{unit}", "trend")


def near(text: str, deviations: Sequence[float], bar: float = SAME) -> Check:
    """Predictions near measurements: the median and the largest deviation, the median being held to the bar."""
    ordered = sorted(abs(deviation) for deviation in deviations)
    if not ordered:
        return Check(text, False, "", "size")
    middle = ordered[len(ordered) // 2]
    return Check(text, middle <= bar, f"median deviation {middle:.1%}, largest {ordered[-1]:.1%}", "size")
