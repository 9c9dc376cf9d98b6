"""What tests of the lake share: batches of rows, tables of each format, and readers that know nothing of semistream."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from semistream.lake.files import FileWriter, WrittenFile
from semistream.lake.table import Committed, LakeTable, open_table
from semistream.lake.target import Target

FORMATS = ("parquet", "delta", "iceberg")
SCHEMA = pa.schema([("k", pa.int64()), ("p", pa.string()), ("v", pa.float64())])
VALUES = ("a", "x/y=z", None, "é%25 ", "[1]", "50%")


def rows_of(number: int, count: int = 24) -> pa.RecordBatch:
    """The rows of a batch: no two alike, in any batch."""
    at = range(number * 1000, number * 1000 + count)
    columns = [list(at), [VALUES[i % len(VALUES)] for i in at], [i / 4 for i in at]]
    return pa.record_batch(columns, schema=SCHEMA)


def open_lake(folder: Path, format: str, name: str = "t", **options: Any) -> LakeTable:
    """A table below a folder."""
    if format == "iceberg":
        catalog = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}
        return open_table(f"ns.{name}", format, {"catalog": catalog, **options})
    return open_table(str(folder / name), format, options)


def write_files(
    target: Target, batches: Iterable[pa.RecordBatch], schema: pa.Schema = SCHEMA, part: int = 0
) -> list[WrittenFile]:
    """What a task does."""
    with FileWriter(target, schema, part) as writer:
        for batch in batches:
            writer.write(batch)
        return writer.finish()


def write_batch(table: LakeTable, app: str, number: int, tasks: int = 2, rows: int = 24) -> Committed:
    """What a driver and its tasks do with a batch."""
    target = table.target(app, number)
    files: list[WrittenFile] = []
    for part in range(tasks):
        share = rows_of(number, rows)
        files += write_files(target, [share.slice(part * rows // tasks, rows // tasks)], part=part)
    return table.commit(app, number, [WrittenFile.from_json(file.to_json()) for file in files])


Row = tuple[int, str | None, float]


def tuples(batches: Sequence[pa.RecordBatch]) -> list[Row]:
    """Rows that can be compared, sorted."""
    return sorted((row["k"], row["p"], row["v"]) for batch in batches for row in batch.to_pylist())


def expected(numbers: Iterable[int], rows: int = 24) -> list[Row]:
    return tuples([rows_of(number, rows) for number in numbers])


def found_by(reader: str, folder: Path, format: str, name: str = "t") -> list[Row]:
    """All rows that a reader sees in a table of `open_lake`."""
    return tuples(READERS[reader](folder, name).select(["k", "p", "v"]).to_batches())


def _duckdb(pattern: str) -> Any:
    def read(folder: Path, name: str) -> pa.Table:
        import duckdb

        query = f"SELECT k, p, v FROM read_parquet('{folder / name}{pattern}', hive_types_autocast = false)"
        with duckdb.connect() as connection:
            return connection.sql(query).to_arrow_table()

    return read


def _polars(pattern: str) -> Any:
    def read(folder: Path, name: str) -> pa.Table:
        import polars as pl

        hive = any((folder / name).glob("p=*"))
        scan = pl.scan_parquet(
            f"{folder / name}{pattern}", hive_partitioning=hive, hive_schema={"p": pl.String} if hive else None
        )
        return scan.select("k", "p", "v").collect().to_arrow().cast(SCHEMA)

    return read


def _dataset(folder: Path, name: str) -> pa.Table:
    import pyarrow.dataset as ds

    by = ds.partitioning(pa.schema([("p", pa.string())]), flavor="hive")
    schema = pa.schema([SCHEMA.field(column) for column in ("k", "p", "v")])
    return ds.dataset(folder / name, schema, partitioning=by).to_table()


def _delta_rs(folder: Path, name: str) -> pa.Table:
    from deltalake import DeltaTable

    return DeltaTable(str(folder / name)).to_pyarrow_table()


def _polars_delta(folder: Path, name: str) -> pa.Table:
    import polars as pl

    return pl.read_delta(str(folder / name)).select("k", "p", "v").to_arrow().cast(SCHEMA)


def _pyiceberg(folder: Path, name: str) -> pa.Table:
    from pyiceberg.catalog import load_catalog

    uri = f"sqlite:///{folder}/catalog.db"
    catalog = load_catalog("semistream", type="sql", uri=uri, warehouse=f"file://{folder}/warehouse")
    return catalog.load_table(f"ns.{name}").scan().to_arrow()


def _polars_iceberg(folder: Path, name: str) -> pa.Table:
    import polars as pl
    from polars.exceptions import PerformanceWarning
    from pyiceberg.catalog import load_catalog

    uri = f"sqlite:///{folder}/catalog.db"
    catalog = load_catalog("semistream", type="sql", uri=uri, warehouse=f"file://{folder}/warehouse")
    with warnings.catch_warnings():
        # It is quicker with another package, and reads the same.
        warnings.simplefilter("ignore", PerformanceWarning)
        scan = pl.scan_iceberg(catalog.load_table(f"ns.{name}"))
        return scan.select("k", "p", "v").collect().to_arrow().cast(SCHEMA)


READERS: dict[str, Any] = {
    "duckdb, the folder": _duckdb("/"),
    "duckdb, all below": _duckdb("/**/*.parquet"),
    "polars, the folder": _polars("/"),
    "polars, all below": _polars("/**/*.parquet"),
    "polars, every file below": _polars("/**/*"),
    "pyarrow": _dataset,
    "delta-rs": _delta_rs,
    "polars, delta": _polars_delta,
    "pyiceberg": _pyiceberg,
    "polars, iceberg": _polars_iceberg,
}
READERS_OF = {
    "parquet": [name for name in READERS if "delta" not in name and "iceberg" not in name],
    "delta": ["delta-rs", "polars, delta"],
    "iceberg": ["pyiceberg", "polars, iceberg"],
}
