"""The commands of `semistream`: operators, a join, a pipeline, page stores, the papers' figures, a demonstration.

Standard output carries results only; notices, progress and errors go to standard error. Every error that a
user can cause is one line there and exit status 2.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Column, Table

from semistream.cli.carry import app as carry
from semistream.cli.cost import calibrate, explain, tune
from semistream.cli.join import join
from semistream.cli.notices import compile_notice, notes, reported, spark_wanted
from semistream.cli.reproduce import reproduce
from semistream.cli.run import run
from semistream.cli.store import store

# Plain text, so that a message is one line wherever it ends up.
app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)


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
    with reported(), compile_notice():
        from semistream.operators.registry import OPERATORS
    if as_json:
        rows = [
            {
                "name": operator.name,
                "aliases": list(operator.aliases),
                "needs_index": operator.needs_index,
                "access": operator.access,
                "paper": operator.paper,
            }
            for operator in OPERATORS.values()
        ]
        typer.echo(json.dumps(rows, indent=2))
        return
    # Names are typed, so they are shown whole in 80 columns too; the citations wrap.
    table = Table(
        Column("name", no_wrap=True),
        Column("also", no_wrap=True),
        Column("needs an index", max_width=8),
        "reads R by",
        "paper",
        box=None,
        pad_edge=False,
    )
    for operator in OPERATORS.values():
        index = "yes" if operator.needs_index else "no"
        table.add_row(operator.name, ", ".join(operator.aliases), index, operator.access, operator.paper)
    Console().print(table)


# They live in files of their own.
for _command in (join, run, explain, calibrate, tune, reproduce):
    app.command()(_command)
app.add_typer(carry, name="carry")
app.add_typer(store, name="master")


@app.command()
def demo(
    rows: Annotated[int, typer.Option(help="Sales; customers and products are fewer in proportion.")] = 600_000,
    keep: Annotated[Path | None, typer.Option(metavar="DIR", help="A new folder for all data, to be kept.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object with the figures.")] = False,
) -> None:
    """Load a retailer's sales into a warehouse with Spark and check the result against Spark's own join."""
    with reported():
        with compile_notice(), spark_wanted("`semistream demo`"):
            from semistream.demo import run as run_demo
        right = run_demo(Console(), notes, rows=rows, keep=keep, as_json=as_json)
    raise typer.Exit(0 if right else 1)
