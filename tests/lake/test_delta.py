"""Delta tables: types, bounds that readers leave files out by, other writers, and tables with rules."""

from __future__ import annotations

import builtins
import datetime as dt
import json
import shutil
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from tests.lake.lakes import SCHEMA, expected, found_by, open_lake, rows_of, write_batch, write_files

from semistream.errors import ConfigError, SchemaError, StoreError
from semistream.lake.delta import DeltaFolder
from semistream.lake.table import open_table

APP = "query-1"
UTC = dt.UTC
COLUMNS: dict[str, list[Any]] = {
    "i8": pa.array([1, None, -1], pa.int8()),
    "i16": pa.array([1, None, -1], pa.int16()),
    "i32": pa.array([1, None, -1], pa.int32()),
    "i64": pa.array([2**62, None, -1]),
    "f32": pa.array([1.5, None, -0.0], pa.float32()),
    "f64": pa.array([float("nan"), None, 1.0]),
    "yes": pa.array([True, None, False]),
    "s": pa.array(["é", None, "x" * 100]),
    "large": pa.array(["é", None, ""], pa.large_string()),
    "view": pa.array(["é", None, ""], pa.string_view()),
    "coded": pa.array(["é", None, "é"]).dictionary_encode(),
    "b": pa.array([b"\x00", None, b""]),
    "fixed": pa.array([b"ab", None, b"cd"], pa.binary(2)),
    "d": pa.array([dt.date(2024, 2, 29), None, dt.date(1, 1, 1)]),
    "d64": pa.array([dt.date(2024, 2, 29), None, dt.date(1970, 1, 1)], pa.date64()),
    "utc": pa.array([dt.datetime(2024, 1, 1, 1, tzinfo=UTC), None, None], pa.timestamp("us", "Europe/Berlin")),
    "ms": pa.array([dt.datetime(2024, 1, 1, 1, tzinfo=UTC), None, None], pa.timestamp("ms", "UTC")),
    "ntz": pa.array([dt.datetime(2024, 1, 1, 1), None, None], pa.timestamp("us")),
    "dec": pa.array([Decimal("1.50"), None, Decimal("-2.25")], pa.decimal128(38, 2)),
    "dec64": pa.array([Decimal("1.50"), None, Decimal("-2.25")], pa.decimal64(12, 2)),
    "list": pa.array([[1, None], None, []], pa.list_(pa.int32())),
    "pair": pa.array([[1, None], None, [2, 3]], pa.list_(pa.int32(), 2)),
    "struct": pa.array([{"a": 1, "b": ["x"]}, None, {"a": None, "b": None}]),
    "map": pa.array([[("k", 1)], None, []], pa.map_(pa.string(), pa.int64())),
    "a.b": pa.array([1, None, 2]),
}


def write_once(table: Any, batch: pa.RecordBatch, number: int = 0) -> None:
    table.prepare(batch.schema)
    table.commit(APP, number, write_files(table.target(APP, number), [batch], batch.schema))


def test_types_come_back(tmp_path: Path) -> None:
    batch = pa.record_batch(COLUMNS)
    write_once(open_lake(tmp_path, "delta"), batch)
    found = DeltaTable(str(tmp_path / "t")).to_pyarrow_table()
    want = [{**row, "fixed": row["fixed"]} for row in batch.to_pylist()]
    assert repr(found.select(batch.schema.names).to_pylist()) == repr(want).replace(
        "zoneinfo.ZoneInfo(key='Europe/Berlin')", "zoneinfo.ZoneInfo(key='UTC')"
    ).replace("2, 0, tzinfo", "1, 0, tzinfo")
    # Once more into the table as it is now, and from another order of columns.
    write_once(open_lake(tmp_path, "delta"), batch.select(batch.schema.names[::-1]), 1)
    assert DeltaTable(str(tmp_path / "t")).to_pyarrow_table().num_rows == 6


