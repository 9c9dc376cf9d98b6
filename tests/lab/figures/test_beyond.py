"""Streams with absent keys between present ones, hot keys that change, and curves that end in predictions."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from semistream import open_join
from semistream.cost.profile import paper_profile
from semistream.lab.contest.spark_contest import HINTED, NATIVE, OURS
from semistream.lab.figure import Point
from semistream.lab.figures import beyond, drifting, memory_over_time, spark_peers
from semistream.lab.figures.beyond import Gapped
from semistream.lab.laboratory import Lab, Scale
from semistream.lab.sources import Synthetic
from semistream.lab.workloads.relation import KEY, STREAM_SCHEMA
from semistream.testing import run_join

ROWS = 20_000


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with Lab(tmp_path_factory.mktemp("lab"), scale=Scale("tiny", ROWS), profile=paper_profile()) as made:
        yield made


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_absent_keys_stand_between_present_ones(share: float, lab: Lab) -> None:
    source = Gapped(ROWS, seed=lab.seed, unmatched=share)
    batches = list(itertools.islice(source.stream(1_000, lab.data), 4))
    keys = pa.chunked_array([batch.column(KEY) for batch in batches])
    odd = pc.sum(pc.bit_wise_and(keys, 1)).as_py()
    assert odd == pytest.approx(4_000 * share, abs=200)
    assert pc.max(keys).as_py() < 2 * ROWS
    with open_join("sweepjoin", master=lab.path(source), on=KEY, how="inner", memory="1MB") as join:
        assert run_join(join, batches).num_rows == 4_000 - odd


def test_hits_fall_when_the_hot_keys_change_and_those_who_learn_come_back(lab: Lab) -> None:
    points = []
    for name in ("sweepjoin", "oxhybridjoin"):
        source = Synthetic(ROWS, seed=lab.seed, order="frequency" if name == "oxhybridjoin" else "key")
        with open_join(name, master=lab.path(source), on=KEY, memory=700_000, stream_schema=STREAM_SCHEMA) as join:
            result = drifting._blocks(join, source, 500)
        for x, block in drifting._places(result):
            counts = block["counts"]
            share = counts["cache_hits"] / (counts["cache_hits"] + counts["cache_misses"])
            points.append(
                Point(drifting.HITS, "counts", name, x, share, share, share, 1, {"mark_x": result["changes_at"]})
            )
    verdict = drifting.FIGURES[0].judge(points)
    assert verdict.outcome == "held", verdict
    # The other way round: who never forgets does not come back, and who learns does not stay below.
    swapped = {"sweepjoin": "oxhybridjoin", "oxhybridjoin": "sweepjoin"}
    assert drifting.FIGURES[0].judge([replace(p, series=swapped[p.series]) for p in points]).outcome == "not"


def test_growth_runs_what_the_scale_has_and_predicts_the_rest(lab: Lab) -> None:
    points = [p for p in beyond.FIGURES[2].run(lab) if p.way == "papers" and p.series.startswith("meshjoin")]
    run = {p.x: p.y for p in points if p.series == "meshjoin"}
    predicted = {p.x: p.y for p in points if p.series == "meshjoin predicted"}
    assert max(predicted) == 100 * ROWS
    assert max(run, default=ROWS) <= ROWS
    for x, cost in run.items():
        assert predicted[x] == pytest.approx(cost, rel=0.3)


def _flat(series: str, *values: float, figure: str = "", **settings: object) -> list[Point]:
    return [Point(figure, "wall", series, float(x), y, y, y, 1, settings) for x, y in enumerate(values)]


def test_memory_that_creeps_is_not_steady() -> None:
    judge = memory_over_time.FIGURES[0].judge
    assert judge(_flat("sweepjoin", 0, 50, 60, 60, 61, budget=60e6)).outcome == "held"
    creeping = judge(_flat("sweepjoin", 0, 50, 60, 80, 100, budget=60e6))
    assert creeping.outcome == "partly"
    assert "steady" in creeping.why
    assert judge(_flat("sweepjoin", 0, 100, 150, 160, 400, budget=60e6)).outcome == "not"


def test_spark_is_judged_by_kind_of_join() -> None:
    judge = spark_peers.FIGURES[0].judge
    ours = _flat(OURS, 100.0, 100.0)
    assert judge([*ours, *_flat(NATIVE, 50.0, 20.0), *_flat(HINTED, 50.0, 60.0)]).outcome == "held"
    slower = judge([*ours, *_flat(NATIVE, 50.0, 90.0), *_flat(HINTED, 50.0, 60.0)])
    assert slower.outcome == "partly"
    assert "spark native (left)" in slower.why


def test_no_spark_is_told_in_the_results(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_peers, "spark_is_there", lambda: False)
    (point,) = spark_peers.FIGURES[0].run(lab)
    assert "pyspark is not installed" in point.settings["note"]


def test_ids_are_unique_and_fit_file_names() -> None:
    figures = [f for module in (beyond, drifting, memory_over_time, spark_peers) for f in module.FIGURES]
    assert len({f.id for f in figures}) == len(figures)
    assert all(Path(f.id).name == f.id for f in figures)
