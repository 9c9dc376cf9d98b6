"""How many tuples does a turn of SSJ's main loop serve through the cache (w_N), and the disk (w_S)? ssj2014."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from semistream.errors import BudgetError
from semistream.lab.figure import Axis, Figure, Point, Verdict
from semistream.lab.figures.family import SIZE_AXIS, SIZE_SHARES, SSJ
from semistream.lab.laboratory import Lab
from semistream.lab.measure.runs import Estimate
from semistream.lab.sources import Synthetic
from semistream.lab.verdicts import Check, Curves, judge, near

CACHE_SHARES = (0.1, 0.2, 0.35, 0.5, 0.7)
BUFFER_SHARES = (0.04, 0.1, 0.2, 0.4)
_SIZE, _MEMORY = 0.1, 0.1
#: which counter a figure shows, per turn of the main loop
_PHASES = {"w_N": ("cache_hits",), "w_S": ("cache_misses",)}
MEASURED, CALCULATED = "measured", "calculated"

Settings = Iterator[tuple[float | None, Synthetic, int, dict[str, float]]]


def _by_cache(lab: Lab) -> Settings:
    source = SSJ.source(lab, _SIZE)
    memory = lab.memory(source, _MEMORY)
    for share in CACHE_SHARES:
        yield None, source, memory, {"cache_share": share}


def _by_size(lab: Lab) -> Settings:
    memory = lab.memory(SSJ.source(lab), _MEMORY)
    for size in SIZE_SHARES:
        source = SSJ.source(lab, size)
        yield source.rows, source, memory, {}


def _by_buffer(lab: Lab) -> Settings:
    source = SSJ.source(lab, _SIZE)
    memory = lab.memory(source, _MEMORY)
    for share in BUFFER_SHARES:
        yield None, source, memory, {"buffer_bytes": int(share * memory)}


def _measure(lab: Lab, *, figure: str, phase: str, settings: Callable[[Lab], Settings], symbol: str) -> Iterator[Point]:
    """w_N or w_S over one size, measured and calculated; x is the size itself or what a run had of it."""
    for x, source, memory, options in settings(lab):
        run = lab.measure("ssj", source, memory, options=options)
        if run is None:
            continue
        place = run.symbols[symbol] if x is None else x
        yield lab.point(figure, "counts", MEASURED, place, run.per_loop(*_PHASES[phase]), run)
        try:
            predicted = lab.situation(source, memory).predict("ssj", lab.profiles["papers"], options)
        except BudgetError:
            continue
        counts = predicted.counts
        number = sum(counts[name] for name in _PHASES[phase]) / counts["iterations"]
        yield lab.point(figure, "counts", CALCULATED, place, Estimate(number, number, number, 1), run)


def judge_matching(points: Sequence[Point]) -> Verdict:
    def checks(curves: Curves) -> list[Check]:
        ratios = curves.ratio(CALCULATED, MEASURED)
        return [near("calculated near measured", [ratio - 1 for ratio in ratios.values()])]

    return judge(points, checks, "The formula takes the cache as steady and the recorder's sample as Poisson.")


def _figure(number: str, phase: str, settings: Callable[[Lab], Settings], symbol: str, x: Axis, what: str) -> Figure:
    figure = f"ssj-4{number}"
    through = "the cache" if phase == "w_N" else "the disk phase"
    return Figure(
        figure,
        f"{phase} of SSJ against {what}",
        x,
        Axis(phase, "tuples per turn"),
        f"Calculated and measured {phase}, the tuples that a turn of the main loop serves through {through}, "
        f"correspond well while {what} varies (no number is given, we hold the median to 15 %).",
        partial(_measure, figure=figure, phase=phase, settings=settings, symbol=symbol),
        judge_matching,
    )


_CACHE = Axis("cache h_R", "tuples")
_BUFFER = Axis("disk buffer d", "tuples", log=True)
FIGURES = (
    _figure("a", "w_N", _by_cache, "h_R", _CACHE, "the size of H_R"),
    _figure("b", "w_S", _by_cache, "h_R", _CACHE, "the size of H_R"),
    _figure("c", "w_N", _by_size, "d", SIZE_AXIS, "the size of R"),
    _figure("d", "w_S", _by_size, "d", SIZE_AXIS, "the size of R"),
    _figure("e", "w_N", _by_buffer, "d", _BUFFER, "the disk buffer"),
    _figure("f", "w_S", _by_buffer, "d", _BUFFER, "the disk buffer"),
)
