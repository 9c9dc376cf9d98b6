"""Write a DataFrame, streaming or not, into a lake: tasks write the files, the driver commits each batch once.

    fused:     source -> JVM -> Arrow -> worker: join, select, write -> names of files -> driver: commit
    otherwise: source -> ... -> JVM -> Arrow -> worker: write        -> names of files -> driver: commit

What comes back to the JVM is one row per file. A job hands its driver the rows of every partition once, of whichever
attempt at the task came first, so files of other attempts are never committed; those of a task that fails are removed
by the task, and those of one that is killed are left for `LakeTable.clean`.

A batch is committed under the id of its query and its number. One that is there already is not joined again: all its
tasks had ended before the commit, so whatever they leave behind (what waits, in `carry.py`) was left then.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, overload

import pyarrow as pa
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from semistream.engine.output import for_files
from semistream.errors import ConfigError, SchemaError
from semistream.lake.files import FileWriter, WrittenFile
from semistream.lake.table import FORMATS, SKIPPED, Committed, LakeTable, fresh_app, open_table
from semistream.lake.target import Target
from semistream.spark.checkpoints import claim_checkpoint, clear_unborn
from semistream.spark.cleanup import active_checkpoints
from semistream.spark.enrichment import micro_batch
from semistream.spark.executors import check_executors
from semistream.spark.fusing import Fused, NotFused, Stage, fused, stored_schema
from semistream.spark.letters import Letterbox, refuse_letters
from semistream.spark.mapping import Mail, map_batches
from semistream.spark.names import actual, folds_case
from semistream.spark.paths import shared_path
from semistream.spark.worker import as_described

_LOG = logging.getLogger("semistream.spark")
_TRIGGERS = ("availableNow", "once", "processingTime")
#: calls of `write` in micro-batches that are remembered, to tell a second one in the same batch from the first
_REMEMBERED_CALLS = 1000


@dataclass(frozen=True)
class Written:
    """What `write` did with a DataFrame that is no stream."""

    path: str
    format: str
    files: int
    rows: int
    n_bytes: int
    #: the table's version, where the format has versions
    version: int | None
    #: the rows were there already: an earlier attempt at the micro-batch had written them
    skipped: bool
    #: whether the rows were written by the tasks that joined them
    fused: bool
    #: the same in words
    how: str


class LakeQuery(StreamingQuery):
    """A streaming query that `write` started; it also says how its rows get into the table."""

    def __init__(self, jsq: Any, plan: WritePlan, place: str) -> None:
        super().__init__(jsq)
        self.fused = plan.is_fused
        self.how = f"{place}: {plan.how}"

    def explain(self, extended: bool = False) -> None:
        """Print how rows are written, and Spark's plan of what comes before."""
        print(self.how)
        super().explain(extended)


@dataclass(frozen=True)
class WritePlan:
    """How the rows of a DataFrame get into files: what the query runs on, and what a task does with its rows."""

    frame: DataFrame
    stages: tuple[Stage, ...]
    schema: pa.Schema
    how: str
    after: str = ""

    @property
    def is_fused(self) -> bool:
        return bool(self.stages)

    @property
    def mail(self) -> tuple[Mail, ...]:
        """The dead letters of the stages."""
        return tuple(stage.work.mail for stage in self.stages if stage.work.mail is not None)


def plan_write(df: DataFrame) -> WritePlan:
    """Look whether join and write can be one pass."""
    try:
        schema = stored_schema(df)
    except PySparkException as error:
        raise SchemaError(f"a column cannot be handed to Python ({error}); drop or cast it before writing") from error
    try:
        found: Fused = fused(df)
        refuse_letters(found.source, "the enrichments cannot be done in one process")
    except NotFused as why:
        refuse_letters(df, str(why))
        return WritePlan(df, (), schema, f"rows come from Spark and are written by its Python workers, since {why}")
    after = f" after {found.label}"
    return WritePlan(found.source, found.stages, schema, f"join and write are one pass: {found.label}", after)


def explain_write(df: DataFrame) -> str:
    """How `write` would get the rows of a DataFrame into files, and why so."""
    return plan_write(df).how


@overload
def write(
    df: DataFrame, path: str | Path, format: str = ..., *, checkpoint: str | Path, **options: Any
) -> LakeQuery: ...
@overload
def write(df: DataFrame, path: str | Path, format: str = ..., **options: Any) -> LakeQuery | Written: ...


