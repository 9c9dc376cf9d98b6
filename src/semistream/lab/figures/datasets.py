"""Do the service rates of synthetic data hold for data that nobody here designed? TPC-H and weather reports.

TPC-H comes twice. By its rules orders are spread evenly over the customers, and a cache has nothing to keep; but
ssbj2019 adapted the data, and says that its stream behaved as one of skew 1. So each figure is measured with the
orders as they are specified, and with customers drawn by Zipf's law with exponent 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from semistream.lab.figure import Figure, Point, Printed, Verdict
from semistream.lab.figures.family import MEMORY_AXIS, PER_CYCLE, RATE, SSBJ, SSCJ, SSJ, Family, span
from semistream.lab.figures.ticks import MEMORY, percent
from semistream.lab.laboratory import Lab
from semistream.lab.sources import Source, TpchSource, WeatherSource
from semistream.lab.verdicts import Check, Curves, ahead, factor, judge, rises
from semistream.lab.workloads.optimum import optimal_tuples_per_cycle
from semistream.predict.keys import zipf

#: Below this a scan's chunk is a tuple or two, and nothing but the fixed parts would be compared.
LEAST_MEMORY = 500_000
#: TPC-H at scale factor 100 and 20 million weather reports stand beside a synthetic R of 100 million tuples.
_ROWS_PER_SCALE_FACTOR = 1_000_000
_REPORTS = 0.2
#: of skewed orders
_SKEW = 1.0
#: bytes of a customer and of an order in the papers, and of the order's node in the queue
_CUSTOMER_BYTES, _ORDER_BYTES = 223, 138 + 4

UNIFORM = (
    "By the benchmark's rules orders are spread evenly over two thirds of the customers. A customer is then asked for "
    "less than once in an R-cycle, and by the cache inequality none belongs in a cache: what a cache takes from H_S "
    "is lost. ssbj2019 adapted the data and says that they behaved much as those of skew 1: either its orders were not "
    "distributed as TPC-H distributes them, or its factor does not come from a cache."
)
SKEWED = (
    "A waiting order takes nearly as many bytes as a cached customer, so a customer is worth caching from two orders "
    "in an R-cycle on"
)
MANY_TO_MANY = (
    "Stations stay where they are: a longitude with many reports in the stream has as many in R, its frequency cancels "
    "from the cache inequality, and with less memory than R takes no key is worth caching "
    "(docs/arguments/shared-distribution.md). What a cache takes from H_S is then lost. Building the output rows is "
    "most of the work of every algorithm besides, since a tuple has many matches."
)
MADE_UP = (
    "The weather reports are made up in the format of the archive, at the papers' 128 bytes per tuple: no archive was "
    "given (--weather-dir)."
)


def tpch_source(lab: Lab, skew: float | None = None) -> TpchSource:
    return TpchSource(lab.rows / _ROWS_PER_SCALE_FACTOR, skew, lab.seed)


def weather_source(lab: Lab) -> WeatherSource:
    return WeatherSource(max(int(lab.rows * _REPORTS), 1), lab.seed, lab.weather_dir)


def _sweep(lab: Lab, *, figure: str, family: Family, source: Callable[[Lab], Source]) -> Iterator[Point]:
    joined = source(lab)
    for share in MEMORY.of(lab):
        memory = lab.memory(joined, share)
        if memory < LEAST_MEMORY:
            continue
        for algorithm in family.algorithms:
            yield from lab.contest(figure, algorithm, percent(share), joined, memory, **_known(joined, share))


def _known(source: Source, share: float) -> dict[str, Any]:
    """What a reader must know of the data: that it is made up, or what the best cache of skewed orders would give."""
    if isinstance(source, WeatherSource) and source.made_up:
        return {"note": MADE_UP}
    if isinstance(source, TpchSource) and source.skew is not None:
        keys = zipf(source.rows - source.rows // 3, source.skew)
        memory = share * source.rows * _CUSTOMER_BYTES
        best = optimal_tuples_per_cycle(keys.count * keys.p, keys.count * keys.m, _CUSTOMER_BYTES, _ORDER_BYTES, memory)
        return {"w_star_over_meshjoin": best / (memory / _ORDER_BYTES)}
    return {}


def _skewed_reason(points: Sequence[Point]) -> str:
    best = [point.settings["w_star_over_meshjoin"] for point in points if "w_star_over_meshjoin" in point.settings]
    if not best:
        return f"{SKEWED}."
    return (
        f"{SKEWED}; the best cache there is, W*, would give {span(best)} times MESHJOIN's tuples in an R-cycle "
        "(docs/arguments/w-star.md)."
    )


def _over_meshjoin(points: Sequence[Point], *, algorithm: str, why: Callable[[Sequence[Point]], str]) -> Verdict:
    return judge(points, lambda curves: [ahead(curves, algorithm, "meshjoin", " %")], why(points))


def _over_all(points: Sequence[Point], *, why: Callable[[Sequence[Point]], str]) -> Verdict:
    def checks(curves: Curves) -> list[Check]:
        return [ahead(curves, "cachejoin", other, " %") for other in SSCJ.algorithms[1:]]

    return judge(points, checks, why(points))


def judge_5d(points: Sequence[Point], *, why: Callable[[Sequence[Point]], str] = lambda _: UNIFORM) -> Verdict:
    def checks(curves: Curves) -> list[Check]:
        return [
            ahead(curves, "ssbj", "meshjoin", " %"),
            factor(curves, "ssbj", "meshjoin", 1.0, 3.4, " %"),
            factor(curves, "ssbj", "meshjoin", 10.0, 7.4, " %"),
            rises(curves, "ssbj", "meshjoin"),
        ]

    return judge(points, checks, why(points))


#: what is added to the name of a figure; what the orders are, their source, and why a claim may not hold for them
_ORDERS: dict[str, tuple[str, Callable[[Lab], Source], Callable[[Sequence[Point]], str]]] = {
    "": ("orders as specified", tpch_source, lambda _: UNIFORM),
    "-skewed": ("customers of orders by Zipf's law, skew 1", partial(tpch_source, skew=_SKEW), _skewed_reason),
}


def _tpch(
    figure: str,
    family: Family,
    names: str,
    claim: str,
    judged: Callable[..., Verdict],
    printed: tuple[Printed, ...] = (),
) -> list[Figure]:
    """The figure with orders as specified, and with skewed ones."""
    return [
        Figure(
            f"{figure}{kind}",
            f"Service rate on TPC-H, {what}: {names}",
            MEMORY_AXIS,
            RATE,
            claim,
            partial(_sweep, figure=f"{figure}{kind}", family=family, source=source),
            partial(judged, why=why),
            counts=PER_CYCLE,
            printed=printed,
        )
        for kind, (what, source, why) in _ORDERS.items()
    ]


def _weather(figure: str, family: Family, names: str, claim: str, judged: Callable[..., Verdict]) -> Figure:
    return Figure(
        figure,
        f"Service rate on weather reports, made up unless the archive is given: {names}",
        MEMORY_AXIS,
        RATE,
        claim,
        partial(_sweep, figure=figure, family=family, source=weather_source),
        partial(judged, why=lambda _: MANY_TO_MANY),
        counts=PER_CYCLE,
    )


FIGURES = (
    *_tpch(
        "ssbj-5d",
        SSBJ,
        "SSBJ and MESHJOIN",
        "Orders joined with Customer (15 million tuples of 223 bytes, orders of 138 bytes): SSBJ serves 3.4 times as "
        "many tuples as MESHJOIN with memory of 1 % of R and 7.4 times with 10 %, much as with synthetic data of skew "
        "1.",
        judge_5d,
        (Printed(1.0, 3.4, "ssbj", "meshjoin"), Printed(10.0, 7.4, "ssbj", "meshjoin")),
    ),
    _weather(
        "ssbj-5e",
        SSBJ,
        "SSBJ and MESHJOIN",
        "Cloud reports of December joined with those of April and August (20 million tuples of 128 bytes) on "
        "longitude, many to many: SSBJ is ahead of MESHJOIN for every memory size, much as with synthetic data of skew "
        "1 (no number is given).",
        partial(_over_meshjoin, algorithm="ssbj"),
    ),
    *_tpch(
        "ssj-6d",
        SSJ,
        "SSJ and MESHJOIN",
        "On TPC-H of scale factor 100 (20 million customers of 223 bytes are named here, and as many orders of 138), "
        "SSJ is remarkably better than MESHJOIN at different memory sizes (none is named, ours are 1 to 10 % of R).",
        partial(_over_meshjoin, algorithm="ssj"),
    ),
    _weather(
        "ssj-6e",
        SSJ,
        "SSJ and MESHJOIN",
        "On weather reports (20 million tuples of 128 bytes, joined on longitude) SSJ is remarkably better than "
        "MESHJOIN at different memory sizes (none is named, ours are 1 to 10 % of R).",
        partial(_over_meshjoin, algorithm="ssj"),
    ),
    *_tpch(
        "sscj-4d",
        SSCJ,
        "SSCJ, HYBRIDJOIN, R-MESHJOIN, MESHJOIN",
        "On TPC-H of scale factor 100 (20 million customers of 223 bytes are named here, and as many orders of 138), "
        "SSCJ (here: cachejoin) is remarkably better than HYBRIDJOIN, R-MESHJOIN and MESHJOIN at different memory "
        "sizes (none is named, ours are 1 to 10 % of R).",
        _over_all,
    ),
    _weather(
        "sscj-4e",
        SSCJ,
        "SSCJ, HYBRIDJOIN, R-MESHJOIN, MESHJOIN",
        "On weather reports (20 million tuples of 128 bytes, joined on longitude) SSCJ (here: cachejoin) is remarkably "
        "better than HYBRIDJOIN, R-MESHJOIN and MESHJOIN at different memory sizes (none is named, ours are 1 to 10 % "
        "of R).",
        _over_all,
    ),
)
