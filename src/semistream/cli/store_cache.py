"""Page stores that the command line has made by itself of Parquet data, in the user's cache folder.

A store's name tells what it was made of: a digest of where (the path and the key), and one of what was there (names,
sizes and times of the files). So it is found again until the data change. A note in it says the same in words, and
its time is that of the last use.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from semistream.errors import StoreError
from semistream.master.format import CURRENT, FORMAT_VERSION, version_name, versions_in
from semistream.master.inventory import REMOVED, remove_store
from semistream.master.leases import is_leased, lease_holders
from semistream.master.publish import is_being_built

NOTE = "origin.json"
#: A join that has found its store opens it within this time.
JUST_USED_SECONDS = 60.0
_NAME = re.compile(r".+-[0-9a-f]{16}-[0-9a-f]{16}")


def cache_folder() -> Path:
    """Where such stores are kept: $SEMISTREAM_CACHE, or the user's cache folder."""
    own = os.environ.get("SEMISTREAM_CACHE")
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "semistream"


@dataclass(frozen=True)
class Origin:
    """What a store is made of: master data and their key and, if it is in order of frequency, a stream and its key."""

    master: str
    on: list[str]
    stream: str | None = None
    stream_on: list[str] | None = None

    @property
    def family(self) -> str:
        """The part of the name that stays when the data change."""
        facts: list[object] = [str(Path(self.master).resolve()), self.on]
        return f"{Path(self.master).stem}-{_digest(facts if self.stream is None else [*facts, self.stream_on])}"

    def place(self) -> Path:
        """Where the store of the present data is, or would be."""
        state: list[object] = [FORMAT_VERSION, *_state(Path(self.master))]
        if self.stream is not None:
            state += _state(Path(self.stream))
        return cache_folder() / f"{self.family}-{_digest(state)}"

    def older(self, place: Path) -> Iterator[Path]:
        """Stores of what the data were before."""
        for other in sorted(place.parent.iterdir()):
            if other != place and other.name.startswith(f"{self.family}-"):
                yield other


@dataclass(frozen=True)
class CachedStore:
    """A store in the cache. `state` is one of

    current (a join of the same data would use it), changed (the data are others by now), gone (the data are),
    unknown (nothing says what it was made of), unfinished (its build was cut short).
    """

    path: str
    master: str | None
    on: list[str] | None
    bytes: int
    #: in seconds since 1970
    last_used: float
    state: str
    in_use: bool
    processes: list[int]

    @property
    def is_useless(self) -> bool:
        """No join will ask for it again."""
        return self.state in ("changed", "gone", "unfinished")


def note_use(place: Path, origin: Origin) -> None:
    """Remember in a store what it was made of, and that it was used just now."""
    note = place / NOTE
    said = json.dumps(asdict(origin))
    try:
        if note.exists() and note.read_text(encoding="utf-8") == said:
            os.utime(note)
            return
        fresh = place / f".{NOTE}.{os.getpid()}"
        fresh.write_text(said, encoding="utf-8")
        os.replace(fresh, note)
    except OSError:
        # Whoever may only read the cache can use it all the same.
        return


def cached_stores() -> list[CachedStore]:
    """All stores in the cache, those used last at the end."""
    folder = cache_folder()
    found = [_entry(path) for path in folder.iterdir() if _is_ours(path)] if folder.is_dir() else []
    return sorted(found, key=lambda each: each.last_used)


@dataclass(frozen=True)
class Pruned:
    """What a clean-up took away, or would take away, and what stayed though it could have gone, with the reason."""

    removed: list[CachedStore]
    kept: dict[str, str]

    @property
    def bytes(self) -> int:
        return sum(each.bytes for each in self.removed)


def prune(older_than: float | None = None, most_bytes: int | None = None, *, dry_run: bool = False) -> Pruned:
    """Remove stores that no join will use again, those not used for `older_than` seconds, and, beginning with those
    used longest ago, as many as it takes to keep `most_bytes` in all. What is in use stays."""
    stores = cached_stores()
    now, total = time.time(), sum(each.bytes for each in stores)
    removed: list[CachedStore] = []
    kept: dict[str, str] = {}
    # Those that are of no use first: they may make enough room for the others.
    for each in sorted(stores, key=lambda each: (not each.is_useless, each.last_used)):
        is_old = older_than is not None and now - each.last_used > older_than
        is_too_much = most_bytes is not None and total > most_bytes
        if not (each.is_useless or is_old or is_too_much):
            continue
        why = _in_use(each, now)
        if why is None and not dry_run:
            try:
                why = remove_store(each.path)
            except (OSError, StoreError) as error:
                why = str(error)
        if why is not None:
            kept[each.path] = why
            continue
        removed.append(each)
        total -= each.bytes
    if not dry_run:
        _sweep()
    return Pruned(removed, kept)


def _in_use(store: CachedStore, now: float) -> str | None:
    if store.in_use:
        who = f" by process {', '.join(map(str, store.processes))}" if store.processes else ""
        return f"it is in use{who}"
    if store.state == "current" and now - store.last_used < JUST_USED_SECONDS:
        return f"it was used less than {JUST_USED_SECONDS:.0f} s ago: a join may be about to open it"
    return None


def _sweep() -> None:
    """Remove what a clean-up that was killed had begun to remove."""
    folder = cache_folder()
    for left in folder.glob(f".*{REMOVED}*") if folder.is_dir() else ():
        shutil.rmtree(left, ignore_errors=True)


def _is_ours(path: Path) -> bool:
    """A user may have named a folder as cache in which there are other things."""
    return _NAME.fullmatch(path.name) is not None and path.is_dir() and not path.is_symlink()


def _entry(path: Path) -> CachedStore:
    origin = _origin(path)
    versions = [path / version_name(number) for number in versions_in(path)]
    files = [file.lstat() for file in path.rglob("*") if file.is_file() and not file.is_symlink()]
    used = [place.stat().st_mtime for place in (path / NOTE, path / CURRENT, path) if place.exists()]
    return CachedStore(
        path=str(path),
        master=None if origin is None else origin.master,
        on=None if origin is None else origin.on,
        bytes=sum(file.st_size for file in files),
        last_used=used[0] if used else 0.0,
        state=_state_of(path, origin),
        in_use=is_being_built(path) or any(is_leased(version) for version in versions),
        processes=sorted({number for version in versions for number in lease_holders(version)}),
    )


def _state_of(path: Path, origin: Origin | None) -> str:
    if not (path / CURRENT).exists():
        return "unfinished"
    if origin is None:
        return "unknown"
    try:
        return "current" if origin.place().name == path.name else "changed"
    except OSError:
        return "gone"


def _origin(path: Path) -> Origin | None:
    try:
        said: dict[str, Any] = json.loads((path / NOTE).read_text(encoding="utf-8"))
        return Origin(**said)
    except (OSError, ValueError, TypeError):
        return None


def _state(path: Path) -> list[object]:
    """What changes when the data does: names, sizes, times of the last change."""
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    return [[str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns] for file in files]


def _digest(what: object) -> str:
    return hashlib.blake2b(json.dumps(what).encode(), digest_size=8).hexdigest()
