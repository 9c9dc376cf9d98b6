"""What the cost model says beside what was measured, one dot per run."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from semistream.errors import ConfigError
from semistream.lab.report import canvas as paper
from semistream.lab.report.colours import LOOKS, looks

#: how far a prediction may be off
BAND = 0.15


class Validated(NamedTuple):
    """A prediction beside its measurement, in one unit."""

    algorithm: str
    setting: str
    predicted: float
    measured: float


def plot_validation(
    rows: Iterable[tuple[str, str, float, float]],
    path: Path,
    *,
    quantity: str = "cost of a tuple",
    unit: str = "s",
    title: str | None = None,
) -> Path:
    """Predicted over measured with the ±15 % band, as SVG or PNG; a row is a `Validated` or what makes one."""
    shown = [row for row in map(Validated._make, rows) if row.predicted > 0 and row.measured > 0]
    if not shown:
        raise ConfigError("there is no prediction to show beside a measurement; give at least one row above 0")
    within = sum(abs(row.predicted / row.measured - 1) <= BAND for row in shown)
    given = dict.fromkeys(row.algorithm for row in shown)
    names = [*(name for name in LOOKS if name in given), *(name for name in given if name not in LOOKS)]
    styles = looks(names)
    low = min(min(row.predicted, row.measured) for row in shown) / 1.3
    high = max(max(row.predicted, row.measured) for row in shown) * 1.3
    with paper.settings():
        canvas = paper.new_canvas(7.2, 5.2)
        axes = canvas.add_subplot()
        ends = [low, high]
        axes.fill_between(
            ends, [e * (1 - BAND) for e in ends], [e * (1 + BAND) for e in ends], color=paper.GRID, label="±15 %"
        )
        axes.plot(ends, ends, color=paper.FAINT, linewidth=1)
        for name in names:
            mine = [row for row in shown if row.algorithm == name]
            look = styles[name]
            axes.plot(
                [row.measured for row in mine],
                [row.predicted for row in mine],
                look.marker,
                color=look.light,
                alpha=0.85,
                linestyle="none",
                label=f"{name} ({statistics.median(row.predicted / row.measured - 1 for row in mine):+.0%})",
            )
        for which in ("x", "y"):
            paper.scale_axis(axes, which, [low, high], True)
        axes.set(xlim=(low, high), ylim=(low, high), aspect="equal")
        axes.set_xlabel(f"measured {quantity} ({unit})")
        axes.set_ylabel(f"predicted {quantity} ({unit})")
        canvas.suptitle(title or f"{within} of {len(shown)} predictions within 15 %", fontsize=11)
        canvas.legend(loc="outside right center", title="median deviation", fontsize=8)
        return paper.save(canvas, path)
