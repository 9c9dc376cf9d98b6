"""What a page store is on disk.

store/
  CURRENT                the number of the version in force, replaced by an atomic rename
  queries/               which version a batch of a query uses (leases.py)
  v000001/
    manifest.json        schema, key, counts, order, sizes and checksums of the files
    pages-00000.arrow    an Arrow IPC file: one record batch per page
    index-00000.arrow    offset, length, first code, continues, checksum of every page
    keys.bin             only for order "frequency": (code, first row, rows) sorted by code
    codes.bin            only after changes: (code, new code) of every changed key, sorted by code

A version that changed another one has the files of that one's base and runs under second names (hard links), and one
run of changes more: shards behind the others, numbered on. So every version's folder is complete in itself.

Every byte that is read is covered by a checksum: pages by the index, index, keys and codes by the manifest, manifest
and CURRENT by their last line (sealed.py). A store consists of plain files and folders; names or links that lead out of
it are refused.
"""

from __future__ import annotations

import base64
import json
import os
import re
import stat
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from semistream.errors import StoreError
from semistream.sealed import read_sealed, sealed, sync

FORMAT = "semistream-pages"
FORMAT_VERSION = 4
#: the one before has no changes, and is otherwise the same
_READABLE = (3, FORMAT_VERSION)
CURRENT, MANIFEST = "CURRENT", "manifest.json"
KEYS, CODES = "keys.bin", "codes.bin"
CODE = "__code"
_REMEDY = "build the store again with build_pages"
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
DAMAGED = f"the file was damaged after it was written: {_REMEDY}"


@dataclass(frozen=True)
class Identity:
    """Exactly these bytes of a store. The version alone does not tell: a store built anew begins with 1 again."""

    uuid: str
    version: int
    checksum: str

    def __str__(self) -> str:
        return f"{self.uuid}-{self.version}-{self.checksum}"


@dataclass(frozen=True)
class Origin:
    """Where the rows of a version come from, as far as whoever wrote it has said."""

    #: a name for the source, and how far it had been read; positions of one source can be compared
    source: str | None = None
    position: int | str | None = None
    #: when the newest change was made there, and when it came here; ISO 8601
    committed_at: str | None = None
    refreshed_at: str | None = None


@dataclass(frozen=True)
class Parts:
    """What a version is made of: a base, and runs of changes behind it, oldest first."""

    base: str
    runs: tuple[str, ...] = ()


def shares_codes(one: Parts, other: Parts) -> bool:
    """Whether what was found under a code in one version is right in the other for whoever asks for that code there.

    So it is if one has the runs of the other and perhaps some more: pages keep their numbers and rows their codes, and
    a key that changed in between is asked for under another code.
    """
    short, long = sorted((one, other), key=lambda parts: len(parts.runs))
    return short.base == long.base and long.runs[: len(short.runs)] == short.runs


