"""What a page store is on disk.

store/
  CURRENT            the name of the version in force, replaced by an atomic rename
  v000001/
    manifest.json    schema, key, counts, order, sizes and checksums of the files
    pages.arrow      an Arrow IPC file: one record batch a page
    index.arrow      offset, length, first code, continues, checksum of every page
    keys.bin         only for order "frequency": (code, first row, rows) sorted by code
"""

from __future__ import annotations

import base64
import json
import os
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from semistream.errors import StoreError

FORMAT = "semistream-pages"
FORMAT_VERSION = 2
CURRENT, MANIFEST = "CURRENT", "manifest.json"
KEYS = "keys.bin"
CODE = "__code"
_REMEDY = "build the store again with build_pages"
DAMAGED = f"the file was damaged after it was written: {_REMEDY}"


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
    version: int = 1
    format: str = FORMAT
    format_version: int = FORMAT_VERSION

    @property
    def logical(self) -> pa.Schema:
        return decode_schema(self.schema)

    def save(self, folder: Path) -> None:
        write_synced(folder / MANIFEST, json.dumps(asdict(self), indent=1).encode())


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
    match = re.fullmatch(r"v(\d{6,})", path.name)
    return int(match.group(1)) if match else 0


def versions_in(path: Path) -> list[int]:
    """The versions a store keeps, oldest first."""
    return sorted(number for p in path.iterdir() if (number := version_of(p))) if path.is_dir() else []


def current_folder(path: Path, version: int | None = None) -> Path:
    """The folder of the version in force, or of the one asked for."""
    if version is not None:
        folder = path / version_name(version)
        if not folder.is_dir():
            raise StoreError(f"{path} has no version {version}; it keeps {versions_in(path) or 'none'}")
        return folder
    name = _current_name(path)
    while not version_of(Path(name)) or not (path / name).is_dir():
        # A newer version may have come into force, and this one gone, since CURRENT was read.
        before, name = name, _current_name(path)
        if name == before:
            raise StoreError(f"{path / CURRENT} names the version {name!r}, which is not there; {_REMEDY}")
    return path / name


def _current_name(path: Path) -> str:
    try:
        return (path / CURRENT).read_text().strip()
    except FileNotFoundError:
        raise StoreError(f"{path} is no page store: it has no file {CURRENT}; {_REMEDY}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise StoreError(f"{path / CURRENT} cannot be read ({error}); {_REMEDY}") from error


def load_manifest(folder: Path) -> Manifest:
    """The manifest of a version, after checking that the files it describes are whole."""
    path = folder / MANIFEST
    try:
        raw = json.loads(path.read_text())
    except FileNotFoundError:
        raise StoreError(f"{path} is missing; {_REMEDY}") from None
    except (OSError, ValueError) as error:
        raise StoreError(f"{path} is not readable JSON ({error}); {_REMEDY}") from error
    if not isinstance(raw, dict) or raw.get("format") != FORMAT:
        raise StoreError(f"{path} does not describe a page store; {_REMEDY}")
    if raw.get("format_version") != FORMAT_VERSION:
        raise StoreError(
            f"{path} has format version {raw.get('format_version')!r}; this release reads "
            f"version {FORMAT_VERSION}: {_REMEDY}"
        )
    try:
        manifest = Manifest(**raw)
        # A schema that cannot be decoded is refused here, not at the first batch.
        decode_schema(manifest.schema)
        files = [(str(name), int(about["bytes"])) for name, about in manifest.files.items()]
        whole = all(shard["pages"] == -(-shard["rows"] // manifest.page_rows) > 0 for shard in manifest.shards)
        whole &= manifest.rows == sum(shard["rows"] for shard in manifest.shards)
        whole &= manifest.pages == sum(shard["pages"] for shard in manifest.shards)
        named = {shard[what] for shard in manifest.shards for what in ("pages_file", "index_file")}
    except (TypeError, ValueError, LookupError, ArithmeticError, pa.ArrowException, OSError) as error:
        raise StoreError(f"{path} is damaged ({error}); {_REMEDY}") from error
    if not whole or named - set(manifest.files):
        raise StoreError(f"{path} is damaged: its counts or files do not fit together; {_REMEDY}")
    for name, size in files:
        try:
            found = (folder / name).stat().st_size
        except OSError as error:
            raise StoreError(f"{folder / name} cannot be read ({error.strerror}); {_REMEDY}") from error
        if found != size:
            raise StoreError(
                f"{folder / name} has {found} bytes, {size} were written: it is truncated or foreign; {_REMEDY}"
            )
    return manifest


def write_synced(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync(path: Path) -> None:
    """Make a file's bytes, or a folder's entries, survive a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
