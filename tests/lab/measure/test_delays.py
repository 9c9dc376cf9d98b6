"""Times in the join and in front of it, on the papers' clock, against what queues must obey."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.lab.labs import tiny_lab

from semistream import open_join
from semistream.lab.laboratory import Lab
from semistream.lab.measure.delays import run_delays
from semistream.lab.workloads.relation import KEY, STREAM_SCHEMA, SyntheticStream

ROWS, MEMORY, BATCH = 10_000, 400_000, 200


def times(lab: Lab, algorithm: str) -> tuple[dict[str, Any], int]:
    """Times of an algorithm, and how many tuples wait in its table."""
    master = lab.master(lab.synthetic(ROWS))
    with open_join(algorithm, master=master, on=KEY, memory=MEMORY, stream_schema=STREAM_SCHEMA) as join:
        stream = SyntheticStream(ROWS, 1.0, 1)
        found = run_delays(join, stream, BATCH, lab.profiles, ("papers",), None)
        return found, join.waiting


def test_times_obey_littles_law_and_grow_with_load(tmp_path: Path) -> None:
    with tiny_lab(tmp_path, tmp_path) as lab:
        mesh, waiting = times(lab, "meshjoin")
        cached, _ = times(lab, "ssj")
    # Those in the table are those that come while one of them stays; it meets its match half-way, on average.
    stay = mesh["processing"]["papers"]["mean"]
    assert stay == pytest.approx(0.5 * waiting / mesh["capacity"]["papers"], rel=0.1)
    assert cached["processing"]["papers"]["mean"] < stay
    waits = [found["mean"] for found in mesh["waiting"]["papers"]]
    assert waits[-1] > waits[0] > 0
    for found in (*mesh["waiting"]["papers"], mesh["processing"]["papers"]):
        assert found["quantiles"] == sorted(found["quantiles"])
        assert found["low"] <= found["mean"] <= found["high"]
