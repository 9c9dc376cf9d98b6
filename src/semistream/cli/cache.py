"""`semistream cache`: the page stores that `semistream join` has built by itself, and what can go of them."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import datetime
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from semistream.cli.arguments import AsJson
from semistream.cli.notices import compile_notice, note, reported
from semistream.spec import format_bytes, parse_seconds, parse_size

cache = typer.Typer(
    no_args_is_help=True,
    help="List and prune the page stores that `semistream join` has built of Parquet data.",
    rich_markup_mode=None,
)

_STATES = {
    "current": "R is as it was",
    "changed": "R has changed since",
    "gone": "R is gone",
    "unknown": "not known of what",
    "unfinished": "its build was cut short",
}


@cache.command("list")
def list_(as_json: AsJson = False) -> None:
    """Show every store: of which R, how large, when it was last used, and whether R still is what it was built from."""
    with reported():
        with compile_notice():
            from semistream.cli.store_cache import cache_folder, cached_stores
        stores = cached_stores()
    if as_json:
        typer.echo(json.dumps([asdict(each) for each in stores], indent=2))
        return
    table = Table("master data", "key", "size", "last used", "state", "store", box=None, pad_edge=False)
    for each in stores:
        used = datetime.fromtimestamp(each.last_used).strftime("%Y-%m-%d %H:%M")
        state = _STATES[each.state] + (", in use" if each.in_use else "")
        table.add_row(each.master or "?", ",".join(each.on or ["?"]), format_bytes(each.bytes), used, state, each.path)
    if stores:
        # As wide as it has to be: a path that is cut is of no use.
        Console(width=1000, highlight=False, markup=False).print(table, soft_wrap=True)
    total = format_bytes(sum(each.bytes for each in stores))
    typer.echo(f"{len(stores)} {'store' if len(stores) == 1 else 'stores'}, {total}, in {cache_folder()}")


@cache.command()
def prune(
    older_than: Annotated[
        str | None, typer.Option(metavar="TIME", help="Also those not used for so long, such as 30d.")
    ] = None,
    max_size: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Also those used longest ago, until all take this much, such as 10GB."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be removed.")] = False,
    as_json: AsJson = False,
) -> None:
    """Remove stores that no join will use again: R has changed or is gone. What is in use stays."""
    with reported():
        age = None if older_than is None else parse_seconds(older_than)
        most = None if max_size is None else parse_size(max_size, "--max-size")
        with compile_notice():
            from semistream.cli.store_cache import prune as prune_stores
        done = prune_stores(age, most, dry_run=dry_run)
    for path, why in done.kept.items():
        note(f"kept {path}: {why}")
    if as_json:
        removed = [asdict(each) for each in done.removed]
        typer.echo(
            json.dumps({"removed": removed, "bytes": done.bytes, "kept": done.kept, "dry_run": dry_run}, indent=2)
        )
        return
    said = "would remove" if dry_run else "removed"
    for each in done.removed:
        typer.echo(f"{said} {each.path} ({format_bytes(each.bytes)}, of {each.master or 'unknown data'})")
    if not done.removed:
        typer.echo("nothing to remove")
