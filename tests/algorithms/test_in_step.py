"""Operators with threads, their phases in step: exact as ever, and the same counts every time."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pyarrow as pa
import pytest

from semistream import build_pages, open_join
from semistream.lab.workloads.relation import KEY, master_table, stream_batches
from semistream.testing import assert_same_rows, reference_join

ROWS = 20_000


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("in_step") / "r"
    build_pages(master_table(ROWS, seed=1), path, on=KEY, page_rows=64)
    return path


@pytest.mark.parametrize("reads", ["mapped", "direct"])
@pytest.mark.parametrize("algorithm", ["pcachejoin", "opcachejoin"])
def test_counts_are_the_same_every_time(algorithm: str, reads: str, store: Path) -> None:
    batches = list(stream_batches(40_000, int(ROWS * 1.2), 0.8, 3, batch_rows=3_000))
    expected = reference_join(pa.Table.from_batches(batches), master_table(ROWS, seed=1), KEY, "left")
    seen = []
    for _ in range(2):
        options = {"memory": "500kB", "in_step": True, "reads": reads}
        with open_join(algorithm, master=store, on=KEY, how="left", **options) as join:
            rows = []
            for batch in batches:
                rows += join.push(batch)
                seen.append(asdict(join.stats))
            rows += join.drain()
            seen.append(asdict(join.stats))
            assert_same_rows(pa.Table.from_batches(rows, join.output_schema), expected)
    each = len(batches) + 1
    assert seen[:each] == seen[each:]
    assert seen[-1]["finished"] == 40_000
    assert seen[-1]["cache_hits"] > 0