@pytest.mark.parametrize(
    "kind",
    [
        pa.uint32(),
        pa.timestamp("ns"),
        pa.time64("us"),
        pa.duration("us"),
        pa.float16(),
        pa.decimal256(60, 2),
        pa.null(),
        pa.struct([("a", pa.uint8())]),
        pa.uuid(),
    ],
    ids=str,
)
def test_types_without_a_form_are_refused(tmp_path: Path, kind: pa.DataType) -> None:
    with pytest.raises(SchemaError, match="which Delta has no form for"):
        open_lake(tmp_path, "delta").prepare(pa.schema([("c", kind)]))
    assert not (tmp_path / "t").exists()


@pytest.mark.parametrize("names", [["a b"], ["a,b"], ["a", "A"], ["a=b"]])
def test_names_that_delta_does_not_take_are_refused(tmp_path: Path, names: list[str]) -> None:
    with pytest.raises(SchemaError, match="rename"):
        open_lake(tmp_path, "delta").prepare(pa.schema([(name, pa.int64()) for name in names]))


def test_bounds_leave_out_no_row_that_is_wanted(tmp_path: Path) -> None:
    schema = pa.schema(
        [("s", pa.string()), ("f", pa.float64()), ("ts", pa.timestamp("us", "UTC")), ("dec", pa.decimal128(20, 3))]
    )
    table = open_lake(tmp_path, "delta")
    table.prepare(schema)
    moment = dt.datetime(2024, 1, 1, 0, 0, 0, 999_999, tzinfo=UTC)
    for number in range(3):
        rows = [["a" * 40 + str(number)], [float("nan") if number == 1 else float(number)], [moment], [Decimal(number)]]
        batch = pa.record_batch([pa.array(v, t) for v, t in zip(rows, schema.types, strict=True)], schema=schema)
        table.commit(APP, number, write_files(table.target(APP, number), [batch], schema))
    scan = pl.scan_delta(str(tmp_path / "t"))
    assert scan.filter(pl.col("s") == "a" * 40 + "1").collect().height == 1
    assert scan.filter(pl.col("f").is_nan()).collect().height == 1
    assert scan.filter(pl.col("ts") == moment).collect().height == 3
    assert scan.filter(pl.col("dec") == Decimal("2.000")).collect().height == 1
    for rows, wanted in [([("s", "=", "a" * 40 + "2")], 1), ([("f", ">", 1.5)], None), ([("ts", ">=", moment)], 3)]:
        found = DeltaTable(str(tmp_path / "t")).to_pyarrow_table(filters=rows).num_rows
        assert found == wanted if wanted is not None else found >= 1


def test_other_writers_come_in_between(tmp_path: Path) -> None:
    table = open_lake(tmp_path, "delta")
    table.prepare(SCHEMA)
    write_batch(table, APP, 0)
    target = table.target(APP, 1)
    files = write_files(target, [rows_of(1)])
    write_deltalake(str(tmp_path / "t"), pa.Table.from_batches([rows_of(2)]), mode="append")
    DeltaTable(str(tmp_path / "t")).optimize.compact()
    assert not table.commit(APP, 1, files).skipped
    assert found_by("delta-rs", tmp_path, "delta") == expected([0, 1, 2])
    # What the other replaced is needed for older versions, and no orphan.
    assert table.clean(0) == []
    DeltaTable(str(tmp_path / "t"), version=1).to_pyarrow_table()


def test_columns_that_change_in_between_are_noticed(tmp_path: Path) -> None:
    table = open_lake(tmp_path, "delta")
    table.prepare(SCHEMA)
    files = write_files(table.target(APP, 0), [rows_of(0)])
    wider = pa.table({"k": [5], "p": ["a"], "v": [0.5], "w": ["new"]})
    write_deltalake(str(tmp_path / "t"), wider, mode="append", schema_mode="merge")
    with pytest.raises(SchemaError, match="a column 'w' that the rows have not"):
        table.commit(APP, 0, files)
    assert DeltaTable(str(tmp_path / "t")).to_pyarrow_table().num_rows == 1


