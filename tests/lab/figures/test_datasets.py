"""TPC-H twice, and weather reports that say that they are made up."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from semistream.cost.profile import paper_profile
from semistream.lab.figures import datasets
from semistream.lab.figures.registry import FIGURES
from semistream.lab.figures.ticks import Ticks
from semistream.lab.laboratory import SCALES, Lab, Scale

#: 10,000 reports: a third of their bytes is enough memory for a scan
TINY = Scale("tiny", 50_000)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with Lab(tmp_path_factory.mktemp("lab"), scale=TINY, profile=paper_profile()) as made:
        yield made


@pytest.mark.parametrize("figure", ["ssbj-5d", "ssj-6d", "sscj-4d"])
def test_tpch_comes_as_specified_and_skewed(figure: str) -> None:
    plain, skewed = FIGURES[figure], FIGURES[f"{figure}-skewed"]
    assert plain.claim == skewed.claim
    assert "as specified" in plain.title
    assert "Zipf" in skewed.title


@pytest.mark.parametrize("figure", ["ssbj-5e", "ssj-6e", "sscj-4e"])
def test_made_up_stands_in_every_title(figure: str) -> None:
    assert "made up" in FIGURES[figure].title


def test_made_up_stands_beside_every_point(lab: Lab, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(datasets, "LEAST_MEMORY", 100_000)
    monkeypatch.setattr(datasets, "MEMORY", Ticks((0.3,), (0.3,)))
    points = list(FIGURES["ssbj-5e"].run(lab))
    assert points
    assert all("made up" in point.settings["note"] for point in points)
    lab.weather_dir = tmp_path
    try:
        assert datasets._known(datasets.weather_source(lab), 0.1) == {}
    finally:
        lab.weather_dir = None


def test_the_papers_sizes_at_the_papers_scale(tmp_path: Path) -> None:
    with Lab(tmp_path, scale=SCALES["paper"], profile=paper_profile()) as lab:
        assert datasets.weather_source(lab).rows == 20_000_000
        assert datasets.tpch_source(lab).rows == 15_000_000


def test_a_cache_of_skewed_orders_has_something_to_gain(lab: Lab) -> None:
    known = [datasets._known(datasets.tpch_source(lab, 1.0), share) for share in (0.01, 0.1)]
    low, high = (float(one["w_star_over_meshjoin"]) for one in known)
    assert 1 < low < high
    assert datasets._known(datasets.tpch_source(lab), 0.1) == {}
