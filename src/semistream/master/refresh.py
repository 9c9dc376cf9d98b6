"""Changing R: a new version of what has changed, beside the base that stays (decision 0032).

    changes --> sorted by code --> with the rows that their codes have --> rows after: a run of shards behind the others
                                                                      \\-> changed code -> new code: codes.bin
    base and earlier runs: hard links to the files of the version before

All rows of a changed key stand in the newest run, under a code that no row had before. The base is written anew, with
all rows that some key leads to, when too much of it is dead or there are too many runs.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import uuid
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import chain
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.columns.physical import PhysicalSchema
from semistream.errors import ConfigError, SemiStreamWarning, StoreError
from semistream.master.base import Int64s
from semistream.master.build import DEFAULT_MEMORY_LIMIT, Layout, recorded, write_version
from semistream.master.changes import Applied, Applier, ChangeReader
from semistream.master.format import CODE, CODES, FORMAT_VERSION, Manifest, Origin
from semistream.master.live import LiveRows
from semistream.master.page_index import save_codes
from semistream.master.pages import PageMaster, code_after
from semistream.master.publish import publish, scratch_folder
from semistream.master.shards import Shard, ShardWriter
from semistream.master.sorting import RowSorter, int64_view
from semistream.master.sources import Source
from semistream.sealed import NO_LOCKS, sync

MAX_RUNS = 8
#: the base is written anew when more than this part of the rows is dead, or of the codes has changed
MOST_DEAD = 0.2
_LARGEST = np.iinfo(np.int64).max
_LEAST_MEMORY = 1 << 20
#: what file systems say that have no second names for a file, or no more of them
_NO_LINKS = (errno.EPERM, errno.EXDEV, errno.EMLINK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EACCES)


def refresh_pages(
    path: str | Path,
    changes: Source | None = None,
    *,
    deletes: Source | None = None,
    source: str | None = None,
    position: int | str | None = None,
    after: int | str | None = None,
    committed_at: datetime | str | None = None,
    keep_versions: int = 1,
    max_runs: int = MAX_RUNS,
    compact: str = "auto",
    memory_limit: int = DEFAULT_MEMORY_LIMIT,
) -> PageMaster:
    """Apply changes to a page store as its next version, and open it.

    `changes` is Arrow data, as `build_pages` takes it, with R's columns in any order. With a column `_change_type` it
    is a change feed, as Delta's and Spark's: "insert" and "update_postimage" add a row, "delete" and "update_preimage"
    take one equal row away, whole: nulls are values. Such a row that is not there is an error, and nothing is
    published. `_commit_version`, if there, orders the changes; rows of one commit have no order, and without that
    column all are one commit. Other rows are states: those of a key (of its last commit) replace all that the key has.
    `deletes` has the key columns only; these keys lose their rows, before new ones come. Rows with a null in the key
    are left out and counted.

    `source` and `position` say where the changes come from and how far they reach; what has a position that is not
    above the one recorded for that source changes nothing, and the version in force comes back. Without `position` the
    last `_commit_version` is recorded, and commits up to the recorded one are left out. `after` is the position that
    the changes were read from: they are applied to a store that is there, even if they reach no further (more may have
    come at that position), and to no other. `committed_at` defaults to the last `_commit_timestamp`.

    Changes are kept as a run beside the base. With more than `max_runs` runs, or more than a fifth of R dead or
    changed, all rows are written anew instead (`notice` of the result says why); compact="never" leaves that to
    `compact_pages`. At most about `memory_limit` bytes are used, and about 50 per changed key.
    """
    target = Path(path)
    _check(keep_versions, memory_limit)
    if compact not in ("auto", "never"):
        raise ConfigError(f"compact={compact!r} is not known; allowed are 'auto' and 'never'")
    if max_runs < 1:
        raise ConfigError(f"max_runs={max_runs} must be at least 1")
    if position is not None and source is None:
        raise ConfigError(f"position={position!r} needs source=, the name of what it is a position in")
    if changes is None and deletes is None:
        raise ConfigError("there is nothing to apply: give changes, deletes or both")
    with alone(target):
        master = PageMaster(target)
        known = None if source is None else master.manifest.positions.get(source)
        if (
            (after is None or known != after)
            and position is not None
            and known is not None
            and _reached(position, known)
        ):
            return master
        if after is not None and known != after:
            master.close()
            raise StoreError(
                f"the changes were read from {after!r} on, and {target} is at {known!r} of {source}: another refresh "
                f"was quicker; read them again (version {master.version} of {target} stays in force)"
            )
        try:
            with staying(master, source), scratch_folder(target) as scratch:
                work = _Refresh(master, scratch, memory_limit)
                since = known if position is None and isinstance(known, int) else None
                reader = work.read(changes, deletes, since)
                if position is None and source is not None and reader.last_commit is not None:
                    position = reader.last_commit if since is None else max(reader.last_commit, since)
                run = work.apply(reader)
                # Read for nothing: no key has other rows, and no position is worth a version.
                if not len(run.codes) and (position is None or position == known):
                    return PageMaster(target, master.version)
                when = committed_at.isoformat() if isinstance(committed_at, datetime) else committed_at
                origin = Origin(source, known if position is None else position, when or reader.committed_at)
                why = work.too_much(run, max_runs, compact == "auto")
                manifest = work.rebuilt(run) if why else work.extended(run)
                manifest.notice = why
                manifest.null_key_rows = max(master.null_key_rows + reader.null_key_rows, 0)
                manifest.origin = recorded(origin)
                manifest.positions = dict(master.manifest.positions)
                if source is not None and origin.position is not None:
                    manifest.positions[source] = origin.position
                publish(target, scratch, work.folder, manifest, keep_versions, master.manifest.identity)
        finally:
            master.close()
        return PageMaster(target, version=manifest.version)


def compact_pages(path: str | Path, *, keep_versions: int = 1, memory_limit: int = DEFAULT_MEMORY_LIMIT) -> PageMaster:
    """Write all rows that some key leads to as a new base: a version like any other, without runs and dead rows.

    A store without runs is left as it is. Rows keep their order: by key, or by frequency as the base has it.
    """
    target = Path(path)
    _check(keep_versions, memory_limit)
    with alone(target):
        master = PageMaster(target)
        if not master.runs:
            return master
        try:
            with staying(master, None), scratch_folder(target) as scratch:
                work = _Refresh(master, scratch, memory_limit)
                manifest = work.rebuilt(None)
                manifest.null_key_rows = master.null_key_rows
                manifest.origin = dict(master.manifest.origin)
                manifest.positions = dict(master.manifest.positions)
                publish(target, scratch, work.folder, manifest, keep_versions, master.manifest.identity)
        finally:
            master.close()
        return PageMaster(target, version=manifest.version)


def _check(keep_versions: int, memory_limit: int) -> None:
    if memory_limit < _LEAST_MEMORY or keep_versions < 0:
        raise ConfigError(
            f"memory_limit={memory_limit} must be at least {_LEAST_MEMORY} bytes and keep_versions={keep_versions} at "
            "least 0"
        )


def _reached(position: int | str, known: int | str) -> bool:
    if isinstance(position, str) != isinstance(known, str):
        raise ConfigError(
            f"position={position!r} cannot be compared with the recorded {known!r}: positions of a source are all "
            "numbers or all texts"
        )
    return position <= known  # type: ignore[operator]


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Only one process at a time changes a store; others wait. Builds go on: what they replace is not published."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise StoreError(f"{path} is no page store ({error.strerror}): build one with build_pages") from error
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
        except OSError as error:
            # Without a lock the second one is refused when it comes to publish.
            if error.errno not in (*NO_LOCKS, errno.EBADF):
                raise StoreError(f"{path} cannot be locked ({error.strerror})") from error
        yield
    finally:
        os.close(handle)


@contextmanager
def staying(master: PageMaster, source: str | None) -> Iterator[None]:
    """Says in every error of a store which version stays in force."""
    try:
        yield
    except StoreError as error:
        of = "" if source is None else f" after changes from {source}"
        raise type(error)(f"{error} (version {master.version} of {master.path} stays in force{of})") from error


@dataclass(frozen=True)
class _Run:
    """Changed codes, sorted, the new code of each, and the shard with their rows; none if all were deleted."""

    codes: Int64s
    fresh: Int64s
    absent: int
    #: the first code that is free for later changes
    next: int
    shard: Shard | None
    #: rows of these codes in the version before
    dead: int
    #: the codes are not above those of the base: the shard serves only to write all rows anew
    out_of_codes: bool


class _Refresh:
    """One refresh of a version: writes into `folder`, and nothing but there and in the scratch folder around it."""

    def __init__(self, master: PageMaster, scratch: Path, memory: int) -> None:
        self._master, self._manifest = master, master.manifest
        self._scratch, self._memory = scratch, memory
        self.folder = scratch / "version"
        self.folder.mkdir()
        self._runs = scratch / "run"
        self._runs.mkdir()

    def read(self, changes: Source | None, deletes: Source | None, since: int | None) -> ChangeReader:
        """Take in all changes, sorted by code."""
        master = self._master
        reader = ChangeReader(changes, deletes, master.schema, master.on, master.coder.rows, self._memory // 8, since)
        self._sorter = RowSorter(reader.schema, CODE, self._runs, self._memory // 2)
        for batch in reader:
            self._sorter.add(batch)
        return reader

    def apply(self, reader: ChangeReader) -> _Run:
        """Write the rows that changed codes have afterwards as a shard, under new codes."""
        with LiveRows(self._master, self._memory // 2) as live:
            absent, first = self._first_code(live)
            out_of_codes = _LARGEST - first < reader.rows_read
            next_code = 0 if out_of_codes else first
            name = uuid.uuid4().hex
            files = (f"pages-{name}.arrow", f"index-{name}.arrow")
            ordered = pa.schema([live.schema.field(column) for column in self._run_columns])
            applier = Applier(
                live.schema,
                self._master.on,
                exact=self._master.coder.exact,
                is_feed=reader.is_feed,
                has_commits=reader.last_commit is not None,
            )
            codes, fresh, dead = [np.empty(0, np.int64)], [np.empty(0, np.int64)], 0
            with ShardWriter(self.folder, files, ordered, CODE, self._manifest.page_rows) as writer:
                for piece in whole_codes(self._sorter.sorted(), self._memory // 16):
                    for done in self._applied(live, applier, piece):
                        given = _given(done, next_code, absent)
                        codes.append(done.codes)
                        fresh.append(given)
                        dead += done.dead
                        own = given[np.searchsorted(done.codes, int64_view(done.rows.column(0)))]
                        writer.write(done.rows.set_column(0, CODE, pa.array(own)))
                        next_code += int((given != absent).sum())
                shard = writer.finish()
        return _Run(np.concatenate(codes), np.concatenate(fresh), absent, next_code, shard, dead, out_of_codes)

    @property
    def _run_columns(self) -> list[str]:
        return [CODE, *(name for name in self._manifest.physical if name != CODE)]

    def _first_code(self, live: LiveRows) -> tuple[int, int]:
        """The code that no row has, and the first one that can be given."""
        if self._manifest.runs:
            return self._manifest.recoding["absent"], self._manifest.recoding["next"]
        absent = self._master.reserved_from
        if absent is None:
            absent = code_after(live.largest_base_code())
        return absent, code_after(absent)

    def _applied(self, live: LiveRows, applier: Applier, piece: pa.RecordBatch) -> Iterator[Applied]:
        """The rows that codes of a piece have now, with the changes in it; in smaller pieces if these are too many."""
        changed = int64_view(piece.column(0))
        codes = np.unique(changed)
        rows: list[pa.RecordBatch] = []
        size, limit = piece.nbytes, self._memory // 4
        for batch in live.rows_of(codes):
            rows.append(batch)
            size += batch.nbytes
            if size <= limit:
                continue
            if len(codes) == 1:
                raise ConfigError(
                    f"one key has {size:,} bytes of rows and changes, which must fit a quarter of "
                    f"memory_limit={self._memory:,}: give more"
                )
            rows.clear()
            cut = int(np.searchsorted(changed, codes[len(codes) // 2]))
            yield from self._applied(live, applier, piece.slice(0, cut))
            yield from self._applied(live, applier, piece.slice(cut))
            return
        yield applier.apply(rows, piece)

    def too_much(self, run: _Run, max_runs: int, compacts: bool) -> str:
        """Why the changes are not kept as a run but all rows written anew; empty if they are."""
        if not len(run.codes):
            return ""
        if run.out_of_codes:
            return "all rows were written anew: no codes are left above those of the base"
        if not compacts:
            return ""
        manifest = self._manifest
        runs = len(manifest.runs) + 1
        rows = manifest.rows + (0 if run.shard is None else run.shard.rows)
        dead = manifest.dead_rows + run.dead
        changed = len(_merged(self._pairs(), run)[0])
        if runs > max_runs:
            return f"all rows were written anew: there would be {runs} runs, more than max_runs={max_runs}"
        if max(dead, changed) > MOST_DEAD * rows:
            return (
                f"all rows were written anew: of {rows:,} rows {dead:,} would be dead and {changed:,} codes changed, "
                f"more than {MOST_DEAD:.0%}"
            )
        return ""

    def _pairs(self) -> tuple[Int64s, Int64s]:
        recoding = self._master.coder.recoding
        return (np.empty(0, np.int64), np.empty(0, np.int64)) if recoding is None else recoding.pairs()

    def extended(self, run: _Run) -> Manifest:
        """The version before with one run more; its files are linked, not copied."""
        before, shard = self._manifest, run.shard
        _link_all(self._master.folder, self.folder, [n for n in before.files if n != CODES or not len(run.codes)])
        after = replace(before, base=before.parts.base, format_version=FORMAT_VERSION, checksum="")
        if not len(run.codes):
            return after
        codes, fresh = _merged(self._pairs(), run)
        after.files = {**before.files, CODES: save_codes(self.folder, codes, fresh)}
        after.runs = [*before.runs, {"id": uuid.uuid4().hex, "shards": 0 if shard is None else 1}]
        after.run_physical = self._run_columns
        after.recoding = {"changed": len(codes), "absent": run.absent, "next": run.next}
        after.dead_rows = before.dead_rows + run.dead
        if shard is not None:
            after.files[shard.pages_file] = {"bytes": shard.pages_bytes}
            after.files[shard.index_file] = {"bytes": shard.index_bytes, "xxhash64": shard.index_sum}
            about = {"pages": shard.pages, "rows": shard.rows}
            after.shards = [
                *before.shards,
                {**about, "pages_file": shard.pages_file, "index_file": shard.index_file},
            ]
            after.pages = before.pages + shard.pages
            after.rows = before.rows + shard.rows
            after.row_bytes = (before.row_bytes * before.rows + shard.n_bytes) / after.rows
            after.null_counts = {
                name: count + shard.null_counts.get(name, 0) for name, count in before.null_counts.items()
            }
        return after

    def rebuilt(self, run: _Run | None) -> Manifest:
        """All rows that some key leads to, with those of a run instead of the ones that it replaces, as a new base."""
        before, master = self._manifest, self._master
        left_out = np.empty(0, np.int64) if run is None else run.codes
        spool: Iterable[pa.RecordBatch] = ()
        if run is not None and run.shard is not None:
            aside = self._runs / run.shard.pages_file
            os.rename(self.folder / run.shard.pages_file, aside)
            os.unlink(self.folder / run.shard.index_file)
            spool = _spooled(aside, run)
        given: tuple[Int64s, npt.NDArray[np.float64]] | None = None
        if before.order == "frequency":
            codes, starts = master.listed_keys()
            # What stood further in front is wanted more; what was not there is wanted least.
            given = codes, (before.rows - starts).astype(np.float64)
        with LiveRows(master, self._memory // 2) as live:
            feed = _Kept(master, live.schema)
            rows = (batch.select(live.schema.names) for batch in chain(live.all_but(left_out), spool))
            layout = Layout(master.schema, master.on, before.page_rows, before.order)
            return write_version(layout, feed, rows, given, self.folder, self._scratch, self._memory // 2)


class _Kept:
    """Rows that are in the form of a store already, with the codes of their keys in front."""

    def __init__(self, master: PageMaster, schema: pa.Schema) -> None:
        self.coder = master.coder.rows
        self.columns = PhysicalSchema(master.schema)
        self.code_column = master.manifest.code_column
        self.physical = schema if self.code_column == CODE else schema.remove(0)
        self.null_counts = dict.fromkeys(master.schema.names, 0)
        self.null_key_rows = 0

    def take(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, Int64s, npt.NDArray[np.float64] | None]:
        for name in self.null_counts:
            self.null_counts[name] += batch.column(name).null_count
        return batch.select(self.physical.names), int64_view(batch.column(0)), None


def whole_codes(batches: Iterable[pa.RecordBatch], limit: int) -> Iterator[pa.RecordBatch]:
    """Sorted rows in pieces of about `limit` bytes, none of which ends inside a code."""
    left: pa.RecordBatch | None = None
    for batch in batches:
        joined = batch if left is None else _joined(left, batch)
        left = joined
        codes = int64_view(joined.column(0))
        step = max(1, int(limit * joined.num_rows / max(joined.nbytes, 1)))
        start = 0
        while start + step < len(codes):
            # The rows of the last code may go on in the next batch.
            end = int(np.searchsorted(codes, codes[start + step - 1], side="right"))
            if end == len(codes):
                break
            yield joined.slice(start, end - start)
            start = end
        left = joined.slice(start)
    if left is not None and left.num_rows:
        yield left


def _joined(one: pa.RecordBatch, two: pa.RecordBatch) -> pa.RecordBatch:
    arrays = [pa.concat_arrays([one.column(i), two.column(i)]) for i in range(one.num_columns)]
    return pa.RecordBatch.from_arrays(arrays, schema=one.schema)


def _given(done: Applied, first: int, absent: int) -> Int64s:
    """New codes, in their order, for those that have rows; the others have none."""
    has_rows = np.isin(done.codes, int64_view(done.rows.column(0)))
    return np.where(has_rows, first + np.cumsum(has_rows) - 1, absent)


def _merged(pairs: tuple[Int64s, Int64s], run: _Run) -> tuple[Int64s, Int64s]:
    """The new code of every changed one, after a run more."""
    stays = ~np.isin(pairs[0], run.codes)
    codes = np.concatenate([pairs[0][stays], run.codes])
    order = np.argsort(codes, kind="stable")
    return codes[order], np.concatenate([pairs[1][stays], run.fresh])[order]


def _spooled(path: Path, run: _Run) -> Iterator[pa.RecordBatch]:
    """The rows of a run's shard, under the codes of their keys."""
    given = run.fresh != run.absent
    fresh, codes = run.fresh[given], run.codes[given]
    file = pa.ipc.open_file(pa.memory_map(str(path)))
    for i in range(file.num_record_batches):
        batch = file.get_batch(i)
        # New codes were given in the order of the codes.
        own = codes[np.searchsorted(fresh, int64_view(batch.column(CODE)))]
        yield batch.set_column(batch.schema.get_field_index(CODE), CODE, pa.array(own))


def _link_all(source: Path, target: Path, names: Sequence[str]) -> None:
    """Second names for files of a folder; copies where there is no such thing, which is said once."""
    refused: OSError | None = None
    for name in names:
        try:
            os.link(source / name, target / name)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            refused = error
            shutil.copyfile(source / name, target / name)
            sync(target / name)
    if refused is not None:
        warnings.warn(
            f"files of {source.parent} cannot have second names ({refused.strerror}), so each version takes room for "
            "all of R: keep the store on a file system with hard links",
            SemiStreamWarning,
            stacklevel=4,
        )
