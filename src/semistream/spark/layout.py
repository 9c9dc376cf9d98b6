"""Laying R out as a page store with a Spark job: any DataFrame, any size.

    df -> partitioned by ranges of key codes, sorted in each (JVM) -> one task per partition writes one shard
       -> the driver names the shards in a manifest and puts the version in force

Spark only has to bring the rows into the order of their codes; the codes themselves are those of `KeyCoder`, and
a task that meets rows in another order fails. A task writes under names of its own attempt, so retried and speculative
attempts never touch each other's files, and the driver uses those that successful tasks report.
"""

from __future__ import annotations

import json
import os
import secrets
import warnings
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StringType

from semistream.columns.keys import KeyCoder
from semistream.errors import ConfigError, KeyTypeError, SchemaError, SemiStreamWarning, StoreError
from semistream.master.base import DEFAULT_PAGE_ROWS, check_page_rows
from semistream.master.build import Feed
from semistream.master.compatibility import in_use, misfits
from semistream.master.format import CURRENT
from semistream.master.pages import PageMaster
from semistream.master.publish import check_target, publish, scratch_folder
from semistream.master.shards import Shard, ShardWriter, column_order, describe, shard_files
from semistream.spark.executors import check_executors
from semistream.spark.failures import brief
from semistream.spark.names import actual, folds_case
from semistream.spark.paths import shared_path

_CODE = "code"
SHARED = "the store must be on a file system that the driver and all executors mount under one path"


def build_master(
    df: DataFrame,
    path: str | Path,
    on: str | Sequence[str],
    *,
    page_rows: int = DEFAULT_PAGE_ROWS,
    shards: int | None = None,
    overwrite: bool = True,
    keep_versions: int = 1,
) -> PageMaster:
    """Write a DataFrame as a page store, in key order, and open it.

    `path` is a folder that the driver and all executors see under this name; `on` names the key. Rows with a null in
    the key can match nothing and are left out. `shards` is the number of files to divide R into; without it Spark
    decides (spark.sql.shuffle.partitions, and fewer when adaptive execution finds them small).

    A store that exists gets a new version, which takes force at once when it is complete, unless overwrite=False;
    `keep_versions` older ones stay, and those that a reader or a query uses. When the job fails, nothing changes.

    Order by frequency needs all keys in one place: `build_pages(order="frequency")` does that in process.
    """
    target = shared_path(path, "the store")
    if df.isStreaming:
        raise ConfigError("master data cannot be laid out from a streaming DataFrame: read it with spark.read")
    if shards is not None and shards < 1:
        raise ConfigError(f"shards={shards} is out of range; allowed are whole numbers from 1, or None")
    if keep_versions < 0:
        raise ConfigError(f"keep_versions={keep_versions} is out of range; allowed are whole numbers from 0")
    check_page_rows(page_rows)
    check_executors(df.sparkSession)
    schema = stored_schema(df)
    keys = (on,) if isinstance(on, str) else tuple(on)
    if folds_case(df.sparkSession):
        # Columns are taken by their place, so a name that is there as it was written means one column.
        known = schema.names
        keys = tuple(name if name in known else actual(name, known, "the DataFrame") for name in keys)
    task = _ShardTask("", schema.serialize().to_pybytes(), keys, page_rows)
    plan = task.plan()
    rows = _in_code_order(df, [schema.get_field_index(name) for name in keys], plan.feed.coder, shards)
    check_target(target, overwrite)
    _warn_readers(target, schema, keys)
    with scratch_folder(target) as scratch:
        folder = scratch / "version"
        folder.mkdir()
        try:
            found = rows.mapInArrow(replace(task, folder=str(folder)), "report string").collect()
        except (PySparkException, Py4JError) as error:
            raise StoreError(f"{target} could not be laid out: {brief(error)}") from error
        reports = [json.loads(row[0]) for row in found]
        written = _in_place(folder, [Shard(**report["shard"]) for report in reports if report["shard"]])
        manifest = describe(
            schema,
            keys,
            plan.feed.coder,
            plan.physical.names,
            plan.feed.code_column,
            written,
            page_rows=page_rows,
            null_key_rows=sum(report["null_key_rows"] for report in reports),
        )
        publish(target, scratch, folder, manifest, keep_versions)
    return PageMaster(target, version=manifest.version)


def _warn_readers(target: Path, schema: pa.Schema, keys: tuple[str, ...]) -> None:
    """Say beforehand what those who use the store will stumble over."""
    if not (target / CURRENT).exists() or not in_use(target):
        return
    with closing(PageMaster(target)) as force:
        found = misfits(force.schema, schema)
        if keys != force.on:
            found.append(f"the key is ({', '.join(keys)}) and was ({', '.join(force.on)})")
        version = force.version
    if found:
        warnings.warn(
            f"{target} is in use, and what is built now does not fit readers of its version {version}: "
            f"{'; '.join(found)}. Queries that need such a column stop at their next batch: keep the column as it was, "
            "or build at another path and start them anew with that",
            SemiStreamWarning,
            stacklevel=3,
        )


