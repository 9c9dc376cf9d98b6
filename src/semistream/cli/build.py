"""`semistream master build`: a page store of Parquet data, or a new version of one."""

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
    from semistream.master.parquet import ParquetFiles

#: Rows are handed over in pieces of this part of the memory.
_BATCH_PART = 8
_MOST_BATCH_ROWS = 1 << 17


def build(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="The folder of the page store, new or old.")],
    source: Annotated[Path, typer.Option("--from", metavar="FILES", help="Master data: a Parquet file or folder.")],
    on: Annotated[str, typer.Option(metavar="K[,K2]", help="Key columns of the master data.")],
    select: Annotated[str | None, typer.Option(metavar="A,B", help="Columns to store beside the key.")] = None,
    frequency: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="Most wanted keys first, by this numeric column of the master data."),
    ] = None,
    frequency_of: Annotated[
        Path | None,
        typer.Option(metavar="STREAM", help="The same, by how often keys occur at the beginning of this stream."),
    ] = None,
    page_rows: Annotated[int, typer.Option(help="Rows per page.")] = 256,
    keep: Annotated[int, typer.Option(metavar="N", help="Older versions to keep; those in use stay anyway.")] = 1,
    memory: Annotated[str, typer.Option(help="Bytes to sort in; more goes to the disk of the store.")] = "256MB",
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
        require(source, "master data")
        with compile_notice():
            import pyarrow as pa

            from semistream.cli.streams import PARQUET, format_of
            from semistream.master.build import build_pages
            from semistream.master.format import is_store
            from semistream.master.parquet import ParquetFiles
        if is_store(source):
            raise ConfigError(f"--from {source} is a page store; name the Parquet data that it was built from")
        if format_of(source) != PARQUET:
            raise ConfigError(f"--from {source} is {format_of(source)}; a page store is built from Parquet")
        files = ParquetFiles(source)
        columns = _columns(files, keys, wanted, frequency)
        _check_version(path, files, keys, columns)
        counts: Any = frequency if frequency_of is None else _counted(frequency_of, keys, source, limit)
        rows = files.rows_within(limit // _BATCH_PART, _MOST_BATCH_ROWS)
        schema = pa.schema([files.schema.field(name) for name in columns])
        reader = pa.RecordBatchReader.from_batches(schema, files.batches(columns, 0, rows, threads=True))
        started = time.perf_counter()
        with _watched(files.n_rows) as progress:
            master = build_pages(
                reader,
                path,
                on=keys,
                page_rows=page_rows,
                frequency=counts,
                overwrite=True,
                keep_versions=keep,
                memory_limit=limit,
                progress=progress,
            )
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


def _columns(files: ParquetFiles, keys: list[str], wanted: list[str] | None, frequency: str | None) -> list[str]:
    """What is stored, in the order of the files: the key and the weight always."""
    from semistream.master.base import require_columns

    need = [*keys, *(wanted or ()), *(() if frequency is None else (frequency,))]
    require_columns(files.schema, need, "master data")
    return [name for name in files.schema.names if wanted is None or name in need]


def _check_version(path: Path, files: ParquetFiles, keys: list[str], columns: list[str]) -> None:
    """Refuse another key than the store has; say beforehand what those who use the store will stumble over."""
    import pyarrow as pa

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
        found = misfits(force.schema, pa.schema([files.schema.field(name) for name in columns]))
    if found and in_use(path):
        note(f"warning: {path} is in use, and readers that need these columns will stop: {'; '.join(found)}")


def _counted(stream: Path, keys: list[str], master: Path, limit: int) -> Any:
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
def _watched(n_rows: int) -> Iterator[Callable[[int], None]]:
    """What to call with the number of rows read; a bar on standard error when someone watches."""
    if not notes.is_terminal:
        yield lambda rows: None
        return
    with progress_bar(notes) as progress:
        task = progress.add_task("rows read", total=n_rows)

        def show(rows: int) -> None:
            progress.update(task, completed=rows, description="rows read" if rows < n_rows else "sorting and writing")

        yield show
