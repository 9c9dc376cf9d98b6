"""What is in a page store, who holds it, whether it is whole, and what can go: for those who run it."""

from __future__ import annotations

import os
import secrets
import shutil
import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from semistream.errors import ConfigError, StoreError
from semistream.master.base import aligned_buffer
from semistream.master.format import (
    KEYS,
    MANIFEST,
    Manifest,
    Origin,
    current_folder,
    current_version,
    load_manifest,
    version_name,
    versions_in,
)
from semistream.master.frequency import verify_table
from semistream.master.leases import (
    QUERIES,
    Pin,
    drop_orphans,
    drop_unused,
    held_alone,
    is_leased,
    lease_holders,
    orphans,
    owners_of,
    pins_in,
    store_lock,
    unpin_before,
    unpinned_versions,
)
from semistream.master.page_reader import PageStoreReader
from semistream.master.pages import PageMaster
from semistream.master.publish import is_being_built, leftovers, scratch_folder
from semistream.sealed import sync

_RUN_PAGES = 256


@dataclass(frozen=True)
class StoredVersion:
    """A version of a store; `rows` and `identity` are None where its manifest cannot be read."""

    version: int
    in_force: bool
    rows: int | None
    bytes: int
    identity: str | None
    #: whether some process has it open, and those of this machine that are known to
    leased: bool
    processes: list[int]
    pins: list[Pin]
    #: bytes of files that no other version has
    own_bytes: int = 0
    #: of the rows, those that no key leads to any more; and the runs of changes behind the base
    dead_rows: int = 0
    runs: int = 0
    origin: Origin = field(default_factory=Origin)
    #: why the last changes were not kept as a run
    notice: str = ""


@dataclass
class Removed:
    """What a clean-up took away, or would take away."""

    versions: list[int] = field(default_factory=list)
    #: names of queries whose pins went
    queries: list[str] = field(default_factory=list)
    leftovers: list[str] = field(default_factory=list)
    #: why versions stayed that could have gone
    kept: list[str] = field(default_factory=list)


def list_versions(store: str | Path) -> list[StoredVersion]:
    """The versions that a store keeps, oldest first."""
    path = _existing(store)
    current = current_version(path)
    pins = pins_in(path)
    found = []
    for number in versions_in(path):
        folder = path / version_name(number)
        manifest: Manifest | None = None
        with suppress(StoreError):
            manifest = load_manifest(folder)
        found.append(
            StoredVersion(
                version=number,
                in_force=number == current,
                rows=None if manifest is None else manifest.rows,
                bytes=sum(file.lstat().st_size for file in folder.glob("*")),
                identity=None if manifest is None else str(manifest.identity),
                leased=is_leased(folder),
                processes=lease_holders(folder),
                pins=[pin for pin in pins if pin.identity is not None and pin.identity.version == number],
                own_bytes=sum(file.lstat().st_size for file in folder.glob("*") if file.lstat().st_nlink == 1),
            )
        )
        if manifest is not None:
            found[-1] = replace(
                found[-1],
                dead_rows=manifest.dead_rows,
                runs=len(manifest.runs),
                origin=Origin(**manifest.origin),
                notice=manifest.notice,
            )
    return found


def verify(store: str | Path, version: int | None = None) -> list[str]:
    """What is damaged in one version or all, a line for each; every page, index, manifest and pin is read."""
    path = _existing(store)
    wrong: list[str] = []
    if version is None:
        try:
            current_folder(path)
        except StoreError as error:
            wrong.append(str(error))
        wrong += [
            f"{path / QUERIES}: the pin of batch {pin.batch} of {pin.owner!r} cannot be read: remove it if its query "
            "is gone"
            for pin in pins_in(path)
            if pin.identity is None
        ]
    for number in versions_in(path) if version is None else [version]:
        try:
            master = PageMaster(path, number)
            wrong += _wrong_pages(master)
        except StoreError as error:
            # One that went meanwhile because nobody needed it is no damage.
            if version is not None or (path / version_name(number)).exists():
                wrong.append(str(error))
    return wrong


def _wrong_pages(master: PageMaster) -> list[str]:
    wrong = []
    if master.order == "frequency":
        wrong += verify_table(master.folder / KEYS, master.manifest.files[KEYS]["blocks"])
    with master.open([]) as reader:
        buffer = aligned_buffer(reader.buffer_bytes(_RUN_PAGES))
        for first in range(0, reader.n_pages, _RUN_PAGES):
            try:
                reader.read(first, _RUN_PAGES, buffer)
            except StoreError:
                wrong += _one_by_one(reader, first, min(first + _RUN_PAGES, reader.n_pages))
    return wrong