def write(
    df: DataFrame,
    path: str | Path,
    format: str = "parquet",
    *,
    checkpoint: str | Path | None = None,
    partition_by: str | Sequence[str] = (),
    trigger: str | Mapping[str, Any] | None = None,
    name: str | None = None,
    file_size: str | int | None = None,
    catalog: Any = None,
    **options: Any,
) -> LakeQuery | Written:
    """Write a DataFrame into a table of a lake; rows of an enrichment are written by the tasks that join them.

    `format` is "parquet" (a folder), "delta" (a folder; extra `semistream[delta]`) or "iceberg" (`path` is the table's
    name in a `catalog`; extra `semistream[iceberg]`). The table is made if it is not there; one that does not fit is
    refused. Rows are appended.

    A stream needs a `checkpoint`. It is started, and the query is returned: `trigger` is "availableNow", "once", an
    interval such as "10 seconds", or what `DataStreamWriter.trigger` takes; `name` is the query's name. Each
    micro-batch is committed once, whatever fails and however often it is attempted.

    Any other DataFrame is written at once, and the result is an account. Inside `foreachBatch` it is written once per
    micro-batch too: a second `write` to the same table in a batch is told from the first by its `name`, or else by
    its place among the calls, which must then be the same whenever the batch is attempted.

    A file is rolled at `file_size` ("128MB"). `catalog` is for Iceberg. Further `options`: `row_group_size`, and
    `compact` (False leaves small files as tasks wrote them).
    """
    place, table = _opened(path, format, {"file_size": file_size, "catalog": catalog, **options})
    columns = _partition_columns(df, partition_by)
    if df.isStreaming:
        if checkpoint is None:
            raise ConfigError(
                "a stream is written with a checkpoint, by which a restart knows what the table already has: give "
                "checkpoint=, a folder of this query alone"
            )
        return _start(df, table, place, columns, shared_path(checkpoint, "checkpoint"), _trigger(trigger), name)
    if checkpoint is not None or trigger is not None:
        raise ConfigError("checkpoint and trigger belong to a stream, and this DataFrame is none: leave them out")
    return _write_now(df, table, place, columns, name)


def _opened(path: str | Path, format: str, options: Mapping[str, Any]) -> tuple[str, LakeTable]:
    if format not in FORMATS:
        raise ConfigError(f"format={format!r} is unknown; allowed are {', '.join(FORMATS)}")
    # An Iceberg table is found by its name in a catalog.
    place = str(path) if format == "iceberg" else str(shared_path(path, "the table"))
    given = {key: value for key, value in options.items() if value is not None}
    return place, open_table(place, format, given)


def _partition_columns(df: DataFrame, partition_by: str | Sequence[str]) -> tuple[str, ...]:
    given = (partition_by,) if isinstance(partition_by, str) else tuple(partition_by)
    if not folds_case(df.sparkSession):
        return given
    same = {column.lower() for column in df.columns}
    if len(same) < len(df.columns):
        raise SchemaError(
            f"some of the columns {', '.join(df.columns)} have the same name, as Spark reads names: rename all but one"
        )
    return tuple(actual(column, df.columns, "the DataFrame") for column in given)


def _trigger(given: str | Mapping[str, Any] | None) -> dict[str, Any]:
    if given is None:
        return {}
    if isinstance(given, str):
        return {given: True} if given in ("availableNow", "once") else {"processingTime": given}
    for key in given:
        if key not in _TRIGGERS:
            raise ConfigError(
                f"trigger={dict(given)} has {key!r}, which cannot be had; allowed are {', '.join(_TRIGGERS)}"
            )
    return dict(given)


def _start(
    df: DataFrame,
    table: LakeTable,
    place: str,
    partition_by: tuple[str, ...],
    checkpoint: Path,
    trigger: dict[str, Any],
    name: str | None,
) -> LakeQuery:
    check_executors(df.sparkSession)
    plan = plan_write(df)
    letters = Letterbox.of(plan, place)
    clear_unborn(checkpoint)
    claim_checkpoint(checkpoint, table.format, place)
    letters.claim(checkpoint)
    letters.prepare()
    table.prepare(plan.schema, partition_by)

    def batch(rows: DataFrame, number: int) -> None:
        query = micro_batch(rows.sparkSession).query
        assert query is not None
        write_batch(rows, plan, table, place, query, number, letters)

    writer = plan.frame.writeStream.foreachBatch(batch).option("checkpointLocation", str(checkpoint))
    writer = writer.trigger(**trigger) if trigger else writer
    writer = writer if name is None else writer.queryName(name)
    query = LakeQuery(writer.start()._jsq, plan, f"{table.format} {place}")
    _LOG.info("query %s writes %s", query.id, query.how)
    return query


def _write_now(df: DataFrame, table: LakeTable, place: str, partition_by: tuple[str, ...], name: str | None) -> Written:
    check_executors(df.sparkSession)
    plan = plan_write(df)
    letters = Letterbox.of(plan, place)
    letters.prepare()
    table.prepare(plan.schema, partition_by)
    app, batch = _call(df.sparkSession, place, name)
    done = write_batch(plan.frame, plan, table, place, app, batch, letters)
    return Written(
        place, table.format, done.files, done.rows, done.n_bytes, done.version, done.skipped, plan.is_fused, plan.how
    )