def test_another_table_in_its_place_is_noticed(tmp_path: Path) -> None:
    table = open_lake(tmp_path, "delta")
    table.prepare(SCHEMA)
    for number in range(3):
        write_batch(table, APP, number)
    shutil.rmtree(tmp_path / "t")
    open_lake(tmp_path, "delta").prepare(SCHEMA)
    assert not table.done(APP, 2)
    assert write_batch(table, APP, 3).version == 1
    assert found_by("delta-rs", tmp_path, "delta") == expected([3])


def test_a_batch_is_one_entry_of_the_log(tmp_path: Path) -> None:
    table = open_lake(tmp_path, "delta")
    table.prepare(SCHEMA, ["p"])
    assert write_batch(table, APP, 4).version == 1
    lines = (tmp_path / "t/_delta_log/00000000000000000001.json").read_text().splitlines()
    actions = [json.loads(line) for line in lines]
    assert [action["txn"] for action in actions if "txn" in action] == [{"appId": APP, "version": 4}]
    adds = [action["add"] for action in actions if "add" in action]
    assert all(add["dataChange"] and json.loads(add["stats"])["numRecords"] for add in adds)
    assert {add["partitionValues"]["p"] for add in adds} == {"a", "x/y=z", None, "é%25 ", "[1]", "50%"}


def test_tables_with_rules_are_refused(tmp_path: Path) -> None:
    open_lake(tmp_path, "delta").prepare(SCHEMA)
    DeltaTable(str(tmp_path / "t")).alter.add_constraint({"positive": "k >= 0"})
    with pytest.raises(ConfigError, match=r"rules that this writer cannot keep: delta.constraints.positive"):
        open_lake(tmp_path, "delta").prepare(SCHEMA)


def test_columns_without_nulls_stay_so(tmp_path: Path) -> None:
    strict = pa.schema([SCHEMA.field("k"), SCHEMA.field("p").with_nullable(False), SCHEMA.field("v")])
    DeltaTable.create(str(tmp_path / "t"), strict)
    table = open_lake(tmp_path, "delta")
    table.prepare(SCHEMA)
    with pytest.raises(SchemaError, match="column 'p' has a null, and the table takes none"):
        write_batch(table, APP, 0)
    assert found_by("delta-rs", tmp_path, "delta") == []


def test_plain_files_are_no_delta_table(tmp_path: Path) -> None:
    table = open_lake(tmp_path, "parquet")
    table.prepare(SCHEMA)
    write_batch(table, APP, 0)
    with pytest.raises(ConfigError, match="holds Parquet files that no log knows"):
        open_lake(tmp_path, "delta").prepare(SCHEMA)
    with pytest.raises(ConfigError, match="is no Delta table"):
        open_lake(tmp_path, "delta").clean(0)


def test_a_damaged_log_is_an_error_of_ours(tmp_path: Path) -> None:
    open_lake(tmp_path, "delta").prepare(SCHEMA)
    (tmp_path / "t/_delta_log/00000000000000000000.json").write_text("{no json")
    with pytest.raises(StoreError, match="cannot be read"):
        open_lake(tmp_path, "delta").prepare(SCHEMA)


def test_without_the_package_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = builtins.__import__

    def missing(name: str, *args: Any, **options: Any) -> Any:
        if name.partition(".")[0] in ("deltalake", "pyiceberg"):
            raise ImportError(f"No module named {name!r}")
        return plain(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(ConfigError, match=r"pip install 'semistream\[delta\]'"):
        DeltaFolder(str(tmp_path))
    with pytest.raises(ConfigError, match=r"pip install 'semistream\[iceberg\]'"):
        open_table("ns.t", "iceberg", {"catalog": "some"})
