"""An Iceberg table: the files of a batch become rows by one snapshot, with the query and the batch in its properties.

The last batch of a query also stands among the table's properties, set in the same commit: snapshots expire, and a
query that was stopped for longer than that must still know its last batch. A commit names the snapshot it follows, so
of two processes that commit a batch at the same time one is refused, looks again and finds it there.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pyarrow as pa

from semistream.errors import ConfigError, StoreError
from semistream.lake.compact import merged_small
from semistream.lake.files import WrittenFile, require_whole
from semistream.lake.leftovers import is_old_file, remove_files
from semistream.lake.partitions import check_partition_columns
from semistream.lake.place import require_same_columns, require_same_partitions
from semistream.lake.rows import stored_schema
from semistream.lake.table import FILE_NAME, SKIPPED, Committed, LakeTable, Options, app_token, is_once
from semistream.lake.target import Target
from semistream.lake.types import iceberg_schema
from semistream.sealed import sync

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

_ATTEMPTS = 20
_RETRIES = "commit.retry.num-retries"
_METRICS = "write.metadata.metrics."


class IcebergTable(LakeTable):
    """A table that an Iceberg catalog knows by name, with its files in a folder that this machine has mounted."""

    format = "iceberg"

    def __init__(self, name: str, catalog: str | Mapping[str, Any] | None, options: Options | None = None) -> None:
        if not isinstance(name, str) or name.count(".") < 1 or not all(name.split(".")):
            raise ConfigError(f"{name!r} does not name an Iceberg table; write 'namespace.table'")
        if catalog is None:
            raise ConfigError(
                f"the Iceberg table {name!r} needs the option catalog: the name of a catalog that pyiceberg knows, or "
                "a mapping of its properties such as {'type': 'sql', 'uri': 'sqlite:////data/catalog.db', "
                "'warehouse': 'file:///data/lake'}"
            )
        super().__init__(name, options)
        self._catalog = load_catalog(catalog)
        self._wanted: pa.Schema | None = None
        #: where files go, as the table calls it, and as a folder of this machine
        self._place: tuple[str, Path] | None = None

    # ------------------------------------------------------------------------------------- before the first batch

    def prepare(self, schema: pa.Schema, partition_by: Sequence[str] = ()) -> None:
        from pyiceberg.exceptions import NoSuchTableError

        wanted = iceberg_schema(stored_schema(schema))
        check_partition_columns(wanted, partition_by)
        self._wanted, self._partition_by = wanted, tuple(partition_by)
        try:
            table = self._catalog.load_table(self.name)
        except NoSuchTableError:
            self._create(wanted)
            table = self._load()
        except Exception as error:
            raise self._failed("cannot be opened", error) from error
        self._check(table)

    def _create(self, wanted: pa.Schema) -> None:
        from pyiceberg.exceptions import CommitFailedException, TableAlreadyExistsError

        try:
            self._catalog.create_namespace_if_not_exists(self.name.rpartition(".")[0])
            # One step: a table without its division could not be told from one that is meant so.
            with self._catalog.create_table_transaction(self.name, wanted) as creating:
                if self._partition_by:
                    with creating.update_spec() as spec:
                        for name in self._partition_by:
                            spec.add_identity(name)
        except (TableAlreadyExistsError, CommitFailedException):
            # Another process was first; what it made is checked as any other.
            return
        except Exception as error:
            raise self._failed("cannot be created", error) from error

    def _check(self, table: Table) -> None:
        """Refuse a table that does not take the rows as they are."""
        wanted = self._wanted
        assert wanted is not None
        where = f"the Iceberg table {self.name!r}"
        found = table.schema().as_arrow()
        require_same_columns(found, wanted, where)
        spec = table.spec()
        if any(str(field.transform) != "identity" for field in spec.fields):
            raise ConfigError(f"{where} is divided by {spec}; only columns as they are can be written here")
        by = tuple(table.schema().find_column_name(field.source_id) or "" for field in spec.fields)
        require_same_partitions(by, self._partition_by, where)
        for name in by:
            mode = table.properties.get(f"{_METRICS}column.{name}", table.properties.get(f"{_METRICS}default", ""))
            if mode.lower() in ("none", "counts"):
                raise ConfigError(
                    f"{where} keeps no bounds of {name!r} ({_METRICS}…={mode}), from which its files are divided; set "
                    f"{_METRICS}column.{name} to full"
                )
        fields = {field.name: field for field in wanted}
        self._schema = pa.schema([fields[one.name].with_nullable(one.nullable) for one in found])
        self._place = self._data_folder(table)

    def _data_folder(self, table: Table) -> tuple[str, Path]:
        """Where files go: as the table calls it, and as a folder of this machine."""
        location = table.properties.get("write.data.path") or f"{table.location().rstrip('/')}/data"
        parts = urlsplit(location)
        if parts.scheme not in ("", "file") or parts.netloc not in ("", "localhost"):
            raise ConfigError(
                f"the Iceberg table {self.name!r} has its files at {location!r}, not in a folder that this machine has "
                "mounted; only such tables can be written"
            )
        # Iceberg takes the path as it is, without undoing escapes.
        return location.rstrip("/"), Path(parts.path if parts.scheme else location)

    # ------------------------------------------------------------------------------------- for every batch

    def done(self, app: str, batch: int) -> bool:
        return not is_once(app) and self._has(self._load(), app, batch)

    def _has(self, table: Table, app: str, batch: int) -> bool:
        last = table.properties.get(_property(app))
        try:
            return last is not None and int(last) >= batch
        except ValueError as error:
            raise self._failed(f"has the property {_property(app)}={last!r}, which is no number", error) from error

    def target(self, app: str, batch: int) -> Target:
        self._prepared()
        assert self._place is not None
        folder = self._place[1]
        try:
            folder.mkdir(parents=True, exist_ok=True)
            sync(folder.parent)
        except OSError as error:
            raise StoreError(f"{folder} cannot be made ({error.strerror}): see to the disk and try again") from error
        # pyiceberg finds the partition of a file in the bounds of its columns.
        return self._new_target(app, batch, folder, keeps_partition_columns=True)

    def commit(self, app: str, batch: int, files: Sequence[WrittenFile]) -> Committed:
        target = self._taken_target(app, batch)
        if self.done(app, batch):
            return SKIPPED
        merged: list[WrittenFile] = []
        if self._options.compact:
            files, merged = merged_small(target, files)
        folder = Path(target.folder)
        for file in files:
            require_whole(folder / file.path, file)
        since = time.time()
        for attempt in range(_ATTEMPTS):
            table = self._load()
            if not is_once(app) and self._has(table, app, batch):
                return SKIPPED
            # Another writer may have changed the columns since.
            self._check(table)
            try:
                self._commit_once(table, app, batch, files)
                break
            except Exception as error:
                if not _is_conflict(error):
                    raise self._failed(
                        f"did not take batch {batch}; start the query again, and if the commit came through it is not "
                        "made again",
                        error,
                    ) from error
                if attempt == _ATTEMPTS - 1:
                    raise self._failed(
                        f"met {_ATTEMPTS} conflicts in a row with other writers; start the query again later", error
                    ) from error
                time.sleep(min(0.02 * 2**attempt, 1.0))
        table = self._load()
        self._sync_metadata(table, since)
        remove_files(folder / file.path for file in merged)
        snapshot = table.current_snapshot()
        version = None if snapshot is None else snapshot.snapshot_id
        return Committed.of(files, version)

    def _commit_once(self, table: Table, app: str, batch: int, files: Sequence[WrittenFile]) -> None:
        location = self._data_folder(table)[0]
        # pyiceberg would go on after a conflict without looking whether it was this batch that came in between.
        properties = {**table.metadata.properties, _RETRIES: "0"}
        table.metadata = table.metadata.model_copy(update={"properties": properties})
        with table.transaction() as changing:
            if not is_once(app):
                changing.set_properties({_property(app): str(batch)})
            changing.add_files(
                [f"{location}/{file.path}" for file in files],
                snapshot_properties={"semistream.app": app, "semistream.batch": str(batch)},
                # Their names are new, and the look at all files of the table would get slower with every batch.
                check_duplicate_files=False,
            )

    def _load(self) -> Table:
        try:
            return self._catalog.load_table(self.name)
        except Exception as error:
            raise self._failed("cannot be opened", error) from error

    def _sync_metadata(self, table: Table, since: float) -> None:
        """Make what a commit wrote survive a power cut."""
        parts = urlsplit(table.metadata_location)
        folder = Path(parts.path if parts.scheme else table.metadata_location).parent
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if entry.stat().st_mtime >= since - 1:
                        sync(Path(entry.path))
            sync(folder)
        except OSError as error:
            raise self._failed("has its batch, but it is not safe on disk", error) from error

    def _failed(self, what: str, error: Exception) -> StoreError:
        return StoreError(f"the Iceberg table {self.name!r} {what} ({type(error).__name__}: {error})")

    # ------------------------------------------------------------------------------------- cleaning up

    def clean(self, older_than_s: float, dry_run: bool = False) -> list[str]:
        _, folder = self._data_folder(self._load())
        # Before the table is read: what is committed after that is younger than what was found here.
        found = sorted(path for path in folder.rglob("*.parquet") if FILE_NAME.match(path.name))
        old = [path for path in found if is_old_file(path, older_than_s)]
        # Of all snapshots that there are, not of the last one only. Names are unique, wherever a table is mounted.
        known = self._load().inspect.all_files().column("file_path").to_pylist()
        used = {name.rpartition("/")[2] for name in known}
        orphans = [path for path in old if path.name not in used]
        if not dry_run:
            remove_files(orphans)
        return [str(path) for path in orphans]


def _property(app: str) -> str:
    return f"semistream.last-batch.{app_token(app)}"


def _is_conflict(error: Exception) -> bool:
    """Whether a commit did not happen because of another."""
    from pyiceberg.exceptions import CommitFailedException

    # The second is a catalog in a database that another process had locked; what came of it is looked at first.
    return isinstance(error, CommitFailedException) or type(error).__name__ == "OperationalError"


def load_catalog(catalog: str | Mapping[str, Any]) -> Catalog:
    try:
        from pyiceberg.catalog import load_catalog
    except ImportError as error:
        raise ConfigError(
            f"format='iceberg' needs the package pyiceberg ({error}): pip install 'semistream[iceberg]'"
        ) from error
    try:
        if isinstance(catalog, str):
            return load_catalog(catalog)
        properties = {str(name): str(value) for name, value in catalog.items()}
        return load_catalog(properties.pop("name", "semistream"), **properties)
    except Exception as error:
        # Values may be secrets.
        said = repr(catalog) if isinstance(catalog, str) else f"with the properties {', '.join(catalog)}"
        raise ConfigError(f"the catalog {said} cannot be opened ({type(error).__name__}: {error})") from error