def write_batch(
    rows: DataFrame, plan: WritePlan, table: LakeTable, place: str, app: str, number: int, letters: Letterbox
) -> Committed:
    """Write the rows of a batch and commit them, unless they are there.

    Dead letters are committed first: where the rows are, they are too.
    """
    if table.done(app, number):
        if _keeps_state(rows.sparkSession):
            # Spark wants to see that the operators before the write have been through all rows.
            rows.write.format("noop").mode("overwrite").save()
        return SKIPPED
    label, targets = f"write({table.format}, {place})", letters.targets(app, number)
    files, *mailed = _written(rows, plan, (table.target(app, number), *targets), label)
    letters.commit(app, number, mailed)
    return table.commit(app, number, files)


def write_files(rows: DataFrame, plan: WritePlan, target: Target, label: str) -> list[WrittenFile]:
    """Have the rows written by Spark's tasks; the files of those that succeeded."""
    return _written(rows, plan, (target,), label)[0]


def _written(rows: DataFrame, plan: WritePlan, targets: Sequence[Target], label: str) -> list[list[WrittenFile]]:
    """The files of the rows, and of the dead letters of each stage that has some."""
    target, *mailed = targets
    task = WriteTask(target, plan.schema.serialize().to_pybytes(), plan.stages, tuple(mailed))
    found = map_batches(rows, task, "file string, target int", f"{label}{plan.after}").collect()
    files: list[list[WrittenFile]] = [[] for _ in targets]
    for text, number in found:
        files[number].append(WrittenFile.from_json(text))
    return files


def _keeps_state(spark: SparkSession) -> bool:
    """Whether operators of the query whose micro-batch this is keep a state, such as aggregates."""
    query = micro_batch(spark).query
    checkpoint = None if query is None else active_checkpoints(spark).get(query)
    if checkpoint is None:
        return False
    try:
        return (shared_path(checkpoint, "checkpoint") / "state").exists()
    except ConfigError:
        # On a file system where we cannot look.
        return True


@dataclass(frozen=True)
class WriteTask:
    """What a task does: it makes rows of its input by the stages, writes them, and gives the names of its files.

    `mailed` is where the dead letters go, for each stage that has some.
    """

    target: Target
    schema: bytes
    stages: tuple[Stage, ...]
    mailed: tuple[Target, ...] = ()

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        schema = pa.ipc.read_schema(pa.py_buffer(self.schema))
        context = TaskContext.get()
        part = 0 if context is None else context.partitionId()
        with for_files(), ExitStack() as stack:
            writers = [stack.enter_context(FileWriter(self.target, schema, part))]
            for stage in self.stages:
                mail = stage.work.mail
                if mail is None:
                    batches = stage(batches)
                    continue
                written = pa.ipc.read_schema(pa.py_buffer(mail.schema))
                writers.append(stack.enter_context(FileWriter(self.mailed[len(writers) - 1], written, part)))
                batches = stage(batches, partial(_write_described, writers[-1], written))
            for batch in batches:
                writers[0].write(as_described(schema, batch))
            files = [(file.to_json(), number) for number, writer in enumerate(writers) for file in writer.finish()]
        names, numbers = [name for name, _ in files], [number for _, number in files]
        columns = {"file": pa.array(names, pa.string()), "target": pa.array(numbers, pa.int32())}
        yield pa.RecordBatch.from_pydict(columns)


def _write_described(writer: FileWriter, schema: pa.Schema, batch: pa.RecordBatch) -> None:
    writer.write(as_described(schema, batch))


class _Calls:
    """The calls of `write` inside micro-batches, counted by run of the query, batch, table and name."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: OrderedDict[tuple[str, ...], int] = OrderedDict()

    def number(self, *which: str) -> int:
        """How many such calls there were before."""
        with self._lock:
            found = self._counts.pop(which, 0)
            self._counts[which] = found + 1
            while len(self._counts) > _REMEMBERED_CALLS:
                self._counts.popitem(last=False)
        return found


_CALLS = _Calls()


def _call(spark: SparkSession, place: str, name: str | None) -> tuple[str, int]:
    """Under which id and number a batch is committed that no query of ours brings."""
    inside = micro_batch(spark)
    if inside.query is None or inside.batch is None:
        return fresh_app(), 0
    run = spark.sparkContext.getLocalProperty("spark.jobGroup.id") or ""
    before = _CALLS.number(run, inside.query, str(inside.batch), place, name or "")
    named = [inside.query, *([name] if name else []), *([str(before)] if before else [])]
    return "/".join(named), inside.batch
