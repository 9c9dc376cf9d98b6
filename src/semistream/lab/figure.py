"""What a figure is: points of curves, how they are measured, and what the paper says about them.

A figure is named by its paper and number, `ssbj-5a`; ours beyond the papers by a word, `peers-batch`. It owns its
measurement (`run`) and its judgement (`judge`); drawing it is the report's business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

#: How a value was found: counts priced as on a machine of the papers' time, counts priced as on this machine, or
#: a real clock. The first two are the same in every run with the same seed (and profile). "counts": no clock at all,
#: such as a share of tuples.
Way = Literal["papers", "machine", "wall", "counts"]
Outcome = Literal["held", "partly", "not"]
#: What a claim says: who is ahead (or any other statement), by how much, and how that changes along the axis.
Part = Literal["direction", "size", "trend"]
PARTS: tuple[Part, ...] = ("direction", "size", "trend")


@dataclass(frozen=True)
class Axis:
    """One axis: what it shows and in which unit."""

    label: str
    unit: str = ""
    log: bool = False


@dataclass(frozen=True)
class Point:
    """One value of a curve: a mean with its 95 % confidence interval over n turns."""

    figure: str
    way: Way
    #: the algorithm, or whatever else the curve stands for
    series: str
    x: float
    y: float
    low: float
    high: float
    n: int
    #: what was held fixed or is worth knowing, as JSON values; a surface has the value on its second axis in
    #: "z" and the name of that axis in "z_label", a box its 5, 25, 50, 75 and 95 % quantiles in "quantiles"
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Marks:
    """What one clock says of a claim, part by part; None where the claim has no such part, or cannot fail."""

    direction: bool | None = None
    size: bool | None = None
    trend: bool | None = None
    #: our factors as parts of the claimed ones, in the order of the claim: 0.3 is a third of what is claimed
    sizes: tuple[float, ...] = ()
    #: the numbers behind the marks
    numbers: str = ""
    #: points that were not at rest among those this clock judged
    unrested: int = 0
    #: how many times faster the machine was for some of them than for others, and how many do not say how fast it was
    pace: float = 1.0
    unpaced: int = 0
    #: why this clock does not judge
    unjudged: str = ""

    def of(self, part: Part) -> bool | None:
        return {"direction": self.direction, "size": self.size, "trend": self.trend}[part]


@dataclass(frozen=True)
class Verdict:
    """How a claim fares: our numbers for it, the reason where it does not hold, and marks by clock and part.

    `outcome` is one word by the first clock that judges. It hides by how much a claim fails, so the report shows the
    marks instead.
    """

    outcome: Outcome
    measured: str
    why: str = ""
    marks: Mapping[Way, Marks] = field(default_factory=dict)
    #: what has to be known beside the marks: points that are not at rest, cores, how much phases ran side by side
    notes: tuple[str, ...] = ()

    @property
    def at_rest(self) -> bool:
        """Whether every point that was judged was at rest."""
        return not any(marks.unrested for marks in self.marks.values())


@dataclass(frozen=True)
class Printed:
    """A number that the paper's text gives for a place on its curve: of one series, or of one over another."""

    x: float
    y: float
    series: str
    over: str = ""
    #: x is a part of the largest value on our axis, for the paper's sizes are larger than ours
    in_proportion: bool = False


@dataclass(frozen=True)
class Figure:
    """A figure of a paper, or one of ours."""

    id: str
    title: str
    x: Axis
    y: Axis
    #: what the paper says, in our words and its numbers
    claim: str
    #: measures the figure; `Lab` (lab.py) gives scale, seed, data, profiles and remembered runs
    run: Callable[[Any], Iterator[Point]]
    judge: Callable[[Sequence[Point]], Verdict]
    #: "lines", "bars", "surface" or "box"
    kind: str = "lines"
    #: what is shown without a clock (way "counts") beside a y that needs one
    counts: Axis | None = None
    #: whether operators run for it; the others are quick
    joins: bool = True
    #: the paper's curve, as far as its text gives numbers
    printed: tuple[Printed, ...] = ()

    def axis_of(self, way: Way) -> Axis:
        """The y axis of a panel."""
        return self.counts if way == "counts" and self.counts is not None else self.y
