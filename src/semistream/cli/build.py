"""`semistream master build` and `refresh`: a page store of a source, its next version, or what has changed since."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from semistream.cli.arguments import AsJson, names, require
from semistream.cli.notices import compile_notice, note, notes, progress_bar, reported
from semistream.errors import ConfigError
from semistream.spec import format_bytes, parse_bytes

if TYPE_CHECKING:
    import pyarrow as pa

    from semistream.sources.base import Source

From = Annotated[
    str,
    typer.Option(
        "--from",
        metavar="SOURCE",
        help="Master data: a Parquet file or folder, delta:PATH, iceberg:…, sqlite:…, duckdb:…, postgresql://…, "
        "mysql://… (docs/sources.md).",
    ),
]
Select = Annotated[str | None, typer.Option("--select", metavar="A,B", help="Columns to store beside the key.")]
Where = Annotated[
    list[str] | None,
    typer.Option("--where", metavar="'COLUMN OP VALUE'", help="Rows to store; may be repeated, all must hold."),
]
Watermark = Annotated[
    str | None,
    typer.Option("--watermark", metavar="COLUMN", help="Of a database: grows with every change of a row."),
]
Deletes = Annotated[
    str | None,
    typer.Option(
        "--deletes",
        metavar="HOW",
        help="What a watermark cannot see: none (there are none), or reconcile (compare all keys).",
    ),
]
Lag = Annotated[
    str | None,
    typer.Option("--lag", metavar="TIME", help="Read so far back before the last watermark, for late commits."),
]
Keep = Annotated[int, typer.Option("--keep", metavar="N", help="Older versions to keep; those in use stay anyway.")]
Memory = Annotated[str, typer.Option("--memory", help="Bytes to sort in; more goes to the disk of the store.")]


def build(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="The folder of the page store, new or old.")],
    source: From,
    on: Annotated[str, typer.Option(metavar="K[,K2]", help="Key columns of the master data.")],
    select: Select = None,
    where: Where = None,
    watermark: Watermark = None,
    deletes: Deletes = None,
    lag: Lag = None,
    frequency: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="Most wanted keys first, by this numeric column of the master data."),
    ] = None,
    frequency_of: Annotated[
        Path | None,
        typer.Option(metavar="STREAM", help="The same, by how often keys occur at the beginning of this stream."),
    ] = None,
    page_rows: Annotated[int, typer.Option(help="Rows per page.")] = 256,
    keep: Keep = 1,
    memory: Memory = "256MB",
    as_json: AsJson = False,
) -> None:
    """Lay master data out as a page store with an index; if PATH is a store already, as its next version.

    Joins that run go on with the version they have open; the new one is in force for whoever comes next.
    """
    with reported():
        keys = names(on, "--on")
        wanted = None if select is None else names(select, "--select")
        limit = parse_bytes(memory)
        if frequency is not None and frequency_of is not None:
            raise ConfigError("--frequency and --frequency-of both say which keys come first; give one of them")
        with compile_notice():
            from semistream.sources.stores import build_scan, staying
        if wanted is not None and frequency is not None:
            wanted.append(frequency)
        place = _opened(source, keys, wanted, where, watermark, deletes, lag)
        started = time.perf_counter()
        with staying(path, place), place.look() as scan:
            if frequency is not None:
                _require(scan.schema, [frequency])
            _check_version(path, scan.schema, keys)
            counts: Any = frequency if frequency_of is None else _counted(frequency_of, keys, scan.schema, limit)
            with _watched(scan.n_rows) as progress:
                layout = {"page_rows": page_rows, "frequency": counts}
                master = build_scan(path, place, scan, layout, keep, limit, progress)
        with contextlib.closing(master):
            size = sum(file.stat().st_size for file in master.folder.iterdir())
            seconds = time.perf_counter() - started
            result = {
                "path": str(path),
                "version": master.version,
                "identity": master.identity,
                "rows": master.n_rows,
                "rows_without_key": master.null_key_rows,
                "pages": master.n_pages,
                "bytes": size,
                "order": master.order,
                "seconds": round(seconds, 3),
            }
    if as_json:
        typer.echo(json.dumps(result))
        return
    left_out = f", {master.null_key_rows:,} without a key left out" if master.null_key_rows else ""
    typer.echo(
        f"{path}: version {master.version} with {master.n_rows:,} rows{left_out}, {format_bytes(size)}, "
        f"built in {seconds:.1f} s"
    )


def refresh(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="The folder of the page store.")],
    source: From,
    on: Annotated[
        str | None, typer.Option(metavar="K[,K2]", help="Key columns; a store that exists knows its own.")
    ] = None,
    select: Select = None,
    where: Where = None,
    watermark: Watermark = None,
    deletes: Deletes = None,
    lag: Lag = None,
    keep: Keep = 1,
    memory: Memory = "256MB",
    as_json: AsJson = False,
) -> None:
    """Bring a page store up to date with the source that it was built from; build it if there is none.

    What changed is kept as a run beside the rest. Where the source cannot tell, all rows are read again, and a line on
    standard error says why. If anything fails, the version in force stays.
    """
    with reported():
        wanted = None if select is None else names(select, "--select")
        limit = parse_bytes(memory)
        with compile_notice():
            from semistream.sources.stores import refresh_from
        keys = _key_of(path) if on is None else names(on, "--on")
        place = _opened(source, keys, wanted, where, watermark, deletes, lag)
        started = time.perf_counter()
        done = refresh_from(path, place, keep_versions=keep, memory_limit=limit)
        seconds = time.perf_counter() - started
    if done.reason:
        note(f"{path}: {done.how}: {done.reason}")
    if as_json:
        about = {"path": str(path), "how": done.how, "version": done.version, "rows": done.rows, "reason": done.reason}
        typer.echo(json.dumps({**about, "seconds": round(seconds, 3)}))
        return
    typer.echo(f"{path}: {done.how}, version {done.version} with {done.rows:,} rows, in {seconds:.1f} s")


def _opened(
    source: str,
    keys: list[str],
    columns: list[str] | None,
    where: list[str] | None,
    watermark: str | None,
    deletes: str | None,
    lag: str | None,
) -> Source:
    from semistream.cli.streams import PARQUET, format_of
    from semistream.master.format import is_store
    from semistream.sources.open import open_source

    place = open_source(
        source, on=keys, columns=columns, where=where or (), watermark=watermark, deletes=deletes, lag=lag
    )
    if place.address.kind == "parquet":
        files = Path(place.address.path)
        if not is_store(files) and format_of(files) != PARQUET:
            raise ConfigError(f"--from {source} is {format_of(files)}; a page store is built from Parquet")
    return place


def _key_of(path: Path) -> list[str]:
    from semistream.master.format import CURRENT
    from semistream.master.pages import PageMaster

    if not (path / CURRENT).exists():
        raise ConfigError(f"{path} is no page store yet: give --on, the key to build it by")
    with contextlib.closing(PageMaster(path)) as master:
        return list(master.on)


def _require(schema: pa.Schema, columns: list[str]) -> None:
    from semistream.master.base import require_columns

    require_columns(schema, columns, "master data")


def _check_version(path: Path, schema: pa.Schema, keys: list[str]) -> None:
    """Refuse another key than the store has; say beforehand what those who use the store will stumble over."""
    from semistream.master.compatibility import in_use, misfits
    from semistream.master.format import CURRENT
    from semistream.master.pages import PageMaster

    if not (path / CURRENT).exists():
        return
    with contextlib.closing(PageMaster(path)) as force:
        if tuple(keys) != force.on:
            raise ConfigError(
                f"{path} is a page store with the key {','.join(force.on)}, not {','.join(keys)}: its readers would "
                "find nothing; build at another path"
            )
        found = misfits(force.schema, schema)
    if found and in_use(path):
        note(f"warning: {path} is in use, and readers that need these columns will stop: {'; '.join(found)}")


def _counted(stream: Path, keys: list[str], master: pa.Schema, limit: int) -> Any:
    """How often keys occur in the first rows of a stream, which has them under the same names."""
    from semistream.cli.master import sampled
    from semistream.cli.streams import open_stream
    from semistream.master.base import require_columns

    require(stream, "stream")
    pairs = {name: name for name in keys}
    source = open_stream(stream, pairs, master, memory_bytes=limit)
    require_columns(source.schema, keys, "the stream")
    found = sampled(source, pairs)
    if found is None:
        raise ConfigError(f"--frequency-of {stream} has no rows; give a stream with some, or leave the option out")
    return found


@contextlib.contextmanager
def _watched(n_rows: int | None) -> Iterator[Callable[[int], None]]:
    """What to call with the number of rows read; a bar on standard error when someone watches."""
    if not notes.is_terminal:
        yield lambda rows: None
        return
    with progress_bar(notes) as progress:
        task = progress.add_task("rows read", total=n_rows)

        def show(rows: int) -> None:
            progress.update(task, completed=rows, description="sorting and writing" if rows == n_rows else "rows read")

        yield show
