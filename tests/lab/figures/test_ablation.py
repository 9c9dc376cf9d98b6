"""What our additions give: the judges, and one small run of each figure."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from semistream.cost.profile import paper_profile
from semistream.lab.figure import Point
from semistream.lab.figures import ablation
from semistream.lab.figures.ticks import Ticks
from semistream.lab.laboratory import Lab, Scale


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with Lab(tmp_path_factory.mktemp("lab"), scale=Scale("tiny", 20_000), profile=paper_profile()) as made:
        yield made


def point(figure: str, series: str, x: float, y: float) -> Point:
    return Point(figure, "counts", series, x, y, y, y, 1)


def additions(**ys: float) -> list[Point]:
    found = {"ssbj": 3.7, "W*": 4.0, "ssbj literal": 2.5, "without the cap": 3.7} | ys
    return [point(ablation.ADDITIONS, series, 10.0, y) for series, y in found.items()]


def test_additions_are_judged_by_w_star_and_by_what_each_gives() -> None:
    assert ablation.judge_additions(additions()).outcome == "held"
    assert ablation.judge_additions(additions(ssbj=3.5)).outcome == "partly"
    assert "literal SSBJ is not ahead" in ablation.judge_additions(additions(**{"ssbj literal": 3.9})).why


def test_a_cache_may_cost_a_twentieth_and_must_not_lose_hits() -> None:
    def verdict(uniform: float, skewed: float) -> str:
        name, literal = "ssj", "ssj literal"
        points = [point(ablation.UNEARNED, name, 0.0, uniform), point(ablation.UNEARNED, literal, 0.0, 0.6)]
        points += [point(ablation.UNEARNED, name, 1.0, skewed), point(ablation.UNEARNED, literal, 1.0, 2.0)]
        return ablation.judge_unearned(points).outcome

    assert verdict(0.96, 2.0) == "held"
    assert verdict(0.94, 2.0) == "partly"
    assert verdict(0.96, 1.9) == "partly"


def test_a_cache_may_cost_a_twentieth_with_orders_as_specified() -> None:
    def verdict(worst: float) -> str:
        points = [point(ablation.UNEARNED_TPCH, name, x, 0.99) for name in ("ssj", "ssbj") for x in (3.0, 10.0)]
        return ablation.judge_tpch([*points, point(ablation.UNEARNED_TPCH, "cachejoin", 3.0, worst)]).outcome

    assert verdict(0.951) == "held"
    assert verdict(0.949) == "partly"


def test_ssbj_is_counted_in_every_mode(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ablation, "MEMORY", Ticks((0.2,), (0.2,)))
    points = {each.series: each for each in ablation._run_additions(lab)}
    assert set(points) == {*ablation._SSBJ, ablation.BEST}
    assert 1.0 < points[ablation.LITERAL].y < points[ablation.OURS].y < points[ablation.BEST].y
    assert points[ablation.LITERAL].settings["options"] == {"literal": True}
    assert points[ablation.OURS].settings["charged_by_the_papers"] > 0