def stored_schema(df: DataFrame) -> pa.Schema:
    """The columns as the store keeps them: Spark's Arrow types, with UTC as the zone whatever the session's is."""
    try:
        return to_arrow_schema(df.schema, timezone="UTC")
    except PySparkException as error:
        raise SchemaError(
            f"the DataFrame has a column that cannot be handed to Python ({brief(error)}): drop it or cast it"
        ) from error


def _in_code_order(df: DataFrame, keys: Sequence[int], coder: KeyCoder, shards: int | None) -> DataFrame:
    """Rows in partitions by ranges of their codes, sorted by them in each; no code is in two partitions.

    Columns go by their place, for names may hold dots or differ in case only.
    """
    for i in keys:
        kind = df.schema.fields[i].dataType
        if isinstance(kind, StringType) and not kind.isUTF8BinaryCollation():
            raise KeyTypeError(
                f"key column {df.schema.names[i]!r} has the collation {kind.collation}, which takes different "
                "strings for equal; keys are compared byte by byte: cast it with collate(..., 'UTF8_BINARY')"
            )
    names = [f"c{i}" for i in range(len(df.columns))]
    rows = df.toDF(*names)
    columns = [F.col(names[i]) for i in keys]
    order = columns
    if not coder.exact:
        rows = rows.withColumn(_CODE, F.xxhash64(*columns))
        order = [F.col(_CODE)]
    elif pa.types.is_floating(coder.types[0]):
        # The code of a float is its bits read as an integer: the negative ones go by their magnitude.
        order = [columns[0] >= 0, F.abs(columns[0])]
    ranges = rows.repartitionByRange(*order) if shards is None else rows.repartitionByRange(shards, *order)
    return ranges.sortWithinPartitions(*order).select(*names)


@dataclass(frozen=True)
class _Plan:
    """How rows become physical columns, and in which order these are written."""

    feed: Feed
    physical: pa.Schema


@dataclass(frozen=True)
class _ShardTask:
    """What a task does, as a value that travels to the executors: writes its partition as one shard and reports it."""

    folder: str
    schema: bytes
    on: tuple[str, ...]
    page_rows: int

    def plan(self) -> _Plan:
        """The same in all tasks, whatever they will find in their rows."""
        schema = pa.ipc.read_schema(pa.py_buffer(self.schema))
        feed = Feed(schema, self.on)
        nullable = {column.name for column in schema if column.nullable} - set(self.on)
        names = column_order(feed.columns.columns, feed.code_column, nullable)
        return _Plan(feed, pa.schema([feed.physical.field(name) for name in names]))

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        plan, folder = self.plan(), Path(self.folder)
        feed = plan.feed
        if not folder.is_dir():
            raise StoreError(f"{folder} is not there on {os.uname().nodename}: {SHARED}")
        with ShardWriter(folder, _attempt_files(), plan.physical, feed.code_column, self.page_rows) as writer:
            last: int | None = None
            for batch in batches:
                physical, codes, _ = feed.take(as_stored(batch, feed.columns.schema))
                if not len(codes):
                    continue
                if bool((codes[1:] < codes[:-1]).any()) or (last is not None and int(codes[0]) < last):
                    raise StoreError(
                        f"this Spark orders keys of the types {list(map(str, feed.coder.types))} otherwise than their "
                        "codes: lay the data out with build_pages"
                    )
                last = int(codes[-1])
                writer.write(physical)
            shard = writer.finish()
        report = {"shard": None if shard is None else shard.as_dict(), "null_key_rows": feed.null_key_rows}
        yield pa.record_batch({"report": [json.dumps(report)]})


def _attempt_files() -> tuple[str, str]:
    """Names that no other attempt of any task uses."""
    context = TaskContext.get()
    assert context is not None
    attempt = f"{context.partitionId():05d}-{context.taskAttemptId()}-{secrets.token_hex(4)}"
    return f"attempt-{attempt}.pages", f"attempt-{attempt}.index"


def as_stored(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """A batch with the store's names and types; Spark's differ in time zones, and in offsets if asked for."""
    arrays = [
        array if array.type == column.type else array.cast(column.type)
        for array, column in zip(batch.columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _in_place(folder: Path, shards: Sequence[Shard]) -> list[Shard]:
    """Shards in the order of their codes under their final names; what other attempts left is removed."""
    ordered = sorted(shards, key=lambda shard: shard.first_code)
    for before, after in pairwise(ordered):
        if before.last_code >= after.first_code:
            raise StoreError(
                f"Spark gave the key code {after.first_code} to two partitions: this release is not supported"
            )
    placed = []
    for number, shard in enumerate(ordered):
        pages, index = shard_files(number)
        for name, final, size in (
            (shard.pages_file, pages, shard.pages_bytes),
            (shard.index_file, index, shard.index_bytes),
        ):
            if not (folder / name).is_file() or (folder / name).stat().st_size != size:
                raise StoreError(f"a task wrote {folder / name}, and the driver does not see it: {SHARED}")
            os.rename(folder / name, folder / final)
        placed.append(replace(shard, pages_file=pages, index_file=index))
    final_names = {name for shard in placed for name in (shard.pages_file, shard.index_file)}
    for left in folder.iterdir():
        if left.name not in final_names:
            left.unlink(missing_ok=True)
    return placed
