"""Tables of a lake as others read them: every reader that knows the format must find the same rows."""

from __future__ import annotations

import os
from pathlib import Path

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from semistream.testing import assert_same_rows

# Polars warns of another planner, a package that is not needed.
os.environ.setdefault("POLARS_ICEBERG_PLANNER", "pyiceberg")


def catalog(folder: Path) -> dict[str, str]:
    """An Iceberg catalog in a folder."""
    return {
        "name": "tests",
        "type": "sql",
        "uri": f"sqlite:///{folder}/catalog.db",
        "warehouse": f"file://{folder}/warehouse",
    }


def read_all(format: str, path: str, folder: Path) -> pa.Table:
    """The rows of a table, by one reader, after the others have agreed; None at all if there is no file yet."""
    readers = {"parquet": _of_parquet, "delta": _of_delta, "iceberg": _of_iceberg}[format](path, folder)
    first, *others = readers
    for other in others:
        assert_same_rows(other.select(first.column_names).cast(first.schema), first)
    return first


def _of_parquet(path: str, _: Path) -> list[pa.Table]:
    found = ds.dataset(path, format="parquet", partitioning="hive").to_table()
    by_polars = pl.scan_parquet(path, hive_partitioning=True).collect().to_arrow()
    return [found, _by_duckdb([f"{path}/**/*.parquet"]), by_polars]


def _of_delta(path: str, _: Path) -> list[pa.Table]:
    table = DeltaTable(path)
    return [pa.table(table.to_pyarrow_table()), pl.read_delta(path).to_arrow(), _by_duckdb(table.file_uris())]


def _of_iceberg(path: str, folder: Path) -> list[pa.Table]:
    table = load_catalog(**catalog(folder)).load_table(path)
    files = [task.file.file_path.removeprefix("file://") for task in table.scan().plan_files()]
    return [table.scan().to_arrow(), pl.scan_iceberg(table).collect().to_arrow(), _by_duckdb(files)]


def _by_duckdb(files: list[str]) -> pa.Table:
    """The files that a table's log names, for its formats need extensions that are loaded from elsewhere."""
    listed = ", ".join(f"'{file}'" for file in files)
    return duckdb.sql(f"SELECT * FROM read_parquet([{listed}], hive_partitioning = true)").to_arrow_table()
