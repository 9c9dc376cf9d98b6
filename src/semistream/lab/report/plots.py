"""A figure's points as a picture: one panel a way of measuring, one curve a series.

What the kinds expect of the points:

    lines     y over x, with its interval
    bars      a bar a series; with several x, groups of them. settings["label"] names an x
    box       settings["quantiles"] holds the 5, 25, 50, 75 and 95 % quantiles; without them the interval is drawn
    surface   x and settings["z"], a second size called settings["z_label"], with y as colour

A point without a finite y draws nothing: it carries a note (settings["note"]) why there is no value. One whose run did
not come to rest (settings["steady"]) has a ring. Where something happens on the way, settings["mark_x"] says where and
settings["mark"] what.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.container import ErrorbarContainer

from semistream.lab.figure import Axis, Figure, Point, Way
from semistream.lab.report import canvas as paper
from semistream.lab.report.colours import Look, looks
from semistream.lab.report.numbers import short
from semistream.lab.report.surface import draw_surface, spans_plane

WAYS: dict[Way, str] = {
    "counts": "Counted in runs, no clock",
    "wall": "Wall clock, this machine",
    "papers": "Cost clock, machine of the papers' time",
    "machine": "Cost clock, this machine",
}
PANEL_WIDTH, PANEL_HEIGHT = 5.0, 3.5
#: in a page, one panel alone and one of several: at these sizes letters are as large as the page's small print
_ALONE, _BESIDE = (5.6, 3.6), (3.9, 2.9)
#: letters that fit: of a title and of a legend over the width of a panel, and of an axis along its height; and what the
#: marker of a curve takes in a legend, in letters
_TITLE, _ROW, _SIDE, _MARKER = 52, 72, 40, 8
#: inches of a line of text
_LINE = 0.2
#: more points than that on a curve: no markers, and a band instead of bars
_CROWDED = 25
_QUANTILES = 5

#: units of figures that no clock has a part in
_BYTES = ("bytes", "kB", "MB", "GB")

Looks = Mapping[str, Look]


def by_way(points: Sequence[Point]) -> dict[Way, list[Point]]:
    """The points that can be drawn, by panel."""
    found = {way: [p for p in points if p.way == way and math.isfinite(p.y)] for way in WAYS}
    return {way: mine for way, mine in found.items() if mine}


def save_plots(figure: Figure, points: Sequence[Point], folder: Path) -> list[Path]:
    """All panels side by side, as SVG and as PNG; nothing where there is nothing to draw."""
    panels = by_way(points)
    captions = {caption(figure, way, len(panels)): mine for way, mine in panels.items()}
    return save_panels(figure, captions, looks(p.series for p in points), folder) if panels else []


def save_panels(
    figure: Figure,
    panels: Mapping[str, Sequence[Point]],
    styles: Looks,
    folder: Path,
    *,
    same_y: bool = False,
    height: float = PANEL_HEIGHT,
) -> list[Path]:
    """Panels side by side under their captions, with one legend, as SVG and as PNG; `same_y` gives them one scale."""
    with paper.settings():
        title = textwrap.wrap(f"{figure.id}  {figure.title}", _TITLE * len(panels))
        labels = list(dict.fromkeys(point.series for mine in panels.values() for point in mine))
        columns = _columns(labels, len(panels))
        lines = len(title) + -(-len(labels) // columns)
        canvas = paper.new_canvas(PANEL_WIDTH * len(panels), height + 0.5 + _LINE * lines)
        grid = canvas.subplots(1, len(panels), squeeze=False, sharey=same_y)[0]
        for axes, (text, mine) in zip(grid, panels.items(), strict=True):
            draw_panel(axes, figure, mine, styles)
            axes.set_title(text)
        canvas.suptitle("\n".join(title), fontsize=11)
        handles, labels = _legend(grid)
        if len(labels) > 1:
            canvas.legend(handles, labels, loc="outside lower center", ncols=columns)
        paper.settle(canvas)
        return [paper.save(canvas, folder / f"{figure.id}.{kind}") for kind in ("svg", "png")]


def inline_panels(figure: Figure, points: Sequence[Point]) -> dict[Way, str]:
    """Each panel as SVG for a page, which has title and legend of its own."""
    styles = looks(p.series for p in points)
    pictures: dict[Way, str] = {}
    panels = by_way(points)
    with paper.settings():
        for way, mine in panels.items():
            canvas = paper.new_canvas(*(_ALONE if len(panels) == 1 else _BESIDE))
            draw_panel(canvas.add_subplot(), figure, mine, styles)
            pictures[way] = paper.inline_svg(
                canvas, f"{figure.id}-{way}", f"{figure.title}. {caption(figure, way, len(panels))}"
            )
    return pictures


def caption(figure: Figure, way: Way, panels: int) -> str:
    """By which clock; bytes that stand alone have none."""
    return "This machine" if panels == 1 and way == "wall" and figure.y.unit in _BYTES else WAYS[way]


def needs_legend(figure: Figure, points: Sequence[Point]) -> bool:
    """Whether colours have to be explained: not where bars are labelled, nor for one curve."""
    several = len({p.series for p in points if math.isfinite(p.y)}) > 1
    return several and figure.kind != "surface" and not (figure.kind == "bars" and _single_x(points))


def draw_panel(axes: Axes, figure: Figure, points: Sequence[Point], styles: Looks) -> None:
    """One way of measuring."""
    kinds: dict[str, Callable[[Axes, Figure, Sequence[Point], Looks], None]] = {
        "lines": _lines,
        "bars": _bars,
        "box": _boxes,
        "surface": _surface,
    }
    shown = replace(figure, y=figure.axis_of(points[0].way))
    kinds[figure.kind](axes, shown, points, styles)


def axis_label(axis: Axis) -> str:
    """What the axis shows, and its unit."""
    return f"{axis.label} ({axis.unit})" if axis.unit else axis.label


def _label_axes(axes: Axes, figure: Figure) -> None:
    axes.set_xlabel(axis_label(figure.x))
    axes.set_ylabel(textwrap.fill(axis_label(figure.y), _SIDE))


def _columns(labels: Sequence[str], panels: int) -> int:
    """Columns of a legend: no wider together than the panels above them."""
    fitting = _ROW * panels // (max(map(len, labels)) + _MARKER)
    return max(min(len(labels), 2 + 2 * panels, fitting), 1)


def _legend(grid: Sequence[Axes]) -> tuple[list[Artist], list[str]]:
    found: dict[str, Artist] = {}
    for axes in grid:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            # The line without its whiskers reads better.
            found.setdefault(label, handle[0] if isinstance(handle, ErrorbarContainer) else handle)
    return list(found.values()), list(found)


def _series(points: Sequence[Point]) -> dict[str, list[Point]]:
    """Points of each series in the order of x; series in the order they come."""
    found: dict[str, list[Point]] = {}
    for point in points:
        found.setdefault(point.series, []).append(point)
    return {name: sorted(mine, key=lambda p: p.x) for name, mine in found.items()}


def _single_x(points: Sequence[Point]) -> bool:
    return len({p.x for p in points if math.isfinite(p.y)}) <= 1


def _interval(point: Point) -> tuple[float, float]:
    """How far the interval reaches down and up from the mean."""
    below, above = point.y - point.low, point.high - point.y
    return (below if below > 0 else 0.0, above if above > 0 else 0.0)


def _lines(axes: Axes, figure: Figure, points: Sequence[Point], styles: Looks) -> None:
    for name, mine in _series(points).items():
        look = styles[name]
        x, y = [p.x for p in mine], [p.y for p in mine]
        face = look.light if look.filled else "none"
        if len(mine) > _CROWDED:
            axes.plot(x, y, color=look.light, linestyle=look.line, label=name)
            if any(sum(_interval(p)) > 0 for p in mine):
                low, high = zip(*((p.y - _interval(p)[0], p.y + _interval(p)[1]) for p in mine), strict=True)
                axes.fill_between(x, low, high, color=look.light, alpha=0.18, linewidth=0)
            continue
        spread = list(zip(*(_interval(p) for p in mine), strict=True))
        axes.errorbar(
            x,
            y,
            yerr=spread if any(map(any, spread)) else None,
            color=look.light,
            linestyle=look.line,
            marker=look.marker,
            markersize=8 if look.marker == "*" else None,
            markerfacecolor=face,
            elinewidth=1.0,
            capsize=2.5,
            label=name,
        )
    restless = [p for p in points if p.settings.get("steady") is False]
    if restless:
        axes.plot(
            [p.x for p in restless],
            [p.y for p in restless],
            marker="o",
            markersize=11,
            markerfacecolor="none",
            markeredgecolor=paper.FAINT,
            linestyle="none",
        )
    marks = {p.settings["mark_x"]: str(p.settings.get("mark", "")) for p in points if "mark_x" in p.settings}
    for x, text in marks.items():
        axes.axvline(x, color=paper.FAINT, linestyle="dotted", linewidth=1.2)
        axes.annotate(text, (x, 1.01), xycoords=("data", "axes fraction"), ha="center", va="bottom", fontsize=8)
    paper.scale_axis(axes, "x", [p.x for p in points], figure.x.log)
    paper.scale_axis(axes, "y", [p.y for p in points], figure.y.log, from_zero=True)
    _label_axes(axes, figure)


def _bars(axes: Axes, figure: Figure, points: Sequence[Point], styles: Looks) -> None:
    if _single_x(points):
        _labelled_bars(axes, figure, points, styles)
        return
    series = _series(points)
    places = {x: i for i, x in enumerate(sorted({p.x for p in points}))}
    width = 0.8 / len(series)
    for number, (name, mine) in enumerate(series.items()):
        axes.bar(
            [places[p.x] + (number + 0.5) * width - 0.4 for p in mine],
            [p.y for p in mine],
            width * 0.92,
            yerr=list(zip(*(_interval(p) for p in mine), strict=True)),
            error_kw={"ecolor": paper.FAINT, "elinewidth": 1.0, "capsize": 2},
            label=name,
            **_filling(styles[name]),
        )
    names = {p.x: str(p.settings.get("label", short(p.x))) for p in points}
    axes.set_xticks(list(places.values()), [names[x] for x in places])
    axes.grid(visible=False, axis="x")
    paper.scale_axis(axes, "y", [p.y for p in points], figure.y.log, from_zero=True)
    _label_axes(axes, figure)


def _labelled_bars(axes: Axes, figure: Figure, points: Sequence[Point], styles: Looks) -> None:
    """Bars of one x lie on their side, so that there is room for their names; each ends in its number."""
    names = [p.series for p in points][::-1]
    bars = list(points)[::-1]
    at = list(range(len(bars)))
    for place, point in zip(at, bars, strict=True):
        error = [[side] for side in _interval(point)]
        axes.barh(
            place,
            point.y,
            0.7,
            xerr=error if any(map(any, error)) else None,
            error_kw={"ecolor": paper.FAINT, "elinewidth": 1.0, "capsize": 2},
            **_filling(styles[point.series]),
        )
        end = max(point.high, point.y) if math.isfinite(point.high) else point.y
        axes.annotate(short(point.y), (end, place), xytext=(4, 0), textcoords="offset points", va="center", fontsize=8)
    axes.set_yticks(at, names)
    axes.grid(visible=False, axis="y")
    axes.margins(x=0.14)
    paper.scale_axis(axes, "x", [p.y for p in points], figure.y.log, from_zero=True)
    axes.set_xlabel(axis_label(figure.y))


def _filling(look: Look) -> dict[str, Any]:
    """Bars of predicted values are hollow."""
    if look.filled:
        return {"color": look.light}
    return {"facecolor": "none", "edgecolor": look.light, "linewidth": 1.4, "linestyle": look.line}


def _boxes(axes: Axes, figure: Figure, points: Sequence[Point], styles: Looks) -> None:
    series = _series(points)
    places = {x: i for i, x in enumerate(sorted({p.x for p in points}))}
    width = 0.8 / len(series)
    reached: list[float] = []
    for number, (name, mine) in enumerate(series.items()):
        look = styles[name]
        for point in mine:
            five = _five(point)
            reached += five
            keys = ("whislo", "q1", "med", "q3", "whishi")
            drawn = axes.bxp(
                [{**dict(zip(keys, five, strict=True)), "mean": point.y}],
                positions=[places[point.x] + (number + 0.5) * width - 0.4],
                widths=[width * 0.8],
                showfliers=False,
                showmeans=True,
                patch_artist=True,
                manage_ticks=False,
                boxprops={"facecolor": look.light, "alpha": 0.35, "edgecolor": look.light},
                medianprops={"color": look.light, "linewidth": 2.0},
                whiskerprops={"color": look.light},
                capprops={"color": look.light},
                meanprops={
                    "marker": look.marker,
                    "markerfacecolor": look.light,
                    "markeredgecolor": look.light,
                    "markersize": 4,
                },
            )
            if point is mine[0]:
                drawn["boxes"][0].set_label(name)
    names = {p.x: str(p.settings.get("label", short(p.x))) for p in points}
    axes.set_xticks(list(places.values()), [names[x] for x in places])
    axes.grid(visible=False, axis="x")
    paper.scale_axis(axes, "y", reached, figure.y.log, from_zero=True)
    _label_axes(axes, figure)


def _five(point: Point) -> list[float]:
    given = point.settings.get("quantiles")
    if isinstance(given, Sequence) and len(given) == _QUANTILES:
        return [float(value) for value in given]
    return [point.low, point.low, point.y, point.high, point.high]


def _surface(axes: Axes, figure: Figure, points: Sequence[Point], styles: Looks) -> None:
    """x and the second size span the plane, the value is the colour; with too few points, curves over x."""
    values = [(p.x, float(p.settings["z"]), p.y) for p in points]
    if not spans_plane(values):
        _lines(axes, figure, points, styles)
        return
    labels = (axis_label(figure.x), str(points[0].settings["z_label"]), axis_label(figure.y))
    draw_surface(axes, values, labels=labels, log_x=figure.x.log)
