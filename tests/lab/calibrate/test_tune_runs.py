"""Tuning by real runs: the analytic optimum is as good as the best of a grid, and what cannot be run is refused."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from semistream import open_join
from semistream.algorithms.registry import ALGORITHMS
from semistream.cost.profile import paper_profile
from semistream.cost.situation import Options, Situation
from semistream.cost.tune import tune
from semistream.engine.join import SemiStreamJoin
from semistream.errors import ConfigError
from semistream.lab.calibrate.tune_runs import compare, grid_of, tune_empirically
from semistream.lab.forms import path_of
from semistream.lab.sources import Synthetic
from semistream.lab.workloads.relation import KEY, STREAM_SCHEMA, stream_batches
from semistream.master.base import Master
from semistream.master.open import open_master
from semistream.predict.keys import zipf
from semistream.spec import JoinSpec

ROWS, BUDGET, BATCH, SEED = 30_000, 600_000, 20_000, 5
PROFILE = paper_profile()


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Master]:
    source = Synthetic(ROWS, page_rows=64)
    opened = open_master(path_of(source, "pages", tmp_path_factory.mktemp("tune")), (KEY,))
    yield opened
    opened.close()


def test_the_analytic_optimum_holds_in_real_runs(master: Master) -> None:
    """Its service rate, by the cost clock, is within 5 % of the best of a grid of real runs, or better."""

    def open_with(options: Options) -> SemiStreamJoin:
        return open_join("cachejoin", master=master, on=KEY, memory=BUDGET, stream_schema=STREAM_SCHEMA, **options)

    def batches() -> Iterator[pa.RecordBatch]:
        return stream_batches(160_000, ROWS, 1.0, seed=SEED, batch_rows=BATCH)

    situation = Situation.of(master, JoinSpec.make(KEY), STREAM_SCHEMA, BUDGET, zipf(ROWS, 1.0), batch=BATCH)
    analytic = tune("cachejoin", situation, PROFILE)
    grid = {"buffer_bytes": (60_000, 200_000), "cache_share": (0.2, 0.5)}
    empirical = tune_empirically("cachejoin", open_with, batches, grid, PROFILE, warm=100_000)
    assert len(empirical.surface) == 4
    found = compare(analytic, empirical, open_with, batches, PROFILE, warm=100_000)
    assert found.rate < 0.05
    assert analytic.best.rate_per_s == pytest.approx(found.reached_per_s, rel=0.15)


def test_a_grid_has_every_knob_within_its_range() -> None:
    situation = Situation.sketch(1_000_000, 12_000_000, zipf(1_000_000, 1.0))
    for name, algorithm in ALGORITHMS.items():
        grid = grid_of(name, situation)
        assert list(grid) == [knob.name for knob in algorithm.knobs]
        for knob in algorithm.knobs:
            low, high = knob.low(situation.r, situation.budget), knob.high(situation.r, situation.budget)
            assert all(round(low) <= value <= round(high) or low <= value <= high for value in grid[knob.name]), name


def test_an_empty_grid_and_a_short_stream_are_refused(master: Master) -> None:
    def open_with(_: Options) -> SemiStreamJoin:
        return open_join("inlj", master=master, on=KEY, memory=BUDGET)

    def batches() -> Iterator[pa.RecordBatch]:
        return stream_batches(1_000, ROWS, 1.0, batch_rows=500)

    with pytest.raises(ConfigError, match="grid is empty"):
        tune_empirically("inlj", open_with, batches, {}, PROFILE, warm=0)
    with pytest.raises(ConfigError, match="warm-up"):
        tune_empirically("inlj", open_with, batches, {"buffer_bytes": (10_000,)}, PROFILE, warm=1_000)
