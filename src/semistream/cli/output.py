"""The output of a join as Parquet, which appears whole or not at all."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Self

import pyarrow as pa

from semistream.cli.replacing import check_replaceable, take_place
from semistream.errors import ConfigError

if TYPE_CHECKING:
    from semistream.lake.files import FileWriter

#: Output is gathered to row groups of about this size (less if the budget is small), and in a folder to part files of
#: about that size.
ROW_GROUP_BYTES = 16 << 20
LEAST_ROW_GROUP_BYTES = 1 << 20
PART_BYTES = 512 << 20
#: Quick, and known to every reader.
CODEC = "snappy"
#: Rows that are gathered, and as many that wait for that, are at most half of the budget.
_ROW_GROUP_PART = 4
_OTHER_ENDINGS = """
    7z arrow arrows avro bz2 csv db delta dta duckdb feather gz h5 hdf5 html ipc json jsonl lz4 ndjson orc parq pickle
    pkl pq psv sqlite sqlite3 tar tgz tsv txt xls xlsx xml xz zip zst
"""
#: Endings of other kinds of files: whoever asks for one expects no folder of Parquet under that name.
OTHER_ENDINGS = frozenset(_OTHER_ENDINGS.split())


class ParquetOutput:
    """A Parquet file or folder that gets its name only when it is complete.

    Everything is written beside the final place under a hidden name; leaving `opened` without `finish`
    removes it, whatever the reason. Rows that wait to be written are at most a quarter of the budget of the join.
    """

    def __init__(self, path: Path, budget_bytes: int | None = None, *, overwrite: bool | None = None) -> None:
        """`overwrite` says whether what is there may be replaced; None: the command offers no such thing."""
        self.path = path
        self.row_group_bytes = ROW_GROUP_BYTES
        if budget_bytes is not None:
            self.row_group_bytes = min(ROW_GROUP_BYTES, max(LEAST_ROW_GROUP_BYTES, budget_bytes // _ROW_GROUP_PART))
        self.as_folder = path.suffix != ".parquet"
        ending = path.suffix.lower().removeprefix(".")
        if self.as_folder and (ending in OTHER_ENDINGS or ending == "parquet"):
            raise ConfigError(
                f"--out {path} ends in {path.suffix}, but the output is Parquet; allowed are a name that ends in "
                ".parquet (one file) and the name of a folder, without the ending of a file"
            )
        self._replaces = os.path.lexists(path)
        if self._replaces and not overwrite:
            other = "" if overwrite is None else ", or replace it with --overwrite"
            raise ConfigError(f"--out {path} exists; remove it or choose another name{other}")
        if self._replaces:
            check_replaceable(path, as_folder=self.as_folder)
        parent = path.absolute().parent
        if not parent.is_dir():
            raise ConfigError(f"--out {path}: the folder {parent} does not exist; make it first")
        self._scratch = parent / f".{path.name}.{os.getpid()}-{os.urandom(4).hex()}.tmp"
        self._parts = self._scratch.with_suffix(".parts.tmp")
        self._writer: FileWriter | None = None

    @contextlib.contextmanager
    def opened(self, schema: pa.Schema) -> Iterator[Self]:
        from semistream.lake.files import FileWriter
        from semistream.lake.target import Target

        target = Target(
            str(self._parts),
            schema.serialize().to_pybytes(),
            file_bytes=PART_BYTES if self.as_folder else sys.maxsize,
            row_group_bytes=self.row_group_bytes,
            writes_empty=True,
            codec=CODEC,
            durable=False,
        )
        try:
            self._parts.mkdir()
            with FileWriter(target, schema) as self._writer:
                yield self
        finally:
            self._discard()

    @contextlib.contextmanager
    def folder(self) -> Iterator[Path]:
        """A folder beside the final place for others to write part files in; gone at the end."""
        place = self._parts
        try:
            place.mkdir()
            yield place
        finally:
            self._discard()
            shutil.rmtree(place, ignore_errors=True)

    def take_over(self, folder: Path) -> None:
        """Make the Parquet files in such a folder the output: under this class's names, or as one file."""
        import pyarrow.parquet as pq

        parts = sorted(folder.glob("[!._]*.parquet"))
        if self.as_folder:
            self._name(parts)
            return
        self._parts = self._scratch.with_suffix(".one.tmp")
        with self.opened(pq.read_schema(parts[0])):
            for part in parts:
                with pq.ParquetFile(part) as file:
                    for batch in file.iter_batches():
                        self.write(batch)
            self.finish()

    def write(self, batch: pa.RecordBatch) -> None:
        if self._writer is None:
            raise ConfigError(f"--out {self.path} is not open")
        self._writer.write(batch)

    def finish(self) -> None:
        """Close the last part and give the output its name; a name taken meanwhile is not overwritten."""
        if self._writer is None:
            raise ConfigError(f"--out {self.path} is not open")
        self._name([self._parts / file.path for file in self._writer.finish()])

    def _name(self, parts: list[Path]) -> None:
        if self.as_folder:
            self._scratch.mkdir()
            for number, part in enumerate(parts):
                part.rename(self._scratch / f"part-{number:05d}.parquet")
        else:
            parts[0].rename(self._scratch)
        if self._replaces and os.path.lexists(self.path):
            # Somebody may have put other things there while the join ran.
            check_replaceable(self.path, as_folder=self.as_folder)
            take_place(self._scratch, self.path)
            return
        if os.path.lexists(self.path):
            raise ConfigError(f"--out {self.path} appeared while the join ran; it was left as it is")
        self._scratch.rename(self.path)

    def _discard(self) -> None:
        self._writer = None
        for place in (self._parts, self._scratch):
            if place.is_dir():
                shutil.rmtree(place, ignore_errors=True)
            else:
                place.unlink(missing_ok=True)
