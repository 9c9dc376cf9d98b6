"""Runs told by R-cycles: whole ones are counted, and a join that holds R has none."""

from __future__ import annotations

from pathlib import Path

import pytest

from semistream.lab.measure.cycles import _rests, run_cycles
from semistream.lab.measure.opening import open_named
from semistream.lab.workloads.relation import KEY, STREAM_SCHEMA, SyntheticMaster, SyntheticStream
from semistream.lab.workloads.workload import Reading
from semistream.master.build import build_pages

ROWS = 20_000


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("store") / "r"
    build_pages(SyntheticMaster(ROWS, 1, repeat=True).reader(), path, on=KEY)
    return path


def run(store: Path, algorithm: str, memory: int, cycles: int = 6, most: int = 100 * ROWS) -> dict:
    with open_named(algorithm, master=store, on=KEY, memory=memory, stream_schema=STREAM_SCHEMA) as join:
        return run_cycles(join, Reading(SyntheticStream(ROWS, 1.0, 1)).batches(500), 500, cycles, most)


def test_cycles_are_counted_and_grow_with_memory(store: Path) -> None:
    small, large = (run(store, "ssbj", int(share * ROWS * 120)) for share in (0.4, 0.8))
    for found in (small, large):
        assert len(found["cycles"]) == 6
        assert not found["resident"]
        assert len(found["turns"]) == 4
        assert [set(pace) for pace in found["taken"]["pace"]] == [{"work_s"}] * 5
        assert all(turn["counts"]["tuples_in"] >= 1_000 for turn in found["turns"])
    assert large["cycles"][-1]["tuples"] > 1.5 * small["cycles"][-1]["tuples"]
    assert large["cycles"][-1]["hits"] > small["cycles"][-1]["hits"] > 0


def test_a_scan_without_a_cache_has_cycles_of_one_length(store: Path) -> None:
    found = run(store, "meshjoin", ROWS * 60)
    lengths = [cycle["tuples"] for cycle in found["cycles"]]
    assert min(lengths[1:]) > 0.9 * max(lengths)
    assert {cycle["hits"] for cycle in found["cycles"]} == {0}
    assert found["steady"]


def test_all_of_r_in_memory_ends_the_cycles(store: Path) -> None:
    found = run(store, "ssbj", 2 * ROWS * 120)
    assert found["resident"]
    assert found["steady"]
    assert found["cycles"] == []
    assert sum(turn["counts"]["pages_read"] for turn in found["turns"]) == 0


def test_the_limit_of_tuples_ends_a_warm_up(store: Path) -> None:
    found = run(store, "ssbj", int(0.8 * ROWS * 120), cycles=1_000, most=3 * ROWS)
    assert len(found["cycles"]) < 10


def test_rest_needs_two_rounds_alike() -> None:
    assert not _rests([0.5, 0.5, 0.5])
    assert _rests([0.1, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5])
    assert not _rests([0.5, 0.5, 0.5, 0.6, 0.6, 0.6])
