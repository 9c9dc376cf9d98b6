"""What holds for every workload: slices fit together, wherever they are cut."""

from __future__ import annotations

from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semistream.errors import ConfigError
from semistream.lab.workloads.drift import Drift
from semistream.lab.workloads.relation import SyntheticMaster, SyntheticStream
from semistream.lab.workloads.retail import Retail
from semistream.lab.workloads.weather_reports import WeatherReports
from semistream.lab.workloads.workload import Workload

SIZE = 12_000
SHOP = Retail(n_products=SIZE, n_customers=SIZE, n_stores=SIZE, seed=4)
WORKLOADS: dict[str, Workload] = {
    "unique master": SyntheticMaster(SIZE, 3),
    "repeating master": SyntheticMaster(SIZE, 3, repeat=True, frequency=0.7),
    "master by frequency": SyntheticMaster(SIZE, 3, order="frequency", hot_seed=9),
    "stream": SyntheticStream(500, 1.2, 3),
    "drifting stream": SyntheticStream(500, 0.8, 3, drift=Drift((1_000, 5_000, 9_000), over=2_500), unmatched=0.1),
    "products": SHOP.products,
    "customers": SHOP.customers,
    "stores": SHOP.stores,
    "sales": SHOP.sales,
    "weather": WeatherReports(((1982, 4), (1982, 8)), 5, stations=40, ships=8, land_reports=25, ship_reports=5),
}


@pytest.fixture(scope="module")
def wholes() -> dict[str, pa.Table]:
    return {name: workload.table(0, SIZE) for name, workload in WORKLOADS.items()}


@pytest.mark.parametrize("name", WORKLOADS)
@settings(max_examples=15)
@given(cuts=st.lists(st.integers(0, SIZE), max_size=5))
def test_random_cuts_give_the_same_rows(name: str, wholes: dict[str, pa.Table], cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), SIZE]
    parts = [WORKLOADS[name].rows(first, last) for first, last in pairwise(edges)]
    together = pa.Table.from_batches(parts)
    together.validate(full=True)
    assert together.combine_chunks().equals(wholes[name].combine_chunks())


@pytest.mark.parametrize("name", WORKLOADS)
def test_readers_and_batches_are_the_same_rows(name: str, wholes: dict[str, pa.Table]) -> None:
    workload = WORKLOADS[name]
    reader = workload.reader(100, SIZE, batch_rows=777)
    assert reader.schema.equals(workload.schema)
    assert reader.read_all().combine_chunks().equals(wholes[name].slice(100).combine_chunks())


@pytest.mark.parametrize("name", WORKLOADS)
def test_no_rows_have_the_schema(name: str) -> None:
    assert WORKLOADS[name].rows(7, 7).schema.equals(WORKLOADS[name].schema)


def test_slices_outside_are_refused() -> None:
    with pytest.raises(ConfigError, match="rows 0 to 12001 are not in a relation of 12000 rows"):
        SHOP.products.rows(0, SIZE + 1)
    with pytest.raises(ConfigError, match="rows 5 to 3 are not in an endless stream"):
        SHOP.sales.rows(5, 3)
    with pytest.raises(ConfigError, match="Sales has no last row"):
        SHOP.sales.table()
