"""Enrich a DataFrame, streaming or not, with master data too large to broadcast."""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema
from pyspark.sql.types import StructField, StructType

from semistream.algorithms.registry import resolve
from semistream.errors import BudgetError, ConfigError, SchemaError, StoreError
from semistream.master.base import Master, require_columns
from semistream.master.format import is_store
from semistream.planner.policy import Policy
from semistream.spark import metrics
from semistream.spark.auto import planned_with_delay, stand_in
from semistream.spark.carry import CarryPlan
from semistream.spark.cleanup import watch
from semistream.spark.dimension import DEFAULT_ALGORITHM, DEFAULT_MEMORY, SHARED_PART, Dimension, checked
from semistream.spark.executors import check_executors
from semistream.spark.fusing import stored_schema
from semistream.spark.mapping import Mail, label_of, map_batches
from semistream.spark.missing import Missing, MissingOptions, check_waiting_request
from semistream.spark.names import folds_case, resolved
from semistream.spark.parking import MOST_SHARD_BYTES, ParkPlan, parked_meaning
from semistream.spark.paths import shared_path
from semistream.spark.plans import CHOICE
from semistream.spark.records import Records, records_folder
from semistream.spark.tasks import JoinTask, carrying_task, parking_task
from semistream.spark.ticks import parked_ticks, ticks
from semistream.spark.worker import BATCH_PROPERTY, QUERY_PROPERTY, TaskInfo, version_of
from semistream.spec import AUTO, DEFAULT_HOW, JoinRequest, JoinSpec, On

#: (master, on, select), or with R's columns of validity (master, on, select, valid)
StarDimension: TypeAlias = (
    tuple[str | Path, On, Sequence[str] | None] | tuple[str | Path, On, Sequence[str] | None, Sequence[str] | None]
)


def enrich(
    df: DataFrame,
    master: str | Path,
    on: On,
    how: str | None = None,
    select: Sequence[str] | None = None,
    memory: str | int = DEFAULT_MEMORY,
    algorithm: str = DEFAULT_ALGORITHM,
    shuffle: Literal["none", "key"] | None = None,
    *,
    as_of: str | None = None,
    valid: Sequence[str] | None = None,
    max_delay: str | float | None = None,
    checkpoint: str | Path | None = None,
    reads: str = AUTO,
    suffix: str = "_right",
    name: str | None = None,
    shards: int | None = None,
    policy: Policy | None = None,
    on_missing: str | None = None,
    wait: str | float | None = None,
    wait_bytes: str | int | None = None,
    then: str | None = None,
    dead_letters: str | Path | None = None,
    dead_letter_format: str | None = None,
    **options: Any,
) -> DataFrame:
    """Join a DataFrame with master data, keeping its source and sink.

    `master` is the path of a page store (`build_master`), or of Parquet data for a scan operator; all executors must
    see it. `memory` is the budget of one executor, shared by its tasks. `shuffle="key"` sends equal keys to the same
    task, which on a cluster divides the cache instead of copying it; `shards` is then the number of tasks. `name` is
    what the metrics call this enrichment. `options` belong to the algorithm; with "auto" the first tasks look at the
    stream, try the closest candidates and choose one, and later ones revise that; `policy` holds the thresholds. What
    they have chosen is kept in the query's `checkpoint` for its next start, if that is given.

    With `as_of`, the stream's column with the time of a row, and `valid`, two columns of R, for example
    `as_of="event_time", valid=("valid_from", "valid_to")`, only those rows of a key match that were valid then:
    valid_from <= event_time < valid_to, where a null valid_from is since ever and a null valid_to is still.

    `reads` says how pages of R are read: "mapped", through the page cache, "direct", past it (a page store only), or
    "auto": every worker process decides that by the memory of its machine when it opens R, and the metrics say how.

    Every tuple is finished in its micro-batch, unless `max_delay` ("30s") allows a scan operator to let it wait that
    long, so that many batches share one pass over R. What waits is kept in the query's `checkpoint`, the same path that
    the query is started with; the stream is then shuffled by key.

    `on_missing` says what becomes of tuples without a match. "null" and "drop" are how="left", which is the default,
    and how="inner". "dead_letter" sends them to a second table, `dead_letters` ("parquet" or "delta"), which needs
    `semistream.spark.write`. "wait" parks them in the query's `checkpoint`, until a version of R has their key or
    `wait` ("10m") has passed; after that `then` is one of the others. At most `wait_bytes` are parked ("64MB"): the
    oldest leave early.
    """
    given = MissingOptions(on_missing, wait, wait_bytes, then, dead_letters, dead_letter_format)
    how, missing = given.read(how)
    request = JoinRequest.make(
        on=on,
        how=how,
        select=select,
        memory=memory,
        algorithm=algorithm,
        suffix=suffix,
        as_of=as_of,
        valid=valid,
        max_delay=max_delay,
        reads=reads,
        options=options,
    )
    where = Placement(name=name, shuffle=shuffle, shards=shards, checkpoint=checkpoint, missing=missing)
    return enrich_by(df, master, request, where, policy)


