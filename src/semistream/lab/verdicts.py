"""How a claim is judged: by checks with tolerances that stand here, fixed before anything was measured.

A claim is a list of checks, each an order or a number. It is held if all of them hold on the papers' clock (or in the
counts, where no clock is involved), partly if some do, else not. What the other clocks say stands beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from semistream.lab.figure import Outcome, Point, Verdict, Way

#: a claimed factor is reached with three quarters of it; "ahead" is by 2 % or more; "slightly worse" is 75 to 100 %
FACTOR_REACHED = 0.75
AHEAD = 1.02
SLIGHTLY_WORSE = 0.75
#: "about the same", and how near a prediction must be to a measurement to resemble it closely
SAME = 0.15
#: an ending of a curve that is within this part of its highest point is not below it
FLAT = 0.02

#: the first of these that a figure has decides
_NAMES: Mapping[Way, str] = {
    "papers": "papers' clock",
    "counts": "counts",
    "machine": "this machine's clock",
    "wall": "wall clock",
}


@dataclass(frozen=True)
class Check:
    """One statement of a claim, whether it holds, and the numbers it was decided by."""

    says: str
    holds: bool
    numbers: str


class Curves:
    """The points of one way, by series and x."""

    def __init__(self, points: Sequence[Point], way: Way) -> None:
        self.way = way
        self.points = [point for point in points if point.way == way]

    @cached_property
    def series(self) -> dict[str, dict[float, float]]:
        found: dict[str, dict[float, float]] = {}
        for point in sorted(self.points, key=lambda point: point.x):
            found.setdefault(point.series, {})[point.x] = point.y
        return found

    def ratio(self, over: str, under: str) -> dict[float, float]:
        """One series over another at every x both have."""
        a, b = self.series.get(over, {}), self.series.get(under, {})
        return {x: a[x] / b[x] for x in a if b.get(x)}


def judge(points: Sequence[Point], checks: Callable[[Curves], list[Check]], why: str = "") -> Verdict:
    """Judge by the papers' clock where there is one; the reason is given where the claim does not hold."""
    ways = [way for way in _NAMES if any(point.way == way for point in points)]
    if not ways:
        return Verdict("not", "nothing was measured", "no operator accepted these budgets, or the data is missing")
    found = {way: checks(Curves(points, way)) for way in ways}
    deciding = found[ways[0]]
    outcome: Outcome = "not"
    if any(check.holds for check in deciding):
        outcome = "held" if all(check.holds for check in deciding) else "partly"
    measured = ". ".join(_by_clock(way, made) for way, made in found.items())
    if outcome == "held":
        return Verdict(outcome, f"{measured}.")
    failed = "; ".join(check.says for check in deciding if not check.holds) or "nothing to compare"
    return Verdict(outcome, f"{measured}.", f"Not so here: {failed}. {why}".strip())


def _by_clock(way: Way, found: Sequence[Check]) -> str:
    """What one clock says."""
    numbers = "; ".join(dict.fromkeys(check.numbers for check in found if check.numbers))
    holding = sum(check.holds for check in found)
    return f"{_NAMES[way]}: {numbers or 'no numbers'} ({holding} of {len(found)} statements)"


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
    """One algorithm `claimed` times another at an x, or at its smallest or largest (None: the best of all)."""
    ratios = curves.ratio(over, under)
    if not ratios:
        return Check(f"{over} {claimed:g} times {under}", False, "")
    place = max(ratios, key=lambda at: ratios[at]) if x is None else min(ratios, key=lambda at: abs(at - x))
    return Check(
        f"{over} {claimed:g} times {under} at {at(place)}{unit} (we have {times(ratios[place])})",
        ratios[place] >= FACTOR_REACHED * claimed,
        ratios_text(ratios, over, under, unit),
    )


def slightly_worse(curves: Curves, over: str, under: str, x: float, unit: str = "") -> Check:
    """A little behind at this x."""
    ratio = curves.ratio(over, under).get(x)
    text = "" if ratio is None else f"{over} / {under} {ratio:.2f} at {at(x)}{unit}"
    says = f"{over} slightly worse than {under} at {at(x)}{unit}"
    return Check(says, ratio is not None and SLIGHTLY_WORSE <= ratio <= 1.0, text)


def rises(curves: Curves, over: str, under: str, unit: str = "", falling: bool = False) -> Check:
    """The ratio of two curves grows (or falls) from one end of the axis to the other."""
    ratios = list(curves.ratio(over, under).values())
    grows = len(ratios) > 1 and (ratios[-1] < ratios[0] if falling else ratios[-1] > ratios[0])
    word = "falls" if falling else "grows"
    return Check(f"the lead of {over} over {under} {word} along the axis", grows, "")


def best_inside(curves: Curves, series: str, unit: str = "") -> Check:
    """A curve rises to a best point and falls behind it: the best is at neither end."""
    curve = curves.series.get(series, {})
    if len(curve) < 3:
        return Check(f"{series} has its best point inside", False, "")
    best = max(curve, key=lambda x: curve[x])
    first, last = min(curve), max(curve)
    inside = all(curve[end] < (1 - FLAT) * curve[best] for end in (first, last))
    return Check(f"{series} has its best point inside", inside, f"{series} best at {at(best)}{unit}")


def near(text: str, deviations: Sequence[float], bar: float = SAME) -> Check:
    """Predictions near measurements: the median and the largest deviation, the median being held to the bar."""
    ordered = sorted(abs(deviation) for deviation in deviations)
    if not ordered:
        return Check(text, False, "")
    middle = ordered[len(ordered) // 2]
    return Check(text, middle <= bar, f"median deviation {middle:.1%}, largest {ordered[-1]:.1%}")
