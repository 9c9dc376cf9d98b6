"""Tuning: the analytic optimum against the defaults, against real options, and against real runs over a grid."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest
from tests.cost.runs import BATCH, BUDGET, ROWS, SEED, Runs, setting_of

from semistream import open_join
from semistream.cost.probability import zipf
from semistream.cost.profile import paper_profile
from semistream.cost.setting import Setting
from semistream.cost.tune import KNOBS, Options, compare, option_values, tune, tune_empirically, tune_page_rows
from semistream.errors import BudgetError, ConfigError
from semistream.operators.base import SemiStreamJoin
from semistream.operators.registry import OPERATORS, _options
from semistream.workloads.relation import KEY, STREAM_SCHEMA, stream_batches

PROFILE = paper_profile()
PAPER = Setting.sketch(1_000_000, 12_000_000, zipf(1_000_000, 1.0))


def test_knobs_are_options_of_the_operators() -> None:
    assert set(KNOBS) == set(OPERATORS)
    for algorithm, knobs in KNOBS.items():
        assert {knob.name for knob in knobs} <= _options(OPERATORS[algorithm]), algorithm


@pytest.mark.parametrize("algorithm", ["meshjoin", "rmeshjoin", "ssbj", "hybridjoin", "ssij", "orderedjoin", "inlj"])
def test_the_optimum_is_no_worse_than_the_defaults(algorithm: str) -> None:
    tuning = tune(algorithm, PAPER, PROFILE)
    assert tuning.best.rate_per_s >= tuning.surface[0].rate_per_s
    assert tuning.best in tuning.surface


def test_the_optimum_of_two_sizes_lies_inside() -> None:
    """ssj2014 figure 2: the rate rises and falls again along both axes."""
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
        tune("ssbj", Setting.sketch(1_000_000, 100_000, PAPER.keys), PROFILE)


def test_page_sizes_for_a_disk_that_seeks() -> None:
    """INLJ reads one page a tuple: the smallest is best, but a seek hides most of the difference."""
    rates = tune_page_rows("inlj", PAPER, PROFILE)
    assert rates[16] > rates[4096] > 0.2 * rates[16]


@pytest.mark.parametrize("algorithm", ["cachejoin"])
def test_the_analytic_optimum_holds_in_real_runs(runs: Runs, algorithm: str) -> None:
    """Its service rate, by the cost clock, is within 5 % of the best of a grid of real runs, or better."""
    master = runs.master("key", 0.0)

    def open_with(options: Options) -> SemiStreamJoin:
        sizes = option_values(options)
        return open_join(algorithm, master=master, on=KEY, memory=BUDGET, stream_schema=STREAM_SCHEMA, **sizes)

    def batches() -> Iterator[pa.RecordBatch]:
        return stream_batches(160_000, ROWS, 1.0, seed=SEED, batch_rows=BATCH)

    analytic = tune(algorithm, setting_of(master, BUDGET, 1.0), PROFILE)
    grid = {"buffer_bytes": (60_000, 200_000), "cache_share": (0.2, 0.5)}
    empirical = tune_empirically(algorithm, open_with, batches, grid, PROFILE, warm=100_000)
    assert len(empirical.surface) == 4
    found = compare(analytic, empirical, open_with, batches, PROFILE, warm=100_000)
    assert found.rate < 0.05
    assert analytic.best.rate_per_s == pytest.approx(found.reached_per_s, rel=0.15)


def test_an_empty_grid_and_a_short_stream_are_refused(runs: Runs) -> None:
    def open_with(_: Options) -> SemiStreamJoin:
        return open_join("inlj", master=runs.master("key", 0.0), on=KEY, memory=BUDGET)

    def batches() -> Iterator[pa.RecordBatch]:
        return stream_batches(1_000, ROWS, 1.0, batch_rows=500)

    with pytest.raises(ConfigError, match="grid is empty"):
        tune_empirically("inlj", open_with, batches, {}, PROFILE, warm=0)
    with pytest.raises(ConfigError, match="warm-up"):
        tune_empirically("inlj", open_with, batches, {"buffer_bytes": (10_000,)}, PROFILE, warm=1_000)
