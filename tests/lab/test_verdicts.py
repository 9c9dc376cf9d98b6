"""Judges on points made by hand: what holds, what does not, and why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from semistream.lab.figure import Point, Way
from semistream.lab.figures.cache_share import judge_5f
from semistream.lab.figures.family import OPC, SSJ, optimum_ratio
from semistream.lab.figures.intermediate_buffer import judge_3
from semistream.lab.figures.memory_needed import judge_4a as judge_memory
from semistream.lab.figures.memory_needed import memory_for
from semistream.lab.figures.rate_memory import judge_4a, judge_5a, judge_chain
from semistream.lab.figures.rate_size import judge_5b
from semistream.lab.figures.rate_skew import judge_6c
from semistream.lab.figures.registry import FIGURES
from semistream.lab.figures.sensitivity import judge_6a
from semistream.lab.figures.times import judge_times
from semistream.lab.figures.tuning import judge_surface
from semistream.lab.measure.runs import Estimate
from semistream.lab.workloads.optimum import optimal_tuples_per_cycle
from semistream.predict.keys import zipf

Curves = Mapping[str, Mapping[float, float]]


def points(curves: Curves, way: Way = "papers", **settings: Any) -> list[Point]:
    return [
        Point("made up", way, series, x, y, y, y, 1, settings)
        for series, curve in curves.items()
        for x, y in curve.items()
    ]


def test_a_claim_with_all_its_numbers_is_held() -> None:
    verdict = judge_5a(points({"ssbj": {1.0: 70.0, 10.0: 820.0}, "meshjoin": {1.0: 10.0, 10.0: 100.0}}))
    assert verdict.outcome == "held"
    assert "7.0× at 1 %" in verdict.measured
    assert verdict.why == ""


def test_the_order_alone_is_part_of_a_claim_and_w_star_says_why() -> None:
    curves = {"ssbj": {1.0: 20.0, 10.0: 250.0}, "meshjoin": {1.0: 10.0, 10.0: 100.0}}
    verdict = judge_5a(points(curves, w_star_over_meshjoin=3.0))
    assert verdict.outcome == "partly"
    assert "ssbj 7 times meshjoin at 1 % (we have 2.0×)" in verdict.why
    assert "3.0 times MESHJOIN" in verdict.why


def test_nothing_of_a_claim() -> None:
    curves = {"ssbj": {1.0: 9.0, 10.0: 80.0}, "meshjoin": {1.0: 10.0, 10.0: 100.0}}
    assert judge_5a(points(curves)).outcome == "not"
    assert judge_5a([]).outcome == "not"


def test_the_papers_clock_decides_and_the_others_are_told() -> None:
    slow = points({"ssbj": {1.0: 9.0, 10.0: 80.0}, "meshjoin": {1.0: 10.0, 10.0: 100.0}})
    fast = points({"ssbj": {1.0: 70.0, 10.0: 820.0}, "meshjoin": {1.0: 10.0, 10.0: 100.0}}, "wall")
    verdict = judge_5a([*fast, *slow])
    assert verdict.outcome == "not"
    assert "wall clock: ssbj / meshjoin 7.0× at 1 %, 8.2× at 10 % (4 of 4 statements)" in verdict.measured


def test_a_lead_that_falls_with_r() -> None:
    mesh = {20.0: 10.0, 100.0: 10.0}
    assert judge_5b(points({"ssbj": {20.0: 70.0, 100.0: 57.0}, "meshjoin": mesh})).outcome == "held"
    assert judge_5b(points({"ssbj": {20.0: 57.0, 100.0: 70.0}, "meshjoin": mesh})).outcome == "partly"


def test_slightly_worse_is_neither_ahead_nor_far_behind() -> None:
    mesh = dict.fromkeys((0.0, 0.5, 1.0), 10.0)
    assert judge_6c(points({"ssj": {0.0: 9.0, 0.5: 15.0, 1.0: 70.0}, "meshjoin": mesh})).outcome == "held"
    for without_skew in (5.0, 11.0):
        verdict = judge_6c(points({"ssj": {0.0: without_skew, 0.5: 15.0, 1.0: 70.0}, "meshjoin": mesh}))
        assert verdict.outcome == "partly"
        assert "slightly worse" in verdict.why


def test_ahead_of_all_others() -> None:
    others = {name: {1.0: 10.0, 10.0: 10.0} for name in ("hybridjoin", "rmeshjoin", "meshjoin")}
    assert judge_4a(points({"cachejoin": {1.0: 30.0, 10.0: 45.0}, **others})).outcome == "held"
    assert judge_4a(points({"cachejoin": {1.0: 5.0, 10.0: 5.0}, **others})).outcome == "not"


def test_a_chain_of_three() -> None:
    curves = {"opcachejoin": {1.0: 30.0}, "pcachejoin": {1.0: 20.0}, "cachejoin": {1.0: 10.0}}
    assert judge_chain(points(curves), OPC).outcome == "held"
    assert judge_chain(points({**curves, "opcachejoin": {1.0: 15.0}}), OPC).outcome == "partly"


def test_shares_of_the_stream() -> None:
    assert judge_5f(points({"ssbj": {1.0: 39.0, 10.0: 54.0}}, "counts")).outcome == "held"
    assert judge_5f(points({"ssbj": {1.0: 60.0, 10.0: 80.0}}, "counts")).outcome == "partly"
    assert judge_5f(points({"ssbj": {1.0: 80.0, 10.0: 70.0}}, "counts")).outcome == "not"


def test_the_best_of_a_curve() -> None:
    assert judge_6a(points({"ssbj": {0.5: 80.0, 1.0: 100.0, 2.0: 90.0}})).outcome == "held"
    assert judge_6a(points({"ssbj": {0.5: 80.0, 1.0: 100.0, 2.0: 120.0}})).outcome == "not"
    assert judge_3(points({"pcachejoin": {1.0: 90.0, 2.0: 100.0, 8.0: 80.0}})).outcome == "held"
    assert judge_3(points({"pcachejoin": {1.0: 90.0, 2.0: 100.0, 8.0: 120.0}})).outcome == "not"


def test_a_surface_with_its_best_inside() -> None:
    def surface(best: float) -> list[Point]:
        return [
            Point("", "papers", "ssj", d, y, y, y, 1, {"cache_share": cache, "buffer_share": d})
            for d in (1.0, 2.0, 3.0)
            for cache in (0.1, 0.2, 0.3)
            for y in [100 - 10 * abs(d - best) - 100 * abs(cache - 0.2)]
        ]

    assert judge_surface(surface(2.0)).outcome == "held"
    assert judge_surface(surface(3.0)).outcome == "partly"


def test_times_are_compared_the_other_way_round() -> None:
    curves = {"ssj": {1.0: 1.0, 2.0: 1.5}, "meshjoin": {1.0: 2.0, 2.0: 4.0}}
    assert judge_times(points(curves), SSJ, grows=True).outcome == "held"
    slower = {"ssj": {1.0: 3.0, 2.0: 5.0}, "meshjoin": {1.0: 2.0, 2.0: 4.0}}
    assert judge_times(points(slower), SSJ, grows=False).outcome == "not"


def test_memory_is_read_off_between_the_rungs() -> None:
    rungs = [(1.0, 10.0), (4.0, 40.0), (16.0, 160.0)]
    assert memory_for(rungs, 20.0) == pytest.approx(2.0)
    assert memory_for(rungs, 5.0) is None
    assert memory_for(rungs, 500.0) is None
    assert judge_memory(points({"meshjoin": {1.0: 7.0}, "ssbj": {1.0: 1.0}})).outcome == "held"
    assert judge_memory(points({"meshjoin": {1.0: 2.0}, "ssbj": {1.0: 1.0}})).outcome == "partly"


def test_a_claim_without_points_does_not_hold() -> None:
    for figure in FIGURES.values():
        assert figure.judge([]).outcome == "not", figure.id


def test_the_optimum_of_classes_is_that_of_keys() -> None:
    rows, memory = 20_000, 240_000.0
    keys = zipf(rows, 1.0)
    p = np.repeat(keys.p, keys.count.astype(np.int64))
    exact = optimal_tuples_per_cycle(p, np.ones(len(p)), 120, 24, memory)
    assert optimum_ratio(keys, memory) == pytest.approx(exact / (memory / 24), rel=1e-6)
    assert optimum_ratio(keys, 120.0 * rows) == float("inf")


def test_intervals_are_students() -> None:
    estimate = Estimate.of([1.0, 2.0, 3.0, 4.0, 5.0])
    # Mean 3, deviation sqrt(2.5), t with four degrees of freedom 2.776.
    assert estimate.mean == 3.0
    assert estimate.high - estimate.mean == pytest.approx(2.776 * (2.5 / 5) ** 0.5)
    assert Estimate.of([2.0]) == Estimate(2.0, 2.0, 2.0, 1)


def test_a_rate_is_all_tuples_over_all_seconds() -> None:
    # One of three turns had no load: it is not what the rate is led by.
    rate = Estimate.ratio([100.0, 100.0, 100.0], [10.0, 0.001, 10.0])
    assert rate.mean == pytest.approx(15.0, rel=0.001)
    assert 0.0 <= rate.low < rate.mean < rate.high
    even = Estimate.ratio([10.0, 20.0, 30.0], [1.0, 2.0, 3.0])
    assert (even.mean, even.low, even.high) == (10.0, 10.0, 10.0)
    assert Estimate.ratio([0.0], [0.0]).mean == 0.0