@dataclass(frozen=True)
class Placement:
    """How an enrichment runs on Spark: its name, where its tuples go, and where those are kept that wait.

    `missing` is what becomes of those without a match; the request is then of a left join.
    """

    name: str | None = None
    shuffle: str | None = None
    shards: int | None = None
    checkpoint: str | Path | None = None
    missing: Missing = field(default_factory=Missing)


def enrich_by(
    df: DataFrame, master: str | Path, request: JoinRequest, where: Placement, policy: Policy | None = None
) -> DataFrame:
    """`enrich`, by a request that is there already."""
    missing = where.missing
    if missing.waits:
        check_waiting_request(request, df.isStreaming)
    if missing.is_apart:
        request = replace(request, spec=replace(request.spec, apart=True))
    dimension = replace(describe(df, master, request, where.name, policy=policy), missing=missing)
    if request.is_auto and df.isStreaming and where.checkpoint is not None:
        dimension = replace(dimension, choice=_choice(dimension, where.checkpoint))
    if missing.waits:
        return _park(df, dimension, where)
    if request.max_delay_s is not None and df.isStreaming:
        dimension = _planned(df, dimension, where.checkpoint) if request.is_auto else dimension
        chosen = dimension.request
        if not chosen.is_auto and resolve(chosen.algorithm).access == "scan":
            return _carry(df, dimension, where, *(["by auto, without a trial: tuples wait"] if request.is_auto else []))
    return _apply(df, (dimension,), where)


