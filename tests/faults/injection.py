"""Calls that change files, counted below one folder, and one of them struck: the process dies there, or the call fails.

`watch` replaces what Python code writes files with: the functions of `os`, `open`, `pyarrow.OSFile` and the `flush` of
a mapping. It is meant for a process that ends soon. Not seen are writes that bypass all of these: kernels that call
`pwrite` themselves or store through a mapping, and files that pyarrow or numpy open by name (Parquet, `tofile`).
"""

from __future__ import annotations

import builtins
import errno
import io
import mmap
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

#: the process is killed right before the call; in the middle of it, with half of the bytes written; the call fails; the
#: disk is full from this call on; Ctrl-C right after the call
KILL, HALF, EIO, ENOSPC, INTERRUPT = "kill", "half", "EIO", "ENOSPC", "interrupt"
FAULTS = (KILL, HALF, EIO, ENOSPC, INTERRUPT)
_WRITES = {"write", "pwrite"}
#: calls that need room on the disk
_GROWING = _WRITES | {"open", "mkdir", "link", "symlink", "rename", "replace", "posix_fallocate"}

_PATHS = ("truncate", "unlink", "remove", "rmdir", "mkdir")
_PAIRS = ("rename", "replace", "link", "symlink")
_HANDLES = ("fsync", "fdatasync", "ftruncate", "posix_fallocate", "write", "pwrite")


def faults_for(call: str) -> tuple[str, ...]:
    """What can be done to a call."""
    return tuple(fault for fault in FAULTS if fault != HALF or call in _WRITES)


class Watch:
    """The calls so far, and which of them is to be struck how (0: none)."""

    def __init__(self, folder: Path, strike_at: int = 0, fault: str = "") -> None:
        self._folder = str(folder.resolve())
        self._strike_at = strike_at
        self._fault = fault
        self.calls: list[str] = []

    def reach(self, call: str, path: str) -> str:
        """Count a call; the fault that strikes it, or nothing."""
        if path != self._folder and not path.startswith(self._folder + "/"):
            return ""
        self.calls.append(call)
        if len(self.calls) == self._strike_at:
            return self._fault
        full = self._fault == ENOSPC and 0 < self._strike_at < len(self.calls)
        return ENOSPC if full and call in _GROWING else ""

    def around(self, call: str, path: str, run: Callable[[], Any]) -> Any:
        """Make a call that does not write bytes."""
        fault = self.reach(call, path)
        _before(fault)
        result = run()
        if fault == INTERRUPT:
            raise KeyboardInterrupt
        return result

    def writing(self, call: str, path: str, data: Any, run: Callable[[Any], int]) -> int:
        """Write bytes; a disk that gets full takes some of them."""
        fault = self.reach(call, path)
        if fault in (HALF, ENOSPC):
            view = memoryview(data).cast("B")
            run(view[: len(view) // 2])
        _before(fault)
        written = run(data)
        if fault == INTERRUPT:
            raise KeyboardInterrupt
        return written


def _before(fault: str) -> None:
    if fault in (KILL, HALF):
        os.kill(os.getpid(), signal.SIGKILL)
    if fault in (EIO, ENOSPC):
        number = getattr(errno, fault)
        raise OSError(number, os.strerror(number))


def _place(path: Any, folder: int | None = None) -> str:
    """The absolute path of a path or handle."""
    if isinstance(path, int):
        return os.readlink(f"/proc/self/fd/{path}")
    text = os.fsdecode(path)
    if folder is not None:
        text = os.path.join(os.readlink(f"/proc/self/fd/{folder}"), text)
    # The name itself may be a link, and the call is about the link.
    return os.path.join(os.path.realpath(os.path.dirname(os.path.abspath(text))), os.path.basename(text))


def watch(watched: Watch) -> None:
    """From now on this process tells every call; there is no way back."""
    for name in (*_PATHS, *_PAIRS, *_HANDLES):
        setattr(os, name, _watched(watched, name, getattr(os, name)))
    plain_open, plain_os_open = io.open, os.open

    def watched_os_open(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        def run() -> int:
            return plain_os_open(path, flags, mode, dir_fd=dir_fd)

        if not flags & (os.O_CREAT | os.O_TRUNC):
            return run()
        handle: int = watched.around("open", _place(path, dir_fd), run)
        return handle

    class WatchedFile(io.FileIO):
        """An unbuffered file that tells when bytes go to the system."""

        def __init__(self, file: Any, mode: str, closefd: bool = True, opener: Any = None) -> None:
            self._place = _place(file)
            make = super().__init__
            watched.around("open", self._place, lambda: make(file, mode, closefd, opener))

        def write(self, data: Any) -> int:
            return watched.writing("write", self._place, data, super().write)

        def truncate(self, size: int | None = None) -> int:
            cut = super().truncate
            result: int = watched.around("ftruncate", self._place, lambda: cut(size))
            return result

    def watched_open(
        file: Any,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        closefd: bool = True,
        opener: Any = None,
    ) -> Any:
        if not set(mode) & set("wxa+"):
            return plain_open(file, mode, buffering, encoding, errors, newline, closefd, opener)
        raw = WatchedFile(file, mode.replace("b", "").replace("t", ""), closefd, opener)
        if buffering == 0:
            return raw
        buffered = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        return buffered if "b" in mode else io.TextIOWrapper(buffered, encoding, errors, newline)

    plain_arrow = pa.OSFile

    def watched_arrow(path: str, mode: str = "r", memory_pool: Any = None) -> Any:
        if mode in ("r", "rb"):
            return plain_arrow(path, mode, memory_pool)
        return pa.PythonFile(WatchedFile(path, mode.replace("b", "")), mode="w")

    class WatchedMapping(mmap.mmap):
        """A mapping whose flush is watched, where it is one of a file."""

        def __new__(cls, fileno: int, *args: Any, **options: Any) -> Any:
            new = super().__new__(cls, fileno, *args, **options)
            new.place = _place(fileno) if fileno >= 0 else ""  # type: ignore[attr-defined]
            return new

        def flush(self, *args: Any) -> None:
            run = super().flush
            watched.around("msync", self.place, lambda: run(*args))  # type: ignore[attr-defined]

    patched: Any = os
    patched.open = watched_os_open
    builtins.open = io.open = watched_open  # type: ignore[assignment]
    pa.OSFile = watched_arrow
    mmap.mmap = WatchedMapping  # type: ignore[misc]


def _watched(watched: Watch, name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
    def call(first: Any, *args: Any, **options: Any) -> Any:
        if name in _WRITES:
            return watched.writing(name, _place(first), args[0], lambda data: plain(first, data, *args[1:], **options))
        target, folder = first, options.get("dir_fd")
        if name in _PAIRS:
            target, folder = args[0], options.get("dst_dir_fd")
        return watched.around(name, _place(target, folder), lambda: plain(first, *args, **options))

    return call
