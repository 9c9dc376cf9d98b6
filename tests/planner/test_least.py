"""The smallest budget follows from plans, and joins agree with it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from semistream import open_join
from semistream.algorithms.registry import ALGORITHMS
from semistream.cost.situation import Situation
from semistream.errors import BudgetError
from semistream.master.base import Master
from semistream.master.open import open_master
from semistream.planner.least import least_budget
from semistream.predict.keys import zipf
from semistream.spec import JoinSpec

KEY = "k"
NARROW = pa.schema([(KEY, pa.int64())])
WIDE = pa.schema([(KEY, pa.int64()), *((f"s{i}", pa.int64()) for i in range(400))])
SPEC = JoinSpec.make(KEY)


@pytest.fixture(params=["store", "parquet", "memory"])
def master(request: pytest.FixtureRequest, tmp_path: Path, table: pa.Table, store: Path, parquet: Path) -> Master:
    source = {"store": store, "parquet": parquet, "memory": table}[request.param]
    return open_master(source, (table.schema.names[0],))


def opens(master: Master, spec: JoinSpec, stream: pa.Schema, budget: int) -> list[str]:
    found = []
    for name, algorithm in ALGORITHMS.items():
        if algorithm.needs_index and not master.has_index:
            continue
        try:
            with open_join(name, master=master, on=list(spec.master_on), memory=budget, stream_schema=stream):
                found.append(name)
        except BudgetError:
            continue
    return found


@pytest.mark.parametrize("columns", [0, 200])
def test_it_is_enough_and_about_the_least(master: Master, columns: int) -> None:
    key = master.schema.field(master.on[0])
    stream = pa.schema([key, *(pa.field(f"s{i}", pa.float64()) for i in range(columns))])
    spec = JoinSpec.make(list(master.on))
    least = least_budget(master, spec, stream)
    assert least is not None
    assert opens(master, spec, stream, least)
    assert opens(master, spec, stream, int(least * 0.98)) == []


@pytest.mark.parametrize("stream", [NARROW, WIDE], ids=["narrow", "wide"])
def test_parquet_is_cut_finer_where_the_usual_cut_is_too_much(tmp_path: Path, stream: pa.Schema) -> None:
    """Also where only the stream shows that the budget is small; and a prediction sees R as the join does."""
    rows = 20_000
    table = pa.table({KEY: np.arange(rows), **{f"c{i}": np.arange(rows) for i in range(4)}})
    pq.write_table(table, tmp_path / "r.parquet", row_group_size=5_000)
    master = open_master(tmp_path / "r.parquet", (KEY,))
    least = least_budget(master, SPEC, stream)
    assert least is not None
    cuts = set()
    for budget in (least, least + 1_000, 2 * least):
        situation = Situation.of(master, SPEC, stream, budget, zipf(rows, 1.0))
        for name in opens(master, SPEC, stream, budget):
            with open_join(name, master=master, on=KEY, memory=budget, stream_schema=stream) as join:
                assert situation.plan(ALGORITHMS[name]) == join.plan
                cuts.add(join.plan.r.page_rows < situation.r.page_rows)
    assert cuts == {True, False}
