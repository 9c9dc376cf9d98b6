"""`semistream join`: a stream of files in, master data beside them, Parquet out; in this process or on Spark."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import pyarrow as pa
import typer

from semistream.cli.arguments import (
    DEFAULT_BATCH_ROWS,
    AsOfColumn,
    How,
    Reads,
    StreamFormat,
    StreamPath,
    StreamTypes,
    ValidColumns,
    key_names,
    names,
    require,
    valid_names,
)
from semistream.cli.notices import compile_notice, note, notes, progress_bar, reported, spark_wanted, summary
from semistream.cli.output import ParquetOutput
from semistream.cli.overlap import read_ahead, write_behind
from semistream.cli.process import leave_pandas_out
from semistream.cli.replacing import require_apart
from semistream.errors import ConfigError
from semistream.spec import DEFAULT_HOW, JoinRequest

if TYPE_CHECKING:
    from semistream.cli.streams import Stream

#: A batch of the stream, which the operator's budget does not count, is at most this part of it.
BATCH_PART = 8
#: Batches that were read ahead and rows that wait for the writer, at most; beside a small budget, less.
AHEAD_BYTES = 4 << 20
BEHIND_BYTES = 16 << 20
ENGINES = ("local", "spark")


@dataclass(frozen=True)
class Job:
    """A checked join: what both engines are given."""

    request: JoinRequest
    batch_rows: int
    stream: Path
    source: Stream
    master: Path


def join(
    stream: StreamPath,
    master: Annotated[Path, typer.Option(help="Master data: a Parquet file or folder, or a page store.")],
    on: Annotated[str, typer.Option(metavar="K[,K2]", help="Key columns; S=R where the names differ.")],
    out: Annotated[
        Path,
        typer.Option(
            help="Where to write: a file if it ends in .parquet, else a folder of such files. "
            "Endings of other formats (.csv, .json, ...) are refused."
        ),
    ],
    how: How = DEFAULT_HOW,
    select: Annotated[str | None, typer.Option(metavar="A,B", help="Master columns wanted (default: all).")] = None,
    as_of: AsOfColumn = None,
    valid: ValidColumns = None,
    algorithm: Annotated[str, typer.Option(help="A name that `semistream algorithms` lists, or auto.")] = "sweepjoin",
    memory: Annotated[str, typer.Option(help="The budget of bytes; on Spark that of each executor.")] = "64MB",
    stream_format: StreamFormat = None,
    stream_schema: StreamTypes = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace what is at --out, when the new output is complete.")
    ] = False,
    reads: Reads = "auto",
    batch_rows: Annotated[
        int, typer.Option(help="Stream tuples read at a time; fewer if they are wide.")
    ] = DEFAULT_BATCH_ROWS,
    engine: Annotated[str, typer.Option(help="local (this process) or spark.")] = "local",
    spark_master: Annotated[str, typer.Option(help="Spark's master, for --engine spark.")] = "local[*]",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object with the counts.")] = False,
) -> None:
    """Join a stream of files (Parquet, CSV, JSON lines) with master data and write the result as Parquet."""
    with reported():
        if batch_rows < 1:
            raise ConfigError(f"--batch-rows {batch_rows} is too small; it must be at least 1")
        if engine not in ENGINES:
            raise ConfigError(f"--engine {engine!r} is unknown; allowed are {' and '.join(ENGINES)}")
        request = JoinRequest.make(
            on=key_names(on),
            how=how,
            select=None if select is None else names(select, "--select"),
            as_of=as_of,
            valid=valid_names(as_of, valid),
            memory=memory,
            algorithm=algorithm,
            reads=reads,
        )
        if overwrite:
            require_apart(out, (stream, master))
        output = ParquetOutput(out, request.memory_bytes, overwrite=overwrite)
        if engine == "local":
            leave_pandas_out()
        with compile_notice():
            from semistream.algorithms.registry import resolve
            from semistream.cli.master import prepare_master
            from semistream.cli.streams import PARQUET, format_of, open_stream
        if not request.is_auto:
            request = replace(request, algorithm=resolve(algorithm).name)
        require(stream, "stream")
        require(master, "master data")
        if engine == "spark" and (stream_format or format_of(stream)) != PARQUET:
            raise ConfigError(
                f"--engine spark reads streams of Parquet only, and {stream} is {stream_format or format_of(stream)}; "
                "use --engine local, or write the stream as Parquet first"
            )
        source = open_stream(
            stream,
            dict(request.spec.pairs),
            master,
            memory_bytes=request.memory_bytes,
            format_name=stream_format,
            types=stream_schema,
        )
        job = Job(request, batch_rows, stream, source, prepare_master(request, master, stream, source, notes))
        result = _on_spark(job, output, spark_master) if engine == "spark" else _here(job, output)
    if as_json:
        typer.echo(json.dumps(result))
    else:
        # Whoever named the algorithm that ran knows what was asked for.
        summary({name: value for name, value in result.items() if name != "asked" or value != result["algorithm"]})


def _here(job: Job, output: ParquetOutput) -> dict[str, object]:
    from semistream.cli.streams import expected_rows
    from semistream.columns.helper import helped
    from semistream.engine.output import for_files
    from semistream.planner.open import open_request
    from semistream.planner.policy import Policy

    expected = expected_rows(job.source)
    policy = Policy() if expected is None else Policy(horizon=max(expected, 1))
    batch_bytes = job.request.memory_bytes // BATCH_PART
    with (
        open_request(job.master, job.request, stream_schema=job.source.schema, policy=policy) as operator,
        output.opened(operator.output_schema),
        write_behind(output.write, min(BEHIND_BYTES, output.row_group_bytes)) as writer,
        helped(),
        for_files(),
    ):
        started = time.perf_counter()
        rows = job.source.rows_within(batch_bytes, job.batch_rows)
        source = job.source.batches(job.source.schema.names, 0, rows, threads=True)
        with read_ahead(source, min(AHEAD_BYTES, batch_bytes)) as batches:
            for batch in _watched(batches, job.source.n_rows):
                for joined in operator.push(batch):
                    writer.write(joined)
        for joined in operator.drain():
            writer.write(joined)
        writer.finish()
        output.finish()
        seconds = time.perf_counter() - started
        stats, report = operator.stats, operator.memory
        ran = getattr(operator, "algorithm", None) if job.request.is_auto else job.request.algorithm
        if job.request.is_auto:
            note(f"auto chose {ran}; `semistream explain` says why")
    done = {name: getattr(stats, name) for name in ("rows_out", "hit_rate", "pages_read")}
    return _result(job, ran, {**done, "rows_in": stats.tuples_in, "peak_bytes": report.peak_bytes}, seconds)


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
    return _result(job, str(values["algorithm"]), values, values["elapsed"])


def _result(job: Job, ran: str | None, done: Mapping[str, float], seconds: float) -> dict[str, object]:
    """What a join did, for people and programs alike: `algorithm` is the operator that ran, `asked` may be `auto`."""
    return {
        "algorithm": ran,
        "asked": job.request.algorithm,
        "how": job.request.spec.how,
        "rows_in": int(done["rows_in"]),
        "rows_out": int(done["rows_out"]),
        "service_rate_per_s": round(done["rows_in"] / seconds, 1),
        "hit_rate": round(done["hit_rate"], 6),
        "peak_bytes": int(done["peak_bytes"]),
        "budget_bytes": job.request.memory_bytes,
        "pages_read": int(done["pages_read"]),
        "seconds": round(seconds, 6),
    }


def _watched(batches: Iterator[pa.RecordBatch], n_rows: int | None) -> Iterator[pa.RecordBatch]:
    """The stream's batches, with a bar on standard error when someone watches."""
    if not notes.is_terminal:
        yield from batches
        return
    with progress_bar(notes) as progress:
        task = progress.add_task("tuples", total=n_rows)
        for batch in batches:
            yield batch
            progress.advance(task, batch.num_rows)
