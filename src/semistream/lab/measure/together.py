"""Processes that share an out folder: figures are divided among them, and whoever takes times is alone.

Most of the time of a run is its warm-up, in which only counts matter. So all processes may warm up at once. Before one
measures its turns it closes the door: the others stop at their next step, and go on when it is done.

Everything is a lock on a byte of one file, which the system lets go of when a process ends, however it ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
from collections.abc import Iterator
from pathlib import Path

from semistream.errors import ConfigError

#: bytes of the file; what has a name has the byte that its hash says, behind these
_ROOM, _DOOR, _LOG, _CHOICE, _MEMBERS, _NAMED = range(6)
_MOST_NAMES = 1 << 60


class Together:
    """This process among those that share a folder. Without a folder there are no others.

    In the room is who works. All but the one who is `alone` hold it together, and pass its door to come in again: so
    who closes the door need not wait until everybody happens to be outside.
    """

    def __init__(self, folder: Path | None = None, *, only_one: bool = False) -> None:
        self._inside = 0
        self._file = None
        if folder is None:
            return
        folder.mkdir(parents=True, exist_ok=True)
        # Open as long as this process is one of them: closing any handle of the file would end all its locks.
        self._file = (folder / ".together").open("a+b")
        try:
            self._lock(_MEMBERS, fcntl.LOCK_NB | (fcntl.LOCK_EX if only_one else fcntl.LOCK_SH))
        except OSError:
            self._file.close()
            raise ConfigError(
                f"another process is at work in {folder.parent}, and one of the two was given a limit for master data, "
                "so it may remove what the other reads. Wait until that one has ended, or leave the limit out in both"
            ) from None
        self._enter()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    # ---------------------------------------------------------------------------------------------- times

    def pause(self) -> None:
        """Stand still here as long as another one is alone."""
        if self._file is not None and not self._inside:
            self._unlock(_ROOM)
            self._enter()

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Nobody else works meanwhile."""
        if self._file is None or self._inside:
            yield
            return
        self._unlock(_ROOM)
        self._lock(_DOOR, fcntl.LOCK_EX)
        self._lock(_ROOM, fcntl.LOCK_EX)
        self._inside += 1
        try:
            yield
        finally:
            self._inside -= 1
            self._unlock(_DOOR)
            self._lock(_ROOM, fcntl.LOCK_SH)

    @contextlib.contextmanager
    def away(self) -> Iterator[None]:
        """This process does not work for a while, and keeps nobody from being alone."""
        self._unlock(_ROOM)
        try:
            yield
        finally:
            self._enter()

    def _enter(self) -> None:
        self._lock(_DOOR, fcntl.LOCK_EX)
        self._lock(_ROOM, fcntl.LOCK_SH)
        self._unlock(_DOOR)

    # ----------------------------------------------------------------------------------------------- work

    @contextlib.contextmanager
    def making(self, name: str) -> Iterator[None]:
        """Nobody else makes what has this name. Who has to wait for another one to make it does not work meanwhile."""
        if self._file is None:
            yield
            return
        place = _place(name)
        if not self._try(place):
            with self.away():
                self._lock(place, fcntl.LOCK_EX)
        try:
            yield
        finally:
            self._unlock(place)

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Nobody else writes to what all of them write to."""
        yield from self._holding(_LOG)

    @contextlib.contextmanager
    def choosing(self) -> Iterator[None]:
        """Nobody else chooses what to do next."""
        yield from self._holding(_CHOICE)

    def take(self, name: str) -> bool:
        """Take on what has this name, until `leave` or the end; no if another one has."""
        return self._file is None or self._try(_place(name))

    def leave(self, name: str) -> None:
        """Let others take it."""
        self._unlock(_place(name))

    # ---------------------------------------------------------------------------------------------- locks

    def _holding(self, place: int) -> Iterator[None]:
        self._lock(place, fcntl.LOCK_EX)
        try:
            yield
        finally:
            self._unlock(place)

    def _try(self, place: int) -> bool:
        try:
            self._lock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _lock(self, place: int, how: int) -> None:
        if self._file is not None:
            fcntl.lockf(self._file, how, 1, place)

    def _unlock(self, place: int) -> None:
        if self._file is not None:
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, place)


def _place(name: str) -> int:
    digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
    return _NAMED + int.from_bytes(digest) % _MOST_NAMES
