"""`semistream lake`: what tables of results need from time to time."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from semistream.cli.notices import reported
from semistream.errors import ConfigError
from semistream.spec import parse_seconds

app = typer.Typer(no_args_is_help=True, help="Look after tables that results are written to.", rich_markup_mode=None)


@app.callback()
def _root() -> None:
    """Look after tables that results are written to."""


@app.command()
def clean(
    path: Annotated[str, typer.Argument(metavar="PATH", help="The folder of a table; of Iceberg, namespace.table.")],
    format: Annotated[
        str | None, typer.Option("--format", help="parquet, delta or iceberg (default: what the folder is).")
    ] = None,
    older_than: Annotated[
        str, typer.Option(metavar="TIME", help="Leave what is younger: a batch that still runs may need it.")
    ] = "1d",
    catalog: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Of Iceberg: a catalog that pyiceberg knows, or key=value,key=value."),
    ] = None,
    dry_run: Annotated[bool, typer.Option(help="Only say what would be removed.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Remove files that were written for a table and never committed, by tasks or queries that died."""
    with reported():
        from semistream.lake.place import existing_format
        from semistream.lake.table import open_table

        age = parse_seconds(older_than)
        options: dict[str, Any] = {}
        if catalog is not None:
            options["catalog"] = _catalog(catalog)
        kind = format or ("iceberg" if catalog is not None else existing_format(path))
        found = open_table(path, kind, options).clean(age, dry_run)
    if as_json:
        typer.echo(json.dumps({"removed": found, "dry_run": dry_run}, indent=2))
        return
    said = "would remove" if dry_run else "removed"
    for line in [f"{said} {name}" for name in found] or ["nothing to remove"]:
        typer.echo(line)


def _catalog(text: str) -> str | dict[str, str]:
    if "=" not in text:
        return text
    pairs = [pair.partition("=") for pair in text.split(",")]
    if not all(name.strip() and equals for name, equals, _ in pairs):
        raise ConfigError(f"--catalog {text!r} must be the name of a catalog, or key=value,key=value")
    return {name.strip(): value.strip() for name, _, value in pairs}
