"""`semistream master`: what is in a page store, whether it is whole, and what can go; `build.py` makes one."""

from __future__ import annotations

import json
import time
from contextlib import closing
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from semistream.cli.notices import compile_notice, notes, reported
from semistream.spec import parse_bytes, parse_seconds

if TYPE_CHECKING:
    from semistream.master.format import Origin

store = typer.Typer(
    no_args_is_help=True, help="Build, list, compact, verify and clean up page stores.", rich_markup_mode=None
)

StorePath = Annotated[Path, typer.Argument(metavar="PATH", help="The folder of a page store.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


@store.command("list")
def list_(path: StorePath, as_json: AsJson = False) -> None:
    """Show the versions of a store: rows, bytes, identity, which is in force, and who holds each since when.

    Rows that no key leads to any more are dead; `runs` counts the changes since the rows were last written anew. The
    age is that of the newest change in the source, or of its refresh where the source does not say.
    """
    with reported():
        with compile_notice():
            from semistream.master.inventory import list_versions
        versions = list_versions(path)
    if as_json:
        typer.echo(json.dumps([asdict(version) for version in versions], indent=2))
        return
    heads = (
        "version",
        "rows",
        "dead",
        "runs",
        "bytes",
        "source",
        "position",
        "age",
        "refreshed",
        "identity",
        "held by",
    )
    table = Table(*heads, box=None, pad_edge=False)
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
            known = [
                str(version.version),
                rows,
                f"{version.dead_rows:,}",
                str(version.runs),
                f"{version.bytes:,}",
                *_origin(version.origin),
                version.identity or "",
            ]
            table.add_row(*(known if i == 0 else [""] * len(known)), holder)
    # As wide as it has to be: an identity that is cut is of no use.
    Console(width=1000).print(table, soft_wrap=True)


def _origin(origin: Origin) -> tuple[str, str, str, str]:
    """Source, position, age and last refresh in words; empty where nobody has said them."""
    since = _moment(origin.committed_at) or _moment(origin.refreshed_at)
    refreshed = _moment(origin.refreshed_at)
    return (
        origin.source or "",
        "" if origin.position is None else str(origin.position),
        "" if since is None else _age((datetime.now(UTC) - since).total_seconds()),
        "" if refreshed is None else refreshed.strftime("%Y-%m-%d %H:%M UTC"),
    )


def _moment(text: str | None) -> datetime | None:
    """A time that a manifest has; one without a zone is UTC, and what is no time is not shown."""
    try:
        found = None if text is None else datetime.fromisoformat(text)
    except ValueError:
        return None
    return None if found is None else found.replace(tzinfo=found.tzinfo or UTC).astimezone(UTC)


def _age(seconds: float) -> str:
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


@store.command()
def compact(
    path: StorePath,
    keep: Annotated[int, typer.Option(metavar="N", help="Older versions to keep; those in use stay anyway.")] = 1,
    memory: Annotated[str, typer.Option(help="Bytes to sort in; more goes to the disk of the store.")] = "256MB",
    as_json: AsJson = False,
) -> None:
    """Write all rows that some key leads to as a new version, without runs of changes; joins that run go on."""
    with reported():
        limit = parse_bytes(memory)
        with compile_notice():
            from semistream.master.pages import PageMaster
            from semistream.master.refresh import compact_pages
        with closing(PageMaster(path)) as before:
            runs, dead = len(before.runs), before.dead_rows
        started = time.perf_counter()
        with closing(compact_pages(path, keep_versions=keep, memory_limit=limit)) as master:
            result = {
                "path": str(path),
                "version": master.version,
                "rows": master.n_rows,
                "runs_before": runs,
                "dead_rows_before": dead,
                "seconds": round(time.perf_counter() - started, 3),
            }
    if as_json:
        typer.echo(json.dumps(result))
    elif not runs:
        typer.echo(f"{path}: version {master.version} has no runs, so it stays as it is")
    else:
        typer.echo(
            f"{path}: version {master.version} with {master.n_rows:,} rows, without {runs} runs and {dead:,} dead "
            f"rows, written in {result['seconds']:.1f} s"
        )


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
