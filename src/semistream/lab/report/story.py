"""Ten pictures that tell what came out, before all the figures: each has a sentence that says what to see."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes

from semistream.lab.figure import Figure, Point, Verdict, Way
from semistream.lab.report import canvas as paper
from semistream.lab.report.beside import draw_beside, has_numbers
from semistream.lab.report.colours import looks
from semistream.lab.report.plots import by_way, draw_panel
from semistream.lab.verdicts import CLOCKS, DEFAULTS, FACTOR_REACHED

_SIZE = (5.2, 3.7)
_MOST = 10
_SHOWN: tuple[Way, ...] = ("counts", "wall", "papers")


@dataclass(frozen=True)
class Judged:
    """A figure with its points and the verdict on it, as the story needs them."""

    figure: Figure
    points: Sequence[Point]
    verdict: Verdict


@dataclass(frozen=True)
class Picture:
    """A picture of the story: what it shows, which figure it belongs to, and the drawing."""

    title: str
    figure: str
    svg: str


#: figures beside whose numbers the paper's stand, and figures of which one clock's panel is shown, with what to see
_BESIDE = {
    "ssbj-5a": "SSBJ over MESHJOIN by memory: what the paper says, what any cache could give, what we count and time",
    "ssbj-5c": "SSBJ over MESHJOIN by skew: nothing to gain without skew, most at 1",
    "ssbj-5f": "How much of the stream SSBJ's cache answers, in the paper and here",
    "ssj-6a": "SSJ over MESHJOIN by memory",
    "sscj-4a": "CACHEJOIN over HYBRIDJOIN by memory",
}
#: shown where there is room
_BESIDE_TOO = {"ssbj-4b": "Memory that MESHJOIN needs over SSBJ's, by the size of R"}
_PANELS: Mapping[str, tuple[Way, str]] = {
    "oxhybridjoin-6b": ("wall", "Optimised X-HYBRIDJOIN and its relatives, all tuned and with defaults, by memory"),
    "opcachejoin-6b": ("wall", "Phases side by side: OP- and P-CACHEJOIN beside CACHEJOIN on this machine's cores"),
    "peers-batch": ("wall", "Joining batch by batch: ours and today's tools"),
    "ssbj-6a": ("counts", "SSBJ's switching factor: does a hysteresis help?"),
    "growth": ("papers", "What a tuple costs as R grows to a hundred million"),
}


#: title, figure and how to draw it
_Drawing = tuple[str, str, Callable[[Axes], None]]


def story(judged: Sequence[Judged]) -> list[Picture]:
    """Up to ten pictures, of what there is: the claimed factors, then figure by figure, then what tuning gives."""
    by_name = {one.figure.id: one for one in judged}
    made: list[_Drawing] = []
    sized = [one for one in judged if any(marks.sizes for marks in one.verdict.marks.values())]
    if sized:
        made.append(
            ("How much of each claimed factor is there, by three clocks", "", lambda axes: _factors(axes, sized))
        )
    made += _all_beside(by_name, _BESIDE)
    gains = _gains(judged)
    if gains:
        made.append(("What tuning gives each algorithm over its defaults", "", lambda axes: _gain_bars(axes, gains)))
    for name, (way, title) in _PANELS.items():
        one = by_name.get(name)
        if one is not None and by_way(one.points):
            made.append((title, name, _panel(one, way)))
    made += _all_beside(by_name, _BESIDE_TOO)
    with paper.settings():
        return [_picture(number, *each) for number, each in enumerate(made[:_MOST])]


def _all_beside(by_name: Mapping[str, Judged], titles: Mapping[str, str]) -> list[_Drawing]:
    found = ((title, by_name[name]) for name, title in titles.items() if name in by_name)
    return [(title, one.figure.id, _beside(one)) for title, one in found if has_numbers(one.figure, one.points)]


def _picture(number: int, title: str, figure: str, draw: Callable[[Axes], None]) -> Picture:
    drawn = paper.new_canvas(*_SIZE)
    draw(drawn.add_subplot())
    return Picture(title, figure, paper.inline_svg(drawn, f"story-{number}", title))


def _beside(one: Judged) -> Callable[[Axes], None]:
    return lambda axes: draw_beside(axes, one.figure, one.points)


def _panel(one: Judged, way: Way) -> Callable[[Axes], None]:
    panels = by_way(one.points)
    shown = panels.get(way) or next(iter(panels.values()))
    styles = looks(p.series for p in one.points)

    def draw(axes: Axes) -> None:
        draw_panel(axes, one.figure, shown, styles)
        if one.figure.kind in ("lines", "box") or len({p.x for p in shown}) > 1:
            axes.legend(fontsize=7)

    return draw


def _factors(axes: Axes, sized: Sequence[Judged]) -> None:
    """A line per claimed factor, a marker per clock; 1 is the claim."""
    styles = looks(CLOCKS[way] for way in CLOCKS)
    names = [one.figure.id for one in sized][::-1]
    axes.axvspan(FACTOR_REACHED, 1 / FACTOR_REACHED, color=paper.GRID, alpha=0.6)
    axes.axvline(1.0, color=paper.FAINT, linewidth=1)
    for way in _SHOWN:
        look = styles[CLOCKS[way]]
        spots = [
            (share, place)
            for place, one in enumerate(sized[::-1])
            for share in (one.verdict.marks[way].sizes if way in one.verdict.marks else ())
            if share > 0
        ]
        if spots:
            x, y = zip(*spots, strict=True)
            axes.plot(x, y, look.marker, color=look.light, label=CLOCKS[way], alpha=0.85, linestyle="none")
    axes.set_xscale("log")
    paper.scale_axis(axes, "x", [0.1, 0.25, 0.5, 1.0, 2.0], True)
    axes.set_yticks(range(len(names)), names, fontsize=7)
    axes.set_xlabel("our factor over the claimed one")
    axes.legend(fontsize=7, loc="upper left")


def _gains(judged: Sequence[Judged]) -> dict[str, dict[Way, float]]:
    """By algorithm and clock, the middle one of all rates tuned over those with defaults."""
    found: dict[str, dict[Way, list[float]]] = {}
    for one in judged:
        known = {(p.way, p.series, p.x): p.y for p in one.points if p.y > 0}
        for (way, series, x), y in known.items():
            usual = known.get((way, f"{series}{DEFAULTS}", x))
            if usual is not None and math.isfinite(usual):
                found.setdefault(series, {}).setdefault(way, []).append(y / usual)
    return {name: {way: statistics.median(each) for way, each in ways.items()} for name, ways in found.items()}


def _gain_bars(axes: Axes, gains: Mapping[str, Mapping[Way, float]]) -> None:
    styles = looks(CLOCKS[way] for way in CLOCKS)
    names = list(gains)
    ways: list[Way] = [way for way in _SHOWN[1:] if any(way in each for each in gains.values())]
    height = 0.8 / max(len(ways), 1)
    for number, way in enumerate(ways):
        places = [place - 0.4 + (number + 0.5) * height for place in range(len(names))]
        values = [gains[name].get(way, 0.0) for name in names]
        axes.barh(places, values, height * 0.9, color=styles[CLOCKS[way]].light, label=CLOCKS[way])
    axes.axvline(1.0, color=paper.FAINT, linewidth=1)
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    paper.scale_axis(axes, "x", [0.0, *(v for each in gains.values() for v in each.values())], False, from_zero=True)
    axes.set_xlabel("rate tuned over rate with defaults")
    axes.legend(fontsize=7)
