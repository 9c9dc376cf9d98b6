"""Page stores that are built and refreshed from a source.

A failure leaves the version in force as it is: nothing is published before all rows are there. The error is one line
that names the source and the version that stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from semistream.errors import ConfigError, SchemaError, SemiStreamError, SourceError, StoreError
from semistream.master.base import DEFAULT_PAGE_ROWS
from semistream.master.build import DEFAULT_MEMORY_LIMIT, build_pages
from semistream.master.compatibility import misfits
from semistream.master.format import CURRENT, Origin, current_version
from semistream.master.frequency import Frequencies
from semistream.master.pages import PageMaster
from semistream.master.refresh import refresh_pages
from semistream.sources.base import Changes, Position, Rebuild, Scan, Source
from semistream.sources.reconcile import codes_of, compare_keys, keys_with
from semistream.sources.sql import TableScan

BUILT, REBUILT, CHANGED, UNCHANGED = "built", "rebuilt", "changed", "unchanged"


@dataclass(frozen=True)
class Refreshed:
    """What a refresh did; `reason` says why all rows were read or written anew."""

    how: str
    version: int
    rows: int
    reason: str = ""


def build_from(
    path: str | Path,
    source: Source,
    *,
    page_rows: int = DEFAULT_PAGE_ROWS,
    frequency: Frequencies | None = None,
    keep_versions: int = 1,
    memory_limit: int = DEFAULT_MEMORY_LIMIT,
    progress: Callable[[int], None] | None = None,
) -> PageMaster:
    """Write all rows of a source as a page store, or as the next version of one, and open it.

    The manifest records the source, without credentials, and its position, from where `refresh_from` goes on.
    `progress` is given the number of rows read so far.
    """
    target = Path(path)
    with staying(target, source):
        if (target / CURRENT).exists():
            with closing(PageMaster(target)) as force:
                _require_key(force, source)
        with source.look() as scan:
            layout: dict[str, Any] = {"page_rows": page_rows, "frequency": frequency}
            return build_scan(target, source, scan, layout, keep_versions, memory_limit, progress)


def refresh_from(
    path: str | Path,
    source: Source,
    *,
    keep_versions: int = 1,
    memory_limit: int = DEFAULT_MEMORY_LIMIT,
) -> Refreshed:
    """Bring a store up to date with the source that it was built from; build it if it does not exist.

    What the source can tell of changes is applied as a run of changes beside the base. Where it cannot, all rows are
    read again, and `reason` says why.
    """
    target = Path(path)
    with staying(target, source):
        if not (target / CURRENT).exists():
            with source.look() as scan:
                return _built(BUILT, build_scan(target, source, scan, {}, keep_versions, memory_limit))
        with closing(PageMaster(target)) as master:
            _require_key(master, source)
            known = _known(master, source)
            columns = tuple(master.schema.names)
            asked = source.wanted.columns
            if asked is not None and not {*asked, *source.wanted.on} == {*columns}:
                raise SchemaError(
                    f"{', '.join(asked)} are asked for, and the store has {', '.join(columns)}: build it again"
                )
            reading = source.with_columns(columns)
            with reading.look() as scan:
                found = misfits(master.schema, scan.schema)
                if found:
                    raise SchemaError(f"{source.name} was altered: {'; '.join(found)}. Build the store again")
                return _refreshed(master, reading, scan, known, keep_versions, memory_limit)


def _refreshed(
    master: PageMaster, source: Source, scan: Scan, known: Position | None, keep_versions: int, memory_limit: int
) -> Refreshed:
    if known is None:
        reason = "the store tells no position of this source"
        return _rebuilt(master, source, scan, reason, keep_versions, memory_limit)
    if scan.unchanged(known.mark):
        return Refreshed(UNCHANGED, master.version, master.n_rows - master.dead_rows)
    found = scan.changes(known.mark)
    deletes: Iterator[pa.RecordBatch] | None = None
    if isinstance(found, Changes) and source.wanted.deletes == "reconcile":
        # Only tables of databases are read by a watermark, which alone is to be reconciled.
        assert isinstance(scan, TableScan)
        assert found.touched is not None
        differences = compare_keys(scan.keys(), master, Path(master.path), memory_limit)
        announced = [np.unique(codes) for codes in codes_of(found.touched, master.coder.rows)]
        silent = np.setdiff1d(differences.other, np.concatenate([np.empty(0, dtype=np.int64), *announced]))
        if len(silent):
            found = Rebuild(
                f"{len(silent):,} of its keys have more or fewer rows than the store, and the watermark does not tell"
            )
        elif len(differences.gone):
            deletes = keys_with(differences.gone, master, memory_limit // 4)
    elif isinstance(found, Changes) and source.wanted.where:
        # A row that does not pass the filters any more leaves its key without rows.
        deletes = found.touched
    if isinstance(found, Rebuild):
        return _rebuilt(master, source, scan, found.reason, keep_versions, memory_limit)
    position = Position(source.digest, scan.mark, known.step + (dict(scan.mark) != dict(known.mark)))
    try:
        after = refresh_pages(
            master.path,
            pa.RecordBatchReader.from_batches(found.schema, found.batches),
            deletes=None if deletes is None else _reader(deletes, master),
            source=source.name,
            position=str(position),
            after=str(known),
            committed_at=_when(scan),
            keep_versions=keep_versions,
            memory_limit=memory_limit,
        )
    except SourceError as error:
        if not scan.loses_changes:
            raise
        reason = f"its changes cannot be read ({source.scrubbed(error)})"
        return _rebuilt(master, source, scan, reason, keep_versions, memory_limit)
    if after.version == master.version:
        return _built(UNCHANGED, after)
    return _built(CHANGED, after, after.notice)


def _reader(batches: Iterator[pa.RecordBatch], master: PageMaster) -> pa.RecordBatchReader:
    schema = pa.schema([pa.field(name, master.schema.field(name).type) for name in master.on])
    return pa.RecordBatchReader.from_batches(schema, (batch.cast(schema) for batch in batches))


def _rebuilt(
    master: PageMaster, source: Source, scan: Scan, reason: str, keep_versions: int, memory_limit: int
) -> Refreshed:
    """All rows read again, laid out as they were."""
    layout: dict[str, Any] = {"page_rows": master.page_rows}
    if master.order == "frequency":
        codes, starts = master.listed_keys()
        # What stood further in front is wanted more; what was not there is wanted least.
        layout["frequency"] = codes, (master.manifest.rows - starts).astype(np.float64)
    built = build_scan(Path(master.path), source, scan, layout, keep_versions, memory_limit)
    return _built(REBUILT, built, reason)


def _built(how: str, master: PageMaster, reason: str = "") -> Refreshed:
    with closing(master):
        return Refreshed(how, master.version, master.n_rows - master.dead_rows, reason)


def build_scan(
    target: Path,
    source: Source,
    scan: Scan,
    layout: dict[str, Any],
    keep_versions: int,
    memory_limit: int,
    progress: Callable[[int], None] | None = None,
) -> PageMaster:
    """All rows of a scan as the next version; `layout` are arguments of `build_pages`."""
    source.batch_bytes = min(source.batch_bytes, memory_limit // 8)
    position = Position(source.digest, scan.mark, 1)
    return build_pages(
        pa.RecordBatchReader.from_batches(scan.schema, scan.rows()),
        target,
        on=source.wanted.on,
        overwrite=True,
        keep_versions=keep_versions,
        memory_limit=memory_limit,
        progress=progress,
        origin=Origin(source.name, str(position), _when(scan)),
        **layout,
    )


def _known(master: PageMaster, source: Source) -> Position | None:
    """How far the store has read this source; None if it has read none. Another one's rows are not mixed with these."""
    positions = master.manifest.positions
    known = Position.read(positions.get(source.name))
    others = [name for name in positions if name != source.name]
    if known is None and others:
        raise ConfigError(
            f"the store was built from {others[0]}, not from {source.name}: `semistream master build` replaces its rows"
        )
    if known is not None and known.digest != source.digest:
        raise ConfigError(
            f"{source.name} is another place than the one that the store was built from: its variables have other "
            "values now; `semistream master build` replaces its rows"
        )
    return known


def _require_key(master: PageMaster, source: Source) -> None:
    if source.wanted.on != master.on:
        raise ConfigError(
            f"the store has the key {','.join(master.on)}, not {','.join(source.wanted.on)}: its readers would find "
            "nothing; build at another path"
        )


def _when(scan: Scan) -> str | None:
    return None if scan.committed_at is None else datetime.fromtimestamp(scan.committed_at, UTC).isoformat()


@contextmanager
def staying(path: Path, source: Source) -> Iterator[None]:
    """Says in every error which source failed and which version stays in force, on one line without credentials."""
    try:
        yield
    except (SemiStreamError, OSError, pa.ArrowException) as error:
        said = source.scrubbed(error)
        if source.name not in said:
            said = f"{source.name}: {said}"
        if "stays in force" not in said:
            said += f" ({_in_force(path)})"
        kind = type(error) if isinstance(error, SemiStreamError) else StoreError
        raise kind(said) from None


def _in_force(path: Path) -> str:
    try:
        return f"version {current_version(path)} of {path} stays in force"
    except StoreError:
        return f"{path} was not built"
