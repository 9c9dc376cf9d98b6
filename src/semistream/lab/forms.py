"""R in the forms that operators and contestants read, each written once into a folder."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from semistream.errors import ConfigError
from semistream.lab.sources import Source, Synthetic
from semistream.lab.workloads.relation import KEY, MASTER_SCHEMA, SyntheticMaster

_ROW_GROUP = 131_072
_FILE_ROWS = 5_000_000


def path_of(source: Source, form: str, folder: Path, say: Callable[[str], None] | None = None) -> Path:
    """Where R is in this form: "pages", "parquet", "duckdb" or "sqlite"; written now if it is not there."""
    path = folder / source.store_name if form == "pages" else folder / f"{source.store_name}.{form}"
    if (path / "CURRENT").exists() if form == "pages" else path.exists():
        return path
    if say is not None:
        say(f"writing {path.name}")
    if form == "pages":
        source.build(path, folder)
        return path
    if not isinstance(source, Synthetic):
        raise ConfigError(f"{source.store_name} can be written as pages only; {form} is for synthetic data")
    scratch = path.with_name(f".making-{path.name}")
    if scratch.is_dir():
        shutil.rmtree(scratch)
    else:
        scratch.unlink(missing_ok=True)
    if form == "duckdb":
        _duckdb(scratch, path_of(source, "parquet", folder, say))
    else:
        writers: dict[str, Callable[[Path, SyntheticMaster], None]] = {"parquet": _parquet, "sqlite": _sqlite}
        writers[form](scratch, source.master)
    scratch.rename(path)
    return path


def _parquet(path: Path, master: SyntheticMaster) -> None:
    """Plain and uncompressed: what a reader decodes fastest, for the values are random."""
    path.mkdir()
    for number, start in enumerate(range(0, master.n_rows, _FILE_ROWS)):
        stop = min(start + _FILE_ROWS, master.n_rows)
        with pq.ParquetWriter(
            path / f"part-{number:03d}.parquet", MASTER_SCHEMA, compression="none", use_dictionary=False
        ) as writer:
            for batch in master.batches(start, stop, _ROW_GROUP):
                writer.write_table(pa.Table.from_batches([batch]))


def _duckdb(path: Path, parquet: Path) -> None:
    import duckdb

    with duckdb.connect(str(path)) as connection:
        connection.execute(f"CREATE TABLE r AS SELECT * FROM read_parquet('{parquet}/*.parquet')")


def _sqlite(path: Path, master: SyntheticMaster) -> None:
    """A table in the order of its key, which several rows may share."""
    columns = ", ".join(f"{name} INTEGER" for name in MASTER_SCHEMA.names)
    marks = ", ".join("?" * (len(MASTER_SCHEMA) + 1))
    connection = sqlite3.connect(path)
    try:
        connection.executescript("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;")
        connection.execute(f"CREATE TABLE r ({columns}, place INTEGER, PRIMARY KEY ({KEY}, place)) WITHOUT ROWID")
        place = 0
        table = master.table().sort_by(KEY)
        for batch in table.to_batches(max_chunksize=_ROW_GROUP):
            values = [column.to_pylist() for column in batch.columns]
            connection.executemany(
                f"INSERT INTO r VALUES ({marks})", zip(*values, range(place, place + batch.num_rows), strict=True)
            )
            place += batch.num_rows
        connection.commit()
    finally:
        connection.close()
