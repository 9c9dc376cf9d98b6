"""Do the service rates of synthetic data hold for data that nobody here designed? TPC-H and weather reports."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from semistream.lab.figure import Figure, Point, Verdict
from semistream.lab.figures.family import MEMORY_AXIS, RATE, SSBJ, SSCJ, SSJ, Family
from semistream.lab.laboratory import Lab
from semistream.lab.sources import Source, TpchSource, WeatherSource
from semistream.lab.verdicts import Check, Curves, ahead, factor, judge, rises

SHARES = (0.01, 0.03, 0.1)
#: Below this a scan's chunk is a tuple or two, and nothing but the fixed parts would be compared.
LEAST_MEMORY = 500_000
#: TPC-H at scale factor 100 and 20 million weather reports stand beside a synthetic R of 100 million tuples. Of fewer
#: reports than the least no share but the largest would be enough memory.
_ROWS_PER_SCALE_FACTOR = 1_000_000
_REPORTS, _LEAST_REPORTS = 0.2, 400_000

UNIFORM = (
    "By the benchmark's rules orders are spread evenly over two thirds of the customers. A customer is then asked for "
    "less than once in an R-cycle, and by the cache inequality none belongs in a cache: what a cache takes from H_S "
    "is lost. ssbj2019 says its TPC-H stream behaved as one of skew 1, so it was not distributed as TPC-H distributes "
    "it."
)
MANY_TO_MANY = (
    "A longitude has many reports here as there, so building the output rows is most of the work of every algorithm, "
    "and a cached key takes many master tuples."
)


def tpch_source(lab: Lab) -> TpchSource:
    return TpchSource(lab.rows / _ROWS_PER_SCALE_FACTOR)


def weather_source(lab: Lab) -> WeatherSource:
    return WeatherSource(max(int(lab.rows * _REPORTS), _LEAST_REPORTS), lab.seed, lab.weather_dir)


def _sweep(lab: Lab, figure: str, family: Family, source: Source) -> Iterator[Point]:
    for share in SHARES:
        memory = lab.memory(source, share)
        if memory < LEAST_MEMORY:
            continue
        for algorithm in family.algorithms:
            run = lab.measure(algorithm, source, memory)
            yield from lab.rates(figure, algorithm, 100 * share, run)


def _over_meshjoin(points: Sequence[Point], algorithm: str, why: str) -> Verdict:
    return judge(points, lambda curves: [ahead(curves, algorithm, "meshjoin", " %")], why)


def _over_all(points: Sequence[Point], why: str) -> Verdict:
    def checks(curves: Curves) -> list[Check]:
        return [ahead(curves, "cachejoin", other, " %") for other in SSCJ.algorithms[1:]]

    return judge(points, checks, why)


def judge_5d(points: Sequence[Point]) -> Verdict:
    def checks(curves: Curves) -> list[Check]:
        return [
            ahead(curves, "ssbj", "meshjoin", " %"),
            factor(curves, "ssbj", "meshjoin", 1.0, 3.4, " %"),
            factor(curves, "ssbj", "meshjoin", 10.0, 7.4, " %"),
            rises(curves, "ssbj", "meshjoin"),
        ]

    return judge(points, checks, UNIFORM)


def _tpch_5d(lab: Lab) -> Iterator[Point]:
    return _sweep(lab, "ssbj-5d", SSBJ, tpch_source(lab))


def _weather_5e(lab: Lab) -> Iterator[Point]:
    return _sweep(lab, "ssbj-5e", SSBJ, weather_source(lab))


def _tpch_6d(lab: Lab) -> Iterator[Point]:
    return _sweep(lab, "ssj-6d", SSJ, tpch_source(lab))


def _weather_6e(lab: Lab) -> Iterator[Point]:
    return _sweep(lab, "ssj-6e", SSJ, weather_source(lab))


def _tpch_4d(lab: Lab) -> Iterator[Point]:
    return _sweep(lab, "sscj-4d", SSCJ, tpch_source(lab))


def _weather_4e(lab: Lab) -> Iterator[Point]:
    return _sweep(lab, "sscj-4e", SSCJ, weather_source(lab))


FIGURES = (
    Figure(
        "ssbj-5d",
        "Service rate on TPC-H: SSBJ and MESHJOIN",
        MEMORY_AXIS,
        RATE,
        "Orders joined with Customer (15 million tuples of 223 bytes): SSBJ serves 3.4 times as many tuples as "
        "MESHJOIN with memory of 1 % of R and 7.4 times with 10 %.",
        _tpch_5d,
        judge_5d,
    ),
    Figure(
        "ssbj-5e",
        "Service rate on weather reports: SSBJ and MESHJOIN",
        MEMORY_AXIS,
        RATE,
        "Cloud reports of December joined with those of April and August (20 million tuples) on longitude, many to "
        "many: SSBJ is ahead of MESHJOIN for every memory size.",
        _weather_5e,
        lambda points: _over_meshjoin(points, "ssbj", MANY_TO_MANY),
    ),
    Figure(
        "ssj-6d",
        "Service rate on TPC-H: SSJ and MESHJOIN",
        MEMORY_AXIS,
        RATE,
        "On TPC-H (20 million customers are named here), SSJ is remarkably better than MESHJOIN at every memory size.",
        _tpch_6d,
        lambda points: _over_meshjoin(points, "ssj", UNIFORM),
    ),
    Figure(
        "ssj-6e",
        "Service rate on weather reports: SSJ and MESHJOIN",
        MEMORY_AXIS,
        RATE,
        "On weather reports SSJ is remarkably better than MESHJOIN at every memory size.",
        _weather_6e,
        lambda points: _over_meshjoin(points, "ssj", MANY_TO_MANY),
    ),
    Figure(
        "sscj-4d",
        "Service rate on TPC-H: SSCJ, HYBRIDJOIN, R-MESHJOIN, MESHJOIN",
        MEMORY_AXIS,
        RATE,
        "On TPC-H, SSCJ (here: cachejoin) is remarkably better than HYBRIDJOIN, R-MESHJOIN and MESHJOIN at every "
        "memory size.",
        _tpch_4d,
        lambda points: _over_all(points, UNIFORM),
    ),
    Figure(
        "sscj-4e",
        "Service rate on weather reports: SSCJ, HYBRIDJOIN, R-MESHJOIN, MESHJOIN",
        MEMORY_AXIS,
        RATE,
        "On weather reports SSCJ (here: cachejoin) is remarkably better than HYBRIDJOIN, R-MESHJOIN and MESHJOIN at "
        "every memory size.",
        _weather_4e,
        lambda points: _over_all(points, MANY_TO_MANY),
    ),
)
