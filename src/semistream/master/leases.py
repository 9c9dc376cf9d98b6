"""Who uses which version of a store, so that none is removed under its readers.

Two ways to hold a version:

* a **lease**: a shared lock on the version's manifest, kept while it is open. It ends with the process, however
  that ends, so it needs no cleaning up;
* a **pin**: a small file `queries/<owner>/<batch>.json` that names a version by its whole identity. It outlives
  processes: a streaming query that is killed and replays a batch finds the version which that batch had, and no other
  one under its number.

Whoever makes a pin or puts a version in force holds the store's lock meanwhile, so a pin never names a version that is
being removed. Locks are flock(2) on files, which a shared file system must support as well.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import quote, unquote

from semistream.errors import ConfigError, StoreError
from semistream.master.format import (
    MANIFEST,
    Identity,
    current_folder,
    current_version,
    load_identity,
    make_folder,
    version_name,
    version_of,
    versions_in,
    write_synced,
)
from semistream.sealed import NO_LOCKS, read_sealed, sealed, sync

LOCK, QUERIES = ".lock", "queries"
_FRESH = ".new-"
_LONGEST_NAME = 200
_RETRIES = 100


class Lease:
    """A version that stays on disk until `close`, or until nobody refers to this object."""

    def __init__(self, folder: Path, handle: int) -> None:
        self.folder = folder
        self._handle = handle

    def again(self) -> Lease:
        """The same lock under a second owner; it is given back when both have closed."""
        return Lease(self.folder, os.dup(self._handle))

    def close(self) -> None:
        handle, self._handle = self._handle, -1
        if handle >= 0:
            os.close(handle)

    def __del__(self) -> None:
        self.close()


def hold(path: Path, version: int | None = None) -> Lease:
    """A lease on the version in force, or on the one asked for."""
    for _ in range(_RETRIES):
        folder = current_folder(path, version)
        try:
            handle = os.open(folder / MANIFEST, os.O_RDONLY | os.O_NOFOLLOW)
        except FileNotFoundError:
            if folder.is_dir():
                raise StoreError(f"{folder / MANIFEST} is missing; build the store again with build_pages") from None
            continue
        except OSError as error:
            raise StoreError(f"{folder / MANIFEST} cannot be opened ({error.strerror})") from error
        try:
            fcntl.flock(handle, fcntl.LOCK_SH)
        except OSError as error:
            # Where files cannot be locked none can be found unlocked either, and no version is removed.
            if error.errno not in NO_LOCKS:
                os.close(handle)
                raise StoreError(f"{folder / MANIFEST} cannot be locked ({error.strerror})") from error
        # Between finding and locking it the version may have been removed: then there is a newer one.
        if _is_same(handle, folder / MANIFEST):
            return Lease(folder, handle)
        os.close(handle)
    raise StoreError(f"the versions of {path} come and go faster than one can be opened: build less often")


@contextmanager
def store_lock(path: Path) -> Iterator[None]:
    """Alone in changing which versions there are and who has pinned them."""
    handle = _locked(path / LOCK)
    try:
        yield
    finally:
        os.close(handle)


def _locked(file: Path) -> int:
    """A handle that holds the lock file, which exists from now on."""
    while True:
        try:
            handle = os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise StoreError(f"{file} cannot be opened ({error.strerror}): the store must be writable") from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            # A build that failed removes a new store, and its lock file with it, while others wait for the lock.
            if _is_same(handle, file):
                return handle
        except OSError as error:
            os.close(handle)
            raise StoreError(
                f"{file} cannot be locked ({error.strerror}): the file system must support flock"
            ) from error
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)


def _is_same(handle: int, file: Path) -> bool:
    """Whether the file that was opened still has its name."""
    try:
        return os.path.samestat(os.fstat(handle), os.stat(file))
    except FileNotFoundError:
        return False


def pin(store: str | Path, owner: str, batch: int) -> int:
    """The version that `owner` uses for `batch`: the one in force when this was asked for the first time.

    The answer is on disk before it is given, and the same for every later call, whichever process asks.
    """
    return pin_identity(store, owner, batch).version


def pin_identity(store: str | Path, owner: str, batch: int) -> Identity:
    """The same with the whole identity: what was pinned is what is there under that version."""
    path = Path(store)
    name = _pin_file(path, owner, batch)
    recorded = _recorded(name)
    if recorded is None:
        # A path without a store is refused before a lock file is made there.
        current_folder(path)
        with store_lock(path):
            recorded = _recorded(name)
            if recorded is None:
                recorded = _record(name, load_identity(current_folder(path)))
    elif _is_unsure(name):
        sync(name.parent)
    folder = path / version_name(recorded.version)
    remedy = "bring the version back, or start the query anew with another checkpoint"
    if not folder.is_dir():
        raise StoreError(
            f"batch {batch} of {owner!r} uses version {recorded.version} of {path}, which is gone; it keeps "
            f"{versions_in(path) or 'none'}: {remedy}"
        )
    found = load_identity(folder)
    if found != recorded:
        raise StoreError(
            f"batch {batch} of {owner!r} uses version {recorded.version} of {path} with the identity {recorded}, but "
            f"the store was replaced: that version has the identity {found}; {remedy}"
        )
    return recorded


def unpin_before(store: str | Path, owner: str, batch: int | None) -> None:
    """Forget what `owner` used for batches before `batch`; None forgets the owner altogether."""
    folder = _pin_file(Path(store), owner, batch or 0).parent
    try:
        for file in list(folder.iterdir()):
            number = _batch_of(file)
            if batch is None or (number is not None and number < batch):
                file.unlink(missing_ok=True)
        if batch is None:
            folder.rmdir()
    except OSError as error:
        # There were no pins, or another process adds one just now.
        if error.errno not in (errno.ENOTEMPTY, errno.ENOENT):
            raise StoreError(
                f"pins in {folder} cannot be removed ({error.strerror}): the store must be writable"
            ) from error


@dataclass(frozen=True)
class Pin:
    """What a batch of a query uses; no identity where the file cannot be read, so that any version may be meant."""

    owner: str
    batch: int
    identity: Identity | None
    #: when it was made, in seconds since 1970
    since: float


def pins_in(path: Path) -> list[Pin]:
    """All pins of a store, by owner and batch."""
    found = []
    for file in (path / QUERIES).glob("*/*.json"):
        batch = _batch_of(file)
        if batch is None:
            continue
        owner = unquote(file.parent.name)
        # One that is missing was let go by its query meanwhile.
        with suppress(FileNotFoundError):
            since = file.stat().st_mtime
            try:
                recorded = _recorded(file)
            except StoreError:
                found.append(Pin(owner, batch, None, since))
            else:
                found += [] if recorded is None else [Pin(owner, batch, recorded, since)]
    return sorted(found, key=lambda pin: (pin.owner, pin.batch))


def owners_of(path: Path, query: str) -> list[str]:
    """Who has pins for a query: the query itself, and what it keeps tuples for under a name that begins with its."""
    return sorted({pin.owner for pin in pins_in(path) if pin.owner == query or pin.owner.startswith(f"{query} ")})


def pinned_versions(path: Path) -> set[int] | None:
    """Versions that some pin names; None when a pin cannot be read, so that any version may be meant."""
    pins = pins_in(path)
    if any(pin.identity is None for pin in pins):
        return None
    return {pin.identity.version for pin in pins if pin.identity is not None}


def unpinned_versions(path: Path, keep: int, pinned: set[int]) -> list[int]:
    """The versions before the one in force, less those that are pinned and the `keep` newest."""
    current = current_version(path)
    older = [number for number in versions_in(path) if number < current]
    return [number for number in older[: max(len(older) - keep, 0)] if number not in pinned]


def drop_unused(path: Path, keep: int, bin_folder: Path) -> list[int]:
    """Move all but the `keep` newest of the older versions into a folder to be removed, unless somebody holds them.

    To be called with the store's lock held. A version that is held now stays until the next one comes into force.
    """
    pinned = pinned_versions(path)
    if pinned is None:
        return []
    dropped = []
    for number in unpinned_versions(path, keep, pinned):
        folder = path / version_name(number)
        if _move_unless_leased(folder, bin_folder / folder.name):
            dropped.append(number)
    if dropped:
        # Before their files are removed: a power cut must not bring back versions that lack some.
        sync(path)
    return dropped


def orphans(path: Path) -> list[int]:
    """Versions that never came into force: their build was killed at the last moment."""
    try:
        current = version_of(current_folder(path))
    except StoreError:
        # Without a version in force none is known to be an orphan.
        return []
    return [number for number in versions_in(path) if number > current]


def drop_orphans(path: Path, bin_folder: Path) -> list[int]:
    """Move such versions into a folder to be removed; the store's lock is held."""
    return [
        number
        for number in orphans(path)
        if _move_unless_leased(path / version_name(number), bin_folder / version_name(number))
    ]


