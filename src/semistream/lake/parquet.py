"""A plain folder of Parquet files, for readers that know no log: they see committed rows only, each once.

    sales/                                      what readers see; nothing else is ever in it
      day=2024-01-01/part-<app>-b000000000012-00003-<token>-0000.parquet
    .sales.semistream/                          beside it: some readers take every file below a folder for data
      table                                     the columns, and by which of them the folder is divided
      log/<app>/000000000012.batch              the commit of batch 12: which staged files become which files
      staged/<app>/b000000000012-<token>/…      files of an attempt at a batch, under names that are not Parquet's

The file in the log is the commit: it appears whole and for good, and then the staged files get their names. Whoever
comes next after a crash completes that; a batch's folder in `staged` is there until all of its files are in place. A
batch at or below the last one in an app's log is done. All files of the log are sealed (`sealed.py`).
"""

from __future__ import annotations

import base64
import os
import secrets
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from semistream.errors import ConfigError, SchemaError, StoreError
from semistream.lake.compact import merged_small
from semistream.lake.files import WrittenFile, require_whole
from semistream.lake.partitions import check_partition_columns, folder_of
from semistream.lake.place import (
    local_folder,
    parquet_files,
    require_format,
    require_same_columns,
    require_same_partitions,
    state_folder,
)
from semistream.lake.rows import stored_schema
from semistream.lake.table import SKIPPED, Committed, LakeTable, Options, app_token, is_once
from semistream.lake.target import Target
from semistream.sealed import folder_lock, put_file, read_sealed, sealed, sync

_FORMAT = 1
_STAGED = ".staged"
_ENTRY = ".batch"
#: commits that stay in the log of an app, for people to look at; the last one is all that is needed
_KEPT_ENTRIES = 10
#: of files that others wrote so many are looked at
_LOOKED_AT = 100


