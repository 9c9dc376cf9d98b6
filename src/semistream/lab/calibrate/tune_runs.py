"""The best sizes by real runs over a grid, and how far the analytic optimum is from them.

Runs are priced by the cost clock: exact counts, no noise. The papers do both and compare; `Comparison` says how far
apart they are, in d, h_R and, what counts, in the service rate.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from semistream.algorithms.registry import resolve
from semistream.cost.clock import CostClock, counted
from semistream.cost.profile import CostProfile
from semistream.cost.situation import Options, Situation
from semistream.cost.tune import Point, Tuning
from semistream.engine.join import SemiStreamJoin
from semistream.errors import BudgetError, ConfigError
from semistream.lab.measure.steady import cached_rows, push

Open = Callable[[Options], SemiStreamJoin]
Batches = Callable[[], Iterable[pa.RecordBatch]]
_GRID_POINTS = 5


@dataclass(frozen=True)
class Comparison:
    """Analytic beside empirical: relative deviations of d and h_R, and of the rate that the analytic options reach.

    `rate` is 1 - (rate of a real run with the analytic optimum / best rate of the grid): below 0, the analysis found a
    better point than the grid has.
    """

    analytic: Tuning
    empirical: Tuning
    reached_per_s: float

    @property
    def d(self) -> float:
        return _deviation(self.analytic.best.d, self.empirical.best.d)

    @property
    def h_R(self) -> float:
        return _deviation(self.analytic.best.h_R, self.empirical.best.h_R)

    @property
    def rate(self) -> float:
        return 1.0 - self.reached_per_s / self.empirical.best.rate_per_s


def _deviation(a: float, b: float) -> float:
    return a / b - 1.0 if b else (0.0 if not a else math.inf)


def grid_of(algorithm: str, situation: Situation) -> dict[str, list[float]]:
    """The values that real runs try: two sizes over their ranges, any other at a fiftieth of the memory."""
    r, budget = situation.r, situation.budget
    return {
        knob.name: knob.values(knob.low(r, budget), knob.high(r, budget), _GRID_POINTS)
        if place < 2
        else knob.values(budget * 0.02, budget * 0.02, 1)
        for place, knob in enumerate(resolve(algorithm).knobs)
    }


def tune_empirically(
    algorithm: str,
    open_with: Open,
    batches: Batches,
    grid: Mapping[str, Sequence[float]],
    profile: CostProfile,
    *,
    warm: int,
    serial: bool = False,
) -> Tuning:
    """Run the operator at every point of a grid of options; rates are those of the cost clock after `warm` tuples.

    `open_with` opens the join with some options, `batches` gives the same stream every time.
    """
    name = resolve(algorithm).name
    if not grid:
        raise ConfigError("the grid is empty; give values for at least one option")
    surface = []
    for values in itertools.product(*grid.values()):
        options = dict(zip(grid, values, strict=True))
        try:
            surface.append(measured_point(open_with, batches, options, profile, warm=warm, serial=serial))
        except BudgetError:
            continue
    if not surface:
        raise BudgetError(f"no point of the grid fits the budget of {name}")
    return Tuning(name, max(surface, key=lambda point: point.rate_per_s), tuple(surface))


def measured_point(
    open_with: Open,
    batches: Batches,
    options: Options,
    profile: CostProfile,
    *,
    warm: int,
    serial: bool = False,
) -> Point:
    """One real run by the cost clock."""
    with open_with(options) as join:
        stream: Iterator[pa.RecordBatch] = iter(batches())
        seen, sizes = 0, []
        for batch in stream:
            push(join, batch)
            seen += batch.num_rows
            if seen >= warm:
                break
        before = copy.copy(join.stats)
        for batch in stream:
            push(join, batch)
            sizes.append(batch.num_rows)
        if not sizes:
            raise ConfigError(f"the stream ended within the {warm} tuples of the warm-up; give a longer one")
        counts = counted(join, before, batch=max(sizes))
        price = CostClock(profile).price_of(join, counts)
        seconds = price.serial_seconds if serial else price.seconds
        d = float(join.plan.division.rows)
        return Point(dict(options), d, float(cached_rows(join)), counts["tuples_in"] / seconds)


def compare(
    analytic: Tuning,
    empirical: Tuning,
    open_with: Open,
    batches: Batches,
    profile: CostProfile,
    *,
    warm: int,
    serial: bool = False,
) -> Comparison:
    """How good the analytic optimum is where it counts: in a run."""
    names = {knob.name for knob in resolve(analytic.algorithm).knobs}
    options = {name: value for name, value in analytic.best.options.items() if name in names}
    reached = measured_point(open_with, batches, options, profile, warm=warm, serial=serial)
    return Comparison(analytic, empirical, reached.rate_per_s)
