"""`semistream run`: a pipeline from source to sink on Spark, with its progress and an orderly end."""

from __future__ import annotations

import contextlib
import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from semistream.cli.notices import compile_notice, note, notes, reported, spark_wanted, summary

if TYPE_CHECKING:
    from semistream.spark.pipeline import Pipeline
    from semistream.spark.query import Totals

#: Where nobody watches, a line is written no more often than this.
LOG_SECONDS = 10.0


def run(
    path: Annotated[Path, typer.Argument(metavar="PIPELINE.TOML", help="The pipeline; see docs/pipeline.md.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check everything, show the plan, start nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object with the counts.")] = False,
) -> None:
    """Run a pipeline on Spark: source, enrichments, sink. SIGINT, SIGTERM and SIGHUP end it in good order."""
    with reported():
        with compile_notice(), spark_wanted("`semistream run`"):
            from semistream.spark.pipeline import as_written, read_pipeline
            from semistream.spark.query import build, follow, kept_masters, spark_for, start, writing
        pipeline = read_pipeline(path)
        # Stores first: what is wrong with a source is told before Spark is started.
        with kept_masters(pipeline, note, dry_run) as check, spark_for(pipeline, note) as spark:
            frame = build(spark, pipeline)
            how = pipeline.secrets.redact(writing(pipeline, frame).how)
            if dry_run:
                columns = {field.name: field.dataType.simpleString() for field in frame.schema.fields}
                _show_plan({"pipeline": as_written(pipeline), "output": columns, "writer": how}, as_json)
                return
            note(f"{pipeline.secrets.redact(pipeline.name)}: {how}")
            with _stop_signals() as stop, _watched(pipeline) as seen:
                totals = follow(start(pipeline, frame), pipeline, stop, seen, check)
    result: dict[str, object] = {
        "name": pipeline.secrets.redact(pipeline.name),
        "status": "stopped" if stop.is_set() else "finished",
        "batches": totals.batches,
        "rows_in": totals.rows_in,
        "rows_out": totals.rows_out,
        "service_rate_per_s": round(totals.rows_in / totals.seconds, 1),
        "hit_rate": round(totals.hit_rate, 6),
        "unmatched": totals.unmatched,
        **_of_unmatched(pipeline, totals),
        "pages_read": totals.pages_read,
        "bytes_read": totals.bytes_read,
        "cache_bytes": totals.cache_bytes,
        "master_version": totals.master_version,
        "seconds": round(totals.seconds, 6),
    }
    if as_json:
        typer.echo(json.dumps(result))
    else:
        summary(result)


def _of_unmatched(pipeline: Pipeline, totals: Totals) -> dict[str, int]:
    """What became of tuples without a match, where that is more than `how` says."""
    names: list[str] = []
    if any(given.missing.waits for given in pipeline.enrichments):
        names += ["parked", "expired", "left_early"]
    if any(given.missing.letters is not None for given in pipeline.enrichments):
        names.append("dead_letters")
    return {name: getattr(totals, name) for name in names}


def _show_plan(plan: dict[str, Any], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(plan))
        return
    console = Console(highlight=False, markup=False, soft_wrap=True)
    for key, value in _lines(plan["pipeline"]):
        console.print(f"{key} = {json.dumps(value, ensure_ascii=False, default=str)}")
    console.print("output columns: " + ", ".join(f"{name} {kind}" for name, kind in plan["output"].items()))
    console.print(f"writer: {plan['writer']}")


def _lines(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _lines(inner, f"{place}.{key}" if place else key)
    elif isinstance(value, list) and value and all(isinstance(inner, dict) for inner in value):
        for number, inner in enumerate(value, 1):
            yield from _lines(inner, f"{place}[{number}]")
    else:
        yield place, value


@contextlib.contextmanager
def _stop_signals() -> Iterator[threading.Event]:
    """An event that the first SIGINT, SIGTERM or SIGHUP sets; the second one ends the process as usual."""
    stop = threading.Event()

    def ask(number: int, _: FrameType | None) -> None:
        if stop.is_set():
            raise SystemExit(128 + number)
        stop.set()

    # Spark has its own answer to SIGINT, so this must come after its start.
    # A signal that is ignored stays so: that is how nohup works.
    numbers = [
        number
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) is not signal.SIG_IGN
    ]
    before = {number: signal.signal(number, ask) for number in numbers}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _watched(pipeline: Pipeline) -> Iterator[Callable[[Totals], None]]:
    """What to call after every batch: it keeps a line up to date, or writes one now and then where nobody watches."""
    name = pipeline.secrets.redact(pipeline.name)
    if not notes.is_terminal:
        due = time.monotonic()

        def log(totals: Totals) -> None:
            nonlocal due
            if time.monotonic() >= due:
                due = time.monotonic() + LOG_SECONDS
                note(f"{name}: {_line(totals)}")

        yield log
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=notes, transient=True) as progress:
        task = progress.add_task(f"{name}: waiting for the first batch", total=None)

        def show(totals: Totals) -> None:
            progress.update(task, description=f"{name}: {_line(totals)}")

        yield show


def _line(totals: Totals) -> str:
    return (
        f"batch {totals.batch} | {totals.rows_in:,} rows | {totals.rate_per_s:,.0f} rows/s | "
        f"hit rate {totals.hit_rate:.1%} | cache {totals.cache_bytes / 1e6:,.1f} MB | lag {totals.lag}"
    )
