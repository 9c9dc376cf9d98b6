"""Tuning: the analytic optimum against the defaults, against real options, and against real runs over a grid."""

from __future__ import annotations

import pytest

from semistream.algorithms.registry import ALGORITHMS
from semistream.cost.profile import paper_profile
from semistream.cost.situation import Situation
from semistream.cost.tune import tune
from semistream.engine.options import rules
from semistream.errors import BudgetError
from semistream.predict.keys import zipf

PROFILE = paper_profile()
PAPER = Situation.sketch(1_000_000, 12_000_000, zipf(1_000_000, 1.0))


def test_knobs_are_options_of_the_operators() -> None:
    for name, algorithm in ALGORITHMS.items():
        options = rules(algorithm.options)
        for knob in algorithm.knobs:
            low, high = knob.low(PAPER.r, PAPER.budget), knob.high(PAPER.r, PAPER.budget)
            assert low < high, name
            assert options[knob.name].kind is (int if knob.whole else float), name
            for value in (low, high):
                assert options[knob.name].accepts(round(value) if knob.whole else value), (name, knob.name, value)


@pytest.mark.parametrize("algorithm", ["meshjoin", "rmeshjoin", "ssbj", "hybridjoin", "ssij", "orderedjoin", "inlj"])
def test_the_optimum_is_no_worse_than_the_defaults(algorithm: str) -> None:
    tuning = tune(algorithm, PAPER, PROFILE)
    assert tuning.best.rate_per_s >= tuning.surface[0].rate_per_s
    assert tuning.best in tuning.surface


def test_the_optimum_of_two_sizes_lies_inside() -> None:
    """The rate rises and falls again along both axes."""
    tuning = tune("cachejoin", PAPER, PROFILE)
    best = tuning.best
    assert best.rate_per_s > 1.05 * tuning.surface[0].rate_per_s
    ends = {name: {p.options[name] for p in tuning.surface if name in p.options} for name in best.options}
    for name, values in ends.items():
        assert min(values) < best.options[name] < max(values), name


def test_what_is_fixed_stays() -> None:
    tuning = tune("cachejoin", PAPER, PROFILE, fixed={"cache_share": 0.5})
    assert {point.options["cache_share"] for point in tuning.surface} == {0.5}


def test_no_option_helps_too_small_a_budget() -> None:
    with pytest.raises(BudgetError):
        tune("ssbj", Situation.sketch(1_000_000, 100_000, PAPER.workload.keys), PROFILE)


def test_page_sizes_for_a_disk_that_seeks() -> None:
    """INLJ reads one page a tuple: the smallest is best, but a seek hides most of the difference."""
    sketches = (Situation.sketch(1_000_000, 12_000_000, PAPER.workload.keys, page_rows=rows) for rows in (16, 4096))
    small, large = (sketch.predict("inlj", PROFILE).service_rate_per_s for sketch in sketches)
    assert small > large > 0.2 * small
