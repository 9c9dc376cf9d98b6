"""The demonstration loads exactly what it should, and would notice if it did not."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
from dataclasses import dataclass, fields, replace
from html import escape
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from rich.console import Console
from typer.testing import CliRunner

from semistream.cli.app import app
from semistream.errors import StoreError
from semistream.lab.demo.demo import OURS, THEIRS, Side, Summary, report, shop, table_format
from semistream.lab.demo.race import Account, Scales, watch
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


def test_the_table_is_a_delta_table(loaded: Loaded) -> None:
    assert loaded.printed["table_format"] == "delta"
    assert loaded.printed["table"] == str(loaded.warehouse.fact)
    table = DeltaTable(loaded.warehouse.fact)
    assert table.metadata().partition_columns == ["sale_date"]
    rows = table.to_pyarrow_table(columns=["order_id"])
    assert sorted(rows["order_id"].to_pylist()) == list(range(1, ROWS + 1))


def test_joined_and_written_in_one_pass(loaded: Loaded) -> None:
    ours, theirs = loaded.printed["sides"][OURS], loaded.printed["sides"][THEIRS]
    assert "one pass" in ours["how"]
    assert "memory 16.8 MB" in ours["settings"]
    assert "shuffle partitions" in theirs["settings"]
    assert ours["rows_in"] == ROWS
    assert ours["lag_rows"] == 0
    assert 0 <= ours["loaded_in_time"] <= ROWS
    assert 0 <= theirs["rows_in"] <= ROWS
    # A JVM alone takes more than that.
    assert min(ours["most_memory_bytes"], theirs["most_memory_bytes"]) > 50_000_000


def test_the_picture_shows_both(loaded: Loaded) -> None:
    picture = Path(loaded.printed["picture"])
    assert picture == loaded.warehouse.folder / "demo.html"
    text = picture.read_text(encoding="utf-8")
    assert "has exactly the rows of Spark&#x27;s own batch join" in text
    assert str(loaded.warehouse.fact) in text
    for side in loaded.printed["sides"].values():
        assert escape(side["settings"]) in text
        assert f"{side['service_rate_per_s']:,}" in text


def test_unmatched_sales_have_no_key(spark: SparkSession, loaded: Loaded) -> None:
    fact = loaded.warehouse.loaded()
    for name in ("product", "customer"):
        key, unknown = f"{name}_key", loaded.printed["unmatched"][f"{name}s"]
        assert 0 < unknown < ROWS // 10
        assert fact.where(f"{key} IS NULL").count() == unknown
        dimension = spark.read.parquet(str(loaded.warehouse.path / f"dim_{name}")).drop("category", "cost", "segment")
        assert fact.join(dimension, [key, f"{name}_id"]).count() == ROWS - unknown
    stores = spark.read.parquet(str(loaded.warehouse.path / "dim_store"))
    assert fact.join(stores, "store_id").count() == ROWS


def test_the_progress_can_be_read_in_a_log(loaded: Loaded) -> None:
    lines = [line for line in loaded.said.splitlines() if line.startswith(f"{OURS}, batch ")]
    assert len(lines) == loaded.printed["batches"] > 0
    for part in ("rows/s", "hit rate products", "customers", "memory", "lag"):
        assert part in lines[0]
    assert f"{ROWS:,} rows" in lines[-1]
    assert lines[-1].endswith("lag 0 rows")


def test_nothing_but_data_is_left(loaded: Loaded) -> None:
    warehouse = loaded.warehouse
    kept = {"checkpoint", "demo.html", "master", "sales", "warehouse"}
    assert {path.name for path in warehouse.folder.iterdir()} == kept
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
    fact = copied.loaded().where("customer_key IS NOT NULL")
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


def test_a_missing_library_is_said_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    notes = quiet()
    assert (table_format(notes), text_of(notes)) == ("delta", "")
    monkeypatch.setitem(sys.modules, "deltalake", None)
    assert table_format(notes) == "parquet"
    assert "pip install 'semistream[delta]'" in text_of(notes)


def test_without_delta_the_table_is_parquet(loaded: Loaded, copied: RetailWarehouse) -> None:
    """The same load without the library: exactly the same rows, in a folder that Spark reads by itself."""
    files = [SalesFile(path, pq.read_metadata(path).num_rows, 0.0) for path in sorted(copied.arrived.iterdir())]
    to_come = copied.folder / "part=0"
    copied.arrived.rename(to_come)
    shutil.rmtree(copied.folder / "checkpoint")
    shutil.rmtree(copied.fact)
    plain = replace(copied, format="parquet")
    account, tasks = Account(OURS, ROWS, 16 << 20), copied.tasks
    moved = [replace(file, path=to_come / file.path.name) for file in files]
    watch(plain.start(16 << 20), moved, account, Scales(copied.spark), tasks=tasks)
    assert account.rows_in == ROWS
    assert not (plain.fact / "_delta_log").exists()
    assert plain.differences() == 0


def test_a_load_that_fails_says_why(copied: RetailWarehouse, tmp_path: Path) -> None:
    shutil.rmtree(copied.arrived)
    shutil.rmtree(copied.folder / "checkpoint")
    shutil.rmtree(copied.fact)
    bad = tmp_path / "part=1" / "bad.parquet"
    bad.parent.mkdir()
    bad.write_text("no Parquet at all")
    files = [SalesFile(bad, 1, 0.0), SalesFile(tmp_path / "never", 1, 3600.0)]
    account, scales = Account(OURS, 2, 16 << 20), Scales(copied.spark)
    with pytest.raises(StoreError, match="loading fact_sales failed"):
        watch(copied.start(16 << 20), files, account, scales, tasks=copied.tasks)


def test_a_query_that_is_late_is_left(copied: RetailWarehouse, tmp_path: Path) -> None:
    """What Spark's own join has not loaded in time stays as its lag."""
    early = sorted(copied.arrived.glob("*.parquet"))[0]
    rows = pq.read_metadata(early).num_rows
    (tmp_path / "part=7").mkdir()
    file = SalesFile(Path(shutil.copy(early, tmp_path / "part=7")), rows, 0.0)
    account = Account(THEIRS, rows)
    watch(copied.start_spark(), [file], account, Scales(copied.spark), tasks=copied.tasks, patience=0.5)
    assert account.rows_arrived == rows
    assert account.rows_in + account.lag_rows == rows
    assert account.samples[-1].at < 60


@pytest.mark.parametrize("differences", [0, 3])
def test_a_wrong_result_is_said_plainly(loaded: Loaded, differences: int) -> None:
    printed = {field.name: loaded.printed[field.name] for field in fields(Summary)}
    summary = Summary(**{**printed, "sides": {name: Side(**side) for name, side in printed["sides"].items()}})
    console, notes = quiet(), quiet()
    report(console, notes, replace(summary, differences=differences), None, Path("demo.html"), as_json=False)
    assert "picture: demo.html" in text_of(console)
    assert ("differ in 3 rows" in text_of(notes)) == ("3 rows differ" in text_of(console)) == (differences == 3)
    assert ("exactly the rows" in text_of(console)) == (text_of(notes) == "") == (differences == 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--rows", "0"], "--rows 0"),
        (["--keep", "."], "is not empty"),
        (["--picture", "mine/demo.html"], "--picture mine/demo.html cannot be written"),
        (["--picture", "."], "--picture . is a folder"),
    ],
)
def test_refused_before_spark_starts(
    options: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").write_text("to stay")
    result = CliRunner().invoke(app, ["demo", *options])
    assert result.exit_code == 2
    assert message in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