def _one_by_one(reader: PageStoreReader, first: int, end: int) -> list[str]:
    wrong = []
    buffer = aligned_buffer(reader.buffer_bytes(1))
    for page in range(first, end):
        try:
            reader.read_runs(np.array([page]), buffer, 0)
        except StoreError as error:
            wrong.append(str(error))
    return wrong


def collect(
    store: str | Path,
    *,
    keep: int = 0,
    forget: Collection[str] = (),
    pins_older_than: float | None = None,
    dry_run: bool = False,
) -> Removed:
    """Remove what nobody needs: versions, what crashed builds left behind, pins of queries that are gone.

    A version goes if it is not in force, not among the `keep` newest of the others, not open and not pinned. Pins go
    only if their query is named in `forget`, or if its newest one is more than `pins_older_than` seconds old: whether a
    query will be started again is not known here.
    """
    path = _existing(store)
    if keep < 0 or (pins_older_than is not None and pins_older_than < 0):
        raise ConfigError(f"keep={keep} and pins_older_than={pins_older_than} must not be negative")
    current_folder(path)
    removed = Removed()
    with store_lock(path):
        pins = pins_in(path)
        removed.queries = _given_up(path, pins, forget, pins_older_than)
        left = [pin for pin in pins if pin.owner not in removed.queries]
        removed.leftovers = leftovers(path, remove=not dry_run)
        if not dry_run:
            for owner in removed.queries:
                unpin_before(path, owner, None)
        pinned = {pin.identity.version for pin in left if pin.identity is not None}
        unused = unpinned_versions(path, keep, pinned)
        unreadable = [pin for pin in left if pin.identity is None]
        if unused and unreadable:
            removed.kept.append(
                f"versions {unused}: the pin of batch {unreadable[0].batch} of {unreadable[0].owner!r} cannot be read "
                "and may mean any of them"
            )
            unused = []
        if dry_run:
            removed.versions = [n for n in [*unused, *orphans(path)] if not is_leased(path / version_name(n))]
        else:
            with scratch_folder(path) as scratch:
                removed.versions = [*drop_unused(path, keep, scratch), *drop_orphans(path, scratch)]
        for number in (n for n in unused if n not in removed.versions):
            is_open = is_leased(path / version_name(number))
            removed.kept.append(f"version {number}: it {'is open' if is_open else 'cannot be removed'}")
    return removed


#: in the name of a store that is being removed
REMOVED = ".removed-"


def remove_store(store: str | Path) -> str | None:
    """Remove a store altogether; if somebody uses it, it stays, and the answer says who."""
    path = Path(store)
    aside = path.with_name(f".{path.name}{REMOVED}{secrets.token_hex(4)}")
    with store_lock(path), held_alone(path / version_name(number) for number in versions_in(path)) as taken:
        if taken is not None:
            return f"{taken.name} is open"
        if pins_in(path):
            return f"the query {pins_in(path)[0].owner!r} has pinned a version"
        if is_being_built(path):
            return "it is being built"
        # Under another name first, so that nobody finds half of it.
        os.rename(path, aside)
        sync(path.parent)
    shutil.rmtree(aside, ignore_errors=True)
    return None


def _given_up(path: Path, pins: list[Pin], forget: Collection[str], older_than: float | None) -> list[str]:
    """Owners whose pins are to go."""
    newest: dict[str, float] = {}
    for pin in pins:
        newest[pin.owner] = max(newest.get(pin.owner, 0.0), pin.since)
    named: set[str] = set()
    for query in forget:
        owners = owners_of(path, query)
        if not owners:
            known = ", ".join(sorted(newest)) or "no query"
            raise ConfigError(f"the query {query!r} has no pins in {path}; known are {known}")
        named.update(owners)
    now = time.time()
    old = {owner for owner, since in newest.items() if older_than is not None and now - since > older_than}
    return sorted(named | old)


def _existing(store: str | Path) -> Path:
    path = Path(store)
    if not versions_in(path):
        raise StoreError(f"{path} is no page store: it holds no version with a {MANIFEST}; name the store's own folder")
    return path