def is_leased(folder: Path) -> bool:
    """Whether some process, on whichever machine, has a version open; True where that cannot be known."""
    try:
        handle = os.open(folder / MANIFEST, os.O_RDONLY)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(handle)
    return False


def lease_holders(folder: Path) -> list[int]:
    """Processes of this machine that have a version open, as far as the system tells."""
    try:
        about = os.stat(folder / MANIFEST)
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return []
    place = f"{os.major(about.st_dev):02x}:{os.minor(about.st_dev):02x}:{about.st_ino}"
    # For example "3: FLOCK  ADVISORY  READ 4711 fe:00:131 0 EOF"; of one that waits, "->" follows the number.
    words = [line.split() for line in lines]
    return sorted({int(word[4]) for word in words if word[1] == "FLOCK" and word[5] == place and int(word[4]) > 0})


def _move_unless_leased(folder: Path, target: Path) -> bool:
    """Whether the version was free and is now out of the way."""
    handle = -1
    try:
        # Without a manifest nobody can have opened the version.
        if (folder / MANIFEST).exists():
            handle = os.open(folder / MANIFEST, os.O_RDWR)
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.rename(folder, target)
    except OSError:
        return False
    finally:
        if handle >= 0:
            os.close(handle)
    return True


def _pin_file(path: Path, owner: str, batch: int) -> Path:
    name = quote(owner, safe=" ").replace(".", "%2E")
    if not owner or len(name) > _LONGEST_NAME:
        raise ConfigError(
            f"the owner of a pin is named {owner!r}; allowed are names of 1 to {_LONGEST_NAME} characters"
        )
    if batch < 0:
        raise ConfigError(f"batch={batch} cannot be pinned; batches are counted from 0")
    return path / QUERIES / name / f"{batch}.json"


