"""The demonstration loads exactly what it should, and would notice if it did not."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from rich.console import Console
from typer.testing import CliRunner

from semistream.cli.app import app
from semistream.errors import StoreError
from semistream.lab.demo.demo import Account, Summary, report, shop, watch
from semistream.lab.demo.warehouse import RetailWarehouse, SalesFile

ROWS = 20_000


@dataclass(frozen=True)
class Loaded:
    """What a run of the program left behind, printed, and said meanwhile."""

    warehouse: RetailWarehouse
    printed: dict[str, Any]
    said: str


def quiet() -> Console:
    return Console(file=io.StringIO(), width=200)


def text_of(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.fixture(scope="module")
def loaded(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    folder = tmp_path_factory.mktemp("demo") / "kept"
    done = subprocess.run(
        [sys.executable, "-m", "semistream.cli", "demo", "--rows", str(ROWS), "--keep", str(folder), "--json"],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return Loaded(RetailWarehouse(spark, shop(ROWS), folder), json.loads(done.stdout), done.stderr)


@pytest.fixture
def copied(loaded: Loaded, tmp_path: Path) -> RetailWarehouse:
    """The same data in a folder of its own, to be spoilt."""
    folder = tmp_path / "copy"
    shutil.copytree(loaded.warehouse.folder, folder)
    return replace(loaded.warehouse, folder=folder)


def test_every_sale_is_loaded_once(loaded: Loaded) -> None:
    printed = loaded.printed
    assert printed["verified"] is True
    assert printed["rows_in"] == printed["rows_out"] == ROWS
    assert 0 < printed["peak_bytes"] <= printed["budget_bytes"]
    assert printed["workers_resident_peak_bytes"] > 0
    assert printed["most_lag_rows"] <= ROWS


def test_unmatched_sales_point_to_row_0(spark: SparkSession, loaded: Loaded) -> None:
    fact = spark.read.parquet(str(loaded.warehouse.path / "fact_sales")).drop("product_id", "customer_id")
    for name in ("product", "customer"):
        key, unknown = f"{name}_key", loaded.printed["unmatched"][f"{name}s"]
        assert 0 < unknown < ROWS // 10
        assert fact.where(f"{key} = 0").count() == unknown
        dimension = spark.read.parquet(str(loaded.warehouse.path / f"dim_{name}"))
        assert fact.join(dimension, key).count() == ROWS
        assert fact.join(dimension, key).where(f"{key} <> 0 AND {name}_id IS NULL").count() == 0
    stores = spark.read.parquet(str(loaded.warehouse.path / "dim_store"))
    assert fact.join(stores, "store_id").count() == ROWS


def test_the_progress_can_be_read_in_a_log(loaded: Loaded) -> None:
    lines = [line for line in loaded.said.splitlines() if line.startswith("batch ")]
    assert len(lines) == loaded.printed["batches"] > 0
    for part in ("rows/s", "hit rate products", "customers", "memory", "lag"):
        assert part in lines[0]
    assert f"{ROWS:,} rows" in lines[-1]
    assert lines[-1].endswith("lag 0 rows")


def test_nothing_but_data_is_left(loaded: Loaded) -> None:
    warehouse = loaded.warehouse
    assert loaded.printed["warehouse"] == str(warehouse.path)
    assert {path.name for path in warehouse.folder.iterdir()} == {"checkpoint", "master", "sales", "warehouse"}
    tables = {"dim_customer", "dim_product", "dim_store", "fact_sales"}
    assert {path.name for path in warehouse.path.iterdir()} == tables


def test_rows_of_one_side_only_are_noticed(copied: RetailWarehouse) -> None:
    first, second = sorted(copied.arrived.glob("*.parquet"))[:2]
    rows = pq.read_metadata(first).num_rows
    shutil.copy(first, copied.arrived / "again.parquet")
    assert copied.differences() == rows
    rows += pq.read_metadata(second).num_rows
    second.unlink()
    assert copied.differences() == rows


def test_another_value_is_noticed(spark: SparkSession, copied: RetailWarehouse) -> None:
    fact = spark.read.parquet(str(copied.path / "fact_sales")).where("customer_key <> 0")
    best = fact.groupBy("customer_key").count().orderBy("count", ascending=False).first()
    assert best is not None
    place = copied.path / "dim_customer"
    changed = spark.read.parquet(str(place)).selectExpr(
        "* EXCEPT (segment)", f"if(customer_key = {best[0]}, 'another', segment) AS segment"
    )
    changed.write.parquet(str(copied.folder / "changed"))
    shutil.rmtree(place)
    (copied.folder / "changed").rename(place)
    assert copied.differences() == 2 * best[1] > 0


def test_a_load_that_fails_says_why(copied: RetailWarehouse, tmp_path: Path) -> None:
    shutil.rmtree(copied.arrived)
    shutil.rmtree(copied.folder / "checkpoint")
    shutil.rmtree(copied.path / "fact_sales")
    bad = tmp_path / "part=1" / "bad.parquet"
    bad.parent.mkdir()
    bad.write_text("no Parquet at all")
    (copied.folder / "sales-to-come").mkdir()
    with pytest.raises(StoreError, match="loading fact_sales failed"):
        watch(
            copied,
            [SalesFile(bad, 1, 0.0), SalesFile(tmp_path / "never", 1, 3600.0)],
            Account(2, 16 << 20),
            quiet(),
            1.0,
        )


@pytest.mark.parametrize("differences", [0, 3])
def test_a_wrong_result_is_said_plainly(loaded: Loaded, differences: int) -> None:
    summary = Summary(**{field.name: loaded.printed[field.name] for field in fields(Summary)})
    console, notes = quiet(), quiet()
    report(console, notes, replace(summary, differences=differences), None, as_json=False)
    assert ("differ in 3 rows" in text_of(notes)) == ("3 rows differ" in text_of(console)) == (differences == 3)
    assert ("exactly the rows" in text_of(console)) == (text_of(notes) == "") == (differences == 0)


@pytest.mark.parametrize(("options", "message"), [(["--rows", "0"], "--rows 0"), (["--keep", "."], "is not empty")])
def test_refused_before_spark_starts(
    options: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").write_text("to stay")
    result = CliRunner().invoke(app, ["demo", *options])
    assert result.exit_code == 2
    assert message in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
