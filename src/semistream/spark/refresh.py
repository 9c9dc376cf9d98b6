"""Changes of R from a DataFrame, or from a stream of them.

    df of changes -> each task writes its rows to a file in a hidden folder of the store -> the driver applies all files
                                                                                            as one version

What changes mean, and how a store keeps them, stands in `semistream.master.refresh`; nothing of it is different here.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from semistream.errors import ConfigError, SchemaError, StoreError
from semistream.master.build import DEFAULT_MEMORY_LIMIT
from semistream.master.pages import PageMaster
from semistream.master.publish import scratch_folder
from semistream.master.refresh import MAX_RUNS, refresh_pages
from semistream.spark.executors import check_executors
from semistream.spark.failures import brief
from semistream.spark.layout import SHARED, as_stored, stored_schema
from semistream.spark.paths import shared_path
from semistream.spark.worker import QUERY_PROPERTY


def refresh_master(
    path: str | Path,
    changes: DataFrame | None = None,
    *,
    deletes: DataFrame | None = None,
    source: str | None = None,
    position: int | str | None = None,
    committed_at: datetime | str | None = None,
    keep_versions: int = 1,
    max_runs: int = MAX_RUNS,
    compact: str = "auto",
    memory_limit: int = DEFAULT_MEMORY_LIMIT,
) -> PageMaster:
    """Apply changes to a page store as its next version, and open it.

    `changes` has R's columns, and `_change_type`, `_commit_version` and `_commit_timestamp` if it is a change feed, as
    `spark.read.changes()` and Delta give it; else its rows replace all that their keys have. `deletes` has the key
    columns only. Everything else is as in `semistream.refresh_pages`. Queries that run take the new version with their
    next batch, and keep what their caches know.
    """
    target = shared_path(path, "the store")
    given = [df for df in (changes, deletes) if df is not None]
    if not given:
        raise ConfigError("there is nothing to apply: give changes, deletes or both")
    for df in given:
        if df.isStreaming:
            raise ConfigError(
                "a streaming DataFrame is applied batch by batch: changes.writeStream.foreachBatch(apply_changes(path))"
            )
    check_executors(given[0].sparkSession)
    with closing(PageMaster(target)) as master:
        schema = master.schema
    with scratch_folder(target) as scratch:
        found = [None if df is None else _collected(df, schema, scratch, target) for df in (changes, deletes)]
        return refresh_pages(
            target,
            found[0],
            deletes=found[1],
            source=source,
            position=position,
            committed_at=committed_at,
            keep_versions=keep_versions,
            max_runs=max_runs,
            compact=compact,
            memory_limit=memory_limit,
        )


def apply_changes(
    path: str | Path, *, keep_versions: int = 1, max_runs: int = MAX_RUNS, memory_limit: int = DEFAULT_MEMORY_LIMIT
) -> Callable[[DataFrame, int], None]:
    """Keeps a store up to date with a stream: `changes.writeStream.foreachBatch(apply_changes(path))`.

    Every micro-batch with changes is a version. The store remembers the query and its last batch, so one that was
    applied before a crash is not applied again. A query that is started without its checkpoint is another query.
    """

    def apply(changes: DataFrame, batch: int) -> None:
        query = changes.sparkSession.sparkContext.getLocalProperty(QUERY_PROPERTY)
        if query is None:
            raise ConfigError(
                "apply_changes is for the batches of a streaming query (writeStream.foreachBatch); call refresh_master "
                "for a DataFrame"
            )
        # Spark cuts its input into batches once and for all; a commit of a feed may be cut too, so it is no position.
        refresh_master(
            path,
            changes,
            source=f"query {query}",
            position=batch,
            keep_versions=keep_versions,
            max_runs=max_runs,
            memory_limit=memory_limit,
        ).close()

    return apply


def _collected(df: DataFrame, stored: pa.Schema, scratch: Path, target: Path) -> pa.RecordBatchReader:
    """The rows of a DataFrame in files of a folder, and these as one stream of batches with R's types."""
    schema = _as_in_store(stored_schema(df), stored)
    folder = scratch / secrets.token_hex(4)
    folder.mkdir()
    names = [f"c{i}" for i in range(len(df.columns))]
    task = _Spill(str(folder), schema.serialize().to_pybytes())
    try:
        reports = df.toDF(*names).mapInArrow(task, "file string").collect()
    except (PySparkException, Py4JError) as error:
        raise StoreError(f"the changes for {target} could not be read: {brief(error)}") from error
    files = [folder / row[0] for row in reports]
    for file in files:
        if not file.is_file():
            raise StoreError(f"a task wrote {file}, and the driver does not see it: {SHARED}")

    def batches() -> Iterator[pa.RecordBatch]:
        for file in files:
            with pa.memory_map(str(file)) as source, pa.ipc.open_stream(source) as reader:
                yield from reader

    return pa.RecordBatchReader.from_batches(schema, batches())


def _as_in_store(found: pa.Schema, stored: pa.Schema) -> pa.Schema:
    """The schema of changes, with R's own type for columns of the same kind: Spark has fewer types than Arrow.

    What is of another kind stays as it is, for the store to refuse: no text is read as a number here.
    """
    return pa.schema([_like(column, stored) for column in found])


_KINDS = (
    lambda kind: pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind),
    lambda kind: pa.types.is_timestamp(kind) and kind.tz is None,
    lambda kind: pa.types.is_timestamp(kind) and kind.tz is not None,
    pa.types.is_date,
    pa.types.is_duration,
)


def _like(column: pa.Field, stored: pa.Schema) -> pa.Field:
    if stored.names.count(column.name) != 1:
        return column
    own = stored.field(column.name)
    same = any(is_kind(column.type) and is_kind(own.type) for is_kind in _KINDS)
    return own if same else pa.field(column.name, column.type, own.nullable)


@dataclass(frozen=True)
class _Spill:
    """What a task does, as a value that travels to the executors: writes its rows to a file and names that."""

    folder: str
    schema: bytes

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        schema, folder = pa.ipc.read_schema(pa.py_buffer(self.schema)), Path(self.folder)
        if not folder.is_dir():
            raise StoreError(f"{folder} is not there on {os.uname().nodename}: {SHARED}")
        context = TaskContext.get()
        assert context is not None
        # No other attempt of any task uses this name.
        name = f"{context.partitionId():05d}-{context.taskAttemptId()}-{secrets.token_hex(4)}.arrows"
        rows = 0
        with pa.OSFile(str(folder / name), "wb") as file, pa.ipc.new_stream(file, schema) as writer:
            for batch in batches:
                rows += batch.num_rows
                try:
                    writer.write_batch(as_stored(batch, schema))
                except pa.ArrowInvalid as error:
                    raise SchemaError(
                        f"the changes do not fit R's types ({error}): cast them to ({_words(schema)})"
                    ) from error
        if rows:
            yield pa.record_batch({"file": [name]})


def _words(schema: pa.Schema) -> str:
    return ", ".join(f"{column.name}: {column.type}" for column in schema)
