"""Parquet files as a source: unchanged, or to be read again as a whole; files do not tell which rows changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from semistream.errors import ConfigError, StoreError
from semistream.master.format import is_store
from semistream.master.parquet import ParquetFiles
from semistream.sources.base import BATCH_ROWS, Rebuild, Scan, Source, filtered


class ParquetSource(Source):
    """A file, or all files below a folder."""

    @contextmanager
    def look(self) -> Iterator[Scan]:
        path = Path(self.address.path)
        if not path.exists():
            raise StoreError(f"master data {path} does not exist; name a file or a folder of files")
        if is_store(path):
            raise ConfigError(f"{path} is a page store; name the data that it was built from")
        with self.errors_named():
            scan = ParquetScan(self, ParquetFiles(path))
        yield scan


class ParquetScan(Scan):
    def __init__(self, source: ParquetSource, files: ParquetFiles) -> None:
        self._source, self._files = source, files
        columns = source.wanted.chosen(files.schema, source.name)
        self.schema = pa.schema([files.schema.field(name) for name in columns])
        self.mark = {"files": str(files.identity)}
        self.n_rows = None if source.wanted.where else files.n_rows

    def rows(self) -> Iterator[pa.RecordBatch]:
        where = self._source.wanted.where
        names = [*dict.fromkeys([*self.schema.names, *(one.column for one in where)])]
        read = pa.schema([self._files.schema.field(name) for name in names])
        rows = self._files.rows_within(self._source.batch_bytes, BATCH_ROWS)
        batches = self._files.batches(names, 0, rows, threads=True)
        return self._source.guarded(filtered(batches, where, read, self.schema))

    def changes(self, since: Mapping[str, Any]) -> Rebuild:
        return Rebuild("its files have changed, and Parquet does not tell which rows")
