"""Where are the best disk buffer and the best cache, and does the cost model find them? ssj2014 and oxhybridjoin2012.

The operator is run at every point of a grid of both sizes, and the formula is asked at the same points.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from semistream.errors import BudgetError
from semistream.lab.figure import Axis, Figure, Point, Verdict, Way
from semistream.lab.figures.family import OX, RATE, SSJ, Family
from semistream.lab.figures.ticks import Ticks
from semistream.lab.laboratory import WAYS, Lab
from semistream.lab.measure.runs import Estimate
from semistream.lab.measure.steady import Run
from semistream.lab.verdicts import Check, Curves, best_inside, judge, near

BUFFER_SHARES = Ticks((0.04, 0.12, 0.4), (0.01, 0.02, 0.04, 0.07, 0.12, 0.2, 0.4, 0.6))
CACHE_SHARES = Ticks((0.1, 0.25, 0.4, 0.6), (0.05, 0.1, 0.17, 0.25, 0.32, 0.4, 0.6, 0.8))
_MEMORY = 0.1
MEASURED, CALCULATED = "measured", "calculated"


@dataclass(frozen=True)
class Tuned:
    """An algorithm whose sizes are tuned: its data, and what part of the largest R is used."""

    algorithm: str
    family: Family
    size: float


@dataclass(frozen=True)
class Cell:
    """A point of the grid: a run, and the formula's rate there by profile."""

    buffer_share: float
    cache_share: float
    run: Run
    predicted: dict[str, float]

    def rate(self, way: Way) -> float:
        return self.run.rate(way).mean

    def calculated(self, way: Way) -> float:
        return self.predicted["machine" if way == "wall" else way]


def grid(lab: Lab, tuned: Tuned) -> list[Cell]:
    """All points of the grid that fit the budget; a buffer and a cache share may meet a limit and be the same."""
    source = tuned.family.source(lab, tuned.size)
    memory = lab.memory(source, _MEMORY)
    cells = []
    for buffer_share in BUFFER_SHARES.of(lab):
        for cache_share in CACHE_SHARES.of(lab):
            options = {"buffer_bytes": int(buffer_share * memory), "cache_share": cache_share}
            run = lab.measure(tuned.algorithm, source, memory, options=options, turns=3)
            if run is None:
                continue
            try:
                predicted = {
                    name: lab.situation(source, memory).predict(tuned.algorithm, profile, options).service_rate_per_s
                    for name, profile in lab.profiles.items()
                }
            except BudgetError:
                continue
            cells.append(Cell(buffer_share, cache_share, run, predicted))
    return cells


def _surface(lab: Lab, *, figure: str, tuned: Tuned) -> Iterator[Point]:
    for cell in grid(lab, tuned):
        for way in WAYS:
            yield lab.point(
                figure,
                way,
                tuned.algorithm,
                cell.run.symbols["d"],
                cell.run.rate(way),
                cell.run,
                z=cell.run.symbols["h_R"],
                z_label="cache h_R (tuples)",
                buffer_share=cell.buffer_share,
                cache_share=cell.cache_share,
            )


def _slice(lab: Lab, *, figure: str, tuned: Tuned, by_buffer: bool) -> Iterator[Point]:
    """Rate over one size, the other at its best: measured, and calculated for the same options."""
    cells = grid(lab, tuned)
    if not cells:
        return
    for way in WAYS:
        best = max(cells, key=lambda cell: cell.rate(way))
        for cell in cells:
            if by_buffer:
                x, here = cell.run.symbols["d"], cell.cache_share == best.cache_share
            else:
                x, here = cell.run.symbols["h_R"], cell.buffer_share == best.buffer_share
            if here:
                exact = cell.calculated(way)
                yield lab.point(figure, way, MEASURED, x, cell.run.rate(way), cell.run)
                yield lab.point(figure, way, CALCULATED, x, Estimate(exact, exact, exact, 1), cell.run)


