"""One way in for every form of master data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa
import pyarrow.dataset as ds

from semistream.columns.arrow_in import ArrowData, kind_of, record_batches
from semistream.errors import ConfigError, SchemaError
from semistream.master.base import Master, require_columns
from semistream.master.format import is_store
from semistream.master.memory import MemoryMaster
from semistream.master.pages import PageMaster
from semistream.master.parquet import ParquetMaster

MasterSource: TypeAlias = str | Path | ArrowData | ds.Dataset | Master


def open_master(
    source: MasterSource,
    on: str | Sequence[str] | None = None,
    *,
    page_rows: int | None = None,
    version: int | None = None,
) -> Master:
    """A page-store folder, Parquet file, folder or dataset, Arrow data in memory, or an opened `Master`.

    `on` names the key columns of the master data; a page store knows its own, and refuses another.
    `page_rows` applies to tables and Parquet; `version` picks an older version of a page store.
    """
    keys = None if on is None else ((on,) if isinstance(on, str) else tuple(on))
    if isinstance(source, str | Path) and is_store(Path(source)):
        source = PageMaster(source, version)
    elif version is not None:
        raise ConfigError(f"version={version} was asked for; only a page store has versions")
    if isinstance(source, Master):
        if keys is not None and keys != source.on:
            require_columns(source.schema, keys, "master data")
            raise SchemaError(
                f"the master data is laid out by the key ({', '.join(source.on)}), the join asks for "
                f"({', '.join(keys)}): join on its key, or build a store with on={list(keys)}"
            )
        return source
    if keys is None:
        raise ConfigError("the key of the master data is not known: give on=")
    options = {} if page_rows is None else {"page_rows": page_rows}
    if isinstance(source, str | Path | ds.Dataset):
        return ParquetMaster(source, keys, **options)
    if isinstance(source, pa.Table):
        return MemoryMaster(source, keys, **options)
    batches = record_batches(source, "master data")
    if batches is None:
        raise ConfigError(
            f"master data cannot be {kind_of(source)}; allowed are the path of a page store or of Parquet data, a "
            "dataset, Arrow data (a table, a Polars or pandas frame, a DuckDB relation) and an opened Master"
        )
    return MemoryMaster(batches.read_all(), keys, **options)
