"""The best sizes for a given R, M and stream: by search over the formula, and by runs over a grid.

    analytic    every knob of the algorithm on a grid, then ever finer around the best point; no join is opened
    empirical   real runs at the points of a grid, priced by the cost clock: exact counts, no noise

The papers do both and compare (ssj2014 section 5.1, oxhybridjoin2012 section 4.4); `Comparison` says how far apart they
are, in d, h_R and, what counts, in the service rate. The threshold of SSJ and CACHEJOIN is no knob here: it finds its
own level.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from semistream.cost.clock import CostClock, counted
from semistream.cost.model import Prediction
from semistream.cost.profile import CostProfile
from semistream.cost.registry import predict_join
from semistream.cost.setting import Setting
from semistream.errors import BudgetError, ConfigError
from semistream.operators.base import SemiStreamJoin
from semistream.operators.registry import resolve

Options = Mapping[str, float]
Open = Callable[[Options], SemiStreamJoin]
Batches = Callable[[], Iterable[pa.RecordBatch]]

_ROUNDS = 3
#: values of each knob in the first round and in the later ones, by the number of knobs
_POINTS = {1: (16, 7), 2: (8, 5), 3: (5, 4)}


@dataclass(frozen=True)
class Knob:
    """An option of an algorithm: its range for a setting, and whether it is searched by factors or by steps."""

    name: str
    low: Callable[[Setting], float]
    high: Callable[[Setting], float]
    by_factors: bool = True
    whole: bool = True

    def points(self, s: Setting, low: float, high: float, count: int) -> list[float]:
        """So many values between two, ends included."""
        if high <= low or count < 2:
            return [self._rounded(low)]
        steps = [i / (count - 1) for i in range(count)]
        if self.by_factors:
            values = [low * (high / low) ** step for step in steps]
        else:
            values = [low + (high - low) * step for step in steps]
        return list(dict.fromkeys(self._rounded(value) for value in values))

    def _rounded(self, value: float) -> float:
        return float(round(value)) if self.whole else round(value, 4)


def _buffer(share: float) -> Knob:
    """The disk buffer, d tuples: from one page to a part of the memory."""
    return Knob("buffer_bytes", lambda s: s.buffer_bytes(1), lambda s: max(s.M * share, s.buffer_bytes(1)))


def _share(name: str, low: float, high: float) -> Knob:
    return Knob(name, lambda _: low, lambda _: high, by_factors=False, whole=False)


_D = _buffer(0.5)
_H_R = _share("cache_share", 0.02, 0.9)
_I_B = Knob("intermediate_bytes", lambda s: 4096, lambda s: max(s.M * 0.2, 8192))

KNOBS: dict[str, tuple[Knob, ...]] = {
    "meshjoin": (Knob("k", lambda s: 2, lambda s: max(s.n_pages, 2)),),
    "rmeshjoin": (Knob("b", lambda s: s.page_rows, lambda s: max(s.R_t / 2, s.page_rows)),),
    "ssj": (_D, _H_R),
    "ssbj": (_D,),
    "hybridjoin": (_D,),
    "xhybridjoin": (_D, Knob("pinned_pages", lambda _: 1, lambda s: max(0.5 * s.M / s.v_P, 1))),
    "oxhybridjoin": (_D, _H_R),
    "cachejoin": (_D, _H_R),
    "pcachejoin": (_D, _H_R, _I_B),
    "opcachejoin": (_D, _H_R, _I_B),
    "inlj": (),
    "sweepjoin": (_D, Knob("gap_bytes", lambda s: s.v_P, lambda s: 4 << 20)),
    "orderedjoin": (_share("queue_share", 0.05, 0.9),),
    "ssij": (_share("cache_share", 0.0, 0.9),),
    "partitionjoin": (
        _share("cache_share", 0.0, 0.9),
        Knob("partition_pages", lambda _: 1, lambda s: max(s.n_pages / 4, 1)),
    ),
}


@dataclass(frozen=True)
class Point:
    """Options of an algorithm with what they give: d and h_R in tuples, and the service rate."""

    options: Options
    d: float
    h_R: float
    rate_per_s: float


@dataclass(frozen=True)
class Tuning:
    """The best point, and all that were looked at: the surface."""

    algorithm: str
    best: Point
    surface: tuple[Point, ...]


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


def tune(
    algorithm: str, setting: Setting, profile: CostProfile, *, fixed: Options | None = None, serial: bool = False
) -> Tuning:
    """The options with the highest predicted rate; `fixed` ones are kept, `serial` prices no parallel phases."""
    name = resolve(algorithm).name
    base = setting.with_options(**(fixed or {}))
    knobs = [knob for knob in KNOBS[name] if knob.name not in (fixed or {})]
    surface = [_predicted(name, base, profile, {}, serial)]
    ranges = [(float(knob.low(setting)), float(knob.high(setting))) for knob in knobs]
    for turn in range(_ROUNDS if knobs else 0):
        count = _POINTS[len(knobs)][min(turn, 1)]
        axes = [knob.points(setting, *reach, count) for knob, reach in zip(knobs, ranges, strict=True)]
        for values in itertools.product(*axes):
            options = dict(zip((knob.name for knob in knobs), values, strict=True))
            surface.append(_predicted(name, base, profile, options, serial))
        best = max(surface, key=lambda point: point.rate_per_s)
        ranges = [_around(axis, best.options.get(knob.name)) for knob, axis in zip(knobs, axes, strict=True)]
    found = [point for point in surface if point.rate_per_s > 0]
    if not found:
        raise BudgetError(f"a budget of {setting.M} bytes is too small for {name} with any of its options")
    return Tuning(name, max(found, key=lambda point: point.rate_per_s), tuple(found))


def _around(axis: list[float], best: float | None) -> tuple[float, float]:
    """Between the neighbours of the best value; all of the axis where the defaults are best."""
    if best is None or best not in axis:
        return axis[0], axis[-1]
    at = axis.index(best)
    return axis[max(at - 1, 0)], axis[min(at + 1, len(axis) - 1)]


def _predicted(algorithm: str, base: Setting, profile: CostProfile, options: Options, serial: bool) -> Point:
    try:
        found = predict_join(algorithm, base.with_options(**options), profile)
    except BudgetError:
        return Point({**base.options, **options}, 0.0, 0.0, 0.0)
    return Point({**base.options, **options}, found.symbols["d"], found.symbols.get("h_R", 0.0), _rate(found, serial))


def _rate(found: Prediction, serial: bool) -> float:
    if not serial:
        return found.service_rate_per_s
    return found.w / sum(found.terms.values())


def tune_page_rows(
    algorithm: str, setting: Setting, profile: CostProfile, choices: Sequence[int] = (16, 64, 256, 1024, 4096)
) -> dict[int, float]:
    """Predicted service rate by rows per page, which is decided when the store is built."""
    frame = setting.v_P - setting.page_rows * setting.row_bytes
    per_page = setting.index_bytes / max(setting.n_pages, 1)
    rates = {}
    for rows in choices:
        pages = -(-setting.R_t // rows)
        other = dataclasses.replace(
            setting, page_rows=rows, v_P=frame + rows * setting.row_bytes, index_bytes=int(per_page * pages)
        )
        try:
            rates[rows] = predict_join(algorithm, other, profile).service_rate_per_s
        except BudgetError:
            rates[rows] = 0.0
    return rates


# ------------------------------------------------------------------------------------------- empirical


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
            _consume(join, batch)
            seen += batch.num_rows
            if seen >= warm:
                break
        before = copy.copy(join.stats)
        for batch in stream:
            _consume(join, batch)
            sizes.append(batch.num_rows)
        if not sizes:
            raise ConfigError(f"the stream ended within the {warm} tuples of the warm-up; give a longer one")
        counts = counted(join, before, batch=max(sizes))
        price = CostClock(profile).price_of(join, counts)
        seconds = price.serial_seconds if serial else price.seconds
        cache = getattr(join, "cache", None)
        d = float(join.buffer_pages * join.reader.page_rows)
        return Point(dict(options), d, float(getattr(cache, "rows", 0)), counts["tuples_in"] / seconds)


def _consume(join: SemiStreamJoin, batch: pa.RecordBatch) -> None:
    for _ in join.push(batch):
        pass


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
    names = {knob.name for knob in KNOBS[analytic.algorithm]}
    options = {name: value for name, value in analytic.best.options.items() if name in names}
    reached = measured_point(open_with, batches, options, profile, warm=warm, serial=serial)
    return Comparison(analytic, empirical, reached.rate_per_s)


def option_values(options: Options) -> dict[str, float | int]:
    """Options as `open_join` takes them: shares as they are, everything else in whole numbers."""
    return {name: value if "share" in name else round(value) for name, value in options.items()}
