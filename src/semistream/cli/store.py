"""`semistream master`: what is in a page store, whether it is whole, and what can go; `build.py` makes one."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from semistream.cli.notices import compile_notice, notes, reported
from semistream.spec import parse_seconds

store = typer.Typer(no_args_is_help=True, help="Build, list, verify and clean up page stores.", rich_markup_mode=None)

StorePath = Annotated[Path, typer.Argument(metavar="PATH", help="The folder of a page store.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


@store.command("list")
def list_(path: StorePath, as_json: AsJson = False) -> None:
    """Show the versions of a store: rows, bytes, identity, which is in force, and who holds each since when."""
    with reported():
        with compile_notice():
            from semistream.master.inventory import list_versions
        versions = list_versions(path)
    if as_json:
        typer.echo(json.dumps([asdict(version) for version in versions], indent=2))
        return
    table = Table("version", "rows", "bytes", "identity", "held by", box=None, pad_edge=False)
    for version in versions:
        holders = ["in force"] if version.in_force else []
        if version.processes:
            holders += [f"process {number}" for number in version.processes]
        elif version.leased:
            holders.append("a process")
        for owner, pins in groupby(version.pins, lambda pin: pin.owner):
            own = list(pins)
            batches = f"batch {own[0].batch}" if len(own) == 1 else f"batches {own[0].batch} to {own[-1].batch}"
            since = datetime.fromtimestamp(min(pin.since for pin in own), UTC).strftime("%Y-%m-%d %H:%M")
            holders.append(f"query {owner}, {batches}, since {since} UTC")
        rows = "damaged" if version.rows is None else f"{version.rows:,}"
        for i, holder in enumerate(holders or [""]):
            known = [str(version.version), rows, f"{version.bytes:,}", version.identity or ""]
            table.add_row(*(known if i == 0 else [""] * 4), holder)
    # As wide as it has to be: an identity that is cut is of no use.
    Console(width=1000).print(table, soft_wrap=True)


@store.command()
def verify(
    path: StorePath,
    version: Annotated[int | None, typer.Option(metavar="N", help="This version only; otherwise all.")] = None,
    as_json: AsJson = False,
) -> None:
    """Read every page, index and manifest, and name what is damaged; the exit status is then 1."""
    with reported():
        with compile_notice():
            from semistream.master.inventory import verify as verify_store
        wrong = verify_store(path, version)
    if as_json:
        typer.echo(json.dumps({"damaged": wrong}, indent=2))
    else:
        for line in wrong or ["no damage found"]:
            typer.echo(line)
    raise typer.Exit(1 if wrong else 0)


@store.command()
def gc(
    path: StorePath,
    keep: Annotated[int, typer.Option(metavar="N", help="Versions to keep besides the one in force.")] = 0,
    forget: Annotated[
        list[str] | None, typer.Option(metavar="QUERY", help="Remove the pins of this query; may be repeated.")
    ] = None,
    pins_older_than: Annotated[
        str | None, typer.Option(metavar="TIME", help="Remove pins of queries silent for so long, such as 30d.")
    ] = None,
    dry_run: Annotated[bool, typer.Option(help="Only say what would be removed.")] = False,
    as_json: AsJson = False,
) -> None:
    """Remove what nobody needs: versions, what crashed builds left behind, pins of queries that are gone."""
    with reported():
        with compile_notice():
            from semistream.master.inventory import collect
        age = None if pins_older_than is None else parse_seconds(pins_older_than)
        removed = collect(path, keep=keep, forget=forget or (), pins_older_than=age, dry_run=dry_run)
    for line in removed.kept:
        notes.print(f"kept {line}", markup=False)
    if as_json:
        typer.echo(json.dumps({**asdict(removed), "dry_run": dry_run}, indent=2))
        return
    said = "would remove" if dry_run else "removed"
    lines = [f"{said} version {number}" for number in removed.versions]
    lines += [f"{said} the pins of query {owner}" for owner in removed.queries]
    lines += [f"{said} {name}, left by a build that was cut short" for name in removed.leftovers]
    for line in lines or ["nothing to remove"]:
        typer.echo(line)
