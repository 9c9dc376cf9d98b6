"""`semistream join`: Parquet files in, master data beside them, Parquet out; in this process or on Spark."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import pyarrow as pa
import typer
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeRemainingColumn,
)

from semistream.cli.arguments import DEFAULT_BATCH_ROWS, Reads, key_names, names, require
from semistream.cli.notices import compile_notice, note, notes, reported, spark_wanted, summary
from semistream.cli.output import ParquetOutput
from semistream.errors import ConfigError
from semistream.spec import JoinRequest

if TYPE_CHECKING:
    from semistream.master.parquet import ParquetFiles

#: A batch of the stream, which the operator's budget does not count, is at most this part of it.
BATCH_PART = 8
ENGINES = ("local", "spark")


@dataclass(frozen=True)
class Job:
    """A checked join: what both engines are given."""

    request: JoinRequest
    batch_rows: int
    stream: Path
    source: ParquetFiles
    master: Path


def join(
    stream: Annotated[Path, typer.Option(help="The stream: a Parquet file, or a folder of them.")],
    master: Annotated[Path, typer.Option(help="Master data: a Parquet file or folder, or a page store.")],
    on: Annotated[str, typer.Option(metavar="K[,K2]", help="Key columns; S=R where the names differ.")],
    out: Annotated[
        Path,
        typer.Option(
            help="Where to write: a file if it ends in .parquet, else a folder of such files. "
            "Endings of other formats (.csv, .json, ...) are refused."
        ),
    ],
    how: Annotated[str, typer.Option(help="inner, left, semi or anti.")] = "inner",
    select: Annotated[str | None, typer.Option(metavar="A,B", help="Master columns wanted (default: all).")] = None,
    algorithm: Annotated[str, typer.Option(help="A name that `semistream algorithms` lists, or auto.")] = "sweepjoin",
    memory: Annotated[str, typer.Option(help="The budget of bytes; on Spark that of each executor.")] = "64MB",
    reads: Reads = "auto",
    batch_rows: Annotated[
        int, typer.Option(help="Stream tuples read at a time; fewer if they are wide.")
    ] = DEFAULT_BATCH_ROWS,
    engine: Annotated[str, typer.Option(help="local (this process) or spark.")] = "local",
    spark_master: Annotated[str, typer.Option(help="Spark's master, for --engine spark.")] = "local[*]",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object with the counts.")] = False,
) -> None:
    """Join a stream of Parquet files with master data and write the result as Parquet."""
    with reported():
        if batch_rows < 1:
            raise ConfigError(f"--batch-rows {batch_rows} is too small; it must be at least 1")
        if engine not in ENGINES:
            raise ConfigError(f"--engine {engine!r} is unknown; allowed are {' and '.join(ENGINES)}")
        request = JoinRequest.make(
            on=key_names(on),
            how=how,
            select=None if select is None else names(select, "--select"),
            memory=memory,
            algorithm=algorithm,
            reads=reads,
        )
        output = ParquetOutput(out, request.memory_bytes)
        with compile_notice():
            from semistream.algorithms.registry import resolve
            from semistream.cli.master import prepare_master
            from semistream.master.parquet import ParquetFiles
        if not request.is_auto:
            request = replace(request, algorithm=resolve(algorithm).name)
        require(stream, "stream")
        require(master, "master data")
        source = ParquetFiles(stream)
        job = Job(request, batch_rows, stream, source, prepare_master(request, master, stream, source, notes))
        result = _on_spark(job, output, spark_master) if engine == "spark" else _here(job, output)
    if as_json:
        typer.echo(json.dumps(result))
    else:
        summary(result)


def _here(job: Job, output: ParquetOutput) -> dict[str, object]:
    from semistream.planner.auto import AutoJoin
    from semistream.planner.open import open_request
    from semistream.planner.policy import Policy

    policy = Policy(horizon=max(job.source.n_rows, 1))
    with (
        open_request(job.master, job.request, stream_schema=job.source.schema, policy=policy) as operator,
        output.opened(operator.output_schema),
    ):
        started = time.perf_counter()
        rows = job.source.rows_within(job.request.memory_bytes // BATCH_PART, job.batch_rows)
        batches = job.source.batches(job.source.schema.names, 0, rows, threads=True)
        for batch in _watched(batches, job.source.n_rows):
            for joined in operator.push(batch):
                output.write(joined)
        for joined in operator.drain():
            output.write(joined)
        output.finish()
        seconds = time.perf_counter() - started
        stats, report = operator.stats, operator.memory
        if isinstance(operator, AutoJoin):
            note(f"auto: {operator.algorithm or 'no operator'} did it")
    done = {name: getattr(stats, name) for name in ("rows_out", "hit_rate", "pages_read")}
    return _result(job, {**done, "rows_in": stats.tuples_in, "peak_bytes": report.peak_bytes}, seconds)


def _on_spark(job: Job, output: ParquetOutput, spark_master: str) -> dict[str, object]:
    with spark_wanted("--engine spark"):
        from semistream.spark.job import join_files
        from semistream.spark.session import running_session

    settings = {"spark.sql.execution.arrow.maxRecordsPerBatch": str(job.batch_rows)}
    with (
        output.folder() as folder,
        notes.status("Spark joins"),
        running_session("semistream join", spark_master, settings, note) as spark,
    ):
        values = join_files(spark, job.stream, job.master, folder, job.request)
        output.take_over(folder)
    return _result(job, values, values["elapsed"])


def _result(job: Job, done: Mapping[str, float], seconds: float) -> dict[str, object]:
    """What a join did, for people and programs alike."""
    return {
        "algorithm": job.request.algorithm,
        "rows_in": int(done["rows_in"]),
        "rows_out": int(done["rows_out"]),
        "service_rate_per_s": round(done["rows_in"] / seconds, 1),
        "hit_rate": round(done["hit_rate"], 6),
        "peak_bytes": int(done["peak_bytes"]),
        "budget_bytes": job.request.memory_bytes,
        "pages_read": int(done["pages_read"]),
        "seconds": round(seconds, 6),
    }


def _watched(batches: Iterator[pa.RecordBatch], n_rows: int) -> Iterator[pa.RecordBatch]:
    """The stream's batches, with a bar on standard error when someone watches."""
    if not notes.is_terminal:
        yield from batches
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=notes, transient=True) as progress:
        task = progress.add_task("tuples", total=n_rows)
        for batch in batches:
            yield batch
            progress.advance(task, batch.num_rows)
