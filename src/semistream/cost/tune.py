"""The best sizes for a given R, M and stream, by search over the prediction; no join is opened.

Every knob of the algorithm on a grid, then ever finer around the best point. The threshold of SSJ and CACHEJOIN is no
knob: it finds its own level.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from semistream.algorithms.registry import resolve
from semistream.cost.prediction import Prediction
from semistream.cost.profile import CostProfile
from semistream.cost.situation import Options, Situation
from semistream.errors import BudgetError

_ROUNDS = 3
#: values of each knob in the first round and in the later ones, by the number of knobs
_POINTS = {1: (16, 7), 2: (8, 5), 3: (5, 4)}


@dataclass(frozen=True)
class Point:
    """Options of an algorithm with what they give: d and h_R in tuples, and the service rate."""

    options: Mapping[str, Any]
    d: float
    h_R: float
    rate_per_s: float


@dataclass(frozen=True)
class Tuning:
    """The best point, and all that were looked at: the surface."""

    algorithm: str
    best: Point
    surface: tuple[Point, ...]


def tune(
    algorithm: str, situation: Situation, profile: CostProfile, *, fixed: Options | None = None, serial: bool = False
) -> Tuning:
    """The options with the highest predicted rate; `fixed` ones are kept, `serial` prices no parallel phases."""
    chosen, kept = resolve(algorithm), dict(fixed or {})
    knobs = [knob for knob in chosen.knobs if knob.name not in kept]

    def priced(options: Options) -> Point:
        return _priced(chosen.name, situation, profile, {**kept, **options}, serial)

    surface = [priced({})]
    r, budget = situation.r, situation.budget
    ranges = [(float(knob.low(r, budget)), float(knob.high(r, budget))) for knob in knobs]
    for turn in range(_ROUNDS if knobs else 0):
        count = _POINTS[len(knobs)][min(turn, 1)]
        axes = [knob.values(*reach, count) for knob, reach in zip(knobs, ranges, strict=True)]
        surface += [
            priced(dict(zip((knob.name for knob in knobs), values, strict=True))) for values in itertools.product(*axes)
        ]
        best = max(surface, key=lambda point: point.rate_per_s)
        ranges = [_around(axis, best.options.get(knob.name)) for knob, axis in zip(knobs, axes, strict=True)]
    found = [point for point in surface if point.rate_per_s > 0]
    if not found:
        raise BudgetError(
            f"a budget of {situation.budget} bytes is too small for {chosen.name} with any of its options"
        )
    return Tuning(chosen.name, max(found, key=lambda point: point.rate_per_s), tuple(found))


def _around(axis: list[float], best: float | None) -> tuple[float, float]:
    """Between the neighbours of the best value; all of the axis where the defaults are best."""
    if best is None or best not in axis:
        return axis[0], axis[-1]
    at = axis.index(best)
    return axis[max(at - 1, 0)], axis[min(at + 1, len(axis) - 1)]


def _priced(algorithm: str, situation: Situation, profile: CostProfile, options: Options, serial: bool) -> Point:
    try:
        found = situation.predict(algorithm, profile, options)
    except BudgetError:
        return Point(options, 0.0, 0.0, 0.0)
    return Point(options, found.symbols["d"], found.symbols.get("h_R", 0.0), _rate(found, serial))


def _rate(found: Prediction, serial: bool) -> float:
    return found.w / sum(found.terms.values()) if serial else found.service_rate_per_s