@dataclass
class Manifest:
    """Everything about a version that is not the data itself."""

    schema: str
    on: list[str]
    coder: dict[str, Any]
    rows: int
    pages: int
    keys: int | None
    null_key_rows: int
    null_counts: dict[str, int]
    page_rows: int
    order: str
    #: physical columns in the order of the file, and which of them hold the codes
    physical: list[str]
    code_column: str
    #: columns whose place is the same on every full page
    fixed_layout: list[str]
    row_bytes: float
    #: pages and rows of every shard, and the names of its two files; only a shard's last page may be short
    shards: list[dict[str, Any]]
    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    codec: str = "none"
    #: the identity of the version whose shards are the base; empty: the base is this version's own
    base: str = ""
    #: runs of changes, oldest first: a name that no other run has, and how many of the last shards are the run's
    runs: list[dict[str, Any]] = field(default_factory=list)
    #: physical columns of the runs' shards; the first one holds their codes
    run_physical: list[str] = field(default_factory=list)
    #: number of changed codes, the code that no row has, and the first one that is free for later changes
    recoding: dict[str, int] = field(default_factory=dict)
    #: the largest code on a page of the base; None if it has no row, or was written before this was noted
    largest_code: int | None = None
    #: rows that no key leads to any more
    dead_rows: int = 0
    origin: dict[str, Any] = field(default_factory=dict)
    #: how far every source has been read
    positions: dict[str, int | str] = field(default_factory=dict)
    #: why changes were not kept as a run but all rows written anew
    notice: str = ""
    #: of the store: made with its first version, the same in all that follow
    uuid: str = ""
    version: int = 1
    format: str = FORMAT
    format_version: int = FORMAT_VERSION
    #: of the manifest as it is on disk, where it is the last line
    checksum: str = ""

    @property
    def logical(self) -> pa.Schema:
        return decode_schema(self.schema)

    @property
    def identity(self) -> Identity:
        return Identity(self.uuid, self.version, self.checksum)

    @property
    def parts(self) -> Parts:
        return Parts(self.base or str(self.identity), tuple(run["id"] for run in self.runs))

    @property
    def base_shards(self) -> int:
        """How many of the shards are the base."""
        return len(self.shards) - sum(int(run["shards"]) for run in self.runs)

    @property
    def base_pages(self) -> int:
        return sum(int(shard["pages"]) for shard in self.shards[: self.base_shards])

    def save(self, folder: Path) -> None:
        content = asdict(self)
        del content["checksum"]
        raw, self.checksum = sealed(content)
        write_synced(folder / MANIFEST, raw)


def encode_schema(schema: pa.Schema) -> str:
    return base64.b64encode(schema.serialize()).decode()


def decode_schema(text: str) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))


def is_store(path: Path) -> bool:
    """Whether a folder looks like a page store at all, whole or not."""
    return path.is_dir() and ((path / CURRENT).exists() or any(version_of(p) for p in path.iterdir()))


def version_name(version: int) -> str:
    return f"v{version:06d}"


def version_of(path: Path) -> int:
    """The number of the version in a folder of that name; 0 for other names."""
    match = re.fullmatch(r"v([0-9]{6,18})", path.name)
    number = int(match.group(1)) if match else 0
    return number if path.name == version_name(number) else 0


def versions_in(path: Path) -> list[int]:
    """The versions a store keeps, oldest first."""
    return sorted(number for p in path.iterdir() if (number := version_of(p))) if path.is_dir() else []


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def current_folder(path: Path, version: int | None = None) -> Path:
    """The folder of the version in force, or of the one asked for."""
    if version is not None:
        folder = path / version_name(version)
        if not _is_folder(folder):
            raise StoreError(f"{path} has no version {version}; it keeps {versions_in(path) or 'none'}")
        return folder
    number = current_version(path)
    while not _is_folder(path / version_name(number)):
        # A newer version may have come into force, and this one gone, since CURRENT was read.
        before, number = number, current_version(path)
        if number == before:
            raise StoreError(f"{path / CURRENT} names version {number}, which is not there; {_REMEDY}")
    return path / version_name(number)


def current_version(path: Path) -> int:
    """The version in force, whether it is there or not."""
    file = path / CURRENT
    try:
        number = read_sealed(file)[0]["version"]
        if not isinstance(number, int) or number < 1:
            raise ValueError(f"it names the version {number!r}")
    except FileNotFoundError:
        raise StoreError(f"{path} is no page store: it has no file {CURRENT}; {_REMEDY}") from None
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise StoreError(f"{file} cannot be read, or an older release wrote it ({error}); {_REMEDY}") from error
    return number


def name_current(path: Path, version: int) -> None:
    """Write such a file; it is on disk when this returns."""
    write_synced(path, sealed({"version": version})[0])


def load_identity(folder: Path) -> Identity:
    """Which version is in a folder; less work than `load_manifest`, which checks the files beside it as well."""
    raw, checksum = _read_manifest(folder)
    return Identity(raw["uuid"], raw["version"], checksum)


