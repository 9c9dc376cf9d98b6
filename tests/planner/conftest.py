"""A small R and streams over it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from semistream import build_pages
from semistream.lab.workloads.relation import KEY, master_table

ROWS = 20_000


@pytest.fixture(scope="session")
def table() -> pa.Table:
    return master_table(ROWS, seed=1)


@pytest.fixture(scope="session")
def store(table: pa.Table, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("planner") / "r"
    build_pages(table, path, on=KEY, page_rows=32)
    return path


@pytest.fixture(scope="session")
def parquet(table: pa.Table, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("planner") / "r.parquet"
    pq.write_table(table.select([KEY, "m01", "m02", "m03"]), path, row_group_size=2_000)
    return path
