"""The commands of `semistream`: what operators there are, a join of Parquet files, a demonstration.

Standard output carries results only; notices, progress and errors go to standard error. Every error that a
user can cause is one line there and exit status 2.
"""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Annotated

import pyarrow as pa
import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from semistream.cli.output import ParquetOutput
from semistream.errors import ConfigError, SemiStreamError, StoreError
from semistream.spec import JoinSpec, parse_bytes

DEFAULT_BATCH_ROWS = 65_536

# Plain text, so that a message is one line wherever it ends up.
app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)
notes = Console(stderr=True, highlight=False, soft_wrap=True)


def main() -> None:
    """Entry point of the `semistream` command."""
    app(prog_name="semistream")


@app.callback()
def _root() -> None:
    """Join a fast stream with master data too large for memory, exactly and inside a byte budget."""


@app.command()
def algorithms(
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list instead of a table.")] = False,
) -> None:
    """List the join operators."""
    with _reported(), _compile_notice():
        from semistream.operators.registry import OPERATORS
    if as_json:
        rows = [
            {
                "name": operator.name,
                "aliases": list(operator.aliases),
                "needs_index": operator.needs_index,
                "access": operator.access,
                "seed": operator.seed,
            }
            for operator in OPERATORS.values()
        ]
        typer.echo(json.dumps(rows, indent=2))
        return
    table = Table("name", "also", "needs an index", "reads R by", "seed", box=None, pad_edge=False)
    for operator in OPERATORS.values():
        index = "yes" if operator.needs_index else "no"
        table.add_row(operator.name, ", ".join(operator.aliases), index, operator.access, operator.seed)
    Console().print(table)


@app.command()
def join(
    stream: Annotated[Path, typer.Option(help="The stream: a Parquet file, or a folder of them.")],
    master: Annotated[Path, typer.Option(help="Master data: a Parquet file or folder, or a page store.")],
    on: Annotated[str, typer.Option(metavar="K[,K2]", help="Key columns; S=R where the names differ.")],
    out: Annotated[Path, typer.Option(help="Where to write: a file if it ends in .parquet, else a folder.")],
    how: Annotated[str, typer.Option(help="inner, left, semi or anti.")] = "inner",
    select: Annotated[str | None, typer.Option(metavar="A,B", help="Master columns wanted (default: all).")] = None,
    algorithm: Annotated[str, typer.Option(help="A name that `semistream algorithms` lists.")] = "sweepjoin",
    memory: Annotated[str, typer.Option(help="The operator's budget of bytes.")] = "64MB",
    batch_rows: Annotated[int, typer.Option(help="Stream tuples read at a time.")] = DEFAULT_BATCH_ROWS,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object with the counts.")] = False,
) -> None:
    """Join a stream of Parquet files with master data and write the result as Parquet."""
    with _reported():
        if batch_rows < 1:
            raise ConfigError(f"--batch-rows {batch_rows} is too small; it must be at least 1")
        keys = _key_names(on)
        columns = None if select is None else _names(select, "--select")
        JoinSpec.make(keys, how, columns)
        budget = parse_bytes(memory)
        output = ParquetOutput(out)
        with _compile_notice():
            from semistream.cli.master import prepare_master
            from semistream.master.parquet import ParquetFiles
            from semistream.operators.registry import open_join, resolve
        name = resolve(algorithm).name
        _require(stream, "stream")
        _require(master, "master data")
        source = ParquetFiles(stream)
        prepared = prepare_master(name, master, keys, stream, source, notes)
        with (
            open_join(
                name,
                master=prepared,
                on=keys,
                how=how,
                select=columns,
                memory=budget,
                stream_schema=source.schema,
            ) as operator,
            output.opened(operator.output_schema),
        ):
            started = time.perf_counter()
            batches = source.batches(source.schema.names, 0, batch_rows, threads=True)
            for batch in _watched(batches, source.n_rows):
                for joined in operator.push(batch):
                    output.write(joined)
            for joined in operator.drain():
                output.write(joined)
            output.finish()
            seconds = time.perf_counter() - started
            stats, report = operator.stats, operator.memory
        result: dict[str, object] = {
            "algorithm": name,
            "rows_in": stats.tuples_in,
            "rows_out": stats.rows_out,
            "service_rate_per_s": round(stats.tuples_in / seconds, 1),
            "hit_rate": round(stats.hit_rate, 6),
            "peak_bytes": report.peak_bytes,
            "budget_bytes": report.budget_bytes,
            "pages_read": stats.pages_read,
            "seconds": round(seconds, 6),
        }
    if as_json:
        typer.echo(json.dumps(result))
        return
    table = Table(box=None, pad_edge=False, show_header=False)
    for label, value in result.items():
        table.add_row(label.replace("_", " "), str(value) if isinstance(value, str) else f"{value:,}")
    Console().print(table)


@app.command()
def demo(
    rows: Annotated[int, typer.Option(help="Master tuples of 120 bytes.")] = 1_000_000,
    stream_rows: Annotated[int, typer.Option(help="Stream tuples of 20 bytes.")] = 2_000_000,
) -> None:
    """Join generated data with several operators and check every result against a plain join."""
    with _reported():
        if rows < 1 or stream_rows < 1:
            raise ConfigError("--rows and --stream-rows must be at least 1")
        with _compile_notice():
            from semistream.demo import run
        right = run(Console(), notes, rows, stream_rows)
    raise typer.Exit(0 if right else 1)


def _names(text: str, option: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if not all(names) or len(set(names)) != len(names):
        raise ConfigError(f"{option} {text!r} must be distinct column names with commas between them")
    return names


def _key_names(text: str) -> dict[str, str]:
    """`a,b=c` as {"a": "a", "b": "c"}: the stream's name of each key column and the master's."""
    pairs = [name.partition("=") for name in _names(text, "--on")]
    keys = {left.strip(): (right if equals else left).strip() for left, equals, right in pairs}
    if len(keys) != len(pairs) or not all(keys) or not all(keys.values()):
        raise ConfigError(f"--on {text!r} must name each key column once: k, or k1,k2, or s=r")
    return keys


def _require(path: Path, what: str) -> None:
    if not path.exists():
        raise StoreError(f"{what} {path} does not exist; name a Parquet file or a folder of them")


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


@contextlib.contextmanager
def _reported() -> Iterator[None]:
    """Turn what a user can cause into one line and status 2; a termination signal into an orderly exit."""

    def stop(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except (SemiStreamError, OSError, pa.ArrowException) as error:
        message = " ".join(str(error).split()) or type(error).__name__
        typer.echo(f"error: {message}", err=True)
        raise typer.Exit(2) from error
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
        raise typer.Exit(130) from None
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _compile_notice() -> Iterator[None]:
    """Say why nothing happens yet while the kernels are compiled, which only the first run has to do."""
    text = "compiling the kernels; later runs find them ready"
    timer = threading.Timer(3.0, lambda: print(text, file=sys.stderr, flush=True))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
