"""A table of a lake: it takes the files of a batch over in one step, and a batch that it has it does not take again.

task:    batches of rows -> FileWriter -> [WrittenFile]
driver:  prepare(schema, partition_by)                 once; creates the table, or refuses what does not fit
         done(app, batch)?                             then the batch is skipped
         target(app, batch) -> Target                  for the tasks of this attempt
         commit(app, batch, files)                     all rows of the batch, or none
"""

from __future__ import annotations

import re
import secrets
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from semistream.errors import BudgetError, ConfigError
from semistream.lake.files import WrittenFile
from semistream.lake.target import FILE_BYTES, ROW_GROUP_BYTES, Target
from semistream.sealed import digest
from semistream.spec import parse_bytes

FORMATS = ("parquet", "delta", "iceberg")
#: begins the ids of jobs that write one batch and never come back, so that no table has to remember them
_ONCE = "once-"
#: names of files that tasks wrote for a table
FILE_NAME = re.compile(r"part-[0-9a-f]{16}-b[0-9]{12}-[0-9]{5,}-[0-9a-f]{16}-[0-9]{4,}\.parquet")


def fresh_app() -> str:
    """An id for a job that writes one batch (number 0) and is not attempted again under this id."""
    return _ONCE + secrets.token_hex(8)


def is_once(app: str) -> bool:
    """Whether `fresh_app` made an id."""
    return app.startswith(_ONCE)


def file_prefix(app: str, batch: int) -> str:
    """How the names of a batch's files begin."""
    return f"part-{app_token(app)}-b{batch:012d}"


def app_token(app: str) -> str:
    """An id as part of a file name."""
    return digest(app.encode())[:16]


@dataclass(frozen=True)
class Committed:
    """What a commit did."""

    #: the table's version of it, where the format has versions
    version: int | None
    files: int
    rows: int
    n_bytes: int
    #: the batch was there already: its files were not taken
    skipped: bool = False

    @staticmethod
    def of(files: Sequence[WrittenFile], version: int | None = None) -> Committed:
        return Committed(version, len(files), sum(file.rows for file in files), sum(file.n_bytes for file in files))


SKIPPED = Committed(None, 0, 0, 0, skipped=True)


@dataclass(frozen=True)
class Options:
    """What can be said about the files of a table."""

    file_bytes: int = FILE_BYTES
    row_group_bytes: int = ROW_GROUP_BYTES
    #: whether the many small files of a batch are merged before the commit
    compact: bool = True

    @staticmethod
    def make(options: Mapping[str, Any], also: Sequence[str] = ()) -> Options:
        """Read `file_size`, `row_group_size` and `compact`; what else there may be is in `also`."""
        allowed = ("file_size", "row_group_size", "compact", *also)
        for name in options:
            if name not in allowed:
                raise ConfigError(f"{name!r} is no option of this table; allowed are {', '.join(allowed)}")
        compact = options.get("compact", True)
        if not isinstance(compact, bool):
            raise ConfigError(f"compact={compact!r} is neither True nor False")
        sizes = {name: _size(name, options[name]) for name in ("file_size", "row_group_size") if name in options}
        file_bytes = sizes.get("file_size", FILE_BYTES)
        return Options(file_bytes, min(sizes.get("row_group_size", ROW_GROUP_BYTES), file_bytes), compact)


def _size(name: str, value: Any) -> int:
    try:
        return parse_bytes(value)
    except BudgetError as error:
        raise ConfigError(
            f"{name}={value!r} is not a size; write a number of bytes or a text such as '128MB'"
        ) from error


class LakeTable(ABC):
    """A table of one format. Only the driver has one; it is not thread-safe."""

    format: str

    def __init__(self, name: str, options: Options | None) -> None:
        #: what errors call it
        self.name = name
        self._options = options or Options()
        #: the rows as they are stored, and by which columns they are divided; known when the table is prepared
        self._schema: pa.Schema | None = None
        self._partition_by: tuple[str, ...] = ()
        self._targets: dict[tuple[str, int], Target] = {}

    def _new_target(self, app: str, batch: int, folder: Path, **own: Any) -> Target:
        """A target in a folder, with what is the format's `own`; it is that of the batch until its commit."""
        target = Target(
            str(folder),
            self._prepared().serialize().to_pybytes(),
            prefix=file_prefix(app, batch),
            partition_by=self._partition_by,
            file_bytes=self._options.file_bytes,
            row_group_bytes=self._options.row_group_bytes,
            origin=f"{self.name} {app_token(app)}",
            **own,
        )
        self._targets[app, batch] = target
        return target

    def _prepared(self) -> pa.Schema:
        if self._schema is None:
            raise ConfigError(f"{self.name} is not prepared: call prepare with the schema of the rows first")
        return self._schema

    def _taken_target(self, app: str, batch: int) -> Target:
        """The target of the latest attempt at a batch, which is over."""
        target = self._targets.pop((app, batch), None)
        if target is None:
            raise ConfigError(f"batch {batch} has no target: ask for one before its files are written")
        return target

    @abstractmethod
    def prepare(self, schema: pa.Schema, partition_by: Sequence[str] = ()) -> None:
        """Create the table for rows of this schema, or check that the one that is there takes them."""

    @abstractmethod
    def done(self, app: str, batch: int) -> bool:
        """Whether a batch is committed; one whose commit was cut short is completed here."""

    @abstractmethod
    def target(self, app: str, batch: int) -> Target:
        """Where the tasks of a new attempt at a batch write; after `prepare`."""

    @abstractmethod
    def commit(self, app: str, batch: int, files: Sequence[WrittenFile]) -> Committed:
        """Make the files of an attempt part of the table, all or none; a batch without files is done as well.

        Files that were written to the target and are not named here (of attempts at a task that failed) are left out.
        """

    @abstractmethod
    def clean(self, older_than_s: float, dry_run: bool = False) -> list[str]:
        """Remove files that were written and never committed, if they are older than this; their paths."""


def open_table(path: str, format: str = "parquet", options: Mapping[str, Any] | None = None) -> LakeTable:
    """The table at a path (of Iceberg: the table of that name), whether or not it exists yet."""
    options = dict(options or {})
    # Each needs a package of its own, which only its users have.
    if format == "parquet":
        from semistream.lake.parquet import ParquetFolder

        return ParquetFolder(path, Options.make(options))
    if format == "delta":
        from semistream.lake.delta import DeltaFolder

        return DeltaFolder(path, Options.make(options))
    if format == "iceberg":
        from semistream.lake.iceberg import IcebergTable

        catalog = options.pop("catalog", None)
        return IcebergTable(path, catalog, Options.make(options, ["catalog"]))
    raise ConfigError(f"format={format!r} is unknown; allowed are {', '.join(FORMATS)}")
