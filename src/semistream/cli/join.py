"""`semistream join`: Parquet files in, master data beside them, Parquet out; in this process or on Spark."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
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

from semistream.cli.arguments import key_names, names, require
from semistream.cli.notices import compile_notice, note, notes, reported, spark_wanted, summary
from semistream.cli.output import ParquetOutput
from semistream.errors import ConfigError
from semistream.spec import JoinSpec, parse_bytes

if TYPE_CHECKING:
    from semistream.master.parquet import ParquetFiles

DEFAULT_BATCH_ROWS = 65_536
#: A batch of the stream, which the operator's budget does not count, is at most this part of it.
BATCH_PART = 8
ENGINES = ("local", "spark")


@dataclass(frozen=True)
class Job:
    """A checked join: what both engines are given."""

    algorithm: str
    keys: dict[str, str]
    how: str
    select: list[str] | None
    budget_bytes: int
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
        keys = key_names(on)
        columns = None if select is None else names(select, "--select")
        JoinSpec.make(keys, how, columns)
        budget = parse_bytes(memory)
        output = ParquetOutput(out, budget)
        with compile_notice():
            from semistream.cli.master import prepare_master
            from semistream.master.parquet import ParquetFiles
            from semistream.operators.registry import resolve
            from semistream.planner.plan import AUTO
        name = AUTO if algorithm == AUTO else resolve(algorithm).name
        require(stream, "stream")
        require(master, "master data")
        source = ParquetFiles(stream)
        prepared = prepare_master(name, master, keys, stream, source, budget, notes)
        job = Job(name, keys, how, columns, budget, batch_rows, stream, source, prepared)
        result = _on_spark(job, output, spark_master) if engine == "spark" else _here(job, output)
    if as_json:
        typer.echo(json.dumps(result))
    else:
        summary(result)


def _here(job: Job, output: ParquetOutput) -> dict[str, object]:
    from semistream.planner.auto import AutoJoin
    from semistream.planner.open import open_join

    with (
        open_join(
            job.algorithm,
            master=job.master,
            on=job.keys,
            how=job.how,
            select=job.select,
            memory=job.budget_bytes,
            stream_schema=job.source.schema,
        ) as operator,
        output.opened(operator.output_schema),
    ):
        started = time.perf_counter()
        rows = job.source.rows_within(job.budget_bytes // BATCH_PART, job.batch_rows)
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
    return _result(job, stats.tuples_in, stats.rows_out, stats.hit_rate, report.peak_bytes, stats.pages_read, seconds)


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
        values = join_files(
            spark,
            job.stream,
            job.master,
            folder,
            on=job.keys,
            how=job.how,
            select=job.select,
            memory=job.budget_bytes,
            algorithm=job.algorithm,
        )
        output.take_over(folder)
    rows_in, rows_out, peak, pages = (int(values[key]) for key in ("rows_in", "rows_out", "peak_bytes", "pages_read"))
    return _result(job, rows_in, rows_out, values["hit_rate"], peak, pages, values["elapsed"])


def _result(
    job: Job, rows_in: int, rows_out: int, hit_rate: float, peak_bytes: int, pages_read: int, seconds: float
) -> dict[str, object]:
    return {
        "algorithm": job.algorithm,
        "rows_in": rows_in,
        "rows_out": rows_out,
        "service_rate_per_s": round(rows_in / seconds, 1),
        "hit_rate": round(hit_rate, 6),
        "peak_bytes": peak_bytes,
        "budget_bytes": job.budget_bytes,
        "pages_read": pages_read,
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
