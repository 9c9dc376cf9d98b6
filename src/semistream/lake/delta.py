"""A Delta table: the files of a batch become rows by one entry of its log, with the query's id and the batch's number.

The log refuses a second entry of a query that was not seen by the writer (delta-rs compares the ids), so a batch is
committed once even if two processes try at the same time. Files of attempts that came to nothing lie in the table's
folder, where no reader of a Delta table sees them, until they are cleaned up.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from semistream.errors import ConfigError, SchemaError, StoreError
from semistream.lake.compact import merged_small
from semistream.lake.files import WrittenFile, require_whole
from semistream.lake.leftovers import is_old_file, remove_files
from semistream.lake.partitions import check_partition_columns
from semistream.lake.place import local_folder, require_format, require_same_columns, require_same_partitions
from semistream.lake.rows import stored_schema
from semistream.lake.table import FILE_NAME, SKIPPED, Committed, LakeTable, Options, is_once
from semistream.lake.target import Target
from semistream.lake.types import delta_schema
from semistream.sealed import sync

if TYPE_CHECKING:
    from deltalake import DeltaTable

#: conflicts with other writers in a row, after which a commit is given up
_ATTEMPTS = 20
#: what Delta's column names must not hold, as long as a table does not map them
_FORBIDDEN = re.compile(r"[ ,;{}()\n\t=]")
#: rules about rows that only an engine which evaluates SQL can keep
_RULES = ("delta.generationExpression", "delta.invariants", "delta.identity.")


class DeltaFolder(LakeTable):
    """A Delta table in a folder."""

    format = "delta"

    def __init__(self, path: str, options: Options | None = None) -> None:
        self.folder = local_folder(path)
        super().__init__(str(self.folder), options)
        _package()
        self._table: DeltaTable | None = None
        self._entry_seen: tuple[int, int] | None = None
        self._wanted: pa.Schema | None = None

    # ------------------------------------------------------------------------------------- before the first batch

    def prepare(self, schema: pa.Schema, partition_by: Sequence[str] = ()) -> None:
        wanted = delta_schema(stored_schema(schema))
        check_partition_columns(wanted, partition_by)
        _check_names(wanted.names)
        require_format(self.folder, "delta")
        deltalake = _package()
        if not deltalake.DeltaTable.is_deltatable(str(self.folder)):
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                sync(self.folder.parent)
                # Of two that create it one does, and both look at what is there.
                deltalake.DeltaTable.create(
                    str(self.folder), wanted, mode="ignore", partition_by=list(partition_by) or None
                )
                self._sync_log(0, 0)
            except (OSError, deltalake.exceptions.DeltaError) as error:
                raise StoreError(f"the Delta table {self.folder} cannot be created ({error})") from error
        self._wanted, self._partition_by = wanted, tuple(partition_by)
        self._load()
        self._check()

    def _check(self) -> None:
        """Refuse a table that does not take the rows as they are."""
        table, wanted = self._loaded(), self._wanted
        assert wanted is not None
        where = f"the Delta table {self.folder}"
        found = pa.schema(table.schema().to_arrow())
        require_same_columns(found, wanted, where)
        require_same_partitions(tuple(table.metadata().partition_columns), self._partition_by, where)
        settings = table.metadata().configuration
        rules = [name for name in settings if name.startswith("delta.constraints.")]
        if settings.get("delta.columnMapping.mode", "none") != "none":
            rules.append("delta.columnMapping.mode")
        for field in table.schema().fields:
            rules += [f"{name} of {field.name!r}" for name in field.metadata if name.startswith(_RULES)]
        if rules:
            raise ConfigError(
                f"{where} has rules that this writer cannot keep: {', '.join(rules)}; write it with Spark "
                "(writer='spark'), or choose another table"
            )
        fields = {field.name: field for field in wanted}
        nullable = {field.name: field.nullable for field in found}
        self._schema = pa.schema([fields[name].with_nullable(nullable[name]) for name in found.names])

    # ------------------------------------------------------------------------------------- for every batch

    def done(self, app: str, batch: int) -> bool:
        self._load()
        return self._has(app, batch)

    def _has(self, app: str, batch: int) -> bool:
        if is_once(app):
            return False
        last = self._loaded().transaction_version(app)
        return last is not None and last >= batch

    def target(self, app: str, batch: int) -> Target:
        return self._new_target(app, batch, self.folder, wants_stats=True)

    def commit(self, app: str, batch: int, files: Sequence[WrittenFile]) -> Committed:
        target = self._taken_target(app, batch)
        if self.done(app, batch):
            return SKIPPED
        # Another writer may have changed the columns since.
        self._check()
        merged: list[WrittenFile] = []
        if self._options.compact:
            files, merged = merged_small(target, files)
        for file in files:
            require_whole(self.folder / file.path, file)
        deltalake = _package()
        before = self._loaded().version()
        for attempt in range(_ATTEMPTS):
            try:
                self._commit_once(app, batch, files)
                break
            except deltalake.exceptions.CommitFailedError as error:
                if attempt == _ATTEMPTS - 1:
                    raise StoreError(
                        f"batch {batch} met {_ATTEMPTS} conflicts in a row with other writers of the Delta table "
                        f"{self.folder} ({error}): start the query again when they are done"
                    ) from error
                self._load()
                if self._has(app, batch):
                    return SKIPPED
                self._check()
            except (OSError, deltalake.exceptions.DeltaError) as error:
                raise StoreError(
                    f"batch {batch} cannot be committed to the Delta table {self.folder} ({error}): see to the cause "
                    "and start the query again; if the commit came through it is not made again"
                ) from error
        self._load()
        version = self._loaded().version()
        self._sync_log(before + 1, version)
        remove_files(self.folder / file.path for file in merged)
        return Committed.of(files, version)

    def _commit_once(self, app: str, batch: int, files: Sequence[WrittenFile]) -> None:
        from deltalake.transaction import AddAction, CommitProperties, RemoveAction, Transaction

        adds: list[AddAction | RemoveAction] = [
            AddAction(
                path=file.path,
                size=file.n_bytes,
                partition_values=dict(file.partition),
                modification_time=int((self.folder / file.path).stat().st_mtime * 1000),
                data_change=True,
                stats=file.stats,
            )
            for file in files
        ]
        self._loaded().create_write_transaction(
            adds,
            "append",
            self._loaded().schema(),
            list(self._partition_by) or None,
            commit_properties=CommitProperties(
                custom_metadata={"semistream": {"app": app, "batch": str(batch)}},
                app_transactions=None if is_once(app) else [Transaction(app, batch)],
            ),
        )

    def _load(self) -> None:
        """See the newest version."""
        deltalake = _package()
        try:
            # The entry that was the last one must be there still: another table may have taken the place of this one.
            if self._table is None or self._entry_seen != self._entry():
                self._table = deltalake.DeltaTable(str(self.folder))
            else:
                self._table.update_incremental()
            self._entry_seen = self._entry()
        except (OSError, deltalake.exceptions.DeltaError) as error:
            raise StoreError(f"the Delta table {self.folder} cannot be read ({error})") from error

    def _entry(self) -> tuple[int, int] | None:
        """What tells the file of the last entry that was read from others of its name."""
        path = self.folder / "_delta_log" / f"{self._loaded().version():020d}.json"
        try:
            found = path.stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns

    def _loaded(self) -> DeltaTable:
        if self._table is None:
            self._load()
        assert self._table is not None
        return self._table

    def _sync_log(self, first: int, last: int) -> None:
        """Make entries of the log survive a power cut."""
        log = self.folder / "_delta_log"
        try:
            for version in range(first, last + 1):
                path = log / f"{version:020d}.json"
                if path.exists():
                    sync(path)
            sync(log)
            sync(self.folder)
        except OSError as error:
            raise StoreError(
                f"the log of the Delta table {self.folder} is not safe on disk ({error.strerror}): see to the disk and "
                "start again; what is in it is not committed again"
            ) from error

    # ------------------------------------------------------------------------------------- cleaning up

    def clean(self, older_than_s: float, dry_run: bool = False) -> list[str]:
        deltalake = _package()
        if not deltalake.DeltaTable.is_deltatable(str(self.folder)):
            raise ConfigError(f"{self.folder} is no Delta table")
        self._load()
        table = self._loaded()
        # Before the log is read: what is committed after that is younger than what was found here.
        found = {path for path in self.folder.rglob("*.parquet") if FILE_NAME.match(path.name)}
        self._load()
        unused = table.vacuum(0, dry_run=True, enforce_retention_duration=False, full=True)
        # Files that were rows once are needed to see older versions; they are for Delta's own vacuum.
        removed = table.vacuum(0, dry_run=True, enforce_retention_duration=False, full=False)
        orphans = {self.folder / path for path in unused} - {self.folder / path for path in removed}
        old = [path for path in sorted(found & orphans) if is_old_file(path, older_than_s)]
        if not dry_run:
            remove_files(old)
        return [str(path) for path in old]


def _check_names(names: Sequence[str]) -> None:
    for name in names:
        if _FORBIDDEN.search(name):
            raise SchemaError(
                f"column {name!r} cannot be a column of a Delta table: no name may hold a space or one of ,;{{}}()= "
                "or a line break; rename it"
            )
    folded: dict[str, str] = {}
    for name in names:
        if name.lower() in folded:
            raise SchemaError(
                f"columns {folded[name.lower()]!r} and {name!r} differ in case only, which Delta takes for the same "
                "name; rename one"
            )
        folded[name.lower()] = name


def _package() -> Any:
    try:
        import deltalake
        import deltalake.exceptions
    except ImportError as error:
        raise ConfigError(
            f"format='delta' needs the package deltalake ({error}): pip install 'semistream[delta]'"
        ) from error
    return deltalake
