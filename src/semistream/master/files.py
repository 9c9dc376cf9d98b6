"""Opening files of a store, and saying why one could not be read."""

from __future__ import annotations

import errno
import os
import resource
from pathlib import Path

from semistream.errors import StoreError
from semistream.master.base import ALIGNMENT, aligned_buffer


def open_file(path: Path, direct: bool) -> int:
    flags = os.O_RDONLY | (getattr(os, "O_DIRECT", 0) if direct else 0)
    try:
        try:
            return os.open(path, flags)
        except OSError as error:
            if error.errno != errno.EMFILE or not _allow_more_files():
                raise
            return os.open(path, flags)
    except OSError as error:
        if direct and error.errno == errno.EINVAL:
            raise _no_direct(path) from error
        raise StoreError(f"{path} cannot be opened ({error.strerror})") from error


def _allow_more_files() -> bool:
    """Raise the soft limit of open files to the hard one: every reader of a store has all of its shards open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        return False
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return True


def failed_read(path: Path, fd: int, offset: int, direct: bool) -> StoreError:
    """The kernel does not tell why a read failed, so the read is tried once more to learn the reason."""
    try:
        got = os.preadv(fd, [aligned_buffer(ALIGNMENT).data], offset // ALIGNMENT * ALIGNMENT)
    except OSError as error:
        if direct and error.errno == errno.EINVAL:
            return _no_direct(path)
        return StoreError(f"{path} cannot be read at byte {offset} ({error.strerror})")
    return StoreError(f"{path} ends too early ({got} bytes at byte {offset}): it was truncated while in use")


def _no_direct(path: Path) -> StoreError:
    return StoreError(f"the file system of {path} refuses O_DIRECT; open with reads='mapped' or move the store")
