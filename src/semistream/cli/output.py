"""The output of a join as Parquet, which appears whole or not at all."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pyarrow as pa
import pyarrow.parquet as pq

from semistream.errors import ConfigError

#: Output is gathered to row groups of about this size, and in a folder to part files of about that size.
ROW_GROUP_BYTES = 16 << 20
PART_BYTES = 512 << 20


class ParquetOutput:
    """A Parquet file or folder that gets its name only when it is complete.

    Everything is written beside the final place under a hidden name; leaving `opened` without `finish`
    removes it, whatever the reason.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.as_folder = path.suffix != ".parquet"
        if os.path.lexists(path):
            raise ConfigError(f"--out {path} exists; remove it or choose another name")
        parent = path.absolute().parent
        if not parent.is_dir():
            raise ConfigError(f"--out {path}: the folder {parent} does not exist; make it first")
        self._scratch = parent / f".{path.name}.{os.getpid()}-{os.urandom(4).hex()}.tmp"
        self._schema: pa.Schema = pa.schema([])
        self._writer: pq.ParquetWriter | None = None
        self._parts = 0
        self._part_bytes = 0
        self._held: list[pa.RecordBatch] = []
        self._held_bytes = 0

    @contextlib.contextmanager
    def opened(self, schema: pa.Schema) -> Iterator[Self]:
        self._schema = schema
        try:
            if self.as_folder:
                self._scratch.mkdir()
            self._next_part()
            yield self
        finally:
            self._discard()

    @contextlib.contextmanager
    def folder(self) -> Iterator[Path]:
        """A folder beside the final place for others to write part files in; gone at the end."""
        place = self._scratch.with_suffix(".parts.tmp")
        try:
            place.mkdir()
            yield place
        finally:
            shutil.rmtree(place, ignore_errors=True)

    def take_over(self, folder: Path) -> None:
        """Make the Parquet files in such a folder the output: under this class's names, or as one file."""
        parts = sorted(folder.glob("[!._]*.parquet"))
        with self.opened(pq.read_schema(parts[0])):
            if self.as_folder:
                # The part that was begun is empty, and overwritten by the first of these.
                self._close_part()
                for number, part in enumerate(parts):
                    part.rename(self._scratch / f"part-{number:05d}.parquet")
            else:
                for part in parts:
                    with pq.ParquetFile(part) as file:
                        for batch in file.iter_batches():
                            self.write(batch)
            self.finish()

    def write(self, batch: pa.RecordBatch) -> None:
        self._held.append(batch)
        self._held_bytes += batch.nbytes
        if self._held_bytes >= ROW_GROUP_BYTES:
            self._flush()

    def finish(self) -> None:
        """Close the last part and give the output its name; a name taken meanwhile is not overwritten."""
        self._flush()
        self._close_part()
        if os.path.lexists(self.path):
            raise ConfigError(f"--out {self.path} appeared while the join ran; it was left as it is")
        self._scratch.rename(self.path)

    def _flush(self) -> None:
        if not self._held:
            return
        if self.as_folder and self._part_bytes >= PART_BYTES:
            self._next_part()
        if self._writer is None:
            raise ConfigError(f"--out {self.path} is not open")
        self._writer.write_table(pa.Table.from_batches(self._held, self._schema))
        self._part_bytes += self._held_bytes
        self._held, self._held_bytes = [], 0

    def _next_part(self) -> None:
        self._close_part()
        place = self._scratch / f"part-{self._parts:05d}.parquet" if self.as_folder else self._scratch
        self._writer = pq.ParquetWriter(place, self._schema)
        self._parts += 1
        self._part_bytes = 0

    def _close_part(self) -> None:
        if self._writer is not None:
            writer, self._writer = self._writer, None
            writer.close()

    def _discard(self) -> None:
        with contextlib.suppress(OSError, pa.ArrowException):
            self._close_part()
        if self._scratch.is_dir():
            shutil.rmtree(self._scratch, ignore_errors=True)
        else:
            self._scratch.unlink(missing_ok=True)
