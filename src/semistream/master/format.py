"""What a page store is on disk, and how a new version of it appears all at once.

    store/
      CURRENT            the name of the version in force, replaced by an atomic rename
      v000001/
        manifest.json    schema, key, counts, order, sizes and checksums of the files
        pages.arrow      an Arrow IPC file: one record batch a page
        index.arrow      offset, length, first code, continues, checksum of every page
        keys.bin         only for order "frequency": (code, first row, rows) sorted by code

A version is written in a hidden folder beside the others, synced, renamed, and only then named by CURRENT. A
crash leaves the old version in force; what it left behind is swept away by the next build.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from semistream.errors import StoreError

FORMAT = "semistream-pages"
FORMAT_VERSION = 1
CURRENT, MANIFEST = "CURRENT", "manifest.json"
PAGES, INDEX, KEYS = "pages.arrow", "index.arrow", "keys.bin"
CODE = "__code"
_SCRATCH = ".build-"
_REMEDY = "build the store again with build_pages"


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
    return path.is_dir() and ((path / CURRENT).exists() or any(_version_of(p) for p in path.iterdir()))


def _version_of(path: Path) -> int:
    match = re.fullmatch(r"v(\d{6,})", path.name)
    return int(match.group(1)) if match else 0


def current_folder(path: Path, version: int | None = None) -> Path:
    """The folder of the version in force, or of the one asked for."""
    if version is not None:
        folder = path / f"v{version:06d}"
        if not folder.is_dir():
            kept = sorted(n for p in path.iterdir() if (n := _version_of(p))) if path.is_dir() else []
            raise StoreError(f"{path} has no version {version}; it keeps {kept or 'none'}")
        return folder
    try:
        name = (path / CURRENT).read_text().strip()
    except FileNotFoundError:
        raise StoreError(f"{path} is no page store: it has no file {CURRENT}; {_REMEDY}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise StoreError(f"{path / CURRENT} cannot be read ({error}); {_REMEDY}") from error
    if not _version_of(Path(name)) or not (path / name).is_dir():
        raise StoreError(f"{path / CURRENT} names the version {name!r}, which is not there; {_REMEDY}")
    return path / name


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
        whole = manifest.pages == -(-manifest.rows // manifest.page_rows)
    except (TypeError, ValueError, LookupError, ArithmeticError, pa.ArrowException, OSError) as error:
        raise StoreError(f"{path} is damaged ({error}); {_REMEDY}") from error
    if not whole or {PAGES, INDEX} - set(manifest.files):
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
    foreign = [p.name for p in path.iterdir() if not _version_of(p) and not p.name.startswith(_SCRATCH)]
    if foreign:
        raise StoreError(f"{path} exists and is no page store (it holds {foreign[0]!r}); give another path")


@contextmanager
def scratch_folder(path: Path) -> Iterator[Path]:
    """A hidden folder inside the store; gone afterwards, and the store with it if it was new and failed."""
    existed = path.exists()
    path.mkdir(parents=True, exist_ok=True)
    _sweep(path)
    folder = Path(tempfile.mkdtemp(prefix=_SCRATCH, dir=path))
    lock = _lock(folder)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if lock is not None:
            os.close(lock)
        if not existed and not any(path.iterdir()):
            path.rmdir()


def _lock(folder: Path) -> int | None:
    """Mark a scratch folder as in use by a live process; None when another one holds it."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        return None
    return handle


def _sweep(path: Path) -> None:
    """Remove what crashed builds left behind; a live build holds a lock on its folder."""
    for folder in path.glob(f"{_SCRATCH}*"):
        try:
            handle = _lock(folder)
        except OSError:
            continue
        if handle is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(handle)


def publish(path: Path, scratch: Path, written: Path, manifest: Manifest, keep: int) -> None:
    """Make a finished version the one in force, and drop all but `keep` of the older ones."""
    older = sorted(n for p in path.iterdir() if (n := _version_of(p)))
    manifest.version = (older[-1] if older else 0) + 1
    manifest.save(written)
    sync(written)
    name = f"v{manifest.version:06d}"
    try:
        os.rename(written, path / name)
    except OSError as error:
        raise StoreError(f"{path / name} appeared meanwhile ({error.strerror}): two builds at once") from error
    try:
        sync(path)
        fresh = scratch / CURRENT
        write_synced(fresh, f"{name}\n".encode())
        os.replace(fresh, path / CURRENT)
    except BaseException:
        shutil.rmtree(path / name, ignore_errors=True)
        raise
    sync(path)
    for number in older[: max(len(older) - keep, 0)]:
        shutil.rmtree(path / f"v{number:06d}", ignore_errors=True)