def enrich_star(
    df: DataFrame,
    dimensions: Sequence[StarDimension],
    how: str = DEFAULT_HOW,
    memory: str | int = DEFAULT_MEMORY,
    algorithm: str = DEFAULT_ALGORITHM,
    *,
    as_of: str | None = None,
    valid: Sequence[str] | None = None,
    reads: str = AUTO,
    suffix: str = "_right",
    policy: Policy | None = None,
    **options: Any,
) -> DataFrame:
    """Join a DataFrame with several dimensions, given as (master, on, select), in one pass through Python.

    The budget is divided evenly among them. `as_of` and `valid` are for all of them, as in `enrich`; a dimension with
    other columns gives these as (master, on, select, valid), and one without a history None in their place.
    """
    if not dimensions:
        raise ConfigError("enrich_star was given no dimension; give at least one (master, on, select)")
    if as_of is not None and valid is None and not any(len(each) > 3 for each in dimensions):
        raise ConfigError(
            "as_of was given without valid; name R's columns for all dimensions, valid=('valid_from', 'valid_to'), or "
            "of those that have a history, as (master, on, select, valid)"
        )
    requests = []
    for master, on, select, *own in dimensions:
        lasting = own[0] if own else valid
        request = JoinRequest.make(
            on=on,
            how=how,
            select=select,
            memory=memory,
            algorithm=algorithm,
            suffix=suffix,
            as_of=None if as_of is not None and lasting is None else as_of,
            valid=lasting,
            reads=reads,
            options=options,
        )
        requests.append((master, replace(request, memory_bytes=request.memory_bytes // len(dimensions))))
    return enrich_star_by(df, requests, policy)


def enrich_star_by(
    df: DataFrame, dimensions: Sequence[tuple[str | Path, JoinRequest]], policy: Policy | None = None
) -> DataFrame:
    """`enrich_star`, by requests that are there already, each with its own part of the budget."""
    made: list[Dimension] = []
    stream = arrow_schema(df)
    for number, (master, request) in enumerate(dimensions, 1):
        name = f"{Path(str(master)).name}-{number}"
        if made:
            stream = _result(made[-1], stream)
        made.append(describe(df, master, request, name, stream.names, policy))
    return _apply(df, tuple(made), Placement())


def describe(
    df: DataFrame,
    master: str | Path,
    request: JoinRequest,
    name: str | None = None,
    stream: Sequence[str] | None = None,
    policy: Policy | None = None,
) -> Dimension:
    """An enrichment as its worker processes will know it; `described` checks it against stream and master data.

    `stream` names the columns that the rows have when they come to it, if these are not those of the DataFrame.
    """
    request = checked(request)
    path = master_path(master)
    watch(df, path)
    spec = replace(request.spec, fold_case=folds_case(df.sparkSession))
    spec = resolved(spec, stream or df.columns, path)
    versioned = is_store(path)
    dimension = Dimension(
        name=name or path.name,
        master=str(path),
        request=replace(request, spec=spec),
        tasks=tasks_per_executor(df.sparkSession),
        versioned=versioned,
        policy=Policy() if policy is None else policy,
    )
    wanted = None if df.isStreaming or not versioned else version_of(dimension, micro_batch(df.sparkSession))
    with closing(dimension.open_master(wanted)) as opened:
        if not df.isStreaming:
            version = opened.version if versioned else None
            dimension = replace(dimension, version=version, fixed=opened.identity)
        select, columns = _columns_wanted(opened, spec)
        request = replace(dimension.request, spec=replace(spec, select=select))
        return replace(dimension, request=request, lineage=opened.lineage, columns=columns)


def micro_batch(spark: SparkSession) -> TaskInfo:
    """The micro-batch in which the driver is, which it knows inside `foreachBatch` only."""
    context = spark.sparkContext
    query, batch = (context.getLocalProperty(name) for name in (QUERY_PROPERTY, BATCH_PROPERTY))
    return TaskInfo(query, int(batch), 0) if query and batch else TaskInfo(None, None, 0)


def _columns_wanted(master: Master, spec: JoinSpec) -> tuple[tuple[str, ...], bytes]:
    """The columns that the result is to have of R from now on, whatever later versions have, and their schema."""
    require_columns(master.schema, spec.master_on, "master data")
    select = spec.select
    if select is None:
        select = tuple(name for name in master.schema.names if name not in spec.master_on)
    require_columns(master.schema, select, "master data")
    carried = select if spec.carries_master else ()
    if spec.valid is not None:
        require_columns(master.schema, spec.valid, "master data")
    columns = master.columns_schema(list(dict.fromkeys([*spec.master_on, *carried, *(spec.valid or ())])))
    return select, columns.serialize().to_pybytes()


def _result(dimension: Dimension, schema: pa.Schema) -> pa.Schema:
    """The schema of the enriched stream; it is the same with every version of R that the enrichment takes."""
    if dimension.request.is_auto:
        dimension = dimension.with_algorithm(stand_in(dimension))
    try:
        with dimension.open(dimension.version) as join:
            return join.check(schema)
    except BudgetError as error:
        if error.minimum_bytes is None:
            raise
        least = error.minimum_bytes * dimension.tasks
        if dimension.shared_bytes:
            least = int(least / (1 - SHARED_PART)) + dimension.tasks
        raise BudgetError(
            f"memory={dimension.request.memory_bytes} bytes per executor leaves {dimension.private_bytes} for each of "
            f"its {dimension.tasks} tasks, too little for {dimension.request.algorithm}; it needs at least "
            f"memory={least}",
            minimum_bytes=least,
        ) from error


def _apply(df: DataFrame, dimensions: tuple[Dimension, ...], where: Placement) -> DataFrame:
    shuffle, shards = where.shuffle, where.shards
    if shuffle not in (None, "none", "key"):
        raise ConfigError(f"shuffle={shuffle!r} is unknown; allowed are 'none' and 'key'")
    if shards is not None and (shuffle != "key" or shards < 1):
        raise ConfigError(f"shards={shards} needs shuffle='key' and a number of tasks from 1")
    dimensions, schema = described(df, dimensions)
    if shuffle == "key":
        df = by_key(df, dimensions[0], shards or df.sparkSession.sparkContext.defaultParallelism)
    task = JoinTask(dimensions, metrics.collector(df.sparkSession))
    return map_batches(df, task, schema, label_of(dimensions), task.joins, _mail(df, dimensions[0]))


def _choice(dimension: Dimension, checkpoint: str | Path) -> str | None:
    """Where a query remembers what "auto" has found; None if its checkpoint is on no file system that is mounted."""
    try:
        return str(records_folder(shared_path(checkpoint, "checkpoint"), dimension.name) / CHOICE)
    except ConfigError:
        return None


def _carry(df: DataFrame, dimension: Dimension, where: Placement, *notes: str) -> DataFrame:
    folder = _carry_folder(dimension, where.checkpoint)
    _require_shuffle(where, "max_delay")
    (dimension,), schema = described(df, (dimension,))
    default = df.sparkSession.sparkContext.defaultParallelism
    bound = Records(folder).bind(dimension.name, dimension.master, dimension.meaning, where.shards, default)
    plan = CarryPlan(dimension, str(folder), secrets.token_hex(8), bound.shards)
    tick = ticks(df.sparkSession, folder, bound.shards, plan.max_delay_s)
    stream = _in_shards(df, dimension, bound.shards, tick)
    report = metrics.collector(df.sparkSession)
    label = label_of((dimension,), f"max_delay {plan.max_delay_s:g}s", *notes)
    return map_batches(stream, partial(carrying_task, plan, report), schema, label)


def _park(df: DataFrame, dimension: Dimension, where: Placement) -> DataFrame:
    folder = _carry_folder(dimension, where.checkpoint, "on_missing='wait'")
    _require_shuffle(where, "on_missing='wait'")
    mail = _mail(df, dimension)
    (dimension,), schema = described(df, (dimension,))
    default = df.sparkSession.sparkContext.defaultParallelism
    bound = Records(folder).bind(dimension.name, dimension.master, parked_meaning(dimension), where.shards, default)
    plan = ParkPlan(dimension, str(folder), secrets.token_hex(8), bound.shards)
    if plan.shard_bytes > MOST_SHARD_BYTES:
        raise ConfigError(
            f"wait_bytes={dimension.missing.wait_bytes} is too much for {bound.shards} shards, which write what is "
            f"parked with every batch: give at most {bound.shards * MOST_SHARD_BYTES}, or more shards to a new query"
        )
    tick = parked_ticks(df.sparkSession, folder, bound.shards, plan.wait_s, dimension.master)
    stream = _in_shards(df, dimension, bound.shards, tick)
    report = metrics.collector(df.sparkSession)
    return map_batches(stream, partial(parking_task, plan, report), schema, label_of((dimension,)), mail=mail)


def _mail(df: DataFrame, dimension: Dimension) -> Mail | None:
    """The dead letters of an enrichment of `df`, if it has any."""
    letters = dimension.missing.letters
    return None if letters is None else Mail(dimension.name, letters, stored_schema(df).serialize().to_pybytes())


def _require_shuffle(where: Placement, what: str) -> None:
    if where.shuffle not in (None, "key"):
        raise ConfigError(
            f"shuffle={where.shuffle!r} cannot be had with {what}, which needs shuffle='key'; leave it out"
        )


def _in_shards(df: DataFrame, dimension: Dimension, shards: int, tick: DataFrame) -> DataFrame:
    """The tuples of the stream and the ticks, each with its shard in a last column and in the partition of that.

    Columns go by their place, for names may hold dots; the worker names them again.
    """
    names = [f"c{i}" for i in range(len(df.columns))]
    keys = [F.col(names[df.columns.index(here)]) for here in dimension.request.spec.stream_on]
    count = F.lit(shards).cast("long")
    tuples = df.toDF(*names).withColumn("shard", F.pmod(F.xxhash64(*keys), count))
    kinds = [field.dataType for field in df.schema.fields]
    nothing = [F.lit(None).cast(kind).alias(name) for name, kind in zip(names, kinds, strict=True)]
    both = tuples.union(tick.select(*nothing, (F.lit(-1) - (F.col("tick") * count + F.col("shard"))).alias("shard")))
    shard = F.when(F.col("shard") < 0, F.pmod(F.lit(-1) - F.col("shard"), count)).otherwise(F.col("shard"))
    return both.repartitionById(shards, shard.cast("int"))


def _planned(df: DataFrame, dimension: Dimension, checkpoint: str | Path | None) -> Dimension:
    """The dimension with the algorithm that the planner prefers where tuples may wait."""
    found = planned_with_delay(dimension, arrow_schema(df), _carry_folder(dimension, checkpoint))
    return dimension if found is None else dimension.with_algorithm(found)


def _carry_folder(dimension: Dimension, checkpoint: str | Path | None, what: str = "max_delay") -> Path:
    if checkpoint is None:
        raise ConfigError(
            f"{what} lets tuples wait between micro-batches, and they are kept in the query's checkpoint: give "
            "checkpoint=, the checkpointLocation with which the query is started"
        )
    return records_folder(shared_path(checkpoint, "checkpoint"), dimension.name)


def by_key(df: DataFrame, dimension: Dimension, shards: int) -> DataFrame:
    """Equal keys in the same partition, and every partition always the same keys."""
    code = F.xxhash64(*(F.col(_quoted(here)) for here in dimension.request.spec.stream_on))
    return df.repartitionById(shards, F.pmod(code, F.lit(shards)).cast("int"))


def described(df: DataFrame, dimensions: tuple[Dimension, ...]) -> tuple[tuple[Dimension, ...], StructType]:
    """The dimensions with the stream that each of them gets, and the result's schema; refuses what cannot be joined."""
    check_executors(df.sparkSession)
    arrow = arrow_schema(df)
    known = []
    for dimension in dimensions:
        known.append(replace(dimension, stream=arrow.serialize().to_pybytes()))
        arrow = _result(dimension, arrow)
    return tuple(known), _spark_schema(df, arrow)


def _spark_schema(df: DataFrame, arrow: pa.Schema) -> StructType:
    """The stream's own fields as they are, then those of the dimensions."""
    fields = list(df.schema.fields)
    for column in list(arrow)[len(fields) :]:
        try:
            kind = from_arrow_type(column.type)
        except PySparkException as error:
            raise SchemaError(
                f"master column {column.name!r} has the type {column.type}, which Spark does not know; "
                "leave it out with select, or build the store with another type"
            ) from error
        fields.append(StructField(column.name, kind, column.nullable))
    return StructType(fields)


def arrow_schema(df: DataFrame) -> pa.Schema:
    """The stream as worker processes will see it."""
    zone = df.sparkSession.conf.get("spark.sql.session.timeZone")
    try:
        schema = to_arrow_schema(df.schema, timezone=zone)
    except PySparkException as error:
        raise SchemaError(
            f"the stream has a column that cannot be handed to Python ({error}); drop or cast it before enriching"
        ) from error
    if len(set(schema.names)) != len(schema.names):
        twice = sorted({column for column in schema.names if schema.names.count(column) > 1})
        raise SchemaError(f"the stream has several columns named {twice[0]!r}: rename all but one")
    return schema


def master_path(master: str | Path) -> Path:
    """Where the master data is; refuses a path at which there is none."""
    found = shared_path(master, "master data")
    if not found.exists():
        raise StoreError(
            f"there is no master data at {found}; build it with semistream.spark.build_master, or give another path"
        )
    return found


def tasks_per_executor(spark: SparkSession) -> int:
    """How many tasks an executor runs at once, and so how many worker processes divide its budget."""
    context = spark.sparkContext
    cpus = int(context.getConf().get("spark.task.cpus", "1") or 1)
    if (context.master or "").startswith("local"):
        cores = context.defaultParallelism
    else:
        setting = context.getConf().get("spark.executor.cores")
        cores = int(setting) if setting else _cores_seen(spark)
    return max(cores // cpus, 1)


def _cores_seen(spark: SparkSession) -> int:
    """Cores of the largest executor that has registered; this machine's number if none has."""
    executors = spark.sparkContext._jsc.sc().statusStore().executorList(True)
    cores = [executors.apply(i).totalCores() for i in range(executors.size())]
    return max([*cores, 0]) or os.cpu_count() or 1


def _quoted(column: str) -> str:
    return "`" + column.replace("`", "``") + "`"
