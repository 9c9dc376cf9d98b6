"""`semistream carry`: for the operator of a query whose tuples wait between micro-batches (`max_delay`)."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from semistream.cli.arguments import require
from semistream.cli.notices import compile_notice, reported, summary
from semistream.cli.output import ParquetOutput

if TYPE_CHECKING:
    from semistream.spark.waiting import Drain

app = typer.Typer(no_args_is_help=True, help="Look at, finish or rename what waits in the checkpoint of a query.")

_Checkpoint = Annotated[Path, typer.Argument(help="The checkpointLocation of a query that is stopped.")]
_Name = Annotated[str | None, typer.Option(help="The enrichment, if the checkpoint has several.")]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


@app.command("list")
def list_waiting(checkpoint: _Checkpoint, as_json: _Json = False) -> None:
    """Show which enrichments carry tuples over, how many wait and since when; every record is checked."""
    with reported():
        require(checkpoint, "checkpoint")
        with compile_notice():
            from semistream.spark.waiting import listed
        found = listed(checkpoint)
    if as_json:
        typer.echo(json.dumps([asdict(each) for each in found], indent=2))
        return
    table = Table("name", "waiting", "oldest", "after batch", "shards", "join", "query", box=None, pad_edge=False)
    for each in found:
        age = f"{each.oldest_seconds:.0f} s" if each.tuples else "-"
        join = f"{each.algorithm} {each.how} {each.master} version {each.version}"
        table.add_row(each.name, f"{each.tuples:,}", age, str(each.batch), str(each.shards), join, each.query)
    Console().print(table)


@app.command()
def drain(
    checkpoint: _Checkpoint,
    out: Annotated[Path, typer.Option(help="Where to write the rows: a file if it ends in .parquet, else a folder.")],
    name: _Name = None,
    as_json: _Json = False,
) -> None:
    """Finish what waits and write its rows as Parquet, to be added to the query's sink; then no tuple waits."""
    with reported():
        require(checkpoint, "checkpoint")
        with compile_notice():
            from semistream.spark.waiting import Drain, records_of
        draining = Drain(records_of(checkpoint, name))
        before = draining.resumed()
        if before is not None:
            result: dict[str, object] = {"out": str(before), "tuples": 0, "rows": 0, "completed": "an earlier drain"}
        else:
            result = _drained(draining, out)
    if as_json:
        typer.echo(json.dumps(result))
    else:
        summary(result)


def _drained(draining: Drain, out: Path) -> dict[str, object]:
    tuples, rows = draining.tuples, 0
    if tuples:
        output = ParquetOutput(out)
        with output.opened(draining.schema()):
            for batch in draining.rows():
                output.write(batch)
                rows += batch.num_rows
            draining.settle(out, output.finish)
    return {"out": str(out) if tuples else "", "tuples": tuples, "rows": rows}


@app.command()
def rebind(
    checkpoint: _Checkpoint,
    to: Annotated[str, typer.Option(help="The name= under which enrich is called from now on.")],
    name: _Name = None,
) -> None:
    """Hand what waits over to an enrichment of another name."""
    with reported():
        require(checkpoint, "checkpoint")
        with compile_notice():
            from semistream.spark.waiting import records_of
        renamed = records_of(checkpoint, name).rename(to)
    typer.echo(f"{renamed.waiting():,} waiting tuples belong to {to!r} now")
