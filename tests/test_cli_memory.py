"""The whole process of `semistream join` stays near its budget, whatever reader, writer, sort and allocator hold."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from semistream.lab.measure.child import weigh
from semistream.lab.measure.resident import allowed_bytes
from semistream.lab.workloads.relation import KEY, SyntheticMaster, SyntheticStream

BUDGET_BYTES = 8_000_000
# Without bounds on writer, sort and allocator this data takes about 100 MB.
BOUND_BYTES = allowed_bytes(BUDGET_BYTES)


def peak_bytes(folder: Path, rows: int) -> int:
    """The most anonymous and shared memory of a join that also builds the page store."""
    place = folder / str(rows)
    place.mkdir()
    pq.write_table(SyntheticMaster(rows, seed=1).table(), place / "r.parquet")
    pq.write_table(SyntheticStream(rows, seed=2).table(0, rows), place / "s.parquet")
    words = ["--stream", "s.parquet", "--master", "r.parquet", "--on", KEY, "--out", "out.parquet", "--json"]
    done = weigh(
        ["-m", "semistream.cli", "join", *words, "--memory", str(BUDGET_BYTES)],
        folder=place,
        environment={"SEMISTREAM_CACHE": str(place / "cache")},
    )
    assert done.status == 0, done.errors
    assert json.loads(done.out)["rows_in"] == rows
    return done.most_bytes


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="resident memory is read from /proc")
def test_memory_of_the_process_does_not_grow_with_the_data(tmp_path: Path) -> None:
    over = peak_bytes(tmp_path, 300_000) - peak_bytes(tmp_path, 1_000)
    assert over <= BOUND_BYTES, f"{over / 1e6:.1f} MB over a run on 1,000 rows"
