"""Sources of the experiments: the data they say, found again under their names, and streams without end."""

from __future__ import annotations

import itertools
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from semistream import open_join
from semistream.lab.forms import path_of
from semistream.lab.sources import TpchSource, WeatherSource
from semistream.lab.workloads import weather
from semistream.lab.workloads.weather_reports import WeatherReports
from semistream.master.open import open_master
from semistream.testing import assert_same_rows, reference_join, run_join

SCALE = 0.01
CUSTOMERS, ORDERS = 1_500, 15_000


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


def _first(source: TpchSource | WeatherSource, rows: int, data: Path, batch: int = 1_000) -> pa.Table:
    batches = list(itertools.islice(source.stream(batch, data), rows // batch))
    return pa.Table.from_batches(batches)


def test_skewed_orders_differ_in_their_customers_only(data: Path) -> None:
    plain, skewed = (_first(TpchSource(SCALE, skew), ORDERS, data) for skew in (None, 1.0))
    assert skewed.schema == plain.schema
    others = [name for name in plain.schema.names if name != "o_custkey"]
    assert skewed.select(others).equals(plain.select(others))
    most = [pc.max(table["o_custkey"].value_counts().field("counts")).as_py() for table in (plain, skewed)]
    # Evenly spread a customer has about fifteen orders; by Zipf's law the first of a thousand has an eighth of them.
    assert most[0] < 60
    assert most[1] == pytest.approx(ORDERS / 7.5, rel=0.1)


def test_skewed_customers_go_on_when_the_orders_begin_again(data: Path) -> None:
    twice = _first(TpchSource(SCALE, 1.0), 2 * ORDERS, data)
    assert twice["o_orderkey"].slice(ORDERS).equals(twice["o_orderkey"].slice(0, ORDERS))
    assert not twice["o_custkey"].slice(ORDERS).equals(twice["o_custkey"].slice(0, ORDERS))


def test_both_kinds_of_orders_share_r_and_differ_in_their_runs(data: Path) -> None:
    plain, skewed = TpchSource(SCALE), TpchSource(SCALE, 1.0, seed=2)
    assert plain.store_name == skewed.store_name
    assert plain.describe() == {"data": "tpch", "scale_factor": SCALE}
    assert skewed.describe() == {"data": "tpch, skewed orders", "scale_factor": SCALE, "skew": 1.0, "seed": 2}


def test_weather_tuples_have_the_papers_size_in_both_tables(data: Path) -> None:
    source = WeatherSource(3_000)
    master = open_master(path_of(source, "pages", data), ("lon",))
    try:
        assert master.n_rows == pytest.approx(3_000, rel=0.2)
        # Bitmaps of nulls and the frame of a page come on top.
        assert weather.TUPLE_BYTES <= master.row_bytes < 1.15 * weather.TUPLE_BYTES
        assert master.schema.names == weather.WIDE_SCHEMA.names
    finally:
        master.close()
    assert source.stream_schema(data) == weather.WIDE_SCHEMA
    assert _first(source, 2_000, data).schema == weather.WIDE_SCHEMA


def test_weather_reports_join_as_they_should(data: Path) -> None:
    source = WeatherSource(3_000)
    stream = next(source.stream(200, data))
    path = path_of(source, "pages", data)
    master = pa.Table.from_batches(map(weather.widened, source._invented(weather.MASTER_MONTHS).batches()))
    with open_join("ssbj", master=path, on="lon", how="inner", memory="4MB") as join:
        rows = run_join(join, [stream])
    assert rows.num_rows > 0
    assert_same_rows(rows, reference_join(pa.Table.from_batches([stream]), master, on="lon", how="inner"))


def test_the_archive_is_no_made_up_data(tmp_path: Path, data: Path) -> None:
    small = {"stations": 40, "ships": 10, "land_reports": 20, "ship_reports": 4}
    for months in (weather.MASTER_MONTHS, weather.STREAM_MONTHS):
        WeatherReports(tuple((1985, month) for month in months), 5, **small).write(tmp_path / "ndp026b")
    archive = WeatherSource(3_000, folder=tmp_path / "ndp026b")
    assert not archive.made_up
    assert WeatherSource(3_000).made_up
    assert "made up" not in archive.describe()["data"]
    assert "made up" in WeatherSource(3_000).describe()["data"]
    assert archive.store_name != WeatherSource(3_000).store_name
    assert _first(archive, 1_000, data).schema == weather.WIDE_SCHEMA
