"""The commands of `semistream`: algorithms, a join, a pipeline, page stores, the papers' figures, a demonstration.

Standard output carries results only; notices, progress and errors go to standard error. Every error that a
user can cause is one line there and exit status 2.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from semistream.cli.algorithms import algorithms
from semistream.cli.build import build, refresh
from semistream.cli.cache import cache
from semistream.cli.calibrate import calibrate
from semistream.cli.carry import app as carry
from semistream.cli.explain import explain
from semistream.cli.join import join
from semistream.cli.lake import app as lake
from semistream.cli.notices import compile_notice, notes, reported, spark_wanted
from semistream.cli.reproduce import reproduce
from semistream.cli.run import run
from semistream.cli.store import store
from semistream.cli.tune import tune

# Plain text, so that a message is one line wherever it ends up.
app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)


def main() -> None:
    """Entry point of the `semistream` command."""
    app(prog_name="semistream")


def _print_version(wanted: bool) -> None:
    if wanted:
        from semistream import __version__

        typer.echo(f"semistream {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and end.")
    ] = False,
) -> None:
    """Join a fast stream with master data too large for memory, exactly and inside a byte budget."""


# They live in files of their own.
for _command in (algorithms, join, run, explain, calibrate, tune, reproduce):
    app.command()(_command)
app.add_typer(carry, name="carry")
store.command()(build)
store.command()(refresh)
app.add_typer(lake, name="lake")
app.add_typer(store, name="master")
app.add_typer(cache, name="cache")


@app.command()
def demo(
    rows: Annotated[int, typer.Option(help="Sales; customers and products are twice as many.")] = 1_200_000,
    keep: Annotated[Path | None, typer.Option(metavar="DIR", help="A new folder for all data, to be kept.")] = None,
    picture: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Where the picture goes (else into DIR, or a new temporary file that stays)."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object with the figures.")] = False,
) -> None:
    """Load a retailer's sales on Spark, by semistream and by Spark's own join: rates, lag, memory, and a picture.

    The table that semistream writes, a Delta table if deltalake is installed, is checked against Spark's own join.
    """
    with reported():
        with compile_notice(), spark_wanted("`semistream demo`"):
            from semistream.lab.demo.demo import run as run_demo
        right = run_demo(Console(), notes, rows=rows, keep=keep, picture=picture, as_json=as_json)
    raise typer.Exit(0 if right else 1)