def _batch_of(file: Path) -> int | None:
    return int(file.stem) if file.suffix == ".json" and file.stem.isdigit() else None


def _recorded(file: Path) -> Identity | None:
    try:
        identity = Identity(**read_sealed(file)[0])
        if not isinstance(identity.version, int):
            raise ValueError(f"its version is {identity.version!r}")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise StoreError(f"{file} does not name a version ({error}): remove the file if its query is gone") from error
    return identity


def _is_unsure(file: Path) -> bool:
    """Whether the process that wrote a pin has not synced it yet, and perhaps never will."""
    try:
        return file.stat().st_nlink > 1
    except FileNotFoundError:
        return False


def _record(file: Path, identity: Identity) -> Identity:
    """Write a pin, whole and on disk, unless there is one; the store's lock is held. Returns what it names."""
    for _ in range(_RETRIES):
        fresh = file.parent / f"{_FRESH}{secrets.token_hex(8)}"
        try:
            make_folder(file.parent)
            # Only the holder of the lock writes here: others were left behind by processes that were killed.
            stale = list(file.parent.glob(f"{_FRESH}*"))
            if stale:
                sync(file.parent)
            for left in stale:
                left.unlink(missing_ok=True)
            write_synced(fresh, sealed(asdict(identity))[0])
            # Unlike a rename, a link never replaces what another process wrote first. The other name goes last: as
            # long as there are two, the pin may be seen before it is sure to survive a power cut (`_is_unsure`).
            os.link(fresh, file)
            sync(file.parent)
            fresh.unlink(missing_ok=True)
            return identity
        except FileNotFoundError:
            # `unpin_before` removed the owner's folder meanwhile.
            continue
        except FileExistsError:
            fresh.unlink(missing_ok=True)
            recorded = _recorded(file)
            if recorded is not None:
                return recorded
        except OSError as error:
            raise StoreError(f"{file} cannot be written ({error.strerror}): the store must be writable") from error
    raise StoreError(f"{file} cannot be written: its folder is removed again and again")


@contextmanager
def held_alone(folders: Iterable[Path]) -> Iterator[Path | None]:
    """Keep versions from being opened meanwhile; gives the first one that somebody has open, or None."""
    handles: list[int] = []
    taken: Path | None = None
    try:
        for folder in folders:
            # Without a manifest nobody can have opened the version.
            if not (folder / MANIFEST).exists():
                continue
            try:
                handles.append(os.open(folder / MANIFEST, os.O_RDWR))
                fcntl.flock(handles[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                taken = folder
                break
        yield taken
    finally:
        for handle in handles:
            os.close(handle)
