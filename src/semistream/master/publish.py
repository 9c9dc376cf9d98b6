"""How a new version of a store appears all at once, or not at all.

A version is written in a hidden folder beside the others, synced, renamed, and only then named by CURRENT. A
crash leaves the old version in force; what it left behind is swept away by the next build.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from semistream.errors import StoreError
from semistream.master.format import (
    CURRENT,
    Identity,
    Manifest,
    current_folder,
    current_version,
    load_identity,
    make_folder,
    name_current,
    version_name,
    version_of,
    versions_in,
)
from semistream.master.leases import LOCK, drop_orphans, drop_unused, store_lock
from semistream.sealed import sync

_SCRATCH = ".build-"
_REMOVALS = 5


def check_target(path: Path, overwrite: bool) -> None:
    """Refuse to build over anything that is not a store, or over a store without being told to."""
    if not path.exists():
        return
    if not path.is_dir():
        raise StoreError(f"{path} exists and is a file; give the path of a folder that does not exist yet")
    if (path / CURRENT).exists():
        if not overwrite:
            raise StoreError(f"{path} already holds a page store; overwrite=True adds a new version to it")
        return
    foreign = [p.name for p in path.iterdir() if not version_of(p) and not p.name.startswith((_SCRATCH, LOCK))]
    if foreign:
        raise StoreError(f"{path} exists and is no page store (it holds {foreign[0]!r}); give another path")


@contextmanager
def scratch_folder(path: Path) -> Iterator[Path]:
    """A hidden folder inside the store; gone afterwards, and the store with it if it was new and failed."""
    existed = path.exists()
    try:
        make_folder(path)
        leftovers(path, remove=True)
        folder = Path(tempfile.mkdtemp(prefix=_SCRATCH, dir=path))
        lock = _lock(folder)
    except OSError as error:
        raise _not_built(path, error) from error
    try:
        yield folder
    except OSError as error:
        raise _not_built(path, error) from error
    finally:
        # A task of a failed job may still be writing here: what it adds meanwhile needs another turn.
        for _ in range(_REMOVALS):
            shutil.rmtree(folder, ignore_errors=True)
            if not folder.exists():
                break
        if lock is not None:
            os.close(lock)
        if not existed and all(left.name == LOCK for left in path.iterdir()):
            # Another build may have begun here meanwhile: then the folder is not empty, and stays.
            with suppress(OSError):
                (path / LOCK).unlink(missing_ok=True)
                path.rmdir()


def _not_built(path: Path, error: OSError) -> StoreError:
    return StoreError(
        f"{path} could not be built ({error}): see that its disk has room and that its source can be read, then build "
        "it again"
    )


def _lock(folder: Path) -> int | None:
    """Mark a scratch folder as in use by a live process; None when another one holds it."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        return None
    return handle


def is_being_built(path: Path) -> bool:
    """Whether a live process builds a version of a store just now."""
    return len(leftovers(path, remove=False)) < len(list(path.glob(f"{_SCRATCH}*")))


def leftovers(path: Path, remove: bool) -> list[str]:
    """Names of what crashed builds left behind, removed if so wanted; a live build holds a lock on its folder."""
    found = []
    for folder in sorted(path.glob(f"{_SCRATCH}*")):
        try:
            handle = _lock(folder)
        except OSError:
            continue
        if handle is not None:
            found.append(folder.name)
            if remove:
                shutil.rmtree(folder, ignore_errors=True)
            os.close(handle)
    return found


def publish(
    path: Path, scratch: Path, written: Path, manifest: Manifest, keep: int, after: Identity | None = None
) -> None:
    """Make a finished version the one in force; of the older ones `keep` stay, and those that somebody uses.

    One that was made of another version is published right `after` that one, or not at all.
    """
    with store_lock(path):
        if after is not None and (found := load_identity(current_folder(path))) != after:
            raise StoreError(
                f"version {found.version} of {path} came into force while changes of version {after.version} were "
                "written: apply them again, to the version that is in force"
            )
        drop_orphans(path, scratch)
        manifest.version = max(versions_in(path), default=0) + 1
        manifest.uuid = _uuid_of(path)
        manifest.save(written)
        sync(written)
        folder = path / version_name(manifest.version)
        try:
            os.rename(written, folder)
            sync(path)
            fresh = scratch / CURRENT
            name_current(fresh, manifest.version)
            os.replace(fresh, path / CURRENT)
        except BaseException:
            # An interrupt may come after the replacement as well, and then the version is in force.
            if not _may_be_in_force(path, manifest.version):
                shutil.rmtree(folder, ignore_errors=True)
            raise
        sync(path)
        drop_unused(path, keep, scratch)


def _uuid_of(path: Path) -> str:
    """The store's own, or a new one where no version tells it."""
    for number in reversed(versions_in(path)):
        try:
            return load_identity(path / version_name(number)).uuid
        except StoreError:
            continue
    return uuid.uuid4().hex


def _may_be_in_force(path: Path, version: int) -> bool:
    if not (path / CURRENT).exists():
        return False
    try:
        return current_version(path) == version
    except StoreError:
        return True
