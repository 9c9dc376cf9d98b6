"""The paper's numbers beside ours: as far as its text prints them, at the places it prints them for."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from matplotlib.axes import Axes

from semistream.lab.figure import Figure, Point, Printed, Way
from semistream.lab.report import canvas as paper
from semistream.lab.report.colours import looks
from semistream.lab.report.plots import axis_label
from semistream.lab.verdicts import CLOCKS, Curves

#: clocks whose curves stand beside the paper's
_SHOWN: tuple[Way, ...] = ("counts", "wall", "papers")
_PAPER, _OPTIMUM = "the paper's text", "the most any cache can give (W*)"
_SIZE = (5.6, 3.6)


def has_numbers(figure: Figure, points: Sequence[Point]) -> bool:
    """Whether the paper's text has numbers for what these points show."""
    return any(curve for pair in _pairs(figure) for _, curve in _curves(points, *pair))


def inline_beside(figure: Figure, points: Sequence[Point], name: str) -> str:
    """A panel for a page."""
    with paper.settings():
        drawn = paper.new_canvas(*_SIZE)
        draw_beside(drawn.add_subplot(), figure, points)
        return paper.inline_svg(drawn, name, f"{figure.title}. Our numbers beside those of the paper's text")


def draw_beside(axes: Axes, figure: Figure, points: Sequence[Point]) -> None:
    """Our curves by each clock, and the paper's numbers as stars; ratios where the paper gives ratios."""
    styles = looks(CLOCKS[way] for way in CLOCKS)
    pair = _pairs(figure)[0]
    reached: list[float] = []
    places: list[float] = []
    for way, curve in _curves(points, *pair):
        look = styles[CLOCKS[way]]
        axes.plot(list(curve), list(curve.values()), color=look.light, marker=look.marker, label=CLOCKS[way])
        reached += curve.values()
        places += curve
    best = {p.x: float(p.settings["w_star_over_meshjoin"]) for p in points if p.settings.get("w_star_over_meshjoin")}
    if best and pair[1] == "meshjoin":
        ordered = sorted(best.items())
        x, y = [x for x, _ in ordered], [y for _, y in ordered]
        axes.plot(x, y, label=_OPTIMUM, color=paper.FAINT, linestyle="dotted")
        reached += best.values()
    printed = [(_place(one, places), one.y) for one in figure.printed if (one.series, one.over) == pair]
    x, y = [x for x, _ in printed], [y for _, y in printed]
    axes.plot(x, y, color=paper.INK, linestyle="dashed", marker="*", markersize=11, label=_PAPER)
    if pair[1]:
        axes.axhline(1.0, color=paper.FAINT, linewidth=0.8)
    paper.scale_axis(axes, "x", [*places, *x], figure.x.log)
    paper.scale_axis(axes, "y", [*reached, *y], False, from_zero=True)
    axes.set_xlabel(axis_label(figure.x))
    axes.set_ylabel(f"{pair[0]} / {pair[1]}" if pair[1] else axis_label(figure.y))
    axes.legend(fontsize=8)


def _pairs(figure: Figure) -> list[tuple[str, str]]:
    """Series, and what it is over ("" for itself), in the order of the text."""
    return list(dict.fromkeys((one.series, one.over) for one in figure.printed))


def _curves(points: Sequence[Point], series: str, over: str) -> Iterator[tuple[Way, dict[float, float]]]:
    for way in _SHOWN:
        curves = Curves([p for p in points if math.isfinite(p.y)], way)
        found = curves.ratio(series, over) if over else curves.series.get(series, {})
        if found:
            yield way, found


def _place(one: Printed, ours: Sequence[float]) -> float:
    return one.x * max(ours) if one.in_proportion and ours else one.x
