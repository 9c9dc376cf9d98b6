"""Files that prove themselves: some content and, on the last line, a checksum of every byte before it.

The manifest of a version of R, the file that names the version in force, the pins of queries, and what a query keeps
of tuples that wait are such files. A byte that changed after they were written makes them unreadable, and never a file
that says something else.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from semistream.errors import StoreError

_MARK = b"\nblake2b "
_DIGEST_BYTES = 16
#: what file systems say that have no locks
NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)


def digest(content: bytes) -> str:
    """A name for these bytes that no others have."""
    return hashlib.blake2b(content, digest_size=_DIGEST_BYTES).hexdigest()


def seal(content: bytes) -> tuple[bytes, str]:
    """The bytes of such a file, and their checksum."""
    checksum = digest(content)
    return content + _MARK + checksum.encode() + b"\n", checksum


def unseal(raw: bytes) -> tuple[bytes, str]:
    """The content and the checksum of such bytes; ValueError where they are not as they were written."""
    content, mark, last = raw.rpartition(_MARK)
    checksum = digest(content)
    if not mark or last != f"{checksum}\n".encode():
        raise ValueError("its checksum is missing or does not fit its content")
    return content, checksum


def sealed(value: object) -> tuple[bytes, str]:
    """The same of a JSON value."""
    return seal(json.dumps(value, indent=1).encode())


def unsealed(raw: bytes) -> tuple[Any, str]:
    """The JSON value and the checksum of such bytes."""
    content, checksum = unseal(raw)
    return json.loads(content), checksum


def read_sealed(path: Path) -> tuple[Any, str]:
    """`unsealed` of a file; OSError where it cannot be read."""
    return unsealed(path.read_bytes())


def sync(path: Path) -> None:
    """Make a file's bytes, or a folder's entries, survive a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Alone among those who lock a folder; where the file system has no locks everybody goes on.

    That suits whoever puts a file without `replace`, of which one appears in any case.
    """
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
        yield
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
        sync(path.parent)
    except FileExistsError:
        return False
    except OSError as error:
        raise StoreError(f"{path} cannot be written ({error.strerror}): see to the disk and try again") from error
    finally:
        with suppress(OSError):
            fresh.unlink(missing_ok=True)
    return True
