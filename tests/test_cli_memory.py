"""The whole process of `semistream join` stays near its budget, whatever reader, writer, sort and allocator hold."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from semistream.workloads.relation import KEY, MASTER_SCHEMA, STREAM_SCHEMA, master_batches, stream_batches

BUDGET_BYTES = 8_000_000
# Without bounds on writer, sort and allocator this data takes about 100 MB.
BOUND_BYTES = BUDGET_BYTES * 5 // 4 + 64_000_000


def peak_bytes(folder: Path, rows: int) -> int:
    """The most anonymous and shared memory of a join that also builds the page store."""
    place = folder / str(rows)
    place.mkdir()
    for name, schema, batches in (
        ("r", MASTER_SCHEMA, master_batches(rows, seed=1)),
        ("s", STREAM_SCHEMA, stream_batches(rows, rows, seed=2)),
    ):
        pq.write_table(pa.Table.from_batches(batches, schema), place / f"{name}.parquet")
    words = ["--stream", "s.parquet", "--master", "r.parquet", "--on", KEY, "--out", "out.parquet", "--json"]
    peak = 0
    with subprocess.Popen(
        [sys.executable, "-m", "semistream.cli", "join", *words, "--memory", str(BUDGET_BYTES)],
        cwd=place,
        env={**os.environ, "SEMISTREAM_CACHE": str(place / "cache")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        while process.poll() is None:
            try:
                lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
            except ProcessLookupError:
                break
            found = sum(int(line.split()[1]) for line in lines if line.startswith(("RssAnon:", "RssShmem:")))
            peak = max(peak, 1024 * found)
            time.sleep(0.002)
        out, err = process.communicate()
    assert process.returncode == 0, err
    assert json.loads(out)["rows_in"] == rows
    return peak


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="resident memory is read from /proc")
def test_memory_of_the_process_does_not_grow_with_the_data(tmp_path: Path) -> None:
    over = peak_bytes(tmp_path, 300_000) - peak_bytes(tmp_path, 1_000)
    assert over <= BOUND_BYTES, f"{over / 1e6:.1f} MB over a run on 1,000 rows"
