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

#: Output is gathered to row groups of about this size (less if the budget is small), and in a folder to part files of
#: about that size.
ROW_GROUP_BYTES = 16 << 20
LEAST_ROW_GROUP_BYTES = 1 << 20
PART_BYTES = 512 << 20
#: While the writer still hopes for a dictionary it keeps a hash table of the column's values, which takes up to 24 ×
#: the bytes of the dictionary. In a row group of that size a larger dictionary than this saves little.
DICTIONARY_BYTES = 128 << 10
_OTHER_ENDINGS = """
    7z arrow arrows avro bz2 csv db delta dta duckdb feather gz h5 hdf5 html ipc json jsonl lz4 ndjson orc parq pickle
    pkl pq psv sqlite sqlite3 tar tgz tsv txt xls xlsx xml xz zip zst
"""
#: Endings of other kinds of files: whoever asks for one expects no folder of Parquet under that name.
OTHER_ENDINGS = frozenset(_OTHER_ENDINGS.split())


class ParquetOutput:
    """A Parquet file or folder that gets its name only when it is complete.

    Everything is written beside the final place under a hidden name; leaving `opened` without `finish`
    removes it, whatever the reason. Rows that wait to be written are at most half of the budget of the join.
    """

    def __init__(self, path: Path, budget_bytes: int | None = None) -> None:
        self.path = path
        self._row_group_bytes = ROW_GROUP_BYTES
        if budget_bytes is not None:
            self._row_group_bytes = min(ROW_GROUP_BYTES, max(LEAST_ROW_GROUP_BYTES, budget_bytes // 2))
        self.as_folder = path.suffix != ".parquet"
        ending = path.suffix.lower().removeprefix(".")
        if self.as_folder and (ending in OTHER_ENDINGS or ending == "parquet"):
            raise ConfigError(
                f"--out {path} ends in {path.suffix}, but the output is Parquet; allowed are a name that ends in "
                ".parquet (one file) and the name of a folder, without the ending of a file"
            )
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
        if self._held_bytes >= self._row_group_bytes:
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
        # Rows of a row group were allocated in small pieces between others that stay: the allocator would keep them.
        pa.default_memory_pool().release_unused()

    def _next_part(self) -> None:
        self._close_part()
        place = self._scratch / f"part-{self._parts:05d}.parquet" if self.as_folder else self._scratch
        self._writer = pq.ParquetWriter(place, self._schema, dictionary_pagesize_limit=DICTIONARY_BYTES)
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