def judge_surface(points: Sequence[Point]) -> Verdict:
    """Along either size the rate rises and then falls: of each value the best over the other size is taken."""

    def along(curves: Curves, size: str) -> Check:
        best: dict[float, float] = {}
        for point in curves.points:
            place = float(point.settings[size])
            best[place] = max(best.get(place, 0.0), point.y)
        ridge = [Point("", curves.way, size, x, y, y, y, 1) for x, y in best.items()]
        check = best_inside(Curves(ridge, curves.way), size)
        return Check(f"along the {size.replace('_', ' ')} the rate rises, then falls", check.holds, check.numbers)

    return judge(
        points,
        lambda curves: [along(curves, "cache_share"), along(curves, "buffer_share")],
        "The small scale's grid has three sizes of the buffer and four of the cache, the others eight of each. A scan "
        "seeks once an R-cycle whatever its buffer is, so on the papers' clock a larger buffer only takes memory; and "
        "a cache pays until H_S becomes too small to share the loads.",
    )


def judge_slice(points: Sequence[Point], claimed: float) -> Verdict:
    """What the calculated optimum loses against the measured one, held to the claim; and the whole curve."""

    def checks(curves: Curves) -> list[Check]:
        measured, calculated = curves.series.get(MEASURED, {}), curves.series.get(CALCULATED, {})
        if not measured or not calculated:
            return []
        best, found = max(measured, key=lambda x: measured[x]), max(calculated, key=lambda x: calculated[x])
        lost = 1 - measured[found] / measured[best]
        ratios = curves.ratio(CALCULATED, MEASURED)
        return [
            Check(
                f"the calculated optimum within {claimed:.2%} of the measured one",
                lost <= claimed,
                f"measured best at {best:,.0f}, calculated best at {found:,.0f} tuples, {lost:.1%} below",
            ),
            near("calculated rates near measured ones", [ratio - 1 for ratio in ratios.values()]),
        ]

    return judge(
        points, checks, "The grid has few values of the size: the next one may be far off where the top is steep."
    )


_BUFFER = Axis("disk buffer d", "tuples", log=True)
_CACHE = Axis("cache h_R", "tuples")
_SSJ = Tuned("ssj", SSJ, 0.1)
_OX = Tuned("oxhybridjoin", OX, 0.25)


def _figures(
    paper: str, number: tuple[str, str], tuned: Tuned, name: str, deviations: tuple[float, float]
) -> list[Figure]:
    surface, slices = (f"{paper}-{one}" for one in number)
    claims = [
        f"Calculated and measured optimum of {name}'s {what} deviate by {deviation:.2%} only."
        for what, deviation in zip(("disk buffer", "cache H_R"), deviations, strict=True)
    ]
    return [
        Figure(
            surface,
            f"Service rate of {name} over disk buffer and cache",
            _BUFFER,
            RATE,
            f"With the size of the cache the rate of {name} rises rapidly to a best point and then falls; with the "
            "size of the disk buffer as well.",
            partial(_surface, figure=surface, tuned=tuned),
            judge_surface,
            kind="surface",
        ),
        Figure(
            f"{slices}a",
            f"Tuning the disk buffer of {name}: measured and calculated",
            _BUFFER,
            RATE,
            claims[0],
            partial(_slice, figure=f"{slices}a", tuned=tuned, by_buffer=True),
            partial(judge_slice, claimed=deviations[0]),
        ),
        Figure(
            f"{slices}b",
            f"Tuning the cache of {name}: measured and calculated",
            _CACHE,
            RATE,
            claims[1],
            partial(_slice, figure=f"{slices}b", tuned=tuned, by_buffer=False),
            partial(judge_slice, claimed=deviations[1]),
        ),
    ]


FIGURES = (
    *_figures("ssj", ("2", "5"), _SSJ, "SSJ", (0.025, 0.0065)),
    *_figures("oxhybridjoin", ("4", "5"), _OX, "Optimised X-HYBRIDJOIN", (0.0038, 0.0033)),
)