def _read_manifest(folder: Path) -> tuple[dict[str, Any], str]:
    """The content of a manifest of this release, and its checksum."""
    path = folder / MANIFEST
    try:
        raw, checksum = read_sealed(path)
    except FileNotFoundError:
        raise StoreError(f"{path} is missing; {_REMEDY}") from None
    except (OSError, ValueError) as error:
        raise StoreError(f"{path} cannot be read{_other_release(path)} ({error}); {_REMEDY}") from error
    if not isinstance(raw, dict) or raw.get("format") != FORMAT:
        raise StoreError(f"{path} does not describe a page store; {_REMEDY}")
    if raw.get("format_version") not in _READABLE:
        raise StoreError(
            f"{path} has format version {raw.get('format_version')!r}; this release reads "
            f"versions {' and '.join(map(str, _READABLE))}: {_REMEDY}"
        )
    if not isinstance(raw.get("uuid"), str) or raw.get("version") != version_of(folder):
        raise StoreError(f"{path} is damaged: it describes version {raw.get('version')!r} of a store; {_REMEDY}")
    return raw, checksum


def _other_release(path: Path) -> str:
    """Words for a manifest that was whole before manifests had a checksum."""
    try:
        return f": it has format version {json.loads(path.read_bytes())['format_version']}"
    except (OSError, ValueError, LookupError, TypeError):
        return ""


def load_manifest(folder: Path) -> Manifest:
    """The manifest of a version, after checking that the files it describes are whole."""
    path = folder / MANIFEST
    raw, checksum = _read_manifest(folder)
    try:
        manifest = Manifest(**raw, checksum=checksum)
        # A schema that cannot be decoded is refused here, not at the first batch.
        decode_schema(manifest.schema)
        files = [(str(name), int(about["bytes"])) for name, about in manifest.files.items()]
        whole = all(shard["pages"] == -(-shard["rows"] // manifest.page_rows) > 0 for shard in manifest.shards)
        whole &= manifest.rows == sum(shard["rows"] for shard in manifest.shards)
        whole &= manifest.pages == sum(shard["pages"] for shard in manifest.shards)
        whole &= manifest.base_shards >= 0 and all(run["shards"] >= 0 for run in manifest.runs)
        whole &= 0 <= manifest.dead_rows <= manifest.rows
        named = {shard[what] for shard in manifest.shards for what in ("pages_file", "index_file")}
        if manifest.runs:
            named.add(CODES)
            whole &= manifest.files[CODES]["bytes"] == 16 * manifest.recoding["changed"]
            whole &= manifest.recoding["absent"] < manifest.recoding["next"]
        manifest.parts, Origin(**manifest.origin)
    except (TypeError, ValueError, LookupError, ArithmeticError, pa.ArrowException, OSError) as error:
        raise StoreError(f"{path} is damaged ({error}); {_REMEDY}") from error
    if not whole or named - set(manifest.files):
        raise StoreError(f"{path} is damaged: its counts or files do not fit together; {_REMEDY}")
    for name, size in files:
        if not _PLAIN_NAME.fullmatch(name):
            raise StoreError(f"{path} names the file {name!r}, which would not be beside it; {_REMEDY}")
        try:
            found = (folder / name).lstat()
        except OSError as error:
            raise StoreError(f"{folder / name} cannot be read ({error.strerror}); {_REMEDY}") from error
        if not stat.S_ISREG(found.st_mode):
            raise StoreError(f"{folder / name} is no plain file (a link may lead out of the store); {_REMEDY}")
        if found.st_size != size:
            raise StoreError(
                f"{folder / name} has {found.st_size} bytes, {size} were written: it is truncated or foreign; {_REMEDY}"
            )
    return manifest


def write_synced(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def make_folder(path: Path) -> None:
    """A folder with all above it that were missing; they survive a power cut."""
    missing = [folder for folder in (path, *path.parents) if not folder.is_dir()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in reversed(missing):
        sync(folder.parent)
