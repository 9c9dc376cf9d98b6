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
class Verdict:
    """How a claim fares: the outcome, our numbers for it, and the reason where it does not hold."""

    outcome: Outcome
    measured: str
    why: str = ""


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
