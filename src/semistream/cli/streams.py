"""The stream of a command: Parquet, CSV or JSON files behind one small interface."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from semistream.cli.ddl import parse_types
from semistream.errors import ConfigError, StoreError

PARQUET, CSV, TSV, JSON = "parquet", "csv", "tsv", "json"
FORMATS = (PARQUET, CSV, TSV, JSON)
_ENDINGS = {"csv": CSV, "tsv": TSV, "json": JSON, "jsonl": JSON, "ndjson": JSON, "parquet": PARQUET}


#: Endings that Arrow's input streams unpack by themselves.
PACKED = (".gz", ".bz2", ".zst", ".lz4")


class Stream(Protocol):
    """Rows of files in a fixed order."""

    @property
    def schema(self) -> pa.Schema: ...

    @property
    def n_rows(self) -> int | None:
        """None where only reading all of them would tell."""

    def rows_within(self, n_bytes: int, most: int) -> int:
        """Number of rows that take about `n_bytes` in memory, from 1 to `most`."""

    def batches(
        self, columns: Sequence[str], first_row: int, batch_rows: int, threads: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """Batches of at most `batch_rows` rows, with exactly these columns."""


def open_stream(
    path: Path,
    keys: Mapping[str, str],
    master: Path | pa.Schema,
    *,
    memory_bytes: int,
    format_name: str | None = None,
    types: str | None = None,
) -> Stream:
    """The files at `path`, in the format that is named or that their endings tell.

    Text has no types of its own. Key columns are read in the type that R has for them, so that "007" is a text where
    R has texts and a number where R has numbers; `types` says what other columns are (`parse_types`).
    """
    if format_name is not None and format_name not in FORMATS:
        raise ConfigError(f"--stream-format {format_name!r} is unknown; allowed are {', '.join(FORMATS)}")
    # Imported here, for Parquet brings the compiled kernels along.
    from semistream.master.parquet import ParquetFiles

    found = format_name or format_of(path)
    if found == PARQUET:
        if types is not None:
            raise ConfigError(
                f"--stream-schema is for CSV and JSON, but the stream {path} is Parquet, which has types of its own"
            )
        return ParquetFiles(path)
    from semistream.cli.text import CsvFiles, JsonFiles

    given = {} if types is None else parse_types(types, "--stream-schema")
    files = files_of(path, found, any_ending=format_name is not None)
    reader = JsonFiles if found == JSON else CsvFiles
    return reader(files, _key_types(keys, master), given, memory_bytes, tabs=found == TSV)


def expected_rows(stream: Stream) -> int | None:
    """Rows of a stream as far as they are known before it is read."""
    return getattr(stream, "likely_rows", None) if stream.n_rows is None else stream.n_rows


def format_of(path: Path) -> str:
    """The format that the name of a file tells, or the names of the files in a folder; Parquet where none does."""
    names = [path] if not path.is_dir() else list(_files_below(path))
    found = {known for known in map(_format_of_name, names) if known is not None}
    if len(found) > 1:
        raise ConfigError(
            f"the stream {path} has files of several formats ({', '.join(sorted(found))}); keep one format per folder, "
            "or choose with --stream-format"
        )
    return found.pop() if found else PARQUET


def files_of(path: Path, format_name: str, *, any_ending: bool) -> list[Path]:
    """The files of a stream by name; in a folder those with an ending of the format, or all if that was named."""
    if not path.is_dir():
        return [path]
    files = [file for file in _files_below(path) if _format_of_name(file) == format_name]
    if not files and any_ending:
        files = list(_files_below(path))
    if not files:
        raise StoreError(f"the stream {path} holds no {format_name.upper()} file")
    for file in files:
        folders = file.relative_to(path).parts[:-1]
        if any("=" in folder for folder in folders):
            raise ConfigError(
                f"{file} lies in a folder that stands for a column ({'/'.join(folders)}), which is only read from "
                "Parquet; write the stream as Parquet, or put the column into the files"
            )
    return files


def _files_below(folder: Path) -> Iterator[Path]:
    """Without those that are hidden or notes of a writer, such as `_SUCCESS`."""
    for file in sorted(folder.rglob("*")):
        inside = file.relative_to(folder).parts
        if file.is_file() and not any(part.startswith((".", "_")) for part in inside):
            yield file


def _format_of_name(path: Path) -> str | None:
    name = path.with_suffix("") if path.suffix.lower() in PACKED else path
    return _ENDINGS.get(name.suffix.lower().removeprefix("."))


def _key_types(keys: Mapping[str, str], master: Path | pa.Schema) -> dict[str, pa.DataType]:
    """Types of R's key columns under the stream's names."""
    from semistream.columns.keys import plain_key_type
    from semistream.master.base import require_columns
    from semistream.master.format import is_store
    from semistream.master.pages import PageMaster
    from semistream.master.parquet import ParquetFiles

    if isinstance(master, pa.Schema):
        schema = master
    elif is_store(master):
        with_pages = PageMaster(master)
        schema = with_pages.schema
        with_pages.close()
    else:
        schema = ParquetFiles(master).schema
    require_columns(schema, keys.values(), "master data")
    plain = {name: plain_key_type(schema.field(other).type) for name, other in keys.items()}
    # A column that cannot be a key is refused when the join is opened.
    return {name: kind for name, kind in plain.items() if kind is not None}
