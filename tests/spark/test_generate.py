"""What Spark's tasks make is what one process makes, however it is cut."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from semistream.errors import ConfigError
from semistream.lab.workloads.drift import Drift
from semistream.lab.workloads.on_spark import generate
from semistream.lab.workloads.relation import SyntheticMaster, SyntheticStream
from semistream.lab.workloads.retail import Retail
from semistream.lab.workloads.weather_reports import WeatherReports
from semistream.lab.workloads.workload import Workload

SHOP = Retail(n_products=3_000, n_customers=5_000, n_stores=20, seed=4)
WORKLOADS: dict[str, tuple[Workload, int]] = {
    "master": (SyntheticMaster(5_000, 3, repeat=True, frequency=1.0), 5_000),
    "stream": (SyntheticStream(5_000, 0.8, 3, drift=Drift((2_000,), over=500), unmatched=0.1), 7_001),
    "products": (SHOP.products, 3_000),
    "customers": (SHOP.customers, 5_000),
    "stores": (SHOP.stores, 20),
    "sales": (SHOP.sales, 6_000),
    "weather": (WeatherReports(((1982, 4),), 5, stations=30, ships=8, land_reports=20, ship_reports=5), 6_000),
}


@pytest.mark.parametrize("name", WORKLOADS)
def test_same_rows_as_in_process(spark: SparkSession, name: str) -> None:
    workload, rows = WORKLOADS[name]
    made = generate(spark, workload, rows, 3).toArrow().combine_chunks()
    wanted = workload.table(0, rows)
    assert made.column_names == wanted.column_names
    # Spark hands out every column as nullable; the values and types are the same.
    assert made.cast(wanted.schema).equals(wanted)


@pytest.mark.parametrize("partitions", [1, 2, 7])
def test_the_number_of_partitions_does_not_matter(spark: SparkSession, partitions: int) -> None:
    frame = generate(spark, SHOP.sales, 1_000, partitions)
    assert frame.rdd.getNumPartitions() == partitions
    assert frame.toArrow().combine_chunks().cast(SHOP.sales.schema).equals(SHOP.sales.table(0, 1_000))


def test_a_later_stretch(spark: SparkSession) -> None:
    made = generate(spark, SHOP.sales, 300, 2, start=1_000).toArrow().combine_chunks()
    assert made.cast(SHOP.sales.schema).equals(SHOP.sales.table(1_000, 1_300))


def test_a_relation_has_its_own_size(spark: SparkSession) -> None:
    assert generate(spark, SHOP.stores, partitions=2).count() == 20


def test_no_rows(spark: SparkSession) -> None:
    frame = generate(spark, SHOP.sales, 0, 2)
    assert frame.count() == 0
    assert frame.columns == SHOP.sales.schema.names


def test_refused_before_anything_runs(spark: SparkSession) -> None:
    with pytest.raises(ConfigError, match="no last row"):
        generate(spark, SHOP.sales)
    with pytest.raises(ConfigError, match="not in a relation of 20 rows"):
        generate(spark, SHOP.stores, 21)
    with pytest.raises(ConfigError, match="at least 1 partition"):
        generate(spark, SHOP.stores, 20, 0)
