"""A paper's equation and our model beside what was measured: names of the curves, deviations, and the check.

The claim is the paper's, so its equation as printed decides. What the equation gives where a misprint or a gap is put
right stands with its points, and is told with the verdict like what our model gives.
"""

from __future__ import annotations

from collections.abc import Sequence

from semistream.lab.measure.runs import Estimate
from semistream.lab.verdicts import SAME, Check, Curves

MEASURED, PAPER, OURS = "measured", "paper's equation", "our model"
#: a setting of the points of the paper's equation: its value where the equation is put right
CORRECTED = "corrected"


def exactly(value: float) -> Estimate:
    """A calculated value: it has no spread."""
    return Estimate(value, value, value, 1)


def deviations(curves: Curves, calculated: str, measured: str, instead: str | None = None) -> list[float]:
    """How far a calculated curve is from a measured one at every x that both have, as a share, the least first.

    `instead` names a setting of the calculated points that holds another value of theirs.
    """
    found, known = [], curves.series.get(measured, {})
    for point in curves.points:
        if point.series == calculated and known.get(point.x):
            value = point.y if instead is None else point.settings.get(instead)
            if value is not None:
                found.append(abs(value / known[point.x] - 1))
    return sorted(found)


def spread(name: str, off: Sequence[float]) -> str:
    """The median and the largest of some deviations, as text."""
    if not off:
        return f"{name}: no value"
    return f"{name}: median deviation {off[len(off) // 2]:.1%}, largest {off[-1]:.1%}"


def compared(curves: Curves, what: str, measured: str, paper: str, ours: str) -> Check:
    """The paper's equation near what was measured, its median held to 15 %; ours and the corrected one are told."""
    off = deviations(curves, paper, measured)
    parts = [spread(PAPER, off), spread(CORRECTED, deviations(curves, paper, measured, CORRECTED))]
    parts.append(spread(OURS, deviations(curves, ours, measured)))
    return Check(
        f"{what} by the paper's equation near the measured one",
        bool(off) and off[len(off) // 2] <= SAME,
        ", ".join(parts),
        "size",
    )