class ParquetFolder(LakeTable):
    """A folder of Parquet files with a log beside it."""

    format = "parquet"

    def __init__(self, path: str, options: Options | None = None) -> None:
        self.folder = local_folder(path)
        self.state = state_folder(self.folder)
        super().__init__(str(self.folder), options)
        self._known: set[str] = set()

    # ------------------------------------------------------------------------------------- before the first batch

    def prepare(self, schema: pa.Schema, partition_by: Sequence[str] = ()) -> None:
        wanted = stored_schema(schema)
        check_partition_columns(wanted, partition_by)
        for name in partition_by:
            if name.startswith((".", "_")):
                raise SchemaError(
                    f"partition_by names {name!r}, and readers leave out folders that begin with . or _; rename it"
                )
        require_format(self.folder, "parquet")
        is_new = not self.folder.exists()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.state / "log").mkdir(parents=True, exist_ok=True)
            (self.state / "staged").mkdir(exist_ok=True)
            sync(self.state)
            sync(self.folder.parent)
        except OSError as error:
            raise StoreError(f"{self.folder} cannot be made a table ({error})") from error
        if self.folder.stat().st_dev != self.state.stat().st_dev:
            raise ConfigError(
                f"{self.folder} is a file system of its own, so that files cannot be moved into it from {self.state}; "
                "name a folder inside of it"
            )
        with self._locked():
            self._bind(wanted, tuple(partition_by), is_new)
            self._complete()

    def _bind(self, wanted: pa.Schema, partition_by: tuple[str, ...], is_new: bool) -> None:
        path = self.state / "table"
        # What is left beside a folder that was removed says nothing about the next one.
        if is_new or not path.exists():
            self._check_files(wanted, partition_by)
            content = {
                "format": _FORMAT,
                "schema": base64.b64encode(wanted.serialize().to_pybytes()).decode(),
                "partition_by": list(partition_by),
            }
            put_file(path, sealed(content)[0], replace=is_new)
        bound = _read(path)
        try:
            found = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(bound["schema"])))
        except (KeyError, ValueError, pa.ArrowException) as error:
            raise _unreadable(path, error) from error
        require_same_columns(found, wanted, f"the table {self.folder}")
        require_same_partitions(tuple(bound["partition_by"]), partition_by, str(self.folder))
        self._schema, self._partition_by = found, partition_by

    def _check_files(self, wanted: pa.Schema, partition_by: tuple[str, ...]) -> None:
        """Refuse a folder whose files have other columns, or are divided by others."""
        columns = pa.schema([field for field in wanted if field.name not in partition_by])
        for number, path in enumerate(parquet_files(self.folder)):
            folders = path.relative_to(self.folder).parts[:-1]
            by = tuple(name.partition("=")[0] for name in folders)
            names = tuple(folder_of([name], ("",)).partition("=")[0] for name in partition_by)
            if by != names:
                require_same_partitions(by, partition_by, str(path))
            if number < _LOOKED_AT:
                try:
                    found = pq.read_schema(path)
                except (OSError, pa.ArrowException) as error:
                    raise ConfigError(f"{path} is in the folder and cannot be read ({error}); remove it") from error
                require_same_columns(found, columns, str(path))

    # ------------------------------------------------------------------------------------- for every batch

    def done(self, app: str, batch: int) -> bool:
        with self._locked():
            return self._done(app, batch)

    def _done(self, app: str, batch: int) -> bool:
        last = self._last(app)
        if last is None or batch > last:
            return False
        self._complete(app)
        return True

    def target(self, app: str, batch: int) -> Target:
        self._prepared()
        folder = self._staged(app) / f"b{batch:012d}-{secrets.token_hex(8)}"
        try:
            folder.mkdir(parents=True)
            sync(folder.parent)
            sync(folder.parent.parent)
        except OSError as error:
            raise StoreError(f"{folder} cannot be made ({error.strerror}): see to the disk and try again") from error
        return self._new_target(app, batch, folder, suffix=_STAGED)

    def commit(self, app: str, batch: int, files: Sequence[WrittenFile]) -> Committed:
        target = self._taken_target(app, batch)
        attempt = Path(target.folder)
        if self._options.compact and not self.done(app, batch):
            files, _ = merged_small(target, files)
        with self._locked():
            if self._done(app, batch):
                _remove_tree(attempt)
                return SKIPPED
            for file in files:
                require_whole(attempt / file.path, file)
            entry = {
                "format": _FORMAT,
                "app": app,
                "batch": batch,
                "attempt": attempt.name,
                "rows": sum(file.rows for file in files),
                "files": [file.path for file in files],
            }
            # From here on the batch is committed.
            self._put_entry(app, batch, entry)
            self._apply(app, entry)
            self._forget(app, batch)
        return Committed.of(files)

    def _put_entry(self, app: str, batch: int, entry: dict[str, Any]) -> None:
        path = self._entry(app, batch)
        try:
            path.parent.mkdir(exist_ok=True)
            sync(path.parent.parent)
        except OSError as error:
            raise StoreError(f"{path.parent} cannot be made ({error.strerror}): try again") from error
        if not put_file(path, sealed(entry)[0], replace=False):
            raise StoreError(f"{path} appeared while its batch was committed: another process has the same query")

    def _apply(self, app: str, entry: dict[str, Any]) -> None:
        """Give the files of a committed batch their names; those that have them already are left."""
        attempt = self._staged(app) / entry["attempt"]
        folders: set[Path] = set()
        try:
            for name in entry["files"]:
                final = self.folder / name.removesuffix(_STAGED)
                final = final.with_name(f"{final.name}.parquet")
                final.parent.mkdir(parents=True, exist_ok=True)
                try:
                    os.rename(attempt / name, final)
                except FileNotFoundError:
                    if not final.exists():
                        raise StoreError(
                            f"{attempt / name} is missing, a file of batch {entry['batch']} that is committed: restore "
                            f"it, or remove {attempt} to go on without its rows"
                        ) from None
                folders.update(place for place in (final.parent, *final.parent.parents) if self.folder in place.parents)
            for folder in sorted(folders | {self.folder}):
                sync(folder)
        except OSError as error:
            raise StoreError(
                f"batch {entry['batch']} is committed, and not all of its files could be put into {self.folder} "
                f"({error.strerror}): see to the disk; the next start completes it"
            ) from error
        # In one step, so that nobody takes what is left of it for a commit that was cut short.
        gone = attempt.with_name(f"gone-{attempt.name}")
        with suppress(OSError):
            os.rename(attempt, gone)
        _remove_tree(gone)

    def _complete(self, app: str | None = None) -> None:
        """Finish commits that were cut short, of one app or of all."""
        token = None if app is None else app_token(app)
        for folder in sorted((self.state / "staged").glob(token or "*")):
            for attempt in sorted(folder.glob("b*")):
                path = self.state / "log" / folder.name / f"{attempt.name[1:13]}{_ENTRY}"
                if path.exists():
                    entry = _read(path)
                    if entry["attempt"] == attempt.name:
                        self._apply(entry["app"], entry)
                        self._forget(entry["app"], entry["batch"])

    def _forget(self, app: str, batch: int) -> None:
        """Remove what no replay can ask for: old entries, attempts that came to nothing; what stays goes next time."""
        with suppress(OSError):
            folder = self._entry(app, batch).parent
            for number in self._entries(app):
                if number <= batch - _KEPT_ENTRIES or is_once(app):
                    self._entry(app, number).unlink(missing_ok=True)
            for attempt in self._staged(app).glob("b*"):
                if int(attempt.name[1:13]) <= batch:
                    _remove_tree(attempt)
            if is_once(app):
                _remove_tree(folder)
                self._staged(app).rmdir()

    # ------------------------------------------------------------------------------------- the log

    def _staged(self, app: str) -> Path:
        return self.state / "staged" / app_token(app)

    def _entry(self, app: str, batch: int) -> Path:
        return self.state / "log" / app_token(app) / f"{batch:012d}{_ENTRY}"

    def _entries(self, app: str) -> list[int]:
        folder = self.state / "log" / app_token(app)
        return sorted(int(path.stem) for path in folder.glob(f"[0-9]*{_ENTRY}")) if folder.exists() else []

    def _last(self, app: str) -> int | None:
        """The last committed batch of an app."""
        entries = self._entries(app)
        if entries:
            path = self._entry(app, entries[-1])
            entry = _read(path)
            if entry["app"] != app or entry["batch"] != entries[-1]:
                raise StoreError(f"{path} is the commit of batch {entry['batch']} of {entry['app']!r}: put it back")
            return entries[-1]
        if app not in self._known and not is_once(app):
            # Without its log a replay would double what is there.
            token = app_token(app)
            for path in parquet_files(self.folder):
                if path.name.startswith(f"part-{token}-"):
                    raise StoreError(
                        f"{path} was written by this query, and its log in {self.state} is missing: restore it (it "
                        "moves with the folder), or start the query with another checkpoint and folder"
                    )
            self._known.add(app)
        return None

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Alone in changing the log: of two processes with one query only one commits a batch."""
        with ExitStack() as stack:
            try:
                stack.enter_context(folder_lock(self.state))
            except OSError as error:
                raise StoreError(f"{self.state} cannot be locked ({error.strerror}): call prepare first") from error
            yield

    # ------------------------------------------------------------------------------------- cleaning up

    def clean(self, older_than_s: float, dry_run: bool = False) -> list[str]:
        if not self.state.exists():
            raise ConfigError(f"{self.folder} is not a table that semistream has written: there is no {self.state}")
        found: list[str] = []
        with self._locked():
            if not dry_run:
                self._complete()
            needed = {self._attempt_in_log(path) for path in self.state.glob(f"log/*/*{_ENTRY}")}
            for attempt in sorted(self.state.glob("staged/*/*")):
                if attempt not in needed and _is_old(attempt, older_than_s):
                    found += [str(path) for path in sorted(attempt.rglob("*")) if path.is_file()] or [str(attempt)]
                    if not dry_run:
                        _remove_tree(attempt)
            # What `put_file` was writing when it was killed.
            for path in sorted((*self.state.glob(".*"), *self.state.glob("log/*/.*"))):
                if _is_old(path, older_than_s):
                    found.append(str(path))
                    if not dry_run:
                        path.unlink(missing_ok=True)
        return found

    def _attempt_in_log(self, path: Path) -> Path:
        return self.state / "staged" / path.parent.name / str(_read(path)["attempt"])


def _read(path: Path) -> dict[str, Any]:
    try:
        fields: dict[str, Any] = dict(read_sealed(path)[0])
        if fields["format"] != _FORMAT:
            raise ValueError(f"it has format {fields['format']!r}, this release reads {_FORMAT}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _unreadable(path, error) from error
    return fields


def _unreadable(path: Path, error: Exception) -> StoreError:
    return StoreError(f"{path} cannot be read ({error}): restore it from a backup, or choose another folder")


def _is_old(path: Path, seconds: float) -> bool:
    """Whether nothing below a path has changed for so long."""
    try:
        newest = max(one.stat().st_mtime for one in (path, *path.rglob("*")))
    except OSError:
        return False
    return time.time() - newest > seconds


def _remove_tree(path: Path) -> None:
    """What cannot be removed is removed the next time."""
    shutil.rmtree(path, ignore_errors=True)
