"""How the rate depends on two sizes at once: heat maps, and the tuning surfaces of `cost.tune` on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.tri import Triangulation

from semistream.cost.tune import Point, Tuning
from semistream.errors import ConfigError
from semistream.lab.report import canvas as paper
from semistream.lab.report.colours import looks
from semistream.lab.report.numbers import short

#: perceptually even, and readable without colours
_COLOURS = "viridis"
_MARK = "#cc3311"
_MARKERS = "*PXD"
_LEVELS = 12
_LEAST_POINTS = 4
#: from that ratio of largest to smallest on, a size is drawn by factors
_WIDE = 30.0
_RATE = "service rate (tuples/s)"

Spot = tuple[float, float]


def draw_surface(
    axes: Axes,
    values: Sequence[tuple[float, float, float]],
    *,
    labels: tuple[str, str, str],
    log_x: bool = False,
    marks: Mapping[str, Spot] | None = None,
) -> None:
    """A heat map with contours over points (x, second size, value) anywhere in the plane; the best one is marked."""
    x, z, value = (np.array(column, dtype=np.float64) for column in zip(*values, strict=True))
    if not spans_plane(values):
        raise ConfigError(f"{len(x)} points span no plane; a surface needs at least {_LEAST_POINTS}, not all on a line")
    # Triangles between neighbours, whatever the units of the axes.
    mesh = Triangulation(x, z, Triangulation(_unit(np.log(x) if log_x else x), _unit(z)).triangles)
    filled = axes.tricontourf(mesh, value, levels=_LEVELS, cmap=_COLOURS)
    # Without edges, antialiasing leaves bright seams between the bands of an SVG.
    filled.set_edgecolor("face")
    axes.tricontour(mesh, value, levels=_LEVELS, colors="white", linewidths=0.5, alpha=0.6)
    axes.plot(x, z, ".", color="white", markersize=2.4, alpha=0.75)
    best = int(np.argmax(value))
    placed = {f"best: {short(float(value[best]))}": (float(x[best]), float(z[best])), **(marks or {})}
    for marker, (name, spot) in zip(_MARKERS, placed.items(), strict=False):
        axes.plot(*spot, marker, color=_MARK, markeredgecolor="white", markersize=12, label=name, clip_on=False)
    axes.figure.colorbar(filled, ax=axes, label=labels[2], format=lambda v, _: short(v))
    paper.scale_axis(axes, "x", x.tolist(), log_x)
    paper.scale_axis(axes, "y", z.tolist(), False)
    axes.grid(visible=False)
    axes.set_xlabel(labels[0])
    axes.set_ylabel(labels[1])
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=len(placed), handletextpad=0.2)


def spans_plane(values: Sequence[tuple[float, float, float]]) -> bool:
    """Whether points (x, second size, value) are enough for a surface: a few, and not all on a line."""
    if len(values) < _LEAST_POINTS:
        return False
    x, z = (np.array([value[i] for value in values], dtype=np.float64) for i in (0, 1))
    if len(set(x)) < 2 or len(set(z)) < 2:
        return False
    places = np.stack((_unit(x), _unit(z)), axis=1)
    return bool(np.linalg.matrix_rank(places - places[0], tol=1e-6) == 2)


def _unit(values: np.ndarray) -> np.ndarray:
    low, high = float(values.min()), float(values.max())
    return np.asarray((values - low) / (high - low))


def plot_surface(
    tuning: Tuning, path: Path, *, title: str | None = None, marks: Mapping[str, Point] | None = None
) -> Path:
    """The rate over d and h_R, as SVG or PNG; over the knobs themselves where those are others, or only one.

    `marks` are further points by name, say the empirical optimum on the analytic surface.
    """
    knobs = _varied(tuning)
    if not knobs:
        raise ConfigError(f"{tuning.algorithm} was tuned without a choice: no option differs between its points")
    with paper.settings():
        canvas = paper.new_canvas(6.4, 4.8)
        canvas.suptitle(title or f"{tuning.algorithm}: service rate by its sizes", fontsize=11)
        axes = canvas.add_subplot()
        if len(knobs) == 1:
            _draw_curve(axes, tuning, knobs[0])
        else:
            _draw_plane(axes, tuning, knobs, marks or {})
        return paper.save(canvas, path)


def _varied(tuning: Tuning) -> list[str]:
    """Options with more than one value among the points, in the order the points name them."""
    values: dict[str, set[float]] = {}
    for point in tuning.surface:
        for name, value in point.options.items():
            values.setdefault(name, set()).add(value)
    return [name for name, several in values.items() if len(several) > 1]


def _draw_plane(axes: Axes, tuning: Tuning, knobs: list[str], marks: Mapping[str, Point]) -> None:
    """Of points that differ only in a third knob the best one counts."""
    best: dict[tuple[float, ...], Point] = {}
    for point in tuning.surface:
        if all(name in point.options for name in knobs):
            place = tuple(point.options[name] for name in knobs[:2])
            best[place] = max(best.get(place, point), point, key=lambda p: p.rate_per_s)
    points = list(best.values())
    if len({p.d for p in points}) > 1 and len({p.h_R for p in points}) > 1:
        labels = ("disk buffer d (tuples)", "cache h_R (tuples)")
        spots = [(p.d, p.h_R) for p in points]
        marked = {name: (p.d, p.h_R) for name, p in marks.items()}
    else:
        labels = (_spelt(knobs[0]), _spelt(knobs[1]))
        spots = [(p.options[knobs[0]], p.options[knobs[1]]) for p in points]
        known = {name: p for name, p in marks.items() if all(knob in p.options for knob in knobs[:2])}
        marked = {name: (p.options[knobs[0]], p.options[knobs[1]]) for name, p in known.items()}
    across = [spot[0] for spot in spots]
    draw_surface(
        axes,
        [(*spot, p.rate_per_s) for spot, p in zip(spots, points, strict=True)],
        labels=(*labels, _RATE),
        log_x=_wide(across),
        marks=marked,
    )


def _draw_curve(axes: Axes, tuning: Tuning, knob: str) -> None:
    look = looks([tuning.algorithm])[tuning.algorithm]
    points = sorted((p for p in tuning.surface if knob in p.options), key=lambda p: p.options[knob])
    x, y = [p.options[knob] for p in points], [p.rate_per_s for p in points]
    axes.plot(x, y, color=look.light, marker=look.marker)
    if knob in tuning.best.options:
        axes.plot(tuning.best.options[knob], tuning.best.rate_per_s, "*", color=_MARK, markersize=12, label="best")
        axes.legend()
    paper.scale_axis(axes, "x", x, _wide(x))
    paper.scale_axis(axes, "y", y, False, from_zero=True)
    axes.set_xlabel(_spelt(knob))
    axes.set_ylabel(_RATE)


def _wide(values: Sequence[float]) -> bool:
    return min(values) > 0 and max(values) / min(values) > _WIDE


def _spelt(knob: str) -> str:
    """An option's name with its unit."""
    name, _, unit = knob.rpartition("_")
    return f"{name.replace('_', ' ')} ({unit})" if name and unit != "share" else knob.replace("_", " ")
