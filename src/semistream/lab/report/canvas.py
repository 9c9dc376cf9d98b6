"""Where pictures are drawn: matplotlib without its global state, and SVG that can stand in a page with others.

The same input gives the same bytes: no dates, and ids that depend on the content only.
"""

from __future__ import annotations

import html
import io
import re
from pathlib import Path
from typing import Any

import numpy as np

from semistream.errors import ConfigError
from semistream.lab.report.colours import Look, colour_pairs
from semistream.lab.report.numbers import short

try:
    import matplotlib as mpl
except ModuleNotFoundError as error:
    raise ConfigError("pictures need matplotlib, which is not installed; pip install 'semistream[report]'") from error
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Canvas
from matplotlib.markers import MarkerStyle
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator

#: not black, which matplotlib leaves out of its SVG
INK, FAINT, GRID = "#1a1a1b", "#6b6b6c", "#dcdcdd"
#: labels that fit along an axis
_LABELLED = 8
_PAGE_COLOURS = {INK: "ink", FAINT: "faint", GRID: "grid"}
_SETTINGS: dict[Any, Any] = {
    "axes.edgecolor": FAINT,
    "axes.facecolor": "none",
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.labelcolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": INK,
    "axes.titlesize": 10,
    "figure.facecolor": "white",
    "font.family": ["DejaVu Sans"],
    "font.size": 9,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "lines.markersize": 5.5,
    "svg.fonttype": "path",
    "svg.hashsalt": "semistream",
    "text.color": INK,
    "xtick.color": FAINT,
    "xtick.labelcolor": INK,
    "ytick.color": FAINT,
    "ytick.labelcolor": INK,
}


def settings() -> Any:
    """A context with the report's settings; draw and save inside of it."""
    return mpl.rc_context({**mpl.rcParamsDefault, **_SETTINGS})


def new_canvas(width: float, height: float) -> Canvas:
    """An empty picture, in inches."""
    canvas = Canvas(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(canvas)
    return canvas


def settle(canvas: Canvas) -> None:
    """Lay the picture out, once for all files it will be written to."""
    canvas.draw_without_rendering()
    canvas.set_layout_engine("none")


def save(canvas: Canvas, path: Path) -> Path:
    """Write SVG or PNG, as the name ends."""
    if path.suffix not in (".svg", ".png"):
        raise ConfigError(f"a picture cannot be written as {path.name!r}; allowed are names that end in .svg or .png")
    path.parent.mkdir(parents=True, exist_ok=True)
    metadata = {"Date": None} if path.suffix == ".svg" else {"Software": None}
    canvas.savefig(path, dpi=160, metadata=metadata)
    return path


def inline_svg(canvas: Canvas, name: str, description: str) -> str:
    """The picture as an element of a page: sized and coloured by the page, ids prefixed with `name`."""
    file = io.StringIO()
    canvas.savefig(file, format="svg", metadata={"Date": None}, transparent=True)
    text = file.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.S)
    # matplotlib's own style speaks of every element of the page.
    text = re.sub(r"<defs>\s*<style[^>]*>.*?</style>\s*</defs>", "", text, flags=re.S)
    prefix = re.sub(r"[^A-Za-z0-9]+", "-", name)
    text = re.sub(r'\bid="', f'id="{prefix}-', text)
    text = re.sub(r'xlink:href="#', f'href="#{prefix}-', text).replace("xlink:href", "href")
    text = re.sub(r"url\(#", f"url(#{prefix}-", text)
    for colour, variable in {**_PAGE_COLOURS, **series_variables()}.items():
        text = text.replace(f": {colour}", f": var(--{variable})")
    head = re.compile(r"<svg[^>]*?viewBox=\"([^\"]*)\"[^>]*>", re.S)
    label = html.escape(description)
    return head.sub(lambda found: f'<svg class="plot" viewBox="{found[1]}" role="img" aria-label="{label}">', text, 1)


def series_variables() -> dict[str, str]:
    """The page's variable for each colour of a series."""
    return {light: f"c{light[1:]}" for light in colour_pairs()}


def scale_axis(axes: Axes, which: str, values: list[float], log: bool, *, from_zero: bool = False) -> None:
    """Set up the x or y axis: readable numbers, log where asked for, from zero where that shows proportions."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    shown = [value for value in values if value > 0] if log else values
    if log and shown:
        (axes.set_xscale if which == "x" else axes.set_yscale)("log")
        few = sorted(set(shown))
        if which == "x" and len(few) <= _LABELLED:
            axis.set_major_locator(FixedLocator(_apart(few)))
        elif few[-1] / few[0] < 30:
            axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_minor_locator(NullLocator())
    else:
        axis.set_major_locator(MaxNLocator(6))
        if from_zero and shown and min(shown) >= 0:
            (axes.set_xlim if which == "x" else axes.set_ylim)(0)
    axis.set_major_formatter(FuncFormatter(lambda value, _: short(value, 4)))


def _apart(values: list[float]) -> list[float]:
    """Of sorted values on a log axis those that leave room for their labels, the last one in any case."""
    least = (values[-1] / values[0]) ** (1 / _LABELLED)
    kept = values[-1:]
    for value in reversed(values[:-1]):
        if kept[-1] / value >= least:
            kept.append(value)
    return kept[::-1]


def swatch(look: Look) -> str:
    """A piece of line with its marker, for a legend in a page."""
    colour = f"var(--{series_variables()[look.light]})"
    dashes = {"dashed": "5 3", "dotted": "1.5 2.5", "dashdot": "6 2.5 1.5 2.5"}.get(look.line)
    style = MarkerStyle(look.marker)
    size = 13 if look.marker == "*" else 8
    outline = style.get_path().transformed(style.get_transform())
    marker = ""
    for shape in outline.to_polygons():
        corners = " ".join(f"{17 + size * x:.1f},{7 - size * y:.1f}" for x, y in np.asarray(shape).tolist())
        marker += f'<polygon points="{corners}"/>'
    dash = f' stroke-dasharray="{dashes}"' if dashes else ""
    return (
        f'<svg viewBox="0 0 34 14" aria-hidden="true"><path d="M1 7H33" style="stroke: {colour}; fill: none" '
        f'stroke-width="2"{dash}/><g style="stroke: {colour}; fill: {colour if look.filled else "var(--card)"}" '
        f'stroke-width="1.2">{marker}</g></svg>'
    )
