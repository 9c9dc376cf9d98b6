"""Judges on points made by hand: what holds, what does not, and why."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.lab.labs import tiny_lab

from semistream.lab.figure import Point, Way
from semistream.lab.figures.cache_share import judge_5f
from semistream.lab.figures.family import OPC, PC, SSBJ, SSJ, optimum_ratio
from semistream.lab.figures.intermediate_buffer import judge_3
from semistream.lab.figures.memory_needed import _needed, memory_for
from semistream.lab.figures.memory_needed import judge_4a as judge_memory
from semistream.lab.figures.rate_memory import judge_4a, judge_5a, judge_beside
from semistream.lab.figures.rate_size import judge_5b
from semistream.lab.figures.rate_skew import judge_4c, judge_6c
from semistream.lab.figures.registry import FIGURES
from semistream.lab.figures.sensitivity import judge_6a
from semistream.lab.figures.times import judge_times
from semistream.lab.figures.tuning import judge_surface
from semistream.lab.measure.runs import Estimate
from semistream.lab.report.marks import marks_text
from semistream.lab.verdicts import Curves as Judged
from semistream.lab.verdicts import rises
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
    assert "ssbj 7 times meshjoin at 1 % (we have 2.0×, 0.29 of it)" in verdict.why
    assert "3.0 times MESHJOIN" in verdict.why


def test_w_star_rules_out_only_what_is_more_than_it() -> None:
    curves = {"ssbj": {20.0: 20.0, 100.0: 25.0}, "meshjoin": {20.0: 10.0, 100.0: 10.0}}

    def why(*best: float | None) -> str:
        by_size = zip((20.0, 100.0), best, strict=True)
        made = [p for x, one in by_size for p in points(curves, w_star_over_meshjoin=one) if p.x == x]
        return judge_5b(made).why

    assert "The claimed 5.7 is more than that." in why(9.5, 4.0)
    assert "The claimed 7 and 5.7 are more than that." in why(3.0, 4.0)
    assert "9.5 to 12.0 times MESHJOIN" in why(9.5, 12.0)
    assert "more than that" not in why(9.5, 12.0)
    # None: all of R fits, and nothing is ruled out there.
    assert "The claimed 5.7 is more than that." in why(None, 4.0)
    assert "W*" not in why(None, None)


def test_nothing_of_a_claim() -> None:
    curves = {"ssbj": {1.0: 9.0, 10.0: 80.0}, "meshjoin": {1.0: 10.0, 10.0: 100.0}}
    assert judge_5a(points(curves)).outcome == "not"
    assert judge_5a([]).outcome == "not"


def test_every_clock_judges_direction_size_and_trend_by_itself() -> None:
    slow = points({"ssbj": {1.0: 9.0, 10.0: 80.0}, "meshjoin": {1.0: 10.0, 10.0: 100.0}})
    fast = points({"ssbj": {1.0: 70.0, 10.0: 820.0}, "meshjoin": {1.0: 10.0, 10.0: 100.0}}, "wall")
    counted = points({"ssbj": {1.0: 20.0, 10.0: 240.0}, "meshjoin": {1.0: 10.0, 10.0: 100.0}}, "counts")
    verdict = judge_5a([*fast, *slow, *counted])
    assert list(verdict.marks) == ["counts", "wall", "papers"]
    marks = {way: (found.direction, found.size, found.trend) for way, found in verdict.marks.items()}
    assert marks == {"counts": (True, False, True), "wall": (True, True, True), "papers": (False, False, False)}
    assert verdict.marks["counts"].sizes == pytest.approx((2 / 7, 2.4 / 8))
    # The first of them gives the word, and no word hides how much is missing.
    assert verdict.outcome == "partly"
    assert "0.29 to 0.30 of the claimed factor" in verdict.measured
    assert "direction yes, size yes, trend yes" in verdict.measured


def test_a_factor_far_above_the_claimed_one_is_not_that_one() -> None:
    verdict = judge_5a(points({"ssbj": {1.0: 140.0, 10.0: 1700.0}, "meshjoin": {1.0: 10.0, 10.0: 100.0}}))
    marks = verdict.marks["papers"]
    assert (marks.direction, marks.size, marks.trend) == (True, False, True)


def test_what_did_not_come_to_rest_is_marked() -> None:
    curves = {"ssbj": {1.0: 70.0, 10.0: 820.0}, "meshjoin": {1.0: 10.0, 10.0: 100.0}}
    calm = judge_5a(points(curves, steady=True))
    assert calm.at_rest
    assert not calm.notes
    restless = judge_5a(points(curves, steady=False))
    assert not restless.at_rest
    assert restless.marks["papers"].unrested == 4
    assert "did not come to rest within their limit: papers' clock 4" in restless.notes[0]


def _leads(*leads: float, spread: float = 0.0) -> Judged:
    """Two curves with these ratios, each value known up to `spread` of itself."""
    found = []
    for x, lead in enumerate(leads):
        for series, y in (("a", 10.0 * lead), ("b", 10.0)):
            found.append(Point("made up", "wall", series, float(x), y, y * (1 - spread), y * (1 + spread), 5))
    return Judged(found, "wall")


@pytest.mark.parametrize(
    ("leads", "spread", "grows"),
    [
        ((1.0, 1.2), 0.0, True),
        # Less than the tolerance, or back again in between, or no more than the intervals allow.
        ((1.0, 1.03), 0.0, False),
        ((1.0, 1.5, 1.2, 1.6), 0.0, False),
        ((1.0, 1.5, 1.48, 1.6), 0.0, True),
        ((1.0, 1.2), 0.2, False),
        ((1.0,), 0.0, False),
    ],
)
def test_a_trend_has_tolerances(leads: tuple[float, ...], spread: float, grows: bool) -> None:
    check = rises(_leads(*leads, spread=spread), "a", "b")
    assert check.holds is grows
    assert check.part == "trend"
    falling = rises(_leads(*leads[::-1], spread=spread), "a", "b", falling=True)
    assert falling.holds is grows


def test_a_clock_on_which_a_claim_cannot_fail_does_not_judge() -> None:
    curves = {"pcachejoin": {1.0: 20.0}, "cachejoin": {1.0: 10.0}}
    verdict = judge_beside([*points(curves), *points(curves, "wall", side_by_side=1.1, cpu_share=1.3, cpus=2)], PC)
    assert verdict.marks["papers"].direction is None
    assert verdict.marks["wall"].direction is True
    assert any("papers' clock: not judged" in note for note in verdict.notes)
    assert any("2 cores" in note and "1.10" in note and "1.30 CPU seconds" in note for note in verdict.notes)
    measured = judge_beside(points(curves, overlap=0.2), PC)
    assert measured.marks["papers"].direction is True


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


@pytest.mark.parametrize(("with_skew", "held"), [(10.0, True), (9.0, True), (11.0, False), (7.0, False)])
def test_a_scan_does_not_gain_by_skew_and_loses_slightly(with_skew: float, held: bool) -> None:
    lead = {0.0: 9.0, 0.5: 15.0, 1.0: 7 * with_skew}
    verdict = judge_6c(points({"ssj": lead, "meshjoin": {0.0: 10.0, 0.5: 10.0, 1.0: with_skew}}))
    assert verdict.marks["papers"].trend is held


def test_skew_helps_a_cache_against_all_others() -> None:
    scans = {name: dict.fromkeys((0.0, 0.5, 1.0), 10.0) for name in ("rmeshjoin", "meshjoin")}
    cache = {0.0: 9.0, 0.5: 15.0, 1.0: 30.0}
    hybrid = {0.0: 8.0, 0.5: 9.0, 1.0: 10.0}
    assert judge_4c(points({"cachejoin": cache, "hybridjoin": hybrid, **scans})).outcome == "held"
    # Both scans are held to it, not MESHJOIN alone.
    gained = {**scans, "rmeshjoin": {0.0: 10.0, 0.5: 10.0, 1.0: 12.0}}
    verdict = judge_4c(points({"cachejoin": cache, "hybridjoin": hybrid, **gained}))
    assert "rmeshjoin slightly slower with skew" in verdict.why


def test_ahead_of_all_others() -> None:
    others = {name: {1.0: 10.0, 10.0: 10.0} for name in ("hybridjoin", "rmeshjoin", "meshjoin")}
    assert judge_4a(points({"cachejoin": {1.0: 30.0, 10.0: 45.0}, **others})).outcome == "held"
    assert judge_4a(points({"cachejoin": {1.0: 5.0, 10.0: 5.0}, **others})).outcome == "not"


def test_the_first_of_three() -> None:
    curves = {"opcachejoin": {1.0: 30.0}, "pcachejoin": {1.0: 20.0}, "cachejoin": {1.0: 10.0}}
    assert judge_beside(points(curves, "wall"), OPC).outcome == "held"
    assert judge_beside(points({**curves, "opcachejoin": {1.0: 15.0}}, "wall"), OPC).outcome == "partly"


def test_shares_of_the_stream() -> None:
    assert judge_5f(points({"ssbj": {1.0: 39.0, 10.0: 54.0}}, "counts")).outcome == "held"
    assert judge_5f(points({"ssbj": {1.0: 60.0, 10.0: 80.0}}, "counts")).outcome == "partly"
    assert judge_5f(points({"ssbj": {1.0: 39.0, 9.0: 53.5, 10.0: 54.0}}, "counts")).outcome == "held"
    climbing = judge_5f(points({"ssbj": {1.0: 39.0, 9.0: 50.0, 10.0: 54.0}}, "counts")).marks["counts"]
    assert (climbing.size, climbing.trend) == (True, False)
    assert judge_5f(points({"ssbj": {1.0: 80.0, 10.0: 70.0}}, "counts")).outcome == "not"


def test_the_best_of_a_curve() -> None:
    ours = {"ssbj": {0.5: 100.0, 1.0: 100.0, 2.0: 120.0}}
    assert judge_6a(points({"ssbj literal": {0.5: 80.0, 1.0: 100.0, 2.0: 90.0}, **ours})).outcome == "held"
    assert judge_6a(points({"ssbj literal": {0.5: 80.0, 1.0: 100.0, 2.0: 120.0}, **ours})).outcome == "not"
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
    # Where a curve has its best point is a trend, and no order of algorithms.
    assert judge_surface(surface(3.0)).marks["papers"].direction is None
    assert judge_surface(surface(3.0)).marks["papers"].trend is False


def test_times_are_compared_the_other_way_round() -> None:
    curves = {"ssj": {1.0: 1.0, 2.0: 1.5}, "meshjoin": {1.0: 2.0, 2.0: 4.0}}
    assert judge_times(points(curves), SSJ, grows=True).outcome == "held"
    # A gap that grows only because both grow is no trend.
    alike = {"ssj": {1.0: 1.0, 2.0: 2.0}, "meshjoin": {1.0: 2.0, 2.0: 4.0}}
    assert judge_times(points(alike), SSJ, grows=True).marks["papers"].trend is False
    slower = {"ssj": {1.0: 3.0, 2.0: 5.0}, "meshjoin": {1.0: 2.0, 2.0: 4.0}}
    assert judge_times(points(slower), SSJ, grows=False).outcome == "not"


def test_memory_is_read_off_between_the_rungs() -> None:
    rungs = [(1.0, 10.0), (4.0, 40.0), (16.0, 160.0)]
    assert memory_for(rungs, 20.0) == pytest.approx(2.0)
    assert memory_for(rungs, 5.0) is None
    assert memory_for(rungs, 500.0) is None
    assert judge_memory(points({"meshjoin": {1.0: 7.0}, "ssbj": {1.0: 1.0}})).outcome == "held"
    assert judge_memory(points({"meshjoin": {1.0: 2.0}, "ssbj": {1.0: 1.0}})).outcome == "partly"
    # "All rates" is all of them: the lowest and the highest ratio count.
    uneven = judge_memory(points({"meshjoin": {1.0: 7.0, 2.0: 20.0}, "ssbj": {1.0: 1.0, 2.0: 1.0}}))
    assert uneven.marks["papers"].size is False
    # What W* allows in SSBJ's memory is the reason.
    bounded = judge_memory(points({"meshjoin": {1.0: 2.0}, "ssbj": {1.0: 1.0}}, w_star_over_meshjoin=3.0))
    assert "MESHJOIN needs 3.0 times that memory" in bounded.why


def test_w_star_stands_beside_the_memory_that_ssbj_needs(tmp_path: Path) -> None:
    ladder = {"ssbj": [(1e5, 10.0), (4e5, 40.0)], "meshjoin": [(2e5, 10.0), (8e5, 40.0)]}
    with tiny_lab(tmp_path / "out", tmp_path / "data") as lab:
        source = SSBJ.source(lab)
        found = {p.series: p for p in _needed(lab, "ssbj-4a", "papers", ladder, 20.0, 20.0, source, {})}
    bound = found["ssbj"].settings["w_star_over_meshjoin"]
    assert bound == pytest.approx(optimum_ratio(source.classes(), 2e5))
    assert bound > 1
    assert found["meshjoin"].settings["w_star_over_meshjoin"] is None


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


def timed(taken: Mapping[str, Any] | None, other: Mapping[str, Any] | None) -> list[Point]:
    return [
        *points({"ssbj": {1.0: 70.0, 10.0: 820.0}}, "wall", cpus=2, taken=taken),
        *points({"meshjoin": {1.0: 10.0, 10.0: 100.0}}, "wall", cpus=2, taken=other),
    ]


@pytest.mark.parametrize(
    ("other", "pace", "marked"),
    [
        ({"at": "later", "work_s": 1.05, "read_s_per_byte": 2.1}, 1.05, False),
        ({"at": "later", "work_s": 0.5, "read_s_per_byte": 2.0}, 2.0, True),
        ({"at": "later", "work_s": 1.0, "read_s_per_byte": 3.0}, 1.5, True),
        # Through the page cache nothing is read.
        ({"at": "later", "work_s": 1.0}, 1.0, False),
    ],
)
def test_a_wall_clock_on_a_machine_that_changed_is_marked(other: Mapping[str, Any], pace: float, marked: bool) -> None:
    verdict = judge_5a(timed({"at": "first", "work_s": 1.0, "read_s_per_byte": 2.0}, other))
    assert verdict.marks["wall"].pace == pytest.approx(pace)
    assert verdict.marks["wall"].unpaced == 0
    assert marks_text(verdict.marks["wall"]).endswith(" †") == marked
    said = f"The machine was {pace:.2f} times faster for some series, or values of x, than for others."
    assert any(said in note for note in verdict.notes) == marked


def test_a_wall_clock_of_a_machine_that_nobody_looked_at_is_marked() -> None:
    verdict = judge_5a(timed({"at": "first", "work_s": 1.0}, None))
    assert verdict.marks["wall"].unpaced == 2
    assert marks_text(verdict.marks["wall"]).endswith(" †")
    assert any("Of 2 points nobody noted how fast it was." in note for note in verdict.notes)
    # Neither counts nor the papers' clock depend on the machine.
    assert "†" not in marks_text(judge_5a([replace(p, way="papers") for p in timed(None, None)]).marks["papers"])


def test_a_moment_at_a_single_point_is_no_other_machine() -> None:
    """Means per contestant and per place count; a contestant, or a place, with another machine throughout is told."""

    def pace(slow: Callable[[str, float], float]) -> float:
        made = points({name: dict.fromkeys(range(10), 1.0) for name in ("ssbj", "meshjoin")}, "wall", cpus=2)
        taken = [replace(p, settings={"cpus": 2, "taken": {"work_s": slow(p.series, p.x)}}) for p in made]
        return judge_5a(taken).marks["wall"].pace

    assert pace(lambda series, x: 1.15 if (series, x) == ("ssbj", 3) else 1.0) == pytest.approx(1.075)
    assert pace(lambda series, x: 1.15 if series == "ssbj" else 1.0) == pytest.approx(1.15)
    assert pace(lambda series, x: 1.15 if x > 4 else 1.0) == pytest.approx(1.15)
