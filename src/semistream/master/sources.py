"""Anything that holds rows, as one schema and a stream of record batches of moderate size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa
import pyarrow.dataset as ds

from semistream.columns.arrow_in import ArrowData, kind_of, record_batches
from semistream.errors import SchemaError, StoreError
from semistream.master.parquet import scan_parquet

Source: TypeAlias = ArrowData | ds.Dataset | str | Path | Iterable[ArrowData]

_BATCH_ROWS = 1 << 17


def open_source(
    source: Source, schema: pa.Schema | None, batch_bytes: int
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Schema and batches; no batch much larger than `batch_bytes`, so that the memory limit can be kept."""
    found, batches = _open(source, schema, batch_bytes)
    return found, _moderate(found, batches, batch_bytes)


def _open(source: Source, schema: pa.Schema | None, batch_bytes: int) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    if isinstance(source, str | Path):
        return scan_parquet(Path(source), batch_bytes)
    if isinstance(source, pa.Table):
        return source.schema, iter(source.to_batches(max_chunksize=_BATCH_ROWS))
    if isinstance(source, ds.Dataset):
        return source.schema, source.to_batches(batch_size=_BATCH_ROWS, batch_readahead=2, fragment_readahead=1)
    found = record_batches(source, "master data")
    if found is not None:
        return found.schema, iter(found)
    if not isinstance(source, Iterable):
        raise StoreError(
            f"master data cannot be read from {kind_of(source)}; allowed are Arrow data (a table, a reader, a Polars "
            "or pandas frame, a DuckDB relation), a dataset, record batches, and the path of Parquet data"
        )
    batches = _each(source)
    if schema is None:
        first = next(batches, None)
        if first is None:
            raise SchemaError("an empty sequence of batches tells no schema: give schema=")
        schema, batches = first.schema, chain([first], batches)
    return schema, batches


def _each(parts: Iterable[object]) -> Iterator[pa.RecordBatch]:
    for part in parts:
        found = record_batches(part, "a batch of the master data")
        if found is None:
            raise SchemaError(
                f"master data must come as Arrow record batches, not {kind_of(part)}: "
                "make one with pa.RecordBatch.from_pylist(rows)"
            )
        yield from found


def _moderate(schema: pa.Schema, batches: Iterable[pa.RecordBatch], batch_bytes: int) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        if not batch.schema.equals(schema):
            raise SchemaError(
                f"a batch of the master data has the schema ({_words(batch.schema)}), the first one had "
                f"({_words(schema)}): cast the batches to one schema"
            )
        rows = batch.num_rows
        step = max(1, min(_BATCH_ROWS, rows * batch_bytes // max(batch.nbytes, 1)))
        for start in range(0, rows, step):
            yield batch.slice(start, step)


def _words(schema: pa.Schema) -> str:
    return ", ".join(f"{column.name}: {column.type}" for column in schema)
