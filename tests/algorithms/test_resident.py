"""R that seemed to fit into memory and does not: the join goes on as if it had been known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import semistream
from semistream.algorithms.ssbj import ResidentFront
from semistream.loops.resident import resident_bytes
from semistream.testing import assert_same_rows, reference_join, split

ROWS = 20_000


@pytest.mark.parametrize("larger", [True, False])
def test_rows_that_are_larger_than_the_first_ones(larger: bool, tmp_path: Path) -> None:
    """Of Parquet in place only the first rows are known beforehand."""
    texts = ["x" * (300 if larger and i > ROWS // 2 else 3) + str(i % 10) for i in range(ROWS)]
    master = pa.table({"k": np.arange(ROWS), "s": texts})
    pq.write_table(master, tmp_path / "r.parquet")
    stream = pa.table({"k": np.arange(ROWS + 100) * 7 % (ROWS + 50), "seq": np.arange(ROWS + 100)})
    with semistream.open_join("ssbj", master=tmp_path / "r.parquet", on="k", how="left", memory="4MB") as join:
        output = [rows for batch in split(stream, 1000) for rows in join.push(batch)]
        output += join.drain()
        assert resident_bytes(join.plan.r) < 3_000_000, "it seemed to fit"
        assert isinstance(join.loop.front, ResidentFront) is not larger  # type: ignore[attr-defined]
        assert join.loop.cache is not None
        assert join.loop.cache.complete is not larger
    assert_same_rows(pa.Table.from_batches(output), reference_join(stream, master, "k", "left"))
