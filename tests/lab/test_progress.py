"""How long it will take, from what figures say they will do."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.lab.labs import tiny_lab

from semistream.lab.figures.registry import FIGURES, chosen
from semistream.lab.progress import Forecast, foresee, work_of


def test_the_time_left_follows_from_what_is_done() -> None:
    now = [0.0]
    forecast = Forecast({"a": 1.0, "b": 3.0, "c": 6.0}, {}, lambda: now[0])
    forecast.begin("a")
    assert forecast.seconds_left() is None
    now[0] = 10.0
    forecast.begin("b")
    assert forecast.seconds_left() == pytest.approx(90.0)
    now[0] = 20.0
    assert forecast.seconds_left() == pytest.approx(80.0)
    # One that takes longer than expected takes nothing from the next.
    now[0] = 60.0
    assert forecast.seconds_left() == pytest.approx(60.0)
    forecast.begin("c")
    assert forecast.seconds_left() == pytest.approx(6 * 60 / 4)


def test_what_was_finished_before_counts() -> None:
    forecast = Forecast({"a": 1.0, "b": 3.0}, {"a": 5.0, "unknown": 7.0}, lambda: 0.0)
    forecast.begin("a")
    assert forecast.seconds_left() == pytest.approx(15.0)


def test_figures_say_what_they_will_ask_for(tmp_path: Path) -> None:
    figures = chosen(["ssbj-4b", "ssbj-5a", "ssbj-5b", "ssbj-5f", "ssj-3"])
    with tiny_lab(tmp_path / "out", tmp_path / "data") as lab:
        foreseen = {figure.id: foresee(figure, lab) for figure in figures}
        work = work_of(figures, foreseen, 7.0)
    assert foreseen["ssbj-4b"].stores == {f"repeated-key-{rows}-seed1" for rows in (6000, 12000, 24000)}
    assert foreseen["ssbj-5a"].stores == {"repeated-key-30000-seed1"}
    assert foreseen["ssbj-5b"].stores == {f"repeated-key-{rows}-seed1" for rows in (6000, 18000, 30000)}
    # Two contestants at three places, each with its defaults and tuned for two clocks.
    assert work["ssbj-5a"] == 2 * 3 * 3 * 30_000
    # What 5a runs at its last place, 5b does not run again.
    assert work["ssbj-5b"] == 2 * 3 * (6000 + 18000)
    # SSBJ with defaults is run for 5a already.
    assert work["ssbj-5f"] == 0.0
    assert work["ssj-3"] == 7.0
    assert not list((tmp_path / "data").iterdir())


def test_every_figure_can_be_asked(tmp_path: Path) -> None:
    with tiny_lab(tmp_path / "out", tmp_path / "data") as lab:
        for figure in FIGURES.values():
            foresee(figure, lab)
        assert len(lab.log) == 0
    assert not list((tmp_path / "data").iterdir())
