"""How commands read the words they are given."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from semistream.errors import ConfigError, StoreError

DEFAULT_BATCH_ROWS = 65_536

Memory = Annotated[str, typer.Option("--memory", help="The budget of bytes.")]
StreamPath = Annotated[
    Path, typer.Option("--stream", help="The stream: a file or a folder of files, in Parquet, CSV, TSV or JSON lines.")
]
StreamFormat = Annotated[
    str | None,
    typer.Option(
        "--stream-format", metavar="FORMAT", help="parquet, csv, tsv or json (default: by the endings of the files)."
    ),
]
StreamTypes = Annotated[
    str | None,
    typer.Option(
        "--stream-schema",
        metavar="'A TYPE, …'",
        help="Types of CSV and JSON columns; the key has R's, others are inferred from the first rows.",
    ),
]
How = Annotated[
    str,
    typer.Option(
        "--how",
        help="left: every row of the stream; inner: those with a match; semi: the same without R's columns; "
        "anti: those without a match.",
    ),
]
AsOfColumn = Annotated[
    str | None,
    typer.Option("--as-of", metavar="T", help="The stream's column with a tuple's time: only rows valid then match."),
]
ValidColumns = Annotated[
    str | None,
    typer.Option(
        "--valid",
        metavar="FROM,TO",
        help="For --as-of: R's columns since when a row is valid, and from when on no longer (null: still valid).",
    ),
]
Reads = Annotated[
    str,
    typer.Option(
        "--reads", help="How R is read: mapped (page cache), direct (past it) or auto (as R and the memory suggest)."
    ),
]
Profile = Annotated[
    str | None, typer.Option("--profile", metavar="FILE", help="A profile, or `papers` (default: this machine's).")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def names(text: str, option: str) -> list[str]:
    """Distinct column names with commas between them."""
    found = [name.strip() for name in text.split(",")]
    if not all(found) or len(set(found)) != len(found):
        raise ConfigError(f"{option} {text!r} must be distinct column names with commas between them")
    return found


def key_names(text: str) -> dict[str, str]:
    """`a,b=c` as {"a": "a", "b": "c"}: the stream's name of each key column and the master's."""
    pairs = [name.partition("=") for name in names(text, "--on")]
    keys = {left.strip(): (right if equals else left).strip() for left, equals, right in pairs}
    if len(keys) != len(pairs) or not all(keys) or not all(keys.values()):
        raise ConfigError(f"--on {text!r} must name each key column once: k, or k1,k2, or s=r")
    return keys


def valid_names(as_of: str | None, text: str | None) -> list[str] | None:
    """`from,to` as two names; there are some exactly if there is a time."""
    if (as_of is None) != (text is None):
        given, lacks = ("--valid", "--as-of") if as_of is None else ("--as-of", "--valid")
        raise ConfigError(f"{given} needs {lacks}: --as-of event_time --valid valid_from,valid_to")
    found = None if text is None else names(text, "--valid")
    if found is not None and len(found) != 2:
        raise ConfigError(f"--valid {text!r} must name two columns of the master data, for example valid_from,valid_to")
    return found


def require(path: Path, what: str) -> None:
    """Refuse a path at which there is nothing."""
    if not path.exists():
        raise StoreError(f"{what} {path} does not exist; name a file or a folder of files")
