"""Rows into Parquet files: gathered to row groups, divided by partition columns, rolled at a size, safe on disk.

Memory is bounded whatever comes: rows that wait are at most `held_bytes` (and the batch that comes), open files at
most `open_files`. With many partition values files get small; the commit merges what is too small (`compact.py`).
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from semistream.errors import SemiStreamError, StoreError
from semistream.lake.choices import CHOICES
from semistream.lake.partitions import Values, divide, folder_of
from semistream.lake.rows import Shaping
from semistream.lake.stats import delta_stats
from semistream.lake.target import Target
from semistream.sealed import sync

_SYNC_THREADS = 16
#: bytes that are worth telling the system to write them
_SENT_BYTES = 4 << 20


@dataclass(frozen=True)
class WrittenFile:
    """A finished file. It travels from the task to the driver as text."""

    #: relative to the target's folder
    path: str
    rows: int
    n_bytes: int
    #: partition columns and their values as text; None is null
    partition: tuple[tuple[str, str | None], ...] = ()
    #: JSON in Delta's form, "" where nobody wants it
    stats: str = ""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> WrittenFile:
        fields = json.loads(text)
        fields["partition"] = tuple((name, value) for name, value in fields["partition"])
        return WrittenFile(**fields)


class FileWriter:
    """Writes the rows of one task. After an error, or `discard`, none of its files is left.

    Used in a `with` block, it discards what was not finished.
    """

    def __init__(self, target: Target, schema: pa.Schema, part: int = 0) -> None:
        self.target = target
        self._shape = Shaping(schema, target.arrow_schema())
        self._stored = target.arrow_schema()
        self._files_schema = target.file_schema()
        # Two attempts at a task must not meet in one file.
        self._stem = f"{target.prefix}-{part:05d}-{secrets.token_hex(8)}"
        self._folder = Path(target.folder)
        self._gathered = _Held()
        self._held: dict[Values, _Held] = {}
        self._held_bytes = 0
        #: how files are written, known from the first rows on
        self._writer_options: dict[str, Any] | None = None
        #: in the order in which they were opened
        self._open: dict[Values, _OpenFile] = {}
        self._count = 0
        self._written: list[WrittenFile] = []
        self._paths: list[Path] = []
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.discard()

    def write(self, batch: pa.RecordBatch) -> None:
        """Take rows; they may wait in memory until there are enough for a row group."""
        with self._guarded():
            if not batch.num_rows:
                return
            self._gathered.add(self._shape(batch))
            if self._gathered.n_bytes >= self.target.row_group_bytes:
                self._take_gathered()

    def write_file_rows(self, rows: pa.Table, values: Values) -> None:
        """Take rows as files have them, all of one combination of partition values."""
        with self._guarded():
            self._hold(values, rows)

    def finish(self) -> list[WrittenFile]:
        """Write what waits and make all files safe against a power cut, where that is wanted."""
        with self._guarded():
            self._take_gathered()
            for values in list(self._held):
                self._flush(values)
            if self.target.writes_empty and not self._written and not self._open:
                self._opened((), self._files_schema.empty_table())
            for values in list(self._open):
                self._close(values)
            if self.target.durable:
                self._sync()
            self._closed = True
        return self._written

    def _sync(self) -> None:
        _sync_all(self._paths)
        # Folders that this writer made are entries of those above them.
        folders = {place for path in self._paths for place in path.parents if self._folder in (place, *place.parents)}
        _sync_all(sorted(folders))

    def discard(self) -> None:
        """Remove what was written, unless it is finished."""
        if self._closed:
            return
        self._closed = True
        for file in self._open.values():
            file.abandon()
        for path in self._paths:
            with suppress(OSError):
                path.unlink(missing_ok=True)
        self._gathered, self._held, self._open, self._written = _Held(), {}, {}, []

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        if self._closed:
            raise StoreError(f"the files in {self._folder} are finished or given up: begin again with a new writer")
        try:
            yield
        except BaseException as error:
            self.discard()
            if isinstance(error, OSError | pa.ArrowException) and not isinstance(error, SemiStreamError):
                reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
                raise StoreError(
                    f"files in {self._folder} cannot be written ({reason}): see to the disk and try again; what was "
                    "begun is removed"
                ) from error
            raise

    def _take_gathered(self) -> None:
        gathered, self._gathered = self._gathered, _Held()
        if not gathered.n_bytes and not gathered.pieces:
            return
        table = pa.Table.from_batches(gathered.pieces, self._stored)
        if not self.target.partition_by:
            self._write((), table)
            return
        names, keeps = self.target.partition_by, self.target.keeps_partition_columns
        for values, rows in divide(table, names, empty_is_null=not keeps):
            self._hold(values, rows if keeps else rows.select(self._files_schema.names))

    def _hold(self, values: Values, rows: pa.Table) -> None:
        held = self._held.setdefault(values, _Held())
        before = held.n_bytes
        held.add(rows)
        self._held_bytes += held.n_bytes - before
        if held.n_bytes >= self.target.row_group_bytes:
            self._flush(values)
        while self._held_bytes > self.target.held_bytes:
            self._flush(max(self._held, key=lambda one: self._held[one].n_bytes))

    def _flush(self, values: Values) -> None:
        held = self._held.pop(values)
        self._held_bytes -= held.n_bytes
        self._write(values, pa.concat_tables(held.pieces))

    def _write(self, values: Values, rows: pa.Table) -> None:
        file = self._opened(values, rows)
        file.write(rows, self.target.row_group_bytes)
        if file.n_bytes >= self.target.file_bytes:
            self._close(values)

    def _opened(self, values: Values, rows: pa.Table) -> _OpenFile:
        found = self._open.get(values)
        if found is not None:
            return found
        if len(self._open) >= self.target.open_files:
            self._close(next(iter(self._open)))
        if self._writer_options is None:
            self._writer_options = CHOICES.options(self.target, rows)
        names = self.target.partition_by if values else ()
        path = self._folder / folder_of(names, values) / f"{self._stem}-{self._count:04d}{self.target.suffix}"
        self._count += 1
        path.parent.mkdir(parents=True, exist_ok=True)
        self._paths.append(path)
        self._open[values] = _OpenFile(path, self._files_schema, self._writer_options, self.target)
        return self._open[values]

    def _close(self, values: Values) -> None:
        file = self._open.pop(values)
        file.close()
        stats = ""
        if self.target.wants_stats:
            stats = delta_stats(self._files_schema, pq.read_metadata(file.path), file.with_nan)
        partition = tuple(zip(self.target.partition_by, values, strict=True)) if values else ()
        path = str(file.path.relative_to(self._folder))
        self._written.append(WrittenFile(path, file.rows, file.path.stat().st_size, partition, stats))


def _sync_all(paths: Sequence[Path]) -> None:
    """Make them survive a power cut; several at once, as file systems write their journals for many together."""
    if len(paths) <= 2:
        for path in paths:
            sync(path)
        return
    with ThreadPoolExecutor(min(len(paths), _SYNC_THREADS)) as pool:
        list(pool.map(sync, paths))


def require_whole(path: Path, file: WrittenFile) -> None:
    """Refuse a file that is not as its writer left it: a row that is lost here is lost for good."""
    try:
        found = path.stat().st_size
    except OSError as error:
        raise StoreError(f"{path} was written for this batch and is gone ({error.strerror}): try it again") from error
    if found != file.n_bytes:
        raise StoreError(f"{path} has {found} bytes, and {file.n_bytes} were written: try the batch again")


@dataclass
class _Held:
    """Rows that wait."""

    pieces: list[pa.RecordBatch | pa.Table] = field(default_factory=list)
    n_bytes: int = 0

    def add(self, rows: pa.RecordBatch | pa.Table) -> None:
        self.pieces.append(rows)
        self.n_bytes += rows.nbytes


class _OpenFile:
    """A Parquet file that grows by row groups."""

    def __init__(self, path: Path, schema: pa.Schema, options: Mapping[str, Any], target: Target) -> None:
        self.path = path
        self.with_nan: set[str] = set()
        self._floats = [one.name for one in schema if target.wants_stats and pa.types.is_floating(one.type)]
        self._durable = target.durable
        #: where the bytes begin that the system has not been told to write
        self._unsent = 0
        self.rows = 0
        self._sink = pa.OSFile(str(path), "wb")
        try:
            self._writer = pq.ParquetWriter(self._sink, schema, **options)
        except BaseException:
            self._sink.close()
            raise

    @property
    def n_bytes(self) -> int:
        return int(self._sink.tell())

    def write(self, rows: pa.Table, row_group_bytes: int) -> None:
        """Add row groups of about this size."""
        for name in self._floats:
            if name not in self.with_nan and pc.any(pc.is_nan(rows.column(name))).as_py():
                self.with_nan.add(name)
        self.rows += rows.num_rows
        groups = max(1, round(rows.nbytes / row_group_bytes))
        self._writer.write_table(rows, row_group_size=max(1, -(-rows.num_rows // groups)))
        if self._durable and self.n_bytes - self._unsent >= _SENT_BYTES:
            self._send()

    def _send(self) -> None:
        """Have the system begin to write what is in its memory, so that the sync at the end finds less to do.

        It does so when it is told that pages will not be needed. It lets go of those that are on disk, so that every
        page is named once, while it is not.
        """
        start, self._unsent = self._unsent, self.n_bytes
        if hasattr(os, "posix_fadvise"):
            with suppress(OSError):
                os.posix_fadvise(self._sink.fileno(), start, self._unsent - start, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        self._writer.close()
        self._sink.close()

    def abandon(self) -> None:
        # Whatever it says: pyarrow has more than one error for a file that could not be written.
        with suppress(Exception):
            self._writer.close()
        # Otherwise it tries once more when it is collected.
        self._writer.is_open = False
        with suppress(OSError, pa.ArrowException):
            self._sink.close()
