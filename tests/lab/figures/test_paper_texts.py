"""What the papers say without a figure: bursts, arrival rates, theorem 3, and the inequality elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from semistream.algorithms.registry import ALGORITHMS
from semistream.cost.profile import paper_profile
from semistream.lab.figure import Point, Way
from semistream.lab.figures import arrival_memory, bursts, inequality, main_memory
from semistream.lab.figures.bursts import EVEN
from semistream.lab.figures.papers import paper_of
from semistream.lab.figures.registry import FIGURES
from semistream.lab.figures.ticks import Ticks
from semistream.lab.laboratory import Lab, Scale
from semistream.lab.report.colours import known_name

MODULES = (arrival_memory, bursts, inequality, main_memory)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with Lab(tmp_path_factory.mktemp("lab"), scale=Scale("tiny", 100_000), profile=paper_profile()) as made:
        # Through the page cache, and by a clock that does not go on while others use the machine.
        yield made.buffered()


@pytest.fixture
def by_papers(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (arrival_memory, bursts):
        monkeypatch.setattr(module, "WAYS", ("papers",))


def curve(series: str, values: Sequence[float], way: Way = "counts", xs: Sequence[float] = (), **known: object) -> list:
    places = xs or [10.0 * (number + 1) for number in range(len(values))]
    return [Point("", way, series, x, y, y, y, 1, dict(known)) for x, y in zip(places, values, strict=True)]


def test_they_stand_with_their_paper() -> None:
    for module in MODULES:
        for figure in module.FIGURES:
            assert FIGURES[figure.id] is figure
            assert paper_of(figure.id) == ("oxhybridjoin" if module is bursts else "ssbj")


def test_series_have_the_colour_of_their_algorithm() -> None:
    assert known_name(f"meshjoin{EVEN}") == "meshjoin"
    assert known_name(inequality.BY_FREQUENCY) == "ssij"
    assert known_name(inequality.BALANCED) == "hybridjoin"


# ------------------------------------------------------------------------------------------------ theorem 3


def test_theorem_3_runs_from_disk_to_memory(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main_memory, "MEMORY", Ticks((0.5, 2.0), (0.5, 2.0)))
    monkeypatch.setattr(main_memory, "_SIZE", 0.2)
    monkeypatch.setattr(main_memory, "_CYCLES", {"ssbj": 6, "meshjoin": 2})
    points = list(FIGURES[main_memory.HITS].run(lab))
    half, whole = (point for point in points if point.series == "ssbj")
    assert (half.settings["resident"], half.settings["cycles"]) == (False, 6)
    assert whole.settings["resident"]
    assert 0 < half.y < whole.y
    best = {point.x: point.y for point in points if point.series == main_memory.BEST}
    assert half.y < best[50.0] < best[200.0] == 100.0
    lengths = {(point.series, point.x): point.y for point in FIGURES[main_memory.CYCLE].run(lab)}
    assert set(lengths) == {("ssbj", 50.0), (main_memory.BEST, 50.0), ("meshjoin", 50.0), ("meshjoin", 200.0)}
    assert lengths["meshjoin", 50.0] < lengths["ssbj", 50.0] < lengths[main_memory.BEST, 50.0]
    rates = {(p.series, p.x): p.y for p in FIGURES[main_memory.SPEED].run(lab) if p.way == "papers"}
    assert rates["ssbj", 200.0] == rates[main_memory.RESIDENT, 50.0] > rates["ssbj", 50.0] > rates["meshjoin", 50.0]


def test_theorem_3_is_judged_by_growth_and_end() -> None:
    held = curve("ssbj", [60, 90, 97]) + curve("ssbj", [100], xs=[40.0], resident=True)
    assert main_memory.judge_hits(held).outcome == "held"
    jump = curve("ssbj", [60, 70, 80]) + curve("ssbj", [100], xs=[40.0], resident=True)
    assert "without a jump" in main_memory.judge_hits(jump).why
    assert main_memory.judge_hits(curve("ssbj", [60, 50, 40])).outcome == "not"


def test_theorem_3_compares_rates_with_a_join_in_memory() -> None:
    memory, mesh = curve(main_memory.RESIDENT, [100] * 3, "papers"), curve("meshjoin", [10, 20, 50], "papers")
    last = curve("ssbj", [99], "papers", xs=[30.0], resident=True)
    smooth = main_memory.judge_rate(memory + mesh + curve("ssbj", [30, 80], "papers") + last)
    assert smooth.outcome == "held", smooth
    abrupt = main_memory.judge_rate(memory + mesh + curve("ssbj", [30, 40], "papers") + last)
    assert abrupt.outcome == "partly"


# -------------------------------------------------------------------------------------------- arrival rates


@pytest.mark.usefixtures("by_papers")
def test_memory_follows_the_arrival_rate(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrival_memory, "_CYCLES", {"ssbj": 6, "meshjoin": 3})
    points = [p for p in FIGURES[arrival_memory.AT_REST].run(lab) if p.way == "papers"]
    for name in ("ssbj", "meshjoin"):
        held = [point.y for point in sorted(points, key=lambda p: p.x) if point.series == name]
        assert len(held) == 4
        assert held[-1] > 1.5 * held[0] > 0
    steps = [p for p in FIGURES[arrival_memory.OVER_TIME].run(lab) if p.way == "papers" and p.series == "meshjoin"]
    assert [p.x for p in steps] == sorted(p.x for p in steps)
    assert list(dict.fromkeys(p.settings["load"] for p in steps)) == [0.1, 0.2, 0.4, 0.8]
    assert steps[-1].settings["load"] == 0.2


def test_memory_that_stays_is_not_given_back() -> None:
    def steps(*sizes: float) -> list[Point]:
        found = []
        for name in ("ssbj", "meshjoin"):
            for number, (load, size) in enumerate(zip(arrival_memory.LOADS, sizes, strict=True)):
                xs = [10.0 * number + turn for turn in range(6)]
                found += curve(name, [size] * 6, "papers", xs=xs, load=load)
        return found

    assert arrival_memory.judge_over_time(steps(1, 2, 4, 8, 2)).outcome == "held"
    kept = arrival_memory.judge_over_time(steps(1, 2, 4, 8, 8))
    assert kept.outcome == "partly"
    assert "gives memory back" in kept.why


# ---------------------------------------------------------------------------------------------------- bursts


@pytest.mark.usefixtures("by_papers")
def test_bursts_are_measured_beside_an_even_stream(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bursts, "_MEMORY", 0.3)
    monkeypatch.setattr(bursts, "LOADS", Ticks((0.5,), (0.5,)))
    points = list(FIGURES[bursts.FIGURE].run(lab))
    papers = [point for point in points if point.way == "papers"]
    wanted = {f"{name}{kind}" for name in (*bursts.INDEXED, *bursts.SCANS) for kind in ("", EVEN)}
    assert {point.series for point in papers} == wanted
    assert {point.x for point in papers} == {50.0}
    assert all(point.y > 0 and len(point.settings["quantiles"]) == 5 for point in papers)
    assert bursts._judge(points).outcome in ("held", "partly", "not")


def test_bursts_are_judged_by_stay_and_by_what_they_add() -> None:
    calm = [p for name in (*bursts.INDEXED, *bursts.SCANS) for p in curve(f"{name}{EVEN}", [1.0, 1.0], "papers")]
    good = [p for name in bursts.INDEXED for p in curve(name, [1.1, 1.2], "papers")]
    scans = [p for name in bursts.SCANS for p in curve(name, [2.0, 3.0], "papers")]
    assert bursts._judge(calm + good + scans).outcome == "held"
    bad = [p for name in bursts.INDEXED for p in curve(name, [5.0, 6.0], "papers")]
    assert bursts._judge(calm + bad + scans).outcome == "not"


# -------------------------------------------------------------------------------------------- the inequality


def test_the_balanced_join_is_measured_and_not_offered(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inequality, "SKEWS", Ticks((0.0, 1.0), (0.0, 1.0)))
    before = list(ALGORITHMS)
    points = list(FIGURES[inequality.OVER_SKEW].run(lab))
    assert {point.series for point in points} == {inequality.BALANCED, "cachejoin", "hybridjoin"}
    assert list(ALGORITHMS) == before


def test_blocks_and_tuples_are_compared(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inequality, "MEMORY", Ticks((0.4,), (0.4,)))
    monkeypatch.setattr(inequality, "_SIZE", 0.1)
    points = list(FIGURES[inequality.BLOCK_HITS].run(lab))
    assert {point.series for point in points} == {"ssbj", "ssij", inequality.BY_FREQUENCY}
    assert {point.way for point in points} == {"counts"}


def test_a_useless_cache_may_cost_little() -> None:
    xs = [0.0, 0.5, 1.0]

    def curves(*values: float) -> list[Point]:
        others = curve("hybridjoin", [100, 100, 100], "papers", xs=xs) + curve(
            "cachejoin", [80, 90, 120], "papers", xs=xs
        )
        return others + curve(inequality.BALANCED, values, "papers", xs=xs)

    assert inequality.judge_over_skew(curves(97, 99, 130)).outcome == "held"
    assert "95%" in inequality.judge_over_skew(curves(90, 99, 130)).why
