"""Small files that prove themselves: a first line says what they are, a last one that not a byte has changed.

semistream record 1          kind and format version
...                          content, text or not
5d41402abc4b2a76...          checksum of everything above
"""

from __future__ import annotations

import hashlib
import os
import secrets
from contextlib import suppress
from pathlib import Path

from semistream.errors import StoreError

_FORMAT = 1
_DIGEST_BYTES = 16
_TAIL = 2 * _DIGEST_BYTES + 2


def digest(content: bytes) -> str:
    """A name for some bytes that no others have."""
    return hashlib.blake2b(content, digest_size=_DIGEST_BYTES).hexdigest()


def seal(kind: str, content: bytes) -> bytes:
    """Content as it goes into a file."""
    told = _first_line(kind) + content
    return told + f"\n{digest(told)}\n".encode()


def unseal(kind: str, sealed: bytes, path: Path) -> bytes:
    """The content of a file; refuses bytes that are not those that were written."""
    told, tail = sealed[:-_TAIL], sealed[-_TAIL:]
    head = _first_line(kind)
    if tail != f"\n{digest(told)}\n".encode():
        raise StoreError(f"{path} is damaged: its checksum does not fit its {len(sealed)} bytes")
    if not told.startswith(head):
        begins = told.partition(b"\n")[0][:60].decode("utf-8", "replace")
        raise StoreError(f"{path} begins with {begins!r}, this release reads {head.decode().strip()!r}")
    return told[len(head) :]


def sealed_name(sealed: bytes) -> str:
    """The checksum that stands at the end of a sealed file."""
    return sealed[-_TAIL:].strip().decode("ascii", "replace")


def _first_line(kind: str) -> bytes:
    return f"semistream {kind} {_FORMAT}\n".encode()


def sync_folder(folder: Path) -> None:
    """Make names that were made or changed in a folder survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def put_file(path: Path, content: bytes, *, replace: bool) -> bool:
    """Make a file appear whole and for good; without `replace` a file that is there stays, and the answer is False."""
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with fresh.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if replace:
            os.replace(fresh, path)
        else:
            # Unlike a rename, a link never replaces what another process wrote first.
            os.link(fresh, path)
        sync_folder(path.parent)
    except FileExistsError:
        return False
    except OSError as error:
        raise StoreError(f"{path} cannot be written ({error.strerror}): see to the disk and try again") from error
    finally:
        with suppress(OSError):
            fresh.unlink(missing_ok=True)
    return True
